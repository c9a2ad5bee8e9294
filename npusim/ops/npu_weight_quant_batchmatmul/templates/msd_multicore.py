"""The msd template for int8 weights with a scale for each column, forms multicore and multicore_hp.

.. code-block:: text

    vector cores  a row of x each: largest magnitude, sum, two digits, to global memory
    cube cores    meanwhile load part of the weight, so that it is in the L2
                  then digits (2 m, k) @ weight: int32 sums, to global memory
    vector cores  the first of each pair: both digits combined, scaled, y

Each stage starts when the one before is over: all vector cores wait for each other and then release
their cube core, which releases its own vector cores. Meanwhile the first of each pair loads its
parameters and computes the offsets of its first tile (ops-nn@e5c3fa9 matmul/
weight_quant_batch_matmul_v2, op_kernel/*_msd_multicore.h, op_host/op_tiling/*_msd_tiling.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Local
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube_core import CubeCore
from npusim.kernel.launch import CoreSteps, launch_mixed
from npusim.kernel.matmul import BaseTile
from npusim.kernel.plane import REPEAT, Plane, RowFactors, by_column, by_row, outer
from npusim.kernel.program import Block
from npusim.kernel.rows import balanced, pieces
from npusim.kernel.steps import StageCall
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.ops._digits import EIGHT_BITS, DigitSplitter
from npusim.ops.npu_weight_quant_batchmatmul.choice import CallTraits
from npusim.ops.npu_weight_quant_batchmatmul.problem import OP, Plan, Problem, workspace_bytes
from npusim.ops.npu_weight_quant_batchmatmul.templates import msd

ALL_SPLIT, DIGITS_READY, PRODUCTS_READY = range(3)
"""Flags between cores: for all vector cores to wait for each other; then those of a group."""

# ---- how the work is split ----

EPILOGUE_ELEMENTS, NARROW_COLUMNS = 7712, 1024
"""The most elements of y that a vector core computes at a time, if it has at most 1024 columns."""
EPILOGUE_BYTES, BYTES_PER_ELEMENT, BYTES_PER_COLUMN, BYTES_OF_ROWS = 186 * 1024, 22, 20, 256
"""The budget and its parts if it has more: int32 and fp32 of both digits, offsets and y; the
parameters and their fp32; the row factors."""
MAX_EPILOGUE_COLUMNS = 4096
"""Assumed: if not even one row of the columns fits, as on a chip of few cores, they are split."""
PRELOADS = 3
FEWER_PRELOADS = {(1, 5568, 6656): 1, (16, 8192, 7168): 2}
"""(m, k, n) of transposed weights without bias for which the vendor preloads fewer pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Rows that the epilogue processes at a time."""
    epilogue_columns: int
    """Columns that the epilogue processes at a time."""


def tile(spec: DeviceSpec, p: Problem) -> MulticorePlan:
    """Split like the vendor, as far as its rules are public."""
    f = p.traits
    split_cores = balanced(f.m, spec.cores["aiv"].count)
    core_n = msd.core_columns(f, spec.cores["aic"].count)
    cube_cores = ceil_div(f.n, core_n)
    cube = msd.digits_tile(spec, p, f.k, min(core_n, f.n), keeps=True)
    columns = min(core_n, f.n, MAX_EPILOGUE_COLUMNS)
    fewer = FEWER_PRELOADS if f.trans_weight and not f.has_bias else {}
    preloads = fewer.get((f.m, f.k, f.n), min(PRELOADS, f.k // (cube.k * cube.steps_b)))
    return MulticorePlan(
        **p.chosen,
        block_dim=max(cube_cores, ceil_div(split_cores, 2)),
        workspaces=workspace_bytes(*msd.digit_views(f), *msd.row_views(f), _products(f)),
        split_cores=split_cores,
        split_rows=ceil_div(f.m, split_cores),
        cube_cores=cube_cores,
        core_n=core_n,
        cube=cube,
        preloads=preloads,
        epilogue_rows=min(f.m, _epilogue_rows(align_up(columns, REPEAT))),
        epilogue_columns=columns,
    )


def _epilogue_rows(columns: int) -> int:
    """Rows of *columns* that a vector core converts to y at a time."""
    if columns <= NARROW_COLUMNS:
        return EPILOGUE_ELEMENTS // columns
    room_bytes = EPILOGUE_BYTES - BYTES_PER_COLUMN * columns - BYTES_OF_ROWS
    return align_down(room_bytes // BYTES_PER_ELEMENT, 32) // columns


def _products(f: CallTraits) -> GmView:
    """Digits times weight `(2 m, n)`: all first digits, then all second digits."""
    return GmView.of("products", INT32, 2 * f.m, f.n)


# ---- programs ----


def build(spec: DeviceSpec, p: Problem, plan: MulticorePlan) -> tuple[Block, ...]:
    """Build a cube core and its two vector cores for each group that is launched."""
    bound = plan.bindings(p)
    cube, vector = _cube(spec, p, plan), _vector(spec, p, plan)
    return launch_mixed(plan.block_dim, cube, vector, lambda _: bound)


def _cube(spec: DeviceSpec, p: Problem, plan: MulticorePlan) -> CoreSteps:
    """The program of a cube core: all of k for its columns."""
    core, f = CubeCore(OP, spec), p.traits
    cube = msd.DigitCube(core, p, plan.cube, f.k)

    def calls(group: int) -> Iterator[StageCall]:
        column = group * plan.core_n
        columns = min(plan.core_n, f.n - column)
        # While vector cores write digits, the first pieces of the weight are loaded into the L2.
        if columns > 0:
            yield cube.prefetch_l2(0, f.k, column, columns, plan.preloads)
        yield core.cross_core_wait_flag, "group", "mte2", DIGITS_READY
        if columns > 0:
            yield from cube.multiply(0, f.k, column, _products(f)[:, column : column + columns])
            yield core.cross_core_set_flag, "group", "fixpipe", PRODUCTS_READY

    return CoreSteps.of_calls(core, plan.block_dim, calls)


def _vector(spec: DeviceSpec, p: Problem, plan: MulticorePlan) -> CoreSteps:
    """The program of a vector core; its second stage allocates the unified buffer anew."""
    core, f = VectorCore(OP, spec), p.traits
    splitter = _RowSplitter(core, p)
    core.reset_buffers()
    epilogue = Epilogue(core, p, plan.epilogue_rows, plan.epilogue_columns)

    def calls(index: int) -> Iterator[StageCall]:
        (group, half), first = divmod(index, 2), index * plan.split_rows
        for row in range(first, min(first + plan.split_rows, f.m)):
            yield splitter.write(row)
        yield sync_all, core, "mte3", "mte2", ALL_SPLIT, DIGITS_READY
        if group < plan.cube_cores:
            yield (core.end_stage,)
            column = group * plan.core_n
            tiles = epilogue.tiles(column, min(plan.core_n, f.n - column)) if half == 0 else []
            for here in tiles[:1]:
                yield from epilogue.prepare(here)
            yield core.cross_core_wait_flag, "group", "mte2", PRODUCTS_READY
            for index, here in enumerate(tiles):
                if index > 0:
                    yield from epilogue.prepare(here)
                yield epilogue.write(here)

    return CoreSteps.of_calls(core, 2 * plan.block_dim, calls)


# ---- the first stage: x in digits ----

FIRST, SECOND = 127.499, 127.499**2 * 2
"""Factors of the digits; the product is computed in double and rounded when it is used."""
UNDO_FIRST, UNDO_SECOND = (float(np.float32(1) / np.float32(x)) for x in (FIRST, SECOND))
ONE_BITS = 0x3F80_0000
"""1.0 as the scalar unit sees it."""
DIVIDED_K = 128
"""From here on a row is multiplied by the reciprocal of its largest magnitude."""
HALVED_K = 4096
"""From here on a row is summed by halves."""


class _RowSplitter:
    """Two digits, the largest magnitude and the sum of a row of x at a time."""

    def __init__(self, core: VectorCore, p: Problem) -> None:
        self.core, self.f = core, p.traits
        self.x = GmView.of("x", p.x.element, p.traits.m, p.traits.k)
        self.is_precise = p.choice.form == "multicore_hp"
        columns = align_up(p.traits.k, REPEAT)
        self.splitter = DigitSplitter(core, p.x.element, EIGHT_BITS, 1, columns)
        self.first_sum = core.tile(FLOAT32, 8)

    def write(self, row: int) -> StageCall:
        """Split row index *row*."""
        digits = (digit.row(row) for digit in msd.digit_views(self.f))
        of_row = (view.row(0)[:, row : row + 1] for view in msd.row_views(self.f))
        return self._row, self.x.row(row), *digits, *of_row

    def _row(self, x: GmView, first: GmView, second: GmView, absmax: GmView, sums: GmView) -> None:
        """x (1, k) -> two digits (1, k), and two values."""
        core, splitter, whole_vectors = self.core, self.splitter, x.columns // REPEAT
        # (1, k) fp16 or bf16 -> fp32, padded to whole vectors of 64 with zeros
        plane = splitter.load(x, 1)
        largest = splitter.absmax(plane)
        if not self.is_precise:
            splitter.store_values(splitter.reduce("sum", self._row_sum(plane)), sums)
        # q in [-1, 1] -> away(q F1) -> away((q - first / F1) F2)
        self._normalise(plane, largest)
        q, work = plane.whole(), splitter.work(plane)
        core.mul(work.whole(), q, FIRST)
        undone = splitter.store_digit(work, first).whole()
        core.mul(undone, undone, UNDO_FIRST)
        core.sub(q, q, undone)
        if self.is_precise:
            # Before the second digit overwrites the first.
            splitter.reduce("sum", splitter.add_halves(work, whole_vectors), self.first_sum)
        core.mul(q, q, SECOND)
        undone = splitter.store_digit(plane, second).whole()
        if self.is_precise:
            core.mul(undone, undone, UNDO_SECOND)
            # The sum of the values that both digits represent, before the division of the row.
            total = splitter.reduce("sum", splitter.add_halves(work, whole_vectors))
            core.add(total[:1], self.first_sum[:1], total[:1])
            core.mul(total[:1], total[:1], largest[:1])
            splitter.store_values(total, sums)
        splitter.store_values(largest, absmax)

    def _row_sum(self, plane: Plane) -> Plane:
        """Add vectors of 64; a tail of 32 comes last, padded with zeros."""
        splitter, vectors, whole = self.splitter, len(plane.chunks), self.f.k // REPEAT
        into = splitter.work(plane)
        # (1, k) as vectors of 64 -> (1, 64): by halves if it is long, else one after the other
        if self.f.k >= HALVED_K:
            # The row itself is needed again: its copy is halved.
            self.core.copy(into.whole(), plane.whole())
            total, following = splitter.add_halves(into, whole), range(whole, vectors)
        else:
            total, following = plane, range(1, vectors)
        for index in following:
            self.core.add(into.chunk(0), total.chunk(0), plane.chunk(index))
            total = into
        return total

    def _normalise(self, plane: Plane, largest: Local) -> None:
        """Divide the row by its largest magnitude."""
        core = self.core
        if self.f.k < DIVIDED_K:
            self.splitter.divide(plane, largest)
            return
        core.sync("vector", "scalar")
        core.get_value("most", largest[:1])
        core.sync("scalar", "vector")
        core.alu("f32_div", "share", ONE_BITS, "most")
        core.mul(plane.whole(), plane.whole(), "share")


# ---- the last stage: products of digits to y ----


Tile = tuple[slice, slice]
"""Some rows and columns of the output."""


class Epilogue:
    """Combines the products of both digits, scales them, and stores y.

    Every queue has one slot: the cast of a tile's products frees theirs, so the next products are
    loaded meanwhile, but the next tile's result waits for this one's store.
    """

    def __init__(self, core: VectorCore, p: Problem, max_rows: int, max_columns: int) -> None:
        """Allocate space for *max_rows* x *max_columns* at a time."""
        self.core, self.f, self.output = core, p.traits, p.output_view
        self.max_rows, self.max_columns = max_rows, max_columns
        width = align_up(max_columns, REPEAT)
        count, self.rows_padded = max_rows * width, align_up(max_rows, 8)
        self.parameters = msd.ColumnParameters(core, p, width)
        self.factors = RowFactors(core, 2 * self.rows_padded)
        self.products_in = [core.vecin(INT32, count) for _ in range(2)]
        self.planes = [core.tile(FLOAT32, count) for _ in range(2)]
        self.offsets = core.tile(FLOAT32, count) if p.traits.has_offset else None
        self.out = core.vecout(p.output.element, count)

    def tiles(self, column: int, count: int) -> list[Tile]:
        """All rows of *count* columns from *column* on."""
        return [
            (slice(top, top + rows), slice(column + left, column + left + columns))
            for left, columns in pieces(count, self.max_columns)
            for top, rows in pieces(self.f.m, self.max_rows)
        ]

    def prepare(self, here: Tile) -> Iterator[StageCall]:
        """Load the parameters of new columns and the row factors, and compute offsets."""
        rows, columns = here[0], self.parameters.views(here[1])
        if rows.start == 0:
            yield self.parameters.load, *columns
        of_rows = (view.row(0)[:, rows] for view in msd.row_views(self.f))
        yield self._spread, columns[0].columns, *of_rows

    def _spread(self, columns: int, absmax: GmView, sums: GmView) -> None:
        """Broadcast row magnitudes and sums to blocks of eight; multiply sums by offsets."""
        # (rows,) -> (rows, 8) for both
        self.factors.load(2 * self.rows_padded, absmax, sums, pitch=self.rows_padded)
        if self.offsets is not None:
            # (rows, 1) x (columns,) -> (rows, columns)
            plane = Plane(self.offsets, absmax.columns, align_up(columns, REPEAT))
            offset = self.parameters.of(columns)["antiquant_offset"]
            outer(self.core, plane, offset, self.factors.of(self.rows_padded))

    def write(self, here: Tile) -> StageCall:
        """Compute the output of a tile that is prepared."""
        (rows, columns), products, m = here, _products(self.f), self.f.m
        second = products[m + rows.start : m + rows.stop, columns]
        return self._tile, self.output[here], products[here], second

    def _tile(self, output: GmView, first: GmView, second: GmView) -> None:
        """Products of both digits (rows, columns) -> y."""
        core, count = self.core, output.rows * align_up(output.columns, REPEAT)
        of_columns = self.parameters.of(output.columns)
        # c = (first / F1 + second / F2) * absmax of the row
        plane, other = self._undone(0, first, UNDO_FIRST), self._undone(1, second, UNDO_SECOND)
        total = plane.whole()
        core.add(total, total, other.whole())
        by_column(core, "mul", plane, self.factors.of(0))
        # y = (sum of the row * offset + c) * scale + bias
        if self.offsets is not None:
            core.add(total, self.offsets[:count], total)
        by_row(core, "mul", plane, of_columns["antiquant_scale"])
        if "bias" in of_columns:
            by_row(core, "add", plane, of_columns["bias"])
        # (rows, columns) fp32 -> the type of y, ties away from zero
        result = self.out.alloc()
        core.cast(result[:count], total, "round")
        core.store_rows(self.out, result, output, plane.columns, with_gaps=True)

    def _undone(self, digit: int, products: GmView, undo: float) -> Plane:
        """The products of a digit, divided by its factor: (rows, columns) int32 -> float32."""
        core, queue, pitch = self.core, self.products_in[digit], align_up(products.columns, REPEAT)
        plane = Plane(self.planes[digit], products.rows, pitch)
        loaded = core.load_rows(queue, products, pitch=pitch, with_gaps=True)
        core.cast(plane.whole(), loaded[: products.rows * pitch])
        queue.free(loaded)
        core.mul(plane.whole(), plane.whole(), undo)
        return plane
