"""Bank conflicts of the unified buffer: how many cycles a vector repeat takes because of them.

The buffer is divided into groups of banks; consecutive 32-byte blocks are in different groups. Per
cycle a group serves one row read and one row write, and a bank serves one row in all. A repeat
reads its blocks while the previous repeat writes:

.. code-block:: text

    address bits (2201)   off[4:0]  group[8:5]  row[15:9]  bank[17:16]

    a at 0, b at 64 KiB     same groups: two reads each        2 cycles a repeat
    a at 0, b at 256        groups 0-7 and 8-15: one each      1 cycle a repeat
    block stride 16         eight blocks in one group          8 cycles a repeat

Source: asc-devkit, examples/01_simd_cpp_api/05_best_practices/04_memory_access/bank_conflict_ub,
whose measured cycles for 64 repeats of Add fp32 (88 without a conflict, 154 with two reads in a
group, 139 with a read and a write in a bank) come out as 86, 150 and 150.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import numpy as np

from npusim.data.integers import ceil_div
from npusim.devices.schema import Banks
from npusim.isa import BLOCK_BYTES, Local, lanes

__all__ = ["bank_of", "repeat_cycles"]

BLOCKS = 8
"""Blocks of one operand in a repeat, if the operand is as wide as the result."""


def bank_of(banks: Banks, block: int) -> tuple[int, int]:
    """The group of banks that holds a 32-byte *block* of the buffer, and its bank in the group.

    >>> bank_of(Banks(groups=16, banks_per_group=3, bank_bytes=4096), 65536 // 32 + 17)
    (1, 1)
    """
    return block % banks.groups, block // (banks.groups * (banks.bank_bytes // BLOCK_BYTES))


def _blocks(local: Local, repeat: int, block_count: int) -> list[int]:
    """Indices of the blocks that *local* touches in a *repeat*."""
    if local.mask is not None:
        per_block = BLOCK_BYTES * 8 // local.dtype.bits
        start = local.offset_bytes // BLOCK_BYTES + repeat * local.repeat_stride
        picked = np.unique(lanes(local.mask) // per_block) * local.block_stride + start
        return [int(block) for block in picked]
    if local.is_strided:
        first, step = repeat * local.repeat_stride, local.block_stride
    else:
        first, step = repeat * block_count, 1
    start = local.offset_bytes // BLOCK_BYTES + first
    return [start + step * i for i in range(block_count)]


def _one_repeat(banks: Banks, reads: set[int], writes: set[int]) -> int:
    """Cycles of a repeat that touches these blocks."""
    by_group = Counter(block % banks.groups for block in reads)
    written = Counter(block % banks.groups for block in writes)
    by_bank = Counter(bank_of(banks, block) for block in reads | writes)
    return max(0, *by_group.values(), *written.values(), *by_bank.values())


@lru_cache(maxsize=4096)
def repeat_cycles(
    banks: Banks, reads: tuple[Local, ...], write: Local, elements: int, repeats: int
) -> int:
    """Cycles that the buffer needs for *repeats* repeats of *elements* elements each."""
    period = min(repeats, banks.groups)
    cycles = []
    for repeat in range(period):
        read = {
            block
            for local in reads
            for block in _blocks(
                local, repeat + 1, min(BLOCKS, ceil_div(local.dtype.nbytes(elements), BLOCK_BYTES))
            )
        }
        write_blocks = min(BLOCKS, ceil_div(write.dtype.nbytes(elements), BLOCK_BYTES))
        cycles.append(_one_repeat(banks, read, set(_blocks(write, repeat, write_blocks))))
    whole, rest = divmod(repeats, period)
    return whole * sum(cycles) + sum(cycles[:rest])
