"""Parts shared by npu_swiglu_quant and npu_dequant_swiglu_quant: swiglu of the halves of rows."""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.tensor import Operand
from npusim.ops import _vocabulary as ops
from npusim.ops._swish import exp_plus_1_of


def check_halves(contract: ops.Contract, x: Operand) -> None:
    """Rows of *x* must have an even length, which is not 0 if there are any rows."""
    columns = x.shape[-1]
    contract.require(
        columns % 2 == 0,
        f"the last dimension of x must be even, to be cut in half, not {columns}; pad both halves",
    )
    contract.require(
        columns > 0 or prod(x.shape[:-1]) == 0,
        f"the last dimension of x must not be empty where x has rows, not shape {x.shape}; drop "
        f"the rows",
    )


# ---- oracle ----


def halves_of(values: Array, activate_left: bool) -> tuple[Array, Array]:
    """The half of each row of *values* `(rows, width)` that is activated, and the other one."""
    left, right = np.split(values, 2, axis=1)
    return (left, right) if activate_left else (right, left)


def swiglu_of(a: Array, b: Array) -> Array:
    """`(a / (exp(-a) + 1)) x b` of fp32 arrays."""
    return np.asarray((a / exp_plus_1_of(a)) * b)
