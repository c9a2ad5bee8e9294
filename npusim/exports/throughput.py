"""How much moved between global memory and the cores, microsecond by microsecond.

A copy moves its bytes evenly from its start to its end. Names as in the traces of Ascend/msopprof.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from npusim.data.integers import ceil_div
from npusim.exports.listing import Line, Listing
from npusim.exports.writing import Clock
from npusim.isa import copied_place, ends
from npusim.kernel.program import Body
from npusim.trace import LaneTrace, Trace, copies_of

__all__ = ["STEP_NS", "path_of", "throughput"]

STEP_NS = 1000
FIRST_NS = 1
"""Time of the first value: Insight drops a value at 0."""
Steps = NDArray[np.float64]


def path_of(line: Line) -> tuple[str, str] | None:
    """Between which memories a copy to or from global memory goes; None for what is no such."""
    if copied_place(line.op) is None:
        return None
    src, dst = ends(line.op)
    return src.upper(), dst.upper()


def throughput(trace: Trace, listing: Listing, clock: Clock) -> Iterator[tuple[str, int, float]]:
    """(name, ns, bytes in the STEP_NS from there on) of each path and of totals; zero at the end.

    Bytes in a microsecond are MB/s.
    """
    steps = ceil_div(clock.ns(trace.cycles), STEP_NS)
    moved: dict[str, Steps] = {
        name: np.zeros(steps + 1)
        for name in ("GM_TO_L1", "GM_TO_UB", "GM_TO_TOTAL", "L1_TO_GM", "UB_TO_GM", "TOTAL_TO_GM")
    }
    for lane in trace.lanes:
        for line, start, end in _copies(lane, listing):
            src, dst = path_of(line) or ("", "")
            spread = clock.ns(start), clock.ns(end)
            for name in (f"{src}_TO_{dst}", "GM_TO_TOTAL" if src == "GM" else "TOTAL_TO_GM"):
                row = moved.setdefault(name, np.zeros(steps + 1))
                _spread(row, *spread, line.nbytes * len(lane.cores))
    for name, row in moved.items():
        for step, nbytes in enumerate(row.tolist()):
            yield name, max(step * STEP_NS, FIRST_NS), nbytes


def _copies(lane: LaneTrace, listing: Listing) -> Iterator[tuple[Line, int, int]]:
    """The copies from and to global memory, in program order, each with its start and its end."""
    index = copies_of(lane.program)
    own: dict[Body, list[Line]] = {}
    for call in lane.program.calls:
        if call.body not in own:
            own[call.body] = [line for line in listing.of(call) if line.place is not None]
    lines = (line for call in lane.program.calls for line in own[call.body])
    return zip(lines, lane.start[index].tolist(), lane.end[index].tolist(), strict=True)


def _spread(row: Steps, start: int, end: int, nbytes: int) -> None:
    """Add *nbytes* to the steps between *start* and *end* ns, to each by its share."""
    first, last = start // STEP_NS, max(start, end - 1) // STEP_NS
    if first == last:
        row[first] += nbytes
        return
    share = nbytes / (end - start)
    row[first] += share * ((first + 1) * STEP_NS - start)
    row[first + 1 : last] += share * STEP_NS
    row[last] += share * (end - last * STEP_NS)
