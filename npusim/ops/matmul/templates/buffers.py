"""How the blocks that a core sums whole fill L1 and L0: what templates v2 and base share.

Source: ops-nn@e5c3fa9 matmul/mat_mul_v3, matmul_v3_base_tiling.cpp.
"""

from __future__ import annotations

from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import Core
from npusim.ops.matmul.contract import Problem

__all__ = ["l0c_depth", "longest_k", "steps"]

PIECE_BYTES = 32768
"""Half of L0A or L0B."""
BIAS_BYTES = 1024
"""What a bias takes of L1."""


def longest_k(p: Problem, block: tuple[int, int], most: int) -> int:
    """How much of k, at most *most*, half of L0 holds of the longer side of *block*."""
    size = p.product.element.bits // 8
    base = most
    while base > 16 and base * max(block) * size > PIECE_BYTES:
        base //= 2
    return min(base, align_up(p.product.k, 16))


def l0c_depth(core: Core, p: Problem, block: tuple[int, int]) -> int:
    """Blocks in L0C at a time: two where they, and their columns of bias, fit."""
    bm, bn = block
    fits = 2 * 4 * bm * bn <= (core.l0c_bytes or 0)
    return 2 if fits and (not p.bias or bn <= 128) else 1


def steps(core: Core, p: Problem, block: tuple[int, int], base_k: int) -> tuple[int, int]:
    """Pieces of k that one load copies to L1, of x1 and of x2; L1 holds twice as many."""
    (bm, bn), size = block, p.product.element.bits // 8
    # The kernel is of the cube alone, so the 256 bytes of messages with vector cores are free.
    room = core.l1_bytes or 0
    a, b = (max(2, room // 2 // (base * base_k * size)) for base in block)
    if (a * bm + b * bn) * base_k * size > room - (BIAS_BYTES if p.bias else 0):
        a, b = (max(2, a // 2), b) if bm < bn else (a, max(2, b // 2))
    most = ceil_div(p.product.k, base_k)
    step_a, step_b = (min(_whole_rows(x // 2, base_k * size), most) for x in (a, b))
    if step_a > step_b:
        step_a = step_a // step_b * step_b
    else:
        step_b = step_b // step_a * step_a
    return step_a, step_b


def _whole_rows(step: int, row_bytes: int) -> int:
    """The largest number of steps whose rows are whole lines of 512 bytes, or of 256."""
    for line in (512, 256):
        for less in range(step, 0, -1):
            if less * row_bytes % line == 0:
                return less
    return step
