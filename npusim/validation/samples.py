"""A few rows of each family, which are simulated within a minute where all of them take ten."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from npusim.validation.calls import timed
from npusim.validation.rows import Row
from npusim.validation.timed import NotModelledError

__all__ = ["LONGEST_US", "MOST_ROWS", "sample"]

MOST_ROWS = 10
"""So many rows of a family are timed, besides those that are not modelled, which cost nothing."""
LONGEST_US = 430.0
"""A kernel has about as many micro-ops as it takes long; of longer ones there are none."""


def sample(rows: Iterable[Row]) -> tuple[Row, ...]:
    """MOST_ROWS rows of each family, evenly from its shortest to its longest, in their order.

    Those that took longer than LONGEST_US are passed over, but for the shortest row of a family.
    The same rows always give the same ones. Raises RowError if a row lacks what its operator needs.
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
    """MOST_ROWS of *ids*, the first and the last among them; all where there are no more."""
    if len(ids) <= MOST_ROWS:
        return list(ids)
    return [ids[place * (len(ids) - 1) // (MOST_ROWS - 1)] for place in range(MOST_ROWS)]


def _is_modelled(row: Row) -> bool:
    try:
        timed(row)
    except NotModelledError:
        return False
    return True
