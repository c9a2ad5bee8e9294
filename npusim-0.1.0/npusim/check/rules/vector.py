"""Rules of the vector pipe."""

from __future__ import annotations

from functools import lru_cache
from math import isfinite

import numpy as np

from npusim.check.rules.rule import Rule, names, offsets, operands, types
from npusim.check.rules.vector_dtypes import CASTS, FLOATS, dtypes_of
from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, INT32, UINT8, DType
from npusim.data.integers import ceil_div
from npusim.isa import (
    BLOCK_BYTES,
    REPEAT_BYTES,
    Axpy,
    Binary,
    BinaryScalar,
    BlockReduce,
    Broadcast,
    Cast,
    Compare,
    CompareScalar,
    Copy,
    Duplicate,
    Fold,
    Gather,
    GatherMask,
    Local,
    MicroOp,
    MrgSort,
    MrgSort4,
    MulAddDst,
    ProposalConcat,
    ProposalExtract,
    Reduce,
    Register,
    RpSort16,
    Select,
    Sort32,
    Transpose,
    Unary,
    WholeReduce,
    reads,
    writes,
)
from npusim.kernel.repeats import STRIDE_BLOCKS

__all__ = ["RULES", "VECTOR"]

ARITHMETIC = (Binary, BinaryScalar)
FLOATING = (Axpy, MulAddDst, BlockReduce, WholeReduce, Fold)
ELEMENTWISE = (Cast, *ARITHMETIC, Unary, Axpy, MulAddDst, Copy)
MOVING = (Duplicate, Broadcast, Reduce, Copy)
COMPARING = (Compare, CompareScalar)
PROPOSING = (ProposalConcat, ProposalExtract, RpSort16, MrgSort4)
SOLID = (*COMPARING, Select, Gather, Transpose, Sort32, MrgSort, GatherMask, *PROPOSING)
SQUARE_BYTES = 16 * BLOCK_BYTES
# asc-devkit, Transpose.md and TransDataTo5HD.md: a matrix of 16 rows, each of a block.
VECTOR = (Cast, *ARITHMETIC, Unary, *FLOATING, *MOVING, *SOLID)
"""What works on the unified buffer alone."""

# Copy is a DataCopy within the buffer, whose gaps have 16 bits; WholeReduceMax steps over rows of
# up to 1020 blocks (ops-nn, dynamic_quant_multi_row.h). How often an instruction repeats is not
# held against its 8 bits: a micro-op of more repeats stands for several instructions.
STRIDING = tuple(kind for kind in VECTOR if kind not in (Copy, WholeReduce))
WITH_SCALAR = (BinaryScalar, Axpy, Duplicate, CompareScalar)


def _is_repeat(local: Local, count: int) -> bool:
    """Whether *local* has *count* whole repeats, or is one that may be shorter."""
    repeat_bytes = local.repeat_blocks * BLOCK_BYTES
    if count == 1:
        return 0 < local.nbytes <= repeat_bytes
    return local.nbytes == count * repeat_bytes > 0


def _one_of(dtypes: tuple[DType, ...]) -> str:
    return f"one of {names(dtypes)}" if len(dtypes) > 1 else f"the type {names(dtypes)}"


def _has_parts(local: Local, count: int) -> bool:
    return local.count > 0 == local.count % count


def _whole_repeats(local: Local) -> bool:
    blocks, rest = divmod(local.nbytes, BLOCK_BYTES)
    return not rest and (blocks < local.repeat_blocks or blocks % local.repeat_blocks == 0)


def _in_step(op: MicroOp) -> bool:
    """Whether all strided operands go on to their next repeat at the same element."""
    strided = [local for local in operands(op) if local.is_strided]
    return not any(map(_repeats, strided)) or len({x.repeat_elements for x in strided}) == 1


def _repeats(local: Local) -> bool:
    """Whether *local* is strided and takes several repeats."""
    return local.is_strided and local.nbytes > local.repeat_blocks * BLOCK_BYTES


def _can_stride(local: Local) -> bool:
    """Whether the strides fit their fields, that from repeat to repeat if there are several."""
    repeat_stride = local.repeat_stride if _repeats(local) else 0
    return max(local.block_stride, repeat_stride) <= STRIDE_BLOCKS


def _widens(op: MicroOp) -> bool:
    """Whether it adds products of float16 to float32 (asc-devkit, MulAddDst.md)."""
    if not isinstance(op, MulAddDst) or op.dst.dtype is not FLOAT32:
        return False
    return op.a.dtype is op.b.dtype is FLOAT16


def _starts_well(op: MicroOp) -> bool:
    """Whether all operands begin at a block, or, alike, at one lane of a block that a mask picks.

    A mask leaves out the lanes before it (asc-devkit, docs/zh/guide), so what begins within a block
    must end in it.
    """
    starts = {local.offset_bytes % BLOCK_BYTES for local in operands(op)}
    if starts == {0}:
        return True
    if len(starts) > 1 or not isinstance(op, ARITHMETIC):
        return False
    return starts.pop() + op.dst.nbytes <= BLOCK_BYTES


@lru_cache(maxsize=4096)
def _written_once(dst: Local) -> bool:
    """Whether *dst*, strided and in whole repeats, has no block twice."""
    blocks = dst.nbytes // BLOCK_BYTES
    if blocks * BLOCK_BYTES > dst.end_bytes - dst.offset_bytes:
        return False
    places = (divmod(index, dst.repeat_blocks) for index in range(blocks))
    return len({a * dst.repeat_stride + b * dst.block_stride for a, b in places}) == blocks


def _fits(scalar: float | Register, dtype: DType) -> bool:
    """Whether *dtype* can hold *scalar*, rounded if it is a float."""
    if isinstance(scalar, str):
        return True
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return not isfinite(scalar) or bool(np.isfinite(np.array(scalar).astype(dtype.numpy)))
    limits = np.iinfo(dtype.numpy)
    return isfinite(scalar) and scalar == int(scalar) and limits.min <= scalar <= limits.max


def _sizes(op: MicroOp) -> str:
    """How many elements each operand of *op* has, and of which type."""
    return ", ".join(f"{local.count} {local.dtype.name}" for local in operands(op))


def _scalar_dtype(op: MicroOp) -> DType:
    """The type of the scalar of *op*."""
    return op.a.dtype if isinstance(op, CompareScalar) else writes(op)[0].dtype


def _compares(op: Compare | CompareScalar) -> bool:
    """Whether the types are known. asc-devkit, Compare.md and CompareScalar.md: int32 for eq."""
    known = (*FLOATS, INT32) if op.op == "eq" else FLOATS
    return (
        op.dst.dtype is UINT8
        and op.a.dtype in known
        and {x.dtype for x in reads(op)} == {op.a.dtype}
    )


def _compared(op: Compare | CompareScalar) -> bool:
    """Whether there is a bit for each element, of whole repeats (asc-devkit, Compare.md)."""
    repeats = op.a.nbytes % REPEAT_BYTES == 0 < op.a.count == reads(op)[-1].count
    return repeats and op.dst.count * 8 == op.a.count


def _selects(op: Select) -> bool:
    """Whether the types are known. asc-devkit, Select.md."""
    chosen = [op.dst, op.a, *(x for x in (op.b,) if isinstance(x, Local))]
    return (
        op.mask.dtype is UINT8
        and op.dst.dtype in FLOATS
        and all(x.dtype is op.dst.dtype and x.count == op.dst.count > 0 for x in chosen)
        and op.mask.count == ceil_div(op.dst.count, 8)
    )


def _gathers(op: Gather) -> bool:
    """Whether the types are known. asc-devkit, Gather.md, whose offsets are uint32."""
    return (
        op.dst.dtype.bits in (16, 32)
        and op.src.dtype is op.dst.dtype
        and op.offsets.dtype is INT32
        and op.offsets.count == op.dst.count > 0 < op.src.count
    )


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
            op.dst.dtype in dtypes_of(op)
            and (all(local.dtype is op.dst.dtype for local in reads(op)) or _widens(op))
        ),
        lambda op, _: (
            f"operands must share {_one_of(dtypes_of(op))}, not {types(op)}; "
            f"{'cast first' if FLOAT32 in dtypes_of(op) else 'take the bytes as such'}"
        ),
    ),
    Rule(
        ELEMENTWISE,
        lambda op, _: all(local.count == op.dst.count > 0 for local in reads(op)),
        lambda op, _: (
            f"operands must have the same number of elements, and at least one, not "
            f"{', '.join(str(local.count) for local in operands(op))}; cut them alike"
        ),
    ),
    Rule(
        MOVING,
        lambda op, _: (
            op.dst.dtype.bits in (16, 32)
            and all(local.dtype is op.dst.dtype for local in reads(op))
        ),
        lambda op, _: f"operands must share one type of 16 or 32 bits, not {types(op)}; cast first",
    ),
    Rule(
        SOLID,
        lambda op, _: not any(local.is_strided for local in operands(op)),
        lambda op, _: (
            f"operands must be without strides, not "
            f"{', '.join(str(local) for local in operands(op))}; take the pieces one by one"
        ),
    ),
    Rule(
        COMPARING,
        lambda op, _: _compares(op),
        lambda op, _: (
            f"dst must be uint8 and what is compared share one of float32, float16, or for eq "
            f"int32, not {types(op)} for {op.op}; cast first"
        ),
    ),
    Rule(
        COMPARING,
        lambda op, _: _compared(op),
        lambda op, _: (
            f"what is compared must be whole repeats of {REPEAT_BYTES} bytes, all with the same "
            f"number of elements and a bit in dst for each, not "
            f"{', '.join(str(local.count) for local in reads(op))} elements and "
            f"{op.dst.count * 8} bits; pad them"
        ),
    ),
    Rule(
        (Select,),
        lambda op, _: _selects(op),
        lambda op, _: (
            f"mask must be uint8 with a bit for each element, and all others share their number "
            f"of elements and one of float32, float16, not {_sizes(op)}; cast first, or cut them "
            f"alike"
        ),
    ),
    Rule(
        (Gather,),
        lambda op, _: _gathers(op),
        lambda op, _: (
            f"src and dst must share one type of 16 or 32 bits, and offsets be int32, one for each "
            f"element of dst, not {_sizes(op)}; cast first, or cut them alike"
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
            f"or 32 bits, not {_sizes(op)}; pad them"
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
    Rule(
        (BlockReduce,),
        lambda op, _: op.src.nbytes == op.dst.count * BLOCK_BYTES,
        lambda op, _: (
            f"src must be {BLOCK_BYTES} bytes for each of the {op.dst.count} elements of dst, "
            f"not {op.src.nbytes} in all; change its count"
        ),
    ),
    Rule(
        (WholeReduce,),
        lambda op, _: _is_repeat(op.src, op.dst.count),
        lambda op, _: (
            f"src must be {op.src.repeat_blocks * BLOCK_BYTES} bytes for each of the "
            f"{op.dst.count} elements of dst, or less for a single one, not {op.src.nbytes} in "
            f"all; change its count"
        ),
    ),
    Rule(
        (WholeReduce,),
        lambda op, _: op.mask is None or op.mask * op.dst.count <= op.src.count,
        lambda op, _: (
            f"mask must be at most the {op.src.count // op.dst.count} elements of a repeat, not "
            f"{op.mask}; take more blocks a repeat"
        ),
    ),
    Rule(
        (Fold,),
        lambda op, _: (
            not op.dst.is_strided and _is_repeat(op.dst, 1) and _has_parts(op.src, op.dst.count)
        ),
        lambda op, _: (
            f"dst must be one repeat of at most {REPEAT_BYTES} bytes and src a number of such "
            f"repeats, not {op.dst.nbytes} and {op.src.nbytes} bytes; cut them so"
        ),
    ),
    Rule(
        VECTOR,
        lambda op, _: all(_whole_repeats(local) for local in operands(op) if local.is_strided),
        lambda op, _: (
            f"strided operands must be blocks of {BLOCK_BYTES} bytes, up to those of a repeat or a "
            f"multiple of them, "
            f"not {', '.join(str(local.nbytes) for local in operands(op))} bytes; pad them"
        ),
    ),
    Rule(
        ELEMENTWISE,
        lambda op, _: _in_step(op),
        lambda op, _: (
            f"strided operands must have the same number of elements in a repeat, not "
            f"{', '.join(str(local.repeat_elements) for local in operands(op))}; "
            f"take fewer blocks a repeat of the narrower one"
        ),
    ),
    Rule(
        STRIDING,
        lambda op, _: all(_can_stride(local) for local in operands(op) if local.is_strided),
        lambda op, _: (
            f"strides must be at most {STRIDE_BLOCKS} blocks, not those of "
            f"{', '.join(str(local) for local in operands(op))}; emit what in_reach makes of it"
        ),
    ),
    Rule(
        VECTOR,
        lambda op, _: all(_written_once(local) for local in writes(op) if local.is_strided),
        lambda op, _: (
            f"dst must have strides that bring it to each block once, not {op.dst.block_stride} "
            f"and {op.dst.repeat_stride} for {op.dst.nbytes} bytes; raise them, or write "
            f"elsewhere and combine"
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
        lambda op, _: _fits(op.scalar, _scalar_dtype(op)),
        lambda op, _: (
            f"scalar must be a number that {_scalar_dtype(op).name} has, not {op.scalar}; "
            f"round or clip it"
        ),
    ),
    Rule(
        (Select,),
        lambda op, _: isinstance(op.b, Local) or _fits(op.b, op.dst.dtype),
        lambda op, _: f"b must be a number that {op.dst.dtype.name} has, not {op.b}; round it",
    ),
    Rule(
        (Reduce,),
        lambda op, _: op.dst.count == 1,
        lambda op, _: f"dst must be one element, not {op.dst.count}; change its count",
    ),
)
