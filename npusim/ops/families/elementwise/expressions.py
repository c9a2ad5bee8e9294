"""What each operator of the family computes: one row of the table per kernel of the vendor.

The vendor builds these kernels from a description of what they compute (CANN 8.1.RC1, public TBE
copy, impl/dynamic/<kernel>.py); steps and types restate those descriptions. bfloat16 is computed in
float32 and rounded once at the end, in every kernel (tbe/common/register/operation_func_mgr.py); so
is float16 where `WIDE` says so, otherwise each step is rounded to float16.
"""

from __future__ import annotations

from collections.abc import Callable

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, INT32, UINT8
from npusim.isa import BinaryOp, CompareOp, UnaryOp
from npusim.ops.families.elementwise.chain import Chain, Value
from npusim.ops.families.elementwise.expression import (
    ANY_FLOATS,
    AS_IS,
    FLAGS,
    FLOATS,
    TWO,
    UNCHANGED,
    WIDE,
    WITH_BYTES,
    WITH_FLOAT32,
    WITH_INT32,
    Expression,
)
from npusim.ops.families.elementwise.gradients import GRADIENTS


def _unary(op: UnaryOp) -> Callable[..., Value]:
    return lambda chain, x: chain.unary(op, x)


def _binary(op: BinaryOp) -> Callable[..., Value]:
    return lambda chain, x, other: chain.binary(op, x, other)


def _compare(op: CompareOp) -> Callable[..., Value]:
    def write(chain: Chain, x: Value, other: Value) -> Value:
        if op in ("gt", "lt") and chain.spec.arch == "2002":
            return chain.cast(_exceeds(chain, *((x, other) if op == "gt" else (other, x))), UINT8)
        bits = chain.compare(op, x, other)
        return chain.cast(chain.select(bits, chain.constant(1.0, FLOAT16), 0.0), UINT8)

    return write


LEAST = {FLOAT32: (2.0**-126, 2.0**42, 3), FLOAT16: (2.0**-24, 2.0**12, 2)}
"""Type -> the smallest difference that counts on Atlas inference, and how it is scaled to 1: a
factor and its repetitions. The factors are assumed, their product is not."""


def _exceeds(chain: Chain, a: Value, b: Value) -> Value:
    """1 where *a* > *b*, else 0, from their difference, like kernels of Atlas inference."""
    least, factor, times = LEAST[a.dtype]
    apart = chain.binary("add", chain.binary("sub", b, a), least)
    apart = chain.binary("max", chain.binary("min", apart, least), 0.0)
    for _ in range(times):
        apart = chain.binary("mul", apart, factor)
    return chain.binary("add", chain.binary("mul", apart, -1.0), 1.0)


def _one_over(chain: Chain, x: Value) -> Value:
    return chain.binary("div", chain.constant(1.0, x.dtype), x)


def _rsqrt(chain: Chain, x: Value) -> Value:
    return _one_over(chain, chain.unary("sqrt", x))


def _sigmoid(chain: Chain, x: Value) -> Value:
    return _one_over(
        chain, chain.binary("add", chain.unary("exp", chain.binary("mul", x, -1.0)), 1.0)
    )


def _silu(chain: Chain, x: Value) -> Value:
    if chain.spec.arch == "2002":
        # Neither power exceeds 1. That float16 is computed in the same way is assumed.
        magnitude = chain.unary("abs", x)
        power = chain.unary("exp", chain.binary("mul", chain.binary("sub", x, magnitude), 0.5))
        below = chain.binary("add", chain.unary("exp", chain.binary("mul", magnitude, -1.0)), 1.0)
        return chain.binary("div", chain.binary("mul", x, power), below)
    denominator = chain.binary("add", chain.unary("exp", chain.binary("mul", x, -1.0)), 1.0)
    return chain.binary("div", x, denominator)


def _gelu(chain: Chain, x: Value) -> Value:
    cube = chain.binary("mul", chain.binary("mul", x, x), x)
    inner = chain.binary("add", x, chain.binary("mul", cube, 0.044715))
    exponential = chain.unary("exp", chain.binary("mul", inner, -1.5957691))
    return chain.binary("div", x, chain.binary("add", exponential, 1.0))


ERF = (
    *(-3.512339572e-9, 2.64526617e-7, -7.929488134e-6, 1.10612384e-4),
    *(6.518995814e-5, -7.266616915e-2, -1.595769883),
)
"""Coefficients of the polynomial in x**2 of GeluV2, the highest power first."""
ERF_MOST = 5.75
"""Largest argument of the polynomial."""


def _npu_gelu(chain: Chain, x: Value, approximate: str) -> Value:
    if approximate == "tanh":
        return _gelu(chain, x)
    cut = chain.binary("min", x, ERF_MOST)
    square = chain.binary("mul", cut, cut)
    found = chain.binary("mul", square, ERF[0])
    for coefficient in ERF[1:-1]:
        found = chain.binary("mul", chain.binary("add", found, coefficient), square)
    exponential = chain.unary("exp", chain.binary("mul", chain.binary("add", found, ERF[-1]), cut))
    return chain.binary("div", x, chain.binary("add", exponential, 1.0))


def _axpy(chain: Chain, x: Value, other: Value, alpha: float) -> Value:
    return chain.binary("add", x, chain.binary("mul", chain.spread(other), alpha))


TINY = 2.0**-126
"""Avoids 0 / 0 for the sign of 0."""


def _tanh(chain: Chain, x: Value) -> Value:
    if chain.spec.arch == "2002":
        return _tanh_of_310p(chain, x)
    magnitude, square = chain.unary("abs", x), chain.binary("mul", x, x)
    found = chain.binary("mul", square, NEAR_ZERO[0])
    for coefficient in NEAR_ZERO[1:]:
        found = chain.binary("mul", chain.binary("add", found, coefficient), square)
    near = chain.binary("mul", chain.binary("add", found, 1.0), x)
    power = chain.unary("exp", chain.binary("mul", chain.binary("min", x, TANH_MOST), 2.0))
    numerator, below = chain.binary("add", power, -1.0), chain.binary("add", power, 1.0)
    is_near = chain.compare("lt", magnitude, chain.constant(TANH_NEAR, x.dtype))
    return chain.select(is_near, near, chain.binary("div", numerator, below))


NEAR_ZERO = (0.0157396831, -0.0523039624, 0.133152977, -0.333327681)
"""Coefficients of the polynomial of Tanh in x**2, the highest power first, before the 1."""
TANH_NEAR, TANH_MOST = 0.55, 20.0
"""The polynomial is used below the first; the exponential is of twice at most the second."""


def _tanh_of_310p(chain: Chain, x: Value) -> Value:
    magnitude = chain.unary("abs", x)
    power = chain.unary("exp", chain.binary("mul", magnitude, -2.0))
    numerator = chain.binary("sub", x, chain.binary("mul", power, x))
    above = chain.binary("add", magnitude, TINY)
    below = chain.binary("mul", chain.binary("add", power, 1.0), above)
    return chain.binary("div", numerator, below)


def _where(chain: Chain, condition: Value, x: Value, other: Value) -> Value:
    flags = chain.spread(condition)
    ones = chain.constant(1.0, FLOAT16)
    return chain.select(chain.compare("eq", flags, ones), x, other)


def _clamp(chain: Chain, x: Value, low: float | None, high: float | None) -> Value:
    x = x if low is None else chain.binary("max", x, low)
    return x if high is None else chain.binary("min", x, high)


EXPONENTS = (2.0, 3.0, 0.5, -0.5, -1.0, -2.0)
"""Exponents that need neither logarithm nor power."""


def _power(chain: Chain, x: Value, exponent: float) -> Value:
    root_or_power = {
        0.5: lambda: chain.unary("sqrt", x),
        1.0: lambda: x,
        2.0: lambda: chain.binary("mul", x, x),
        3.0: lambda: chain.binary("mul", chain.binary("mul", x, x), x),
    }[abs(exponent)]()
    return _one_over(chain, root_or_power) if exponent < 0 else root_or_power


def _logical_not(chain: Chain, x: Value) -> Value:
    return chain.binary("add", chain.binary("mul", x, -1.0), 1.0)


def _comparison(name: CompareOp, kernel: str, sign: str) -> Expression:
    return Expression(
        name,
        kernel,
        f"whether x {sign} other, element by element, as 0 or 1 in uint8",
        f"y = x {sign} other",
        WITH_INT32 if name == "eq" else AS_IS,
        _compare(name),
        TWO,
        gives_bool=True,
    )


TABLE = (
    Expression(
        "add",
        "Add",
        "the sum of two tensors",
        "y = x + other",
        WITH_INT32,
        _binary("add"),
        TWO,
        mixes=WITH_FLOAT32,
    ),
    Expression(
        "sub",
        "Sub",
        "the difference of two tensors",
        "y = x - other",
        WITH_INT32,
        _binary("sub"),
        TWO,
    ),
    Expression(
        "mul",
        "Mul",
        "the product of two tensors, element by element",
        "y = x * other",
        WITH_INT32,
        _binary("mul"),
        TWO,
        mixes=WITH_FLOAT32,
        wide_numbers=(int, float),
    ),
    # Default of the shipped binaries: high performance, a division in float16. That two types are
    # computed in float32 is inferred from the type of the result (ops-math, realdiv.cpp).
    Expression(
        "div",
        "RealDiv",
        "the quotient of two tensors",
        "y = x / other",
        AS_IS,
        _binary("div"),
        TWO,
        mixes=ANY_FLOATS,
        wide_numbers=(float,),
    ),
    Expression(
        "maximum",
        "Maximum",
        "the larger of two elements",
        "y = max(x, other)",
        WITH_BYTES,
        _binary("max"),
        TWO,
    ),
    Expression(
        "minimum",
        "Minimum",
        "the smaller of two elements",
        "y = min(x, other)",
        WITH_BYTES,
        _binary("min"),
        TWO,
    ),
    # The computation of kernels for flags was not read: assumed, and without effect on the result.
    Expression(
        "logical_and",
        "LogicalAnd",
        "whether both flags are set, as 0 or 1 in uint8",
        "y = x * other",
        FLAGS,
        _binary("mul"),
        TWO,
    ),
    Expression(
        "logical_or",
        "LogicalOr",
        "whether one of two flags is set, as 0 or 1 in uint8",
        "y = max(x, other)",
        FLAGS,
        _binary("max"),
        TWO,
    ),
    Expression(
        "logical_not",
        "LogicalNot",
        "whether a flag is not set, as 0 or 1 in uint8",
        "y = 1 - x",
        FLAGS,
        _logical_not,
    ),
    _comparison("eq", "Equal", "=="),
    _comparison("ne", "NotEqual", "!="),
    _comparison("lt", "Less", "<"),
    _comparison("le", "LessEqual", "<="),
    _comparison("gt", "Greater", ">"),
    _comparison("ge", "GreaterEqual", ">="),
    Expression(
        "neg",
        "Neg",
        "each element with the other sign",
        "y = x * -1",
        WITH_INT32,
        lambda chain, x: chain.binary("mul", x, -1.0),
    ),
    Expression("abs", "Abs", "the magnitude of each element", "y = |x|", AS_IS, _unary("abs")),
    Expression(
        "relu",
        "Relu",
        "each element, cut off below zero",
        "y = max(x, 0)",
        WITH_INT32,
        _unary("relu"),
    ),
    # Unkeyed binaries: the default of the source, high performance, stays in float16 (inferred).
    Expression("exp", "Exp", "e to the power of each element", "y = e ** x", AS_IS, _unary("exp")),
    Expression(
        "log", "Log", "the natural logarithm of each element", "y = ln(x)", AS_IS, _unary("ln")
    ),
    Expression(
        "sqrt", "Sqrt", "the square root of each element", "y = sqrt(x)", WIDE, _unary("sqrt")
    ),
    Expression(
        "rsqrt",
        "Rsqrt",
        "one over the square root of each element",
        "y = 1 / sqrt(x)",
        WIDE,
        _rsqrt,
    ),
    Expression("reciprocal", "Reciprocal", "one over each element", "y = 1 / x", WIDE, _one_over),
    # ops-math@c419332 math/pows/op_kernel/pows_base.h. Its tiling is that of the family (assumed).
    Expression(
        "pow",
        "Pows",
        "a power of each element: 2, 3, 0.5, -0.5, -1 or -2",
        "y = x * x, x * x * x, sqrt(x), or one over sqrt(x), x, x * x",
        WIDE,
        _power,
        "Tensor x, float exponent",
    ),
    # The default of the shipped binaries: high precision.
    Expression(
        "tanh",
        "Tanh",
        "the hyperbolic tangent of each element",
        "y = (p - 1) / (p + 1), p = e ** (2 min(x, 20)); a polynomial where |x| < 0.55",
        WIDE,
        _tanh,
    ),
    Expression(
        "sigmoid",
        "Sigmoid",
        "the logistic function of each element",
        "y = 1 / (e ** (-x) + 1)",
        WIDE,
        _sigmoid,
    ),
    Expression(
        "silu",
        "Swish",
        "each element times its logistic function",
        "y = x / (e ** (-x) + 1)",
        WIDE,
        _silu,
    ),
    Expression(
        "gelu",
        "Gelu",
        "the Gaussian error linear unit, by its form with tanh",
        "y = x / (e ** (-1.5957691 (x + 0.044715 x**3)) + 1)",
        WIDE,
        _gelu,
    ),
    # That the form with tanh is Gelu's is assumed.
    Expression(
        "npu_gelu",
        "GeluV2",
        "the Gaussian error linear unit, by a polynomial or by tanh",
        "y = x / (e ** (p(x1**2) x1) + 1), x1 = min(x, 5.75); by tanh as gelu",
        WIDE,
        _npu_gelu,
        "Tensor x, *, str approximate='none'",
    ),
    # One instruction or two, rounded once or twice: two of each are assumed. int32 goes through
    # float32, which loses precision beyond 2**24. The factor of bfloat16 is float32.
    Expression(
        "axpy",
        "Axpy",
        "x + alpha * other, as torch's add computes with alpha",
        "y = x + alpha * other, int32 in float32",
        AS_IS | {INT32: FLOAT32},
        _axpy,
        "Tensor x, Tensor|float other, float alpha=1",
    ),
    Expression(
        "where",
        "SelectV2",
        "one of two elements, chosen by a condition",
        "y = x where condition == 1, else other",
        AS_IS,
        _where,
        "Tensor condition, Tensor x, Tensor|float other",
    ),
    Expression(
        "clamp",
        "ClipByValueV2",
        "each element within bounds",
        "y = min(max(x, low), high)",
        WITH_INT32,
        _clamp,
        "Tensor x, float? low=None, float? high=None",
    ),
    Expression(
        "cast",
        "Cast",
        "each element as another type",
        "y = x as dtype, to nearest even, integers toward zero",
        {dtype: dtype for dtype in (*FLOATS, INT32, INT8, UINT8)},
        lambda _, x: x,
        "Tensor x, dtype dtype",
    ),
    Expression(
        "broadcast_to",
        "BroadcastTo",
        "a tensor repeated along axes where it has one element",
        "y[i, j] = x[i, 0], for each set of such axes",
        UNCHANGED,
        lambda _, x: x,
        "Tensor x, int[] shape",
    ),
    Expression(
        "fill",
        "Fill",
        "a tensor of the shape of x, filled with one number",
        "y = value",
        UNCHANGED,
        lambda _, value: value,
        "Tensor x, float value",
    ),
)
EXPRESSIONS: dict[str, Expression] = {each.name: each for each in (*TABLE, *GRADIENTS)}
