"""The vector cores of msd_group."""

from __future__ import annotations

from functools import partial

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, Duplicate, Global, Store
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.plane import REPEAT, Plane, by_column, by_row, multiply_add
from npusim.kernel.program import Program
from npusim.kernel.rows import pieces
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_cube import DigitProducts
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_digits import (
    FILLED,
    READ,
    READY,
    DigitWriter,
    meet,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_vector import (
    SPREAD,
    GroupScales,
    Output,
    RowNumbers,
    put_together,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_group_plan import (
    CORE_N,
    PLACES,
    MsdGroupPlan,
    Share,
)

__all__ = ["VectorSide"]

ZEROS_BYTES = 32768
"""Of a store of zeros, at most; assumed."""


class VectorSide:
    """The kernel of a vector core: digits and zeros, sums of groups, the output.

    Each stage claims the unified buffer anew.
    """

    def __init__(self, spec: DeviceSpec, p: Problem, plan: MsdGroupPlan) -> None:
        self._p, self._plan, self._products = p, plan, DigitProducts.of(p)
        self._builder = builder = Builder(p.choice.template, spec.cores["aiv"], spec.sync)
        f, claim, queue = p.traits, builder.claim, builder.queue
        self._all_groups = f.k // f.group_size
        self._digits = DigitWriter(builder, p, self._all_groups)
        builder.reset_buffers()
        self._zeros_bytes = min(ZEROS_BYTES, self._zeros_of_a_core())
        self._zeros = claim("ub", self._zeros_bytes)
        builder.reset_buffers()
        self._wide = wide = min(plan.core_n, CORE_N // 2)
        self._sums = claim("ub", FLOAT32.nbytes(f.m * wide))
        self._scales = GroupScales(builder, p, 1, wide)
        self._numbers = {
            name: RowNumbers(builder, name, f.m, SPREAD, self._all_groups)
            for name in ("largest", *("sums",) * f.has_offset)
        }
        nbytes = self._products.dtype.nbytes(self._products.terms * plan.rows * wide)
        self._given = queue("ub", nbytes, "mte2", "vector", 2)
        self._apart = None
        if self._products.is_half:
            self._apart = claim("ub", FLOAT32.nbytes(plan.rows * wide))
        builder.reset_buffers()
        self._total = queue("ub", FLOAT32.nbytes(f.m * wide), "mte2", "vector")
        self._output = Output(builder, p, f.m, wide)

    def _zeros_of_a_core(self) -> int:
        f = self._p.traits
        return FLOAT32.nbytes(align_up(ceil_div(f.m * f.n, 2 * self._plan.block_dim), REPEAT))

    def program(self, share: Share, half: int, core: int) -> Program:
        """The program of vector core number *core*, for one *half* of the columns of *share*."""
        builder, f = self._builder, self._p.traits
        for row in range(core, f.m, 2 * self._plan.block_dim):
            self._digits.write(row, 0, self._all_groups)
        builder.end_stage()
        self._fill(core)
        builder.call("meet", {}, self._meet)
        builder.end_stage()
        start = half * (CORE_N // 2)
        columns = max(0, min(CORE_N // 2, share.columns - start))
        column = share.column + start
        if columns:
            self._add_up(share, columns, column)
        else:
            builder.call(("idle", share.groups), {}, partial(self._idle, share.groups))
        builder.call("meet again", {}, lambda: meet(builder))
        builder.end_stage()
        if columns and share.group == 0:
            shifts = {"total": FLOAT32.nbytes(column), **self._output.shifts(0, column)}
            builder.call(("finish", columns), shifts, partial(self._finish, columns))
        return builder.build()

    # ---- digits are written by now ----

    def _fill(self, core: int) -> None:
        """Store zeros over this core's part of the total."""
        builder, part = self._builder, self._zeros_of_a_core()
        start = core * part
        own = max(0, min(part, self._plan.workspaces["total"] - start))
        if own:
            builder.call("zeros", {}, self._zero)
        for first, nbytes in pieces(own, self._zeros_bytes):
            shifts = {"total": start + first}
            builder.call(("zeros", nbytes), shifts, partial(self._store_zeros, nbytes))

    def _zero(self) -> None:
        count = self._zeros_bytes // FLOAT32.nbytes(1)
        self._builder.emit(Duplicate(self._zeros.of(FLOAT32, count), 0.0))
        self._builder.sync("vector", "mte3")

    def _store_zeros(self, nbytes: int) -> None:
        zeros = self._zeros.of(FLOAT32, nbytes // FLOAT32.nbytes(1))
        self._builder.store(Global("total", 0, nbytes), zeros)

    def _meet(self) -> None:
        meet(self._builder)
        self._builder.cross_core_set_flag("group", "mte2", READY)

    # ---- the cube multiplies ----

    def _idle(self, groups: int) -> None:
        for _ in range(groups):
            self._builder.cross_core_wait_flag("group", "mte2", FILLED)
            self._builder.cross_core_set_flag("group", "mte2", READ)

    def _add_up(self, share: Share, columns: int, column: int) -> None:
        builder, p, f = self._builder, self._p, self._p.traits
        builder.call(("start", columns), {}, partial(self._start, columns))
        inside = self._products.dtype.nbytes(column - share.column)
        for first, groups in pieces(share.groups, SPREAD):
            group = share.group + first
            number = p.antiquant_scale.element.nbytes(group * f.n + column)
            shifts = {
                "products": inside,
                "largest": FLOAT32.nbytes(group),
                "sums": FLOAT32.nbytes(group),
                "antiquant_scale": number,
                "antiquant_offset": number,
            }
            builder.call(("pack", groups, columns), shifts, partial(self._pack, groups, columns))
        shifts = {"total": FLOAT32.nbytes(column)}
        builder.call(("add", columns), shifts, partial(self._add, columns))

    def _start(self, columns: int) -> None:
        # The first group could be written in place of being added; a sum that begins with +0 and
        # is added to +0 at last comes to the same bits.
        zeros = Duplicate(self._sums.of(FLOAT32, self._p.traits.m * columns), 0.0)
        step(self._builder, zeros)

    def _pack(self, groups: int, columns: int) -> None:
        f, plan = self._p.traits, self._plan
        for numbers in self._numbers.values():
            numbers.take(f.m, groups)
        for group in range(groups):
            self._scales.take(1, columns, group)
            if f.has_offset:
                sums, plane = self._numbers["sums"], Plane(self._sums, f.m, columns)
                here = sums.of(group)
                multiply_add(self._builder, plane, here, self._scales.offset(0), sums.pitch)
            self._builder.cross_core_wait_flag("group", "mte2", FILLED)
            for row, rows in pieces(f.m, plan.rows):
                self._rows(group, row, rows, columns)

    def _rows(self, group: int, row: int, rows: int, columns: int) -> None:
        builder, f, products = self._builder, self._p.traits, self._products
        out, slot = products.dtype, self._given.alloc()
        stride = self._plan.product_bytes // products.digit_rows
        first = group % PLACES * self._plan.product_bytes
        count = rows * columns
        for term in range(products.terms):
            offset = first + (term * f.m + row) * stride
            place = Global("products", offset, out.nbytes(columns), rows, stride)
            dst = slot.of(out, columns, out.nbytes(term * count))
            builder.load(dst, place, out.nbytes(columns))
        if row + rows == f.m:
            builder.cross_core_set_flag("group", "mte2", READ)
        self._given.enque(slot)
        slot = self._given.deque()
        (plane,) = put_together(builder, products, slot, self._apart, (1, rows, columns))
        by_row(builder, "mul", plane, self._scales.scale(0))
        largest = self._numbers["largest"]
        by_column(builder, "mul", plane, largest.of(group, row), largest.pitch)
        sums = self._sums.of(FLOAT32, count, FLOAT32.nbytes(row * columns))
        step(builder, Binary("add", sums, sums, plane.whole()))
        self._given.free(slot)

    def _add(self, columns: int) -> None:
        f, builder = self._p.traits, self._builder
        builder.sync("vector", "mte3")
        width, line = FLOAT32.nbytes(columns), FLOAT32.nbytes(f.n)
        place = Global("total", 0, width, f.m, line)
        builder.emit(Store(place, self._sums.of(FLOAT32, columns), width, FLOAT32))

    # ---- everything is added up ----

    def _finish(self, columns: int) -> None:
        f, builder = self._p.traits, self._builder
        width = FLOAT32.nbytes(columns)
        slot = self._total.alloc()
        place = Global("total", 0, width, f.m, FLOAT32.nbytes(f.n))
        builder.load(slot.of(FLOAT32, columns), place, width)
        self._total.enque(slot)
        slot = self._total.deque()
        self._output.write(Plane(slot, f.m, columns))
        self._total.free(slot)
