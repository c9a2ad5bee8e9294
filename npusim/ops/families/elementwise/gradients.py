"""Gradients of elementwise functions, and the fast form of Gelu with its gradient.

Which form of Gelu's gradient a kernel uses depends on the chip that it is built for (gelu_grad.py,
gelu_grad_v2.py of CANN 8.1.RC1): Atlas A3, Ascend910_93 there, uses the generic form. GeluGradV2 of
Atlas A2 reads the sign bit of x; here a comparison with 0 finds it, which gives the same result
except for NaN (assumed to take as long).
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.ops.families.elementwise.chain import Chain, Value
from npusim.ops.families.elementwise.expression import AS_IS, ONE, WIDE, Expression

BACKWARD = "Tensor grad_output, Tensor x"

TANH_CUBE, TANH_LINEAR = -0.07135481627260025, -1.5957691216057308
"""`-2 sqrt(2 / pi)` times the coefficients of tanh's argument in Gelu: of x cubed, and of x."""
TANH_SLOPE = 3 * TANH_CUBE
"""Coefficient of x squared in its derivative."""
DENSITY = (
    *(-0.7978849236182753, -6.223065142195392, -20.451359645895863),
    *(-29.633095101286557, -4.474629239730099, 30.9817411426),
)
DENSITY_BELOW = (7.79950327625, 26.6304065815, 44.965039885, 30.9817411527)
"""Coefficients of two polynomials, the highest power first: for negative numbers, twice the
derivative of Gelu is their quotient times `e ** (-x**2 / 2)`. The second one begins with 1."""
DENSITY_MOST = 30.0
"""Largest argument of both."""
ERFC = (
    *(-5.49061387205456025e-6, 0.000183133812184063945, 0.561518149524517221),
    *(3.30140769823242503, 7.81521876717522386, 8.99592084642248623),
)
ERFC_BELOW = (5.81125804356746743, 14.5781556895088744, 17.9660160055262283, 8.99592098051391175)
"""The same for the complementary error function."""
ERFC_MOST = 7.5
ERF = (
    *(0.53443748819e-1, 0.75517016694e1, 0.10162808918e3),
    *(0.13938061484e4, 0.50637915060e4, 0.29639384698e5),
)
ERF_BELOW = (
    *(0.31212858877e2, 0.39856963806e3, 0.30231248150e4, 0.13243365831e5, 0.26267224157e5),
)
"""The same for the error function, in x squared."""
ERF_MOST = 3.92
ROOT_HALF, INVERSE_ROOT_PI, INVERSE_ROOT_TWO_PI = (
    0.7071067811865475,
    0.5641895835477563,
    0.3989422804,
)
TINY = 2.0**-126
"""Avoids 0 / 0 for the sign of 0."""
FAST = -1.702
"""Factor of x in the fast form of Gelu."""


def _horner(chain: Chain, x: Value, factors: tuple[float, ...], *, monic: bool = False) -> Value:
    """A polynomial in *x*, highest power first; a *monic* one has the leading coefficient 1."""
    first, *rest = factors
    found = chain.binary("add" if monic else "mul", x, first)
    for place, factor in enumerate(rest):
        if monic or place:
            found = chain.binary("mul", found, x)
        found = chain.binary("add", found, factor)
    return found


def _one_over(chain: Chain, x: Value) -> Value:
    return chain.binary("div", chain.constant(1.0, x.dtype), x)


def _sigmoid(chain: Chain, x: Value) -> Value:
    power = chain.unary("exp", chain.binary("mul", x, -1.0))
    return _one_over(chain, chain.binary("add", power, 1.0))


def _silu_backward(chain: Chain, grad: Value, x: Value) -> Value:
    sigmoid = _sigmoid(chain, x)
    rest = chain.binary("sub", chain.constant(1.0, x.dtype), sigmoid)
    slope = chain.binary("add", chain.binary("mul", rest, x), 1.0)
    return chain.binary("mul", grad, chain.binary("mul", sigmoid, slope))


def _sigmoid_backward(chain: Chain, grad: Value, x: Value) -> Value:
    rest = chain.binary("sub", chain.constant(1.0, x.dtype), x)
    return chain.binary("mul", chain.binary("mul", grad, rest), x)


def _tanh_backward(chain: Chain, grad: Value, x: Value) -> Value:
    square = chain.binary("mul", chain.binary("mul", x, x), -1.0)
    return chain.binary("mul", chain.binary("add", square, 1.0), grad)


def _gelu_backward(chain: Chain, grad: Value, x: Value, series: str) -> Value:
    square = chain.binary("mul", x, x)
    inner = chain.binary("add", chain.binary("mul", square, TANH_CUBE), TANH_LINEAR)
    power = chain.unary("exp", chain.binary("mul", inner, x))
    share = _one_over(chain, chain.binary("add", power, 1.0))
    sign = 1.0 if series == "Atlas A3" else -1.0
    slope = chain.binary("mul", square, sign * TANH_SLOPE)
    slope = chain.binary("add", slope, sign * TANH_LINEAR)
    if sign > 0:
        apart = chain.binary("mul", chain.binary("add", share, -1.0), x)
        found = chain.binary("add", chain.binary("mul", apart, slope), 1.0)
        return chain.binary("mul", grad, chain.binary("mul", found, share))
    slope = chain.binary("mul", slope, x)
    found = chain.binary("mul", chain.binary("mul", power, share), slope)
    found = chain.binary("mul", found, share)
    found = chain.select(chain.compare("eq", found, found), found, 0.0)
    return chain.binary("mul", grad, chain.binary("add", found, share))


def _normal(chain: Chain, x: Value) -> Value:
    """`e ** (-x**2 / 2)`."""
    return chain.unary("exp", chain.binary("mul", chain.binary("mul", x, x), -0.5))


def _npu_gelu_backward(chain: Chain, grad: Value, x: Value, approximate: str, series: str) -> Value:
    if approximate == "tanh":
        return _gelu_backward(chain, grad, x, series)
    slope = {
        "Atlas A2": _slope_by_density,
        "Atlas A3": _slope_by_erf,
        "Atlas inference": _slope_by_erfc,
    }[series]
    return chain.binary("mul", grad, slope(chain, x))


def _slope_by_density(chain: Chain, x: Value) -> Value:
    size = chain.binary("min", chain.unary("abs", x), DENSITY_MOST)
    below = _horner(chain, size, DENSITY_BELOW, monic=True)
    ratio = chain.binary("div", _horner(chain, size, DENSITY), below)
    density = chain.binary("mul", ratio, _normal(chain, size))
    bits = chain.compare("lt", x, chain.constant(0.0, FLOAT32))
    is_below = chain.select(bits, chain.constant(1.0, FLOAT32), 0.0)
    half = chain.binary("mul", chain.binary("add", is_below, -0.5), density)
    return chain.binary("sub", half, chain.binary("add", is_below, -1.0))


def _slope_by_erf(chain: Chain, x: Value) -> Value:
    scaled = chain.binary("mul", x, ROOT_HALF)
    cut = chain.binary("max", chain.binary("min", scaled, ERF_MOST), -ERF_MOST)
    square = chain.binary("mul", cut, cut)
    above = chain.binary("mul", _horner(chain, square, ERF), cut)
    erf = chain.binary("div", above, _horner(chain, square, ERF_BELOW, monic=True))
    chance = chain.binary("add", chain.binary("mul", erf, 0.5), 0.5)
    density = chain.binary("mul", _normal(chain, x), INVERSE_ROOT_TWO_PI)
    return chain.binary("add", chance, chain.binary("mul", x, density))


def _slope_by_erfc(chain: Chain, x: Value) -> Value:
    scaled = chain.binary("mul", x, -ROOT_HALF)
    size = chain.binary("add", chain.unary("abs", scaled), TINY)
    sign = chain.binary("div", scaled, size)
    size = chain.binary("min", size, ERFC_MOST)
    below = _horner(chain, size, ERFC_BELOW, monic=True)
    ratio = chain.binary("div", _horner(chain, size, ERFC), below)
    normal = _normal(chain, x)
    part = chain.binary("mul", chain.binary("mul", normal, ratio), sign)
    rest = chain.binary("sub", chain.constant(0.0, FLOAT32), sign)
    chance = chain.binary("mul", chain.binary("add", part, chain.binary("add", rest, 1.0)), 0.5)
    density = chain.binary("mul", chain.binary("mul", normal, scaled), -INVERSE_ROOT_PI)
    return chain.binary("add", chance, density)


def _fast_gelu(chain: Chain, x: Value) -> Value:
    if chain.spec.arch == "2002":
        size = chain.unary("abs", x)
        below = chain.binary("add", chain.unary("exp", chain.binary("mul", size, FAST)), 1.0)
        apart = chain.binary("mul", chain.binary("sub", x, size), -FAST / 2)
        above = chain.binary("mul", x, chain.unary("exp", apart))
        return chain.binary("mul", above, _one_over(chain, below))
    power = chain.unary("exp", chain.binary("mul", x, FAST))
    return chain.binary("div", x, chain.binary("add", power, 1.0))


def _fast_gelu_backward(chain: Chain, grad: Value, x: Value) -> Value:
    scaled = chain.binary("mul", x, FAST)
    share = _one_over(chain, chain.binary("add", chain.unary("exp", scaled), 1.0))
    rest = chain.binary("mul", scaled, chain.binary("add", share, -1.0))
    slope = chain.binary("mul", chain.binary("add", rest, 1.0), share)
    return chain.binary("mul", grad, slope)


GRADIENTS = (
    Expression(
        "silu_backward",
        "SiluGrad",
        "the gradient of silu of x",
        "y = grad_output * (s * (1 + (1 - s) * x)), s = 1 / (e ** (-x) + 1)",
        WIDE,
        _silu_backward,
        BACKWARD,
    ),
    Expression(
        "sigmoid_backward",
        "SigmoidGrad",
        "the gradient of sigmoid, of what sigmoid gave, x",
        "y = (grad_output * (1 - x)) * x",
        WIDE,
        _sigmoid_backward,
        BACKWARD,
    ),
    Expression(
        "tanh_backward",
        "TanhGrad",
        "the gradient of tanh, of what tanh gave, x",
        "y = (1 - x**2) * grad_output",
        WIDE,
        _tanh_backward,
        BACKWARD,
    ),
    Expression(
        "gelu_backward",
        "GeluGrad",
        "the gradient of gelu of x",
        "y = grad_output * (t + p * t * x (1.5957691 + 0.2140644 x**2) * t), t = 1 / (p + 1), "
        "p = e ** (-x (1.5957691 + 0.0713548 x**2))",
        WIDE,
        _gelu_backward,
        BACKWARD,
        by_series=True,
    ),
    Expression(
        "npu_gelu_backward",
        "GeluGradV2",
        "the gradient of npu_gelu, by quotients of polynomials or tanh",
        "y = grad_output * (F(x) + x * f(x)), of the normal distribution; by tanh as gelu_backward",
        WIDE,
        _npu_gelu_backward,
        f"{BACKWARD}, *, str approximate='none'",
        by_series=True,
    ),
    # Both are computed in float16 by the default of the shipped binaries, high performance.
    Expression(
        "npu_fast_gelu",
        "FastGelu",
        "x times the logistic function of 1.702 x",
        "y = x / (e ** (-1.702 x) + 1)",
        AS_IS,
        _fast_gelu,
        ONE,
    ),
    Expression(
        "npu_fast_gelu_backward",
        "FastGeluGrad",
        "the gradient of npu_fast_gelu of x",
        "y = grad_output * ((1 - 1.702 x * (s - 1)) * s), s = 1 / (e ** (-1.702 x) + 1)",
        AS_IS,
        _fast_gelu_backward,
        BACKWARD,
    ),
)
