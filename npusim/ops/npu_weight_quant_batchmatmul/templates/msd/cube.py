"""Digits times weight on the cube: int32 sums, which vector cores combine afterwards.

The digits of all rows are stacked, first digits first: a left operand `(terms x m, k)` of
int8 or int4. The tile is that of ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_host/
op_tiling/weight_quant_batch_matmul_v2_compute_matmul_tiling.cpp (CalcCommonTiling); how large a
left operand may be to stay in L1 is taken from there for int8 and assumed for int4.
"""

from __future__ import annotations

from npusim.data.dtypes import INT32
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe
from npusim.kernel.builder import Builder
from npusim.kernel.cube import BaseTile, CubeWriter, GmFeed, GmTile, l1_bytes
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, repeat
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits.scheme import gm_digits
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight import gm_weight
from npusim.ops.npu_weight_quant_batchmatmul.traits import CallTraits

__all__ = ["DigitCube", "core_columns", "digits_tile"]

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
    digits, weight, f = gm_digits(p.traits), gm_weight(p), p.traits
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
    """Writes the products of one cube core into a workspace, int32."""

    def __init__(self, builder: Builder, p: Problem, tile: BaseTile, max_k: int) -> None:
        """*max_k* is the longest product."""
        self._builder, self._tile = builder, tile
        self._digits, self._weight = gm_digits(p.traits), gm_weight(p)
        a, b = GmFeed(builder, self._digits), GmFeed(builder, self._weight)
        self._writer = CubeWriter(builder, tile, a, b, max_k)

    def prefetch_l2(self, start: int, k: int, column: int, columns: int, max_pieces: int) -> None:
        """Load the first pieces of a weight, at most *max_pieces*, and throw them away."""
        count = min(max_pieces, ceil_div(k, self._tile.k * self._tile.steps_b))
        weight = self._weight.tile(column, min(columns, self._tile.n), start, k)
        repeat(self._builder, self._prefetch_l2, weight, count)

    def multiply(self, start: int, k: int, column: int, products: GmView) -> None:
        """Positions [start, start + k) of k for the columns of *products* from *column* on.

        *products* is `(terms x m, columns)`.
        """
        digits, tile = self._digits, self._tile
        # (terms x m, k) of digits, once for all tiles of columns
        if tile.keep:
            repeat(self._builder, self._fetch, digits.tile(0, digits.rows, start, k))
        for left, width in pieces(products.columns, tile.n):
            for top, rows in pieces(products.rows, tile.m):
                repeat(
                    self._builder,
                    self._base_tile,
                    digits.tile(top, rows, start, k),
                    self._weight.tile(column + left, width, start, k),
                    products[top : top + rows, left : left + width],
                )

    def _prefetch_l2(self, weight: GmTile, count: int) -> None:
        self._writer.prefetch_l2(weight.extent, weight.k, count)

    def _fetch(self, digits: GmTile) -> None:
        self._writer.fetch(digits.extent, digits.k)

    def _base_tile(self, digits: GmTile, weight: GmTile, products: GmView) -> None:
        """(rows, k) @ (k, columns) -> (rows, columns)."""
        rows, columns = products.rows, products.columns
        rows_padded = align_up(rows, FRACTAL_ROWS)
        # int8 or int4 digits x weight -> int32 sums, exact
        slot = self._writer.product(digits.extent, weight.extent, digits.k)
        # L0C (columns / 16, rows_padded, 16) int32 -> (rows, columns) int32
        total = slot.of(INT32, rows_padded * align_up(columns, FRACTAL_ROWS))
        self._builder.emit(Fixpipe(products.operand, total, rows, columns, rows_padded, INT32))
        self._writer.release(slot)
