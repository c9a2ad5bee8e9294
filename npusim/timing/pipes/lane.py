"""Timing of the pipes of a core while it runs a program, or of several cores in lockstep.

Cores start as one lane. It requests the bytes of each, and splits where their answers differ or
their programs diverge: a lane that splits off inherits everything that has happened so far. Times
are those of each core on its own, since the order of events within a cycle does not matter:
requests of a cycle are served together, everything that decides when one ends is compared, and the
links, which are shared fairly, carry the load of every core.

A pipe is simulated ahead of the global clock as far as its flags allow; it stops at a wait for a
flag that is not set yet, at a copy, and at a barrier of all pipes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from copy import copy as twin_of
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from npusim.check.hazards import DeadlockError, deadlock
from npusim.isa import CrossMode
from npusim.kernel.program import Binding
from npusim.timing.memory import Moved, Request, SharedMemory
from npusim.timing.pipes.copying import Copying, Member, Stage, Wanted, copy_times_of_lane
from npusim.timing.pipes.cross_core_flags import CrossCoreFlags
from npusim.timing.pipes.decode import (
    COPY,
    CROSS_SET,
    DRAIN,
    MTE1,
    PIPES,
    SCALAR,
    SET,
    WAIT,
    WORK,
    CopyStep,
    Step,
)
from npusim.trace import COUNT_UNITS, LaneTrace

if TYPE_CHECKING:
    import simpy

__all__ = ["Lane"]

Numbers = NDArray[np.int64]
READY, WORKLESS, COPYING, DRAINING, QUEUED = -1, -2, -3, -4, -5
"""What a pipe waits for, if not a flag, whose numbers start at 0: nothing, further micro-ops from
the scalar unit, its copy, all other pipes, room in the queue of mte1 for what precedes its copy."""


class Lane:
    """The pipes of one core, or of several as long as they have the same times."""

    def __init__(
        self,
        env: simpy.Environment,
        memory: SharedMemory,
        cross_core_flags: CrossCoreFlags,
        members: list[Member],
        lanes: list[Lane],
    ) -> None:
        """*lanes* are all of the launch: this one is added, and later those that split off."""
        self._env, self._memory, self._cross_core_flags = env, memory, cross_core_flags
        self.members, self._lanes = members, lanes
        code = members[0].code
        self._decoder, self._parts = code.decoder, code.parts
        self._opened: list[int] = []
        """The cycle at which the scalar unit entered each stretch so far."""
        self._part = [0] * len(PIPES)
        """For each pipe, the index of its current stretch."""
        self._position = [0] * len(PIPES)
        """For each pipe, how many steps of that stretch are done."""
        self._passed = [0] * len(PIPES)
        """For each pipe, the mte1 instructions in the stretches before its own."""
        self._left: list[int] = []
        """When each instruction left the queue of mte1; a micro-op may take several."""
        self._free = [0] * len(PIPES)
        """When each pipe can start its next micro-op."""
        self._done = [0] * len(PIPES)
        """When the last result of each pipe is available."""
        self._waits_for = [WORKLESS] * len(PIPES)
        """The number of a flag, or one of the reasons above."""
        self._raised: list[deque[int]] = [deque() for _ in code.decoder.flags]
        """For each flag, the cycles of sets not consumed by a wait yet, oldest first."""
        self._waits_for[SCALAR] = READY
        self._runnable = [SCALAR]
        self._times: list[tuple[list[int], list[int], list[int]]] = [([], [], []) for _ in PIPES]
        """For each pipe, the times of each micro-op: start, pipe free, result."""
        self._copied: list[list[int]] = [[] for _ in PIPES]
        """For each pipe, FACTS values for each of its copies except the last of them,
        concatenated."""
        self._copying: list[Copying | None] = [None for _ in PIPES]
        """For each pipe, the copy that it waits for."""
        self._l2_bytes = self._l2_hit_bytes = self._l2_written_bytes = 0
        for member in members:
            cross_core_flags.join(member.blocks[0], self._raise)
        lanes.append(self)

    @property
    def started(self) -> int:
        """Micro-ops that have started, per member."""
        return len(self.members) * sum(len(starts) for starts, _, _ in self._times)

    def run(self) -> None:
        """Run all pipes until each waits for an event of SimPy or has finished."""
        while self._runnable:
            self._walk(self._runnable.pop())

    def finish(self) -> list[LaneTrace]:
        """The times of each of its members, after SimPy has no events left.

        Raises DeadlockError if a pipe still waits.
        """
        rows = self.members[0].code.rows
        waiting = [
            int(rows[pipe][len(self._times[pipe][0])])
            for pipe, reason in enumerate(self._waits_for)
            if reason != WORKLESS
        ]
        if waiting:
            raise DeadlockError(deadlock(self.members[0].code.program, waiting))
        times = [np.array(found, np.int64) for found in self._times]
        copied = [np.array(found, np.int64) for found in self._copied]
        return [self._trace(member, times, copied) for member in self.members]

    def _trace(self, member: Member, times: list[Numbers], copied: list[Numbers]) -> LaneTrace:
        program, rows = member.code.program, member.code.rows
        ordered = np.empty((3, len(program)), np.int64)
        for pipe, found in enumerate(times):
            ordered[:, rows[pipe]] = found
        start, free, end = ordered
        return LaneTrace(
            tuple(block.core for block in member.blocks),
            self._decoder.kind,
            program,
            start,
            free,
            end,
            sum(map(sum, member.read)) / COUNT_UNITS,
            self._l2_bytes,
            tuple(block.group for block in member.blocks),
            self._l2_hit_bytes,
            self._l2_written_bytes,
            partial(copy_times_of_lane, rows, copied, member.read),
        )

    # ---- members that split ----

    def part(self, groups: Sequence[Sequence[int]]) -> None:
        """Keep the members with the indices in the first of *groups*, and create a lane for each
        of the other groups.
        """
        first, *others = groups
        twins = [self._twin(members) for members in others]
        self.members = [self.members[index] for index in first]
        self._parts = self.members[0].code.parts
        for copying in self._copying:
            if copying:
                copying.keep(first)
        for twin in twins:
            twin.go_on()

    def _twin(self, members: Sequence[int]) -> Lane:
        """A lane of *members* with the same history."""
        twin = twin_of(self)
        twin.members = [self.members[index] for index in members]
        twin._parts = twin.members[0].code.parts
        names = "_opened", "_part", "_position", "_free", "_done", "_waits_for", "_runnable"
        for name in *names, "_passed", "_left":
            setattr(twin, name, getattr(self, name).copy())
        twin._raised = [risen.copy() for risen in self._raised]
        twin._times = [(starts[:], frees[:], ends[:]) for starts, frees, ends in self._times]
        twin._copied = [facts[:] for facts in self._copied]
        twin._copying = [each and each.of(twin, members) for each in self._copying]
        self._lanes.append(twin)
        return twin

    def go_on(self) -> None:
        """Schedule for this lane what the lane it split from had scheduled."""
        for copying in self._copying:
            if copying and copying.stage is Stage.ISSUED:
                self._at(copying.asked, partial(copying.ask, self._memory))
            elif copying and copying.stage is Stage.ASKED:
                self._memory.ask(copying)
            elif copying and copying.stage is Stage.ANSWERED:
                copying.begin(self._memory)
        self.run()

    # ---- pipes ----

    def _walk(self, pipe: int) -> None:
        """Time the stretches of *pipe*, in order, until it has to wait."""
        while True:
            number = self._part[pipe]
            if number == len(self._opened) and not (pipe == SCALAR and self._open()):
                self._waits_for[pipe] = WORKLESS
                # This may be the last pipe that a barrier of all pipes waits for.
                if self._waits_for[SCALAR] == DRAINING:
                    self._wake(SCALAR)
                return
            stretch = self._parts[number].stretch
            steps = stretch.steps[pipe]
            begun = self._position[pipe]
            is_over = not steps or self._work(pipe, steps, self._opened[number])
            if pipe == MTE1:
                self._leave_queue(steps[begun : None if is_over else self._position[pipe]])
            if not is_over:
                return
            self._part[pipe] = number + 1
            self._passed[pipe] += stretch.queued
            # The scalar unit is busy while it issues micro-ops, even without work of its own.
            if pipe == SCALAR:
                handed_out = self._opened[number] + stretch.cycles
                self._free[SCALAR] = max(self._free[SCALAR], handed_out)

    def _open(self) -> bool:
        """Let the pipes enter the next stretch, if there is one."""
        if len(self.members) > 1:
            self._part_by_stretch(len(self._opened))
        if len(self._opened) == len(self._parts):
            return False
        self._opened.append(self._free[SCALAR])
        for pipe, reason in enumerate(self._waits_for):
            if reason == WORKLESS:
                self._wake(pipe)
        return True

    def _part_by_stretch(self, number: int) -> None:
        """Split off members whose stretch *number* differs."""
        alike: dict[Hashable, list[int]] = {}
        for index, member in enumerate(self.members):
            parts = member.code.parts
            is_over = number == len(parts)
            shape = None if is_over else self._decoder.shape(parts[number].stretch)
            alike.setdefault(shape, []).append(index)
        if len(alike) > 1:
            # The others open their own stretch when they continue.
            self._runnable.append(SCALAR)
            self.part(list(alike.values()))
            self._runnable.pop()

    def _wake(self, pipe: int) -> None:
        self._waits_for[pipe] = READY
        self._runnable.append(pipe)

    def _work(self, pipe: int, steps: list[Step], opened: int) -> bool:
        """Time the rest of *steps*; return whether *pipe* has done all of them.

        Results of a pipe appear in order, and a flag is set when all earlier results are available.
        """
        free, done = self._free[pipe], self._done[pipe]
        starts, frees, ends = self._times[pipe]
        raised = self._raised
        # A step is issued *after* that many cycles of its stretch, and takes its pipe *cycles*.
        # kind              x                               y
        # WORK              head, paid if the pipe drained  tail, until the result is available
        # SET               number of the flag              pipe that may wait for it
        # WAIT, CROSS_SET   number of the flag              -
        # COPY              index of the copy               -
        # DRAIN, DRAIN_ALL  -                               -, waits for its own pipe, for all pipes
        for position in range(self._position[pipe], len(steps)):
            what, after, cycles, x, y, in_queue = steps[position]
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
                self._position[pipe] = position
                self._come_to_copy(pipe, start, x, in_queue)
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

    def _leave_queue(self, steps: Sequence[Step]) -> None:
        """Record that *steps* of mte1, the latest ones, have started: copies may wait for that."""
        starts = self._times[MTE1][0]
        for step, start in zip(steps, starts[len(starts) - len(steps) :], strict=True):
            self._left += [start] * step[5]
        for pipe, reason in enumerate(self._waits_for):
            if reason == QUEUED:
                self._wake(pipe)

    def _come_to_copy(self, pipe: int, start: int, copy: int, in_queue: int) -> None:
        """Start a copy that *pipe* could take at *start*, once the queue of mte1 has room."""
        room = self._room(pipe, copy, in_queue)
        if room is None:
            self._waits_for[pipe] = QUEUED
            return
        self._waits_for[pipe] = COPYING
        self._start_copy(pipe, max(start, room))

    def _room(self, pipe: int, copy: int, in_queue: int) -> int | None:
        """When the queue of mte1 has room for what precedes a copy, *in_queue* instructions of its
        stretch; None if not known yet.
        """
        before = self._passed[pipe] + in_queue - self._decoder.mte1_queue
        if before < 0 or not self._decoder.mte1_queue:
            return 0
        # All cores of a launch agree on which names are early.
        bindings = self.members[0].blocks[0].bindings
        if bindings[self._decoder.copies[copy].place.name].is_early:
            return 0
        return self._left[before] if before < len(self._left) else None

    def _is_drained(self) -> bool:
        """Whether all other pipes have finished everything issued to them."""
        return all(
            reason == WORKLESS for pipe, reason in enumerate(self._waits_for) if pipe != SCALAR
        )

    # ---- events of SimPy: flags for other cores, and copies ----

    def _send(self, number: int, risen: int) -> None:
        mode, event = self._decoder.cross_flags[number]
        block = self.members[0].blocks[0]
        seen = risen + self._decoder.cross_core
        self._at(seen, lambda: self._cross_core_flags.arrive(block, mode, event))

    def _raise(self, mode: CrossMode, event: int) -> None:
        """Record that a flag between cores was set for this one."""
        flag = self._decoder.flags.get((mode, event))
        if flag is None:
            return
        self._raised[flag].append(int(self._env.now))
        for pipe, reason in enumerate(self._waits_for):
            if reason == flag:
                self._wake(pipe)
        self.run()

    def _start_copy(self, pipe: int, start: int) -> None:
        number, position = self._part[pipe], self._position[pipe]
        step = self._parts[number].stretch.steps[pipe][position]
        asked = start + self._decoder.copies[step[3]].startup
        copying = Copying(self, pipe, start, asked, self._wanted(pipe, number, position))
        self._copying[pipe] = copying
        self._at(asked, partial(copying.ask, self._memory))

    def _wanted(self, pipe: int, number: int, position: int) -> list[Wanted]:
        """The request of each member for the copy at *position* of stretch *number*."""
        known: dict[Hashable, Wanted] = {}
        found = []
        for member in self.members:
            stretch, shifts = member.code.parts[number]
            which = stretch.steps[pipe][position][3]
            copy = self._decoder.copies[which]
            name = copy.place.name
            binding, different = member.blocks[0].bindings[name], member.different[name]
            address = binding.base_bytes + shifts.get(name, 0) + copy.place.offset_bytes
            # Equivalent cores that access different lines share them with no other core.
            alone = member.number if different > 1 else None
            key = which, binding.tensor, binding.is_cached, address, alone
            wanted = known.get(key)
            if wanted is None:
                cores = len(member.blocks), different
                wanted = known[key] = self._want(copy, binding, address, *cores)
            found.append(wanted)
        return found

    def _want(
        self, copy: CopyStep, binding: Binding, address: int, cores: int, different: int
    ) -> Wanted:
        """The request of *copy*, from *address* on within its tensor."""
        asked = self._decoder.asked(copy, address)
        request = Request(
            copy.is_read,
            binding.tensor,
            asked.lines,
            asked.nbytes,
            asked.rows,
            copy.gm_port,
            copy.l2_port,
            cores,
            binding.is_cached,
            different,
            copy.piece_bytes,
            asked.unkept,
            copy.is_aliased,
        )
        return Wanted(request, asked.hold_cycles)

    def moved(self, copying: Copying, moved: Moved) -> None:
        """Record that the last byte of *copying* has moved."""
        pipe = copying.pipe
        self._copying[pipe] = None
        self._l2_bytes += moved.l2_bytes
        self._l2_hit_bytes += moved.l2_hit_bytes
        self._l2_written_bytes += moved.l2_written_bytes
        # The pipe is free when the bytes have moved and its own overhead is over; the latency of
        # the memory delays only the result, so consecutive copies hide it.
        now = int(self._env.now)
        free = max(copying.start + copying.hold_cycles, now)
        end = max(free, now + moved.latency)
        # Its index on the pipe, then the fields of `CopyTimes`.
        self._copied[pipe] += (len(self._times[pipe][0]), copying.asked, now)
        self._copied[pipe] += (moved.gm_narrow, moved.l2_read_narrow, moved.l2_write_narrow)
        self._copied[pipe].append(moved.turning)
        for times, time in zip(self._times[pipe], (copying.start, free, end), strict=True):
            times.append(time)
        self._free[pipe], self._done[pipe] = free, max(self._done[pipe], end)
        self._position[pipe] += 1
        self._wake(pipe)
        self.run()

    def _at(self, cycle: int, action: Callable[[], None]) -> None:
        event = self._env.timeout(cycle - int(self._env.now))
        event.callbacks.append(lambda _: action())
