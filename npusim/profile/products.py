"""Products of a profile as calls: plain, quantised, of a quantised weight, grouped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.tensor import TensorSpec
from npusim.profile.kernels import Kernel
from npusim.profile.shapes import Reading, given, only_output
from npusim.validation.timed import NotModelledError

__all__ = ["ROUTES", "WEIGHTS"]

WEIGHTS = {
    "matmul": "x2",
    "npu_quant_matmul": "x2",
    "npu_weight_quant_batchmatmul": "weight",
    "npu_grouped_matmul": "weight",
    "npu_grouped_matmul_swiglu_quant": "weight",
}
"""Operator -> which of its parameters is the weight."""


def _ways(operand: TensorSpec, rows: int, columns: int) -> Iterator[TensorSpec]:
    """*operand* as a matrix of so many *rows* and *columns*: as it lies, or turned."""
    *batches, height, width = operand.shape
    is_fractal = operand.layout != "ND"

    def fits(extent: int, needed: int) -> bool:
        # Fractals are filled up: the matrix may be a little smaller than they are.
        return extent == needed or (is_fractal and 0 <= extent - needed < FRACTAL_EXTENT)

    layout, dtype = operand.layout, operand.dtype
    if fits(height, rows) and fits(width, columns):
        yield TensorSpec((*batches, rows, columns), dtype, layout)
    if fits(height, columns) and fits(width, rows):
        yield TensorSpec((*batches, columns, rows), dtype, layout).T


FRACTAL_EXTENT = 32
"""The longer side of a fractal, of int8."""


def _factors(
    x1: TensorSpec, x2: TensorSpec, out: TensorSpec, *, may_turn: bool = True
) -> Iterator[tuple[TensorSpec, TensorSpec]]:
    """Both factors of a product, in each way that they fit each other and what comes out."""
    m, n = out.shape[-2:]
    for k in dict.fromkeys(reversed(x1.shape[-2:])):
        for first in _ways(x1, m, k):
            if first.transposed and not may_turn:
                continue
            yield from ((first, second) for second in _ways(x2, k, n))


def _flat(x1: TensorSpec, x2: TensorSpec, out: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    """*x1* and *out* with all rows in one matrix, where the weight is one for all."""
    if len(x2.shape) > 2 or len(x1.shape) <= 2:
        return x1, out
    rows = x1.size // x1.shape[-1]
    return (
        TensorSpec((rows, x1.shape[-1]), x1.dtype, x1.layout),
        TensorSpec((rows, out.shape[-1]), out.dtype),
    )


def _matmul(template: str | None, kernel: Kernel) -> Iterator[Reading]:
    x1, x2, *rest = given(kernel)
    out = only_output(kernel)
    options: dict[str, Any] = {}
    if rest:
        options["bias"] = rest[0]
    if out.dtype != x1.dtype:
        options["output_dtype"] = out.dtype
    if template is not None:
        options["template"] = template
    x1, out = _flat(x1, x2, out)
    for factors in _factors(x1, x2, out):
        yield Reading.of("matmul", *factors, **options)


def _quant_matmul(kernel: Kernel) -> Iterator[Reading]:
    x1, x2, scale, *rest = given(kernel)
    out = only_output(kernel)
    options: dict[str, Any] = {"output_dtype": out.dtype}
    x1, out = _flat(x1, x2, out)
    for each in rest:
        is_of_rows = each.dtype == "float32" and each.size == out.shape[-2]
        options["pertoken_scale" if is_of_rows else "bias"] = each
    for factors in _factors(x1, x2, out, may_turn=False):
        yield Reading.of("npu_quant_matmul", *factors, scale, **options)


def _weight_quant(kernel: Kernel) -> Iterator[Reading]:
    x, weight, scale, *rest = given(kernel)
    x, out = _flat(x, weight, only_output(kernel))
    options: dict[str, Any] = {}
    k, n = x.shape[-1], out.shape[-1]
    for each in rest:
        is_offset = each.shape == scale.shape and "antiquant_offset" not in options
        options["antiquant_offset" if is_offset else "bias"] = each
    groups = scale.size // n
    if groups > 1:
        options["antiquant_group_size"] = -(-k // groups)
    for factors in _factors(x, weight, out, may_turn=False):
        yield Reading.of("npu_weight_quant_batchmatmul", *factors, scale, **options)


def _groups(rows: int, experts: int) -> Iterator[TensorSpec | Array]:
    """Rows that go to all experts alike, as many to each, and rows that all go to the first."""
    yield TensorSpec((experts,), "int64")
    yield np.full(experts, rows, np.int64)


def _grouped(kernel: Kernel) -> Iterator[Reading]:
    """Inputs but the first two are distinguished by types and shapes."""
    x, weight, *rest = given(kernel)
    out = only_output(kernel)
    experts, n = weight.shape[0], out.shape[-1]
    options: dict[str, Any] = {"group_type": 0, "split_item": 3}
    is_int8 = x.dtype == "int8"
    for each in rest:
        if each.dtype == "int64" and each.shape == (experts,):
            continue  # the groups, whose values are not known
        if each.dtype == "float32" and each.size == x.shape[0] and is_int8:
            options["per_token_scale"] = each
        elif each.shape == (experts, n):
            is_scale = is_int8 and each.dtype != "int32"
            options["scale" if is_scale else "bias"] = each
        else:
            raise NotModelledError("of its inputs some are not read")
    if is_int8:
        options["output_dtype"] = out.dtype
    for each in _ways(weight, x.shape[-1], n):
        for groups in _groups(x.shape[0], experts):
            yield Reading.of("npu_grouped_matmul", x, each, group_list=groups, **options)


def _grouped_swiglu(kernel: Kernel) -> Iterator[Reading]:
    x, weight, weight_scale, x_scale, *rest = given(kernel)
    experts = weight.shape[0]
    if any(each.dtype != "int64" for each in rest):
        raise NotModelledError("of its inputs some are not read")
    for each in _ways(weight, x.shape[-1], weight_scale.shape[-1]):
        for groups in _groups(x.shape[0], experts):
            yield Reading.of(
                *("npu_grouped_matmul_swiglu_quant", x, each, groups, weight_scale, x_scale)
            )


def _of_heads(kernel: Kernel) -> Iterator[Reading]:
    x, weight, *_ = given(kernel)
    yield Reading.of("npu_transpose_batchmatmul", x, weight, perm_x1=[1, 0, 2], perm_y=[1, 0, 2])
    yield Reading.of("npu_transpose_batchmatmul", x, weight)


ROUTES: dict[str, Callable[[Kernel], Iterator[Reading]]] = {
    "MatMul": partial(_matmul, None),
    "MatMulV2": partial(_matmul, "v2"),
    "MatMulV3": partial(_matmul, None),
    "MatMulCommon": partial(_matmul, None),
    "BatchMatMul": partial(_matmul, None),
    "BatchMatMulV2": partial(_matmul, "v2"),
    "BatchMatMulV3": partial(_matmul, None),
    "QuantBatchMatmulV3": _quant_matmul,
    "QuantBatchMatmulV4": _quant_matmul,
    "WeightQuantBatchMatmulV2": _weight_quant,
    "GroupedMatmul": _grouped,
    "GroupedMatmulSwigluQuant": _grouped_swiglu,
    "TransposeBatchMatMul": _of_heads,
}
"""Type of a kernel -> what it may have been."""
