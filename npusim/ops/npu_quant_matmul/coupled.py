"""How the coupled cores of 310P share a quantised product."""

from __future__ import annotations

from collections.abc import Iterator

from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import Core, DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.kernel.tiles import CubeTiles, whole_edges
from npusim.ops.npu_quant_matmul.contract import Problem

__all__ = ["coupled_tiles", "is_pp"]

STRIP_BYTES = 131072
"""Both operands of one load; L1 holds two of them (ops-nn, pp_matmul)."""
PIECE_BYTES = 32768
"""Half of L0A or L0B."""
LONGEST = 256


def is_pp(p: Problem) -> bool:
    """Whether the vendor uses PpMatmul; else its choice is closed, and the same rule is used.

    What PpMatmul reads and writes is FRACTAL_NZ, which TransData makes of an ND x1 before it and
    turns into ND after it. Here the kernel does both itself.
    """
    pr = p.product
    return pr.m >= 1024 and p.bias is not None and not pr.transposed_a


def coupled_tiles(spec: DeviceSpec, p: Problem) -> CubeTiles:
    """Powers of two with the least traffic, in bands that share most.

    ops-nn@e5c3fa9 matmul/quant_batch_matmul_v3, PpMatmul. Loads carry up to 128 KiB.
    """
    core, pr = spec.cores["ai_core"], p.product
    bm, bn = _base(spec, core, p)
    bn = whole_edges(bn, pr.n, p.output.element)
    k = align_up(pr.k, 32)
    strip = STRIP_BYTES // (bm + bn)
    strip = min(k, align_down(strip, 256) if strip >= 256 else align_down(strip, 32))
    base_k = min(strip, PIECE_BYTES // max(bm, bn) // 32 * 32)
    step = max(1, strip // base_k)
    blocks_m, blocks_n = ceil_div(pr.m, bm), ceil_div(pr.n, bn)
    cores = min(core.count, blocks_m * blocks_n * pr.matrices)
    if p.output.element.nbytes(pr.n) < BLOCK_BYTES:
        # A store spills into the next row, which must come later.
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
    """Whether bands are of columns or rows, and their width: a wave then loads least."""
    pr = p.product
    best, least = (False, 1), float("inf")
    for cores_n in range(1, cores + 1):
        cores_m = ceil_div(cores, cores_n)
        cost = cores_n * bn + cores_m * bm
        if cost < least:
            by_column = cores_n * bn + pr.m < cores_m * bm + pr.n
            best, least = (by_column, cores_n if by_column else cores_m), cost
    return best
