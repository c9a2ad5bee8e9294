"""Remedies for a tensor with the wrong type or shape."""

from __future__ import annotations

from npusim.data.dtypes import INT4, INT8, INT32, INT64, UINT64, DType
from npusim.data.integers import ceil_div
from npusim.data.tensor import Operand

PRODUCTS = ("npu_quant_matmul", "npu_weight_quant_batchmatmul", "npu_grouped_matmul")
PACKABLE = ("scale", "antiquant_scale")
"""Parameters that may be packed words, which cannot be converted back to values."""
MATRICES = ("x1", "x2", "weight")
"""Factors of products: floats among them must be quantised, which no cast does."""
PACKING = "npu_convert_weight_to_int4pack"
"""The operator that packs eight int4 into an int32."""


def dtype_remedy(
    op: str,
    name: str,
    came: str,
    shape: tuple[int, ...],
    wanted: tuple[DType, ...],
    transposed: bool = False,
) -> str:
    """How to convert the tensor *name* of operator *op*, of type *came*, to one of *wanted*.

    A plain cast is not always right.
    """
    if came == INT4.name and INT32 in wanted and shape and op != PACKING:
        inner = len(shape) - (2 if transposed else 1)
        packed = (*shape[:inner], ceil_div(shape[inner], 8), *shape[inner + 1 :])
        return f"pass them packed, eight to an int32, as {packed}: see {PACKING}"
    if name in MATRICES and came == INT8.name and wanted == (INT32,):
        return f"pack its elements, as int32, with {PACKING}"
    if came == INT32.name and wanted == (INT8,):
        return "pass its elements, which int32 holds packed, as int8"
    is_packable = name in PACKABLE and op in PRODUCTS
    if is_packable and came in (INT64.name, UINT64.name) and INT64 not in wanted:
        return "pass the words that npu_trans_quant_param packed"
    if name in MATRICES and "float" in came and not wanted[0].is_float and op != PACKING:
        return "quantise it"
    return "convert it"


def same_shape_remedy(operand: Operand, like: Operand) -> str:
    """How to give *operand* the shape of *like*."""
    if operand.spec.size == like.spec.size:
        return "reshape it"
    return f"pass as many elements as {like.name} has"
