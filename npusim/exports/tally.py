"""How often each line of a listing ran on each core, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from npusim.exports.listing import Listing
from npusim.trace import LaneTrace, Trace

__all__ = ["Tally", "tallies"]

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Tally:
    """Calls and cycles of the cores of one lane, line by line; arrays are `(lines,)`."""

    lane: LaneTrace
    calls: Counts
    occupied: Counts
    """The sum of cycles until the pipe was free again."""
    lasted: Counts
    """The sum of cycles until the results were available; 0 for flags and barriers."""
    covered: Counts
    """The same, but cycles in which several calls overlap are counted once."""


def tallies(trace: Trace, listing: Listing) -> list[Tally]:
    """The tally of each lane, in the order of their first cores."""
    lanes = sorted(trace.lanes, key=lambda lane: lane.cores[0])
    return [_tally(lane, listing) for lane in lanes]


def _tally(lane: LaneTrace, listing: Listing) -> Tally:
    lines = len(listing.lines)
    calls, occupied, lasted, covered = (np.zeros(lines, np.int64) for _ in range(4))
    until = np.zeros(lines, np.int64)
    """The end of the last call of each line: a line always runs on the same pipe, in order."""
    begin = 0
    for call in lane.program.calls:
        first, last = listing.place(call)
        rows = slice(begin, begin + last - first)
        start, free = lane.start[rows], lane.free[rows]
        end = np.where(listing.orders[first:last], free, lane.end[rows])
        calls[first:last] += 1
        occupied[first:last] += free - start
        lasted[first:last] += end - start
        covered[first:last] += np.maximum(end - np.maximum(start, until[first:last]), 0)
        until[first:last] = np.maximum(end, until[first:last])
        begin += last - first
    return Tally(lane, calls, occupied, lasted, covered)
