"""What happened when: a span for each micro-op, and the counters that follow from them."""

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
"""What a lane takes besides its times (measured: 1600 to 2900)."""

Cycles = NDArray[np.int64]
Rows = NDArray[np.int64]
Work = dict[Pipe, tuple[Rows, int]]
"""What a body does: pipe -> numbers of its micro-ops there, and the bytes they copy."""


@dataclass(frozen=True, slots=True)
class Span:
    """One micro-op on one core, in cycles of :attr:`Trace.clock_hz`."""

    core: int
    pipe: Pipe
    op: MicroOp
    start: int
    free: int
    """The pipe can take its next micro-op."""
    end: int
    """The result is there."""
    nbytes: int
    """Bytes moved between global memory and the core."""


@dataclass(frozen=True, slots=True)
class PipeCounter:
    """What one pipe of one core did."""

    busy_cycles: int
    """Cycles in which the pipe is busy: a micro-op of it is under way, from its start until its
    result is there, as the profiler counts. Flags and barriers are none."""
    micro_ops: int
    nbytes: int


def _copies_bytes(copies: CopyTimes) -> int:
    return copies.nbytes


def _times_bytes(times: tuple[Cycles, Cycles, Cycles]) -> int:
    return sum(each.nbytes for each in times)


@dataclass(frozen=True, eq=False)
class LaneTrace:
    """The spans of cores that ran the same program at the same times.

    Arrays are `(ops,)` and cannot be written to.
    """

    cores: tuple[int, ...]
    kind: str
    program: Program
    start: Cycles
    free: Cycles
    end: Cycles
    gm_bytes: float
    """Bytes that were read from global memory for each core: whole lines, of which those that
    several cores asked for in one cycle are divided among them, and what bypasses the L2."""
    l2_bytes: int
    """Bytes that each core moved from and to the L2, also those that it had to fetch first."""
    groups: tuple[int, ...] = ()
    """Group of each core, see :attr:`Block.group`; left out, all are of group 0."""
    l2_hit_bytes: int = 0
    """The part of `l2_bytes` that the L2 had, or that was stored."""
    l2_written_bytes: int = 0
    """The part of `l2_bytes` that was stored."""
    find_copies: Callable[[], CopyTimes] = CopyTimes.none
    """What held its copies up; nothing where only the times are known."""

    def __post_init__(self) -> None:
        # Runs of the same kernel share their times.
        for times in (self.start, self.free, self.end):
            times.setflags(write=False)

    def __repr__(self) -> str:
        ops, cores = len(self.program), ", ".join(map(str, self.cores))
        return f"<LaneTrace {self.kind} {cores}: {ops} micro-ops, {self.last_end} cycles>"

    @cached_property
    def last_end(self) -> int:
        """When its last result is there; 0 without micro-ops."""
        return int(self.end.max(initial=0))

    @recent(_copies_bytes)
    def copies(self) -> CopyTimes:
        """What held its copies up; worked out when somebody asks, which a run alone does not."""
        return self.find_copies()

    @property
    def nbytes(self) -> int:
        """What holding it takes, roughly, but for its program and what it shares with others."""
        times = _times_bytes((self.start, self.free, self.end))
        return LANE_BYTES + times + self.find_copies().nbytes

    def group(self, core: int) -> int:
        """The group of *core*, which must be one of the lane's."""
        return self.groups[self.cores.index(core)] if self.groups else 0

    @property
    def ops(self) -> tuple[MicroOp, ...]:
        """Every micro-op, calls written out."""
        return self.program.ops

    def counters(self, known: dict[Body, Work] | None = None) -> dict[Pipe, PipeCounter]:
        """Counters of each pipe that did something; *known* keeps what bodies do."""
        own = self._work({} if known is None else known)
        return {pipe: self._count(rows, nbytes) for pipe, (rows, nbytes) in own.items()}

    def work_cycles(self) -> dict[Pipe, int]:
        """Cycles in which each of these pipes works: a micro-op holds it, no flag or barrier."""
        held = self.free - self.start
        return {pipe: int(held[rows].sum()) for pipe, (rows, _) in self._work({}).items()}

    def _work(self, known: dict[Body, Work]) -> Work:
        """Pipe -> the micro-ops that do work there, and how many bytes they copy."""
        work = _work_of_all(self.program.called, known)
        return {pipe: work[pipe] for pipe in sorted(work)}

    def _count(self, rows: Rows, nbytes: int) -> PipeCounter:
        start, end = self.start[rows], self.end[rows]
        # Pipes are in order, so starts ascend; what is before the latest end is counted already.
        covered = np.maximum.accumulate(np.concatenate(([0], end[:-1])))
        busy = np.maximum(end - np.maximum(start, covered), 0).sum()
        return PipeCounter(int(busy), len(rows), nbytes)


def busy_us(lanes: Sequence[LaneTrace], clock_hz: float) -> dict[Pipe, float]:
    """Pipe -> how long it was busy, the mean over the cores of *lanes*."""
    cores = sum(len(lane.cores) for lane in lanes)
    cycles: dict[Pipe, int] = {}
    for lane in lanes:
        for pipe, counter in lane.counters().items():
            cycles[pipe] = cycles.get(pipe, 0) + counter.busy_cycles * len(lane.cores)
    return {pipe: busy / cores / clock_hz * 1e6 for pipe, busy in cycles.items()}


class LaneTimes(ABC):
    """What is left of a run, to find the times of its lanes where somebody asks for them."""

    nbytes: int
    """What holding it takes, roughly."""

    @abstractmethod
    def times(self, number: int, ops: int) -> Cycles:
        """Start, free and end of the micro-ops of lane *number*, which has *ops*: `(3, ops)`."""


class LazyLaneTrace(LaneTrace):
    """A lane whose times are worked out when somebody asks, which a run alone does not."""

    replay: LaneTimes
    """What works them out; the lanes of a run share it."""

    def __init__(self, replay: LaneTimes, number: int, last_end: int, **facts: object) -> None:
        """Lane *number* of *replay*; *facts* are all fields but the times."""
        vars(self).update(facts, replay=replay, number=number, last_end=last_end)

    @recent(_times_bytes)
    def _times(self) -> tuple[Cycles, Cycles, Cycles]:
        times = self.replay.times(vars(self)["number"], len(self.program))
        times.setflags(write=False)
        start, free, end = times
        return start, free, end

    @property
    def nbytes(self) -> int:
        """What holding it takes, roughly, but for its program and what it shares with others."""
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
        """When the result of each was there, `(ops,)`."""
        return self._times[2]


def _work_of_all(called: Iterable[Body], known: dict[Body, Work]) -> Work:
    """The same of bodies, *called* one after the other; *known* are those seen before."""
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
    """Pipe -> which micro-ops of *body* do work there, and how many bytes they copy."""
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
    """What the L2 wrote back to global memory, in whole lines."""
    left: Left | None = None
    """What it leaves in the L2, where that passes from launch to launch."""

    def __repr__(self) -> str:
        count = len(self.cores)
        clock = f"{self.clock_hz / 1e9:g} GHz"
        cores = f"{count} core{'' if count == 1 else 's'}"
        return f"<Trace of {cores}: {self.cycles} cycles at {clock}>"

    @property
    def gm_read_bytes(self) -> int:
        """What all cores read from global memory, each line once as often as it was fetched."""
        return round(sum(len(lane.cores) * lane.gm_bytes for lane in self.lanes))

    @property
    def gm_bytes(self) -> int:
        """What moved between global memory on one side, and L2 and cores on the other."""
        return self.gm_read_bytes + self.gm_written_bytes

    @property
    def l2_bytes(self) -> int:
        """What all cores moved from and to the L2."""
        return sum(len(lane.cores) * lane.l2_bytes for lane in self.lanes)

    @property
    def l2_hit_bytes(self) -> int:
        """The part of them that the L2 had, or that was stored."""
        return sum(len(lane.cores) * lane.l2_hit_bytes for lane in self.lanes)

    @property
    def l2_written_bytes(self) -> int:
        """The part of them that was stored."""
        return sum(len(lane.cores) * lane.l2_written_bytes for lane in self.lanes)

    @property
    def nbytes(self) -> int:
        """What holding it takes, roughly, but for the programs of its lanes."""
        replays = {lane.replay for lane in self.lanes if isinstance(lane, LazyLaneTrace)}
        left_bytes = self.left.nbytes if self.left else 0
        return left_bytes + sum(x.nbytes for x in self.lanes) + sum(x.nbytes for x in replays)

    @cached_property
    def cycles(self) -> int:
        """Cycles from the first micro-op to the last result of the slowest core."""
        return max((lane.last_end for lane in self.lanes), default=0)

    @cached_property
    def code(self) -> dict[str, CodeRun]:
        """What the cores of each kind run of the kernel's code."""
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
        """The cores that end last; of several, those with the lowest numbers."""
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
        """Numbers of the cores that took part, ascending."""
        return tuple(sorted(core for lane in self.lanes for core in lane.cores))

    def kind(self, core: int) -> str:
        """Which kind of core *core* is."""
        return self._lane(core).kind

    def group(self, core: int) -> int:
        """Which group *core* is of."""
        return self._lane(core).group(core)

    def spans(self, core: int | None = None) -> Iterator[Span]:
        """Spans of *core* in program order, or those of all cores, one after the other."""
        for number in self.cores if core is None else (core,):
            lane = self._lane(number)
            times = zip(lane.ops, lane.start, lane.free, lane.end, strict=True)
            for op, start, free, end in times:
                yield Span(number, op.pipe, op, int(start), int(free), int(end), _nbytes(op))

    def counters(self) -> dict[int, dict[Pipe, PipeCounter]]:
        """Core -> pipe -> what it did."""
        known: dict[Body, Work] = {}
        counted = [(lane, lane.counters(known)) for lane in self.lanes]
        rows = {core: pipes for lane, pipes in counted for core in lane.cores}
        return dict(sorted(rows.items()))

    def to_text(self, *, ordering: bool = True) -> str:
        """One line a span, columns aligned; without flags and barriers if *ordering* is false."""
        lines = [f"{'core':>4} {'pipe':8} {'start':>8} {'free':>8} {'end':>8}  micro-op"]
        for span in self.spans():
            if ordering or not isinstance(span.op, ORDERING):
                lines.append(
                    f"{span.core:>4} {span.pipe:8} {span.start:>8} {span.free:>8} {span.end:>8}  "
                    f"{span.op}"
                )
        return "\n".join(lines) + "\n"

    def _repr_html_(self) -> str:
        """What a notebook shows: how busy each pipe of the slowest core of each kind was."""
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
