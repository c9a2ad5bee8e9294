"""Rules of vector micro-ops that move and fill elements."""

from __future__ import annotations

from npusim.check.rules.kinds import (
    LOOKING_UP,
    MOVING,
)
from npusim.check.rules.rule import (
    Rule,
    sizes,
    types,
)
from npusim.data.dtypes import (
    INT32,
    UINT32,
)
from npusim.isa import (
    BLOCK_BYTES,
    Broadcast,
    Copy,
    Gather,
    GatherBlocks,
    Local,
    Scatter,
    TransDataTo5HD,
    Transpose,
    reads,
)

__all__ = ["RULES"]

BITS_OF_COPIES = (8, 16, 32, 64)
"""asc-devkit, DataCopy（UBToUB高维切分数据搬运）.md."""
SQUARE_BYTES = 16 * BLOCK_BYTES
# asc-devkit, Transpose.md and TransDataTo5HD.md: a matrix of 16 rows, each of a block.


ROWS = 16
HALVES = (0xFFFF, 0xFFFF_0000)
"""Masks of the first and of the second half of a block of bytes."""


def _are_rows(op: TransDataTo5HD) -> bool:
    """asc-devkit, TransDataTo5HD.md."""
    rows = (*op.src, *op.dst)
    if not len(op.src) == len(op.dst) == ROWS:
        return False
    first = rows[0]
    if any(row.dtype is not first.dtype or row.count != first.count for row in rows):
        return False
    if first.dtype.bits == 8:
        return all(row.mask in HALVES for row in rows)
    each = BLOCK_BYTES * 8 // first.dtype.bits
    return first.dtype.bits in (16, 32) and all(
        row.mask is None and row.repeat_blocks == 1 and row.count % each == 0 < row.count
        for row in rows
    )


def _overlap(op: TransDataTo5HD) -> bool:
    """Whether its destination shares bytes with its source."""
    read = {place for row in op.src for place in _blocks(row)}
    return any(place in read for row in op.dst for place in _blocks(row))


def _blocks(row: Local) -> list[int]:
    """Offsets of the blocks of a *row*."""
    return [row.offset_bytes + BLOCK_BYTES * row.repeat_stride * n for n in range(row.repeats)]


LOOKED_UP_ON: dict[type, str] = {GatherBlocks: "2201", Scatter: "2002"}
"""asc-devkit, the same pages."""


def _looks_up(op: Gather | GatherBlocks | Scatter) -> bool:
    """Whether the types are known, and there is an offset for each element or block.

    asc-devkit, Gather.md, Gatherb(ISASI).md, Scatter(ISASI).md, whose offsets are uint32.
    """
    moved = op.src if isinstance(op, Scatter) else op.dst
    pieces = moved.count if not isinstance(op, GatherBlocks) else moved.nbytes / BLOCK_BYTES
    return (
        moved.dtype.bits in (16, 32)
        and op.src.dtype is op.dst.dtype
        and op.offsets.dtype in (INT32, UINT32)
        and op.offsets.count == pieces > 0 < min(op.src.count, op.dst.count)
    )


RULES = (
    Rule(
        (Copy,),
        lambda op, _: op.dst.dtype.bits in (16, 32) or op.dst.mask is None,
        lambda op, _: f"a mask must be of 16 or 32 bits, not {types(op)}; copy them as such",
    ),
    Rule(
        MOVING,
        lambda op, _: (
            op.dst.dtype.bits in (BITS_OF_COPIES if isinstance(op, Copy) else (16, 32))
            and all(local.dtype is op.dst.dtype for local in reads(op))
        ),
        lambda op, _: f"operands must share one type of 16 or 32 bits, not {types(op)}; cast first",
    ),
    Rule(
        LOOKING_UP,
        lambda op, _: _looks_up(op),
        lambda op, _: (
            f"src and dst must share one type of 16 or 32 bits, and offsets be int32 or uint32, "
            f"one for each {'block' if isinstance(op, GatherBlocks) else 'element'} that is moved, "
            f"not {sizes(op)}; cast first, or cut them alike"
        ),
    ),
    Rule(
        (GatherBlocks, Scatter),
        lambda op, at: at.arch == LOOKED_UP_ON[type(op)],
        lambda op, at: (
            f"the arch must be {LOOKED_UP_ON[type(op)]}, not {at.arch}; "
            f"{'copy block by block' if isinstance(op, GatherBlocks) else 'store one by one'}"
        ),
    ),
    Rule(
        (Transpose,),
        lambda op, _: (
            op.dst.dtype.bits in (16, 32)
            and op.src.dtype is op.dst.dtype
            and op.src.nbytes == op.dst.nbytes > 0
            and op.dst.nbytes % SQUARE_BYTES == 0
        ),
        lambda op, _: (
            f"src and dst must be as many matrices of {SQUARE_BYTES} bytes each, of one type of 16 "
            f"or 32 bits, not {sizes(op)}; pad them"
        ),
    ),
    Rule(
        (TransDataTo5HD,),
        lambda op, _: _are_rows(op),
        lambda op, _: (
            f"src and dst must be {ROWS} rows each of one type of 8, 16 or 32 bits, all of as many "
            f"blocks, or halves of blocks of bytes by their masks, one to a repeat, not "
            f"{sizes(op)}; change them"
        ),
    ),
    Rule(
        (TransDataTo5HD,),
        lambda op, _: op.src[0].repeats == 1 or not _overlap(op),
        lambda op, _: (
            f"rows of several repeats must not lie where others are read, as they do of {op}; move "
            f"them, or turn them one by one"
        ),
    ),
    Rule(
        (Broadcast,),
        lambda op, _: op.dst.nbytes == op.src.count * BLOCK_BYTES,
        lambda op, _: (
            f"dst must be {BLOCK_BYTES} bytes for each of the {op.src.count} elements, "
            f"not {op.dst.nbytes} in all; change its count"
        ),
    ),
)
