"""What a checked call has the chip do: its programs, and when they do what."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING
from warnings import warn

import numpy as np

from npusim import chip, ops
from npusim.check.hazards import HazardError, RaceError, forgiving
from npusim.check.rules import RuleError
from npusim.chip import Block, Engine, L2State, Progress
from npusim.data.errors import Code, HazardWarning, OpError
from npusim.data.garbage import uncollected
from npusim.data.tensor import GlobalTensor, allocate
from npusim.devices.schema import CORES_OF_A_GROUP, DeviceSpec
from npusim.kernel.builder import deeper, watched
from npusim.kernel.program import Program, QueueName
from npusim.kernel.queues import ProgramError
from npusim.kernel.table import TabledProgram
from npusim.run.memory_cache import CACHE, device_key, key_of, unvalued
from npusim.run.user_kernel import UserProblem
from npusim.trace import Trace, copies_of
from npusim.values.buffers import UNWRITTEN
from npusim.values.replay import Replay

if TYPE_CHECKING:
    from npusim.run.disk_cache import Stored

__all__ = ["Programs", "Task", "allocated", "place"]

WRITTEN_BYTES = 200
"""What a micro-op of a body takes, and a call (measured: 75 in products, 200 in vector kernels)."""
TIMED_BYTES = 32
"""What the times of a micro-op take: four integers, when it starts, leaves its pipe free and ends,
and its number on the pipe (measured: 32.4)."""
COPIED_BYTES = 60
"""What the facts about a copy take besides: seven integers, and the array around them."""
POINTER_BYTES = 8
CYCLES_BYTES = 1000
"""What a number and its key take."""


@dataclass(frozen=True, slots=True, eq=False)
class Programs:
    """What each core does, checked."""

    blocks: tuple[Block, ...]
    orders: dict[Program, Sequence[int]]
    """For each program an order in which its micro-ops may be computed."""


class Task:
    """A kernel that is to run: an operator's, for one problem on one chip.

    It sees no values of *problem*, but for those that decide how the kernel is written. So what it
    computes is the same for all calls of the same shapes, and is cached for them, its times also in
    the folder *stored* if there is one. Of a custom kernel nothing is cached: the function behind
    it may have looked at anything. The *queues* that are named get a slot more than the kernel
    declares.
    """

    def __init__(
        self,
        operator: ops.Operator,
        spec: DeviceSpec,
        problem: ops.Problem,
        progress: Progress | None = None,
        stored: Stored | None = None,
        queues: tuple[QueueName, ...] = (),
    ) -> None:
        self._operator, self._spec, self._progress = operator, spec, progress
        self._stored, self._queues = stored, queues
        is_own = isinstance(problem, UserProblem)
        self._problem = problem if is_own else unvalued(problem, operator.value_dependent_inputs)
        self._is_own = is_own
        self._forgiven: list[HazardError] = []
        """Hazards that may be harmless."""
        self.plan = operator.plan(spec, self._problem)
        """How it is split; None where no kernel runs."""

    def check(self) -> None:
        """Have the programs written and checked; refuses a chip that does not hold them."""
        _ = self._programs  # written and checked when it is first asked for

    def compute(self, tensors: list[GlobalTensor], model: chip.Model) -> None:
        """Compute the values of *tensors*, those that :func:`place` gives; raises TrapError."""
        blocks, orders = self._programs.blocks, self._programs.orders
        if self._forgiven:
            self._judge(tensors, model)
        chip.compute(blocks, tensors, self._spec, orders, model, progress=self._progress)

    def _judge(self, tensors: list[GlobalTensor], model: chip.Model) -> None:
        """Warn of what is forgiven; a race is where the same bytes come out the other way round."""
        found = []
        for blocks in (self._programs.blocks, self._programs.blocks[::-1]):
            own = [replace(x, data=None if x.data is None else x.data.copy()) for x in tensors]
            chip.compute(blocks, own, self._spec, self._programs.orders, model)
            found.append(own)
        for error in self._forgiven:
            if isinstance(error, RaceError) and not _are_equal(*found):
                raise error
            warn(f"{error}; the run goes on, since the same bytes come out", HazardWarning, 2)

    def replay(self) -> Replay | None:
        """What computes values of the same shapes again and again; None for large launches."""
        return Replay.of(self._programs.blocks, self._spec, self._programs.orders)

    def nbytes(self, trace: Trace | None) -> int:
        """What its programs take, and *trace* if there is one, roughly."""
        return _programs_bytes(self._programs) + (_trace_bytes(trace) if trace else 0)

    def trace(self, l2: L2State, every_core: bool, engine: Engine) -> Trace:
        """When each micro-op runs with *l2* at launch, as *engine* finds; *every_core* times each
        core on its own.

        Raises TrapError for a kernel that is sure to stop itself.
        """
        make = partial(self._timed, l2, every_core, engine)
        if self._key is None:
            return make()
        key = self._key, "trace", key_of(l2), bool(every_core), engine
        if self._stored is not None:
            make = partial(self._stored.get, key, self._blocks, make)
        return CACHE.get(key, make, _trace_bytes)

    def cycles_on(self, spec: DeviceSpec, l2: L2State, every_core: bool, engine: Engine) -> int:
        """The cycles of the slowest core on *spec*, a chip that differs in what micro-ops cost.

        The programs are those of the chip of the task.
        """
        make = partial(self._timed, l2, every_core, engine, spec)
        if self._key is None:
            return make().cycles
        key = self._key, "trace", key_of(l2), bool(every_core), engine, device_key(spec)
        stored = self._stored
        if stored is None:
            return CACHE.get(key, lambda: make().cycles, lambda _: CYCLES_BYTES)
        return CACHE.get(
            key, lambda: stored.get(key, self._blocks, make).cycles, lambda _: CYCLES_BYTES
        )

    def _blocks(self) -> tuple[Block, ...]:
        """The programs; written for times that are there already, they need not be checked."""
        return self._programs.blocks if "_programs" in vars(self) else self._built()

    @cached_property
    def _key(self) -> Hashable:
        """The key of all that is cached of it; None where nothing is."""
        if self._is_own:
            return None
        operator = self._operator
        functions = operator.tile, operator.build, operator.flags_may_stay_up
        try:
            problem = key_of(self._problem), key_of(self._queues)
            return operator.name, functions, device_key(self._spec), *problem
        except TypeError:
            return None

    @cached_property
    def _programs(self) -> Programs:
        if self._key is None:
            return self._written()
        return CACHE.get((self._key, "programs"), self._written, _programs_bytes)

    def _timed(
        self, l2: L2State, every_core: bool, engine: Engine, spec: DeviceSpec | None = None
    ) -> Trace:
        return chip.time(
            *(self._programs.blocks, place(self._problem, self._split, False), spec or self._spec),
            l2=l2,
            every_core=every_core,
            engine=engine,
            progress=None if spec else self._progress,
        )

    @property
    def _split(self) -> ops.Plan:
        assert self.plan is not None
        return self.plan

    def _written(self) -> Programs:
        blocks = self._built() if self._progress is None else self._watched(self._progress)
        is_lenient = isinstance(self._problem, UserProblem) and not self._problem.is_strict
        try:
            with forgiving(self._forgiven.append) if is_lenient else nullcontext():
                orders = chip.verify(
                    *(blocks, self._spec),
                    self._fresh_bytes(),
                    # The vendor's kernels leave outputs as they are that a call does not ask for,
                    # and rows that belong to no group.
                    self._fresh_bytes() if self._is_own else None,
                    flags_may_stay_up=self._operator.flags_may_stay_up,
                    progress=self._progress,
                )
        except (RuleError, HazardError) as error:
            if self._is_own or self._queues:
                raise
            name = self._operator.name
            raise OpError(
                Code.UNSUPPORTED,
                f"{name}: its kernel, tiled as the vendor tiles it, must be one that "
                f"{self._spec.name} can run, but {error}. Such a call is not simulated; pass "
                f"another shape or type, or name another chip",
            ) from error
        return Programs(blocks, orders)

    def _fresh_bytes(self) -> dict[str, int]:
        """The bytes of each output of which nothing is there before the kernel writes it."""
        outputs, updated = self._problem.outputs, self._problem.updated
        return {name: spec.nbytes for name, spec in outputs.items() if name not in updated}

    def _watched(self, progress: Progress) -> tuple[Block, ...]:
        """The programs; *progress* hears of each, as a share of one for every core started."""
        plan, done = self._split, 0
        most = plan.block_dim * (CORES_OF_A_GROUP if plan.is_mix else 1)

        def report() -> None:
            nonlocal done
            done += 1
            progress("programs", min(1.0, done / most))

        progress("programs", 0.0)
        with watched(report):
            blocks = self._built()
        progress("programs", 1.0)
        return blocks

    def _built(self) -> tuple[Block, ...]:
        """The program of each core; refuses a chip that does not hold an operator's tiles."""
        try:
            with deeper(self._queues), uncollected():
                return self._operator.build(self._spec, self._problem, self._split)
        except ProgramError as error:
            if isinstance(self._problem, UserProblem):
                raise
            name = self._operator.name
            must = str(error).removeprefix(f"{name}: ").rpartition("; ")[0]
            raise OpError(
                Code.UNSUPPORTED,
                f"{name}: its kernel, tiled as the vendor tiles it, must fit {self._spec.name}, "
                f"but {must}; give the chip larger buffers or more events",
            ) from None


def _are_equal(some: list[GlobalTensor], others: list[GlobalTensor]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(
        a.data is None or b.data is None or bool(np.array_equal(a.data, b.data)) for a, b in pairs
    )


# ---- tensors ----


def place(problem: ops.Problem, plan: ops.Plan, with_values: bool) -> list[GlobalTensor]:
    """Outputs, inputs and workspaces in global memory, in that order."""
    tensors = allocated(problem, with_values)
    placed = {tensor.name for tensor in tensors}
    tensors += [operand.place() for operand in problem.inputs if operand.name not in placed]
    for name, nbytes in plan.workspaces.items():
        # What nobody has written must show when somebody reads it.
        data = np.full(nbytes, UNWRITTEN, np.uint8) if with_values else None
        tensors.append(GlobalTensor(name, nbytes, data))
    return tensors


def allocated(problem: ops.Problem, with_values: bool) -> list[GlobalTensor]:
    """The outputs of *problem*; with *with_values*, as they are before a kernel has run."""
    outputs = [allocate(name, spec, with_values) for name, spec in problem.outputs.items()]
    updated = problem.updated
    for output in outputs:
        if output.data is None:
            continue
        if output.name in updated:
            before = updated[output.name].place().data
            assert before is not None
            output.data[: output.nbytes] = before[: output.nbytes]
    return outputs


# ---- how much is cached ----


def _programs_bytes(programs: Programs) -> int:
    """What keeping *programs* takes, roughly."""
    orders = sum(len(order) for order in programs.orders.values() if not isinstance(order, range))
    return _written_bytes(programs.orders) + POINTER_BYTES * orders


def _trace_bytes(trace: Trace) -> int:
    """What keeping *trace* takes, roughly, with the programs that its spans are of."""
    programs = dict.fromkeys(lane.program for lane in trace.lanes)
    copies = {program: len(copies_of(program)) for program in programs}
    return _written_bytes(copies) + sum(
        TIMED_BYTES * len(lane.program) + COPIED_BYTES * copies[lane.program]
        for lane in trace.lanes
    )


def _written_bytes(programs: Iterable[Program]) -> int:
    found = list(programs)
    bodies = {body for program in found for body in program.bodies}
    leaves = {leaf for program in found for leaf in program.leaves}
    calls = sum(len(program.calls) for program in found if not isinstance(program, TabledProgram))
    calls += sum(len(body.calls) for body in bodies)
    tables = [program.table for program in found if isinstance(program, TabledProgram)]
    rows = sum(table.body.nbytes + table.shifts.nbytes for table in tables)
    return WRITTEN_BYTES * (sum(map(len, leaves)) + calls) + rows
