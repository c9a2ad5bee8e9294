"""In which tiles the blocks of a large product are walked, so that the L2 holds what they share.

Source: ops-nn@e5c3fa9 matmul/mat_mul_v3, matmul_v3_base_tiling.cpp, and the golden tiling of its
unit tests for 8192 cubed. Assumed: the order of the search, and what an unfriendly row is.
"""

from __future__ import annotations

from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.product import Product

__all__ = ["l2_tile"]

USUAL = 4, 6
"""Blocks of a tile, downwards and along, of products that need no cut."""
SHARE = 100, 192
"""How much of the L2 a tile may take: 100 of 192 MiB."""
LINE_BYTES = 512


def l2_tile(spec: DeviceSpec, p: Product, block: tuple[int, int]) -> tuple[int, int]:
    """Blocks of a tile, downwards and along.

    Pairs are tried from one block a core down; a pair counts if it fits and if its last tiles keep
    the cores busy, and replaces the one before unless more cores would share a row or a column.
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
    """x1, x2 and the output of a tile."""
    rows, columns = min(rows, p.m), min(columns, p.n)
    return p.element.nbytes(rows * p.k + p.k * columns + rows * columns)


def _last(blocks: int, step: int) -> int:
    """Blocks of the last tile."""
    return blocks % step or step


def _sharing(cores: int, blocks: int, step: int) -> int:
    """How many cores share a row or a column, in whichever tile more of them do."""
    return ceil_div(cores, min(step, _last(blocks, step)))


def _has_whole_lines(p: Product) -> bool:
    """Whether the rows of both matrices, as they lie in memory, are whole lines of 512 bytes."""
    inner = (p.m if p.transposed_a else p.k), (p.k if p.transposed_b else p.n)
    return all(p.element.nbytes(extent) % LINE_BYTES == 0 for extent in inner)
