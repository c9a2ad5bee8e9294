"""The results of the operators of the family, on whole arrays in plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import ml_dtypes
import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, INT32, Array, cast, dtype_named
from npusim.devices.schema import DeviceSpec
from npusim.ops._oracle import Given

Oracle = Callable[[Given], Array]

HALF, FULL, BF16 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)


def _nearest(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """*function* in float64, rounded to the type of its argument."""
    return lambda x: function(x.astype(np.float64)).astype(x.dtype)


_exp, _log = _nearest(np.exp), _nearest(np.log)


def _sigmoid(x: Array) -> Array:
    return np.asarray(np.float32(1) / (_exp(x * np.float32(-1)) + np.float32(1)))


def _gelu(x: Array) -> Array:
    inner = x * x * x * np.float32(0.044715) + x
    return np.asarray(x / (_exp(inner * np.float32(-1.5957691)) + np.float32(1)))


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
    return np.asarray(x / (_exp(found * cut) + np.float32(1)))


def _silu(x: Array, spec: DeviceSpec | None) -> Array:
    if spec is None or spec.arch != "2002":
        return np.asarray(x / (_exp(-x) + np.float32(1)))
    half = (x - np.abs(x)) * np.float32(0.5)
    return np.asarray(x * _exp(half) / (_exp(-np.abs(x)) + np.float32(1)))


def _exceeds(a: Array, b: Array, given: Given) -> Array:
    """Whether *a* > *b*; Atlas inference tests their difference, in units of *least*."""
    if given.spec is None or given.spec.arch != "2002":
        return np.asarray((a > b).astype(np.uint8))
    dtype = a.dtype
    least = np.array(2.0**-24 if dtype == HALF else 2.0**-126, dtype)
    apart = given.rounded(given.rounded(b - a, dtype) + least, dtype)
    apart = np.maximum(np.minimum(apart, least), dtype.type(0))
    share = apart.astype(np.float64) / float(least)
    found = given.rounded((1 - share.astype(dtype)).astype(np.float32), HALF)
    return np.asarray(found.astype(np.uint8))


def _axpy(given: Given) -> Array:
    """`x + alpha * other`, each step rounded; int32 and bfloat16 in float32."""
    x, other, alpha = given.x, _other(given), given.alpha
    dtype = x.dtype
    if dtype in (np.int32, BF16):
        x, other = x.astype(np.float32), other.astype(np.float32)
    product = given.rounded(other * np.array(alpha).astype(x.dtype), x.dtype)
    total = given.rounded(x + product, x.dtype)
    return cast(total, INT32, "trunc") if dtype == np.int32 else given.rounded(total, dtype)


def _power(x: Array, exponent: float) -> Array:
    found = {0.5: np.sqrt(x), 1.0: x, 2.0: x * x, 3.0: x * x * x}[abs(exponent)]
    return np.asarray(np.float32(1) / found if exponent < 0 else found)


def _tanh(x: Array, spec: DeviceSpec | None) -> Array:
    one = np.float32(1)
    if _is_series(spec, "Atlas inference"):
        power = _exp(np.abs(x) * np.float32(-2))
        return np.asarray((x - power * x) / ((power + one) * (np.abs(x) + np.float32(2.0**-126))))
    a, b, c, d = map(np.float32, (0.0157396831, -0.0523039624, 0.133152977, -0.333327681))
    square = x * x
    near = ((((a * square + b) * square + c) * square + d) * square + one) * x
    power = _exp(np.minimum(x, np.float32(20)) * np.float32(2))
    return np.asarray(np.where(np.abs(x) < np.float32(0.55), near, (power - one) / (power + one)))


def _compute(given: Given, function: Callable[..., Array], *operands: Array) -> Array:
    """*function* of operands of one type, rounded to it; bfloat16 in float32."""
    dtype = operands[0].dtype
    values = [x.astype(np.float32) for x in operands] if dtype == BF16 else operands
    return given.rounded(np.asarray(function(*values)), dtype)


def _other(given: Given) -> Array:
    """The second operand as an array; a number has the type of the first."""
    other = given.other
    return other if isinstance(other, np.ndarray) else np.array(other, given.x.dtype)


def _one(function: Callable[[Array], Array]) -> Oracle:
    """*function* of x; in float16 if x is."""
    return lambda given: _compute(given, function, given.x)


def _wide(function: Callable[[Array], Array]) -> Oracle:
    """*function* of x, always in float32."""
    return lambda given: given.rounded(function(given.x.astype(np.float32)), given.x.dtype)


def _two(function: Callable[..., Array]) -> Oracle:
    """*function* of x and other; in float16 if both are, of two types in float32."""

    def oracle(given: Given) -> Array:
        x, other = given.x, _other(given)
        if other.dtype != x.dtype:
            return np.asarray(function(x.astype(np.float32), other.astype(np.float32)))
        return _compute(given, function, x, other)

    return oracle


def _scaled(function: Callable[..., Array], kinds: tuple[type, ...]) -> Oracle:
    """:func:`_two`, but bfloat16 meets numbers of *kinds* as float32."""

    def oracle(given: Given) -> Array:
        number = given.other
        if given.x.dtype == BF16 and isinstance(number, int | float) and type(number) in kinds:
            return given.rounded(function(given.x.astype(FULL), np.float32(number)), BF16)
        return _two(function)(given)

    return oracle


def _comparison(function: Callable[..., Array]) -> Oracle:
    return lambda given: np.asarray(function(given.x, _other(given)).astype(np.uint8))


def _greater(given: Given) -> Array:
    return _exceeds(given.x, _other(given), given)


def _less(given: Given) -> Array:
    return _exceeds(_other(given), given.x, given)


def _where(given: Given) -> Array:
    return np.asarray(np.where(given.condition == 1, given.x, _other(given)))


def _npu_gelu(given: Given) -> Array:
    return _wide(_gelu if given.approximate == "tanh" else _gelu_by_polynomial)(given)


# ---- gradients ----


def _backward(function: Callable[..., Array]) -> Oracle:
    """*function* of the gradient and x, always in float32."""
    return lambda given: given.rounded(
        np.asarray(function(given.grad_output.astype(np.float32), given.x.astype(np.float32))),
        given.x.dtype,
    )


def _silu_slope(g: Array, x: Array) -> Array:
    one = np.float32(1)
    s = one / (_exp(-x) + one)
    return np.asarray(g * (s * ((one - s) * x + one)))


def _is_series(spec: DeviceSpec | None, series: str) -> bool:
    return (spec.series if spec else "Atlas A2") == series


def _gelu_by_tanh(g: Array, x: Array, spec: DeviceSpec | None) -> Array:
    one, cube, linear = map(np.float32, (1, 0.07135481627260025, 1.5957691216057308))
    square = x * x
    power = _exp((-cube * square - linear) * x)
    t = one / (power + one)
    slope = square * np.float32(0.2140644488178007) + linear
    if _is_series(spec, "Atlas A3"):
        return np.asarray(g * (((t - one) * x * -slope + one) * t))
    found = power * t * (slope * x) * t
    return np.asarray(g * (np.where(np.isnan(found), np.float32(0), found) + t))


def _npu_gelu_backward(given: Given) -> Array:
    if given.approximate == "tanh":
        return _backward(partial(_gelu_by_tanh, spec=given.spec))(given)
    slope = _slope_of_a2
    if _is_series(given.spec, "Atlas A3"):
        slope = _slope_of_a3
    elif _is_series(given.spec, "Atlas inference"):
        slope = _slope_of_310p
    return _backward(lambda g, x: g * slope(x))(given)


def _rational(x: Array, above: tuple[float, ...], below: tuple[float, ...]) -> Array:
    """A quotient of two polynomials, their lowest powers last; the second one begins with 1."""
    numerator, denominator = np.zeros_like(x), np.ones_like(x)
    for place, factor in enumerate(map(np.float32, above)):
        # The first product is with the first factor itself.
        numerator = x * factor if place == 0 else numerator + factor
        if 0 < place < len(above) - 1:
            numerator = numerator * x
    for factor in map(np.float32, below):
        denominator = denominator * x + factor
    return np.asarray(numerator / denominator)


def _slope_of_a2(x: Array) -> Array:
    size = np.minimum(np.abs(x), np.float32(30))
    ratio = _rational(
        size,
        (-0.7978849236182753, -6.223065142195392, -20.451359645895863, -29.633095101286557,
         -4.474629239730099, 30.9817411426),
        (7.79950327625, 26.6304065815, 44.965039885, 30.9817411527),
    )  # fmt: skip
    twice = ratio * _exp(size * size * np.float32(-0.5))
    half = np.where(x < 0, np.float32(0.5), np.float32(-0.5)) * twice
    return np.asarray(half - np.where(x < 0, np.float32(0), np.float32(-1)))


def _slope_of_a3(x: Array) -> Array:
    cut = np.clip(x * np.float32(0.7071067811865475), np.float32(-3.92), np.float32(3.92))
    square = cut * cut
    above = (0.053443748819, 7.5517016694, 101.62808918, 1393.8061484, 5063.791506, 29639.384698)
    numerator = np.zeros_like(x)
    for factor in map(np.float32, above):
        numerator = numerator * square + factor
    denominator = np.ones_like(x)
    below = (31.212858877, 398.56963806, 3023.124815, 13243.365831, 26267.224157)
    for factor in map(np.float32, below):
        denominator = denominator * square + factor
    chance = numerator * cut / denominator * np.float32(0.5) + np.float32(0.5)
    return np.asarray(chance + x * (_exp(x * x * np.float32(-0.5)) * np.float32(0.3989422804)))


def _slope_of_310p(x: Array) -> Array:
    scaled = x * np.float32(-0.7071067811865475)
    size = np.abs(scaled) + np.float32(2.0**-126)
    sign = scaled / size
    ratio = _rational(
        np.minimum(size, np.float32(7.5)),
        (-5.49061387205456025e-6, 0.000183133812184063945, 0.561518149524517221,
         3.30140769823242503, 7.81521876717522386, 8.99592084642248623),
        (5.81125804356746743, 14.5781556895088744, 17.9660160055262283, 8.99592098051391175),
    )  # fmt: skip
    normal = _exp(x * x * np.float32(-0.5))
    chance = (normal * ratio * sign + ((np.float32(0) - sign) + np.float32(1))) * np.float32(0.5)
    return np.asarray(chance + normal * scaled * np.float32(-0.5641895835477563))


def _kept(given: Given) -> Callable[[Array], Array]:
    """Clips float16 on a chip without infinities; other types are unchanged."""
    saturates = _is_series(given.spec, "Atlas inference") and given.x.dtype == HALF
    return lambda x: given.rounded(x.astype(np.float32), HALF) if saturates else x


def _fast_gelu(given: Given) -> Array:
    keep = _kept(given)

    def a2(x: Array) -> Array:
        return np.asarray(x / (_exp(x * x.dtype.type(-1.702)) + x.dtype.type(1)))

    def on_310p(x: Array) -> Array:
        one, size = x.dtype.type(1), np.abs(x)
        above = keep(x * keep(_exp(keep(keep(x - size) * x.dtype.type(0.851)))))
        below = keep(keep(_exp(keep(size * x.dtype.type(-1.702)))) + one)
        return np.asarray(above * (one / below))

    is_old = _is_series(given.spec, "Atlas inference")
    return _compute(given, on_310p if is_old else a2, given.x)


def _fast_gelu_backward(given: Given) -> Array:
    keep = _kept(given)

    def slope(g: Array, x: Array) -> Array:
        one, scaled = x.dtype.type(1), keep(x * x.dtype.type(-1.702))
        s = keep(one / keep(keep(_exp(scaled)) + one))
        return np.asarray(g * keep(keep(keep(scaled * keep(s - one)) + one) * s))

    return _compute(given, slope, given.grad_output, given.x)


def _clamped(x: Array, low: float | None, high: float | None) -> Array:
    found = x
    if low is not None:
        found = np.maximum(found, np.array(low).astype(x.dtype))
    if high is not None:
        found = np.minimum(found, np.array(high).astype(x.dtype))
    return found


def _cast(given: Given) -> Array:
    x: Array = given.x
    target = dtype_named(given.dtype)
    if target is INT32 and x.dtype.kind not in "iu":
        return cast(x.astype(np.float32), INT32, "trunc")
    if target is FLOAT16:
        return given.rounded(x.astype(np.float32), HALF)
    if target is BFLOAT16:
        return x.astype(np.float32).astype(BF16)
    return x.astype(target.numpy)


ORACLES: dict[str, Oracle] = {
    "add": _two(np.add),
    "sub": _two(np.subtract),
    "mul": _scaled(np.multiply, (int, float)),
    "div": _scaled(np.divide, (float,)),
    "maximum": _two(np.maximum),
    "minimum": _two(np.minimum),
    "logical_and": _two(np.bitwise_and),
    "logical_or": _two(np.bitwise_or),
    "logical_not": _one(lambda x: x ^ x.dtype.type(1)),
    "eq": _comparison(np.equal),
    "ne": _comparison(np.not_equal),
    "lt": _less,
    "le": _comparison(np.less_equal),
    "gt": _greater,
    "ge": _comparison(np.greater_equal),
    "neg": _one(lambda x: np.asarray(x * x.dtype.type(-1))),
    "abs": _one(np.abs),
    "relu": _one(lambda x: np.where(x > 0, x, np.where(x != x, x, x.dtype.type(0)))),
    "exp": _one(_exp),
    "log": _one(_log),
    "sqrt": _wide(np.sqrt),
    "rsqrt": _wide(lambda x: 1 / np.sqrt(x)),
    "reciprocal": _wide(lambda x: 1 / x),
    "pow": lambda given: _wide(partial(_power, exponent=given.exponent))(given),
    "tanh": lambda given: _wide(partial(_tanh, spec=given.spec))(given),
    "sigmoid": _wide(_sigmoid),
    "silu": lambda given: _wide(partial(_silu, spec=given.spec))(given),
    "gelu": _wide(_gelu),
    "npu_gelu": _npu_gelu,
    "axpy": _axpy,
    "where": _where,
    "clamp": lambda given: given.rounded(_clamped(given.x, given.low, given.high), given.x.dtype),
    "cast": _cast,
    "broadcast_to": lambda given: np.ascontiguousarray(np.broadcast_to(given.x, given.shape)),
    "silu_backward": _backward(_silu_slope),
    "sigmoid_backward": _backward(lambda g, x: (g * (np.float32(1) - x)) * x),
    "tanh_backward": _backward(lambda g, x: (np.float32(1) - x * x) * g),
    "gelu_backward": lambda given: _backward(partial(_gelu_by_tanh, spec=given.spec))(given),
    "npu_gelu_backward": _npu_gelu_backward,
    "npu_fast_gelu": _fast_gelu,
    "npu_fast_gelu_backward": _fast_gelu_backward,
    "fill": lambda given: np.full(given.x.shape, np.array(given.value).astype(given.x.dtype)),
}


def oracle_of(name: str) -> Oracle:
    """The oracle of operator *name*; raises TypeError if no row defines it."""
    if name not in ORACLES:
        raise TypeError(
            f"{name}: an elementwise operator must have an oracle; write what it computes in plain "
            f"numpy as a row of ORACLES in families/elementwise/reference.py"
        )

    def compute(given: Given) -> Array:
        # Infinities and NaN are valid results here, without a warning.
        with np.errstate(all="ignore"):
            return ORACLES[name](given)

    return compute
