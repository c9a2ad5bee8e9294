"""Steps of a model over batch, context, cards, chips, engines and kinds of weights.

    found = npusim.models.sweep(model, {"batch": [1, 8, 64], "quant": ["float", "w8a8"]},
                                device=["Atlas A2", "Atlas A3"])
    found.to_csv(), found.draw()

A refused step is a row with its message.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import product
from typing import TYPE_CHECKING, Any

from npusim import devices
from npusim.data.errors import OpError, shown
from npusim.devices.schema import DeviceSpec
from npusim.models.step import Step
from npusim.sweeps import Outcome, SweepError
from npusim.sweeps.cells import Cell, word
from npusim.sweeps.rows import Row, Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from npusim.models import Model

__all__ = ["VARIABLES", "ModelRow", "ModelSweep", "sweep"]

VARIABLES = ("tp", "ep", "dp", "batch", "context", "prompt", "quant", "engine")
"""The parameters of a step."""
MOST_CELLS = 10_000
Chip = str | os.PathLike[str] | DeviceSpec


@dataclass(frozen=True, slots=True)
class ModelRow:
    """The parameters, and the step, or the reason why there is none."""

    device: str
    variables: dict[str, Any]
    step: Step | None
    error: str | None = None

    def facts(self) -> dict[str, object]:
        """Column -> its value, as plain numbers and strings."""
        found: dict[str, object] = {"device": self.device}
        found |= {name: word(value) for name, value in self.variables.items()}
        if self.step is None:
            return found | {"error": self.error}
        decode, prefill = self.step.decode, self.step.prefill
        found |= {
            "tpot_ms": decode.time_us / 1e3,
            "ttft_ms": prefill.time_us / 1e3,
            "decode_tokens_per_s": decode.tokens_per_s,
            "prefill_tokens_per_s": prefill.tokens_per_s,
        }
        for name, phase in (("decode", decode), ("prefill", prefill)):
            for part, own in phase.parts.named().items():
                found[f"{name}_{part}_ms"] = own.time_us / 1e3
        return found | self.step.memory.to_json()


@dataclass(frozen=True, slots=True)
class ModelSweep:
    """All rows, in the order of chips and variables; the last variable changes fastest."""

    architecture: str
    variables: tuple[str, ...]
    rows: tuple[ModelRow, ...]

    def __repr__(self) -> str:
        over = f" over {', '.join(self.variables)}" if self.variables else ""
        bad = f", {len(self.bad)} refused" if self.bad else ""
        return f"<sweep of {self.architecture}{over}: {len(self.rows)} steps{bad}>"

    def _repr_html_(self) -> str:
        from npusim.sweeps.page import glimpse

        return glimpse(repr(self), self.times())

    @property
    def bad(self) -> tuple[ModelRow, ...]:
        """The refused rows."""
        return tuple(row for row in self.rows if row.step is None)

    @property
    def columns(self) -> tuple[str, ...]:
        """The header of the CSV."""
        names = dict.fromkeys(name for row in self.rows for name in row.facts())
        return (*(name for name in names if name != "error"), "error")

    def to_csv(self) -> str:
        """The header, and one line per row."""
        text = StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(self.columns)
        for row in self.rows:
            facts = row.facts()
            table.writerow("" if facts.get(name) is None else facts[name] for name in self.columns)
        return text.getvalue()

    def to_json(self) -> dict[str, object]:
        """The same as plain numbers and strings."""
        return {
            "architecture": self.architecture,
            "variables": list(self.variables),
            "rows": [row.facts() for row in self.rows],
        }

    def times(self) -> Rows:
        """Times per output token as rows of a sweep, so that they can be drawn."""
        rows = (
            Row(
                Cell(row.device, None, {}, row.variables, {}, False, None, row.error),
                Outcome(time_us=row.step.tpot_us if row.step else None, error=row.error),
            )
            for row in self.rows
        )
        return Rows(f"a step of {self.architecture}", (), self.variables, tuple(rows))

    def draw(self, *, ax: Axes | None = None) -> Axes:
        """Draw times per output token on *ax*, or on a new figure."""
        from npusim.sweeps.picture import draw

        return draw(self.times(), ax=ax)


def sweep(
    model: Model,
    over: Mapping[str, Sequence[Any]],
    *,
    device: Chip | Sequence[Chip],
    progress: Callable[[int, int], None] | None = None,
    **fixed: Any,
) -> ModelSweep:
    """Time *model* for each value of each variable that *over* names, on each *device*.

    The variables and the *fixed* arguments are those of :meth:`npusim.models.Model.step`.
    *progress* is called with the number of finished steps and the total. Raises SweepError for an
    invalid sweep; a refused step is a row.
    """
    for name in (*over, *fixed):
        if name not in VARIABLES:
            raise SweepError(
                f"sweep: a variable of a model must be one of {', '.join(VARIABLES)}, not "
                f"{shown(name)}; rename or drop it"
            )
    chips = [device] if isinstance(device, str | os.PathLike | DeviceSpec) else list(device)
    specs = [devices.load(chip) for chip in chips]
    ways = [dict(zip(over, values, strict=True)) for values in product(*over.values())]
    count = len(specs) * len(ways)
    if not 0 < count <= MOST_CELLS:
        raise SweepError(f"sweep: it must have 1 to {MOST_CELLS} steps, not {count}; vary less")
    rows = []
    for spec, way in product(specs, ways):
        rows.append(_row(model, spec, way, fixed))
        if progress is not None:
            progress(len(rows), count)
    return ModelSweep(model.shapes.architecture, tuple(over), tuple(rows))


def _row(model: Model, spec: DeviceSpec, way: dict[str, Any], fixed: Mapping[str, Any]) -> ModelRow:
    try:
        return ModelRow(spec.name, way, model.step(device=spec, **{**fixed, **way}))
    except (OpError, ValueError, TypeError) as error:
        return ModelRow(spec.name, way, None, " ".join(str(error).split()))
