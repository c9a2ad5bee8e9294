"""The results of a sweep as rows, CSV and JSON: the same bytes in any process."""

from __future__ import annotations

import csv
from dataclasses import asdict, fields
from io import StringIO
from typing import TYPE_CHECKING

from npusim.sweeps.cells import Cell
from npusim.sweeps.crossovers import Crossover, crossovers
from npusim.sweeps.playing import Outcome
from npusim.sweeps.rows import VENDOR, Row, Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LABELS", "OUTCOME", "VENDOR", "Row", "Sweep"]

LABELS = ("op", "device", "asked")
OUTCOME = tuple(field.name for field in fields(Outcome))


class Sweep(Rows):
    """All rows of a sweep, as tables, with its crossovers and its picture."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The header of the CSV: the call, with its arguments as text, and the outcome."""
        given = dict.fromkeys(name for row in self.rows for name in self._given(row.cell))
        return (*LABELS, *self.settings, *self.variables, *given, *OUTCOME)

    def _given(self, cell: Cell) -> dict[str, str]:
        """The arguments by their columns, renamed if a variable has the same name."""
        return {
            f"{name}_word" if name in self.variables else name: given
            for name, given in cell.arguments.items()
        }

    def to_csv(self) -> str:
        """The header and one line per row; cells without a value are empty."""
        text = StringIO()
        table = csv.writer(text, lineterminator="\n")
        columns = self.columns
        table.writerow(columns)
        for row in self.rows:
            facts = self._facts(row)
            table.writerow("" if facts.get(name) is None else facts[name] for name in columns)
        return text.getvalue()

    def to_json(self) -> dict[str, object]:
        """All rows as plain numbers and strings, and the crossovers of their times."""
        return {
            "op": self.op,
            "settings": list(self.settings),
            "variables": list(self.variables),
            "rows": [
                {
                    "device": row.cell.device,
                    "asked": row.cell.asked,
                    "settings": row.cell.settings,
                    "variables": {name: _plain(of) for name, of in row.cell.variables.items()},
                    "arguments": row.cell.arguments,
                    **asdict(row.outcome),
                }
                for row in self.rows
            ],
            "crossovers": [asdict(each) for each in self.crossovers()],
        }

    def crossovers(self) -> tuple[Crossover, ...]:
        """Where another chip, template or setting becomes the fastest: :mod:`.crossovers`."""
        return crossovers(self)

    def draw(self, *, ax: Axes | None = None) -> Axes:
        """Draw the times on *ax*, or on a new figure: :mod:`.picture`."""
        from npusim.sweeps.picture import draw

        return draw(self, ax=ax)

    def _facts(self, row: Row) -> dict[str, object]:
        """Column -> its value."""
        own = row.cell
        labels = {"op": self.op, "device": own.device, "asked": own.asked}
        variables = {name: _plain(value) for name, value in own.variables.items()}
        return self._given(own) | labels | own.settings | variables | asdict(row.outcome)

    def _repr_html_(self) -> str:
        from npusim.sweeps.page import glimpse

        return glimpse(repr(self), self)

    def __repr__(self) -> str:
        bad = f", {len(self.bad)} refused" if self.bad else ""
        varied = f" over {', '.join(self.varied)}" if self.varied else ""
        return f"<sweep of {self.op}{varied}: {len(self.rows)} cells{bad}>"


def _plain(value: object) -> object:
    """A number or a string unchanged, anything else as text."""
    return value if isinstance(value, int | float | str) else str(value)
