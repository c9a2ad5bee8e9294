"""Runs the compiled engine and returns its results."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from npusim.check.hazards import DeadlockError, deadlock
from npusim.data.dtypes import Array
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.timing.compiled import library
from npusim.timing.compiled.problem import FACTS, Ask, Asked, Problem, Report
from npusim.timing.compiled.tables import LaneTables, ProgramTables
from npusim.timing.interrupts import unless_interrupted
from npusim.timing.memory import L2, PORT_UNITS, SharedMemory
from npusim.timing.memory.l2 import AGES, SHARE_UNITS, WHOLE
from npusim.timing.pipes.copying import copy_times
from npusim.timing.pipes.decode import MTE1, PIPES, SCALAR, Code
from npusim.trace import COUNT_UNITS, CopyTimes, LaneTimes, LaneTrace, LazyLaneTrace

if TYPE_CHECKING:
    import simpy

__all__ = ["simulate"]

READ = 7
"""Index of the value that is the share of bytes read from global memory."""
FINISHED, STOPPED, OUT_OF_MEMORY = range(3)
EVENTS_PER_REPORT = 100_000
Numbers = NDArray[np.int64]
Groups = Sequence[tuple[Block, ...]]


class _Run:
    """One run, which keeps its tables alive."""

    def __init__(self, groups: Groups, codes: Sequence[Code], cache: L2, spec: DeviceSpec) -> None:
        self._programs = ProgramTables(list(dict.fromkeys(codes)))
        self._groups, self._codes, self._cache = groups, codes, cache
        self._problem = Problem()
        self._tables: dict[str, Array] = {}
        self._asked_lines: dict[bytes, Numbers] = {}
        self._error: BaseException | None = None
        self._programs_in()
        self._cores_in(list(cache.counts))
        self._memory_in(cache, spec)
        self._results_out()

    def _put(self, name: str, array: Array) -> Array:
        array = np.ascontiguousarray(array)
        self._tables[name] = array
        setattr(self._problem, name, array.ctypes.data)
        return array

    def _programs_in(self) -> None:
        programs, problem = self._programs, self._problem
        problem.pipes, problem.scalar, problem.mte1 = len(PIPES), SCALAR, MTE1
        problem.names, problem.cross_flags = len(programs.names) or 1, len(programs.cross_flags)
        for name, found in zip(("steps", "stretches"), programs.steps(), strict=True):
            self._put(name, found)
        self._put("copies", programs.copy_steps())
        names = "decoders", "cross_sets", "cross_flag_of"
        for name, found in zip(names, programs.decoder_rows(), strict=True):
            self._put(name, found)
        for name, found in zip(("codes", "calls", "shifts"), programs.code_rows(), strict=True):
            self._put(name, found)
        for name, found in zip(("parts", "run_shifts"), programs.part_rows(), strict=True):
            self._put(name, found)

    def _cores_in(self, tensors: Sequence[str]) -> None:
        cores = LaneTables(self._programs, self._groups, self._codes, tensors)
        self._problem.lanes = len(self._groups)
        self._put("members", cores.members())
        self._put("bindings", cores.bindings())
        names = "first_hearer", "hearers", "first_setter", "setters"
        for name, found in zip(names, cores.hearers(), strict=True):
            self._put(name, found)

    def _memory_in(self, cache: L2, spec: DeviceSpec) -> None:
        problem = self._problem
        problem.tensors = len(cache.counts)
        self._put("first_line", np.cumsum([0, *cache.counts.values()]))
        launched = cache.launched.values()
        then = np.concatenate([*(runs.numbers for runs in launched), [0]])
        sizes = np.concatenate([*(runs.ends - runs.starts for runs in launched), [1]])
        volumes, rows = np.unique(then, return_inverse=True)
        self._touched = self._put("touched", np.repeat(rows.astype(np.int32), sizes))
        problem.volume_count = self._put("volumes", volumes).size
        self._put("absent", np.array([*cache.absent.values(), 0], np.int64))
        problem.share_count = self._put("shares", cache.shares).size
        problem.holds_all = cache.holds_all
        self._put("stored", np.array(cache.stored, np.int64).reshape(-1, 2))
        problem.stored_count = len(cache.stored)
        self._left = np.zeros(self._touched.size if cache.is_carried else 0, np.int64)
        if cache.is_carried:
            self._put("left", self._left)
        problem.line_bytes, problem.capacity_bytes = spec.l2.line_bytes, spec.l2.capacity_bytes
        problem.run_bytes, problem.ages, problem.whole = spec.gm.run_bytes, AGES, WHOLE
        problem.share_units, problem.count_units = SHARE_UNITS, COUNT_UNITS
        problem.port_units = PORT_UNITS
        # Never run, so it needs no clock: it only converts the figures of the chip to the units
        # of the links.
        memory = SharedMemory(cast("simpy.Environment", None), spec, cache)
        for far in ("gm", "l2"):
            for is_read, way in ((True, "read"), (False, "write")):
                setattr(problem, f"{far}_{way}_width", memory.links[far, is_read].width)
        problem.gm_write_width = memory.gm_write_width
        problem.shared_bus = spec.gm.bus == "shared"
        problem.gm_most_rested = memory.links["gm", True].most_rested
        problem.l2_most_rested = memory.links["l2", False].most_rested
        problem.gm_read_latency = memory.latency["gm", True]
        problem.l2_read_latency = memory.latency["l2", True]
        problem.l2_write_latency = memory.latency["l2", False]
        problem.gm_row_ns, problem.l2_row_ns = spec.gm.row_ns, spec.l2.row_ns
        problem.gm_part_row_ns = spec.gm.part_row_ns
        problem.same_line_ns, problem.clock_hz = spec.l2.same_line_ns, spec.clock_hz
        problem.mte1_queue = spec.scalar.mte1_queue
        problem.aliased_speed, problem.fill_weight = memory.aliased_speed, memory.fill_weight

    def _results_out(self) -> None:
        lanes = len(self._groups)
        copies = {code: self._programs.copies_of(code) for code in self._programs.codes}
        counts = np.array([copies[code] for code in self._codes]).reshape(-1)
        self._first_fact = self._put("first_fact", np.concatenate(([0], np.cumsum(counts))))
        self._facts = self._put("facts", np.zeros((int(counts.sum()), FACTS), np.int64))
        most = self._programs.most_risen()
        self._put("first_risen", np.arange(lanes) * most)
        self._put("risen", np.zeros((lanes * most, 2), np.int64))
        self._put("risen_count", np.zeros(lanes, np.int64))
        self._last_end = self._put("last_end", np.zeros(lanes, np.int64))
        self._counts = self._put("counts", np.zeros((lanes, 3), np.int64))
        self._waiting = self._put("waiting", np.zeros((lanes, len(PIPES)), np.int64))

    # ---- callbacks ----

    def _asked(self, number: int, phase: int, asked: Asked) -> None:
        decoder, copy = self._programs.copies[number]
        found = decoder.asked(copy, phase)
        asked.nbytes, asked.rows, asked.hold_cycles = found.nbytes, found.rows, found.hold_cycles
        if isinstance(found.lines, slice):
            asked.start, asked.stop = found.lines.start, found.lines.stop
        else:
            lines = self._one_of(found.lines)
            asked.start, asked.stop, asked.lines = 0, lines.size, lines.ctypes.data
        if found.unkept is not None:
            asked.unkept = self._one_of(found.unkept).ctypes.data

    def _one_of(self, lines: Numbers) -> Numbers:
        """The array object shared by all equal *lines*, so that its address identifies them."""
        return self._asked_lines.setdefault(lines.tobytes(), np.ascontiguousarray(lines))

    def _guarded(self, action: Callable[[], None]) -> int:
        """Run *action*; exceptions cannot pass through C, so it stops and they are raised later."""
        try:
            action()
        except BaseException as error:
            self._error = error
            return 1
        return 0

    # ---- the run ----

    def run(self, progress: Callable[[float], None] | None) -> None:
        """Run the engine; raises exceptions of callbacks, and MemoryError."""
        engine = library()
        assert engine is not None
        total = max(1, sum(len(code.program) for code in self._codes))

        def ask(number: int, phase: int, asked: ctypes._Pointer[Asked]) -> int:
            return self._guarded(lambda: self._asked(number, phase, asked.contents))

        def report(started: int) -> int:
            return self._guarded(lambda: progress(started / total)) if progress else 0

        problem = self._problem
        problem.ask, problem.report = Ask(ask), Report(report)
        problem.events_per_report = EVENTS_PER_REPORT
        try:
            ended = unless_interrupted(lambda: engine.npusim_run(ctypes.byref(problem)), self._stop)
        finally:
            # The callbacks reference this run, with all tables and decoders; its times must not.
            problem.ask, problem.report = Ask(), Report()
        if self._error is not None:
            raise self._error
        if ended == OUT_OF_MEMORY:
            raise MemoryError

    def _stop(self) -> None:
        self._problem.stop = 1

    def results(self) -> tuple[tuple[LaneTrace, ...], int]:
        """The times on each lane, and the bytes that the L2 wrote back."""
        if self._left.size:
            firsts = np.cumsum([*self._cache.counts.values()])
            touched = np.split(self._left[:-1], firsts[:-1])
            names = self._cache.counts
            self._cache.end(dict(zip(names, touched, strict=True)), int(self._problem.volume))
        ends = self._first_fact[:: len(PIPES)]
        replay = _Replay(self._problem, {name: self._tables[name] for name in REPLAYED}, ends)
        lanes = tuple(self._lane(number, replay) for number in range(len(self._groups)))
        return lanes, int(self._problem.written_bytes)

    def _lane(self, number: int, replay: _Replay) -> LaneTrace:
        code, group = self._codes[number], self._groups[number]
        waiting = [op for op in self._waiting[number].tolist() if op >= 0]
        if waiting:
            raise DeadlockError(deadlock(code.program, waiting))
        read = self._facts[replay.copies(number), READ]
        l2_bytes, l2_hit_bytes, l2_written_bytes = self._counts[number].tolist()
        return LazyLaneTrace(
            *(replay, number, int(self._last_end[number])),
            cores=tuple(block.core for block in group),
            kind=code.decoder.kind,
            program=code.program,
            gm_bytes=sum(read.tolist()) / COUNT_UNITS,
            l2_bytes=l2_bytes,
            groups=tuple(block.group for block in group),
            l2_hit_bytes=l2_hit_bytes,
            l2_written_bytes=l2_written_bytes,
            find_copies=partial(replay.copy_times, number),
        )


REPLAYED = (
    *("steps", "stretches", "copies", "decoders", "codes", "calls", "parts", "members"),
    *("first_fact", "first_risen", "facts", "risen", "risen_count"),
)
"""The tables that determine the times of one lane without the other lanes and the memory."""


class _Replay(LaneTimes):
    """Inputs from which the engine can recompute the times of a lane."""

    def __init__(self, problem: Problem, tables: dict[str, Numbers], ends: Numbers) -> None:
        """*tables* are those that *problem* points to; copies of a lane are between two *ends*."""
        self._problem, self._tables, self._ends = problem, tables, ends
        self._facts = [_narrowed(column) for column in tables.pop("facts").T]
        held = [*tables.values(), *self._facts]
        self.nbytes = sum(each.nbytes for each in held)

    def copies(self, number: int) -> slice:
        """The range of the copies of lane *number*."""
        return slice(self._ends[number], self._ends[number + 1])

    def copy_times(self, number: int) -> CopyTimes:
        """What delayed the copies of lane *number*."""
        return copy_times(self._facts_of(number)[:, : READ + 1])

    def times(self, number: int, ops: int) -> Numbers:
        """Start, free and end times of the micro-ops of lane *number*; raises MemoryError."""
        engine = library()
        assert engine is not None
        # The engine receives only the copies of this lane.
        facts, first = self._facts_of(number), self._tables["first_fact"] - self._ends[number]
        problem = Problem.from_buffer_copy(self._problem)
        problem.facts, problem.first_fact = facts.ctypes.data, first.ctypes.data
        found = np.zeros((3, ops), np.int64)
        rows = (row.ctypes.data for row in found)
        if engine.npusim_replay(ctypes.byref(problem), number, *rows):
            raise MemoryError
        return found

    def _facts_of(self, number: int) -> Numbers:
        columns = [column[self.copies(number)] if column.size else 0 for column in self._facts]
        facts = np.zeros((self._ends[number + 1] - self._ends[number], FACTS), np.int64)
        for column, own in zip(facts.T, columns, strict=True):
            column[:] = own
        return facts


def _narrowed(column: Numbers) -> Numbers:
    """*column* in its smallest integer type, or nothing if it is zero, which is most common."""
    if not column.any():
        return np.zeros(0, np.int64)
    is_short = column.min() >= -(2**31) and column.max() < 2**31
    return column.astype(np.int32 if is_short else np.int64)


def simulate(
    groups: Groups,
    codes: Sequence[Code],
    cache: L2,
    spec: DeviceSpec,
    progress: Callable[[float], None] | None,
) -> tuple[tuple[LaneTrace, ...], int]:
    """Like `npusim.timing.simpy_engine.simulate`; also raises MemoryError if it runs out of
    memory.
    """
    run = _Run(groups, codes, cache, spec)
    run.run(progress)
    return run.results()
