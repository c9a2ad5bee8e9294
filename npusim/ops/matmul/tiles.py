"""How MatMulV2, and the kernel of 310P, split a product over cores and buffers.

The tiling of MatMulV2 is closed. The following is derived from times of bfloat16 products with x2
stored as (n, k) (hudingyi688/aiconfigurator-npu@90d7765, MatMulV2.csv: 24 cores, k and n powers of
two from 256 to 16384, and 7168 and 12288), by their growth with k: a core's rows of x1 and x2 take
a fixed time each. All of it is assumed, even more so between the measured sizes:

* a power of two of cores, 16 of 24, computes one block each if that is enough: 32, 64 or 128 rows
  by 32 to 256 columns, with as many blocks as possible for the cores, the squarest of them;
* if up to 64 rows do not fit into L1 with all their k, which is 16384 or more for 16 rows and 8192
  for 32, few columns are cut into blocks of at most 32 x 128, from 16 rows on into narrower ones if
  rows times cores would be below 128;
* otherwise, up to 32 rows and 512 columns are shared evenly by columns among half of the cores;
* below 16 rows, wider products are cut into 256 columns per block, 2048 columns with 8192 of k and
  more into 128: one per core, or the same number for all cores, or for a power of two of them, or
  else as many as half of the cores leave;
* from 16 rows on, up to 256 rows or columns are cut into blocks of up to 128 x 256, of which each
  core gets a rectangle;
* with 257 to 768 rows each of three rows of eight cores takes a third, 128 columns at a time;
* with more than 768 rows each core takes an equal rectangle, in equal tiles of up to 128 x 256 or
  256 x 128 and whole sectors of the output, with the shape for which the busiest core takes the
  least time, if that is less than with the tiles of base: 8192 x 512 with k of 7168 takes 187 us,
  and the cube alone 199 if it runs in whole tiles of 128 x 256;
* everything else is split as in base;
* with 129 to 768 rows a large x2 is read past the L2, once for each row of blocks: products of 256
  and 512 rows take as long as two and three times its bytes from global memory.
"""

from __future__ import annotations

from typing import NamedTuple

from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import Core, DeviceSpec
from npusim.kernel import BLOCK_BYTES, CubeTiles
from npusim.kernel.tiles import whole_edges
from npusim.ops._base_tiles import (
    BIAS_BYTES,
    K_BYTES,
    Block,
    base_block,
    diagonal_tiles,
    l0c_depth,
    longest_k,
)
from npusim.ops.matmul.check import Problem

LARGE_BLOCKS = (128, 256), (256, 128)
ROWS = 32, 64, 128
COLUMNS = 32, 64, 128, 256
"""Allowed columns of blocks for products with one block per core."""
LONG_BLOCK = 32, 128
"""Largest block if rows do not fit into L1 with all their k."""
LONG_CORES = 128
"""Least product of cores and rows, from 16 rows on."""
LONG_COLUMNS = {16: 512, 33: 1024, 65: 256}
"""Up to this many columns are cut this way if there are fewer rows than the key. 1 to 8, 16, 32 and
64 rows were measured; below 16 rows 1024 columns are cut differently."""
HALVED_K, HALVED = 8192, (1024, 4096)
"""k from which on blocks of fewer than 16 rows have 128 columns, and the range of n. 7168 and 8192
of k, and 1024, 2048 and 4096 columns were measured."""
NARROW = 128
"""Columns of a router, with up to 32 rows, that one core computes: production on Atlas A3 has
6144 x 128 in 14 to 16 us, and 6144 x 256 in 8 to 11."""
CORES_ALONG = 8
"""Cores along n if rows are cut into thirds."""
KEPT_X2_BYTES = 32 * 2**20
"""Largest x2 that the L2 caches. 29 MB, cached, and 50 MB, not cached, were measured."""
PAST_L2_ROWS = 768
"""Above this x2 is cached: products of 1024 rows are as fast as the cube."""
LINE = 256
"""k in a line of 512 bytes; loads are a multiple of it, and it is the most k in L0."""


def past_l2_of_v2(p: Problem, cube: CubeTiles) -> tuple[str, ...]:
    """The operands that bypass the L2, according to the measured times."""
    has_few_rows = cube.base_m < p.product.m <= PAST_L2_ROWS
    return ("x2",) if has_few_rows and p.x2.spec.nbytes > KEPT_X2_BYTES else ()


def v2_tiles(spec: DeviceSpec, p: Problem) -> CubeTiles:
    """Split according to the measured times."""
    core, pr = spec.cores["aic"], p.product
    if pr.matrices > 1:
        return diagonal_tiles(spec, p)
    long = _long_rows(core, p)
    if long is not None:
        return _grid(core, p, long)
    if pr.m <= 32 and pr.n <= 512:
        # One core computes all columns if there are few.
        shares = max(1, core.count // 2) if pr.n > NARROW else 1
        return _grid(core, p, (align_up(pr.m, 16), align_up(ceil_div(pr.n, shares), 16)))
    if pr.m < 16:
        return _few_rows(core, p)
    thirds = max(1, core.count // CORES_ALONG)
    if min(pr.m, pr.n) > 256:
        if pr.m <= 256 * thirds:
            return _grid(core, p, (align_up(ceil_div(pr.m, thirds), 16), 128))
        return _many_rows(spec, p)
    block = _one_each(core, p)
    if block is None:
        rows = align_up(ceil_div(pr.m, ceil_div(pr.m, 128)), 16)
        block = rows, min(256, align_up(pr.n, 16))
    return _grid(core, p, block)


def _long_rows(core: Core, p: Problem) -> Block | None:
    """The block if L1 has no room for all k of x1 and anything else, and x1 is small."""
    pr = p.product
    rows = align_up(pr.m, 16)
    fits = rows * pr.k * pr.element.bits // 8 < (core.l1_bytes or 0)
    most = next((columns for below, columns in LONG_COLUMNS.items() if pr.m < below), 0)
    if fits or pr.n > most:
        return None
    columns = min(LONG_BLOCK[1], align_up(pr.n, 16))
    if pr.m >= 16:
        columns = min(columns, align_up(ceil_div(pr.n * rows, LONG_CORES), 16))
    return min(rows, LONG_BLOCK[0]), columns


def _one_each(core: Core, p: Problem) -> Block | None:
    """The block with the largest count up to a power of two of cores, of these the squarest."""
    pr, most = p.product, _power_of_two(core)

    def sizes(of: tuple[int, ...], extent: int) -> list[int]:
        """The smallest size, and those of which more than half is used."""
        return [min(x, align_up(extent, 16)) for x in of if x == of[0] or x < 2 * extent]

    pairs = {}
    for m in sizes(ROWS, pr.m):
        for n in sizes(COLUMNS, pr.n):
            blocks = ceil_div(pr.m, m) * ceil_div(pr.n, n)
            if blocks <= most:
                pairs[blocks, -(m + n), n] = m, n
    return pairs[max(pairs)] if pairs else None


class Even(NamedTuple):
    """Equal rectangles, in the order of preference."""

    cycles: float
    grid: Block
    """Cores along m and along n."""
    block: Block


def _many_rows(spec: DeviceSpec, p: Problem) -> CubeTiles:
    """Above 768 rows and 256 columns: equal rectangles, or the blocks of base."""
    core, pr = spec.cores["aic"], p.product
    sector = spec.transfer.sector_bytes * 8 // p.output.element.bits
    found = []
    for cores_m in range(1, core.count + 1):
        cores_n, rest = divmod(core.count, cores_m)
        if rest:
            continue
        for most_m, most_n in LARGE_BLOCKS:
            rows, tiles_m = _even(pr.m, cores_m, most_m, FRACTAL_ROWS)
            columns, tiles_n = _even(pr.n, cores_n, most_n, sector)
            cycles = tiles_m * tiles_n * _block_cycles(spec, p, (rows, columns))
            grid = ceil_div(pr.m, rows * tiles_m), ceil_div(pr.n, columns * tiles_n)
            found.append(Even(cycles, grid, (rows, columns)))
    least = min(found)
    base = diagonal_tiles(spec, p)
    block = base.base_m, base.base_n
    waves = ceil_div(ceil_div(pr.m, block[0]) * ceil_div(pr.n, block[1]), core.count)
    if waves * _block_cycles(spec, p, block) <= least.cycles:
        return base
    return _in_grid(core, p, least.block, least.grid)


def _even(extent: int, cores: int, most: int, unit: int) -> tuple[int, int]:
    """Size of the tiles of a core's share, whole *unit* up to *most*, and their number."""
    share = ceil_div(extent, cores)
    tiles = ceil_div(share, most)
    return align_up(ceil_div(share, tiles), unit), tiles


def _block_cycles(spec: DeviceSpec, p: Problem, block: Block) -> float:
    """Time of a core for a line of k of *block*: the cube, or loads that hit the L2."""
    core, element, (rows, columns) = spec.cores["aic"], p.product.element, block
    per_cycle = spec.cube.k_per_cycle[element.name]
    cube = ceil_div(rows, spec.cube.m) * ceil_div(columns, spec.cube.n) * ceil_div(LINE, per_cycle)
    line = spec.l2.row_ns * core.clock_hz / 1e9
    line += element.nbytes(LINE) / core.paths["l2_to_l1"].bytes_per_cycle
    return max(cube, (rows + columns) * line)


def _few_rows(core: Core, p: Problem) -> CubeTiles:
    """Below 16 rows: 256 columns per block, or 128."""
    pr, cores = p.product, core.count
    columns = 128 if pr.k >= HALVED_K and HALVED[0] < pr.n < HALVED[1] else 256
    blocks = ceil_div(pr.n, columns)
    if blocks > cores and blocks % cores:
        power = _power_of_two(core)
        cores = power if blocks % power == 0 else max(1, cores // 2)
    return _grid(core, p, (16, columns), cores)


def _power_of_two(core: Core) -> int:
    """The largest power of two up to the number of cores."""
    return 1 << (core.count.bit_length() - 1)


def _grid(core: Core, p: Problem, block: Block, cores: int | None = None) -> CubeTiles:
    """A rectangle of blocks for each of at most *cores*: the shorter side is not divided."""
    pr, count = p.product, cores or core.count
    blocks_m, blocks_n = ceil_div(pr.m, block[0]), ceil_div(pr.n, block[1])
    if blocks_m <= blocks_n:
        columns = ceil_div(blocks_n, max(1, count // blocks_m))
        grid = blocks_m, ceil_div(blocks_n, columns)
    else:
        rows = ceil_div(blocks_m, max(1, count // blocks_n))
        grid = ceil_div(blocks_m, rows), blocks_n
    return _in_grid(core, p, block, grid)


def _in_grid(core: Core, p: Problem, block: Block, grid: Block) -> CubeTiles:
    """A rectangle of blocks for each of *grid* cores along m and along n."""
    pr = p.product
    base_k = longest_k(p, block, LINE)
    step = _step(core, p, block, base_k)
    return CubeTiles(
        *(*block, base_k, step, step, 2 * step, 2 * step),
        l0c_depth=l0c_depth(core, p, block),
        cores=grid[0] * grid[1],
        schedule="grid",
        order="row",
        l2_m=ceil_div(pr.m, block[0]),
        l2_n=ceil_div(pr.n, block[1]),
        cores_m=grid[0],
        cores_n=grid[1],
        resident_a=step * base_k >= pr.k,
        resident_b=step * base_k >= pr.k,
    )


def _step(core: Core, p: Problem, block: Block, base_k: int) -> int:
    """Pieces of k per load into L1, equal for both operands: as many as half of L1 holds, in whole
    lines, as in a published version of the tiling library (cache_tiling_calc.cc)."""
    room = (core.l1_bytes or 0) - (BIAS_BYTES if p.bias else 0)
    k = room * 8 // p.product.element.bits // (2 * sum(block))
    most = ceil_div(p.product.k, base_k)
    return min(max(1, (align_down(k, LINE) or k) // base_k), most)


# ---- 310P ----


def coupled_tiles(spec: DeviceSpec, p: Problem) -> CubeTiles:
    """310P: loads of three pieces of k."""
    core, pr = spec.cores["ai_core"], p.product
    bm, bn = base_block(core, p)
    bn = whole_edges(bn, pr.n, p.output.element)
    blocks_m, blocks_n = ceil_div(pr.m, bm), ceil_div(pr.n, bn)
    base_k = longest_k(p, (bm, bn), K_BYTES * 8 // pr.element.bits)
    cores = min(core.count, blocks_m * blocks_n * pr.matrices)
    if p.output.element.nbytes(pr.n) < BLOCK_BYTES:
        # A store spills into the next row, which must be stored later.
        cores = 1
    return CubeTiles(
        *(bm, bn, base_k, 3, 3, 6, 6),
        l0c_depth=l0c_depth(core, p, (bm, bn)),
        cores=cores,
        schedule="round_robin",
        order="diagonal",
        l2_m=min(max(1, core.count // 2), blocks_m),
        l2_n=min(2, blocks_n),
        resident_a=3 * base_k >= pr.k,
        resident_b=3 * base_k >= pr.k,
    )
