"""Timing of the pipes of one core while it runs a program.

A pipe is simulated ahead of the global clock as far as its flags allow; it stops at a wait for a
flag that is not set yet, at a copy, and at a barrier of all pipes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
import simpy
from numpy.typing import NDArray

from npusim.check.hazards import DeadlockError, deadlock
from npusim.isa import CrossMode
from npusim.kernel.program import Block
from npusim.timing.memory import Moved, Request, SharedMemory
from npusim.timing.pipes.cross_core_flags import CrossCoreFlags
from npusim.timing.pipes.decode import (
    COPY,
    CROSS_SET,
    DRAIN,
    PIPES,
    SCALAR,
    SET,
    WAIT,
    WORK,
    Code,
    Step,
)
from npusim.trace import COUNT_UNITS, CopyTimes, LaneTrace

__all__ = ["FACTS", "Lane", "copy_times"]

READY, WORKLESS, COPYING, DRAINING = -1, -2, -3, -4
"""What a pipe waits for if not for a flag, whose numbers start at 0: nothing, the scalar unit to
hand out more, its copy, all other pipes."""


class Lane:
    """The pipes of one core, or of several equivalent ones, which have the same times."""

    def __init__(
        self,
        env: simpy.Environment,
        memory: SharedMemory,
        cross_core_flags: CrossCoreFlags,
        code: Code,
        blocks: tuple[Block, ...],
    ) -> None:
        self._env, self._memory, self._cross_core_flags = env, memory, cross_core_flags
        self._code, self._decoder, self._parts = code, code.decoder, code.parts
        self._blocks, self._bindings = blocks, blocks[0].bindings
        places = {name: {block.bindings[name] for block in blocks} for name in self._bindings}
        self._different = {name: len(meant) for name, meant in places.items()}
        """Name of global memory -> to how many different places the cores bind it."""
        self._opened: list[int] = []
        """For each stretch that the scalar unit has entered, the cycle at which it did."""
        self._part = [0] * len(PIPES)
        """For each pipe, the stretch it is in."""
        self._position = [0] * len(PIPES)
        """For each pipe, how many steps of that stretch are done."""
        self._free = [0] * len(PIPES)
        """When each pipe can take its next micro-op."""
        self._done = [0] * len(PIPES)
        """When the last result of each pipe is there."""
        self._waits_for = [WORKLESS] * len(PIPES)
        """The number of a flag, or one of the reasons above."""
        self._raised: list[deque[int]] = [deque() for _ in code.decoder.flags]
        """For each flag, the cycles of the sets that no wait has taken yet, oldest first."""
        self._waits_for[SCALAR] = READY
        self._runnable = [SCALAR]
        self._times: list[tuple[list[int], list[int], list[int]]] = [([], [], []) for _ in PIPES]
        """For each pipe, when each micro-op started, left the pipe free and had its result."""
        self._copied: list[list[int]] = [[] for _ in PIPES]
        """For each pipe, FACTS numbers of each of its copies, one after the other."""
        self._read = self._l2_bytes = self._l2_hit_bytes = self._l2_written_bytes = 0
        cross_core_flags.join(blocks[0], self._raise)

    @property
    def waiting(self) -> int:
        """Micro-ops that have not started yet."""
        return len(self._code.program) - sum(len(starts) for starts, _, _ in self._times)

    def run(self) -> None:
        """Let all pipes run until each waits for an event of SimPy or has ended."""
        while self._runnable:
            self._walk(self._runnable.pop())

    def finish(self) -> LaneTrace:
        """The times, once SimPy has nothing left to do; raises DeadlockError if a pipe waits."""
        rows = self._code.rows
        waiting = [
            int(rows[pipe][len(self._times[pipe][0])])
            for pipe, reason in enumerate(self._waits_for)
            if reason != WORKLESS
        ]
        if waiting:
            raise DeadlockError(deadlock(self._code.program, waiting))
        times = np.empty((3, len(self._code.program)), np.int64)
        for pipe, found in enumerate(self._times):
            times[:, rows[pipe]] = found
        start, free, end = times
        return LaneTrace(
            tuple(block.core for block in self._blocks),
            self._decoder.kind,
            self._code.program,
            start,
            free,
            end,
            self._read / COUNT_UNITS,
            self._l2_bytes,
            tuple(block.group for block in self._blocks),
            self._l2_hit_bytes,
            self._l2_written_bytes,
            partial(_copy_times, rows, [np.array(found, np.int64) for found in self._copied]),
        )

    # ---- pipes ----

    def _walk(self, pipe: int) -> None:
        """Time the stretches of *pipe*, in order, until it has to wait."""
        while True:
            number = self._part[pipe]
            if number == len(self._opened) and not (pipe == SCALAR and self._open()):
                self._waits_for[pipe] = WORKLESS
                # It may have been the last pipe that a barrier of all pipes waits for.
                if self._waits_for[SCALAR] == DRAINING:
                    self._wake(SCALAR)
                return
            stretch = self._parts[number].stretch
            steps = stretch.steps[pipe]
            if steps and not self._work(pipe, steps, self._opened[number]):
                return
            self._part[pipe] = number + 1
            # The scalar unit is busy while it hands out micro-ops, also without work of its own.
            if pipe == SCALAR:
                handed_out = self._opened[number] + stretch.cycles
                self._free[SCALAR] = max(self._free[SCALAR], handed_out)

    def _open(self) -> bool:
        """Let the pipes into the next stretch, if there is one."""
        if len(self._opened) == len(self._parts):
            return False
        self._opened.append(self._free[SCALAR])
        for pipe, reason in enumerate(self._waits_for):
            if reason == WORKLESS:
                self._wake(pipe)
        return True

    def _wake(self, pipe: int) -> None:
        self._waits_for[pipe] = READY
        self._runnable.append(pipe)

    def _work(self, pipe: int, steps: list[Step], opened: int) -> bool:
        """Time what is left of *steps*; returns whether *pipe* did all of them.

        Results of a pipe are there in order, and a flag rises when all results before it are.
        """
        free, done = self._free[pipe], self._done[pipe]
        starts, frees, ends = self._times[pipe]
        raised = self._raised
        # A step is handed out *after* so many cycles of its stretch, and takes its pipe *cycles*.
        # what              x                               y
        # WORK              head, paid if the pipe drained  tail, until the result is there
        # SET               number of the flag              pipe that may wait for it
        # WAIT, CROSS_SET   number of the flag              -
        # COPY              number of the copy              -
        # DRAIN, DRAIN_ALL  -                               -, waits for its own pipe, for all pipes
        for position in range(self._position[pipe], len(steps)):
            what, after, cycles, x, y = steps[position]
            start = opened + after
            if start < free:
                start = free
            if what == WORK:
                free = start + cycles if start < done else start + x + cycles
                end = free + y
                if end < done:
                    end = done
                done = end
            elif what == WAIT:
                if not raised[x]:
                    self._waits_for[pipe] = x
                    break
                risen = raised[x].popleft()
                free = end = (start if start > risen else risen) + cycles
            elif what == SET:
                free = start + cycles
                end = free if start > done else done + cycles
                raised[x].append(end)
                if self._waits_for[y] == x:
                    self._wake(y)
            elif what == COPY:
                self._waits_for[pipe] = COPYING
                self._start_copy(pipe, x, start)
                break
            elif what == CROSS_SET:
                free, end = start + cycles, max(start, done) + cycles
                self._send(x, end)
            elif what == DRAIN:
                free = end = max(start, done) + cycles
            else:
                if not self._is_drained():
                    self._waits_for[pipe] = DRAINING
                    break
                free = end = max(start, done, *self._done, *self._free) + cycles
            starts.append(start)
            frees.append(free)
            ends.append(end)
        else:
            self._free[pipe], self._done[pipe], self._position[pipe] = free, done, 0
            return True
        self._free[pipe], self._done[pipe], self._position[pipe] = free, done, position
        return False

    def _is_drained(self) -> bool:
        """Whether all other pipes have done all that was handed out to them."""
        return all(
            reason == WORKLESS for pipe, reason in enumerate(self._waits_for) if pipe != SCALAR
        )

    # ---- what goes through SimPy: flags for other cores, and copies ----

    def _send(self, number: int, risen: int) -> None:
        mode, event = self._decoder.cross_flags[number]
        block = self._blocks[0]
        seen = risen + self._decoder.cross_core
        self._at(seen, lambda: self._cross_core_flags.arrive(block, mode, event))

    def _raise(self, mode: CrossMode, event: int) -> None:
        """A flag between cores has risen for this one."""
        flag = self._decoder.flags.get((mode, event))
        if flag is None:
            return
        self._raised[flag].append(int(self._env.now))
        for pipe, reason in enumerate(self._waits_for):
            if reason == flag:
                self._wake(pipe)
        self.run()

    def _start_copy(self, pipe: int, number: int, start: int) -> None:
        copy = self._decoder.copies[number]
        place = copy.place
        binding = self._bindings[place.name]
        shift = self._parts[self._part[pipe]].shifts.get(place.name, 0)
        address = binding.base_bytes + shift + place.offset_bytes
        wanted = self._decoder.asked(copy, address)
        hold = wanted.hold_cycles
        request = Request(
            copy.is_read,
            binding.tensor,
            wanted.lines,
            wanted.nbytes,
            wanted.rows,
            copy.gm_port,
            copy.l2_port,
            len(self._blocks),
            binding.is_cached,
            self._different[place.name],
            copy.piece_bytes,
            wanted.unkept,
            copy.is_aliased,
        )

        def done(moved: Moved) -> None:
            self._read += moved.read
            self._l2_bytes += moved.l2_bytes
            self._l2_hit_bytes += moved.l2_hit_bytes
            self._l2_written_bytes += moved.l2_written_bytes
            # The pipe is free when the bytes have moved, or its own overhead is over; the latency
            # of the memory delays only the result, so copies behind each other hide it.
            now = int(self._env.now)
            free = max(start + hold, now)
            end = max(free, now + moved.latency)
            # Its number on the pipe, then as in `CopyTimes`.
            facts = moved.gm_narrow, moved.l2_narrow, moved.turning, moved.read
            self._copied[pipe] += (len(self._times[pipe][0]), asked, now, *facts)
            for times, time in zip(self._times[pipe], (start, free, end), strict=True):
                times.append(time)
            self._free[pipe], self._done[pipe] = free, max(self._done[pipe], end)
            self._position[pipe] += 1
            self._wake(pipe)
            self.run()

        asked = start + copy.startup
        self._at(asked, lambda: self._memory.start(request, done))

    def _at(self, cycle: int, action: Callable[[], None]) -> None:
        event = self._env.timeout(cycle - int(self._env.now))
        event.callbacks.append(lambda _: action())


FACTS = 7


def _copy_times(rows: list[NDArray[np.int64]], copied: list[NDArray[np.int64]]) -> CopyTimes:
    """What held up the copies of a lane: *rows* are the numbers of each pipe's micro-ops."""
    tables = [np.zeros((0, FACTS), np.int64)]
    for numbers, found in zip(rows, copied, strict=True):
        table = found.reshape(-1, FACTS).copy()
        table[:, 0] = numbers[table[:, 0]]
        tables.append(table)
    return copy_times(np.concatenate(tables))


def copy_times(table: NDArray[np.int64]) -> CopyTimes:
    """What held up the copies of a lane, `(copies, FACTS)`, in any order: the number of each, then
    as in `CopyTimes`.
    """
    index, asked, moved, gm_narrow, l2_narrow, turning, read = table[table[:, 0].argsort()].T
    times = index, asked, moved, gm_narrow, l2_narrow, turning
    return CopyTimes(*times, read / COUNT_UNITS)
