"""Weights of int4 by int4 or int8: groups of k rounded to float16, one after the other."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.tensor import is_transposed
from npusim.ops._nibbles.oracle import digit_sums, scaled_groups, unpacked
from npusim.ops.npu_grouped_matmul.references.numbers import Call, Numbers

__all__ = ["rows"]

F32 = np.float32


def rows(x: Array, numbers: Numbers, call: Call) -> Array:
    """*x* `(rows, k)` times the weight `(k, n)`, int4 in int32, in the type of the output."""
    weight = unpacked(numbers.weight, is_transposed(call.weights[0]))
    assert numbers.scale is not None
    assert numbers.per_token_scale is not None
    words = numbers.scale.reshape(-1, weight.shape[1])
    with np.errstate(all="ignore"):
        if x.dtype == np.int8:
            assert numbers.bias is not None
            sums = digit_sums(x, weight, words) + numbers.bias
        else:
            sums = scaled_groups(unpacked(x), weight, words).astype(F32)
        y = sums * numbers.per_token_scale[:, None]
        return np.asarray(y.astype(call.case.output.numpy))
