"""Where a vector micro-op may write into its own sources.

A repeat may overwrite the bytes that it reads, all of them or none; no later repeat may read what
it wrote, since it may have read before. A cast, whose source and result differ in width, must only
satisfy the second condition: the vendor's own kernels narrow rows in place, and widen them out of
the end of their room. The vendor allows some sums to accumulate, whose second operand is the result
of the previous repeat; that is not simulated, and is refused as well.

Source: asc-devkit@82b89a1 docs/zh/api/SIMD-API, general instructions and constraints, and the pages
of the functions; for casts ops-nn, whose quantising kernels cast in place.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from npusim.check.rules.rule import Rule
from npusim.data.integers import ceil_div
from npusim.isa import (
    BLOCK_BYTES,
    REPEAT_BYTES,
    Axpy,
    Binary,
    BinaryScalar,
    Cast,
    CastDequant,
    Local,
    MicroOp,
    MulAddDst,
    Select,
    Unary,
    places,
    reads,
    writes,
)

__all__ = ["OVERLAPPING", "RULES"]

OVERLAPPING = (Cast, CastDequant, Binary, BinaryScalar, Unary, Axpy, MulAddDst, Select)
"""Micro-ops whose pages refer to the general rule."""
Fault = Literal["part", "later"]


def _fault(op: MicroOp) -> tuple[Fault, Local] | None:
    """How a source of *op* overlaps its destination illegally, and which one."""
    (dst,) = writes(op)
    for src in reads(op):
        if src != dst and _share_bytes(src, dst):
            fault = _meet(src, dst, isinstance(op, Cast | CastDequant))
            if fault:
                return fault, src
    return None


def _share_bytes(one: Local, other: Local) -> bool:
    if one.buffer != other.buffer:
        return False
    return one.offset_bytes < other.end_bytes and other.offset_bytes < one.end_bytes


@lru_cache(maxsize=4096)
def _meet(src: Local, dst: Local, is_cast: bool) -> Fault | None:
    elements = _elements(src, dst)
    written: set[int] = set()
    for repeat in range(ceil_div(dst.count, elements)):
        read, write = _bytes(src, repeat, elements), _bytes(dst, repeat, elements)
        if read & write and read != write and not is_cast:
            return "part"
        if read & written:
            return "later"
        written |= write
    return None


def _elements(src: Local, dst: Local) -> int:
    """Elements of a repeat: a full one of the wider type, or as many as a stride leaves."""
    found = REPEAT_BYTES * 8 // max(src.dtype.bits, dst.dtype.bits)
    return min([found, *(local.repeat_elements for local in (src, dst) if local.is_strided)])


def _bytes(local: Local, repeat: int, elements: int) -> set[int]:
    """The bytes of *local* in a *repeat* of that many *elements*."""
    first = repeat * elements
    nbytes = local.dtype.nbytes(min(elements, local.count - first))
    if not local.is_strided:
        start = local.offset_bytes + local.dtype.nbytes(first)
        return set(range(start, start + nbytes))
    found: set[int] = set()
    if local.is_ragged:
        size = max(1, local.dtype.bits // 8)
        for place in places(local)[first * local.dtype.bits // 8 // size :][: nbytes // size]:
            found.update(range(local.offset_bytes + place, local.offset_bytes + place + size))
        return found
    start = local.offset_bytes + repeat * local.repeat_stride * BLOCK_BYTES
    for block in range(ceil_div(nbytes, BLOCK_BYTES)):
        place = start + block * local.block_stride * BLOCK_BYTES
        found.update(range(place, place + min(BLOCK_BYTES, nbytes - block * BLOCK_BYTES)))
    return found


def _source(op: MicroOp) -> Local:
    fault = _fault(op)
    assert fault is not None
    return fault[1]


RULES = (
    Rule(
        OVERLAPPING,
        lambda op, _: (_fault(op) or ("", op))[0] != "part",
        lambda op, _: (
            f"within a repeat, a source and dst must be the same bytes or have none in common, not "
            f"share a part as {_source(op)} and {op.dst} do; move one of them"
        ),
    ),
    Rule(
        OVERLAPPING,
        lambda op, _: (_fault(op) or ("", op))[0] != "later",
        lambda op, _: (
            f"no repeat must read what one before it has written, as it does of {_source(op)} and "
            f"{op.dst}; move one of them, or take a repeat at a time with a barrier between"
        ),
    ),
)
