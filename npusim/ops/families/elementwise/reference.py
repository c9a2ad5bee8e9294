"""What the operators of the family compute, on whole arrays in plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from npusim.data.dtypes import FLOAT16, INT32, Array, cast, dtype_named
from npusim.devices.schema import DeviceSpec
from npusim.ops._oracle import Given

__all__ = ["compute"]

HALF, FULL, BF16 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)


def _nearest(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """*function* in float64, rounded to the type that comes in."""
    return lambda x: function(x.astype(np.float64)).astype(x.dtype)


_exp, _log = _nearest(np.exp), _nearest(np.log)


def _one(x: Array) -> Any:
    return x.dtype.type(1)


def _sigmoid(x: Array) -> Array:
    return np.asarray(_one(x) / (_exp(-x) + _one(x)))


def _gelu(x: Array) -> Array:
    inner = x * x * x * np.float32(0.044715) + x
    return np.asarray(x / (_exp(inner * np.float32(-1.5957691)) + _one(x)))


POLYNOMIAL = (-3.512339572e-9, 2.64526617e-7, -7.929488134e-6, 1.10612384e-4, 6.518995814e-5,
              -7.266616915e-2, -1.595769883)  # fmt: skip


def _gelu_by_polynomial(x: Array) -> Array:
    cut = np.minimum(x, np.float32(5.75))
    square = cut * cut
    found = np.zeros_like(square)
    for index, coefficient in enumerate(map(np.float32, POLYNOMIAL)):
        # The first product is with the first coefficient itself.
        found = square * coefficient if index == 0 else found + coefficient
        if 0 < index < len(POLYNOMIAL) - 1:
            found = found * square
    return np.asarray(x / (_exp(found * cut) + _one(x)))


def _silu(x: Array, spec: DeviceSpec | None) -> Array:
    if spec is None or spec.arch != "2002":
        return np.asarray(x / (_exp(-x) + _one(x)))
    half = (x - np.abs(x)) * np.float32(0.5)
    return np.asarray(x * _exp(half) / (_exp(-np.abs(x)) + _one(x)))


def _exceeds(a: Array, b: Array, spec: DeviceSpec) -> Array:
    """Whether *a* > *b*, as Atlas inference finds it: by their difference, in units of *least*."""
    dtype = a.dtype
    least = np.array(2.0**-24 if dtype == HALF else 2.0**-126, dtype)
    apart = _rounded(_rounded(b - a, dtype, spec) + least, dtype, spec)
    apart = np.maximum(np.minimum(apart, least), dtype.type(0))
    share = apart.astype(np.float64) / float(least)
    found = _rounded((1 - share.astype(dtype)).astype(np.float32), HALF, spec)
    return np.asarray(found.astype(np.uint8))


def _axpy(x: Array, other: Array, alpha: float, spec: DeviceSpec | None) -> Array:
    """`x + alpha * other`, each step rounded; int32 in float32."""
    dtype = x.dtype
    if dtype == np.int32:
        x, other = x.astype(np.float32), other.astype(np.float32)
    product = _rounded(other * np.array(alpha).astype(x.dtype), x.dtype, spec)
    total = _rounded(x + product, x.dtype, spec)
    return cast(total, INT32, "trunc") if dtype == np.int32 else total


def _power(x: Array, exponent: float) -> Array:
    found = {0.5: np.sqrt(x), 1.0: x, 2.0: x * x, 3.0: x * x * x}[abs(exponent)]
    return np.asarray(np.float32(1) / found if exponent < 0 else found)


def _tanh(x: Array) -> Array:
    power = _exp(np.abs(x) * np.float32(-2))
    sign = x / (np.abs(x) + np.float32(2.0**-126))
    return np.asarray(sign * (_one(x) - power) / (_one(x) + power))


_SAME: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "logical_and": np.bitwise_and,
    "logical_or": np.bitwise_or,
    "logical_not": lambda x: x ^ x.dtype.type(1),
    "neg": np.negative,
    "abs": np.abs,
    "relu": lambda x: np.where(x > 0, x, np.where(x != x, x, x.dtype.type(0))),
    "exp": _exp,
}
"""In float16 if they are given that."""
_WIDE: dict[str, Callable[..., Array]] = {
    "log": _log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: _one(x) / np.sqrt(x),
    "reciprocal": lambda x: _one(x) / x,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "gelu": _gelu,
    "npu_gelu": _gelu_by_polynomial,
}
"""Always in float32."""
_ONE = (*_WIDE, "logical_not", "neg", "abs", "relu", "exp")
"""Functions of one operand."""
_COMPARE: dict[str, Callable[..., Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def compute(name: str, given: Given) -> Array:
    """The result of operator *name*."""
    x, spec = given.x, given.spec
    if name == "broadcast_to":
        return np.ascontiguousarray(np.broadcast_to(x, given.shape))
    with np.errstate(all="ignore"):
        match name:
            case "fill":
                return np.full(x.shape, np.array(given.value).astype(x.dtype))
            case "silu":
                return _rounded(_silu(x.astype(np.float32), spec), x.dtype, spec)
            case "clamp":
                return _rounded(_clamped(x, given.low, given.high), x.dtype, spec)
            case "cast":
                return _cast(x, given.dtype, spec)
            case "pow":
                return _rounded(_power(x.astype(np.float32), given.exponent), x.dtype, spec)
            case "npu_gelu" if given.approximate == "tanh":
                return _of_operands("gelu", [x], spec)
            case _ if name in _ONE:
                return _of_operands(name, [x], spec)
            case _:
                return _of_two(name, given)


def _of_two(name: str, given: Given) -> Array:
    """The result of an operator of two operands, of which the second may be a number."""
    x, other, spec = given.x, given.other, given.spec
    if not isinstance(other, np.ndarray):
        other = np.array(other, x.dtype)
    if name in ("gt", "lt") and spec is not None and spec.arch == "2002":
        return _exceeds(x, other, spec) if name == "gt" else _exceeds(other, x, spec)
    if name in _COMPARE:
        return np.asarray(_COMPARE[name](x, other).astype(np.uint8))
    if name == "where":
        return np.asarray(np.where(given.condition == 1, x, other))
    if name == "axpy":
        return _axpy(x, other, given.alpha, spec)
    if other.dtype != x.dtype:
        return np.asarray(_SAME[name](x.astype(np.float32), other.astype(np.float32)))
    return _of_operands(name, [x, other], spec)


def _of_operands(name: str, operands: list[Array], spec: DeviceSpec | None) -> Array:
    """What one function of numpy gives, in the type of the operands or in float32."""
    dtype = operands[0].dtype
    if name in _SAME and dtype != BF16:
        return _rounded(np.asarray(_SAME[name](*operands)), dtype, spec)
    function = _SAME[name] if name in _SAME else _WIDE[name]
    return _rounded(np.asarray(function(*(x.astype(np.float32) for x in operands))), dtype, spec)


def _clamped(x: Array, low: float | None, high: float | None) -> Array:
    found = x
    if high is not None:
        found = np.minimum(found, np.array(high).astype(x.dtype))
    if low is not None:
        found = np.maximum(found, np.array(low).astype(x.dtype))
    return found


def _saturates(spec: DeviceSpec | None) -> bool:
    return spec is not None and spec.half_overflow == "saturate"


def _rounded(values: Array, dtype: np.dtype[Any], spec: DeviceSpec | None) -> Array:
    """*values* as *dtype*; where float16 saturates, 65504 for more and 0 for NaN."""
    if dtype != HALF or not _saturates(spec):
        return values.astype(dtype)
    most = np.finfo(np.float16).max
    return np.clip(np.where(np.isnan(values), 0, values), -most, most).astype(np.float16)


def _cast(x: Array, dtype: str, spec: DeviceSpec | None) -> Array:
    target = dtype_named(dtype)
    if target is INT32 and x.dtype.kind not in "iu":
        return cast(x.astype(np.float32), INT32, "trunc")
    if target is FLOAT16:
        return _rounded(x.astype(np.float32), HALF, spec)
    return x.astype(target.numpy)
