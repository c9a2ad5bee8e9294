"""The throughput between global memory and the cores, microsecond by microsecond.

A copy moves its bytes evenly from its start to its end. Names as in the traces of Ascend/msopprof.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from npusim.data.integers import ceil_div
from npusim.exports.writing import Clock
from npusim.isa import MicroOp, copied_place, ends
from npusim.trace import LaneTrace, Trace, copies_of

__all__ = ["STEP_NS", "path_of", "throughput"]

STEP_NS = 1000
FIRST_NS = 1
"""The time of the first value: Insight drops a value at 0."""
Ints = NDArray[np.int64]
Steps = NDArray[np.float64]


def path_of(op: MicroOp) -> tuple[str, str] | None:
    """The two memories of a copy to or from global memory; None for other micro-ops."""
    if copied_place(op) is None:
        return None
    src, dst = ends(op)
    return src.upper(), dst.upper()


def throughput(trace: Trace, clock: Clock) -> Iterator[tuple[str, int, float]]:
    """(name, ns, bytes in the next STEP_NS) of each path and of totals; zero at the end.

    Bytes per microsecond are MB/s.
    """
    steps = ceil_div(clock.ns(trace.cycles), STEP_NS)
    moved: dict[str, Steps] = {
        name: np.zeros(steps + 1)
        for name in ("GM_TO_L1", "GM_TO_UB", "GM_TO_TOTAL", "L1_TO_GM", "UB_TO_GM", "TOTAL_TO_GM")
    }
    for lane in trace.lanes:
        for (src, dst), nbytes, start, end in _copies(lane, clock):
            for name in (f"{src}_TO_{dst}", "GM_TO_TOTAL" if src == "GM" else "TOTAL_TO_GM"):
                row = moved.setdefault(name, np.zeros(steps + 1))
                _spread(row, start, end, nbytes * len(lane.cores))
    for name, row in moved.items():
        for step, nbytes in enumerate(row.tolist()):
            yield name, max(step * STEP_NS, FIRST_NS), nbytes


def _copies(lane: LaneTrace, clock: Clock) -> Iterator[tuple[tuple[str, str], Ints, Ints, Ints]]:
    """The copies of each path, in order of first use: bytes, starts, ends in ns, `(copies,)`."""
    ops, numbers = lane.program.distinct()
    paths = [path_of(op) for op in ops]
    known = list(dict.fromkeys(paths))
    places = [copied_place(op) for op in ops]
    nbytes = np.array([place.nbytes if place else 0 for place in places], np.int64)
    ways = np.array([known.index(path) for path in paths], np.int64)
    index = copies_of(lane.program)
    taken = ways[numbers[index]]
    found, firsts = np.unique(taken, return_index=True)
    for way in found[np.argsort(firsts)].tolist():
        own = index[taken == way]
        start, end = clock.all_ns(lane.start[own]), clock.all_ns(lane.end[own])
        path = known[way]
        assert path is not None
        yield path, nbytes[numbers[own]], start, end


def _spread(row: Steps, start: Ints, end: Ints, nbytes: Ints) -> None:
    """Distribute *nbytes* over the steps between *start* and *end* ns, in proportion to time."""
    first, last = start // STEP_NS, np.maximum(start, end - 1) // STEP_NS
    within = first == last
    np.add.at(row, first[within], nbytes[within])
    start, end, nbytes, first, last = (x[~within] for x in (start, end, nbytes, first, last))
    share = nbytes / (end - start)
    np.add.at(row, first, share * ((first + 1) * STEP_NS - start))
    np.add.at(row, last, share * (end - last * STEP_NS))
    # Few copies take several microseconds.
    for number in np.flatnonzero(last - first > 1).tolist():
        row[first[number] + 1 : last[number]] += share[number] * STEP_NS
