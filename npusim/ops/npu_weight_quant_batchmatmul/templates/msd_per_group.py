"""msd per_group: digits of groups, multiplied and put together a pack of groups at a time.

n is worked off in rounds, k in packs of 1024. In a step, a pack of a round, all cube cores share
the products of its groups, which all vector cores put together and add to sums in the unified
buffer, each for a strip of columns and some rows. Products lie in a ring: cube cores run ahead.

ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2 op_kernel/*_msd_split_k.h, op_host/op_tiling/
*_tiling_msd.cpp. Assumed are the order in which products are dealt to cube cores, that no more of
these are launched than a step has products, and how many groups are put together at a time.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Global
from npusim.kernel.builder import Builder
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.rows import pieces
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_cube import GroupCube
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_digits import (
    FILLED,
    READ,
    READY,
    DigitWriter,
    meet,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_per_group_plan import (
    BLOCK_N,
    PerGroupPlan,
    Step,
    steps,
    tile,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_per_group_sums import StripSums

__all__ = ["PerGroupPlan", "build", "tile"]

MULTIPLIED = 4
"""Flag among cube cores."""


def build(spec: DeviceSpec, p: Problem, plan: PerGroupPlan) -> tuple[Block, ...]:
    """Three blocks a group: a cube core and its two vector cores."""
    cube, vector = _CubeSide(spec, p, plan), _VectorSide(spec, p, plan)
    every = tuple(steps(p, plan))
    names = (*(x.name for x in p.inputs), "output", *plan.workspaces)
    bindings = {name: Binding(name) for name in names}
    blocks = []
    for group in range(plan.block_dim):
        first = 3 * group
        blocks.append(Block(first, "aic", cube.program(every, group), bindings, group))
        for half in (0, 1):
            program = vector.program(every, 2 * group + half)
            blocks.append(Block(first + 1 + half, "aiv", program, bindings, group))
    return tuple(blocks)


class _Task(NamedTuple):
    """A product of a cube core: a group of the pack, and columns of the round."""

    group: int
    column: int
    columns: int


class _CubeSide:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: PerGroupPlan) -> None:
        self._p, self._plan = p, plan
        self._builder = Builder(p.choice.template, spec.cores["aic"], spec.sync)
        wide = min(BLOCK_N, plan.round_n)
        self._cube = GroupCube(self._builder, p, wide, plan.pack_groups * p.traits.group_size, 2)

    def program(self, every: tuple[Step, ...], core: int) -> Program:
        """The program of cube core number *core*."""
        builder, cube, plan = self._builder, self._cube, self._plan
        builder.call("ready", {}, self._await)
        for step in every:
            tasks = self._tasks(step, core)
            k = step.group * self._p.traits.group_size
            shifts = {
                "digits": cube.digits.shift_k(k),
                "weight": cube.weight.shift_k(k) + cube.weight.shift(step.column),
                "products": step.number % plan.places * plan.place_bytes,
            }
            key = tasks, step.groups, step.waits
            builder.call(key, shifts, partial(self._write, *key))
        return builder.build()

    def _await(self) -> None:
        self._builder.cross_core_wait_flag("group", "mte2", READY)

    def _tasks(self, step: Step, core: int) -> tuple[_Task, ...]:
        """The share of *core*: a run of the groups of one block of columns after the other."""
        every = [
            _Task(group, column, columns)
            for column, columns in pieces(step.columns, BLOCK_N)
            for group in range(step.groups)
        ]
        each, more = divmod(len(every), self._plan.block_dim)
        start = core * each + min(core, more)
        return tuple(every[start : start + each + (core < more)])

    def _write(self, tasks: tuple[_Task, ...], groups: int, waits: bool) -> None:
        builder, size = self._builder, self._p.traits.group_size
        products = self._cube.products
        pitch = products.dtype.nbytes(self._plan.round_n)
        if waits:
            builder.cross_core_wait_flag("group", "fixpipe", READ)
        if tasks:
            held = self._cube.hold(groups * size)
            for group, column, columns in tasks:
                first = group * products.digit_rows * pitch + products.dtype.nbytes(column)
                to = Global("products", first, pitch, 1, pitch)
                at = group * size
                self._cube.multiply(held, at, at, column, columns, to)
            self._cube.drop(held)
        builder.cross_core_set_flag("all", "fixpipe", MULTIPLIED)
        builder.cross_core_wait_flag("all", "fixpipe", MULTIPLIED)
        builder.cross_core_set_flag("group", "fixpipe", FILLED)


class _VectorSide:
    """The kernel of a vector core: digits first, then its strip of each round.

    The second stage claims the unified buffer anew.
    """

    def __init__(self, spec: DeviceSpec, p: Problem, plan: PerGroupPlan) -> None:
        self._p, self._plan = p, plan
        self._builder = Builder(p.choice.template, spec.cores["aiv"], spec.sync)
        size = p.traits.group_size
        self._most = min(plan.digits_k, p.traits.k) // size
        self._digits = DigitWriter(self._builder, p, self._most)
        self._builder.reset_buffers()
        self._sums = StripSums(self._builder, p, plan)

    def program(self, every: tuple[Step, ...], core: int) -> Program:
        """The program of vector core number *core*."""
        builder, plan = self._builder, self._plan
        self._write_digits(core)
        builder.end_stage()
        builder.call("ready", {}, self._tell)
        for step in every:
            strips = ceil_div(plan.round_n, plan.strip_n)
            part, strip = divmod(core, strips)
            row, start = part * plan.strip_m, strip * plan.strip_n
            rows = max(0, min(plan.strip_m, self._p.traits.m - row))
            columns = max(0, min(plan.strip_n, step.columns - start))
            if rows and columns:
                self._sums.add(step, (row, rows), (start, columns))
            else:
                builder.call(("idle", step.tells), {}, partial(self._idle, step.tells))
        return builder.build()

    def _write_digits(self, core: int) -> None:
        """Write this core's run of the pieces of all rows."""
        f = self._p.traits
        every = [
            (row, group, groups)
            for row in range(f.m)
            for group, groups in pieces(f.k // f.group_size, self._most)
        ]
        run = ceil_div(len(every), 2 * self._plan.block_dim)
        for row, group, groups in every[core * run : (core + 1) * run]:
            self._digits.write(row, group, groups)

    def _tell(self) -> None:
        meet(self._builder)
        self._builder.cross_core_set_flag("group", "mte2", READY)

    def _idle(self, tells: bool) -> None:
        self._builder.cross_core_wait_flag("group", "mte2", FILLED)
        self._sums.tell(tells)
