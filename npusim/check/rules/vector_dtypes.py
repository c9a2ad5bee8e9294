"""Types in which vector instructions compute, and between which they cast."""

from __future__ import annotations

from npusim.data.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    DType,
    RoundMode,
)
from npusim.isa import (
    Axpy,
    Binary,
    BinaryOp,
    BinaryScalar,
    BitwiseOp,
    MicroOp,
    MulAddDst,
    ReluOp,
    ScalarFormOp,
    Unary,
    UnaryOp,
    reads,
)

__all__ = ["CASTS", "DEQUANTISED", "FLOATS", "dtypes_of", "is_mixed"]

_INTEGRAL: tuple[RoundMode, ...] = ("rint", "floor", "ceil", "round", "trunc")
_ANY: tuple[RoundMode, ...] = (*_INTEGRAL, "odd", "none")
"""int32 is converted to fp16 by the instruction with scaling, whatever mode is given
(asc-devkit@82b89a1, impl/basic_api/dav_c220 and dav_m200, kernel_operator_vec_vconv_impl.h:29)."""
# asc-devkit, Cast.md, one table per product line; 310P's fp32 to int32 is only in its code
# (impl/basic_api/dav_m200/kernel_operator_vec_vconv_impl.h).
CASTS: dict[str, dict[tuple[DType, DType], tuple[RoundMode, ...]]] = {
    "2201": {
        (FLOAT32, FLOAT32): _INTEGRAL,
        (FLOAT32, FLOAT16): (*_INTEGRAL, "odd", "none"),
        (FLOAT32, BFLOAT16): _INTEGRAL,
        (FLOAT32, INT32): _INTEGRAL,
        (FLOAT32, INT16): _INTEGRAL,
        (FLOAT16, FLOAT32): ("none",),
        (FLOAT16, INT32): _INTEGRAL,
        (FLOAT16, INT8): (*_INTEGRAL, "none"),
        (FLOAT16, UINT8): (*_INTEGRAL, "none"),
        (FLOAT16, INT4): (*_INTEGRAL, "none"),
        (BFLOAT16, FLOAT32): ("none",),
        (BFLOAT16, INT32): _INTEGRAL,
        (INT4, FLOAT16): ("none",),
        (INT8, FLOAT16): ("none",),
        (UINT8, FLOAT16): ("none",),
        (INT32, FLOAT32): ("none",),
        (INT32, FLOAT16): _ANY,
        (INT16, FLOAT16): _INTEGRAL,
        (INT64, INT32): ("none",),
    },
    "2002": {
        (FLOAT32, FLOAT16): ("odd", "none"),
        (FLOAT32, INT32): _INTEGRAL,
        (FLOAT16, FLOAT32): ("none",),
        (FLOAT16, INT32): _INTEGRAL,
        (FLOAT16, INT8): ("floor", "ceil", "round", "trunc", "none"),
        (FLOAT16, UINT8): ("floor", "ceil", "round", "trunc", "none"),
        (FLOAT16, INT4): ("none",),
        (INT8, FLOAT16): ("none",),
        (UINT8, FLOAT16): ("none",),
        (INT32, FLOAT32): ("none",),
        (INT32, FLOAT16): _ANY,
    },
}
FLOATS = (FLOAT32, FLOAT16)
# asc-devkit, Add.md, Adds.md, Mul.md, Max.md: int16, half, int32 and float on all; Div.md: floats
# only; And.md, Or.md and Not.md: 16 bits; Relu.md: int32 too; Abs.md, Exp.md and so on: floats
# only; AddRelu.md, LeakyRelu.md, ShiftLeft.md, ShiftRight.md.
ARITHMETIC_DTYPES: dict[BinaryOp | BitwiseOp | ReluOp | ScalarFormOp, tuple[DType, ...]] = {
    **dict.fromkeys(("add", "sub", "mul", "min", "max"), (*FLOATS, INT32, INT16)),
    "div": FLOATS,
    **dict.fromkeys(("and", "or"), (INT16, UINT16)),
    **dict.fromkeys(("add_relu", "sub_relu"), (*FLOATS, INT16)),
    "leaky_relu": FLOATS,
    **dict.fromkeys(("shift_left", "shift_right"), (INT16, UINT16, INT32, UINT32)),
    "shift_right_round": (INT16, INT32),
}
UNARY_DTYPES: dict[UnaryOp, tuple[DType, ...]] = {
    **dict.fromkeys(("abs", "exp", "ln", "sqrt", "rsqrt", "reciprocal"), FLOATS),
    "relu": (*FLOATS, INT32),
    "not": (INT16, UINT16),
}
# asc-devkit, MulCast.md, AddReluCast.md, SubReluCast.md: source type -> result types.
_OF_SUMS: dict[DType, tuple[DType, ...]] = {FLOAT16: (INT8,), INT16: (INT8,), FLOAT32: (FLOAT16,)}
NARROWED: dict[BinaryOp | BitwiseOp | ReluOp, dict[DType, tuple[DType, ...]]] = {
    "mul": {FLOAT16: (INT8, UINT8)},
    "add_relu": _OF_SUMS,
    "sub_relu": _OF_SUMS,
}
# asc-devkit, CastDequant.md; the vector pipe of 310P casts int32 only by Cast after SetDeqScale.
DEQUANTISED = {INT32: (FLOAT16,), INT16: (INT8, UINT8)}


def dtypes_of(op: MicroOp) -> tuple[DType, ...]:
    """The types in which *op* computes. asc-devkit, Axpy.md, MulAddDst.md, ReduceDataBlock.md."""
    if isinstance(op, Binary | BinaryScalar):
        return ARITHMETIC_DTYPES[op.op]
    return UNARY_DTYPES[op.op] if isinstance(op, Unary) else FLOATS


def is_mixed(op: MicroOp) -> bool:
    """Whether the sources of *op* share a type, and its result has another one that is allowed."""
    sources = {local.dtype for local in reads(op)}
    match op:
        case Binary():
            pairs = NARROWED.get(op.op, {})
            return len(sources) == 1 and op.dst.dtype in pairs.get(op.a.dtype, ())
        case MulAddDst(form="mul_add_dst"):
            return op.dst.dtype is FLOAT32 and op.a.dtype is op.b.dtype is FLOAT16
        case Axpy():
            return op.dst.dtype is FLOAT32 and op.src.dtype is FLOAT16
        case _:
            return False
