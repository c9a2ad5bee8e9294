"""x written in digits, and digits times the weight: what the msd kernels have in common.

A plane holds pieces of x, a row each. Each row is divided by its largest magnitude, multiplied by a
factor and rounded to whole numbers, its first digits; the remainder is multiplied by the next
factor, and so on. Largest magnitudes, sums and digits go to global memory. The digits of all rows
are stacked, first digits first: a left operand `(terms x m, k)` of int8 or int4. The cube makes
int32 sums of it, exact, which vector cores combine afterwards.

ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2 op_kernel/*_msd_split_k.h, *_msd_group.h,
*_msd_multicore.h, op_host/op_tiling/weight_quant_batch_matmul_v2_compute_matmul_tiling.cpp
(CalcCommonTiling: the base tile; how large a left operand may be to stay in L1 is taken from there
for int8 and assumed for int4).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, INT32, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Binary, BinaryOp, BlockReduce, Local
from npusim.kernel.cube_core import CubeCore
from npusim.kernel.matmul import BaseTile, Matmul
from npusim.kernel.matrices import GmMatrix, GmTile, l1_bytes
from npusim.kernel.plane import REPEAT, Plane, by_column, spread_rows
from npusim.kernel.repeats import in_reach
from npusim.kernel.rows import pieces
from npusim.kernel.steps import StageCall
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.ops._digits import Scheme
from npusim.ops.npu_weight_quant_batchmatmul.choice import CallTraits, scheme_of
from npusim.ops.npu_weight_quant_batchmatmul.problem import Problem

# ---- digits in global memory ----


def gm_digits(f: CallTraits) -> GmMatrix:
    """The left operand `(terms x m, k)`: first digits of all rows, then second digits, ..."""
    scheme = scheme_of(f)
    return GmMatrix("digits", scheme.dtype, scheme.terms * f.m, f.k, k_is_first=False)


def digit_views(f: CallTraits) -> tuple[GmView, ...]:
    """The same matrix as vector cores write it: `(m, k)` for each digit."""
    digits = gm_digits(f).view
    return tuple(digits[top : top + f.m, :] for top in range(0, digits.rows, f.m))


def row_views(f: CallTraits, k_blocks: int = 1) -> tuple[GmView, GmView]:
    """The largest magnitude and the sum of each row of each block of k, `(blocks, m)` each."""
    most, sums = (GmView.of(name, FLOAT32, k_blocks, f.m) for name in ("most", "sums"))
    return most, sums


# ---- vector cores: x in digits ----


def reduce_by_halves(core: VectorCore, op: BinaryOp, dst: Plane, src: Plane, count: int) -> Plane:
    """Reduce the first *count* vectors of 64 of each row: lower half `op` upper half, repeatedly.

    With an odd count the last vector is kept for the next round. Returns *dst*, or *src* if there
    is but one vector; its first vectors are the result. They may be the same.
    """
    while count > 1:
        half = count // 2
        if src.rows <= half:
            # A micro-op a row.
            width = half * REPEAT
            for row in range(src.rows):
                lower, upper = src.row(row, width), src.row(row).at(width, width)
                core.emit(Binary(op, dst.row(row, width), lower, upper))
        else:
            # A micro-op for each vector of 64, all rows at once.
            for index in range(half):
                lower, upper = src.chunk(index), src.chunk(half + index)
                core.emit(*in_reach(Binary(op, dst.chunk(index), lower, upper)))
        core.barrier("vector")
        if count % 2:
            core.copy(dst.chunk(half), src.chunk(count - 1))
        src, count = dst, count - half
    return src


class DigitSplitter:
    """The buffers of a vector core for planes of up to some size, and what it does to the planes.

    Values of rows (largest magnitudes, sums) are given back with `store_values`.
    """

    def __init__(
        self,
        core: VectorCore,
        x: DType,
        scheme: Scheme,
        max_rows: int,
        columns: int,
        *,
        loads_ahead: bool = True,
    ) -> None:
        """Claim room for *max_rows* x *columns*, a multiple of 64.

        *loads_ahead* says whether x of the next plane is loaded as soon as that of this one has
        been widened, or only when `split` is done.
        """
        self.core, self.scheme, self.columns, self.loads_ahead = core, scheme, columns, loads_ahead
        size, rows_padded = max_rows * columns, align_up(max_rows, 8)
        self.x_in = core.vecin(x, size)
        self._held: list[Local] = []
        """x of the plane under way, if the next one is not to be loaded yet."""
        self._plane, self._work = core.tile(FLOAT32, size), core.tile(FLOAT32, size)
        # A block for each row also finds room here, before there are halves.
        self._half = core.tile(FLOAT16, max(size, BLOCK_BYTES // 2 * rows_padded))
        self.digits_out = core.vecout(scheme.dtype, size)
        self.values_out = core.vecout(FLOAT32, rows_padded, depth=2)

    def write(
        self,
        sums_first: bool,
        x: GmView,
        rows: int,
        absmax: GmView,
        sums: GmView | None,
        *digits: GmView,
    ) -> None:
        """Write the digits of *x*, a plane of *rows* rows, and two values of each row.

        Sums are those of x itself, so they come before the division, and with *sums_first* also
        before the largest magnitudes.
        """
        # (rows, columns) fp16 or bf16 -> fp32
        plane = self.load(x, rows)
        if sums is not None and sums_first:
            self.store_values(self.row_sums(plane), sums)
        largest = self.absmax(plane)
        if sums is not None and not sums_first:
            self.store_values(self.row_sums(plane), sums)
        self.divide(plane, largest)
        self.store_values(largest, absmax)
        # (rows, columns) in [-1, 1] -> two or three digits
        self.split(plane, *digits)

    def load(self, x: GmView, rows: int) -> Plane:
        """*x* as a plane of *rows* rows in float32, each filled up with zeros.

        A row of *x* is a row of the plane, or one row of *x* is all of them in one burst.
        """
        core, columns = self.core, self.columns
        size, count = rows * columns, x.rows * x.columns // rows
        # (rows, columns) fp16 or bf16 -> fp32, exactly
        loaded = core.load_rows(self.x_in, x, pitch=size // x.rows, with_gaps=True)
        plane = Plane(self._plane, rows, columns)
        core.cast(plane.whole(), loaded[:size])
        if self.loads_ahead:
            self.x_in.free(loaded)
        else:
            self._held.append(loaded)
        # Zeros change neither the largest magnitude nor the sum.
        if count < columns:
            with core.independent():
                for row in range(rows):
                    core.duplicate(plane.row(row).at(count, columns - count), 0.0)
        return plane

    def work(self, plane: Plane) -> Plane:
        """A second plane of the same size; everything here but `divide` writes into it."""
        return Plane(self._work, plane.rows, plane.columns)

    def absmax(self, plane: Plane) -> Local:
        """The largest magnitude of each row."""
        # (rows, columns) -> (rows, 64) by halves -> (rows,)
        work = self.work(plane)
        self.core.abs(work.whole(), plane.whole())
        return self.reduce("max", reduce_by_halves(self.core, "max", work, work, len(plane.chunks)))

    def row_sums(self, plane: Plane) -> Local:
        """The sum of each row by halves."""
        return self.reduce("sum", self.add_halves(plane, len(plane.chunks)))

    def add_halves(self, plane: Plane, count: int) -> Plane:
        """The first *count* vectors of 64 of each row added up: see `reduce_by_halves`."""
        return reduce_by_halves(self.core, "add", self.work(plane), plane, count)

    def reduce(self, op: Literal["sum", "max"], plane: Plane, into: Local | None = None) -> Local:
        """One value of the first 64 of each row, by neighbours, in *into* if not None."""
        core = self.core
        # (rows, 64) -> (rows, 8) -> (rows,)
        partial = self._half.as_dtype(FLOAT32, 8 * plane.rows)
        core.emit(*in_reach(BlockReduce(op, partial, plane.chunk(0))))
        core.barrier("vector")
        values = self.values_out.alloc() if into is None else into
        core.block_reduce(op, values[: plane.rows], partial)
        return values

    def store_values(self, values: Local, view: GmView) -> None:
        """Store a value of each row and give its tile back."""
        self.core.store_rows(self.values_out, values, view)

    def divide(self, plane: Plane, values: Local) -> None:
        """Divide each row by its value, while *values* has not been stored."""
        count = align_up(plane.rows, 8)
        # (rows,) -> (rows, 8), a block for each row
        blocks = self._half.as_dtype(FLOAT32, 8 * count)
        spread_rows(self.core, blocks, values[:count])
        by_column(self.core, "div", plane, blocks)

    def store_digit(self, plane: Plane, digit: GmView) -> Plane:
        """Round *plane*, ties away from zero, and store it; returns the rounded plane.

        Rows of *digit* are those of the plane, or one row is all of them: see `load`.
        """
        core, size = self.core, plane.rows * plane.columns
        rounded, half = self.work(plane), self._half[:size]
        core.cast(rounded.whole(), plane.whole(), "round")
        # There is no cast from float32 to int8 or int4: by way of fp16, exact for digits.
        core.cast(half, rounded.whole(), "none")
        tile = self.digits_out.alloc()
        core.cast(tile[:size], half, "none")
        core.store_rows(self.digits_out, tile, digit, size // digit.rows, with_gaps=True)
        return rounded

    def split(self, plane: Plane, *digits: GmView) -> None:
        """Store the digits of rows in [-1, 1], each digit to its view."""
        core, whole = self.core, plane.whole()
        # d1 = round(q F1); rest = q F1 - d1; d2 = round(rest F2); and so on
        first, *following = self.scheme.factors
        core.mul(whole, whole, first)
        rounded = self.store_digit(plane, digits[0])
        for factor, digit in zip(following, digits[1:], strict=True):
            core.sub(whole, whole, rounded.whole())
            core.mul(whole, whole, factor)
            rounded = self.store_digit(plane, digit)
        while self._held:
            self.x_in.free(self._held.pop())


# ---- cube cores: digits times the weight ----

L0_BYTES = 128
"""A row of a piece in L0A and L0B."""
STEPS = 4
"""Pieces of L0 that are loaded into L1 at a time."""
MAX_M, MAX_N = 128, 256
MAX_KEPT_BYTES = 256 * 1024
"""A left operand of more bytes is streamed (CalcCommonTiling; its branch for larger ones is dead:
it asks for more than L1 has)."""


def core_columns(f: CallTraits, cores: int) -> int:
    """Columns of a cube core; the closed tables that may say otherwise are not followed."""
    unit = 256 if not f.is_nz and not f.trans_weight else 32
    return max(unit, align_up(f.n // cores, unit))


def digits_tile(spec: DeviceSpec, p: Problem, k: int, columns: int, keeps: bool) -> BaseTile:
    """The base tile for *columns* and *k*; with *keeps*, digits stay in L1 if they fit.

    For ND weights `(k, n)` and NZ ones `(n, k)` the vendor looks its tile up in closed tables first
    or asks a general tiling: they are taken to give the same tile (assumed).
    """
    digits, weight, f = gm_digits(p.traits), p.gm_weight, p.traits
    m = min(MAX_M, align_up(digits.rows, FRACTAL_ROWS))
    n = min(MAX_N, align_up(columns, FRACTAL_ROWS))
    base_k = L0_BYTES * 8 // weight.dtype.bits
    # Digits stay if they are few, and all of their k and two pieces of the weight fit into L1.
    kept_bytes = l1_bytes(digits.dtype, m, align_up(k, base_k), False)
    streamed_bytes = 2 * l1_bytes(weight.dtype, n, base_k * STEPS, weight.k_is_first)
    core = spec.cores["aic"]
    stays = (
        digits.dtype.nbytes(digits.rows * k) <= MAX_KEPT_BYTES
        and kept_bytes + streamed_bytes <= core.usable_bytes("l1")
        and digits.rows <= m
    )
    has_common_tile = f.is_nz != f.trans_weight
    fits_twice = 2 * INT32.nbytes(m * n) <= core.usable_bytes("l0c")
    l0c_depth = 2 if fits_twice and not has_common_tile else 1
    return BaseTile(m, n, base_k, STEPS, STEPS, l0c_depth, "a" if keeps and stays else None)


class DigitCube:
    """How a cube core multiplies digits, to int32 products in a workspace."""

    def __init__(self, core: CubeCore, p: Problem, tile: BaseTile, max_k: int) -> None:
        """*max_k* is the longest product."""
        self.tile = tile
        self.digits, self.weight = gm_digits(p.traits), p.gm_weight
        self._cube = Matmul(core, tile, self.digits, self.weight, max_k)

    def prefetch_l2(
        self, start: int, k: int, column: int, columns: int, max_pieces: int
    ) -> StageCall:
        """What loads the first pieces of a weight, at most *max_pieces*, and throws them away."""
        count = min(max_pieces, ceil_div(k, self.tile.k * self.tile.steps_b))
        weight = self.weight.tile(column, min(columns, self.tile.n), start, k)
        return self._prefetch_l2, weight, count

    def multiply(self, start: int, k: int, column: int, products: GmView) -> Iterator[StageCall]:
        """What multiplies k from *start* on for the columns of *products* from *column* on.

        *products* is `(terms x m, columns)`.
        """
        digits, tile = self.digits, self.tile
        # (terms x m, k) of digits, once for all tiles of columns
        if tile.keep:
            yield self._cube.fetch, digits.tile(0, digits.rows, start, k)
        for left, width in pieces(products.columns, tile.n):
            for top, rows in pieces(products.rows, tile.m):
                yield (
                    self._base_tile,
                    digits.tile(top, rows, start, k),
                    self.weight.tile(column + left, width, start, k),
                    products[top : top + rows, left : left + width],
                )

    def _prefetch_l2(self, weight: GmTile, count: int) -> None:
        self._cube.prefetch_l2(weight.extent, weight.k, count)

    def _base_tile(self, digits: GmTile, weight: GmTile, products: GmView) -> None:
        """(rows, k) @ (k, columns) -> (rows, columns)."""
        # int8 or int4 digits x weight -> int32 sums, exact
        sums = self._cube.multiply(digits.extent, weight.extent, digits.k)
        self._cube.fixpipe(products, sums)


# ---- vector cores: parameters of columns ----


class ColumnParameters:
    """Scale, offset and bias of some columns, as float32 in the unified buffer."""

    def __init__(self, core: VectorCore, p: Problem, max_columns: int) -> None:
        """Claim room for *max_columns*, a multiple of 64."""
        self.core = core
        operands = (p.antiquant_scale, p.antiquant_offset, p.bias)
        self._views = [view for each in operands if (view := p.column_view(each)) is not None]
        raw_bytes = sum(
            align_up(view.dtype.nbytes(max_columns), BLOCK_BYTES) for view in self._views
        )
        self.raw_in = core.vecin(INT8, raw_bytes)
        self._wide = [core.tile(FLOAT32, max_columns) for _ in self._views]

    def views(self, columns: slice) -> tuple[GmView, ...]:
        """Those of *columns* in global memory."""
        return tuple(view[:, columns] for view in self._views)

    def load(self, *views: GmView) -> None:
        """Load *views* `(columns,)`, which `of` names afterwards."""
        core, start = self.core, 0
        loaded = core.load_rows(self.raw_in, *views)
        for view, values in zip(views, self.of(views[0].columns).values(), strict=True):
            raw = loaded[start:].as_dtype(view.dtype, view.columns)
            if view.dtype is FLOAT32:
                core.copy(values, raw)
            else:
                core.cast(values, raw)
            start += align_up(view.row_bytes, BLOCK_BYTES)
        self.raw_in.free(loaded)

    def of(self, columns: int) -> dict[str, Local]:
        """Name -> the first *columns* of what was loaded, float32."""
        return {
            view.name: values[:columns]
            for view, values in zip(self._views, self._wide, strict=True)
        }
