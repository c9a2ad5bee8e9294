"""Rules of the vector pipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npusim.check.rules.kinds import (
    ARITHMETIC,
    ELEMENTWISE,
    FLOATING,
    VECTOR,
    WITH_SCALAR,
)
from npusim.check.rules.rule import (
    Rule,
    fits,
    names,
    offsets,
    operands,
    types,
)
from npusim.check.rules.vector_dtypes import (
    CASTS,
    DEQUANTISED,
    dtypes_of,
    is_mixed,
)
from npusim.data.dtypes import (
    FLOAT16,
    FLOAT32,
    INT4,
    INT16,
    INT32,
    UINT64,
    DType,
)
from npusim.isa import (
    BLOCK_BYTES,
    CMP_MASK_BYTES,
    REPEAT_BLOCKS,
    Axpy,
    BinaryScalar,
    BlockReduce,
    Cast,
    CastDequant,
    CompareScalar,
    Gather,
    GetCmpMask,
    Local,
    MicroOp,
    Reduce,
    Unary,
    WholeReduce,
    lanes,
    reads,
    writes,
)

__all__ = ["RULES"]


def _one_of(dtypes: tuple[DType, ...]) -> str:
    return f"one of {names(dtypes)}" if len(dtypes) > 1 else f"the type {names(dtypes)}"


RESULTS: dict[type, Callable[[Any], int]] = {
    WholeReduce: lambda op: op.dst.dtype.nbytes(op.result_elements),
    Reduce: lambda op: op.dst.dtype.nbytes(op.result_elements),
    BlockReduce: lambda op: BLOCK_BYTES if op.pairs else op.dst.dtype.nbytes(REPEAT_BLOCKS),
    GetCmpMask: lambda _: CMP_MASK_BYTES,
}
"""Alignment of results, in bytes (asc-devkit, ReduceRepeat.md, table 3, ReduceDataBlock.md,
ReducePairElem.md, GetCmpMask(ISASI).md; assumed to be the same for Reduce)."""


def _starts_well(op: MicroOp) -> bool:
    """Whether all operands begin at a block, or all at the same lane of a block, with a mask.

    A mask disables the lanes before it (asc-devkit, docs/zh/guide), so an operand that begins
    within a block must end in it. Gathered data may begin at any element (Gather.md).
    """
    if isinstance(op, Gather):
        is_element = op.src.offset_bytes * 8 % op.src.dtype.bits == 0
        return is_element and not any(x.offset_bytes % BLOCK_BYTES for x in (op.dst, op.offsets))
    starts = {local.offset_bytes % BLOCK_BYTES for local in operands(op)}
    if starts == {0}:
        return True
    if isinstance(op, tuple(RESULTS)):
        sources = {local.offset_bytes % BLOCK_BYTES for local in reads(op)}
        dst = writes(op)
        return sources <= {0} and all(x.offset_bytes % RESULTS[type(op)](op) == 0 for x in dst)
    if len(starts) > 1 or not isinstance(op, ARITHMETIC):
        return False
    return starts.pop() + op.dst.nbytes <= BLOCK_BYTES


def _scalar_dtype(op: MicroOp) -> DType:
    """The type of the scalar of *op*."""
    if isinstance(op, CompareScalar | Axpy):
        return reads(op)[0].dtype
    return writes(op)[0].dtype


def _shifts_too_far(op: BinaryScalar) -> bool:
    """Whether it shifts by a negative or too large number of places."""
    if not op.op.startswith("shift") or isinstance(op.scalar, str):
        return False
    return not 0 <= op.scalar <= op.dst.dtype.bits


def _is_scaled_well(op: CastDequant) -> bool:
    if isinstance(op.scale, Local):
        is_table = op.scale.dtype is UINT64 and op.scale.count == TABLE
        return op.src.dtype is INT16 and is_table and not op.scale.is_strided and not op.offset
    return fits(op.scale, FLOAT16 if op.src.dtype is INT32 else FLOAT32) and (
        op.src.dtype is INT16 or not op.offset
    )


def _fills_halves(op: CastDequant) -> bool:
    """Whether the results of a block fill one half of a block, the same half in all of them."""
    if op.src.dtype is INT32:
        return op.src.mask == op.dst.mask
    if op.dst.mask is None:
        return False
    each = min(op.src.repeat_elements, op.src.count)
    taken = np.arange(each) if op.src.mask is None else lanes(op.src.mask)
    spread = taken // TABLE * BLOCK_BYTES + taken % TABLE
    found = lanes(op.dst.mask)
    return found.size == spread.size and any(
        (found == spread + half).all() for half in (0, BLOCK_BYTES // 2)
    )


def _each_by_each(op: MicroOp) -> tuple[Local, ...]:
    """The operands that *op* reads element by element."""
    return (op.src,) if isinstance(op, CastDequant) else reads(op)


TABLE = 16
"""Elements of a block of int16, and parameters for them."""


RULES = (
    Rule(
        VECTOR,
        lambda op, _: all(local.buffer == "ub" for local in operands(op)),
        lambda op, _: (
            f"operands must lie in ub, not in "
            f"{', '.join(local.buffer for local in operands(op))}; copy them there first"
        ),
    ),
    Rule(
        VECTOR,
        lambda op, _: _starts_well(op),
        lambda op, _: (
            f"each operand must start at a multiple of {BLOCK_BYTES} bytes, not at "
            f"{offsets(op)}; align it"
        ),
    ),
    Rule(
        (Cast,),
        lambda op, at: op.mode in CASTS[at.arch].get((op.src.dtype, op.dst.dtype), ()),
        lambda op, at: (
            f"mode must be one of "
            f"{', '.join(CASTS[at.arch].get((op.src.dtype, op.dst.dtype), ('none known',)))} "
            f"for {op.src.dtype.name} to {op.dst.dtype.name} on arch {at.arch}, "
            f"not {op.mode!r}; use one of these, or cast in two steps"
        ),
    ),
    Rule(
        (*ARITHMETIC, Unary, *FLOATING),
        lambda op, _: (
            all(local.dtype is op.dst.dtype in dtypes_of(op) for local in reads(op)) or is_mixed(op)
        ),
        lambda op, _: (
            f"operands must share {_one_of(dtypes_of(op))}, not {types(op)}; "
            f"{'cast first' if FLOAT32 in dtypes_of(op) else 'take the bytes as such'}"
        ),
    ),
    Rule(
        ELEMENTWISE,
        lambda op, _: all(local.count == op.dst.count > 0 for local in _each_by_each(op)),
        lambda op, _: (
            f"operands must have the same number of elements, and at least one, not "
            f"{', '.join(str(local.count) for local in operands(op))}; cut them alike"
        ),
    ),
    Rule(
        (BinaryScalar,),
        lambda op, _: not _shifts_too_far(op),
        lambda op, _: (
            f"bits must be shifted 0 to {op.dst.dtype.bits} places, not {op.scalar}; shift all out "
            f"with Duplicate"
        ),
    ),
    Rule(
        (CastDequant,),
        lambda op, _: op.dst.dtype in DEQUANTISED.get(op.src.dtype, ()),
        lambda op, _: (
            f"src and dst must be int32 and float16, or int16 and int8 or uint8, not {types(op)}; "
            f"use Cast"
        ),
    ),
    Rule(
        (CastDequant,),
        lambda op, _: _is_scaled_well(op),
        lambda op, _: (
            f"scale must be a number, of float16 for int32, which has no offset, or for int16 16 "
            f"uint64 without strides, which have their own, not {op.scale} and {op.offset}; "
            f"change it"
        ),
    ),
    Rule(
        (CastDequant,),
        lambda op, _: _fills_halves(op),
        lambda op, _: (
            f"bytes must fill the first or the second half of a block for each block of src, by "
            f"the mask of dst, not {op.dst} of {op.src}; give it the lanes of src, those of one "
            f"block 32 further than those of the block before"
        ),
    ),
    Rule(
        VECTOR,
        lambda op, _: all(local.count % 2 == 0 for local in operands(op) if local.dtype is INT4),
        lambda op, _: (
            f"operands of int4 must be whole bytes, not "
            f"{', '.join(str(local.count) for local in operands(op))} elements; pad them"
        ),
    ),
    Rule(
        WITH_SCALAR,
        lambda op, _: fits(op.scalar, _scalar_dtype(op)),
        lambda op, _: (
            f"scalar must be a number that {_scalar_dtype(op).name} has, not {op.scalar}; "
            f"round or clip it"
        ),
    ),
)
