"""x split into digits, and digits times the weight: the common part of the msd kernels.

Largest magnitudes, sums and digits of rows go to global memory. The digits of all rows are stacked,
first digits first: a left operand `(terms x m, k)` of int8 or int4. The cube multiplies it to exact
int32 sums, which vector cores combine afterwards.

ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2 op_kernel/*_msd_split_k.h, *_msd_group.h,
*_msd_multicore.h, op_host/op_tiling/weight_quant_batch_matmul_v2_compute_matmul_tiling.cpp
(CalcCommonTiling: the base tile; the largest left operand that stays in L1 comes from there for
int8 and is assumed for int4).
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.data.dtypes import FLOAT32, INT8, INT32
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Local
from npusim.kernel.cube_core import CubeCore
from npusim.kernel.matmul import BaseTile, Matmul
from npusim.kernel.matrices import GmMatrix, GmTile, l1_bytes
from npusim.kernel.rows import pieces
from npusim.kernel.steps import StageCall
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.ops.npu_weight_quant_batchmatmul.choice import CallTraits, scheme_of
from npusim.ops.npu_weight_quant_batchmatmul.problem import Problem

# ---- digits in global memory ----


def gm_digits(f: CallTraits) -> GmMatrix:
    """The left operand `(terms x m, k)`: first digits of all rows, then second digits, ..."""
    scheme = scheme_of(f)
    return GmMatrix("digits", scheme.dtype, scheme.terms * f.m, f.k, k_is_first=False)


def digit_views(f: CallTraits) -> tuple[GmView, ...]:
    """The same matrix in the form that vector cores write: `(m, k)` for each digit."""
    digits = gm_digits(f).view
    return tuple(digits[top : top + f.m, :] for top in range(0, digits.rows, f.m))


def row_views(f: CallTraits, k_blocks: int = 1) -> tuple[GmView, GmView]:
    """The largest magnitude and the sum of each row of each block of k, `(blocks, m)` each."""
    most, sums = (GmView.of(name, FLOAT32, k_blocks, f.m) for name in ("most", "sums"))
    return most, sums


# ---- cube cores: digits times the weight ----

L0_BYTES = 128
"""Bytes of a row of a piece in L0A and L0B."""
STEPS = 4
"""Pieces of L0 that are loaded into L1 at a time."""
MAX_M, MAX_N = 128, 256
MAX_RESIDENT_BYTES = 256 * 1024
"""A larger left operand is streamed (CalcCommonTiling; its branch for larger ones is dead: it needs
more than all of L1)."""


def core_columns(f: CallTraits, cores: int) -> int:
    """Columns of a cube core; closed tables that may differ are not modelled."""
    unit = 256 if not f.is_nz and not f.trans_weight else 32
    return max(unit, align_up(f.n // cores, unit))


def digits_tile(spec: DeviceSpec, p: Problem, k: int, columns: int, keeps: bool) -> BaseTile:
    """The base tile for *columns* and *k*; with *keeps*, digits stay in L1 if they fit.

    For ND weights `(k, n)` and NZ ones `(n, k)` the vendor first looks the tile up in closed tables
    or uses a general tiling: both are assumed to give the same tile.
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
        digits.dtype.nbytes(digits.rows * k) <= MAX_RESIDENT_BYTES
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
        """Load the first pieces of a weight, at most *max_pieces*, and discard them."""
        count = min(max_pieces, ceil_div(k, self.tile.k * self.tile.steps_b))
        weight = self.weight.tile(column, min(columns, self.tile.n), start, k)
        return self._prefetch_l2, weight, count

    def multiply(self, start: int, k: int, column: int, products: GmView) -> Iterator[StageCall]:
        """Multiply k from *start* on for the columns of *products* from *column* on.

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
        """Allocate space for *max_columns*, a multiple of 64."""
        self.core = core
        operands = (p.antiquant_scale, p.antiquant_offset, p.bias)
        self._views = [view for each in operands if (view := p.column_view(each)) is not None]
        raw_bytes = sum(
            align_up(view.dtype.nbytes(max_columns), BLOCK_BYTES) for view in self._views
        )
        self.raw_in = core.vecin(INT8, raw_bytes)
        self._wide = [core.tile(FLOAT32, max_columns) for _ in self._views]

    def views(self, columns: slice) -> tuple[GmView, ...]:
        """The parameters of *columns* in global memory."""
        return tuple(view[:, columns] for view in self._views)

    def load(self, *views: GmView) -> None:
        """Load *views* `(columns,)`, which `of` then gives by name."""
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
