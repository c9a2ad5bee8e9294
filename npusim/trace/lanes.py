"""The times of a run: a span for each micro-op, and counters derived from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape

import numpy as np
from numpy.typing import NDArray

from npusim.data.recent import recent
from npusim.devices.schema import CodeRun, Pipe
from npusim.isa import ORDERING, MicroOp, copied_place
from npusim.kernel.program import Body, Place, Program
from npusim.trace.copies import CopyTimes
from npusim.trace.left import Left

__all__ = [
    "ORDERING",
    "LaneTimes",
    "LaneTrace",
    "LazyLaneTrace",
    "PipeCounter",
    "Span",
    "Trace",
    "busy_us",
]

LANE_BYTES = 3000
"""Memory of a lane apart from its times (measured: 1600 to 2900)."""

Cycles = NDArray[np.int64]
Rows = NDArray[np.int64]
Work = dict[Pipe, tuple[Rows, int]]
"""The work of a body: pipe -> indices of its micro-ops there, and the bytes they copy."""


@dataclass(frozen=True, slots=True)
class Span:
    """One micro-op on one core, in cycles of :attr:`Trace.clock_hz`."""

    core: int
    pipe: Pipe
    op: MicroOp
    start: int
    free: int
    """When the pipe can start its next micro-op."""
    end: int
    """When the result is available."""
    nbytes: int
    """Bytes moved between global memory and the core."""


@dataclass(frozen=True, slots=True)
class PipeCounter:
    """Counters of one pipe of one core."""

    busy_cycles: int
    """Cycles in which the pipe is busy: one of its micro-ops is in progress, from its start until
    its result is available, as the profiler counts. Flags and barriers do not count."""
    micro_ops: int
    nbytes: int


def _copies_bytes(copies: CopyTimes) -> int:
    return copies.nbytes


def _times_bytes(times: tuple[Cycles, Cycles, Cycles]) -> int:
    return sum(each.nbytes for each in times)


@dataclass(frozen=True, eq=False)
class LaneTrace:
    """The spans of cores that ran the same program at the same times.

    Arrays are `(ops,)` and read-only.
    """

    cores: tuple[int, ...]
    kind: str
    program: Program
    start: Cycles
    free: Cycles
    end: Cycles
    gm_bytes: float
    """Bytes read from global memory for each core: whole lines, divided among cores that request
    the same line in one cycle, and bytes that bypass the L2."""
    l2_bytes: int
    """Bytes that each core moved from and to the L2, including lines that were fetched first."""
    groups: tuple[int, ...] = ()
    """Group of each core, see :attr:`Block.group`; by default all are in group 0."""
    l2_hit_bytes: int = 0
    """The part of `l2_bytes` that hit, or was stored."""
    l2_written_bytes: int = 0
    """The part of `l2_bytes` that was stored."""
    find_copies: Callable[[], CopyTimes] = CopyTimes.none
    """Returns what delayed its copies; nothing if only the times are known."""

    def __post_init__(self) -> None:
        # Runs of the same kernel share their times.
        for times in (self.start, self.free, self.end):
            times.setflags(write=False)

    def __repr__(self) -> str:
        ops, cores = len(self.program), ", ".join(map(str, self.cores))
        return f"<LaneTrace {self.kind} {cores}: {ops} micro-ops, {self.last_end} cycles>"

    @cached_property
    def last_end(self) -> int:
        """When its last result is available; 0 without micro-ops."""
        return int(self.end.max(initial=0))

    @recent(_copies_bytes)
    def copies(self) -> CopyTimes:
        """What delayed its copies, computed on first access."""
        return self.find_copies()

    @property
    def nbytes(self) -> int:
        """Its approximate memory, without its program and what it shares with others."""
        times = _times_bytes((self.start, self.free, self.end))
        return LANE_BYTES + times + self.find_copies().nbytes

    def group(self, core: int) -> int:
        """The group of *core*, which must be one of the lane's."""
        return self.groups[self.cores.index(core)] if self.groups else 0

    @property
    def ops(self) -> tuple[MicroOp, ...]:
        """Every micro-op, with calls expanded."""
        return self.program.ops

    def counters(self, known: dict[Body, Work] | None = None) -> dict[Pipe, PipeCounter]:
        """Counters of each pipe that worked; *known* caches the work of bodies."""
        own = self._work({} if known is None else known)
        return {pipe: self._count(rows, nbytes) for pipe, (rows, nbytes) in own.items()}

    def work_cycles(self) -> dict[Pipe, int]:
        """Cycles in which each pipe is active: held by a micro-op other than a flag or barrier."""
        held = self.free - self.start
        return {pipe: int(held[rows].sum()) for pipe, (rows, _) in self._work({}).items()}

    def _work(self, known: dict[Body, Work]) -> Work:
        """Pipe -> the micro-ops that do work there, and the bytes they copy."""
        work = _work_of_all(self.program.called, known)
        return {pipe: work[pipe] for pipe in sorted(work)}

    def _count(self, rows: Rows, nbytes: int) -> PipeCounter:
        start, end = self.start[rows], self.end[rows]
        # Pipes are in order, so starts ascend; cycles before the latest end are already counted.
        covered = np.maximum.accumulate(np.concatenate(([0], end[:-1])))
        busy = np.maximum(end - np.maximum(start, covered), 0).sum()
        return PipeCounter(int(busy), len(rows), nbytes)


def busy_us(lanes: Sequence[LaneTrace], clock_hz: float) -> dict[Pipe, float]:
    """Pipe -> its busy time, the mean over the cores of *lanes*."""
    cores = sum(len(lane.cores) for lane in lanes)
    cycles: dict[Pipe, int] = {}
    for lane in lanes:
        for pipe, counter in lane.counters().items():
            cycles[pipe] = cycles.get(pipe, 0) + counter.busy_cycles * len(lane.cores)
    return {pipe: busy / cores / clock_hz * 1e6 for pipe, busy in cycles.items()}


class LaneTimes(ABC):
    """Data of a run from which the times of its lanes can be recomputed on demand."""

    nbytes: int
    """Its approximate memory."""

    @abstractmethod
    def times(self, number: int, ops: int) -> Cycles:
        """Start, free and end of the micro-ops of lane *number*, which has *ops*: `(3, ops)`."""


class LazyLaneTrace(LaneTrace):
    """A lane whose times are computed on first access."""

    replay: LaneTimes
    """Computes the times; shared by the lanes of a run."""

    def __init__(self, replay: LaneTimes, number: int, last_end: int, **facts: object) -> None:
        """Lane *number* of *replay*; *facts* are all fields except the times."""
        vars(self).update(facts, replay=replay, number=number, last_end=last_end)

    @recent(_times_bytes)
    def _times(self) -> tuple[Cycles, Cycles, Cycles]:
        times = self.replay.times(vars(self)["number"], len(self.program))
        times.setflags(write=False)
        start, free, end = times
        return start, free, end

    @property
    def nbytes(self) -> int:
        """Its approximate memory, without its program and what it shares with others."""
        return LANE_BYTES

    @property
    def start(self) -> Cycles:
        """When each micro-op started, `(ops,)`."""
        return self._times[0]

    @property
    def free(self) -> Cycles:
        """When each left its pipe free, `(ops,)`."""
        return self._times[1]

    @property
    def end(self) -> Cycles:
        """When the result of each was available, `(ops,)`."""
        return self._times[2]


def _work_of_all(called: Iterable[Body], known: dict[Body, Work]) -> Work:
    """The work of bodies *called* one after the other; *known* caches those seen before."""
    rows: dict[Pipe, list[Rows]] = {}
    nbytes: dict[Pipe, int] = {}
    count = 0
    for body in called:
        if body not in known:
            inner = [call.body for call in body.calls]
            known[body] = _work_of_all(inner, known) if inner else _work(body)
        for pipe, (places, moved) in known[body].items():
            rows.setdefault(pipe, []).append(places + count)
            nbytes[pipe] = nbytes.get(pipe, 0) + moved
        count += len(body)
    return {pipe: (np.concatenate(found), nbytes[pipe]) for pipe, found in rows.items()}


def _work(body: Body) -> Work:
    """Pipe -> the micro-ops of *body* that do work there, and the bytes they copy."""
    rows: dict[Pipe, list[int]] = {}
    nbytes: dict[Pipe, int] = {}
    for index, op in enumerate(body):
        if not isinstance(op, ORDERING):
            rows.setdefault(op.pipe, []).append(index)
            nbytes[op.pipe] = nbytes.get(op.pipe, 0) + _nbytes(op)
    return {pipe: (np.array(found), nbytes[pipe]) for pipe, found in rows.items()}


def _nbytes(op: MicroOp) -> int:
    place = copied_place(op)
    return place.nbytes if place else 0


@dataclass(frozen=True, eq=False)
class Trace:
    """The times of a whole run."""

    lanes: tuple[LaneTrace, ...]
    clock_hz: int
    gm_written_bytes: int = 0
    """Bytes that the L2 wrote back to global memory, in whole lines."""
    left: Left | None = None
    """The final state of the L2, if it passes from launch to launch."""

    def __repr__(self) -> str:
        count = len(self.cores)
        clock = f"{self.clock_hz / 1e9:g} GHz"
        cores = f"{count} core{'' if count == 1 else 's'}"
        return f"<Trace of {cores}: {self.cycles} cycles at {clock}>"

    @property
    def gm_read_bytes(self) -> int:
        """Bytes that all cores read from global memory, a line counted each time it was fetched."""
        return round(sum(len(lane.cores) * lane.gm_bytes for lane in self.lanes))

    @property
    def gm_bytes(self) -> int:
        """Bytes moved between global memory on one side, and L2 and cores on the other."""
        return self.gm_read_bytes + self.gm_written_bytes

    @property
    def l2_bytes(self) -> int:
        """Bytes that all cores moved from and to the L2."""
        return sum(len(lane.cores) * lane.l2_bytes for lane in self.lanes)

    @property
    def l2_hit_bytes(self) -> int:
        """The part of them that hit, or was stored."""
        return sum(len(lane.cores) * lane.l2_hit_bytes for lane in self.lanes)

    @property
    def l2_written_bytes(self) -> int:
        """The part of them that was stored."""
        return sum(len(lane.cores) * lane.l2_written_bytes for lane in self.lanes)

    @property
    def nbytes(self) -> int:
        """Its approximate memory, without the programs of its lanes."""
        replays = {lane.replay for lane in self.lanes if isinstance(lane, LazyLaneTrace)}
        left_bytes = self.left.nbytes if self.left else 0
        return left_bytes + sum(x.nbytes for x in self.lanes) + sum(x.nbytes for x in replays)

    @cached_property
    def cycles(self) -> int:
        """Cycles from the first micro-op to the last result of the slowest core."""
        return max((lane.last_end for lane in self.lanes), default=0)

    @cached_property
    def code(self) -> dict[str, CodeRun]:
        """The part of the kernel's code that cores of each kind run."""
        cores: dict[str, int] = {}
        places: dict[str, set[Place]] = {}
        for lane in self.lanes:
            cores[lane.kind] = cores.get(lane.kind, 0) + len(lane.cores)
            places.setdefault(lane.kind, set()).update(
                *(leaf.places for leaf in lane.program.leaves)
            )
        return {kind: CodeRun(count, len(places[kind])) for kind, count in cores.items()}

    @property
    def slowest(self) -> LaneTrace:
        """The cores that end last; if several lanes do, the one with the lowest core numbers."""
        return max(self.lanes, key=lambda lane: lane.last_end)

    @property
    def slowest_of_kinds(self) -> tuple[LaneTrace, ...]:
        """The cores of each kind that end last, in the order of the kinds' first cores."""
        found: dict[str, LaneTrace] = {}
        for lane in sorted(self.lanes, key=lambda lane: lane.cores[0]):
            known = found.setdefault(lane.kind, lane)
            if lane.last_end > known.last_end:
                found[lane.kind] = lane
        return tuple(found.values())

    @property
    def micro_ops(self) -> int:
        """Micro-ops that all cores executed, flags and barriers included."""
        return sum(len(lane.cores) * len(lane.program) for lane in self.lanes)

    @property
    def cores(self) -> tuple[int, ...]:
        """Numbers of the cores that had work, ascending."""
        return tuple(sorted(core for lane in self.lanes for core in lane.cores))

    def kind(self, core: int) -> str:
        """The kind of *core*."""
        return self._lane(core).kind

    def group(self, core: int) -> int:
        """The group of *core*."""
        return self._lane(core).group(core)

    def spans(self, core: int | None = None) -> Iterator[Span]:
        """Spans of *core* in program order, or of all cores, core after core."""
        for number in self.cores if core is None else (core,):
            lane = self._lane(number)
            times = zip(lane.ops, lane.start, lane.free, lane.end, strict=True)
            for op, start, free, end in times:
                yield Span(number, op.pipe, op, int(start), int(free), int(end), _nbytes(op))

    def counters(self) -> dict[int, dict[Pipe, PipeCounter]]:
        """Core -> pipe -> counters."""
        known: dict[Body, Work] = {}
        counted = [(lane, lane.counters(known)) for lane in self.lanes]
        rows = {core: pipes for lane, pipes in counted for core in lane.cores}
        return dict(sorted(rows.items()))

    def to_text(self, *, ordering: bool = True) -> str:
        """One line per span, with aligned columns; without flags and barriers if not *ordering*."""
        lines = [f"{'core':>4} {'pipe':8} {'start':>8} {'free':>8} {'end':>8}  micro-op"]
        for span in self.spans():
            if ordering or not isinstance(span.op, ORDERING):
                lines.append(
                    f"{span.core:>4} {span.pipe:8} {span.start:>8} {span.free:>8} {span.end:>8}  "
                    f"{span.op}"
                )
        return "\n".join(lines) + "\n"

    def _repr_html_(self) -> str:
        """Notebook display: how busy each pipe of the slowest core of each kind was."""
        lane = self.slowest if self.lanes else None
        titles = ("core", "pipe", "busy", "micro-ops", "bytes")
        head = "".join(f"<th>{name}</th>" for name in titles)
        rows = "".join(
            f"<tr><td>{own.cores[0]} ({escape(own.kind)})</td><td>{escape(pipe)}</td>"
            f"<td>{100 * counter.busy_cycles / self.cycles:.1f} %</td>"
            f"<td>{counter.micro_ops}</td><td>{counter.nbytes}</td></tr>"
            for own in self.slowest_of_kinds
            for pipe, counter in own.counters().items()
        )
        kind = escape(lane.kind) if lane else ""
        slowest = f"; the slowest is core {lane.cores[0]} ({kind})" if lane else ""
        return (
            f"<p>{self.cycles} cycles at {self.clock_hz / 1e9:g} GHz on {len(self.cores)} "
            f"cores{slowest}</p><table><tr>{head}</tr>{rows}</table>"
        )

    def _lane(self, core: int) -> LaneTrace:
        for lane in self.lanes:
            if core in lane.cores:
                return lane
        raise ValueError(
            f"trace: core must be one of {self._ranges()}, not {core}; see Trace.cores"
        )

    def _ranges(self) -> str:
        return ", ".join(str(core) for core in self.cores) or "none"
