"""msd per_group: digits of groups, multiplied and combined a pack of groups at a time.

.. code-block:: text

    vector cores  groups of x: largest magnitudes, sums, three digits, to global memory
    cube cores    step by step: digits @ weight of each group of the pack, into a slot of the ring
    vector cores  meanwhile the step before: products scaled by row and column and added to sums;
                  y after the last pack of a round

n is split into rounds, k into packs of 1024; a step is a pack of a round. In a step all cube cores
share the products, and all vector cores combine them, each for a strip of columns and some rows,
whose sums stay in its unified buffer. The ring lets cube cores run ahead: all vector cores
wait for each other whenever they have read half of it, and let the cube cores write it again.

ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2 op_kernel/*_msd_split_k.h, op_host/op_tiling/
*_tiling_msd.cpp. Assumed are the order in which products are shared out to cube cores, that no more
of these are launched than a step has products, and how many groups are combined at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import NamedTuple

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Duplicate
from npusim.kernel import chain
from npusim.kernel.builder import Builder
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube import GmTile
from npusim.kernel.launch import mixed_launch, share
from npusim.kernel.plane import Plane, by_row, multiply_add
from npusim.kernel.program import Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, repeat
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits.group_cube import GroupCube
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits.group_sums import (
    GroupEpilogue,
    GroupOperands,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits.groups import (
    ALL_VECTORS,
    DIGITS_READY,
    PRODUCTS_READ,
    PRODUCTS_READY,
    GroupProducts,
    GroupSplitter,
    group_views,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.plan import Plan
from npusim.ops.npu_weight_quant_batchmatmul.templates.workspaces import (
    bindings,
    ring_slot,
    workspace_bytes,
)

__all__ = ["PerGroupPlan", "build", "steps", "tile"]

ALL_CUBES = 4
"""Flag at which all cube cores wait for each other."""

# ---- how the work is split ----

PACK_K = 1024
"""k of a pack of groups."""
BLOCK_N = 1024
"""Columns that a cube core multiplies a group by."""
STRIP_N = 128
"""Columns of a vector core in a full round; strips are multiples of it."""
RING_ELEMENTS = 18 * 1024 * 256
MAX_HALF_RING = 8
"""Slots of half of the ring."""
MAX_DIGITS_K = 12288
"""k that is written in digits at a time."""
PRODUCT_BYTES = 32768
"""Of products that a vector core loads at a time, if one group is not more; assumed."""


@dataclass(frozen=True, slots=True)
class PerGroupPlan(Plan):
    """How groups, rows and columns are split."""

    digits_k: int
    """k that a vector core writes in digits at a time."""
    round_n: int
    pack_groups: int
    strip_n: int
    """Columns of a vector core; of each strip it has `strip_m` rows."""
    strip_m: int
    ring_slots: int
    """A slot holds the products of a step; vector cores give back half of the ring at a time."""
    joint_groups: int
    """Groups that are combined at a time."""


def tile(spec: DeviceSpec, p: Problem) -> PerGroupPlan:
    """Split a call on *spec*."""
    f, products = p.traits, GroupProducts.of(p)
    aic, groups = spec.cores["aic"].count, f.k // f.group_size
    round_n = min(STRIP_N * 2 * aic, f.n)
    pack = min(PACK_K // f.group_size, groups)
    block_dim = min(aic, ceil_div(round_n, BLOCK_N) * pack)
    strip_n = align_up(ceil_div(round_n, 2 * block_dim), STRIP_N)
    # Vector cores that are left over share the rows of a strip.
    parts = max(1, 2 * block_dim // ceil_div(round_n, strip_n))
    strip_m = ceil_div(f.m, parts)
    # A slot of the ring: (pack groups x terms x m, round_n)
    slot_rows = pack * products.digit_rows
    half_ring = min(max(RING_ELEMENTS // (slot_rows * round_n), 1), MAX_HALF_RING)
    ring = GmView.of("products", products.dtype, 2 * half_ring * slot_rows, round_n)
    group_bytes = products.dtype.nbytes(products.terms * strip_m * strip_n)
    return PerGroupPlan(
        template=p.choice.template,
        form=p.choice.form,
        reason=p.choice.reason,
        block_dim=block_dim,
        is_mix=True,
        workspaces=workspace_bytes(*group_views(f), ring),
        digits_k=_digits_k(f.k, f.n),
        round_n=round_n,
        pack_groups=pack,
        strip_n=strip_n,
        strip_m=strip_m,
        ring_slots=2 * half_ring,
        joint_groups=max(1, min(pack, PRODUCT_BYTES // group_bytes)),
    )


def _digits_k(k: int, n: int) -> int:
    """k of a piece: all, a quarter where k is much longer than n, or less so that it fits."""
    count = 4 if k // n >= 30 else 1
    while align_up(ceil_div(k, count), PACK_K) > MAX_DIGITS_K:
        count += 1
    return align_up(ceil_div(k, count), PACK_K)


class Step(NamedTuple):
    """A pack of groups in a round of columns."""

    group: int
    groups: int
    column: int
    products: GmView
    """Its slot of the ring, `(groups x terms x m, columns)`."""
    is_first: bool
    """Of its round; `is_last` likewise."""
    is_last: bool
    waits: bool
    """Whether cube cores wait for its half of the ring; `releases` for vector cores: `RingSlot`."""
    releases: bool


def steps(p: Problem, plan: PerGroupPlan) -> Iterator[Step]:
    """All steps, a round after the other."""
    f, products = p.traits, GroupProducts.of(p)
    ring_rows = plan.ring_slots * plan.pack_groups * products.digit_rows
    ring = GmView.of("products", products.dtype, ring_rows, plan.round_n)
    packs = tuple(pieces(f.k // f.group_size, plan.pack_groups))
    count = len(packs) * ceil_div(f.n, plan.round_n)
    index = 0
    for column, columns in pieces(f.n, plan.round_n):
        for group, groups in packs:
            slot = ring_slot(ring, plan.ring_slots, index, count)
            yield Step(
                group=group,
                groups=groups,
                column=column,
                products=slot.view[: groups * products.digit_rows, :columns],
                is_first=group == 0,
                is_last=group == packs[-1][0],
                waits=slot.waits,
                releases=slot.releases,
            )
            index += 1


class Round(NamedTuple):
    """The steps of some columns."""

    column: int
    number: int
    """The same for rounds of the same steps."""
    steps: tuple[Step, ...]
    """With columns counted from `column`."""


def rounds(every: Iterable[Step]) -> Iterator[Round]:
    """*every* step, by rounds."""
    numbers: dict[tuple[Step, ...], int] = {}
    for column, of_round in groupby(every, key=lambda step: step.column):
        own = tuple(step._replace(column=0) for step in of_round)
        yield Round(column, numbers.setdefault(own, len(numbers)), own)


# ---- who does what ----


def build(spec: DeviceSpec, p: Problem, plan: PerGroupPlan) -> tuple[Block, ...]:
    """Three blocks a group: a cube core and its two vector cores."""
    cube, vector = _CubeCore(spec, p, plan), _VectorCore(spec, p, plan)
    every, bound = tuple(rounds(steps(p, plan))), bindings(p, plan)
    return mixed_launch(
        plan.block_dim,
        lambda _: bound,
        lambda group: cube.program(every, group),
        lambda group, half: vector.program(every, 2 * group + half),
    )


class _Task(NamedTuple):
    """A product of a cube core: a group of the pack, and columns of the round."""

    group: int
    column: int
    columns: int


class _CubeCore:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: PerGroupPlan) -> None:
        self._f, self._plan, self._products = p.traits, plan, GroupProducts.of(p)
        self._builder = Builder(p.choice.template, spec.cores["aic"], spec.sync)
        columns, max_k = min(BLOCK_N, plan.round_n), plan.pack_groups * p.traits.group_size
        self._cube = GroupCube(self._builder, p, columns, max_k, depth=2)

    def program(self, every: tuple[Round, ...], core: int) -> Program:
        """The program of cube core number *core*."""
        builder, weight = self._builder, self._cube.weight
        builder.cross_core_wait_flag("group", "mte2", DIGITS_READY)
        for column, number, of_round in every:
            shifts = {weight.name: weight.shift(column)}
            builder.call((number, core), shifts, partial(self._round, of_round, core))
        return builder.build()

    def _round(self, every: tuple[Step, ...], core: int) -> None:
        """The share of *core* of the steps of a round."""
        cube, size = self._cube, self._f.group_size
        for step in every:
            k, count, columns = step.group * size, step.groups * size, step.products.columns
            repeat(
                self._builder,
                self._multiply,
                self._tasks(step.groups, columns, core),
                step.waits,
                cube.digits.tile(0, self._products.digit_rows, k, count),
                cube.weight.tile(step.column, columns, k, count),
                step.products,
            )

    def _tasks(self, groups: int, columns: int, core: int) -> tuple[_Task, ...]:
        """The share of *core*: a run of the groups of one block of columns after the other."""
        every = [
            _Task(group, column, width)
            for column, width in pieces(columns, BLOCK_N)
            for group in range(groups)
        ]
        run = share(len(every), self._plan.block_dim, core)
        return tuple(every[run.start : run.stop])

    def _multiply(
        self,
        tasks: tuple[_Task, ...],
        waits: bool,
        digits: GmTile,
        weight: GmTile,
        products: GmView,
    ) -> None:
        """(terms x m, k) digits @ (k, columns) of the weight, group by group: see `Step`."""
        builder, rows = self._builder, self._products.digit_rows
        if waits:
            builder.cross_core_wait_flag("group", "fixpipe", PRODUCTS_READ)
        if tasks:
            # (terms x m, k of the pack) of digits, for all tasks of the step
            in_l1 = self._cube.load_digits(digits.k)
            for group, column, columns in tasks:
                # (terms x m, columns) of the group in the slot
                of_group = products[group * rows : (group + 1) * rows, column : column + columns]
                self._cube.multiply(in_l1, weight.k, group, column, of_group)
            self._cube.release(in_l1)
        sync_all(builder, "fixpipe", "fixpipe", event=ALL_CUBES, group_event=PRODUCTS_READY)


class _VectorCore:
    """The kernel of a vector core: digits first, then its strip of each round.

    The second stage claims the unified buffer anew.
    """

    def __init__(self, spec: DeviceSpec, p: Problem, plan: PerGroupPlan) -> None:
        self._f, self._plan = p.traits, plan
        self._builder = Builder(p.choice.template, spec.cores["aiv"], spec.sync)
        self._max_groups = min(plan.digits_k, p.traits.k) // p.traits.group_size
        self._splitter = GroupSplitter(self._builder, p, self._max_groups, loads_ahead=False)
        self._builder.reset_buffers()
        self._sums = _StripSums(self._builder, p, plan)

    def program(self, every: tuple[Round, ...], core: int) -> Program:
        """The program of vector core number *core*."""
        builder, plan = self._builder, self._plan
        self._write_digits(core)
        builder.end_stage()
        sync_all(builder, "mte3", "mte2", event=ALL_VECTORS, group_event=DIGITS_READY)
        # A strip of columns of each round, and a part of its rows
        part, strip = divmod(core, ceil_div(plan.round_n, plan.strip_n))
        row, left = part * plan.strip_m, strip * plan.strip_n
        rows = slice(row, min(row + plan.strip_m, self._f.m))
        for column, number, of_round in every:
            right = min(left + plan.strip_n, of_round[0].products.columns)
            if rows.stop > rows.start and right > left:
                here = slice(column + left, column + right)
                self._sums.add_round(number, of_round, rows, left, here)
            else:
                builder.call(("idle", number), {}, partial(self._idle_round, of_round))
        return builder.build()

    def _write_digits(self, core: int) -> None:
        """Write this core's run of the pieces of all rows."""
        f = self._f
        every = [
            (row, group, groups)
            for row in range(f.m)
            for group, groups in pieces(f.k // f.group_size, self._max_groups)
        ]
        run = ceil_div(len(every), 2 * self._plan.block_dim)
        for row, group, groups in every[core * run : (core + 1) * run]:
            self._splitter.write(row, group, groups)

    def _idle_round(self, every: tuple[Step, ...]) -> None:
        """A round of a core that has no part of its columns or rows."""
        for step in every:
            repeat(self._builder, self._idle, step.releases)

    def _idle(self, releases: bool) -> None:
        """A step of a core that has no part of its columns or rows."""
        self._builder.cross_core_wait_flag("group", "mte2", PRODUCTS_READY)
        if releases:
            self._sums.release_half()


# ---- the last stage: products of digits to y ----


class _StripSums:
    """Adds up the groups of a strip of columns, and makes the output of it."""

    def __init__(self, builder: Builder, p: Problem, plan: PerGroupPlan) -> None:
        self._builder, self._f, self._plan = builder, p.traits, plan
        self._terms = GroupProducts.of(p).terms
        count = plan.strip_m * plan.strip_n
        self._sums = builder.claim("ub", FLOAT32.nbytes(count))
        self._epilogue = GroupEpilogue(builder, p, plan.strip_m, plan.strip_n)
        self._operands = GroupOperands(
            builder,
            p,
            max_rows=plan.strip_m,
            max_columns=plan.strip_n,
            scale_groups=plan.pack_groups,
            number_groups=plan.pack_groups,
            max_products=plan.joint_groups * count,
        )

    def add_round(
        self, number: int, every: tuple[Step, ...], rows: slice, left: int, columns: slice
    ) -> None:
        """Add *every* step of round *number* to the sums of *rows* and *columns* of the output.

        The columns begin at *left* of the round.
        """
        width = columns.stop - columns.start
        # Strips of the same width differ by where they begin in each tensor.
        first = self._views(every[0], rows, 0, slice(0, width))
        shifts = {
            here.name: here.offset_bytes - there.offset_bytes
            for here, there in zip(self._views(every[0], rows, left, columns), first, strict=True)
            if here is not None and there is not None
        }
        key = number, rows.start, rows.stop, width
        self._builder.call(key, shifts, partial(self._add_steps, every, rows, width))

    def _add_steps(self, every: tuple[Step, ...], rows: slice, width: int) -> None:
        """Add *every* step of a round to the sums of *rows* and the first *width* columns."""
        for step in every:
            views = self._views(step, rows, 0, slice(0, width))
            of_step = step.is_first, step.is_last, step.releases
            repeat(self._builder, self._add, *of_step, *views)

    def _views(
        self, step: Step, rows: slice, left: int, columns: slice
    ) -> tuple[GmView | None, ...]:
        """What *step* touches in global memory for *rows* and *columns* of the output.

        The columns begin at *left* of the products.
        """
        groups = slice(step.group, step.group + step.groups)
        # From these rows of the first digit of the first group to those of the last.
        span = slice(rows.start, rows.stop + step.products.rows - self._f.m)
        in_products = slice(left, left + columns.stop - columns.start)
        return (
            step.products[span, in_products],
            *self._epilogue.views(rows, columns),
            *self._operands.views(rows, groups, columns),
        )

    def release_half(self) -> None:
        """Let cube cores write half of the ring again, once all vector cores have read it."""
        sync_all(self._builder, "mte2", "mte2", event=ALL_VECTORS, group_event=PRODUCTS_READ)

    def _add(
        self,
        is_first: bool,
        is_last: bool,
        releases: bool,
        products: GmView,
        output: GmView,
        bias: GmView | None,
        scale: GmView,
        offset: GmView | None,
        absmax: GmView,
        row_sums: GmView | None,
    ) -> None:
        """Products of a pack `(groups, terms, rows, columns)`; see `Step`."""
        builder, groups = self._builder, scale.rows
        sums = Plane(self._sums, output.rows, output.columns)
        # (rows, groups) of the pack, then (groups, columns)
        self._operands.load_rows(absmax, row_sums)
        self._operands.scales.load(scale, offset)
        if is_first:
            chain.step(builder, Duplicate(sums.whole(), 0.0))
        # All offsets of the pack come before its products.
        for group in range(groups):
            self._operands.add_offset(sums, group, group)
        builder.cross_core_wait_flag("group", "mte2", PRODUCTS_READY)
        for group, count in pieces(groups, self._plan.joint_groups):
            is_read = releases and group + count == groups
            self._add_products(sums, products, group, count, is_read)
        if is_last:
            self._epilogue.write(sums, output, bias)

    def _add_products(
        self, sums: Plane, products: GmView, first: int, count: int, is_read: bool
    ) -> None:
        """sums += absmax * (product * scale), for *count* groups of the pack from *first* on.

        *is_read* says that half of the ring has been read with them.
        """
        builder, operands, m, rows = self._builder, self._operands, self._f.m, sums.rows
        tops = range(first * self._terms * m, (first + count) * self._terms * m, m)
        # (rows, columns) of each digit of each group; all rows come in one copy.
        if rows == m:
            views = [products[tops.start : tops.stop, :]]
        else:
            views = [products[top : top + rows, :] for top in tops]
        after_load = self.release_half if is_read else None
        slot, planes = operands.load_products(views, count, rows, sums.columns, after_load)
        for group, plane in enumerate(planes, start=first):
            # (rows, columns) x (columns,), then sums += (rows, 1) x (rows, columns)
            by_row(builder, "mul", plane, operands.scales.scale(group))
            multiply_add(builder, sums, operands.absmax.of(group), plane, operands.absmax.pitch)
        operands.release(slot)
