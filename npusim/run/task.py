"""A checked call as work for the chip: its programs, and their times."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING
from warnings import warn

import numpy as np

from npusim import chip, ops
from npusim.check.blocks_at_once import check_at_once
from npusim.check.hazards import HazardError, RaceError, forgiving
from npusim.check.rules import RuleError
from npusim.chip import Block, Engine, L2State, Progress
from npusim.data.errors import Code, HazardWarning, OpError
from npusim.data.garbage import uncollected
from npusim.data.tensor import GlobalTensor, allocate
from npusim.devices.schema import CORES_OF_A_GROUP, DeviceSpec
from npusim.kernel.builder import Shared, deeper, watched
from npusim.kernel.program import Program, QueueName
from npusim.kernel.queues import ProgramError
from npusim.kernel.table import LaunchTable, TabledProgram
from npusim.kernel.waves import in_waves
from npusim.run.memory_cache import CACHE, device_key, key_of, unvalued
from npusim.run.user_kernel import UserProblem
from npusim.timing.engines import quickest
from npusim.trace import Trace
from npusim.values.buffers import UNWRITTEN
from npusim.values.replay import Replay

if TYPE_CHECKING:
    from npusim.run.disk_cache import Stored

__all__ = ["CyclesOn", "Programs", "Task", "allocated", "place"]

WRITTEN_BYTES = 200
"""Memory of a micro-op of a body, and of a call that is an object (measured: 75 in products, 200 in
vector kernels)."""
BODY_BYTES, BLOCK_BYTES = 1000, 2000
"""Additional memory of a body and a block (measured in launches of few micro-ops)."""
POINTER_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Programs:
    """The checked program of each core."""

    blocks: tuple[Block, ...]
    orders: dict[Program, Sequence[int]]
    """For each program, an order in which its micro-ops may be computed."""


class Task:
    """A kernel to run: an operator's, for one problem on one chip.

    It sees no values of *problem*, except those that affect how the kernel is written. So its
    results are the same for all calls of the same shapes, and are cached for them, its times also
    in the folder *stored*, if any. Nothing is cached for a custom kernel, whose function may depend
    on anything. The given *queues* get one slot more than the kernel declares. Unless *is_checked*,
    programs are checked for values only, and not for times.
    """

    def __init__(
        self,
        operator: ops.Operator,
        spec: DeviceSpec,
        problem: ops.Problem,
        progress: Progress | None = None,
        stored: Stored | None = None,
        queues: tuple[QueueName, ...] = (),
        is_checked: bool = True,
    ) -> None:
        self._operator, self._spec, self._progress = operator, spec, progress
        self._stored, self._queues, self._is_checked = stored, queues, is_checked
        is_own = isinstance(problem, UserProblem)
        self.problem = problem if is_own else unvalued(problem, operator.value_dependent_inputs)
        """The problem, without values except those that affect how the kernel is written."""
        self._is_own = is_own
        self._forgiven: list[HazardError] = []
        """Hazards that may be harmless."""
        self.plan = operator.plan(spec, self.problem)
        """How it is split; None if no kernel runs."""

    @property
    def kernel_type(self) -> str:
        """CANN's name of the kernel."""
        return self._operator.type_of(self._spec, self.problem, self._split)

    @property
    def kernel(self) -> tuple[str, str, str | None]:
        """Equal for launches of one kernel, whatever their shapes."""
        return self._operator.name, self.kernel_type, self._split.template

    def written_for(self, spec: DeviceSpec) -> Task:
        """The same task on the equal chip *spec*, with nothing written yet."""
        twin = copy(self)
        for name in ("_programs", "_chip"):
            vars(twin).pop(name, None)
        twin._spec, twin._progress = spec, None
        if twin.plan is not None:
            twin.plan = replace(twin.plan, workspaces=dict(twin.plan.workspaces))
        return twin

    def check(self) -> None:
        """Write and check the programs; refuse a chip that cannot run them."""
        _ = self._programs  # written and checked on first access

    def compute(self, tensors: list[GlobalTensor], model: chip.Model) -> None:
        """Compute the values of *tensors*, as from :func:`place`; raises TrapError."""
        blocks, orders = self._programs.blocks, self._programs.orders
        if self._forgiven:
            self._judge(tensors, model)
        chip.compute(blocks, tensors, self._spec, orders, model, progress=self._progress)

    def _judge(self, tensors: list[GlobalTensor], model: chip.Model) -> None:
        """Warn of tolerated hazards; a race counts if another order gives other bytes."""
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
        """Computes values of the same shapes repeatedly; None for large launches."""
        return Replay.of(self._programs.blocks, self._spec, self._programs.orders)

    def nbytes(self, trace: Trace | None) -> int:
        """Approximate memory of its programs, once they are checked, and of *trace* if given."""
        own = _programs_bytes(self._programs) if "_programs" in vars(self) else 0
        return own + (_trace_bytes(trace) if trace else 0)

    def trace(self, l2: L2State, every_core: bool, engine: Engine) -> Trace:
        """When each micro-op runs with *l2* at launch, timed by *engine*; *every_core* times each
        core separately.

        Raises TrapError for a kernel that certainly traps.
        """
        make = partial(self._timed, l2, every_core, engine)
        if self.key is None:
            return make()
        # Traces of unchecked programs are stored separately, since these may be invalid.
        name = "trace" if self._is_checked else "trace of unchecked"
        part = name, device_key(self._spec), key_of(l2), bool(every_core), engine
        # A folder cannot store the final state of a card's caches.
        if self._stored is not None and not isinstance(l2, chip.Arrival):
            make = partial(self._stored.get, (self.key, *part), self._blocks, make)
        return CACHE.get(self.key, make, _trace_bytes, part)

    def cycles_on(self, spec: DeviceSpec, l2: L2State, every_core: bool, engine: Engine) -> int:
        """The cycles of the slowest core on *spec*, a chip with other costs of micro-ops.

        The programs are those of the chip of the task.
        """
        make = partial(self._timed, l2, every_core, engine, spec)
        if self.key is None:
            return make().cycles
        part = "cycles", device_key(spec), key_of(l2), bool(every_core), engine
        if self._stored is not None:
            make = partial(self._stored.get, (self.key, *part), self._blocks, make)
        return CACHE.get(self.key, lambda: make().cycles, lambda _: 0, part)

    def _blocks(self) -> tuple[Block, ...]:
        """The programs; if they are only timed, they need not be checked."""
        return self._programs.blocks if "_programs" in vars(self) else self._built()

    @cached_property
    def key(self) -> Hashable:
        """The key of everything cached for it; None if nothing is."""
        if self._is_own:
            return None
        operator = self._operator
        functions = operator.tile, operator.build, operator.flags_may_stay_up
        # The chip's name only appears in refusals, which are not cached.
        chip_key = device_key(self._chip, "name")
        try:
            parts = key_of(self.problem), self._plan_key, key_of(self._queues)
            return operator.name, functions, chip_key, *parts
        except TypeError:
            return None

    @property
    def _plan_key(self) -> Hashable:
        try:
            return key_of(self.plan)
        except TypeError:
            return device_key(self._spec)  # the plan of a problem depends on it

    @cached_property
    def _chip(self) -> DeviceSpec:
        """The chip as programs are written for it; a custom kernel may read all of it."""
        return self._spec if self._is_own else self._spec.for_programs

    @cached_property
    def _programs(self) -> Programs:
        if self.key is None:
            return self._written()
        return CACHE.get(self.key, self._written, _programs_bytes, "programs")

    def _timed(
        self, l2: L2State, every_core: bool, engine: Engine, spec: DeviceSpec | None = None
    ) -> Trace:
        # Processes of SimPy leave cyclic garbage; the tables of the compiled engine do not.
        with nullcontext() if engine == "simpy" else uncollected(), self._used(spec or self._spec):
            blocks = self._programs.blocks if self._is_checked else self._blocks()
            tensors = place(self.problem, self._split, False)
            chosen = spec or self._spec
            return chip.time(
                *(in_waves(blocks, chosen), tensors, chosen),
                l2=l2,
                every_core=every_core,
                engine=engine,
                progress=None if spec else self._progress,
                is_checked=self._is_checked,
            )

    @property
    def _split(self) -> ops.Plan:
        assert self.plan is not None
        return self.plan

    def _written(self) -> Programs:
        blocks = self._built() if self._progress is None else self._watched(self._progress)
        is_lenient = isinstance(self.problem, UserProblem) and not self.problem.is_strict
        try:
            check_at_once(blocks, self._spec)
            with forgiving(self._forgiven.append) if is_lenient else nullcontext():
                orders = chip.verify(
                    *(blocks, self._chip),
                    self._fresh_bytes(),
                    # The vendor's kernels do not write outputs that a call does not request, and
                    # rows that belong to no group.
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
        """The sizes of outputs whose bytes are undefined until the kernel writes them."""
        outputs, updated = self.problem.outputs, self.problem.updated
        return {name: spec.nbytes for name, spec in outputs.items() if name not in updated}

    def _used(self, spec: DeviceSpec) -> AbstractContextManager[None]:
        """The context in which it is timed on *spec*: with what launches of other values have
        written and decoded, unless programs are checked."""
        if self._is_checked or self.key is None or not self._operator.value_dependent_inputs:
            return nullcontext()
        shapes = key_of(unvalued(self.problem, ())), self._plan_key, key_of(self._queues)
        key = "shared", self._operator.name, device_key(spec), *shapes
        return CACHE.get(key, Shared, lambda _: SHARED_BYTES).used()

    def _watched(self, progress: Progress) -> tuple[Block, ...]:
        """The programs; *progress* receives each as a share of one per started core."""
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
        """The program of each core; refuses a chip that cannot hold an operator's tiles."""
        try:
            with deeper(self._queues), uncollected():
                return self._operator.build(self._chip, self.problem, self._split)
        except ProgramError as error:
            if isinstance(self.problem, UserProblem):
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


SHARED_BYTES = 4 << 20
"""Approximate memory of what launches of one shape share."""


@dataclass(frozen=True, slots=True)
class CyclesOn:
    """Finds the cycles of the programs of *task* on a chip, with the same L2 state."""

    task: Task
    l2: L2State
    every_core: bool

    def __call__(self, device: DeviceSpec) -> int:
        # All engines give the same times.
        return self.task.cycles_on(device, self.l2, self.every_core, quickest())

    def written_for(self, spec: DeviceSpec) -> CyclesOn:
        """The same for the programs on *spec*, which is equal to the chip of the task."""
        return replace(self, task=self.task.written_for(spec))


# ---- tensors ----


def place(problem: ops.Problem, plan: ops.Plan, with_values: bool) -> list[GlobalTensor]:
    """Outputs, inputs and workspaces in global memory, in that order."""
    tensors = allocated(problem, with_values)
    placed = {tensor.name for tensor in tensors}
    tensors += [operand.place() for operand in problem.inputs if operand.name not in placed]
    for name, nbytes in plan.workspaces.items():
        # Reading bytes that were never written must show.
        data = np.full(nbytes, UNWRITTEN, np.uint8) if with_values else None
        tensors.append(GlobalTensor(name, nbytes, data))
    return tensors


def allocated(problem: ops.Problem, with_values: bool) -> list[GlobalTensor]:
    """The outputs of *problem*; with *with_values*, in their state before a kernel runs."""
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


# ---- cached memory ----


def _programs_bytes(programs: Programs) -> int:
    """Approximate memory of *programs*."""
    launch = LaunchTable.of(programs.blocks)
    bodies = {*launch.bodies, *(leaf for body in launch.bodies for leaf in body.leaves)}
    parts = sum(len(body.parts) for body in bodies)
    parts += sum(len(x.parts) for x in launch.programs if not isinstance(x, TabledProgram))
    orders = sum(len(order) for order in programs.orders.values() if not isinstance(order, range))
    objects = BODY_BYTES * len(bodies) + BLOCK_BYTES * len(programs.blocks)
    return objects + WRITTEN_BYTES * parts + POINTER_BYTES * orders + launch.nbytes


def _trace_bytes(trace: Trace) -> int:
    """Memory of *trace*; its programs are another part of the entry."""
    return trace.nbytes
