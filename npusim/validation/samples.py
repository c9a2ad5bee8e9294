"""A few rows of each family, which take a minute to simulate; all rows take ten."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from npusim.validation.calls import timed
from npusim.validation.rows import Row
from npusim.validation.timed import NotModelledError

__all__ = ["LONGEST_US", "MOST_ROWS", "sample"]

MOST_ROWS = 10
"""The most rows of a family that are timed, besides unmodelled rows, which cost nothing."""
LONGEST_US = 430.0
"""The number of micro-ops grows with the time of a kernel, so longer kernels are left out."""


def sample(rows: Iterable[Row]) -> tuple[Row, ...]:
    """MOST_ROWS rows of each family, evenly from its shortest to its longest, in their order.

    Rows that took longer than LONGEST_US are skipped, except the shortest row of a family. The
    choice is deterministic. Raises RowError if a row lacks a cell that its operator needs.
    """
    rows = tuple(rows)
    by_family: dict[str, list[Row]] = {}
    chosen = set()
    for row in rows:
        if _is_modelled(row):
            by_family.setdefault(row.family, []).append(row)
        else:
            chosen.add(row.id)
    for family in by_family.values():
        family.sort(key=lambda row: (row.latency_us, row.id))
        short = [row.id for row in family if row.latency_us <= LONGEST_US] or [family[0].id]
        chosen.update(_spread(short))
    return tuple(row for row in rows if row.id in chosen)


def _spread(ids: Sequence[str]) -> list[str]:
    """MOST_ROWS of *ids*, including the first and the last; all if there are no more."""
    if len(ids) <= MOST_ROWS:
        return list(ids)
    return [ids[place * (len(ids) - 1) // (MOST_ROWS - 1)] for place in range(MOST_ROWS)]


def _is_modelled(row: Row) -> bool:
    try:
        timed(row)
    except NotModelledError:
        return False
    return True
