"""The scales, offsets and bias of npu_weight_quant_batchmatmul: their types and shapes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, INT64, DType
from npusim.data.integers import ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops import npu_trans_quant_param
from npusim.ops._contract import Contract, listed, same_shape_remedy
from npusim.ops._matrix import INT4_PER_INT32, unpacked_remedy

__all__ = ["antiquant_operands", "bias_operand", "quant_operand"]

SHIFT_BITS = 0x1F << 32
"""Shift and its switch in a packed word; npu_trans_quant_param leaves them 0."""
INT8_FLAG = 1 << 46


def _shaped(
    contract: Contract,
    operand: Operand,
    shapes: tuple[tuple[int, ...], ...],
    remedy: str | None = None,
) -> None:
    wanted = listed(tuple(str(shape) for shape in dict.fromkeys(shapes)))
    if remedy is None:
        fits = operand.spec.size in {prod(shape) for shape in shapes}
        remedy = "reshape it" if fits else "pass one number, or one for each column"
    contract.require(
        operand.shape in shapes,
        f"{operand.name} must have shape {wanted}, not {operand.shape}; {remedy}",
    )


def _scale_remedy(
    contract: Contract, shape: tuple[int, ...], weight: DType, k: int, n: int, group_size: int
) -> str | None:
    """What to change if an antiquant_scale of *shape* does not fit; None for what others hear."""
    if weight is INT32 and shape[-1:] == (n // INT4_PER_INT32,):
        return unpacked_remedy("weight")
    if group_size:
        groups = ceil_div(k, group_size)
        is_turned = shape == (n, groups)
        return "transpose it" if is_turned else "pass a number for each group and column"
    if contract.spec.series == "Atlas inference":
        return None if prod(shape) == n else "pass one for each column"
    if len(shape) == 2 and shape[1] == n and shape[0] > 1:
        # The widest groups that make so many, but those that share k evenly come first.
        sizes = [size for size in range(32, k, 32) if ceil_div(k, size) == shape[0]]
        even = [size for size in sizes if size * shape[0] == k]
        if sizes:
            return f"pass antiquant_group_size={(even or sizes)[-1]} if these are scales of groups"
    return None


def antiquant_operands(
    contract: Contract,
    scale: Any,
    offset: Any,
    x: DType,
    weight: DType,
    sizes: tuple[int, int],
    group_size: int,
) -> tuple[Operand, Operand | None]:
    """What the *weight* of *sizes* k and n is dequantised with."""
    k, n = sizes
    is_310p = contract.spec.series == "Atlas inference"
    dtypes = (x,) if is_310p or x is not FLOAT16 else (x, INT64)
    when = f" with a {x} x on {contract.spec.series}"
    s = contract.operand("antiquant_scale", scale, dtypes, when)
    groups = ceil_div(k, group_size) if group_size else 1
    shapes = ((groups, n),) if group_size else ((1,), (1, 1), (n,), (1, n))
    _shaped(contract, s, shapes, _scale_remedy(contract, s.shape, weight, k, n, group_size))
    if s.element is INT64:
        _check_words(contract, s, 0)
    if offset is None:
        return s, None
    kind = INT32 if s.element is INT64 else s.element
    o = contract.operand(
        "antiquant_offset", offset, (kind,), f" with an antiquant_scale of {s.element}"
    )
    is_turned = len(s.shape) == 2 and 1 not in s.shape and o.shape == s.shape[::-1]
    contract.require(
        o.shape == s.shape,
        f"antiquant_offset must have the shape of antiquant_scale, {s.shape}, not {o.shape}; "
        f"{'transpose it' if is_turned else same_shape_remedy(o, s)}",
    )
    if kind is INT32 and o.array is not None:
        low, high = int(o.array.min()), int(o.array.max())
        contract.require(
            low >= -128 and high <= 127,
            f"antiquant_offset must lie in [-128, 127] if it is int32, not in [{low}, {high}]; "
            f"clip it",
        )
    return s, o


def quant_operand(
    contract: Contract, scale: Any, offset: Any, n: int, antiquant: DType
) -> Operand | None:
    """What the output is quantised with, packed into int64 if it is not yet."""
    is_310p = contract.spec.series == "Atlas inference"
    if scale is None:
        alone = is_310p or antiquant is INT64
        contract.require(
            offset is None,
            f"quant_offset must be None without quant_scale; "
            f"{'leave it out' if alone else 'pass both, or neither'}",
        )
        return None
    contract.require(
        not is_310p,
        f"quant_scale must be None on {contract.spec.series}; leave it out, and quantise the "
        f"output with npu_quantize",
    )
    contract.require(
        antiquant is not INT64,
        "quant_scale must be None with an int64 antiquant_scale; leave it out, or pass a float16 "
        "antiquant_scale",
    )
    s = contract.operand("quant_scale", scale, (FLOAT32, INT64), "")
    _shaped(contract, s, ((1,), (n,), (1, n)))
    o = None if offset is None else contract.operand("quant_offset", offset, (FLOAT32,), "")
    if o is not None:
        contract.require(
            o.shape == s.shape,
            f"quant_offset must have the shape of quant_scale, {s.shape}, not {o.shape}; "
            f"{same_shape_remedy(o, s)}",
        )
    if s.element is INT64:
        _check_words(contract, s, INT8_FLAG)
        return s
    packed = None
    if s.array is not None and (o is None or o.array is not None):
        packed = npu_trans_quant_param.reference(s.array, None if o is None else o.array)
    return Operand(s.name, TensorSpec(s.shape, "int64"), packed)


def _check_words(contract: Contract, operand: Operand, flag: int) -> None:
    """Packed words are such that the fixpipe does what this operator means."""
    if operand.array is None:
        return
    bad = operand.array[(operand.array & (SHIFT_BITS | flag)) != flag]
    contract.require(
        bad.size == 0,
        f"{operand.name} must come from npu_trans_quant_param if it is int64, "
        f"not be {bad.flat[0] if bad.size else 0}; pack it",
    )


def bias_operand(contract: Contract, bias: Any, x: DType, n: int) -> Operand | None:
    """What is added, one number for each column."""
    if bias is None:
        return None
    kind = FLOAT16 if x is FLOAT16 else FLOAT32
    found = contract.operand("bias", bias, (kind,), f" with a {x} x")
    _shaped(contract, found, ((1,), (n,), (1, n)))
    if found.shape == (1,) and n > 1:
        # The document allows one number; the kernels read n of them.
        array = None if found.array is None else np.repeat(found.array, n)
        return Operand(found.name, TensorSpec((n,), kind.name), array)
    return found
