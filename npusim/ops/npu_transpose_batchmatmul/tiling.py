"""How npu_transpose_batchmatmul is split over cores and buffers.

ops-nn@e5c3fa9 matmul/transpose_batch_mat_mul/op_host/op_tiling, the base template. Heads that are
large matrices of 16 bits get the tiles of `matmul`; others get sides that are powers of two. How
these are weighed against ones of half as many rows, and how cores that are left over share the
columns of a head, is assumed in detail, as are the tiles of large heads of float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import Core, DeviceSpec
from npusim.kernel.product import Product
from npusim.kernel.tiles import CubeTiles, Piece, work
from npusim.ops import _protocol
from npusim.ops.matmul.contract import check as check_matmul
from npusim.ops.matmul.templates.base import diagonal_tiles
from npusim.ops.npu_transpose_batchmatmul.contract import Problem

__all__ = ["Plan", "shares", "starts_elsewhere", "tile"]

Pair = tuple[int, int]
"""Rows and columns of a block."""

LARGE = 256
"""Rows, and columns, of a head that is large."""
BLOCK = 32768
"""Numbers of a block that fill L0C."""
PIECE_BYTES = 32768
"""Half of L0A or L0B."""
MOST = 1024
"""Rows or columns of a block."""
MOST_WITH_SCALE = 512
"""Columns of a block whose words the fixpipe buffer holds."""
LEAST_USE = 0.6
"""The share of cores below which blocks of half as many rows are taken."""
WORD_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """The cube's tiles; every cube core is started, with work or without."""

    cube: CubeTiles


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split as the vendor's base template does."""
    return Plan(block_dim=spec.cores["aic"].count, cube=tiles(spec, p.product, p.scale is not None))


def tiles(spec: DeviceSpec, pr: Product, has_scale: bool) -> CubeTiles:
    """The blocks of all heads, dealt out to the cores one after the other."""
    core = spec.cores["aic"]
    large = _large_tiles(spec, pr, has_scale)
    if large is not None:
        return large
    bm, bn = _block(core, pr, has_scale)
    base_k = align_down(PIECE_BYTES * 8 // pr.element.bits // max(bm, bn), 16)
    base_k = min(base_k, align_up(pr.k, 16))
    room = (core.l1_bytes or 0) - (WORD_BYTES * bn if has_scale else 0)
    pieces = ceil_div(pr.k, base_k)
    step_a, step_b = (
        min(max(1, align_down(room // 2 // pr.element.nbytes(side * base_k), 4) // 2), pieces)
        for side in (bm, bn)
    )
    step_a, step_b = _multiples(step_a, step_b)
    return _dealt(
        pr,
        core,
        CubeTiles(
            *(bm, bn, base_k, step_a, step_b, 2 * step_a, 2 * step_b),
            l0c_depth=2 if 2 * bm * bn <= BLOCK else 1,
            cores=1,
            schedule="round_robin",
            order="row",
            l2_m=1,
            l2_n=1,
        ),
    )


def _multiples(step_a: int, step_b: int) -> Pair:
    """The longer step cut to a multiple of the shorter one."""
    if step_a > step_b:
        return step_a // step_b * step_b, step_b
    return step_a, step_b // step_a * step_a


def _dealt(pr: Product, core: Core, cube: CubeTiles) -> CubeTiles:
    """*cube* with all blocks of a head in one tile of the L2, row after row."""
    blocks_m, blocks_n = ceil_div(pr.m, cube.base_m), ceil_div(pr.n, cube.base_n)
    cores = min(core.count, blocks_m * blocks_n * pr.matrices)
    return replace(
        cube, cores=cores, schedule="round_robin", order="row", l2_m=blocks_m, l2_n=blocks_n
    )


def _large_tiles(spec: DeviceSpec, pr: Product, has_scale: bool) -> CubeTiles | None:
    """The tiles of `matmul`, if heads are large and its blocks are of 128 or 256 by the same."""
    if pr.m < LARGE or pr.n <= LARGE or has_scale or pr.element is FLOAT32:
        return None
    layout = "FRACTAL_NZ" if pr.fractal_b else "ND"
    x1 = TensorSpec((pr.matrices, pr.m, pr.k), pr.element.name)
    rows, columns = (pr.n, pr.k) if pr.transposed_b else (pr.k, pr.n)
    x2 = TensorSpec((pr.matrices, rows, columns), pr.element.name, layout)
    alike = check_matmul(spec, x1, x2.T if pr.transposed_b else x2, template="base")
    cube = diagonal_tiles(spec, alike)
    if {cube.base_m, cube.base_n} - {128, 256}:
        return None
    return _dealt(pr, spec.cores["aic"], cube)


def _block(core: Core, pr: Product, has_scale: bool) -> Pair:
    """Rows and columns that are powers of two, unless left-over cores share the columns."""
    rows = min(_power(pr.m), MOST)
    full, half = (_with_columns(pr, side, has_scale) for side in (rows, max(16, rows // 2)))
    block = full
    if _use(core, pr, full) < LEAST_USE or _traffic(pr, half) < _traffic(pr, full):
        block = half
    bm, bn = block
    blocks_m, blocks_n = ceil_div(pr.m, bm), ceil_div(pr.n, bn)
    if blocks_m * blocks_n * pr.matrices < core.count:
        parts = core.count // pr.matrices // blocks_m
        bn = align_up(ceil_div(pr.n, max(parts, blocks_n)), pr.unit_n)
    return bm, bn


def _power(extent: int) -> int:
    """The least power of two that is *extent* or more, from 16 on."""
    return max(16, 1 << (extent - 1).bit_length())


def _with_columns(pr: Product, rows: int, has_scale: bool) -> Pair:
    most = MOST_WITH_SCALE if has_scale else MOST
    return rows, min(BLOCK // rows, most, _power(pr.n))


def _use(core: Core, pr: Product, block: Pair) -> float:
    """The share of cores that have work, over all rounds."""
    blocks = ceil_div(pr.m, block[0]) * ceil_div(pr.n, block[1]) * pr.matrices
    return blocks / align_up(blocks, core.count)


def _traffic(pr: Product, block: Pair) -> int:
    """Rows and columns that all blocks of a head load."""
    return pr.m * ceil_div(pr.n, block[1]) + pr.n * ceil_div(pr.m, block[0])


def shares(cube: CubeTiles, pr: Product) -> tuple[tuple[Piece, ...], ...]:
    """The blocks of each core, in order."""
    return work(cube, pr)


def starts_elsewhere(pr: Product) -> bool:
    """Whether each core begins at a piece of k of its own."""
    return pr.fractal_b
