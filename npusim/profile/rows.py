"""What a profile adds to a file of measured rows."""

from __future__ import annotations

from collections.abc import Sequence

from npusim.profile.comparison import Comparison
from npusim.validation.rows import Row
from npusim.validation.written import row_of

__all__ = ["added"]

FAMILY = "profile"
"""The family of all of them."""


def added(found: Comparison, earlier: Sequence[Row]) -> list[Row]:
    """A row for launches of the same work, where rows have room for it; ids follow *earlier*."""
    names = {row.id for row in earlier}
    number, rows = 0, []
    for group in found.known:
        assert group.prediction is not None
        number += 1
        while f"{FAMILY}{number}" in names:
            number += 1
        times_us = [each.kernel.time_us for each in group.launches]
        row = row_of(
            group.prediction.call,
            id=f"{FAMILY}{number}",
            family=FAMILY,
            latency_us=group.middle.kernel.time_us,
            latency_min_us=min(times_us) if len(times_us) > 1 else None,
            source=f"{found.profile.path.name}, {len(times_us)} launches",
        )
        if row is not None:
            rows.append(row)
    return rows
