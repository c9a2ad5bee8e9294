"""The pipes of a core: when each micro-op starts, and when its result is there.

The scalar unit goes through the program and hands each micro-op to its pipe; pipes take theirs in
order. Inside a core all of that is arithmetic: a micro-op starts when it has been handed out, its
pipe is free and the flags it waits for are up. So a pipe runs ahead of the global clock until it
needs something that does not exist yet: a flag that nobody has set, or the end of a copy, which
other cores can delay and which therefore goes through SimPy (temporal decoupling).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import simpy

from npusim.cost import charge, cost
from npusim.errors import TrapError
from npusim.hazards import DeadlockError, deadlock
from npusim.isa import Barrier, Load, MicroOp, SetFlag, Store, Trap, WaitFlag
from npusim.memory import PORT_UNITS, Request, SharedMemory, touched_lines
from npusim.program import Binding, Program
from npusim.spec import DeviceSpec, Pipe
from npusim.trace import LaneTrace

__all__ = ["Code", "Lane"]

SCALAR = 0
"""Number of the scalar pipe among a lane's pipes."""


# ---- micro-ops made ready to be timed; times in cycles of the chip's clock ----


@dataclass(frozen=True, slots=True)
class _Work:
    body: int
    head: int
    tail: int


@dataclass(frozen=True, slots=True)
class _Set:
    flag: int
    wakes: int
    cycles: int


@dataclass(frozen=True, slots=True)
class _Wait:
    flag: int
    cycles: int


@dataclass(frozen=True, slots=True)
class _Drain:
    cycles: int


@dataclass(frozen=True, slots=True)
class _DrainAll:
    cycles: int


@dataclass(frozen=True, slots=True)
class _Copy:
    op: Load | Store
    gm_port: int
    l2_port: int
    startup: int
    """Cycles from the start of the copy to its first byte."""


_Step = _Work | _Set | _Wait | _Drain | _DrainAll | _Copy


class Code:
    """A program made ready to be timed on one kind of core."""

    def __init__(self, program: Program, kind: str, spec: DeviceSpec) -> None:
        self.program, self.kind, self.spec = program, kind, spec
        self._core = spec.cores[kind]
        self._ratio = spec.clock_hz / self._core.clock_hz
        self.pipes: dict[Pipe, int] = {"scalar": SCALAR}
        self.flags: dict[tuple[Pipe, Pipe, int], int] = {}
        self.dispatch = self.cycles(spec.scalar.dispatch_cycles)
        known: dict[MicroOp, tuple[int, _Step]] = {}
        self.steps: list[tuple[int, _Step]] = []
        """For each micro-op its pipe's number, and what it does to time."""
        for op in program.ops:
            if op not in known:
                known[op] = self._pipe(op.pipe), self._step(op)
            self.steps.append(known[op])

    def cycles(self, core_cycles: int) -> int:
        """Cycles of the chip's clock for cycles of this core's: the nearest number, and not 0."""
        # Rounding up would make each single cycle of a slightly slower core last two.
        twice = 2 * core_cycles * self.spec.clock_hz + self._core.clock_hz
        return max(twice // (2 * self._core.clock_hz), min(core_cycles, 1))

    def _pipe(self, pipe: Pipe) -> int:
        return self.pipes.setdefault(pipe, len(self.pipes))

    def _step(self, op: MicroOp) -> _Step:
        if isinstance(op, Load):
            return self._copy(op, "gm", op.dst.buffer, "l2", op.dst.buffer)
        if isinstance(op, Store):
            return self._copy(op, op.src.buffer, "gm", op.src.buffer, "l2")
        if isinstance(op, Trap) and isinstance(op.when, int) and op.when:
            raise TrapError(op.reason)
        took = cost(op, self.spec)
        body = self.cycles(took.body)
        match op:
            case SetFlag():
                return _Set(self._flag(op), self._pipe(op.dst), body)
            case WaitFlag():
                return _Wait(self._flag(op), body)
            case Barrier(on=None):
                return _DrainAll(body)
            case Barrier():
                return _Drain(body)
            case _:
                return _Work(body, self.cycles(took.head), self.cycles(took.tail))

    def _flag(self, op: SetFlag | WaitFlag) -> int:
        return self.flags.setdefault((op.src, op.dst, op.event), len(self.flags))

    def _copy(self, op: Load | Store, *ends: str) -> _Copy:
        far, near = (self._core.paths[f"{a}_to_{b}"] for a, b in (ends[:2], ends[2:]))
        wide, fast = (round(x.bytes_per_cycle / self._ratio * PORT_UNITS) for x in (far, near))
        return _Copy(op, wide, fast, self.cycles(far.startup_cycles))


class Lane:
    """The pipes of one core, or of several that do the same at the same times."""

    def __init__(
        self,
        env: simpy.Environment,
        memory: SharedMemory,
        code: Code,
        cores: tuple[int, ...],
        bindings: dict[str, Binding],
    ) -> None:
        self._env, self._memory = env, memory
        self._code, self._cores, self._bindings = code, cores, bindings
        self._steps = code.steps
        count = len(code.pipes)
        self._next = 0
        """The micro-op that the scalar unit looks at."""
        self._queues: list[deque[tuple[int, int]]] = [deque() for _ in range(count)]
        """For each pipe: which micro-op, and when it was handed out."""
        self._free = [0] * count
        """When each pipe can take its next micro-op."""
        self._done = [0] * count
        """When the last result of each pipe is there."""
        self._copying = [False] * count
        self._raised: list[deque[int]] = [deque() for _ in code.flags]
        self._runnable = [SCALAR]
        self._start = [0] * len(code.steps)
        self._release = [0] * len(code.steps)
        self._end = [0] * len(code.steps)
        self._gm_bytes = self._l2_bytes = 0

    @property
    def waiting(self) -> int:
        """Micro-ops that have not started yet."""
        return len(self._steps) - self._next + sum(len(queue) for queue in self._queues)

    def run(self) -> None:
        """Go on until nothing can happen before the global clock moves."""
        while self._runnable:
            pipe = self._runnable.pop()
            if pipe == SCALAR:
                self._run_scalar()
            else:
                self._run_pipe(pipe)

    def finish(self) -> LaneTrace:
        """The times, once SimPy has nothing left to do; raises DeadlockError if a pipe waits."""
        waiting = [queue[0][0] for queue in self._queues if queue]
        if self._next < len(self._steps):
            waiting.append(self._next)
        if waiting:
            raise DeadlockError(deadlock(self._code.program, waiting))
        start, free, end = (
            np.array(times, np.int64) for times in (self._start, self._release, self._end)
        )
        return LaneTrace(
            self._cores,
            self._code.kind,
            self._code.program.ops,
            start,
            free,
            end,
            self._gm_bytes,
            self._l2_bytes,
        )

    # ---- one pipe ----

    def _run_scalar(self) -> None:
        steps, now, dispatch = self._steps, self._free[SCALAR], self._code.dispatch
        while self._next < len(steps):
            index = self._next
            pipe, step = steps[index]
            if pipe != SCALAR:
                now += dispatch
                queue = self._queues[pipe]
                queue.append((index, now))
                if len(queue) == 1 and not self._copying[pipe]:
                    self._runnable.append(pipe)
            else:
                after = self._take(SCALAR, index, step, now)
                if after is None:
                    break
                now = after
            self._next = index + 1
        self._free[SCALAR] = now

    def _run_pipe(self, pipe: int) -> None:
        queue = self._queues[pipe]
        while queue and not self._copying[pipe]:
            index, handed_out = queue[0]
            step = self._steps[index][1]
            start = max(handed_out, self._free[pipe])
            if isinstance(step, _Copy):
                self._start_copy(pipe, index, step, start)
                return
            after = self._take(pipe, index, step, start)
            if after is None:
                return
            self._free[pipe] = after
            queue.popleft()
        if not queue:
            # A full barrier may be waiting for this.
            self._runnable.append(SCALAR)

    def _take(self, pipe: int, index: int, step: _Step, start: int) -> int | None:
        """Time one micro-op; returns when its pipe is free, or None if it has to wait."""
        done = self._done
        match step:
            case _Work():
                head = step.head if start >= done[pipe] else 0
                free = start + head + step.body
                end = done[pipe] = max(done[pipe], free + step.tail)
            case _Set():
                free = start + step.cycles
                end = max(done[pipe], start) + step.cycles
                self._raised[step.flag].append(end)
                self._runnable.append(step.wakes)
            case _Wait():
                raised = self._raised[step.flag]
                if not raised:
                    return None
                free = end = max(start, raised.popleft()) + step.cycles
            case _Drain():
                free = end = max(start, done[pipe]) + step.cycles
            case _DrainAll():
                if any(self._queues) or any(self._copying):
                    return None
                free = end = max(start, *done, *self._free) + step.cycles
            case _Copy():
                raise AssertionError("copies go through the memory")
        self._start[index], self._release[index], self._end[index] = start, free, end
        return free

    # ---- copies ----

    def _start_copy(self, pipe: int, index: int, step: _Copy, start: int) -> None:
        self._copying[pipe] = True
        request, hold = self._request(step)

        def done(latency: int, gm_bytes: int, l2_bytes: int) -> None:
            self._gm_bytes += gm_bytes
            self._l2_bytes += l2_bytes
            free = max(start + hold, int(self._env.now))
            end = max(free, int(self._env.now) + latency)
            self._start[index], self._release[index], self._end[index] = start, free, end
            self._free[pipe], self._done[pipe] = free, max(self._done[pipe], end)
            self._queues[pipe].popleft()
            self._copying[pipe] = False
            self._runnable.append(pipe)
            self.run()

        self._at(start + step.startup, lambda: self._memory.start(request, done))

    def _request(self, step: _Copy) -> tuple[Request, int]:
        """What the memory is asked for, and how long the pipe is held at least."""
        op, spec = step.op, self._code.spec
        place = op.src if isinstance(op, Load) else op.dst
        binding = self._bindings[place.name]
        charged = charge(op, binding.base_bytes, spec)
        request = Request(
            is_read=isinstance(op, Load),
            tensor=binding.tensor,
            lines=touched_lines(place, binding.base_bytes, spec.l2.line_bytes),
            nbytes=charged.nbytes,
            gm_port=step.gm_port,
            l2_port=step.l2_port,
            copies=len(self._cores),
        )
        return request, self._code.cycles(charged.hold_cycles)

    def _at(self, cycle: int, action: Callable[[], None]) -> None:
        event = self._env.timeout(cycle - int(self._env.now))
        event.callbacks.append(lambda _: action())
