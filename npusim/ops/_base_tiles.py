"""The tiles of MatMulV3's base kernel: how it splits a product over cores and buffers.

Source: ops-nn@e5c3fa9 matmul/mat_mul_v3, matmul_v3_base_tiling.cpp and matmul_v3_l2_cache.cpp; for
the L2 tiles also the golden tiling of its unit tests for 8192 cubed; the order of the search, and
what counts as an unfriendly row, are assumed. The runtime knowledge base is left out, so shapes in
it are split by rule too.
"""

from __future__ import annotations

from typing import Protocol

from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.tensor import Operand
from npusim.devices.schema import Core, DeviceSpec
from npusim.kernel import CubeTiles, Product
from npusim.kernel.tiles import whole_steps


class Factors(Protocol):
    """The properties of a problem that decide its tiles."""

    @property
    def product(self) -> Product: ...

    @property
    def bias(self) -> Operand | None: ...


Block = tuple[int, int]
"""Rows and columns."""

K_BYTES = 128
"""Most bytes of k of a piece in L0."""
FULL_BLOCK = 128 * 256
"""Elements of a large block."""
LARGE = 12 * 256
"""Rows or columns from which on an axis counts as large."""
PIECE_BYTES = 32768
"""Half of L0A or L0B."""
BIAS_BYTES = 1024
"""Bytes of L1 that a bias occupies."""
USUAL = 4, 6
"""Blocks of an L2 tile, along m and along n, for products that need no cut."""
SHARE = 100, 192
"""Share of the L2 that a tile may use: 100 of 192 MiB."""
LINE_BYTES = 512


def diagonal_tiles(spec: DeviceSpec, p: Factors) -> CubeTiles:
    """Blocks of one size, assigned to the cores along the diagonals of L2 tiles."""
    core, pr = spec.cores["aic"], p.product
    block = base_block(core, p)
    base_k = longest_k(p, block, K_BYTES * 8 // pr.element.bits)
    step_a, step_b = _steps(core, p, block, base_k)
    if step_a == 8 and _is_middling(p, block):
        step_a = 4
    blocks_m, blocks_n = ceil_div(pr.m, block[0]), ceil_div(pr.n, block[1])
    l2_m, l2_n = _l2_tile(spec, pr, block)
    return CubeTiles(
        *(*block, base_k, step_a, step_b, 2 * step_a, 2 * step_b),
        l0c_depth=l0c_depth(core, p, block),
        cores=min(core.count, blocks_m * blocks_n * pr.matrices),
        schedule="round_robin",
        order="diagonal",
        l2_m=min(l2_m, blocks_m),
        l2_n=min(l2_n, blocks_n),
        resident_a=step_a * base_k >= pr.k,
        resident_b=step_b * base_k >= pr.k,
    )


# ---- blocks ----


def base_block(core: Core, p: Factors) -> Block:
    """Rows and columns of a block."""
    pr, cores = p.product, core.count
    if pr.matrices > 1 and pr.m >= 256 >= pr.n:
        return _batch_block(pr)
    bm, bn = _large_block(p)
    blocks = ceil_div(pr.m, bm) * ceil_div(pr.n, bn) * pr.matrices
    waves = ceil_div(blocks, cores)
    if blocks < cores or pr.m < 256 or pr.n < 256:
        bm, bn = _fitted(core, *_small_block(core, p))
    elif (bm, bn) == (128, 256) and not pr.transposed_a and waves < 4:
        # Whole waves: as many rows of blocks as the cores can compute at a time.
        rows = waves * cores // (ceil_div(pr.n, bn) * pr.matrices)
        bm = align_up(ceil_div(pr.m, rows), 16)
    elif (bm, bn) == (128, 256) and not pr.transposed_a and pr.m <= 672:
        bm = align_up(ceil_div(pr.m, ceil_div(pr.m, bm)), 16)
    return min(bm, align_up(pr.m, 16)), min(bn, align_up(pr.n, 16))


def _batch_block(p: Product) -> Block:
    """For several matrices with many rows and few columns: as BatchMatMulV3 splits them.

    Equal shares of at most 512 rows, or of half as many if a block then loads less for its output
    (ops-nn@e5c3fa9 batch_mat_mul_v3, batch_mat_mul_v3_base_tiling.cpp). That fewer rows, which it
    also splits anew, are split like one matrix is assumed.
    """
    columns = align_up(p.n, 16)
    blocks = []
    for most in (512, 256):
        rows = align_up(ceil_div(p.m, ceil_div(p.m, most)), 16)
        power = 1 << (FULL_BLOCK // rows).bit_length() - 1
        blocks.append((rows, min(columns, power)))
    return min(blocks, key=lambda block: 1 / block[0] + 1 / block[1])


def _large_block(p: Factors) -> Block:
    """For many blocks: 128 x 256, or the other way round if that loads less."""
    pr = p.product
    if pr.transposed_a == pr.transposed_b:
        is_tall = pr.transposed_a
    elif pr.fractal_b:
        is_tall = False
    elif min(pr.m, pr.n) >= LARGE:
        tall = ceil_div(pr.m, 256) * pr.n + ceil_div(pr.n, 128) * pr.m
        is_tall = tall < ceil_div(pr.m, 128) * pr.n + ceil_div(pr.n, 256) * pr.m
    else:
        # If one axis is large, it gets the longer side.
        is_tall = pr.m > pr.n
    return (256, 128) if is_tall else (128, 256)


def _small_block(core: Core, p: Factors) -> Block:
    """For few blocks: the pair with the smallest sum of rows and columns per wave."""
    pr = p.product
    cores = max(1, core.count // pr.matrices)

    def share(extent: int, others: int, most: int) -> int:
        """A core's share of *extent* if *others* blocks already occupy some cores."""
        return min(align_up(max(1, extent // max(1, cores // others)), 16), most)

    pairs = []
    if pr.transposed_b:
        for m, n in ((64, 64), (128, 128), (128, 256)):
            m, n = min(m, align_up(pr.m, 16)), min(n, align_up(pr.n, 16))
            pairs.append((m, share(pr.n, ceil_div(pr.m, m), 512)))
            pairs.append((share(pr.m, ceil_div(pr.n, n), 512), n))
            pairs.append((m, n))
    else:
        for n, max_m in ((256, 128), (128, 128), (512, 64)):
            n = min(n, align_up(pr.n, 16))
            pairs.append((share(pr.m, ceil_div(pr.n, n), max_m), n))
    # L0 holds 16 of k for at most 512 rows; the bias table has room for 256 columns.
    most_n = 256 if p.bias else 512
    fitting = [(m, n) for m, n in pairs if n <= most_n and 4 * m * n <= (core.l0c_bytes or 0)]

    def cost(pair: Block) -> int:
        blocks = ceil_div(pr.m, pair[0]) * ceil_div(pr.n, pair[1])
        return sum(pair) * ceil_div(blocks, cores)

    # If L0C is too small for any of them, claiming the buffers reports it.
    return min(fitting or pairs, key=cost)


def _fitted(core: Core, bm: int, bn: int) -> Block:
    """Reduce sides between 128 and 256 until the block fits L0C."""
    room = (core.l0c_bytes or 0) // 4
    if 128 < bm < 256:
        bn = min(bn, 128)
    if 128 < bn < 256:
        bm = min(bm, 128)
    return (bm, bn) if bm * bn <= room else (align_down(room // bn, 16), bn)


def _is_middling(p: Factors, block: Block) -> bool:
    """Sizes for which the vendor halves the step: multiples of 256, with k not a power of two."""
    pr = p.product
    if min(pr.m, pr.n) < 768 or any(extent % 256 for extent in (pr.m, pr.n, pr.k)):
        return False
    is_full = block[0] * block[1] == FULL_BLOCK and pr.m * pr.n > 24 * FULL_BLOCK
    return is_full and bool(pr.k & (pr.k - 1)) and bool(pr.m % 16384) and bool(pr.n % 16384)


# ---- steps in L1 and L0 ----


def longest_k(p: Factors, block: tuple[int, int], most: int) -> int:
    """The most k, up to *most*, that half of L0 holds for the longer side of *block*."""
    size = p.product.element.bits // 8
    base = most
    while base > 16 and base * max(block) * size > PIECE_BYTES:
        base //= 2
    return min(base, align_up(p.product.k, 16))


def l0c_depth(core: Core, p: Factors, block: tuple[int, int]) -> int:
    """Blocks in L0C at a time: two if they, and their columns of bias, fit."""
    bm, bn = block
    fits = 2 * 4 * bm * bn <= (core.l0c_bytes or 0)
    return 2 if fits and (not p.bias or bn <= 128) else 1


def _steps(core: Core, p: Factors, block: tuple[int, int], base_k: int) -> tuple[int, int]:
    """Pieces of k per load into L1, of x1 and of x2; L1 holds twice as many."""
    size = p.product.element.bits // 8
    # The kernel uses cube cores only, so the 256 bytes for messages with vector cores are free.
    room_bytes = (core.l1_bytes or 0) - (BIAS_BYTES if p.bias else 0)
    a, b = pieces_in_l1(core, block, base_k * size, room_bytes)
    most = ceil_div(p.product.k, base_k)
    step_a, step_b = (min(_whole_rows(x // 2, base_k * size), most) for x in (a, b))
    return whole_steps(step_a, step_b)


def pieces_in_l1(core: Core, block: Block, row_bytes: int, room_bytes: int) -> tuple[int, int]:
    """Pieces of rows of *row_bytes* in half of L1 each, but in total at most *room_bytes*.

    If there are more, the smaller side of *block* gets fewer. At least two of each: claiming the
    buffers reports an L1 that is too small for that.
    """
    bm, bn = block
    a, b = (max(2, (core.l1_bytes or 0) // 2 // (base * row_bytes)) for base in block)
    if (a * bm + b * bn) * row_bytes > room_bytes:
        a, b = (max(2, a // 2), b) if bm < bn else (a, max(2, b // 2))
    return a, b


def _whole_rows(step: int, row_bytes: int) -> int:
    """The largest number of steps whose rows are whole lines of 512 bytes, or of 256."""
    for line in (512, 256):
        for less in range(step, 0, -1):
            if less * row_bytes % line == 0:
                return less
    return step


# ---- tiles of the L2 ----


def _l2_tile(spec: DeviceSpec, p: Product, block: tuple[int, int]) -> tuple[int, int]:
    """Blocks of an L2 tile, along m and along n.

    Pairs are tried from one block per core downwards; a pair counts if it fits and its last tiles
    keep the cores busy, and replaces the previous one unless more cores would share a row or a
    column.
    """
    (bm, bn), cores = block, spec.cores["aic"].count
    blocks_m, blocks_n = ceil_div(p.m, bm), ceil_div(p.n, bn)
    budget_bytes = spec.l2.capacity_bytes * SHARE[0] // SHARE[1]
    if _nbytes(p, p.m, p.n) <= budget_bytes:
        return USUAL
    most_sharing = 6 if _has_whole_lines(p) else 3
    fewest = ceil_div(cores, most_sharing)
    best: tuple[int, int] | None = None
    least = most_sharing, most_sharing
    for along in range(min(cores, blocks_n), 0, -1):
        for down in range(min(cores, blocks_m), 0, -1):
            if _nbytes(p, down * bm, along * bn) > budget_bytes:
                continue
            if _last(blocks_m, down) < min(fewest, blocks_m):
                continue
            if _last(blocks_n, along) < min(fewest, blocks_n):
                continue
            sharing = _sharing(cores, blocks_m, down), _sharing(cores, blocks_n, along)
            if best is None or (sharing[0] <= least[0] and sharing[1] <= least[1]):
                best, least = (down, along), sharing
    return best or USUAL


def _nbytes(p: Product, rows: int, columns: int) -> int:
    """Bytes of x1, x2 and the output of a tile."""
    rows, columns = min(rows, p.m), min(columns, p.n)
    return p.element.nbytes(rows * p.k + p.k * columns + rows * columns)


def _last(blocks: int, step: int) -> int:
    """Blocks of the last tile."""
    return blocks % step or step


def _sharing(cores: int, blocks: int, step: int) -> int:
    """How many cores share a row or a column, in the tile where most do."""
    return ceil_div(cores, min(step, _last(blocks, step)))


def _has_whole_lines(p: Product) -> bool:
    """Whether the rows of both matrices in memory are whole lines of 512 bytes."""
    inner = (p.m if p.transposed_a else p.k), (p.k if p.transposed_b else p.n)
    return all(p.element.nbytes(extent) % LINE_BYTES == 0 for extent in inner)
