"""Which types the instructions of the vector pipe calculate in and cast between."""

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
    DType,
    RoundMode,
)
from npusim.isa import Binary, BinaryOp, BinaryScalar, BitwiseOp, MicroOp, Unary, UnaryOp

__all__ = ["CASTS", "FLOATS", "dtypes_of"]

_INTEGRAL: tuple[RoundMode, ...] = ("rint", "floor", "ceil", "round", "trunc")
# asc-devkit, Cast.md, one table a product line; 310P's fp32 to int32 stands in its code only
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
        (INT32, FLOAT16): ("none",),
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
        (INT32, FLOAT16): ("none",),
    },
}
FLOATS = (FLOAT32, FLOAT16)
# asc-devkit, Add.md, Mul.md, Max.md: no bf16 arithmetic on either; Div.md: floats only; And.md,
# Or.md and Not.md: 16 bits; Relu.md: int32 too; Abs.md, Exp.md and so on: floats only.
ARITHMETIC_DTYPES: dict[BinaryOp | BitwiseOp, tuple[DType, ...]] = {
    **dict.fromkeys(("add", "sub", "mul", "min", "max"), (*FLOATS, INT32)),
    "div": FLOATS,
    "and": (INT16,),
    "or": (INT16,),
}
UNARY_DTYPES: dict[UnaryOp, tuple[DType, ...]] = {
    **dict.fromkeys(("abs", "exp", "ln", "sqrt", "rsqrt", "reciprocal"), FLOATS),
    "relu": (*FLOATS, INT32),
    "not": (INT16,),
}


def dtypes_of(op: MicroOp) -> tuple[DType, ...]:
    """The types that *op* calculates in. asc-devkit, Axpy.md, MulAddDst.md, ReduceDataBlock.md."""
    if isinstance(op, Binary | BinaryScalar):
        return ARITHMETIC_DTYPES[op.op]
    return UNARY_DTYPES[op.op] if isinstance(op, Unary) else FLOATS
