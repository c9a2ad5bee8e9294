"""Times of lanes as arrays on disk, and back, checked for consistency with their program."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from npusim.kernel.program import Program
from npusim.trace.archive import Archive, DamageError
from npusim.trace.copies import ROWS as COPY_ROWS
from npusim.trace.copies import CopyTimes, copies_of, packed, unpacked
from npusim.trace.lanes import LaneTrace, Trace
from npusim.trace.programs import LaneRow

__all__ = ["arrays_of", "lane_of", "names_of"]

Times = NDArray[np.int64]


def names_of(lanes: int) -> set[str]:
    """Names of the arrays of this many *lanes*."""
    return {f"{what}{number}" for what in ("times", "copies") for number in range(lanes)}


def arrays_of(trace: Trace) -> Iterator[tuple[str, Times]]:
    """Names and times of each lane of *trace*, then of the delays of its copies."""
    for number, lane in enumerate(trace.lanes):
        yield f"times{number}", _deltas(lane)
    for number, lane in enumerate(trace.lanes):
        yield f"copies{number}", packed(lane.copies, lane.start)


def lane_of(
    archive: Archive, number: int, row: LaneRow, program: Program, cycles: int
) -> LaneTrace:
    """Lane *number*, described by *row*, which ran *program*, with its times from *archive*.

    Raises DamageError for times outside *cycles* or inconsistent with the program.
    """
    deltas = archive.array(f"times{number}", (3, len(program)))
    start, free, end = _times(deltas, cycles)
    own = {name: getattr(row, name) for name in LaneRow.model_fields}
    own |= {"cores": tuple(row.cores), "groups": tuple(row.groups), "program": program}
    del own["copy_count"]
    found = archive.array(f"copies{number}", (COPY_ROWS, row.copy_count))
    find_copies = partial(_same, _copies(found, program, start, free))
    return LaneTrace(start=start, free=free, end=end, find_copies=find_copies, **own)


def _same(copies: CopyTimes) -> CopyTimes:
    return copies


def _copies(found: Times, program: Program, start: Times, free: Times) -> CopyTimes:
    """The delays of copies; raises DamageError for times outside those of the copies."""
    index = copies_of(program)
    count = found.shape[1]
    if not count:
        return CopyTimes.none()
    copies = unpacked(found, index, start, free) if count == len(index) else None
    if copies is None:
        raise DamageError("what held copies up must lie within their times")
    return copies


def _deltas(lane: LaneTrace) -> Times:
    """Times as small integers `(3, ops)`, which compress well."""
    starts = np.diff(lane.start, prepend=0)
    return np.array([starts, lane.free - lane.start, lane.end - lane.free], np.int64)


def _times(deltas: Times, cycles: int) -> tuple[Times, Times, Times]:
    """The inverse; raises DamageError for times outside *cycles*."""
    # Steps of at most *cycles* cannot overflow before a sum is out of range.
    if (deltas > cycles).any() or (deltas < -cycles).any() or (deltas[1:] < 0).any():
        raise DamageError(f"times must ascend, from 0 to {cycles} cycles")
    start = np.cumsum(deltas[0])
    free = start + deltas[1]
    end = free + deltas[2]
    if (start < 0).any() or (end > cycles).any():
        raise DamageError(f"times must ascend, from 0 to {cycles} cycles")
    return start, free, end
