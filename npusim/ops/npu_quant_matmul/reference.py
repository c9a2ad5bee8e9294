"""npu_quant_matmul on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from npusim.data.dtypes import Array
from npusim.data.tensor import is_transposed
from npusim.devices.schema import DeviceSpec
from npusim.ops._int4_matmul import unpacked
from npusim.ops._products import exact_int
from npusim.ops.npu_quant_matmul.v4.reference import groups_of_int4, int8_times_int4

__all__ = ["reference"]

LARGEST = {"float16": 65504.0, "bfloat16": (2 - 2.0**-7) * 2.0**127}
KINDS: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def reference(
    x1: Array,
    x2: Array,
    scale: Array,
    offset: Array | None = None,
    bias: Array | None = None,
    *,
    pertoken_scale: Array | None = None,
    output_dtype: str | None = None,
    group_sizes: Sequence[int] | None = None,
    template: str | None = None,  # noqa: ARG001 (all give the same values)
    spec: DeviceSpec | None = None,
) -> Array:
    """Multiply *x1* `(..., m, k)` by *x2* `(..., k, n)` and rescale.

    *x2* may be a Tensor of any layout; int32 matrices hold eight int4 an element, *x2* along n, or
    along k if its k lies inside. The result is `(..., m, n)`. *spec* says what becomes of float
    results out of range; without it they become infinite.
    """
    is_int4, is_grouped = np.asarray(x2).dtype == np.int32, any(group_sizes or ())
    if is_int4 and (x1.dtype == np.int8 or is_grouped):
        assert offset is not None
        assert pertoken_scale is not None
        make = int8_times_int4 if x1.dtype == np.int8 else groups_of_int4
        tokens = pertoken_scale.reshape(-1, 1)
        y = make(_numbers(x1), _numbers(x2), scale, offset, tokens)
        return _narrow(y, KINDS[str(output_dtype)], spec)
    acc = exact_int(_numbers(x1), _numbers(x2))
    late = None
    if bias is not None and bias.dtype == np.int32:
        acc = acc + bias
    elif bias is not None:
        late = bias.astype(np.float32)
    acc = np.clip(acc, -(2**31), 2**31 - 1).astype(np.int32)
    if output_dtype == "int32":
        return acc
    with np.errstate(all="ignore"):
        values = acc.astype(np.float32)
        if output_dtype == "bfloat16" or pertoken_scale is not None:
            values = _scaled(values, scale, pertoken_scale, late)
            return _narrow(values, KINDS[str(output_dtype)], spec)
        factor, point = _parameters(scale, offset)
        values = values * factor
        if output_dtype == "float16":
            return _narrow(values, KINDS["float16"], spec)
        # Nine bits first, then the offset: a large product minus 200 is 55, not 127.
        nine = np.rint(np.clip(np.where(np.isnan(values), 0, values), -256, 255)).astype(np.int32)
        return np.asarray(np.clip(nine + point, -128, 127).astype(np.int8))


def _scaled(values: Array, scale: Array, tokens: Array | None, late: Array | None) -> Array:
    """float32 *values* times the scales of columns and of rows, *tokens*, plus *late*."""
    values = values * scale.astype(np.float32)
    if tokens is not None:
        values = values * tokens[:, None]
    return values if late is None else values + late


def _numbers(matrix: Array) -> Array:
    """int8, whether they came so or as eight nibbles an int32, the lowest first."""
    values = np.asarray(matrix)
    if values.dtype == np.int8:
        return values
    return unpacked(values, is_transposed(matrix))


def _parameters(scale: Array, offset: Array | None) -> tuple[Array, Array]:
    """The scale's upper 19 bits and the nine-bit offset, out of packed words or numbers."""
    point = np.zeros(1, np.int32)
    if scale.dtype == np.float32:
        low = scale.view(np.uint32)
        if offset is not None:
            whole = np.rint(np.where(np.isnan(offset), 0, offset))
            point = np.clip(whole, -256, 255).astype(np.int32)
    else:
        words = scale.astype(np.int64)
        low = (words & 0xFFFFFFFF).astype(np.uint32)
        point = ((words << 18) >> 55).astype(np.int32)
    return (low & np.uint32(0xFFFFE000)).view(np.float32), point


def _narrow(values: Array, kind: np.dtype[Any], spec: DeviceSpec | None) -> Array:
    """float32 rounded to *kind*, ties to even."""
    if spec is not None and spec.half_overflow == "saturate":
        largest = LARGEST[kind.name]
        values = np.clip(np.where(np.isnan(values), 0, values), -largest, largest)
    return np.asarray(values.astype(kind))
