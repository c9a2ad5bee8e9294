"""npu_quant_matmul on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from npusim.data.dtypes import Array
from npusim.data.int_product import int_product
from npusim.data.tensor import is_transposed
from npusim.ops import _vocabulary as ops
from npusim.ops._int4_matmul import digit_sums, unpacked
from npusim.ops._matmul_oracle import (
    IntProduct,
    exact_int,
    fixpipe_int8,
    scale_of_words,
    shifted,
)
from npusim.ops._oracle import without_nan

KINDS: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def oracle(given: ops.Given) -> Array:
    """Multiply x1 `(..., m, k)` by x2 `(..., k, n)` and rescale.

    x2 may be a Tensor of any layout; int32 matrices hold eight int4 an element, x2 along n, or
    along k if k is its inner dimension. The result is `(..., m, n)`. The chip determines how float
    results out of range are handled; without one they become infinite.
    """
    return _rescaled(given, exact_int)


def at_once(given: ops.Given, *_: object) -> Array | None:
    """The same with faster products."""
    return without_nan(_rescaled(given, int_product))


def _rescaled(given: ops.Given, multiply: IntProduct) -> Array:
    """The result, with the integer products of *multiply*."""
    x1, x2, scale = _elements(given.x1), _elements(given.x2), given.scale
    tokens, target = given.pertoken_scale, given.output_dtype
    is_int4, is_grouped = np.asarray(given.x2).dtype == np.int32, any(given.group_sizes or ())
    if is_int4 and (given.x1.dtype == np.int8 or is_grouped):
        make = _int8_times_int4 if given.x1.dtype == np.int8 else _groups_of_int4
        y = make(x1, x2, scale, given.offset, tokens.reshape(-1, 1), multiply)
        return given.rounded(y, KINDS[target])
    acc, late = multiply(x1, x2).astype(np.int64), None
    if given.bias is not None and given.bias.dtype == np.int32:
        acc = acc + given.bias
    elif given.bias is not None:
        late = given.bias.astype(np.float32)
    acc = np.clip(acc, -(2**31), 2**31 - 1).astype(np.int32)
    if target == "int32":
        return acc
    with np.errstate(all="ignore"):
        if target == "bfloat16" or tokens is not None:
            values = acc.astype(np.float32) * scale.astype(np.float32)
            values = values if tokens is None else values * tokens[:, None]
            values = values if late is None else values + late
            return given.rounded(values, KINDS[target])
        words = _words(scale, given.offset)
        if target == "float16":
            values = shifted(acc, words).astype(np.float32) * scale_of_words(words)
            return given.rounded(values, KINDS["float16"])
        return fixpipe_int8(acc, words)


def _elements(matrix: Array) -> Array:
    """The matrix as int8, from int8 or from eight nibbles per int32, the lowest first."""
    values = np.asarray(matrix)
    if values.dtype == np.int8:
        return values
    return unpacked(values, is_transposed(matrix))


def _words(scale: Array, offset: Array | None) -> Array:
    """The packed words, given as such or as floats: a nine-bit offset and a signed result."""
    if scale.dtype != np.float32:
        return scale.astype(np.int64)
    point = np.zeros(1, np.int64)
    if offset is not None:
        whole = np.rint(np.where(np.isnan(offset), 0, offset))
        point = np.clip(whole, -256, 255).astype(np.int64)
    return scale.view(np.uint32) | (point & 0x1FF) << 37 | 1 << 46


def _int8_times_int4(
    x1: Array,
    x2: Array,
    words: Array,
    offset: Array,
    tokens: Array,
    multiply: IntProduct,
) -> Array:
    """`(m, n)` float32 of *x1* `(m, k)` int8 and *x2* `(k, n)`, int4 in int8.

    *words* are `(n,)` or `(groups, n)`, *offset* `(n,)` and *tokens* `(m, 1)`.
    """
    sums = digit_sums(x1, x2, words.reshape(-1, x2.shape[1]), multiply)
    with np.errstate(all="ignore"):
        return np.asarray((sums + offset) * tokens)


def _groups_of_int4(
    x1: Array,
    x2: Array,
    scale: Array,
    offset: Array,
    tokens: Array,
    multiply: IntProduct,
) -> Array:
    """`(m, n)` float32 of *x1* `(m, k)` and *x2* `(k, n)`, int4 in int8.

    *scale* and *offset* are `(groups, n)`, *tokens* `(m, 1)`.
    """
    size = x1.shape[1] // len(scale)
    total = np.zeros((x1.shape[0], x2.shape[1]), np.float32)
    with np.errstate(all="ignore"):
        for group, (factors, points) in enumerate(zip(scale, offset, strict=True)):
            ks = slice(group * size, (group + 1) * size)
            rows = x1[:, ks].sum(axis=1, keepdims=True, dtype=np.int64).astype(np.float32)
            sums = multiply(x1[:, ks], x2[ks]).astype(np.float32)
            total = factors * (sums - points.astype(np.float32) * rows) + total
        return np.asarray(tokens * total)
