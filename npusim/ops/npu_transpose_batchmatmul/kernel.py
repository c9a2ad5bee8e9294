"""How npu_transpose_batchmatmul is split over cores and buffers, and what a cube core runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from npusim.data.dtypes import FLOAT32, UINT64
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import Core, DeviceSpec
from npusim.kernel import (
    Binding,
    Block,
    CubeCore,
    CubeTiles,
    GmMatrix,
    GmTile,
    GmTiles,
    GmView,
    GmViews,
    Matmul,
    Pieces,
    Product,
    ScaleTable,
    Step,
    base_tile,
)
from npusim.kernel.blocks import gm_matrix_b
from npusim.kernel.launch import launch
from npusim.kernel.tiles import whole_steps
from npusim.ops import _vocabulary as ops
from npusim.ops._base_tiles import diagonal_tiles
from npusim.ops.npu_transpose_batchmatmul.check import Problem

# ---- tiles ----

Pair = tuple[int, int]
"""Rows and columns of a block."""

LARGE = 256
"""Rows, and columns, of a head that is large."""
BLOCK = 32768
"""Elements of a block that fill L0C."""
PIECE_BYTES = 32768
"""Half of L0A or L0B."""
MOST = 1024
"""The most rows or columns of a block."""
MOST_WITH_SCALE = 512
"""The most columns of a block whose words fit the fixpipe buffer."""
LEAST_USE = 0.6
"""The share of cores below which blocks of half as many rows are used."""
WORD_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """The cube's tiles; every cube core is started, with or without work."""

    cube: CubeTiles


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split like the vendor's base template."""
    return Plan(block_dim=spec.cores["aic"].count, cube=tiles_of(spec, p))


def tiles_of(spec: DeviceSpec, p: Problem) -> CubeTiles:
    """The blocks of all heads, assigned to the cores one after the other."""
    core, pr, has_scale = spec.cores["aic"], p.product, p.scale is not None
    is_large = pr.m >= LARGE and pr.n > LARGE and not has_scale and pr.element is not FLOAT32
    if is_large:
        cube = diagonal_tiles(spec, p)
        if {cube.base_m, cube.base_n} <= {128, 256}:
            return _dealt(pr, core, cube)
    bm, bn = _block(core, pr, has_scale)
    base_k = align_down(PIECE_BYTES * 8 // pr.element.bits // max(bm, bn), 16)
    base_k = min(base_k, align_up(pr.k, 16))
    room = (core.l1_bytes or 0) - (WORD_BYTES * bn if has_scale else 0)
    pieces = ceil_div(pr.k, base_k)
    step_a, step_b = (
        min(max(1, align_down(room // 2 // pr.element.nbytes(side * base_k), 4) // 2), pieces)
        for side in (bm, bn)
    )
    step_a, step_b = whole_steps(step_a, step_b)
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


def _dealt(pr: Product, core: Core, cube: CubeTiles) -> CubeTiles:
    """*cube* with all blocks of a head in one L2 tile, in row-major order."""
    blocks_m, blocks_n = ceil_div(pr.m, cube.base_m), ceil_div(pr.n, cube.base_n)
    cores = min(core.count, blocks_m * blocks_n * pr.matrices)
    return replace(
        cube, cores=cores, schedule="round_robin", order="row", l2_m=blocks_m, l2_n=blocks_n
    )


def _block(core: Core, pr: Product, has_scale: bool) -> Pair:
    """Rows and columns that are powers of two, unless idle cores share the columns."""
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
    """The least power of two that is at least *extent*, from 16 on."""
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


# ---- programs ----


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Build one block for each cube core that has work.

    It computes a head's output block by block: (rows, k) of input times (k, columns) of
    weight, summed in fp32 in L0C, and stored by the fixpipe between the columns of other heads.
    """
    core, pr = CubeCore("npu_transpose_batchmatmul", spec, alone=True), p.product
    # (M, B * K), or (M, K) for each head
    row = pr.matrices * pr.k if p.heads_inside else pr.k
    x = GmMatrix("input", pr.element, pr.m, row, k_is_first=False)
    weight = replace(gm_matrix_b(pr), name="weight")
    # Assumed: like in matmul, the fixpipe stores after the last Mmad of a block.
    tiling = base_tile(plan.cube)
    cube = Matmul(core, tiling, x, weight, pr.k, unit_flag=True)
    scales = None if p.scale is None else ScaleTable(core, tiling.n)

    def block(
        x: GmTile, weight: GmTile, output: GmView, scale: GmView | None, first_k: int
    ) -> None:
        """`output (rows, columns) = x (rows, k) @ weight (k, columns)`, times *scale* `(columns,)`.

        Sums start at *first_k*.
        """
        # (rows, k) @ (k, columns), fp32 sums that start from zero
        sums = cube.multiply(x.extent, weight.extent, x.k, first_k=first_k)
        if scales is None or scale is None:
            cube.fixpipe(output, sums)
        else:
            cube.fixpipe(output, sums, "qf322b8", scales.load(scale))

    pieces = Pieces.of(plan.cube, pr)
    head = pieces.matrix
    # With a weight in FRACTAL_NZ each core starts at another piece of k.
    first_k = [cube.stagger(core, pr.k) * pr.fractal_b for core in range(plan.cube.cores)]
    arguments = (
        _rows_of(x, pieces, p),
        weight.tiles(pieces.column, pieces.columns, head),
        _output_of(p, pieces),
        _scale_of(p, pieces),
        np.array(first_k)[pieces.core],
    )
    bound = {name: Binding(name) for name in (*(each.name for each in p.inputs), "output")}
    return launch(core, "aic", Step(block, arguments, pieces.core), bound=lambda _: bound)


def _rows_of(x: GmMatrix, pieces: Pieces, p: Problem) -> GmTiles:
    """The rows of input for each piece, of its head."""
    if not p.heads_inside:
        return x.tiles(pieces.row, pieces.rows, pieces.matrix)
    k = p.product.k
    return x.tiles(pieces.row, pieces.rows, k=pieces.matrix * k, count=k)


def _output_of(p: Problem, pieces: Pieces) -> GmViews:
    """The destination of each piece: of (slices x M, heads of a slice x N)."""
    pr, heads = p.product, p.product.matrices // p.slices
    part, place = np.divmod(pieces.matrix, heads)
    output = GmView.of("output", p.output.element, p.slices * pr.m, heads * pr.n)
    row, column = part * pr.m + pieces.row, place * pr.n + pieces.column
    return GmViews.of(output, row, column, pieces.rows, pieces.columns)


def _scale_of(p: Problem, pieces: Pieces) -> GmViews | None:
    """The words of each piece."""
    if p.scale is None:
        return None
    words = GmView.vector("scale", UINT64, p.product.matrices * p.product.n)
    first = pieces.matrix * p.product.n + pieces.column
    return GmViews.of(words, 0, first, 1, pieces.columns)
