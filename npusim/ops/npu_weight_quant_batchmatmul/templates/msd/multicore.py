"""The msd template for int8 weights with a scale for each column, forms multicore and multicore_hp.

.. code-block:: text

    vector cores  a row of x each: largest magnitude, sum, two digits, to global memory
    cube cores    meanwhile load some of the weight, so that it is in the L2
                  then digits (2 m, k) @ weight: int32 sums, to global memory
    vector cores  the first of each pair: both digits combined, scaled, y

Each stage begins when the one before is over: all vector cores wait for each other and then let
their cube core go on, which lets its own vector cores go on (ops-nn@e5c3fa9 matmul/
weight_quant_batch_matmul_v2, op_kernel/*_msd_multicore.h, op_host/op_tiling/*_msd_tiling.cpp).
Assumed: the epilogue takes at most 1024 columns at a time, and two of its pieces are under way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, BinaryScalar, Cast, Local, ScalarAlu, ScalarLoad
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube import BaseTile
from npusim.kernel.launch import mixed_launch
from npusim.kernel.plane import REPEAT, Plane, by_column, by_row, multiply_add, spread_rows
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import balanced, pieces
from npusim.kernel.views import GmView, load, repeat, store
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits.scheme import EIGHT_BITS, digit_views
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits.splitter import DigitSplitter
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd.cube import (
    DigitCube,
    core_columns,
    digits_tile,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd.numbers import (
    ColumnParameters,
    absmax_view,
    sums_view,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.plan import Plan
from npusim.ops.npu_weight_quant_batchmatmul.templates.workspaces import bindings, workspace_bytes
from npusim.ops.npu_weight_quant_batchmatmul.traits import CallTraits

__all__ = ["MulticorePlan", "build", "tile"]

OP = "npu_weight_quant_batchmatmul"
ALL_SPLIT, DIGITS_READY, PRODUCTS_READY = range(3)
"""Flags between cores: where all vector cores wait for each other; then those of a group."""

# ---- how the work is split ----

EPILOGUE_ELEMENTS, EPILOGUE_COLUMNS = 7712, 1024
"""What a vector core turns into y at a time, at most."""
PRELOADS = 3
FEWER_PRELOADS = {(1, 5568, 6656): 1, (16, 8192, 7168): 2}
"""(m, k, n) of transposed weights without bias for which the vendor settled on fewer."""


@dataclass(frozen=True, slots=True)
class MulticorePlan(Plan):
    """Rows of x for each vector core, columns of the output for each cube core."""

    split_cores: int
    """Vector cores that write digits."""
    split_rows: int
    cube_cores: int
    core_n: int
    cube: BaseTile
    preloads: int
    """Pieces of the weight that a cube core loads while it waits."""
    epilogue_rows: int
    """The epilogue takes so many rows at a time,"""
    epilogue_columns: int
    """and so many columns."""


def tile(spec: DeviceSpec, p: Problem) -> MulticorePlan:
    """Split as the vendor does where its rules are open."""
    f = p.traits
    split_cores = balanced(f.m, spec.cores["aiv"].count)
    core_n = core_columns(f, spec.cores["aic"].count)
    cube_cores = ceil_div(f.n, core_n)
    cube = digits_tile(spec, p, f.k, min(core_n, f.n), keeps=True)
    columns = min(core_n, f.n, EPILOGUE_COLUMNS)
    return MulticorePlan(
        template=p.choice.template,
        form=p.choice.form,
        reason=p.choice.reason,
        block_dim=max(cube_cores, ceil_div(split_cores, 2)),
        is_mix=True,
        workspaces=workspace_bytes(*digit_views(f), absmax_view(f), sums_view(f), _product_view(f)),
        split_cores=split_cores,
        split_rows=ceil_div(f.m, split_cores),
        cube_cores=cube_cores,
        core_n=core_n,
        cube=cube,
        preloads=_preloads(f, cube),
        epilogue_rows=min(f.m, EPILOGUE_ELEMENTS // align_up(columns, REPEAT)),
        epilogue_columns=columns,
    )


def _preloads(f: CallTraits, cube: BaseTile) -> int:
    fewer = FEWER_PRELOADS if f.trans_weight and not f.has_bias else {}
    return fewer.get((f.m, f.k, f.n), min(PRELOADS, f.k // (cube.k * cube.steps_b)))


def _product_view(f: CallTraits) -> GmView:
    """Digits times weight `(2 m, n)`: all first digits, then all second digits."""
    return GmView.of("products", INT32, 2 * f.m, f.n)


# ---- who does what ----


def build(spec: DeviceSpec, p: Problem, plan: MulticorePlan) -> tuple[Block, ...]:
    """A cube core and its two vector cores for each group that is launched."""
    bound = bindings(p, plan)
    cube, vector = _CubeCore(spec, p, plan), _VectorCore(spec, p, plan)
    return mixed_launch(plan.block_dim, lambda _: bound, cube.program, vector.program)


class _CubeCore:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: MulticorePlan) -> None:
        self._f, self._plan = p.traits, plan
        self._builder = Builder(OP, spec.cores["aic"], spec.sync)
        self._cube = DigitCube(self._builder, p, plan.cube, p.traits.k)

    def program(self, group: int) -> Program:
        """All of k for the columns of *group*."""
        f, plan, builder = self._f, self._plan, self._builder
        column = group * plan.core_n
        columns = min(plan.core_n, f.n - column)
        # While vector cores write digits, the first pieces of the weight are brought into the L2.
        if columns > 0:
            self._cube.prefetch_l2(0, f.k, column, columns, plan.preloads)
        builder.cross_core_wait_flag("group", "mte2", DIGITS_READY)
        if columns > 0:
            self._cube.multiply(0, f.k, column, _product_view(f)[:, column : column + columns])
            builder.cross_core_set_flag("group", "fixpipe", PRODUCTS_READY)
        return builder.build()


class _VectorCore:
    """The kernel of a vector core; its second stage claims the unified buffer anew."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: MulticorePlan) -> None:
        self._f, self._plan = p.traits, plan
        self._builder = Builder(OP, spec.cores["aiv"], spec.sync)
        self._splitter = RowSplitter(self._builder, p)
        self._builder.reset_buffers()
        self._epilogue = Epilogue(self._builder, p, plan.epilogue_rows, plan.epilogue_columns)

    def program(self, group: int, half: int) -> Program:
        """The program of vector core number *half* of *group*."""
        f, plan, builder = self._f, self._plan, self._builder
        first = (2 * group + half) * plan.split_rows
        for row in range(first, min(first + plan.split_rows, f.m)):
            self._splitter.write(row)
        sync_all(builder, "mte3", "mte2", event=ALL_SPLIT, group_event=DIGITS_READY)
        if group < plan.cube_cores:
            builder.end_stage()
            builder.cross_core_wait_flag("group", "mte2", PRODUCTS_READY)
            if half == 0:
                column = group * plan.core_n
                self._epilogue.write(column, min(plan.core_n, f.n - column))
        return builder.build()


# ---- the first stage: x in digits ----

FIRST, SECOND = 127.499, 127.499**2 * 2
"""Factors of the digits; the product is formed in double and rounded when it is used."""
UNDO_FIRST, UNDO_SECOND = (float(np.float32(1) / np.float32(x)) for x in (FIRST, SECOND))
ONE_BITS = 0x3F80_0000
"""1.0 as the scalar unit sees it."""
DIVIDED_K = 128
"""From here on a row is multiplied by the reciprocal of its largest magnitude."""
HALVED_K = 4096
"""From here on a row is added up by halves."""


class RowSplitter:
    """Two digits, the largest magnitude and the sum of a row of x at a time."""

    def __init__(self, builder: Builder, p: Problem) -> None:
        f = p.traits
        self._builder, self._f = builder, f
        self._x = GmView.of("x", p.x.element, f.m, f.k)
        self._is_precise = p.choice.form == "multicore_hp"
        self._columns = align_up(f.k, REPEAT)
        self._splitter = DigitSplitter(builder, p.x.element, EIGHT_BITS, 1, self._columns)
        self._first_sum = builder.claim("ub", FLOAT32.nbytes(8))

    def write(self, row: int) -> None:
        """Split row number *row*."""
        f = self._f
        repeat(
            self._builder,
            self._row,
            self._x.row(row),
            *(digit.row(row) for digit in digit_views(f)),
            absmax_view(f).row(0)[:, row : row + 1],
            sums_view(f).row(0)[:, row : row + 1],
        )

    def _row(self, x: GmView, first: GmView, second: GmView, absmax: GmView, sums: GmView) -> None:
        """x (1, k) -> two digits (1, k), and two numbers."""
        builder, splitter, whole_vectors = self._builder, self._splitter, x.columns // REPEAT
        # (1, k) fp16 or bf16 -> fp32, filled up to whole vectors of 64 with zeros
        plane = splitter.load(x, 1)
        largest = splitter.absmax(plane)
        if not self._is_precise:
            splitter.store_numbers(splitter.reduce("sum", self._row_sum(plane)), sums)
        # q in [-1, 1] -> away(q F1) -> away((q - first / F1) F2)
        self._normalise(plane, largest)
        numbers, work = plane.whole(), splitter.work(plane)
        step(builder, BinaryScalar("mul", work.whole(), numbers, FIRST))
        undone = splitter.store_digit(work, first).whole()
        step(builder, BinaryScalar("mul", undone, undone, UNDO_FIRST))
        step(builder, Binary("sub", numbers, numbers, undone))
        if self._is_precise:
            # Before the second digit takes the place of the first.
            splitter.reduce("sum", splitter.add_halves(work, whole_vectors), self._first_sum)
        step(builder, BinaryScalar("mul", numbers, numbers, SECOND))
        undone = splitter.store_digit(plane, second).whole()
        if self._is_precise:
            step(builder, BinaryScalar("mul", undone, undone, UNDO_SECOND))
            rest = splitter.add_halves(work, whole_vectors)
            splitter.store_numbers(self._precise_sum(rest, largest), sums)
        splitter.store_numbers(largest, absmax)

    def _row_sum(self, plane: Plane) -> Plane:
        """Vectors of 64 added up; a tail of 32 comes last, with zeros beside it."""
        splitter, vectors, whole = self._splitter, len(plane.chunks), self._f.k // REPEAT
        # (1, k) as vectors of 64 -> (1, 64): by halves if it is long, else one after the other
        if self._f.k >= HALVED_K:
            total = splitter.add_halves(plane, whole)
            following = range(whole, vectors)
        else:
            total, following = plane, range(1, vectors)
        into = splitter.work(plane)
        for index in following:
            dst, numbers = into.chunk(0), plane.chunk(index)
            step(self._builder, Binary("add", dst, total.chunk(0), numbers))
            total = into
        return total

    def _precise_sum(self, rest: Plane, largest: Slot) -> Slot:
        """The sum of what both digits stand for, of the row before it was divided."""
        total = self._splitter.reduce("sum", rest)
        one = total.of(FLOAT32, 1)
        step(self._builder, Binary("add", one, self._first_sum.of(FLOAT32, 1), one))
        step(self._builder, Binary("mul", one, one, largest.of(FLOAT32, 1)))
        return total

    def _normalise(self, plane: Plane, largest: Slot) -> None:
        """Divide the row by its largest magnitude."""
        builder = self._builder
        if self._f.k < DIVIDED_K:
            self._splitter.divide(plane, largest)
            return
        builder.sync("vector", "scalar")
        builder.emit(ScalarLoad("most", largest.of(FLOAT32, 1)))
        builder.sync("scalar", "vector")
        builder.emit(ScalarAlu("f32_div", "share", ONE_BITS, "most"))
        step(builder, BinaryScalar("mul", plane.whole(), plane.whole(), "share"))


# ---- the last stage: products of digits to y ----

CALL_ROWS = 64
"""Rows of the output for which parameters are loaded once."""


class Epilogue:
    """Combines the products of both digits, scales them, and stores y."""

    def __init__(self, builder: Builder, p: Problem, max_rows: int, max_columns: int) -> None:
        """Claim room for *max_rows* x *max_columns* at a time."""
        self._builder, self._f = builder, p.traits
        self._max_rows, self._max_columns = max_rows, max_columns
        self._output = GmView.of("output", p.output.element, p.traits.m, p.traits.n)
        count = max_rows * align_up(max_columns, REPEAT)
        self._parameters = ColumnParameters(builder, p, align_up(max_columns, REPEAT))
        self._rows_padded = align_up(max_rows, 8)
        numbers_bytes = 2 * FLOAT32.nbytes(self._rows_padded)
        self._numbers = builder.queue("ub", numbers_bytes, "mte2", "vector")
        self._blocks = builder.claim("ub", 8 * numbers_bytes)
        self._products = builder.queue("ub", 2 * INT32.nbytes(count), "mte2", "vector", 2)
        result_bytes = p.output.element.nbytes(count)
        self._results = builder.queue("ub", result_bytes, "vector", "mte3", 2)

    def write(self, column: int, count: int) -> None:
        """Make all rows of *count* columns from *column* on."""
        f = self._f
        products, absmax, sums = _product_view(f), absmax_view(f).row(0), sums_view(f).row(0)
        for left, width in pieces(count, self._max_columns):
            columns = slice(column + left, column + left + width)
            for top, height in pieces(f.m, align_up(CALL_ROWS, self._max_rows)):
                rows = slice(top, top + height)
                repeat(
                    self._builder,
                    self._rows,
                    self._output[rows, columns],
                    products[rows, columns],
                    products[f.m + top : f.m + top + height, columns],
                    absmax[:, rows],
                    sums[:, rows],
                    *self._parameters.views(columns),
                )

    def _rows(
        self,
        output: GmView,
        first: GmView,
        second: GmView,
        absmax: GmView,
        sums: GmView,
        *parameters: GmView,
    ) -> None:
        """Up to 64 rows, or a few more, of one run of columns."""
        of_columns = self._parameters.load(*parameters)
        for top, height in pieces(output.rows, self._max_rows):
            rows = slice(top, top + height)
            # (rows,) -> (rows, 8) for both
            of_rows = self._spread(absmax[:, rows], sums[:, rows])
            self._tile(output[rows, :], first[rows, :], second[rows, :], of_columns, *of_rows)

    def _spread(self, absmax: GmView, sums: GmView) -> tuple[Local, Local]:
        """Largest magnitudes and sums of rows, each as a block of eight."""
        count = self._rows_padded
        slot = load(self._builder, self._numbers, absmax, sums, pitch=count)
        blocks = self._blocks.of(FLOAT32, 2 * 8 * count)
        spread_rows(self._builder, blocks, slot.of(FLOAT32, 2 * count))
        self._numbers.free(slot)
        return blocks.at(0, 8 * count), blocks.at(8 * count, 8 * count)

    def _tile(
        self,
        output: GmView,
        first: GmView,
        second: GmView,
        of_columns: dict[str, Local],
        absmax: Local,
        sums: Local,
    ) -> None:
        builder, pitch = self._builder, align_up(output.columns, REPEAT)
        count = output.rows * pitch
        # (2, rows, columns) int32 -> float32, in place
        slot = load(builder, self._products, first, second, pitch=pitch, with_gaps=True)
        step(builder, Cast(slot.of(FLOAT32, 2 * count), slot.of(INT32, 2 * count), "none"))
        plane = Plane(slot, output.rows, pitch)
        total, rest = plane.whole(), slot.of(FLOAT32, count, FLOAT32.nbytes(count))
        # c = (first / F1 + second / F2) * absmax of the row
        step(builder, BinaryScalar("mul", total, total, UNDO_FIRST))
        step(builder, BinaryScalar("mul", rest, rest, UNDO_SECOND))
        step(builder, Binary("add", total, total, rest))
        by_column(builder, "mul", plane, absmax)
        # y = (sum of the row * offset + c) * scale + bias
        if "antiquant_offset" in of_columns:
            multiply_add(builder, plane, sums, of_columns["antiquant_offset"])
        by_row(builder, "mul", plane, of_columns["antiquant_scale"])
        if "bias" in of_columns:
            by_row(builder, "add", plane, of_columns["bias"])
        # (rows, columns) fp32 -> the type of y, ties away from zero
        result = self._results.alloc()
        step(builder, Cast(result.of(output.dtype, count), total, "round"))
        self._products.free(slot)
        store(builder, self._results, result, output, pitch, with_gaps=True)
