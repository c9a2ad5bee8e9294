"""msd_group: cores share n and k; each adds up its groups, then all add up in global memory.

.. code-block:: text

    vector cores  rows of x: largest magnitudes, sums, digits of each group; zeros over the total
    cube cores    group by group: digits @ weight, fp16 or int32, into one of two slots in turn
    vector cores  meanwhile the group before: combined, scaled, added to sums in the unified
                  buffer; at last the sums are added to the total in global memory
    vector cores  the total rounded to y, by those whose cube core is the first along k

Each vector core has half of the columns of its cube core. All vector cores wait for each other
before the cube multiplies, for digits and zeros, and before y is stored, for the total.

ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2 op_kernel/*_msd_group.h, op_host/op_tiling/
*_tiling_msd_group.cpp. There every core that shares k stores the same output; here only the first
one does. How many rows are combined at a time is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, Duplicate, Store
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube import GmTile
from npusim.kernel.launch import mixed_launch
from npusim.kernel.plane import REPEAT, Plane, by_column, by_row
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, load, repeat
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits.group_cube import GroupCube
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits.group_sums import (
    SPREAD,
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
from npusim.ops.npu_weight_quant_batchmatmul.templates.workspaces import bindings, workspace_bytes
from npusim.ops.npu_weight_quant_batchmatmul.traits import CallTraits, k_cores, k_step

__all__ = ["MsdGroupPlan", "build", "tile"]

# ---- how the work is split ----

CORE_N = 2048
"""Columns of a cube core; each of its vector cores takes half."""
SLOTS = 2
"""For the products of a cube core: one is written while the other is read."""
PRODUCT_BYTES = 32768
"""Of products that a vector core loads at a time; assumed."""
MAX_ZEROS = 32768 // FLOAT32.nbytes(1)
"""Of a store of zeros; assumed."""


@dataclass(frozen=True, slots=True)
class MsdGroupPlan(Plan):
    """How groups and columns are split over cube cores."""

    cores_k: int
    cores_n: int
    core_k: int
    """k of a core, whole groups."""
    core_n: int
    rows: int
    """Rows that are combined at a time."""


def tile(spec: DeviceSpec, p: Problem) -> MsdGroupPlan:
    """Split n by 2048, and k into whole groups, so that every share has a core of its own."""
    f, aic, products = p.traits, spec.cores["aic"].count, GroupProducts.of(p)
    cores_k, cores_n = k_cores(f, aic), ceil_div(f.n, CORE_N)
    block_dim, core_n = cores_k * cores_n, min(CORE_N, f.n)
    row_bytes = products.dtype.nbytes(products.terms * min(core_n, CORE_N // 2))
    return MsdGroupPlan(
        template=p.choice.template,
        form=p.choice.form,
        reason=p.choice.reason,
        block_dim=block_dim,
        is_mix=True,
        workspaces=workspace_bytes(*group_views(f), *block_dim * [slots_view(p)], total_view(f)),
        cores_k=cores_k,
        cores_n=cores_n,
        core_k=k_step(f, aic),
        core_n=core_n,
        rows=min(f.m, PRODUCT_BYTES // row_bytes),
    )


def slots_view(p: Problem) -> GmView:
    """Room for the products of two groups of one cube core, `(2 x terms x m, columns)`."""
    products = GroupProducts.of(p)
    rows, columns = SLOTS * products.digit_rows, min(CORE_N, p.traits.n)
    return GmView.of("products", products.dtype, rows, columns)


def total_view(f: CallTraits) -> GmView:
    """What all cores add to, float32 `(m, n)`."""
    return GmView.of("total", FLOAT32, f.m, f.n)


class Share(NamedTuple):
    """What a cube core multiplies."""

    group: int
    groups: int
    column: int
    columns: int


def share_of(p: Problem, plan: MsdGroupPlan, index: int) -> Share:
    """Cores with less k come first, so that they add first."""
    f = p.traits
    index_k, index_n = divmod(index, plan.cores_n)
    k, column = index_k * plan.core_k, index_n * CORE_N
    groups = min(plan.core_k, f.k - k) // f.group_size
    return Share(k // f.group_size, groups, column, min(CORE_N, f.n - column))


# ---- who does what ----


def build(spec: DeviceSpec, p: Problem, plan: MsdGroupPlan) -> tuple[Block, ...]:
    """Three blocks a share: a cube core and its two vector cores."""
    cube, vector = _CubeCore(spec, p, plan), _VectorCore(spec, p, plan)
    shares = [share_of(p, plan, index) for index in range(plan.block_dim)]
    bound, slots_bytes = bindings(p, plan), slots_view(p).nbytes
    return mixed_launch(
        plan.block_dim,
        lambda index: bound | {"products": Binding("products", index * slots_bytes)},
        lambda index: cube.program(shares[index]),
        lambda index, half: vector.program(shares[index], half, 2 * index + half),
    )


class _CubeCore:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: MsdGroupPlan) -> None:
        self._f, self._products, self._slots = p.traits, GroupProducts.of(p), slots_view(p)
        self._builder = Builder(p.choice.template, spec.cores["aic"], spec.sync)
        max_k = min(plan.core_k, p.traits.k)
        self._cube = GroupCube(self._builder, p, plan.core_n, max_k, depth=1)

    def program(self, share: Share) -> Program:
        """Multiply the groups of *share* one after the other."""
        cube, size = self._cube, self._f.group_size
        k, count = share.group * size, share.groups * size
        digits = cube.digits.tile(0, self._products.digit_rows, k, count)
        weight = cube.weight.tile(share.column, share.columns, k, count)
        repeat(self._builder, self._multiply, digits, weight, share.groups)
        return self._builder.build()

    def _multiply(self, digits: GmTile, weight: GmTile, groups: int) -> None:
        """(terms x m, k) digits @ (k, columns) of the weight, group by group."""
        builder, rows = self._builder, self._products.digit_rows
        builder.cross_core_wait_flag("group", "mte2", DIGITS_READY)
        in_l1 = self._cube.load_digits(digits.k)
        for group in range(groups):
            # The slot was used before: both vector cores must have read it.
            if group >= SLOTS:
                builder.cross_core_wait_flag("group", "fixpipe", PRODUCTS_READ)
            top = group % SLOTS * rows
            products = self._slots[top : top + rows, : weight.extent]
            self._cube.multiply(in_l1, digits.k, group, 0, products)
            builder.cross_core_set_flag("group", "fixpipe", PRODUCTS_READY)
        self._cube.release(in_l1)


class _VectorCore:
    """The kernel of a vector core: digits and zeros, sums of groups, the output.

    Each stage claims the unified buffer anew.
    """

    def __init__(self, spec: DeviceSpec, p: Problem, plan: MsdGroupPlan) -> None:
        self._f, self._plan, self._products = p.traits, plan, GroupProducts.of(p)
        self._slots = slots_view(p)
        self._builder = builder = Builder(p.choice.template, spec.cores["aiv"], spec.sync)
        f = p.traits
        columns = min(plan.core_n, CORE_N // 2)
        # Digits.
        self._splitter = GroupSplitter(builder, p, f.k // f.group_size)
        builder.reset_buffers()
        # Zeros: an even part of the total for each core.
        self._core_zeros = align_up(ceil_div(f.m * f.n, 2 * plan.block_dim), REPEAT)
        self._max_zeros = min(MAX_ZEROS, self._core_zeros)
        self._zeros = builder.claim("ub", FLOAT32.nbytes(self._max_zeros))
        builder.reset_buffers()
        # Sums of groups.
        self._sums = builder.claim("ub", FLOAT32.nbytes(f.m * columns))
        self._operands = GroupOperands(
            builder,
            p,
            max_rows=f.m,
            max_columns=columns,
            scale_groups=1,
            number_groups=SPREAD,
            max_products=plan.rows * columns,
        )
        builder.reset_buffers()
        # The output.
        self._total = builder.queue("ub", FLOAT32.nbytes(f.m * columns), "mte2", "vector")
        self._epilogue = GroupEpilogue(builder, p, f.m, columns)

    def program(self, share: Share, half: int, core: int) -> Program:
        """The program of vector core number *core*, for one *half* of the columns of *share*."""
        builder, f = self._builder, self._f
        for row in range(core, f.m, 2 * self._plan.block_dim):
            self._splitter.write(row, 0, f.k // f.group_size)
        builder.end_stage()
        self._store_zeros(core)
        sync_all(builder, "mte3", "mte2", event=ALL_VECTORS, group_event=DIGITS_READY)
        builder.end_stage()
        start, stop = half * (CORE_N // 2), min((half + 1) * (CORE_N // 2), share.columns)
        columns = slice(share.column + start, share.column + stop)
        if start < stop:
            self._add_groups(share, slice(start, stop), columns)
        else:
            repeat(builder, self._idle, share.groups)
        sync_all(builder, "mte3", "mte2", event=ALL_VECTORS)
        builder.end_stage()
        if start < stop and share.group == 0:
            # Only the first core along k: one writer for each element of y.
            views = self._epilogue.views(slice(0, f.m), columns)
            repeat(builder, self._finish, total_view(f)[:, columns], *views)
        return builder.build()

    # ---- digits are written by now ----

    def _store_zeros(self, core: int) -> None:
        """Store zeros over this core's part of the total."""
        builder, part = self._builder, self._core_zeros
        total = GmView.vector("total", FLOAT32, self._f.m * self._f.n)
        own = total[:, core * part : (core + 1) * part]
        if own.columns:
            repeat(builder, self._make_zeros)
        for start, count in pieces(own.columns, self._max_zeros):
            repeat(builder, self._store_some, own[:, start : start + count])

    def _make_zeros(self) -> None:
        self._builder.emit(Duplicate(self._zeros.of(FLOAT32, self._max_zeros), 0.0))
        self._builder.sync("vector", "mte3")

    def _store_some(self, total: GmView) -> None:
        self._builder.data_copy(total.operand, self._zeros.of(FLOAT32, total.columns))

    # ---- the cube multiplies ----

    def _idle(self, groups: int) -> None:
        """For cores that have no columns: the cube core waits for both of its vector cores."""
        for _ in range(groups):
            self._builder.cross_core_wait_flag("group", "mte2", PRODUCTS_READY)
            self._set_products_read()

    def _add_groups(self, share: Share, inside: slice, columns: slice) -> None:
        """Add the groups of *share*; *inside* is this core's part of its columns."""
        builder, f = self._builder, self._f
        repeat(builder, self._clear_sums, inside.stop - inside.start)
        for first, count in pieces(share.groups, SPREAD):
            groups = slice(share.group + first, share.group + first + count)
            views = self._operands.views(slice(0, f.m), groups, columns)
            repeat(builder, self._add_pack, self._slots[:, inside], *views)
        repeat(builder, self._add_to_total, total_view(f)[:, columns])

    def _clear_sums(self, columns: int) -> None:
        # The first group could be written in place of being added; a sum that begins with +0 and
        # is added to +0 in the end gives the same bits.
        step(self._builder, Duplicate(self._sums.of(FLOAT32, self._f.m * columns), 0.0))

    def _add_pack(
        self,
        slots: GmView,
        scale: GmView,
        offset: GmView | None,
        absmax: GmView,
        row_sums: GmView | None,
    ) -> None:
        """Up to eight groups, one after the other; their numbers of rows are loaded at once."""
        operands, m, rows = self._operands, self._f.m, self._products.digit_rows
        sums = Plane(self._sums, m, scale.columns)
        operands.load_rows(absmax, row_sums)
        for group in range(scale.rows):
            here, top = slice(group, group + 1), group % SLOTS * rows
            # (1, columns) scale and offset of the group, sums += row sum x scale x offset
            operands.scales.load(scale[here, :], offset and offset[here, :])
            operands.add_offset(sums, group, 0)
            self._builder.cross_core_wait_flag("group", "mte2", PRODUCTS_READY)
            for row, count in pieces(m, self._plan.rows):
                self._add_rows(slots[top : top + rows, :], group, row, count)

    def _add_rows(self, products: GmView, group: int, row: int, rows: int) -> None:
        """sums += absmax * (product * scale), for *rows* rows of one group."""
        operands, m, columns = self._operands, self._f.m, products.columns
        # (terms, rows, columns) of the product (terms x m, columns)
        views = [products[top : top + rows, :] for top in range(row, products.rows, m)]
        after_load = self._set_products_read if row + rows == m else None
        # -> (rows, columns) fp32
        slot, (plane,) = operands.load_products(views, 1, rows, columns, after_load)
        by_row(self._builder, "mul", plane, operands.scales.scale(0))
        absmax = operands.absmax
        by_column(self._builder, "mul", plane, absmax.of(group, row), absmax.pitch)
        # (rows, columns) of the sums (m, columns)
        sums = self._sums.of(FLOAT32, rows * columns, FLOAT32.nbytes(row * columns))
        step(self._builder, Binary("add", sums, sums, plane.whole()))
        operands.release(slot)

    def _set_products_read(self) -> None:
        self._builder.cross_core_set_flag("group", "mte2", PRODUCTS_READ)

    def _add_to_total(self, total: GmView) -> None:
        builder = self._builder
        builder.sync("vector", "mte3")
        sums = self._sums.of(FLOAT32, total.rows * total.columns)
        builder.emit(Store(total.operand, sums, total.row_bytes, FLOAT32))

    # ---- everything is added up ----

    def _finish(self, total: GmView, output: GmView, bias: GmView | None) -> None:
        slot = load(self._builder, self._total, total, pitch=total.columns)
        self._epilogue.write(Plane(slot, total.rows, total.columns), output, bias)
        self._total.free(slot)
