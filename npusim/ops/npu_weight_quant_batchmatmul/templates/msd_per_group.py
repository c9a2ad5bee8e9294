"""msd per_group: digits of groups, multiplied and combined a pack of groups at a time.

.. code-block:: text

    vector cores  groups of x: largest magnitudes, sums, three digits, to global memory
    cube cores    step by step: digits @ weight of each group of the pack, into a slot of the ring
    vector cores  meanwhile the step before: products scaled by row and column and added to sums;
                  y after the last pack of a round

n is split into rounds, k into packs of 1024; a step is a pack of a round. In a step all cube cores
share the products, and all vector cores combine them, each for a strip of columns and some rows,
whose sums stay in its unified buffer. The ring lets cube cores run ahead: whenever all vector cores
have read half of it, they wait for each other and let the cube cores refill it.

ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2 op_kernel/*_msd_split_k.h, op_host/op_tiling/
*_tiling_msd.cpp. Assumed are the order in which products are assigned to cube cores, that no more
of these are launched than a step has products, and how many groups are combined at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube_core import CubeCore
from npusim.kernel.launch import CoreSteps, launch_mixed, share
from npusim.kernel.matrices import GmTile
from npusim.kernel.plane import Plane, by_row, multiply_add
from npusim.kernel.program import Block
from npusim.kernel.rows import pieces
from npusim.kernel.steps import StageCall
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.ops.npu_weight_quant_batchmatmul.choice import scheme_of
from npusim.ops.npu_weight_quant_batchmatmul.problem import Plan, Problem, workspace_bytes
from npusim.ops.npu_weight_quant_batchmatmul.templates import msd_groups, ring_slot

ALL_CUBES = 4
"""The flag by which all cube cores wait for each other."""

# ---- how the work is split ----

PACK_K = 1024
"""k of a pack of groups."""
BLOCK_N = 1024
"""Columns by which a cube core multiplies a group."""
STRIP_N = 128
"""Columns of a vector core in a full round; strips are multiples of this."""
RING_ELEMENTS = 18 * 1024 * 256
MAX_HALF_RING = 8
"""Slots of half of the ring."""
MAX_DIGITS_K = 12288
"""k that is split into digits at a time."""
PRODUCT_BYTES = 32768
"""Bytes of products that a vector core loads at a time, if one group is not more; assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerGroupPlan(Plan):
    """How groups, rows and columns are split."""

    digits_k: int
    """k that a vector core splits into digits at a time."""
    round_n: int
    pack_groups: int
    strip_n: int
    """Columns of a vector core; it processes `strip_m` rows of each strip."""
    strip_m: int
    ring_slots: int
    """A slot holds the products of a step; vector cores release half of the ring at a time."""
    joint_groups: int
    """Groups that are combined at a time."""


def tile(spec: DeviceSpec, p: Problem) -> PerGroupPlan:
    """Split a call on *spec*."""
    f, rows, dtype = p.traits, msd_groups.product_rows(p.traits), msd_groups.product_dtype(p)
    aic, groups = spec.cores["aic"].count, f.k // f.group_size
    round_n = min(STRIP_N * 2 * aic, f.n)
    pack = min(PACK_K // f.group_size, groups)
    block_dim = min(aic, ceil_div(round_n, BLOCK_N) * pack)
    strip_n = align_up(ceil_div(round_n, 2 * block_dim), STRIP_N)
    # Idle vector cores share the rows of a strip.
    parts = max(1, 2 * block_dim // ceil_div(round_n, strip_n))
    strip_m = ceil_div(f.m, parts)
    # A slot of the ring: (pack groups x terms x m, round_n)
    slot_rows = pack * rows
    half_ring = min(max(RING_ELEMENTS // (slot_rows * round_n), 1), MAX_HALF_RING)
    ring = GmView.of("products", dtype, 2 * half_ring * slot_rows, round_n)
    group_bytes = dtype.nbytes(scheme_of(f).terms * strip_m * strip_n)
    return PerGroupPlan(
        **p.chosen,
        block_dim=block_dim,
        workspaces=workspace_bytes(*msd_groups.group_views(f), ring),
        digits_k=_digits_k(f.k, f.n),
        round_n=round_n,
        pack_groups=pack,
        strip_n=strip_n,
        strip_m=strip_m,
        ring_slots=2 * half_ring,
        joint_groups=max(1, min(pack, PRODUCT_BYTES // group_bytes)),
    )


def _digits_k(k: int, n: int) -> int:
    """k of a piece: all, a quarter if k is much longer than n, or less so that it fits."""
    count = 4 if k // n >= 30 else 1
    while align_up(ceil_div(k, count), PACK_K) > MAX_DIGITS_K:
        count += 1
    return align_up(ceil_div(k, count), PACK_K)


class Step(NamedTuple):
    """A pack of groups in a round of columns."""

    groups: slice
    columns: slice
    products: GmView
    """Its slot of the ring, `(groups x terms x m, columns)`."""
    is_first: bool
    """Whether it is the first of its round; `is_last` likewise."""
    is_last: bool
    waits: bool
    """Whether cube cores wait for its half of the ring; `releases` for vector cores: `RingSlot`."""
    releases: bool


def steps(p: Problem, plan: PerGroupPlan) -> Iterator[Step]:
    """All steps, one round after the other."""
    f, rows = p.traits, msd_groups.product_rows(p.traits)
    ring_rows = plan.ring_slots * plan.pack_groups * rows
    ring = GmView.of("products", msd_groups.product_dtype(p), ring_rows, plan.round_n)
    packs = tuple(pieces(f.k // f.group_size, plan.pack_groups))
    count = len(packs) * ceil_div(f.n, plan.round_n)
    index = 0
    for column, columns in pieces(f.n, plan.round_n):
        for group, groups in packs:
            slot = ring_slot(ring, plan.ring_slots, index, count)
            yield Step(
                groups=slice(group, group + groups),
                columns=slice(column, column + columns),
                products=slot.view[: groups * rows, :columns],
                is_first=group == 0,
                is_last=group == packs[-1][0],
                waits=slot.waits,
                releases=slot.releases,
            )
            index += 1


# ---- programs ----


def build(spec: DeviceSpec, p: Problem, plan: PerGroupPlan) -> tuple[Block, ...]:
    """Build three blocks in each group: a cube core and its two vector cores."""
    every, bound = tuple(steps(p, plan)), plan.bindings(p)
    cube, vector = _cube(spec, p, plan, every), _vector(spec, p, plan, every)
    return launch_mixed(plan.block_dim, cube, vector, lambda _: bound)


Task = tuple[int, int, int]
"""A product of a cube core: a group of the pack, the first of its columns of the round, and their
count."""


def _cube(spec: DeviceSpec, p: Problem, plan: PerGroupPlan, every: tuple[Step, ...]) -> CoreSteps:
    """The program of a cube core: its share of the products of each step."""
    core, size = CubeCore(plan.template, spec), p.traits.group_size
    rows = msd_groups.product_rows(p.traits)
    cube = msd_groups.GroupCube(
        core, p, min(BLOCK_N, plan.round_n), plan.pack_groups * size, depth=2
    )

    def multiply(
        tasks: tuple[Task, ...], waits: bool, digits: GmTile, _weight: GmTile, products: GmView
    ) -> None:
        """(terms x m, k) digits @ (k, columns) of the weight, group by group: see `Step`."""
        if waits:
            core.cross_core_wait_flag("group", "fixpipe", msd_groups.PRODUCTS_READ)
        if tasks:
            # (terms x m, k of the pack) of digits, for all tasks of the step
            in_l1 = cube.load_digits(digits.k)
            for group, column, columns in tasks:
                # (terms x m, columns) of the group in the slot
                of_group = products[group * rows : (group + 1) * rows, column : column + columns]
                cube.multiply(in_l1, group, column, of_group)
            cube.packs.free(in_l1.tile)
        sync_all(core, "fixpipe", "fixpipe", ALL_CUBES, msd_groups.PRODUCTS_READY)

    def calls(group: int) -> Iterator[StageCall]:
        yield core.cross_core_wait_flag, "group", "mte2", msd_groups.DIGITS_READY
        for step in every:
            k, groups = step.groups.start * size, step.groups.stop - step.groups.start
            columns = step.products.columns
            digits = cube.digits.tile(0, rows, k, groups * size)
            weight = cube.weight.tile(step.columns.start, columns, k, groups * size)
            tasks = _tasks(groups, columns, plan.block_dim, group)
            yield multiply, tasks, step.waits, digits, weight, step.products

    return CoreSteps.of_calls(core, plan.block_dim, calls)


def _tasks(groups: int, columns: int, cores: int, core: int) -> tuple[Task, ...]:
    """The share of *core*: a run of the groups of one block of columns after the other."""
    every = [
        (group, column, width)
        for column, width in pieces(columns, BLOCK_N)
        for group in range(groups)
    ]
    run = share(len(every), cores, core)
    return tuple(every[run.start : run.stop])


def _vector(spec: DeviceSpec, p: Problem, plan: PerGroupPlan, every: tuple[Step, ...]) -> CoreSteps:
    """The program of a vector core: digits first, then its strip of each round.

    The second stage allocates the unified buffer anew.
    """
    core, f = VectorCore(plan.template, spec), p.traits
    max_groups = min(plan.digits_k, f.k) // f.group_size
    splitter = msd_groups.GroupSplitter(core, p, max_groups, loads_ahead=False)
    core.reset_buffers()
    sums = _StripSums(core, p, plan)
    parts = [
        (row, group, groups)
        for row in range(f.m)
        for group, groups in pieces(f.k // f.group_size, max_groups)
    ]
    run = ceil_div(len(parts), 2 * plan.block_dim)

    def calls(index: int) -> Iterator[StageCall]:
        for part in parts[index * run : (index + 1) * run]:
            yield splitter.write(*part)
        yield (core.end_stage,)
        yield sync_all, core, "mte3", "mte2", msd_groups.ALL_VECTORS, msd_groups.DIGITS_READY
        # A strip of columns of each round, and a part of its rows
        part_m, strip = divmod(index, ceil_div(plan.round_n, plan.strip_n))
        row, left = part_m * plan.strip_m, strip * plan.strip_n
        rows = slice(row, min(row + plan.strip_m, f.m))
        for step in every:
            if rows.start < rows.stop and left < step.products.columns:
                yield sums.add_step(step, rows, left)
            else:
                yield sums.idle, step.releases

    return CoreSteps.of_calls(core, 2 * plan.block_dim, calls)


# ---- the last stage: products of digits to y ----


class _StripSums:
    """Sums the groups of a strip of columns, and computes the output from them."""

    def __init__(self, core: VectorCore, p: Problem, plan: PerGroupPlan) -> None:
        self.core, self.f, self.plan = core, p.traits, plan
        self.terms = scheme_of(p.traits).terms
        count = plan.strip_m * plan.strip_n
        self.sums = core.tile(FLOAT32, count)
        self.epilogue = msd_groups.GroupEpilogue(core, p, plan.strip_m, plan.strip_n)
        self.operands = msd_groups.GroupOperands(
            core,
            p,
            max_rows=plan.strip_m,
            max_columns=plan.strip_n,
            scale_groups=plan.pack_groups,
            factor_groups=plan.pack_groups,
            max_products=plan.joint_groups * count,
        )

    def add_step(self, step: Step, rows: slice, left: int) -> StageCall:
        """Add *step* to the sums of *rows* and of the strip from its column *left* on."""
        # From these rows of the first digit of the first group to those of the last.
        span = slice(rows.start, rows.stop + step.products.rows - self.f.m)
        products = step.products[span, left : left + self.plan.strip_n]
        column = step.columns.start + left
        columns = slice(column, column + products.columns)
        return (
            self._add,
            *(step.is_first, step.is_last, step.releases),
            products,
            *self.epilogue.views(rows, columns),
            *self.operands.views(rows, step.groups, columns),
        )

    def idle(self, releases: bool) -> None:
        """Serve a step on a core that has no part of its columns or rows."""
        self.core.cross_core_wait_flag("group", "mte2", msd_groups.PRODUCTS_READY)
        if releases:
            self._release_half()

    def _release_half(self) -> None:
        """Let cube cores refill half of the ring, once all vector cores have read it."""
        sync_all(
            self.core,
            "mte2",
            "mte2",
            event=msd_groups.ALL_VECTORS,
            group_event=msd_groups.PRODUCTS_READ,
        )

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
        core, operands, groups = self.core, self.operands, scale.rows
        sums = Plane(self.sums, output.rows, output.columns)
        # (rows, groups) of the pack, then (groups, columns)
        operands.load_rows(absmax, row_sums)
        operands.load_scales(scale, offset)
        if is_first:
            core.duplicate(sums.whole(), 0.0)
        # All offsets of the pack precede its products.
        for group in range(groups):
            operands.add_offset(sums, group, group)
        core.cross_core_wait_flag("group", "mte2", msd_groups.PRODUCTS_READY)
        for group, count in pieces(groups, self.plan.joint_groups):
            is_read = releases and group + count == groups
            self._add_products(sums, products, group, count, is_read)
        if is_last:
            self.epilogue.write(sums, output, bias)

    def _add_products(
        self, sums: Plane, products: GmView, first: int, count: int, is_read: bool
    ) -> None:
        """sums += absmax * (product * scale), for *count* groups of the pack from *first* on.

        With *is_read* half of the ring has been read after them.
        """
        core, operands, m, rows = self.core, self.operands, self.f.m, sums.rows
        tops = range(first * self.terms * m, (first + count) * self.terms * m, m)
        # (rows, columns) of each digit of each group; all rows are loaded in one copy.
        if rows == m:
            views = [products[tops.start : tops.stop, :]]
        else:
            views = [products[top : top + rows, :] for top in tops]
        after_load = self._release_half if is_read else None
        loaded, planes = operands.load_products(views, count, rows, sums.columns, after_load)
        for group, plane in enumerate(planes, start=first):
            # (rows, columns) x (columns,), then sums += (rows, 1) x (rows, columns)
            by_row(core, "mul", plane, operands.scale(group, sums.columns))
            multiply_add(core, sums, operands.absmax(group), plane, operands.pitch)
        operands.products_in.free(loaded)
