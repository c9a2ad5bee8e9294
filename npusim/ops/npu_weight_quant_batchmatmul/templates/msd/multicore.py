"""The msd template for int8 weights with a scale for each column, forms multicore and multicore_hp.

.. code-block:: text

    vector cores  a row of x each: largest magnitude, sum, two digits, to global memory
    cube cores    meanwhile load some of the weight, so that it is in the L2
                  then digits (2 m, k) @ weight: int32 sums, to global memory
    vector cores  the first of each pair: both digits combined, scaled, y

Each stage begins when the one before is over: all vector cores wait for each other and then let
their cube core go on, which lets its own vector cores go on. Meanwhile the first of each pair loads
its parameters and forms the offsets of its first tile (ops-nn@e5c3fa9 matmul/
weight_quant_batch_matmul_v2, op_kernel/*_msd_multicore.h, op_host/op_tiling/*_msd_tiling.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, BinaryScalar, Cast, Copy, Local, ScalarAlu, ScalarLoad
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube import BaseTile
from npusim.kernel.launch import mixed_launch
from npusim.kernel.plane import REPEAT, Plane, by_column, by_row, spread_rows
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

EPILOGUE_ELEMENTS, NARROW_COLUMNS = 7712, 1024
"""What a vector core turns into y at a time, at most, where it has no more columns than that."""
EPILOGUE_BYTES, BYTES_PER_ELEMENT, BYTES_PER_COLUMN, BYTES_OF_ROWS = 186 * 1024, 22, 20, 256
"""What it is cut from where there are more: int32 and fp32 of both digits, offsets and y; the
parameters and their fp32; the numbers of rows."""
MAX_EPILOGUE_COLUMNS = 4096
"""Assumed: columns of which not even a row fits, as on a chip of few cores, come in pieces."""
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
    columns = min(core_n, f.n, MAX_EPILOGUE_COLUMNS)
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
        epilogue_rows=min(f.m, _epilogue_rows(align_up(columns, REPEAT))),
        epilogue_columns=columns,
    )


def _preloads(f: CallTraits, cube: BaseTile) -> int:
    fewer = FEWER_PRELOADS if f.trans_weight and not f.has_bias else {}
    return fewer.get((f.m, f.k, f.n), min(PRELOADS, f.k // (cube.k * cube.steps_b)))


def _epilogue_rows(columns: int) -> int:
    """Rows of *columns* that a vector core turns into y at a time."""
    if columns <= NARROW_COLUMNS:
        return EPILOGUE_ELEMENTS // columns
    room_bytes = EPILOGUE_BYTES - BYTES_PER_COLUMN * columns - BYTES_OF_ROWS
    return align_down(room_bytes // BYTES_PER_ELEMENT, 32) // columns


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
            if half == 0:
                column = group * plan.core_n
                self._epilogue.prepare(column, min(plan.core_n, f.n - column))
            builder.cross_core_wait_flag("group", "mte2", PRODUCTS_READY)
            if half == 0:
                self._epilogue.write()
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
        into = splitter.work(plane)
        # (1, k) as vectors of 64 -> (1, 64): by halves if it is long, else one after the other
        if self._f.k >= HALVED_K:
            # The row itself is needed again: its copy is halved.
            step(self._builder, Copy(into.whole(), plane.whole()))
            total, following = splitter.add_halves(into, whole), range(whole, vectors)
        else:
            total, following = plane, range(1, vectors)
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


class _Tile(NamedTuple):
    """Some rows and columns of the output."""

    rows: slice
    columns: slice


class Epilogue:
    """Combines the products of both digits, scales them, and stores y.

    Every queue has one slot: the products of a tile leave theirs by their cast, so those of the
    next one are loaded meanwhile, but the next tile's result waits for this one's store.
    """

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
        self._products = [
            builder.queue("ub", INT32.nbytes(count), "mte2", "vector") for _ in range(2)
        ]
        self._planes = [builder.claim("ub", FLOAT32.nbytes(count)) for _ in range(2)]
        self._offsets = builder.claim("ub", FLOAT32.nbytes(count)) if p.traits.has_offset else None
        result_bytes = p.output.element.nbytes(count)
        self._results = builder.queue("ub", result_bytes, "vector", "mte3")
        self._tiles: list[_Tile] = []

    def prepare(self, column: int, count: int) -> None:
        """Take all rows of *count* columns from *column* on, and do what needs no product."""
        self._tiles = [
            _Tile(slice(top, top + rows), slice(column + left, column + left + columns))
            for left, columns in pieces(count, self._max_columns)
            for top, rows in pieces(self._f.m, self._max_rows)
        ]
        self._prepare(self._tiles[0])

    def write(self) -> None:
        """Make what `prepare` took."""
        products, m = _product_view(self._f), self._f.m
        for index, tile in enumerate(self._tiles):
            if index > 0:
                self._prepare(tile)
            rows, columns = tile
            repeat(
                self._builder,
                self._tile,
                self._output[rows, columns],
                products[rows, columns],
                products[m + rows.start : m + rows.stop, columns],
            )

    def _prepare(self, tile: _Tile) -> None:
        """Load the parameters of new columns, the numbers of rows, and form their offsets."""
        columns = self._parameters.views(tile.columns)
        if tile.rows.start == 0:
            repeat(self._builder, self._parameters.load, *columns)
        absmax, sums = absmax_view(self._f).row(0), sums_view(self._f).row(0)
        width = columns[0].columns
        repeat(self._builder, self._spread, width, absmax[:, tile.rows], sums[:, tile.rows])

    def _spread(self, columns: int, absmax: GmView, sums: GmView) -> None:
        """Largest magnitudes and sums of rows, each as a block of eight; sums times offsets."""
        builder, count = self._builder, self._rows_padded
        slot = load(builder, self._numbers, absmax, sums, pitch=count)
        # (rows,) -> (rows, 8) for both
        blocks = self._blocks.of(FLOAT32, 2 * 8 * count)
        spread_rows(builder, blocks, slot.of(FLOAT32, 2 * count))
        self._numbers.free(slot)
        if self._offsets is None:
            return
        # (rows, 1) x (columns,) -> (rows, columns)
        plane = Plane(self._offsets, absmax.columns, align_up(columns, REPEAT))
        offset, of_rows = self._parameters.of(columns)["antiquant_offset"], self._of_rows(1)
        for index in plane.pieces:
            numbers, vector = (
                plane.blocks_piece(of_rows, index, 1),
                plane.vector_piece(offset, index),
            )
            builder.emit(Binary("mul", plane.piece(index), vector, numbers))
        builder.barrier("vector")

    def _of_rows(self, index: int) -> Local:
        """Blocks of the largest magnitudes (0) or the sums (1) of rows, `(rows, 8)`."""
        size = 8 * self._rows_padded
        return self._blocks.of(FLOAT32, size, FLOAT32.nbytes(index * size))

    def _tile(self, output: GmView, first: GmView, second: GmView) -> None:
        """Products of both digits (rows, columns) -> y."""
        builder, rows, pitch = self._builder, output.rows, align_up(output.columns, REPEAT)
        of_columns = self._parameters.of(output.columns)
        # c = (first / F1 + second / F2) * absmax of the row
        plane = self._undone(0, first, UNDO_FIRST)
        total, rest = plane.whole(), self._undone(1, second, UNDO_SECOND).whole()
        step(builder, Binary("add", total, total, rest))
        by_column(builder, "mul", plane, self._of_rows(0))
        # y = (sum of the row * offset + c) * scale + bias
        if self._offsets is not None:
            step(builder, Binary("add", total, self._offsets.of(FLOAT32, rows * pitch), total))
        by_row(builder, "mul", plane, of_columns["antiquant_scale"])
        if "bias" in of_columns:
            by_row(builder, "add", plane, of_columns["bias"])
        # (rows, columns) fp32 -> the type of y, ties away from zero
        result = self._results.alloc()
        step(builder, Cast(result.of(output.dtype, rows * pitch), total, "round"))
        store(builder, self._results, result, output, pitch, with_gaps=True)

    def _undone(self, digit: int, products: GmView, undo: float) -> Plane:
        """The products of a digit, without its factor: (rows, columns) int32 -> float32."""
        queue, pitch = self._products[digit], align_up(products.columns, REPEAT)
        plane = Plane(self._planes[digit], products.rows, pitch)
        slot = load(self._builder, queue, products, pitch=pitch, with_gaps=True)
        step(self._builder, Cast(plane.whole(), slot.of(INT32, products.rows * pitch), "none"))
        queue.free(slot)
        step(self._builder, BinaryScalar("mul", plane.whole(), plane.whole(), undo))
        return plane
