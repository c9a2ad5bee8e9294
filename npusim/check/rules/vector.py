"""Rules of the vector pipe."""

from __future__ import annotations

from typing import get_args

import numpy as np

from npusim.check.rules.kinds import (
    ARITHMETIC,
    COMPARING,
    ELEMENTWISE,
    FLOATING,
    MOVING,
    VECTOR,
    WITH_SCALAR,
)
from npusim.check.rules.rule import Rule, fits, names, offsets, operands, types
from npusim.check.rules.vector_dtypes import CASTS, DEQUANTISED, FLOATS, dtypes_of, is_mixed
from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, INT16, INT32, UINT8, UINT64, DType
from npusim.data.integers import ceil_div
from npusim.isa import (
    BLOCK_BYTES,
    REPEAT_BYTES,
    Axpy,
    BinaryScalar,
    BlockReduce,
    Broadcast,
    Cast,
    CastDequant,
    Compare,
    CompareScalar,
    Fold,
    Gather,
    Local,
    MicroOp,
    Reduce,
    ReduceOrder,
    Select,
    Transpose,
    Unary,
    WholeReduce,
    lanes,
    reads,
    writes,
)

__all__ = ["RULES"]

SQUARE_BYTES = 16 * BLOCK_BYTES
# asc-devkit, Transpose.md and TransDataTo5HD.md: a matrix of 16 rows, each of a block.


ORDERS: dict[str, tuple[ReduceOrder, ...]] = {
    "2201": get_args(ReduceOrder),
    # A value alone is what a kernel reads of the pair.
    "2002": ("value", "value_index", "index_value"),
}
"""asc-devkit, ReduceRepeat.md, constraints."""


def _is_whole(src: Local) -> bool:
    """Whether all elements of each repeat are there."""
    return src.mask is None and src.count % min(src.count, src.repeat_elements) == 0


def _elements(count: int) -> str:
    return "one element" if count == 1 else f"{count} elements"


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


def _sizes(op: MicroOp) -> str:
    """How many elements each operand of *op* has, and of which type."""
    return ", ".join(f"{local.count} {local.dtype.name}" for local in operands(op))


def _scalar_dtype(op: MicroOp) -> DType:
    """The type of the scalar of *op*."""
    if isinstance(op, CompareScalar | Axpy):
        return reads(op)[0].dtype
    return writes(op)[0].dtype


def _shifts_too_far(op: BinaryScalar) -> bool:
    """Whether it shifts by a number of places that is too large, or below zero."""
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
    """Whether the results of a block lie in one half of a block, the same one in all of them."""
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
    """What *op* reads element by element."""
    return (op.src,) if isinstance(op, CastDequant) else reads(op)


TABLE = 16
"""Elements of a block of int16, and parameters for them."""


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
        MOVING,
        lambda op, _: (
            op.dst.dtype.bits in (16, 32)
            and all(local.dtype is op.dst.dtype for local in reads(op))
        ),
        lambda op, _: f"operands must share one type of 16 or 32 bits, not {types(op)}; cast first",
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
        (BlockReduce, WholeReduce),
        lambda op, _: op.dst.count == op.span,
        lambda op, _: (
            f"dst must be {_elements(op.span)}, from the first to the last that comes of the "
            f"{op.src.count} of src, not {op.dst.count}; change its count"
        ),
    ),
    Rule(
        (BlockReduce, WholeReduce),
        lambda op, _: not op.dst.is_strided or op.places.size == op.span,
        lambda op, _: (
            f"dst must have either strides or a stride of results, not both as {op.dst} has; "
            f"take the former out"
        ),
    ),
    Rule(
        (BlockReduce,),
        lambda op, _: op.src.mask is None or op.dst_stride is not None,
        lambda op, _: (
            f"a mask must come with a dst_stride, not with {op.dst_stride}; say how far apart the "
            f"results of repeats lie"
        ),
    ),
    Rule(
        (WholeReduce,),
        lambda op, _: op.mask is None or _is_whole(op.src),
        lambda op, _: (
            f"with a mask src must be whole repeats and have none, not {op.src.count} of {op.src}; "
            f"take one of the two"
        ),
    ),
    Rule(
        (WholeReduce,),
        lambda op, _: op.mask is None or op.mask <= min(op.src.count, op.src.repeat_elements),
        lambda op, _: (
            f"mask must be at most the {min(op.src.count, op.src.repeat_elements)} elements of a "
            f"repeat, not {op.mask}; take more blocks a repeat"
        ),
    ),
    Rule(
        (WholeReduce,),
        lambda op, _: op.op != "sum" or op.order == "value",
        lambda op, _: f"a sum must leave a value, not {op.order}; take min or max",
    ),
    Rule(
        (WholeReduce,),
        lambda op, at: op.order in ORDERS[at.arch],
        lambda op, at: (
            f"order must be one of {', '.join(ORDERS[at.arch])} on arch {at.arch}, not "
            f"{op.order}; take the part that is wanted"
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
    Rule(
        (Select,),
        lambda op, _: isinstance(op.b, Local) or fits(op.b, op.dst.dtype),
        lambda op, _: f"b must be a number that {op.dst.dtype.name} has, not {op.b}; round it",
    ),
    Rule(
        (Reduce,),
        lambda op, _: op.dst.count == op.result_elements,
        lambda op, _: (
            f"dst must be {_elements(op.result_elements)}, not {op.dst.count}; change its count"
        ),
    ),
)
