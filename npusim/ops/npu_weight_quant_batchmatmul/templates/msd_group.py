"""msd_group: cores share n and k; each adds up its groups, then all add up in global memory.

Of each group the cube core makes int32 or fp16 products in one of two places in turn; its two
vector cores put them together, scale them and add them to sums in the unified buffer, which they
add to zeros in global memory at last. Whoever has columns rounds them there.

ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2 op_kernel/*_msd_group.h, op_host/op_tiling/
*_tiling_msd_group.cpp. There every core that shares k stores the same output; here only the first
one does. How many rows are put together at a time is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from npusim.dtypes import FLOAT32
from npusim.isa import Binary, Cast, Duplicate, Global, Store
from npusim.ops._chain import step, to_float32
from npusim.ops._plane import REPEAT, Plane, by_column, by_row, multiply_add
from npusim.ops._rows import pieces
from npusim.ops._tiles import cdiv, up
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.facts import k_cores, k_step
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_cube import DigitProducts, GroupCube
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_vector import (
    FILLED,
    READ,
    READY,
    SPREAD,
    DigitWriter,
    GroupScales,
    RowNumbers,
    meet,
    put_together,
    workspaces,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.plan import Plan
from npusim.program import Binding, Block, Builder, Program
from npusim.spec import DeviceSpec

__all__ = ["MsdGroupPlan", "build", "tile"]

CORE_N = 2048
"""Columns of a cube core; each of its vector cores takes half."""
PLACES = 2
"""For the products of a cube core."""
PRODUCT_BYTES = 32768
"""Of products that a vector core loads at a time; assumed."""
ZEROS_BYTES = 32768
"""Of a store of zeros, at most; assumed."""


@dataclass(frozen=True, slots=True)
class MsdGroupPlan(Plan):
    """How groups and columns are split over cube cores."""

    cores_k: int
    cores_n: int
    core_k: int
    """k of a core, whole groups."""
    core_n: int
    product_bytes: int
    """Of a core's products of one group in the workspace."""
    rows: int
    """Put together at a time."""


def tile(spec: DeviceSpec, p: Problem) -> MsdGroupPlan:
    """Cut n by 2048, and k into as many whole groups a core as leaves a core for each."""
    f, aic, products = p.facts, spec.cores["aic"].count, DigitProducts.of(p)
    cores_k, cores_n = k_cores(f, aic), cdiv(f.n, CORE_N)
    launched, core_n = cores_k * cores_n, min(CORE_N, f.n)
    product_bytes = products.dtype.nbytes(products.digit_rows * core_n)
    row_bytes = products.dtype.nbytes(products.terms * min(core_n, CORE_N // 2))
    return MsdGroupPlan(
        p.choice.template,
        p.choice.form,
        p.choice.why,
        launched,
        True,
        workspaces(p, products)
        | {
            "products": launched * PLACES * product_bytes,
            "total": FLOAT32.nbytes(f.m * f.n),
        },
        cores_k,
        cores_n,
        k_step(f, aic),
        core_n,
        product_bytes,
        min(f.m, PRODUCT_BYTES // row_bytes),
    )


class _Share(NamedTuple):
    """What a cube core multiplies."""

    group: int
    groups: int
    column: int
    columns: int


def build(spec: DeviceSpec, p: Problem, plan: MsdGroupPlan) -> tuple[Block, ...]:
    """Three blocks a share: a cube core and its two vector cores."""
    cube, vector = _CubeSide(spec, p, plan), _VectorSide(spec, p, plan)
    names = (*(x.name for x in p.inputs), "output", *plan.workspaces)
    blocks = []
    for index in range(plan.launched):
        share = _share(p, plan, index)
        base = index * PLACES * plan.product_bytes
        bindings = {name: Binding(name) for name in names}
        bindings["products"] = Binding("products", base)
        first = 3 * index
        blocks.append(Block(first, "aic", cube.program(share), bindings, index))
        for half in (0, 1):
            program = vector.program(share, half, 2 * index + half)
            blocks.append(Block(first + 1 + half, "aiv", program, bindings, index))
    return tuple(blocks)


def _share(p: Problem, plan: MsdGroupPlan, index: int) -> _Share:
    """Cores with less k come first, so that they add first."""
    f = p.facts
    index_k, index_n = divmod(index, plan.cores_n)
    k, column = index_k * plan.core_k, index_n * CORE_N
    groups = min(plan.core_k, f.k - k) // f.group_size
    return _Share(k // f.group_size, groups, column, min(CORE_N, f.n - column))


class _CubeSide:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: MsdGroupPlan) -> None:
        self._p, self._plan = p, plan
        self._builder = Builder(p.choice.template, spec.cores["aic"], spec.sync)
        most = min(plan.core_k, p.facts.k)
        self._cube = GroupCube(self._builder, p, plan.core_n, most, 1)

    def program(self, share: _Share) -> Program:
        """Multiply the groups of *share* one after the other."""
        cube, k = self._cube, share.group * self._p.facts.group_size
        shifts = {
            "digits": cube.digits.shift_k(k),
            "weight": cube.weight.shift_k(k) + cube.weight.shift(share.column),
        }
        key = share.groups, share.columns
        self._builder.call(key, shifts, partial(self._write, *key))
        return self._builder.build()

    def _write(self, groups: int, columns: int) -> None:
        builder, plan, size = self._builder, self._plan, self._p.facts.group_size
        builder.cross_core_wait_flag("group", "mte2", READY)
        held = self._cube.hold(groups * size)
        stride = plan.product_bytes // self._cube.products.digit_rows
        for group in range(groups):
            if group >= PLACES:
                builder.cross_core_wait_flag("group", "fixpipe", READ)
            first = group % PLACES * plan.product_bytes
            to = Global("products", first, stride, 1, stride)
            k = group * size
            self._cube.multiply(held, k, k, 0, columns, to)
            builder.cross_core_set_flag("group", "fixpipe", FILLED)
        self._cube.drop(held)


class _VectorSide:
    """The kernel of a vector core: digits and zeros, sums of groups, the output.

    Each stage claims the unified buffer anew.
    """

    def __init__(self, spec: DeviceSpec, p: Problem, plan: MsdGroupPlan) -> None:
        self._p, self._plan, self._products = p, plan, DigitProducts.of(p)
        self._builder = builder = Builder(p.choice.template, spec.cores["aiv"], spec.sync)
        f, claim, queue = p.facts, builder.claim, builder.queue
        self._all_groups = f.k // f.group_size
        self._digits = DigitWriter(builder, p, self._all_groups)
        builder.reuse()
        self._zeros_bytes = min(ZEROS_BYTES, self._zeros_of_a_core())
        self._zeros = claim("ub", self._zeros_bytes)
        builder.reuse()
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
        builder.reuse()
        self._total = claim("ub", FLOAT32.nbytes(f.m * wide))
        self._out = claim("ub", p.output.element.nbytes(f.m * wide))
        self._bias = [claim("ub", FLOAT32.nbytes(wide)) for _ in range(2)]

    def _zeros_of_a_core(self) -> int:
        f = self._p.facts
        return FLOAT32.nbytes(up(cdiv(f.m * f.n, 2 * self._plan.launched), REPEAT))

    def program(self, share: _Share, half: int, core: int) -> Program:
        """The program of vector core number *core*, for one *half* of the columns of *share*."""
        builder, f = self._builder, self._p.facts
        for row in range(core, f.m, 2 * self._plan.launched):
            self._digits.write(row, 0, self._all_groups)
        builder.turn()
        self._fill(core)
        builder.call("meet", {}, self._meet)
        builder.turn()
        start = half * (CORE_N // 2)
        columns = max(0, min(CORE_N // 2, share.columns - start))
        column = share.column + start
        if columns:
            self._add_up(share, columns, column)
        else:
            builder.call(("idle", share.groups), {}, partial(self._idle, share.groups))
        builder.call("meet again", {}, lambda: meet(builder))
        builder.turn()
        if columns and share.group == 0:
            shifts = {
                "total": FLOAT32.nbytes(column),
                "output": self._p.output.element.nbytes(column),
            }
            if self._p.bias is not None:
                shifts["bias"] = self._p.bias.element.nbytes(column)
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

    def _add_up(self, share: _Share, columns: int, column: int) -> None:
        builder, p, f = self._builder, self._p, self._p.facts
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
        zeros = Duplicate(self._sums.of(FLOAT32, self._p.facts.m * columns), 0.0)
        step(self._builder, zeros)

    def _pack(self, groups: int, columns: int) -> None:
        f, plan = self._p.facts, self._plan
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
        builder, f, products = self._builder, self._p.facts, self._products
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
        f, builder = self._p.facts, self._builder
        builder.sync("vector", "mte3")
        width, line = FLOAT32.nbytes(columns), FLOAT32.nbytes(f.n)
        place = Global("total", 0, width, f.m, line)
        builder.emit(Store(place, self._sums.of(FLOAT32, columns), width, FLOAT32))

    # ---- everything is added up ----

    def _finish(self, columns: int) -> None:
        f, builder, out = self._p.facts, self._builder, self._p.output.element
        place = Global("total", 0, FLOAT32.nbytes(columns), f.m, FLOAT32.nbytes(f.n))
        plane = Plane(self._total, f.m, columns)
        builder.load(plane.row(0), place, FLOAT32.nbytes(columns))
        bias = self._p.bias
        if bias is not None:
            raw = self._bias[0].of(bias.element, columns)
            builder.load(raw, Global("bias", 0, bias.element.nbytes(columns)))
        builder.sync("mte2", "vector")
        if bias is not None:
            wide = raw
            if bias.element is not FLOAT32:
                wide = self._bias[1].of(FLOAT32, columns)
                to_float32(builder, wide, raw)
            by_row(builder, "add", plane, wide)
        result = self._out.of(out, f.m * columns)
        step(builder, Cast(result, plane.whole(), "round"))
        builder.sync("vector", "mte3")
        place = Global("output", 0, out.nbytes(columns), f.m, out.nbytes(f.n))
        builder.store(place, self._out.of(out, columns), out.nbytes(columns))
