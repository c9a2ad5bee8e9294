"""msd_group: cores share n and k; each sums its groups, then all add up in global memory.

.. code-block:: text

    vector cores  rows of x: largest magnitudes, sums, digits of each group; zeros to the total
    cube cores    group by group: digits @ weight, fp16 or int32, alternately into two slots
    vector cores  meanwhile the group before: combined, scaled, added to sums in the unified
                  buffer; at last the sums are added to the total in global memory
    vector cores  the total rounded to y, by those whose cube core is the first along k

Each vector core processes half of the columns of its cube core. All vector cores wait for each
other before the cube multiplies, for digits and zeros, and before y is stored, for the total.

ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2 op_kernel/*_msd_group.h, op_host/op_tiling/
*_tiling_msd_group.cpp. There every core that shares k stores the same output; here only the first
one does. The number of rows that are combined at a time is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Store
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube_core import CubeCore
from npusim.kernel.launch import CoreSteps, launch_mixed
from npusim.kernel.matrices import GmTile
from npusim.kernel.plane import SPREAD, Plane, by_column, by_row
from npusim.kernel.program import Binding, Block
from npusim.kernel.rows import pieces
from npusim.kernel.steps import StageCall
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.ops.npu_weight_quant_batchmatmul.choice import CallTraits, k_cores, k_step, scheme_of
from npusim.ops.npu_weight_quant_batchmatmul.problem import Plan, Problem, workspace_bytes
from npusim.ops.npu_weight_quant_batchmatmul.templates import Zeros, msd_groups

# ---- how the work is split ----

CORE_N = 2048
"""Columns of a cube core; each of its vector cores takes half."""
SLOTS = 2
"""Slots for the products of a cube core: one is written while the other is read."""
PRODUCT_BYTES = 32768
"""Bytes of products that a vector core loads at a time; assumed."""
MAX_ZEROS_BYTES = 32768
"""Most bytes of a store of zeros; assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Split n by 2048, and k into whole groups, so that every share has its own core."""
    f, aic, terms = p.traits, spec.cores["aic"].count, scheme_of(p.traits).terms
    cores_k, cores_n = k_cores(f, aic), ceil_div(f.n, CORE_N)
    block_dim, core_n = cores_k * cores_n, min(CORE_N, f.n)
    row_bytes = msd_groups.product_dtype(p).nbytes(terms * min(core_n, CORE_N // 2))
    return MsdGroupPlan(
        **p.chosen,
        block_dim=block_dim,
        workspaces=workspace_bytes(*msd_groups.group_views(f), *block_dim * [_slots(p)], _total(f)),
        cores_k=cores_k,
        cores_n=cores_n,
        core_k=k_step(f, aic),
        core_n=core_n,
        rows=min(f.m, PRODUCT_BYTES // row_bytes),
    )


def _slots(p: Problem) -> GmView:
    """Space for the products of two groups of one cube core, `(2 x terms x m, columns)`."""
    rows, columns = SLOTS * msd_groups.product_rows(p.traits), min(CORE_N, p.traits.n)
    return GmView.of("products", msd_groups.product_dtype(p), rows, columns)


def _total(f: CallTraits) -> GmView:
    """The total to which all cores add, float32 `(m, n)`."""
    return GmView.of("total", FLOAT32, f.m, f.n)


class Share(NamedTuple):
    """The part that a cube core multiplies."""

    group: int
    groups: int
    column: int
    columns: int


def _share(p: Problem, plan: MsdGroupPlan, index: int) -> Share:
    """The share of core *index*; cores with less k come first, so that they add first."""
    f = p.traits
    index_k, index_n = divmod(index, plan.cores_n)
    k, column = index_k * plan.core_k, index_n * CORE_N
    groups = min(plan.core_k, f.k - k) // f.group_size
    return Share(k // f.group_size, groups, column, min(CORE_N, f.n - column))


# ---- programs ----


def build(spec: DeviceSpec, p: Problem, plan: MsdGroupPlan) -> tuple[Block, ...]:
    """Build three blocks for each share: a cube core and its two vector cores."""
    bound, slots_bytes = plan.bindings(p), _slots(p).nbytes
    return launch_mixed(
        plan.block_dim,
        _cube(spec, p, plan),
        _vector(spec, p, plan),
        lambda index: bound | {"products": Binding("products", index * slots_bytes)},
    )


def _cube(spec: DeviceSpec, p: Problem, plan: MsdGroupPlan) -> CoreSteps:
    """The program of a cube core: the groups of its share one after the other."""
    core, f, slots = CubeCore(plan.template, spec), p.traits, _slots(p)
    rows = msd_groups.product_rows(p.traits)
    cube = msd_groups.GroupCube(core, p, plan.core_n, min(plan.core_k, f.k), depth=1)

    def multiply(digits: GmTile, weight: GmTile, groups: int) -> None:
        """(terms x m, k) digits @ (k, columns) of the weight, group by group."""
        core.cross_core_wait_flag("group", "mte2", msd_groups.DIGITS_READY)
        in_l1 = cube.load_digits(digits.k)
        for group in range(groups):
            # The slot was used before: both vector cores must have read it.
            if group >= SLOTS:
                core.cross_core_wait_flag("group", "fixpipe", msd_groups.PRODUCTS_READ)
            top = group % SLOTS * rows
            cube.multiply(in_l1, group, 0, slots[top : top + rows, : weight.extent])
            core.cross_core_set_flag("group", "fixpipe", msd_groups.PRODUCTS_READY)
        cube.packs.free(in_l1.tile)

    def calls(index: int) -> Iterator[StageCall]:
        share = _share(p, plan, index)
        k, count = share.group * f.group_size, share.groups * f.group_size
        digits = cube.digits.tile(0, rows, k, count)
        weight = cube.weight.tile(share.column, share.columns, k, count)
        yield multiply, digits, weight, share.groups

    return CoreSteps.of_calls(core, plan.block_dim, calls)


def _vector(spec: DeviceSpec, p: Problem, plan: MsdGroupPlan) -> CoreSteps:
    """The program of a vector core: digits and zeros, sums of groups, the output.

    Each stage allocates the unified buffer anew.
    """
    core, f, cores = VectorCore(plan.template, spec), p.traits, 2 * plan.block_dim
    columns = min(plan.core_n, CORE_N // 2)
    splitter = msd_groups.GroupSplitter(core, p, f.k // f.group_size)
    core.reset_buffers()
    zeros = Zeros(core, "total", f.m * f.n, cores, MAX_ZEROS_BYTES)
    core.reset_buffers()
    sums = _GroupSums(core, p, plan, columns)
    core.reset_buffers()
    total_in = core.vecin(FLOAT32, f.m * columns)
    epilogue = msd_groups.GroupEpilogue(core, p, f.m, columns)

    def finish(total: GmView, output: GmView, bias: GmView | None) -> None:
        loaded = core.load_rows(total_in, total, pitch=total.columns)
        epilogue.write(Plane(loaded, total.rows, total.columns), output, bias)
        total_in.free(loaded)

    def calls(index: int) -> Iterator[StageCall]:
        """Process one half of the columns of a group's share."""
        group, half = divmod(index, 2)
        share = _share(p, plan, group)
        for row in range(index, f.m, cores):
            yield splitter.write(row, 0, f.k // f.group_size)
        yield (core.end_stage,)
        yield from zeros.write(index)
        yield sync_all, core, "mte3", "mte2", msd_groups.ALL_VECTORS, msd_groups.DIGITS_READY
        yield (core.end_stage,)
        start, stop = half * (CORE_N // 2), min((half + 1) * (CORE_N // 2), share.columns)
        here = slice(share.column + start, share.column + stop)
        if start < stop:
            yield from sums.add_groups(share, slice(start, stop), here)
        else:
            yield sums.idle, share.groups
        yield sync_all, core, "mte3", "mte2", msd_groups.ALL_VECTORS
        yield (core.end_stage,)
        if start < stop and share.group == 0:
            # Only the first core along k: one writer for each element of y.
            yield finish, _total(f)[:, here], *epilogue.views(slice(0, f.m), here)

    return CoreSteps.of_calls(core, cores, calls)


# ---- the cube multiplies ----


class _GroupSums:
    """Sums the groups of some columns, then adds these sums to the total."""

    def __init__(self, core: VectorCore, p: Problem, plan: MsdGroupPlan, columns: int) -> None:
        self.core, self.f, self.max_rows, self.slots = core, p.traits, plan.rows, _slots(p)
        self.rows = msd_groups.product_rows(p.traits)
        self.sums = core.tile(FLOAT32, p.traits.m * columns)
        self.operands = msd_groups.GroupOperands(
            core,
            p,
            max_rows=p.traits.m,
            max_columns=columns,
            scale_groups=1,
            factor_groups=SPREAD,
            max_products=plan.rows * columns,
        )

    def idle(self, groups: int) -> None:
        """Serve cores without columns: the cube core waits for both of its vector cores."""
        for _ in range(groups):
            self.core.cross_core_wait_flag("group", "mte2", msd_groups.PRODUCTS_READY)
            self._set_products_read()

    def add_groups(self, share: Share, inside: slice, columns: slice) -> Iterator[StageCall]:
        """Add the groups of *share*; *inside* is this core's part of its columns."""
        f = self.f
        yield self._clear_sums, inside.stop - inside.start
        for first, count in pieces(share.groups, SPREAD):
            groups = slice(share.group + first, share.group + first + count)
            views = self.operands.views(slice(0, f.m), groups, columns)
            yield self._add_pack, self.slots[:, inside], *views
        yield self._add_to_total, _total(f)[:, columns]

    def _clear_sums(self, columns: int) -> None:
        # The first group could be written instead of added; a sum that starts from +0 and is added
        # to +0 in the end gives the same bits.
        self.core.duplicate(self.sums[: self.f.m * columns], 0.0)

    def _add_pack(
        self,
        slots: GmView,
        scale: GmView,
        offset: GmView | None,
        absmax: GmView,
        row_sums: GmView | None,
    ) -> None:
        """Add up to eight groups, one after the other; their row factors are loaded at once."""
        operands, m, rows = self.operands, self.f.m, self.rows
        sums = Plane(self.sums, m, scale.columns)
        operands.load_rows(absmax, row_sums)
        for group in range(scale.rows):
            here, top = slice(group, group + 1), group % SLOTS * rows
            # (1, columns) scale and offset of the group, sums += row sum x scale x offset
            operands.load_scales(scale[here, :], offset and offset[here, :])
            operands.add_offset(sums, group, 0)
            self.core.cross_core_wait_flag("group", "mte2", msd_groups.PRODUCTS_READY)
            for row, count in pieces(m, self.max_rows):
                self._add_rows(slots[top : top + rows, :], group, row, count)

    def _add_rows(self, products: GmView, group: int, row: int, rows: int) -> None:
        """sums += absmax * (product * scale), for *rows* rows of one group."""
        core, operands, m, columns = self.core, self.operands, self.f.m, products.columns
        # (terms, rows, columns) of the product (terms x m, columns)
        views = [products[top : top + rows, :] for top in range(row, products.rows, m)]
        after_load = self._set_products_read if row + rows == m else None
        # -> (rows, columns) fp32
        loaded, (plane,) = operands.load_products(views, 1, rows, columns, after_load)
        by_row(core, "mul", plane, operands.scale(0, columns))
        by_column(core, "mul", plane, operands.absmax(group, row), operands.pitch)
        # (rows, columns) of the sums (m, columns)
        sums = self.sums.at(row * columns, rows * columns)
        core.add(sums, sums, plane.whole())
        operands.products_in.free(loaded)

    def _set_products_read(self) -> None:
        self.core.cross_core_set_flag("group", "mte2", msd_groups.PRODUCTS_READ)

    def _add_to_total(self, total: GmView) -> None:
        self.core.sync("vector", "mte3")
        sums = self.sums[: total.rows * total.columns]
        self.core.emit(Store(total.operand, sums, total.row_bytes, FLOAT32))
