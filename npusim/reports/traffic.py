"""The paths and bytes of micro-ops, and their operations: the data of several pictures.

Paths are named as in a device file, `gm_to_ub`; whether the bytes of global memory were in the L2
is known only for whole cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from npusim.isa import (
    Arithmetic,
    MicroOp,
    Product,
    Transfer,
    ends,
    global_operand,
    reads,
    writes,
)
from npusim.kernel.program import Body
from npusim.reports.subject import remembered
from npusim.trace import LaneTrace, Trace

__all__ = [
    "Work",
    "duration_s",
    "fetched",
    "moved",
    "path",
    "series",
    "work",
]


def path(op: MicroOp) -> str | None:
    """The path on which *op* moves bytes; None if it computes or synchronises."""
    return "_to_".join(ends(op)) if isinstance(op.work, Transfer) else None


def moved(op: MicroOp) -> int:
    """Bytes that *op* moves on its path, counted on arrival; for global memory, as requested."""
    place = global_operand(op)
    return place.nbytes if place else sum(target.nbytes for target in writes(op))


@dataclass(slots=True)
class Work:
    """The total work of all cores of a run."""

    path_bytes: dict[str, int] = field(default_factory=dict)
    pipe_bytes: dict[str, int] = field(default_factory=dict)
    """Pipe -> bytes it moved."""
    cube_ops: int = 0
    """A multiplication and an addition count as two."""
    cube_dtypes: dict[str, int] = field(default_factory=dict)
    """Type of the operands of the cube -> operations."""
    vector_ops: int = 0
    """One per element, two if the instruction multiplies and adds."""
    vector_bits: int = 16
    """The widest element of the vector unit."""
    vector_read_bytes: int = 0
    vector_written_bytes: int = 0


@remembered
def work(trace: Trace) -> Work:
    """Count the work of *trace*; bodies that several calls share are visited once."""
    found = Work()
    for op, times in _counted(trace):
        way = path(op)
        if way is not None:
            found.path_bytes[way] = found.path_bytes.get(way, 0) + times * moved(op)
            found.pipe_bytes[op.pipe] = found.pipe_bytes.get(op.pipe, 0) + times * moved(op)
        elif isinstance(done := op.work, Product):
            count, dtype = times * 2 * done.m * done.n * done.k, done.dtype.name
            found.cube_ops += count
            found.cube_dtypes[dtype] = found.cube_dtypes.get(dtype, 0) + count
        elif op.pipe == "vector" and writes(op):
            operands = (*reads(op), *writes(op))
            each = done.per_element if isinstance(done, Arithmetic) else 1
            found.vector_ops += times * each * max(place.count for place in operands)
            found.vector_bits = max(found.vector_bits, *(place.dtype.bits for place in operands))
            found.vector_read_bytes += times * sum(place.nbytes for place in reads(op))
            found.vector_written_bytes += times * sum(place.nbytes for place in writes(op))
    return found


def _counted(trace: Trace) -> Iterator[tuple[MicroOp, int]]:
    """Every micro-op of a body, and how often it ran on all cores together."""
    counts: dict[Body, int] = {}
    for lane in trace.lanes:
        for body in lane.program.called:
            counts[body] = counts.get(body, 0) + len(lane.cores)
    for body, times in counts.items():
        for op in body:
            yield op, times


def duration_s(trace: Trace) -> float:
    """The time of the slowest core."""
    return trace.cycles / trace.clock_hz


Ints = NDArray[np.int64]
Rates = NDArray[np.float64]
"""Bytes per second in each of equal bins of a run, `(bins,)`."""
_Moves = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""First cycle, end, and bytes of each move, `(moves,)`."""


def series(
    trace: Trace, lanes: tuple[LaneTrace, ...], way: str, bins: int, limit: float | None = None
) -> Rates:
    """Bytes per second on *way* in each of *bins* equal parts of the run, `(bins,)`.

    A copy moves its bytes evenly while it holds its pipe; bytes above *limit* move earlier, see
    :func:`_within`.
    """
    moves: list[_Moves] = []
    known: dict[Body, Ints] = {}

    def of_body(body: Body) -> Ints:
        if body not in known:
            # A micro-op on another path, or on none, has a value below any number of bytes.
            known[body] = np.array([moved(op) if path(op) == way else -1 for op in body], np.int64)
        return known[body]

    for lane in lanes:
        nbytes = lane.program.laid_out(of_body)
        index = np.flatnonzero(nbytes >= 0)
        each = nbytes[index].astype(np.float64) * len(lane.cores)
        moves.append((lane.start[index], lane.free[index], each))
    return _over_time(trace, moves, bins, limit)


def fetched(trace: Trace, bins: int, limit: float | None = None) -> Rates:
    """The same for reads from global memory, in whole lines, spread evenly over the moving time."""
    moves: list[_Moves] = []
    for lane in trace.lanes:
        copies = lane.copies
        is_far = copies.gm_bytes > 0
        nbytes = copies.gm_bytes[is_far] * len(lane.cores)
        moves.append((copies.asked[is_far], copies.moved[is_far], nbytes))
    return _over_time(trace, moves, bins, limit)


def _over_time(trace: Trace, moves: list[_Moves], bins: int, limit: float | None) -> Rates:
    start, end, nbytes = (np.concatenate(parts) for parts in zip(*moves, strict=True))
    if not start.size:
        return np.zeros(bins)
    end = np.maximum(end, start + 1)
    rates = nbytes / (end - start)
    when, steps = np.concatenate([start, end]), np.concatenate([rates, -rates])
    order = np.argsort(when, kind="stable")
    when, speed = when[order], np.cumsum(steps[order])
    total = np.concatenate(([0.0], np.cumsum(speed[:-1] * np.diff(when))))
    edges = np.linspace(0, trace.cycles, bins + 1)
    by_edge = np.interp(edges, when, total)
    if limit is not None:
        by_edge = _within(by_edge, edges * (limit / trace.clock_hz))
    return np.diff(by_edge) / np.diff(edges) * trace.clock_hz


def _within(by_edge: Rates, most: Rates) -> Rates:
    """Bytes moved up to each edge, `(bins + 1,)`, no faster than the limit *most* allows.

    Cores that are simulated in lockstep request at one time what independent cores request one
    after the other, so that a link makes up for unused time. Here the link moves these bytes
    earlier, but as late as possible.
    """
    latest = most + np.maximum.accumulate((by_edge - most)[::-1])[::-1]
    return np.minimum(latest, most)
