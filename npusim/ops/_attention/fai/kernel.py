"""The programs of FAI: a cube core and its two vector cores for each group.

Sources: see :mod:`npusim.ops._attention.fai`. Assumed: that each core reads both lengths of each
request, up to that of its task, when it looks for the task.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from npusim.data.dtypes import INT64
from npusim.devices.schema import DeviceSpec
from npusim.isa import ScalarLoadGlobal
from npusim.kernel.builder import Builder
from npusim.kernel.cross_core import sync_all
from npusim.kernel.launch import mixed_launch
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.views import GmView, repeat
from npusim.ops._attention.description import Attention
from npusim.ops._attention.fai.combine import ALL_STORED, Combiner
from npusim.ops._attention.fai.cube import CubeCore
from npusim.ops._attention.fai.places import Places
from npusim.ops._attention.fai.split import Work
from npusim.ops._attention.fai.tasks import Form, Task
from npusim.ops._attention.fai.tiling import Plan, Workspaces
from npusim.ops._attention.fai.vector import VectorCore

__all__ = ["build"]

NAME = "fai"
LENGTHS_OF_A_LINE = 8
"""Lengths in 64 bytes, a line of the scalar unit's cache."""


def build(spec: DeviceSpec, a: Attention, plan: Plan) -> tuple[Block, ...]:
    """Three blocks a group."""
    places, work = Places(a), plan.work
    cube, vector = _Cube(spec, a, places), _Vector(spec, a, places, work)
    sizes = Workspaces(a).group_bytes
    # All cores read the pieces of each other.
    shared = {name: Binding(name) for name in plan.workspaces if name not in sizes}

    def bindings(group: int) -> dict[str, Binding]:
        own = {name: Binding(name, group * nbytes) for name, nbytes in sizes.items()}
        return places.bindings | own | shared

    return mixed_launch(plan.block_dim, bindings, lambda i: cube.program(work.tasks[i]), vector)


class _Core:
    """What cube and vector cores have in common: they look for their tasks, and work on them."""

    def __init__(self, builder: Builder, places: Places) -> None:
        self._builder, self._places = builder, places

    def _write(self, tasks: tuple[Task, ...], write: Callable[[Form], None], kind: object) -> None:
        """All *tasks* of a core; *write* writes one of them, as *kind* tells."""
        request = -1
        for task in tasks:
            for number in range(request + 1, task.request + 1):
                views = self._places.lengths(number)
                is_cached = number > 0 and number % LENGTHS_OF_A_LINE > 0
                repeat(self._builder, self._look_at, is_cached, *views)
            request = task.request
            shifts = self._places.shifts(task)
            self._builder.call((kind, task.form), shifts, partial(write, task.form))

    def _look_at(self, is_cached: bool, *lengths: GmView) -> None:
        """Read the lengths of a request."""
        for view in lengths:
            self._builder.emit(ScalarLoadGlobal("length", view.operand, INT64, is_cached))


class _Cube(_Core):
    """Programs of cube cores."""

    def __init__(self, spec: DeviceSpec, a: Attention, places: Places) -> None:
        super().__init__(Builder(NAME, spec.cores["aic"], spec.sync), places)
        self._core = CubeCore(self._builder, a, places)

    def program(self, tasks: tuple[Task, ...]) -> Program:
        self._write(tasks, self._core.task, "cube")
        return self._builder.build()


class _Vector(_Core):
    """Programs of vector cores; where tasks are split, they end with a stage that combines."""

    def __init__(self, spec: DeviceSpec, a: Attention, places: Places, work: Work) -> None:
        # The vendor's tensors take all of the unified buffer.
        super().__init__(Builder(NAME, spec.cores["aiv"], spec.sync, alone=True), places)
        self._core, self._work = VectorCore(self._builder, spec, a, places), work
        self._combiner: Combiner | None = None
        if work.nodes:
            self._builder.reset_buffers()
            most = max(node.pieces for node in work.nodes)
            self._combiner = Combiner(self._builder, spec, a, places, most)

    def __call__(self, group: int, half: int) -> Program:
        """The program of vector core *half*, 0 or 1, of *group*."""
        builder, work = self._builder, self._work
        self._write(work.tasks[group], partial(self._core.task, half=half), half)
        if self._combiner is not None:
            repeat(builder, builder.end_stage)
            repeat(builder, sync_all, builder, "mte3", "mte2", ALL_STORED)
            for node in work.nodes[group :: len(work.tasks)]:
                self._combiner.node(node, half)
        return builder.build()
