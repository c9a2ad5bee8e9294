"""Operands of a matrix product, checked against each other, and parameter words for the fixpipe."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from npusim.data.dtypes import INT8, DType
from npusim.data.layout import FRACTAL_ROWS, NZ, c0, to_fractals
from npusim.data.tensor import Operand, TensorSpec
from npusim.kernel import Product
from npusim.ops._contract import Contract
from npusim.ops._protocol import Values, contents

INT4_PER_INT32 = 8
WORD_NAMES = ("int64", "uint64")
"""Types of a scale of packed words."""
SIGNED_BIT, SHIFT_BIT = 1 << 46, 1 << 36
"""Bits of the 64-bit words that npu_trans_quant_param packs, as the fixpipe reads them."""


def unpacked_remedy(name: str) -> str:
    """What to do with int32 elements that should be one int4 each."""
    return (
        f"an int32 of {name} holds eight int4: pack those that hold one with "
        f"npu_convert_weight_to_int4pack"
    )


def logical_shape(operand: Operand, packed: bool) -> tuple[int, ...]:
    """The shape in elements; *packed*: each int32 is eight of them, along the contiguous axis."""
    shape = list(operand.shape)
    if packed:
        shape[-2 if operand.spec.transposed else -1] *= INT4_PER_INT32
    return tuple(shape)


def product_of(
    contract: Contract,
    x1: Operand,
    x2: Operand,
    element: DType,
    packed: bool,
    packed_x2: bool | None = None,
) -> Product:
    """The product of *x1* and *x2*; raises OpError unless their shapes match.

    Both are *packed*; *packed_x2*, if given, applies to x2 instead.
    """
    packs_x2 = packed if packed_x2 is None else packed_x2
    a, b = logical_shape(x1, packed), logical_shape(x2, packs_x2)
    contract.require_filled(x1, x2)
    contract.require(
        a[-1] == b[-2],
        f"x2 must have as many rows as x1 has columns, {a[-1]}, not {b[-2]}; "
        f"{_inner_remedy(a, b, packed, packs_x2)}",
    )
    try:
        batch = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        contract.fail(
            f"the batch dimensions of x1 and x2 must broadcast, not {a[:-2]} and {b[:-2]}; "
            f"make them equal, or 1"
        )
    return Product(
        *(a[-2], a[-1], b[-1], element, batch, a[:-2], b[:-2]),
        transposed_a=x1.spec.transposed,
        transposed_b=x2.spec.transposed,
        fractal_b=x2.spec.layout == "FRACTAL_NZ",
    )


def _inner_remedy(a: tuple[int, ...], b: tuple[int, ...], packed: bool, packs_x2: bool) -> str:
    """What to change if k of x1 and of x2, with shapes *a* and *b* in elements, differ."""
    if packed and a[-1] == INT4_PER_INT32 * b[-2]:
        return unpacked_remedy("x1")
    if packs_x2 and b[-2] == INT4_PER_INT32 * a[-1]:
        return unpacked_remedy("x2")
    if a[-1] == b[-1] and not packs_x2:
        return "pass its transpose"
    if packs_x2:
        x1 = "(m, k / 8)" if packed else "(m, k)"
        return f"pass x1 as {x1}, x2 as (k, n / 8) or as the transpose of (n, k / 8)"
    return "pass x1 as (m, k), x2 as (k, n)"


def as_fractals(operand: Operand) -> Operand:
    """The same matrix as FRACTAL_NZ of its transpose, as aclnn converts weights for arch 2002."""
    if operand.spec.layout == "FRACTAL_NZ":
        return operand
    spec = replace(operand.spec, layout="FRACTAL_NZ", transposed=True)
    if operand.array is None:
        return Operand(operand.name, spec)
    gm_matrix = operand.array.swapaxes(-1, -2)
    storage = to_fractals(gm_matrix, NZ, (FRACTAL_ROWS, c0(operand.element)))
    return Operand(operand.name, spec, storage)


def words_of(scale: Values) -> Hashable:
    """What a contract finds out from *scale*: its elements if they are words, else nothing."""
    parts = scale if isinstance(scale, list) else [scale]
    return tuple([contents(x) for x in parts if x is not None and str(x.dtype) in WORD_NAMES])


def fixpipe_words(contract: Contract, scale: Operand, target: DType) -> Operand:
    """*scale*, of int64 or uint64, as uint64 words for an output of *target*; raises OpError."""
    spec = TensorSpec(scale.shape, "uint64")
    if scale.array is None:
        return Operand(scale.name, spec)
    words = np.ascontiguousarray(scale.array).view(np.uint64)
    if target is INT8 and not np.all(words & np.uint64(SIGNED_BIT)):
        contract.warn(
            f"{scale.name} must have bit 46 set for an int8 output, without it the kernel writes "
            f"uint8; pack it with npu_trans_quant_param"
        )
    return Operand(scale.name, spec, words)
