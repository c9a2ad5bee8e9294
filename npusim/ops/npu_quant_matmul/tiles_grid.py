"""A grid of cores over the product, each with one rectangle of it, and the tiles of 310P.

**The vendor's older tiling.** A published edition of the tiling library (cache tiling,
cache_tiling_basic_block*.cc) tries a list of blocks and takes the one that its estimator rates
best. Only this is modelled of the estimator: a load takes as long as that of the busiest core at
128 bytes a cycle, or of all cores at 2550, whichever is longer. Of the blocks whose load is within
a fifth of the shortest, the largest is used, with the least for the busiest core, on the fewest
cores, the squarest of equally large ones (inferred). Several matrices are first assigned to groups
of cores (assumed).

The fifth is derived from measured times (validation rows of npu_dynamic_quant and
npu_quant_matmul). From k = 4096 to 16384, (512, k, 1024) grows by 3.9 us per 1024 of k and (1024,
k, 512) by 4.8, of which quantising the rows takes 0.8 and 1.5. In the remaining 3.2, 16 cores load
384 KiB each with blocks of 256 x 128, 120 bytes a ns as with other shapes; 24 cores with 192 x 128
would load 320 KiB, at a rate that is a sixth lower. (64, k, 1024) grows by 0.9, 140 bytes a ns with
64 x 64, and would load a quarter more with 64 x 96.

**310P** (ops-nn@e5c3fa9 matmul/quant_batch_matmul_v3, PpMatmul): powers of two with the least
traffic, in bands that share most. Loads carry up to 128 KiB.
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import Core, DeviceSpec
from npusim.kernel import BLOCK_BYTES, CubeTiles
from npusim.kernel.tiles import whole_edges
from npusim.ops.npu_quant_matmul.check import Problem

BLOCKS = (
    *((64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (256, 64), (96, 320), (128, 192)),
    *((128, 256), (192, 128), (256, 128), (320, 96), (320, 64), (64, 320), (512, 64), (64, 512)),
)
FEW_ROWS = ((16, 256), (16, 64))
"""Blocks of up to 16 rows: the narrow one is used if each core has at most one of it."""
STRIP_BYTES = 65536
"""The least that one load copies to L1."""
LINE = 256
"""k of a load is a multiple of this: 512 bytes of fp16, as which the library counts int8 too."""
PIECE_BYTES = 32768
"""Half of L0A or L0B."""
CORE_BYTES, CHIP_BYTES = 128, 2550
"""L2 bytes per cycle for one core and for all of them, by the library's estimator."""
MAX_LOAD = 1.2
"""The longest load for larger blocks, relative to the shortest possible; see above."""


def grid_tiles(core: Core, p: Problem) -> CubeTiles:
    """The block and the grid with the least to load."""
    pr = p.product
    # As many groups as there is work for, if each takes the same number of matrices.
    groups = ceil_div(pr.matrices, ceil_div(pr.matrices, core.count))
    cores = core.count // groups
    choices = []
    max_n = 256 if p.start else 512
    for bm, bn in FEW_ROWS if pr.m <= pr.unit_m == 16 else BLOCKS:
        m, n = min(bm, align_up(pr.m, pr.unit_m)), min(bn, align_up(pr.n, pr.unit_n), max_n)
        if m % pr.unit_m or n % pr.unit_n:
            continue
        if (bm, bn) == FEW_ROWS[1] and ceil_div(pr.n, n) > cores:
            continue
        blocks_m, blocks_n = ceil_div(pr.m, m), ceil_div(pr.n, n)
        for along_m in range(1, min(cores, blocks_m) + 1):
            rows = ceil_div(blocks_m, along_m)
            columns = ceil_div(blocks_n, min(blocks_n, cores // along_m))
            load = rows * m + columns * n
            used = ceil_div(blocks_m, rows), ceil_div(blocks_n, columns)
            choices.append((-m * n, load, used[0] * used[1], m + n, -m, used, (m, n)))
    least = min(_cycles(load, busy) for _, load, busy, *_ in choices)
    near = (x for x in choices if _cycles(x[1], x[2]) <= MAX_LOAD * least)
    *_, (cores_m, cores_n), (bm, bn) = min(near)
    rows, columns = ceil_div(ceil_div(pr.m, bm), cores_m), ceil_div(ceil_div(pr.n, bn), cores_n)
    return _with_steps(core, p, (bm, bn), (rows, columns), (cores_m, cores_n, groups))


def _cycles(load: int, cores: int) -> float:
    """The cycles of *cores* that load *load* bytes each, by the library's estimator."""
    return max(load / CORE_BYTES, load * cores / CHIP_BYTES)


def _with_steps(
    core: Core,
    p: Problem,
    base: tuple[int, int],
    blocks: tuple[int, int],
    grid: tuple[int, int, int],
) -> CubeTiles:
    """Fill L1: an operand of which a core has one block stays if strips of the other one fit."""
    pr = p.product
    (bm, bn), bits = base, pr.element.bits
    unit = 256 // bits
    k = align_up(pr.k, unit)
    l0c_depth = 2 if 2 * bm * bn <= 128 * 256 and (p.start is None or 2 * 4 * bn <= 1024) else 1
    room = core.usable_bytes("l1") - (8 + (4 if p.start else 0)) * bn * l0c_depth

    def k_of(side: int) -> tuple[int, int]:
        """k of a load of *side* rows, at least 64 KiB or all, and k of a piece of it in L0."""
        strip = min(k, align_up(ceil_div(STRIP_BYTES * 8 // bits, side), LINE))
        return strip, _divisor(strip, PIECE_BYTES * 8 // bits // max(bm, bn), unit)

    options = []
    for name, side, other, count in (("a", bm, bn, blocks[0]), ("b", bn, bm, blocks[1])):
        strip, base_k = k_of(other)
        nbytes = pr.element.nbytes(side * align_up(k, base_k) + 2 * other * strip)
        if count == 1 and nbytes <= room:
            options.append((nbytes, name, strip, base_k))
    if options:
        _, resident, strip, base_k = min(options)
        step = strip // base_k
    else:
        resident, (strip, base_k) = "", k_of(max(bm, bn))
        step = max(1, min(strip // base_k, room // pr.element.nbytes(2 * (bm + bn) * base_k)))
    whole = ceil_div(k, base_k)
    return CubeTiles(
        *(bm, bn, base_k),
        step_ka=whole if resident == "a" else step,
        step_kb=whole if resident == "b" else step,
        depth_a=whole if resident == "a" else 2 * step,
        depth_b=whole if resident == "b" else 2 * step,
        l0c_depth=l0c_depth,
        cores=grid[0] * grid[1] * grid[2],
        schedule="grid",
        order="row",
        l2_m=ceil_div(pr.m, bm),
        l2_n=ceil_div(pr.n, bn),
        cores_m=grid[0],
        cores_n=grid[1],
        cores_batch=grid[2],
        resident_a=resident == "a",
        resident_b=resident == "b",
    )


def _divisor(extent: int, limit: int, unit: int) -> int:
    """The largest divisor of *extent* that is a multiple of *unit* and at most *limit*."""
    steps = extent // unit
    return unit * max(d for d in range(1, min(steps, limit // unit) + 1) if steps % d == 0)


def few_rows_tiles(core: Core, p: Problem) -> CubeTiles | None:
    """Few rows and a large weight: one row of blocks (UpdateSmallMTbeTiling); or None."""
    pr = p.product
    if not _is_few_rows(core, p):
        return None
    bm = align_up(pr.m, 16)
    if bm <= 96:
        bn = align_down(min((core.l0c_bytes or 0) // 4 // bm, 512), 32)
        if ceil_div(pr.n, bn) > core.count:
            return None
    else:

        def worth(n: int) -> int:
            used, rounds = (
                min(ceil_div(pr.n, n), core.count),
                ceil_div(ceil_div(pr.n, n), core.count),
            )
            return 7 * bm * n // (bm + n) + 10 * used - 100 * rounds

        bn = max((n for n in (128, 192, 256) if bm * n <= 32768), key=worth)
    base_k = min(128, PIECE_BYTES // max(bm, bn) // 32 * 32)
    l0c_depth = 2 if 2 * bm * bn <= 128 * 256 else 1
    room = core.usable_bytes("l1") - 8 * bn * l0c_depth
    step_a, step_b = (8, 4) if bm <= 96 else (4, 4)
    while 2 * base_k * (step_a * bm + step_b * bn) > room:
        step_a, step_b = (step_a // 2, step_b) if step_a >= step_b else (step_a, step_b // 2)
    blocks_n = ceil_div(pr.n, bn)
    return CubeTiles(
        *(bm, bn, base_k, step_a, step_b, 2 * step_a, 2 * step_b, l0c_depth),
        cores=ceil_div(blocks_n, ceil_div(blocks_n, core.count)),
        schedule="grid",
        order="row",
        l2_m=1,
        l2_n=blocks_n,
        cores_n=ceil_div(blocks_n, ceil_div(blocks_n, core.count)),
    )


def _is_few_rows(core: Core, p: Problem) -> bool:
    pr = p.product
    is_shape = pr.m <= 256 and pr.k >= 4096 and pr.n >= 7168 and pr.matrices == 1
    is_kind = p.pertoken_scale is not None and p.output.dtype == "bfloat16" and pr.fractal_b
    return is_shape and is_kind and p.bias is None and core.count in (16, 24)


# ---- 310P ----

PP_STRIP_BYTES = 131072
"""Bytes of both operands in one load; L1 holds two of them (ops-nn, pp_matmul)."""
LONGEST = 256


def is_pp(p: Problem) -> bool:
    """Whether the vendor uses PpMatmul; otherwise its choice is closed, and the same rule is used.

    PpMatmul reads and writes FRACTAL_NZ: TransData converts an ND x1 before it and the result to ND
    after it. Here the kernel does both itself.
    """
    pr = p.product
    return pr.m >= 1024 and p.bias is not None and not pr.transposed_a


def coupled_tiles(spec: DeviceSpec, p: Problem) -> CubeTiles:
    """The tiles of 310P."""
    core, pr = spec.cores["ai_core"], p.product
    bm, bn = _base(spec, core, p)
    bn = whole_edges(bn, pr.n, p.output.element)
    k = align_up(pr.k, 32)
    strip = PP_STRIP_BYTES // (bm + bn)
    strip = min(k, align_down(strip, 256) if strip >= 256 else align_down(strip, 32))
    base_k = min(strip, PIECE_BYTES // max(bm, bn) // 32 * 32)
    step = max(1, strip // base_k)
    blocks_m, blocks_n = ceil_div(pr.m, bm), ceil_div(pr.n, bn)
    cores = min(core.count, blocks_m * blocks_n * pr.matrices)
    if p.output.element.nbytes(pr.n) < BLOCK_BYTES:
        # A store overlaps the next row, which must be stored later.
        cores = 1
    by_column, width = _band(p, bm, bn, min(cores, blocks_m * blocks_n))
    return CubeTiles(
        *(bm, bn, base_k, step, step, 2 * step, 2 * step),
        l0c_depth=2 if 2 * 4 * bm * bn <= (core.l0c_bytes or 0) else 1,
        cores=cores,
        schedule="round_robin",
        order="row" if by_column else "column",
        l2_m=blocks_m if by_column else width,
        l2_n=width if by_column else blocks_n,
    )


def _sizes(extent: int, size: int) -> Iterator[int]:
    """*size* and its doubles, up to the first that holds *extent*."""
    while size < extent and size < LONGEST:
        yield size
        size *= 2
    yield size


def _base(spec: DeviceSpec, core: Core, p: Problem) -> tuple[int, int]:
    pr = p.product
    ratio = spec.l2.read_bytes_per_s / spec.gm.read_bytes_per_s
    best, least = (16, 16), float("inf")
    for m in _sizes(pr.m, pr.unit_m):
        for n in _sizes(pr.n, pr.unit_n):
            if 4 * m * n > (core.l0c_bytes or 0):
                continue
            blocks_n = ceil_div(pr.n, n)
            wave_m = min(pr.m, ceil_div(core.count, blocks_n) * m)
            wave_n = min(pr.n, core.count * n)
            a = ratio if wave_m * pr.k > spec.l2.capacity_bytes else 1
            b = ratio if wave_n * pr.k > spec.l2.capacity_bytes else 1
            cost = a / n + b / m
            if cost < least:
                best, least = (m, n), cost
    m, n = best
    last = ceil_div(pr.n, n) % core.count
    if pr.m <= m and 0 < last < 0.75 * core.count:
        share = ceil_div(pr.n, core.count)
        n = align_up(ceil_div(share, ceil_div(share, LONGEST)), 16)
    return m, n


def _band(p: Problem, bm: int, bn: int, cores: int) -> tuple[bool, int]:
    """Whether bands are of columns, not rows, and their width with the least load per wave."""
    pr = p.product
    best, least = (False, 1), float("inf")
    for cores_n in range(1, cores + 1):
        cores_m = ceil_div(cores, cores_n)
        cost = cores_n * bn + cores_m * bm
        if cost < least:
            by_column = cores_n * bn + pr.m < cores_m * bm + pr.n
            best, least = (by_column, cores_n if by_column else cores_m), cost
    return best
