"""Steps of kernels that weight elements by their sigmoid, `a / (exp(-a) + 1)`, in fp32.

The precision of Exp is not public: correct rounding to fp32 is assumed.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.isa import FLOATS_PER_REPEAT, Binary, Local
from npusim.kernel import VectorCore


def exp_plus_1(core: VectorCore, dst: Local, a: Local, factor: float = -1.0) -> None:
    """`dst = exp(factor x a) + 1`, for fp32 `(n,)`; *dst* may be *a*."""
    core.mul(dst, a, factor)
    core.exp(dst, dst)
    core.add(dst, dst, 1.0)


def invert(core: VectorCore, values: Local, ones: Local) -> None:
    """`values = 1 / values` for fp32 `(n,)`; *ones* is a block of 1 that is read repeatedly."""
    # Strided operands are full repeats, or less than one: the remainder is processed separately.
    whole = values.count // FLOATS_PER_REPEAT * FLOATS_PER_REPEAT
    with core.independent():
        for part in (values[:whole], values[whole:]):
            if part.count:
                core.step(Binary("div", part, ones.again(part.count), part))


def exp_plus_1_of(a: Array, factor: float = -1.0) -> Array:
    """`exp(factor x a) + 1` of fp32 *a*, on whole arrays: float64 is exact enough to round once."""
    scaled = a * np.float32(factor)
    return np.exp(scaled.astype(np.float64)).astype(np.float32) + np.float32(1)
