"""Micro-ops decoded for timing: plain integers, sorted by pipe, in cycles of the chip's clock."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from npusim.data.errors import TrapError
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import (
    ORDERING,
    Barrier,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    CrossMode,
    Global,
    MicroOp,
    SetFlag,
    Table,
    Trap,
    WaitFlag,
    copied_place,
    ends,
    writes_global,
)
from npusim.kernel.program import Body, Program, added
from npusim.kernel.table import Calls, MicroOps
from npusim.timing.cost import charge, cost
from npusim.timing.memory import PORT_UNITS, Lines, touched_lines, unaligned_lines

__all__ = [
    "PIPES",
    "SCALAR",
    "Code",
    "CopyStep",
    "Decoded",
    "Decoder",
    "Part",
    "Step",
    "Stretch",
]

PIPES: tuple[Pipe, ...] = get_args(Pipe)
SCALAR, MTE1 = PIPES.index("scalar"), PIPES.index("mte1")

WORK, SET, WAIT, DRAIN, DRAIN_ALL, COPY, CROSS_SET = range(7)
"""Kinds of steps, by how they are timed; `Lane._work` lists their fields."""

Timed = tuple[int, int, int, int, int]
"""Kind of a micro-op, issue time, cycles, and two values that depend on the kind.

The issue time counts from the start of its stretch. The values are head and tail of WORK, flag and
waiting pipe of SET, flag of WAIT, index of the copy of COPY, number of the flag of CROSS_SET.
"""
Step = tuple[int, int, int, int, int, int]
"""The same, and the instructions that a step of mte1 takes in its queue, or, for a copy, those of
the steps of mte1 before it in its stretch."""
CrossFlag = tuple[CrossMode, int]
"""Mode and event of a flag between cores."""


class Stretch(NamedTuple):
    """Micro-ops issued without interruption, ended by a micro-op of the scalar unit itself."""

    steps: list[list[Step]]
    """The steps of each pipe."""
    cycles: int
    """From the issue of the first micro-op to the scalar unit's own."""
    queued: int
    """Number of mte1 instructions among them."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """A body shared by calls, ready to be timed."""

    stretches: list[Stretch]
    rows: list[NDArray[np.int64]]
    """The indices of the micro-ops of each pipe."""
    copies: list[int]
    """Number of copies from or to global memory per pipe."""
    cross_sets: list[int]
    """The numbers of the flags between cores that it sets."""

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """All steps, stretch after stretch and pipe after pipe: `Step` and the index of the
        micro-op, `(steps, 7)`."""
        ops = [iter(numbers.tolist()) for numbers in self.rows]
        found = [
            (*step, next(numbers))
            for stretch in self.stretches
            for steps, numbers in zip(stretch.steps, ops, strict=True)
            for step in steps
        ]
        return np.array(found, np.int64).reshape(-1, 7)

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Of each stretch its cycles and queued instructions, and for each pipe the first of
        `steps` and their number, `(stretches, 2 + 2 pipes)`."""
        sizes = np.array([[*map(len, stretch.steps)] for stretch in self.stretches], np.int64)
        found = np.zeros((len(self.stretches), 2 + 2 * len(PIPES)), np.int64)
        found[:, 0] = [stretch.cycles for stretch in self.stretches]
        found[:, 1] = [stretch.queued for stretch in self.stretches]
        found[:, 2::2] = (np.cumsum(sizes) - sizes.ravel()).reshape(sizes.shape)
        found[:, 3::2] = sizes
        return found

    @cached_property
    def copied(self) -> NDArray[np.int64]:
        """The index in the decoder of each of its copies."""
        found: NDArray[np.int64] = self.steps[self.steps[:, 0] == COPY, 3]
        return found


class Run(NamedTuple):
    """An execution of a body without calls within a body that calls it."""

    decoded: Decoded
    shifts: dict[str, int]
    """Name of global memory -> bytes added to every offset into it."""
    first: int
    """Index of its first micro-op."""


class Part(NamedTuple):
    """A stretch in a program, with its shifts."""

    stretch: Stretch
    shifts: dict[str, int]
    """Name of global memory -> bytes added to every offset into it."""


class Asked(NamedTuple):
    """The memory request of a copy."""

    nbytes: int
    """Bytes moved, padding included."""
    rows: int
    """Row pieces that are converted to Nz."""
    hold_cycles: int
    """Least cycles of the chip's clock for which the pipe is occupied."""
    lines: Lines
    unkept: NDArray[np.int64] | None
    """Number of bursts that end in each line that the L2 does not retain."""


@dataclass(slots=True)
class CopyStep:
    """A copy to or from global memory."""

    op: MicroOp
    place: Global
    is_read: bool
    gm_port: int
    l2_port: int
    piece_bytes: int
    """Size of its requests to global memory: a line, or a shorter burst."""
    is_aliased: bool
    """Whether its bursts map to few parts of the L2."""
    startup: int
    """Cycles from the start of the copy to its first byte."""
    by_phase: dict[int, Asked]
    """Offset within a line -> the request, with lines counted from that one on."""


class Decoder:
    """Decodes programs for one *kind* of core; each body once, whatever programs share it."""

    def __init__(self, kind: str, spec: DeviceSpec, micro_ops: MicroOps | None = None) -> None:
        """*micro_ops* are the numbered micro-ops of what it decodes, if available."""
        self.kind, self.spec = kind, spec
        self._micro_ops = micro_ops or MicroOps()
        self._core = spec.cores[kind]
        self._ratio = spec.clock_hz / self._core.clock_hz
        self._dispatch = self.cycles(spec.scalar.dispatch_cycles)
        self._dispatch_barrier = min(self._dispatch, self.cycles(spec.scalar.alu_cycles))
        self.cross_core = self.cycles(spec.sync.cross_core_cycles or 0)
        """From the set of a flag until another core sees it."""
        self._line_bytes = spec.l2.line_bytes
        self.flags: dict[tuple[object, ...], int] = {}
        """Flag -> its number: source, destination and event, or a flag between cores."""
        self.cross_flags: list[CrossFlag] = []
        self.copies: list[CopyStep] = []
        self._by_phase: dict[Hashable, dict[int, Asked]] = {}
        self._bodies: dict[Body, Decoded] = {}
        self._runs: dict[Body, list[Run]] = {}
        self._steps: dict[int, tuple[int, int, Step]] = {}
        """Number of a micro-op -> its pipe, the cycles to issue it, and its step."""
        self.mte1_queue = spec.scalar.mte1_queue
        self._shapes: dict[object, int] = {}
        self._shape_of: dict[int, int] = {}
        """Address of a stretch -> its shape."""

    def cycles(self, core_cycles: int) -> int:
        """Cycles of the chip's clock for cycles of this core's, rounded to nearest but not to 0."""
        # Rounding up would make each single cycle of a slightly slower core last two.
        twice = 2 * core_cycles * self.spec.clock_hz + self._core.clock_hz
        return max(twice // (2 * self._core.clock_hz), min(core_cycles, 1))

    def decoded(self, body: Body) -> Decoded:
        """*body* decoded; raises TrapError if one of its micro-ops traps whatever the values."""
        if body not in self._bodies:
            self._bodies[body] = self._body(body)
        return self._bodies[body]

    def runs(self, body: Body) -> list[Run]:
        """The bodies that *body* runs, in order; raises TrapError like `decoded`."""
        if body not in self._runs:
            self._runs[body] = self._called(body)
        return self._runs[body]

    def _called(self, body: Body) -> list[Run]:
        if not body.calls:
            return [Run(self.decoded(body), {}, 0)]
        found = []
        first = 0
        for call in body.calls:
            for run in self.runs(call.body):
                shifts = added(run.shifts, call.shifts)
                found.append(Run(run.decoded, shifts, first + run.first))
            first += len(call.body)
        return found

    def shape(self, stretch: Stretch) -> int:
        """A number for *stretch*, of a decoded body, shared by stretches that differ only in
        the bytes of global memory that their copies move.
        """
        known = self._shape_of.get(id(stretch))
        if known is None:
            steps = tuple(tuple(map(self._shape_of_step, steps)) for steps in stretch.steps)
            known = self._shapes.setdefault((stretch.cycles, steps), len(self._shapes))
            self._shape_of[id(stretch)] = known
        return known

    def _shape_of_step(self, step: Step) -> tuple[int, ...]:
        if step[0] != COPY:
            return step
        copy = self.copies[step[3]]
        return COPY, step[1], copy.startup, copy.is_read, step[5]

    def _body(self, body: Body) -> Decoded:
        rows: list[list[int]] = [[] for _ in PIPES]
        stretches: list[Stretch] = []
        steps: list[list[Step]] = [[] for _ in PIPES]
        copies, cross_sets = [0] * len(PIPES), list[int]()
        elapsed = queued = 0
        for index, number in enumerate(self._micro_ops.of(body)):
            if number not in self._steps:
                self._steps[number] = self._issued(self._micro_ops.distinct[number])
            pipe, issue, (what, _, cycles, x, y, instructions) = self._steps[number]
            elapsed += issue
            queued += instructions
            in_queue = queued if what == COPY else instructions
            steps[pipe].append((what, elapsed, cycles, x, y, in_queue))
            rows[pipe].append(index)
            if what == COPY:
                copies[pipe] += 1
            elif what == CROSS_SET:
                cross_sets.append(x)
            if pipe == SCALAR:
                stretches.append(Stretch(steps, elapsed, queued))
                steps, elapsed, queued = [[] for _ in PIPES], 0, 0
        stretches.append(Stretch(steps, elapsed, queued))
        numbers = [np.array(found, np.int64) for found in rows]
        return Decoded(stretches, numbers, copies, cross_sets)

    def _issued(self, op: MicroOp) -> tuple[int, int, Step]:
        """The pipe of *op*, the cycles that the scalar unit takes to issue it, and its step."""
        pipe = PIPES.index(op.pipe)
        # A barrier is one instruction without operands to compute.
        issue = self._dispatch_barrier if isinstance(op, Barrier) else self._dispatch
        instructions = op.instructions if pipe == MTE1 else 0
        return pipe, 0 if pipe == SCALAR else issue, (*self._decoded(op), instructions)

    def _decoded(self, op: MicroOp) -> Timed:
        place = copied_place(op)
        if place is not None:
            return COPY, 0, 0, self._copy(op, place), 0
        if isinstance(op, Trap) and isinstance(op.when, int) and op.when:
            raise TrapError(op.reason)
        took = cost(op, self.spec, self._core)
        body = self.cycles(took.body)
        if isinstance(op, ORDERING):
            return ORDERING_STEPS[type(op)](self, op, body)
        return WORK, 0, body, self.cycles(took.head), self.cycles(took.tail)

    # ---- micro-ops that order others; *cycles* is the time of each ----

    def set_flag(self, op: SetFlag, cycles: int) -> Timed:
        return SET, 0, cycles, self._flag(op.src, op.dst, op.event), PIPES.index(op.dst)

    def wait_flag(self, op: WaitFlag, cycles: int) -> Timed:
        return WAIT, 0, cycles, self._flag(op.src, op.dst, op.event), 0

    def cross_core_set_flag(self, op: CrossCoreSetFlag, cycles: int) -> Timed:
        self._check_cross_core(op)
        self.cross_flags.append((op.mode, op.event))
        return CROSS_SET, 0, cycles, len(self.cross_flags) - 1, 0

    def cross_core_wait_flag(self, op: CrossCoreWaitFlag, cycles: int) -> Timed:
        return WAIT, 0, cycles, self._flag(op.mode, op.event), 0

    def barrier(self, op: Barrier, cycles: int) -> Timed:
        return (DRAIN_ALL if op.on is None else DRAIN), 0, cycles, 0, 0

    def _flag(self, *key: object) -> int:
        return self.flags.setdefault(key, len(self.flags))

    def _check_cross_core(self, op: CrossCoreSetFlag) -> None:
        if self.spec.sync.cross_core_cycles is None:
            raise ValueError(
                f"pipes: cores of {self.spec.name} must have flags between them for {op}, but "
                f"sync.cross_core_cycles is left out; use a chip of arch 2201 or state it"
            )

    # ---- copies ----

    def _copy(self, op: MicroOp, place: Global) -> int:
        is_read = not writes_global(op)
        src, dst = ends(op)
        ways = [(memory, dst) if is_read else (src, memory) for memory in ("gm", "l2")]
        far, near = (self._core.paths[f"{a}_to_{b}"] for a, b in ways)
        rates = [x.bytes_per_cycle for x in (far, near)]
        if "ub" in (src, dst) and place.burst_bytes % self.spec.vector.block_bytes:
            rates = [min(x, self.spec.transfer.padded_bytes_per_cycle) for x in rates]
        gm_port, l2_port = (max(1, round(x / self._ratio * PORT_UNITS)) for x in rates)
        startup = self.cycles(far.startup_cycles)
        piece_bytes = min(place.burst_bytes, self._line_bytes)
        apart = self.spec.l2.aliased_bytes
        is_aliased = place.bursts > 1 and bool(apart) and place.stride_bytes % apart == 0
        # Copies of equal bursts at the same offset in a line make the same request.
        alike = type(op), is_read, place.burst_bytes, place.bursts, place.stride_bytes
        by_phase = self._by_phase.setdefault(alike, {})
        self.copies.append(
            CopyStep(
                *(op, place, is_read, gm_port, l2_port, piece_bytes, is_aliased, startup, by_phase)
            )
        )
        return len(self.copies) - 1

    def asked(self, copy: CopyStep, address: int) -> Asked:
        """The request of *copy*, from *address* on within its tensor."""
        line, phase = divmod(address, self._line_bytes)
        asked = copy.by_phase.get(phase)
        if asked is None:
            base = phase - copy.place.offset_bytes
            charged = charge(copy.op, base, self.spec)
            lines = touched_lines(copy.place, base, self._line_bytes)
            unkept = unaligned_lines(copy.place, base, self.spec, lines) if copy.is_read else None
            hold = self.cycles(charged.hold_cycles)
            asked = Asked(charged.nbytes, charged.rows, hold, lines, unkept)
            copy.by_phase[phase] = asked
        lines = asked.lines
        if isinstance(lines, slice):
            return asked._replace(lines=slice(lines.start + line, lines.stop + line))
        return asked._replace(lines=lines + line)


ORDERING_STEPS: Table[Callable[[Decoder, Any, int], Timed]] = Table(
    "pipes.ORDERING_STEPS",
    "a step that orders pipes",
    ORDERING,
    {
        SetFlag: Decoder.set_flag,
        WaitFlag: Decoder.wait_flag,
        CrossCoreSetFlag: Decoder.cross_core_set_flag,
        CrossCoreWaitFlag: Decoder.cross_core_wait_flag,
        Barrier: Decoder.barrier,
    },
)


class Code:
    """A program prepared for timing on one kind of core."""

    def __init__(self, program: Program, decoder: Decoder) -> None:
        self.program, self.decoder = program, decoder
        self.calls = Calls.of(program)
        # Every body of a table is run by some program of it.
        self.runs_of_bodies = [decoder.runs(body) for body in self.calls.bodies]
        """The runs of each body of the table."""

    @cached_property
    def runs(self) -> list[list[Run]]:
        """The runs of each call's body; calls of one body share the list."""
        return [self.runs_of_bodies[number] for number in self.calls.body.tolist()]

    @cached_property
    def parts(self) -> list[Part]:
        """Its stretches in order, each with the shifts of its call."""
        return [
            Part(stretch, shifts)
            for call, runs in zip(self.program.calls, self.runs, strict=True)
            for run in runs
            for shifts in [added(run.shifts, call.shifts)]
            for stretch in run.decoded.stretches
        ]

    @cached_property
    def rows(self) -> list[NDArray[np.int64]]:
        """The indices of the micro-ops of each pipe, with calls expanded."""
        rows = [[np.zeros(0, np.int64)] for _ in PIPES]
        first = 0
        for body, runs in zip(self.program.called, self.runs, strict=True):
            for run in runs:
                for found, own in zip(rows, run.decoded.rows, strict=True):
                    found.append(own + (first + run.first))
            first += len(body)
        return [np.concatenate(found) for found in rows]
