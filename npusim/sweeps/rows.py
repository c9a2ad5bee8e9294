"""The results of a sweep: its rows, and the coordinates in which they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from npusim.sweeps.cells import Cell
from npusim.sweeps.playing import Outcome

__all__ = ["VENDOR", "Row", "Rows", "numbers_of"]

VENDOR = "the vendor's choice"
"""The name of the template if none was requested."""


@dataclass(frozen=True, slots=True)
class Row:
    """A cell and its outcome."""

    cell: Cell
    outcome: Outcome

    @property
    def is_bad(self) -> bool:
        """Whether it was refused, except if it was only tried as one of all templates."""
        return self.outcome.error is not None and not self.cell.is_tried

    @property
    def coordinates(self) -> dict[str, object]:
        """Its coordinates by name: chip, template, settings, variables."""
        own = self.cell
        asked = VENDOR if own.asked is None else own.asked
        return {"device": own.device, "template": asked, **own.settings, **own.variables}


@dataclass(frozen=True, eq=False)
class Rows:
    """All rows of a sweep, in the order of its chips, templates and variables."""

    op: str
    settings: tuple[str, ...]
    """The keys of the numbers that were set."""
    variables: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def bad(self) -> tuple[Row, ...]:
        """The refused rows, except templates that were only tried."""
        return tuple(row for row in self.rows if row.is_bad)

    @cached_property
    def varied(self) -> tuple[str, ...]:
        """The coordinates that are not the same in all rows."""
        found = [row.coordinates for row in self.rows]
        return tuple(name for name in found[0] if len({str(each[name]) for each in found}) > 1)


def numbers_of(rows: Sequence[Row], name: str) -> list[object]:
    """The values of the coordinate *name*, each once, in the order of *rows*."""
    return list(dict.fromkeys(row.coordinates[name] for row in rows))
