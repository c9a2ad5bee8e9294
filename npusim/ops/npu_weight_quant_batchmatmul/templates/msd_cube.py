"""Digits times weight on the cube: int32 sums, which vector cores put together afterwards.

The digits of all rows lie below each other, first digits first: a left operand `(terms x m, k)` of
int8 or int4. The tile is that of ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_host/
op_tiling/weight_quant_batch_matmul_v2_msd_tiling.cpp; how large a left operand may be to stay in
L1 is taken from there for int8 and assumed for int4.
"""

from __future__ import annotations

from collections.abc import Callable

from npusim.data.dtypes import INT4, INT8, INT32
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe, Global
from npusim.kernel.builder import Builder
from npusim.kernel.cube import BaseTile, CubeWriter, GmFeed, GmMatrix, l1_bytes
from npusim.kernel.rows import pieces
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight import gm_weight
from npusim.ops.npu_weight_quant_batchmatmul.traits import CallTraits

__all__ = ["DigitCube", "core_columns", "digits_of", "digits_tile", "terms_of"]

L0_BYTES = 128
"""A row of a piece in L0A and L0B."""
STEPS = 4
MOST_M, MOST_N = 128, 256


def terms_of(f: CallTraits) -> int:
    """How many digits a number has."""
    return 2 if f.weight == "int8" else 3


def digits_of(f: CallTraits) -> GmMatrix:
    """The digits as they lie in their workspace."""
    dtype = INT8 if f.weight == "int8" else INT4
    return GmMatrix("digits", dtype, terms_of(f) * f.m, f.k, k_is_first=False)


def core_columns(f: CallTraits, cores: int) -> int:
    """Columns of a cube core; the closed tables that may say otherwise are not followed."""
    unit = 256 if not f.is_nz and not f.trans_weight else 32
    return max(unit, align_up(f.n // cores, unit))


def digits_tile(spec: DeviceSpec, p: Problem, k: int, columns: int, keeps: bool) -> BaseTile:
    """The base tile for *columns* of the output, and *k*; *keeps* asks for digits that stay."""
    digits, weight = digits_of(p.traits), gm_weight(p)
    m = min(MOST_M, align_up(digits.rows, FRACTAL_ROWS))
    n = min(MOST_N, align_up(columns, FRACTAL_ROWS))
    l0c_bytes = spec.cores["aic"].usable_bytes("l0c")
    base_k = L0_BYTES * 8 // weight.dtype.bits
    for width, depth, steps in ((n, base_k, STEPS), (min(n, MOST_N // 2), 2 * base_k, STEPS // 2)):
        kept = l1_bytes(digits.dtype, m, k, False)
        streamed = l1_bytes(weight.dtype, width, depth * steps, weight.k_is_first)
        fits = kept + 2 * streamed <= spec.cores["aic"].usable_bytes("l1")
        if keeps and fits and digits.rows <= m:
            l0c_depth = 2 if 8 * m * align_up(width, FRACTAL_ROWS) <= l0c_bytes else 1
            return BaseTile(m, width, depth, steps, steps, l0c_depth, "a")
    return BaseTile(m, n, base_k, STEPS, STEPS, 2 if 8 * m * n <= l0c_bytes else 1)


class DigitCube:
    """Writes the products of one cube core into workspace `products`, int32."""

    def __init__(self, builder: Builder, p: Problem, tile: BaseTile, k: int) -> None:
        """*k* is the longest product."""
        self._builder, self._tile = builder, tile
        self._digits, self._weight = digits_of(p.traits), gm_weight(p)
        a, b = GmFeed(builder, self._digits), GmFeed(builder, self._weight)
        self._writer = CubeWriter(builder, tile, a, b, k)

    def prefetch_l2(self, start: int, k: int, column: int, columns: int, most: int) -> None:
        """Load the first pieces of a weight, at most *most*, and throw them away."""
        width = min(columns, self._tile.n)
        count = min(most, ceil_div(k, self._tile.k * self._tile.steps_b))
        shifts = {"weight": self._weight.shift(column) + self._weight.shift_k(start)}
        key = ("touch", width, k, count)
        self._builder.call(key, shifts, lambda: self._writer.prefetch_l2(width, k, count))

    def multiply(
        self, start: int, k: int, column: int, columns: int, place_bytes: int, pitch_bytes: int
    ) -> None:
        """Positions [start, start + k) of k for *columns* columns from *column* on.

        The sums go to *place_bytes* in the workspace, rows *pitch_bytes* apart.
        """
        builder, digits, weight = self._builder, self._digits, self._weight
        if self._tile.keep:
            shifts = {"digits": digits.shift_k(start)}
            builder.call(("fetch", k), shifts, lambda: self._writer.fetch(digits.rows, k))
        for left, width in pieces(columns, self._tile.n):
            for top, rows in pieces(digits.rows, self._tile.m):
                shifts = {
                    "digits": digits.shift_k(start) + digits.shift(top),
                    "weight": weight.shift_k(start) + weight.shift(column + left),
                    "products": place_bytes + top * pitch_bytes + INT32.nbytes(left),
                }
                key = (rows, width, k, pitch_bytes)
                builder.call(key, shifts, self._writing(*key))

    def _writing(self, rows: int, columns: int, k: int, pitch_bytes: int) -> Callable[[], None]:
        return lambda: self._product(rows, columns, k, pitch_bytes)

    def _product(self, rows: int, columns: int, k: int, pitch_bytes: int) -> None:
        slot = self._writer.product(rows, columns, k)
        high = align_up(rows, FRACTAL_ROWS)
        total = slot.of(INT32, high * align_up(columns, FRACTAL_ROWS))
        place = Global("products", 0, INT32.nbytes(columns), rows, pitch_bytes)
        self._builder.emit(Fixpipe(place, total, rows, columns, high, INT32))
        self._writer.release(slot)
