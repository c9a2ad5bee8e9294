"""What npu_weight_quant_batchmatmul accepts, per product line, and which kernel takes the call."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, INT8, INT32
from npusim.data.errors import shown
from npusim.data.integers import ceil_div
from npusim.data.layout import FRACTAL_ROWS, NZ, c0, to_fractals
from npusim.data.tensor import LAYOUTS, Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops._matrix import INT4_PER_INT32, logical_shape, unpacked_remedy
from npusim.ops._protocol import present
from npusim.ops.npu_weight_quant_batchmatmul.choice import Choice, choose
from npusim.ops.npu_weight_quant_batchmatmul.combinations import check_combination
from npusim.ops.npu_weight_quant_batchmatmul.parameters import (
    antiquant_operands,
    bias_operand,
    quant_operand,
)
from npusim.ops.npu_weight_quant_batchmatmul.traits import CallTraits

__all__ = ["Problem", "check"]

OP = "npu_weight_quant_batchmatmul"
MAX_SIZE = 65535
"""Largest k and n, and largest m of a transposed x."""
IDENTITY = Operand("identity", TensorSpec((32, 32), "int8"), np.eye(32, dtype=np.int8))
"""A constant of the fixpipe kernel, which moves the weight through the cube."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: x `(m, k)` times the weight `(k, n)`, as the kernel gets them."""

    x: Operand
    weight: Operand
    """int8 `(k, n)`, or int32 that holds eight int4 along the last dimension in memory."""
    antiquant_scale: Operand
    antiquant_offset: Operand | None
    quant_scale: Operand | None
    """int64: scale and offset as the fixpipe reads them, `(1,)`, `(n,)` or `(1, n)`."""
    packs_scale: bool
    """Whether torch_npu makes these words, of a float32 quant_scale, by a launch of
    npu_trans_quant_param (op-plugin@517f2e7, WeightQuantBatchMatmulV2KernelNpuOpApi.cpp)."""
    bias: Operand | None
    """`(n,)` or `(1, n)`."""
    traits: CallTraits
    choice: Choice
    inner_precise: int


def check(
    spec: DeviceSpec,
    x: Any,
    weight: Any,
    antiquant_scale: Any,
    antiquant_offset: Any = None,
    quant_scale: Any = None,
    quant_offset: Any = None,
    bias: Any = None,
    antiquant_group_size: Any = 0,
    inner_precise: Any = 0,
    *,
    template: Any = None,
    deterministic: Any = False,
) -> Problem:
    """Hold a call against the contract of this product line; raises OpError."""
    contract = Contract(OP, spec)
    is_310p = spec.series == "Atlas inference"
    a = contract.matrix("x", x, (FLOAT16,) if is_310p else (FLOAT16, BFLOAT16), "", LAYOUTS)
    b = contract.matrix("weight", weight, (INT8,) if is_310p else (INT8, INT32), "", LAYOUTS)
    m, k, n = _sizes(contract, a, b)
    group_size = _group_size(contract, antiquant_group_size, k)
    scale, offset = antiquant_operands(
        contract, antiquant_scale, antiquant_offset, a.element, b.element, (k, n), group_size
    )
    if group_size:
        scale, offset = (
            _transposed_as(b, scale),
            None if offset is None else _transposed_as(b, offset),
        )
    packed = quant_operand(contract, quant_scale, quant_offset, n, scale.element)
    start = bias_operand(contract, bias, a.element, n)
    inner = _inner_precise(contract, inner_precise)
    if template is not None and not isinstance(template, str):
        contract.fail(f"template must be a name or None, not {shown(template)}; leave it out")
    if is_310p:
        b = _as_fractals(b)
    traits = _traits(a, b, (m, k, n), group_size, (scale, offset, packed, start))
    traits = replace(traits, deterministic=contract.boolean("deterministic", deterministic))
    check_combination(contract, traits)
    choice = choose(traits, spec, template)
    output = TensorSpec((m, n), "int8" if packed else a.element.name)
    constant = IDENTITY if choice.template == "fixpipe" else None
    return Problem(
        inputs=present(a, b, scale, offset, packed, start, constant),
        outputs={"output": output},
        x=a,
        weight=b,
        antiquant_scale=scale,
        antiquant_offset=offset,
        quant_scale=packed,
        packs_scale=packed is not None and bool(quant_scale.dtype == "float32"),
        bias=start,
        traits=traits,
        choice=choice,
        inner_precise=inner,
    )


def _inner_precise(contract: Contract, inner_precise: Any) -> int:
    inner = contract.integer("inner_precise", inner_precise)
    contract.require(
        inner in (0, 1),
        f"inner_precise must be 0 or 1, not {inner}; 0 is precise, 1 is fast",
    )
    return inner


def _traits(
    x: Operand,
    weight: Operand,
    sizes: tuple[int, int, int],
    group_size: int,
    parameters: tuple[Operand, Operand | None, Operand | None, Operand | None],
) -> CallTraits:
    """What the choice of a kernel looks at; *parameters*: scale, offset, quant scale, bias."""
    scale, offset, packed, bias = parameters
    return CallTraits(
        *sizes,
        x=x.element.name,
        weight="int8" if weight.element is INT8 else "int4",
        trans_x=x.spec.transposed,
        trans_weight=weight.spec.transposed,
        is_nz=weight.spec.layout != "ND",
        scaling="group" if group_size else "tensor" if scale.spec.size == 1 else "channel",
        group_size=group_size,
        has_offset=offset is not None,
        has_bias=bias is not None,
        has_quant=packed is not None,
        is_packed=not scale.element.is_float,
    )


def _sizes(contract: Contract, x: Operand, weight: Operand) -> tuple[int, int, int]:
    """m, k and n; an int32 of the weight counts as eight int4."""
    for operand in (x, weight):
        contract.require(
            len(operand.shape) == 2,
            f"{operand.name} must have two dimensions, not shape {operand.shape}; reshape it",
        )
        contract.require(
            0 not in operand.shape,
            f"{operand.name} must not be empty, not shape {operand.shape}; leave the call out",
        )
    contract.require(
        x.spec.layout == "ND",
        "x must have layout ND, not FRACTAL_NZ; pass it through npu_format_cast(..., 2)",
    )
    m, k = x.shape
    rows, n = weight.shape
    remedy = "pass its transpose" if n == k else "pass it as (k, n)"
    if weight.element is INT32:
        rows, n = logical_shape(weight, packed=True)
        remedy = "pass it as (k, n / 8), or as the transpose of (n, k / 8)"
        if rows == INT4_PER_INT32 * k:
            remedy = unpacked_remedy("weight")
    contract.require(
        rows == k, f"weight must have k = {k} rows as x has columns, not {rows}; {remedy}"
    )
    for name, size in (("k", k), ("n", n)):
        contract.require(
            size <= MAX_SIZE, f"{name} must lie in [1, {MAX_SIZE}], not be {size}; split the weight"
        )
    max_m, when = (MAX_SIZE, " for a transposed x") if x.spec.transposed else (2**31 - 1, "")
    contract.require(m <= max_m, f"m must lie in [1, {max_m}]{when}, not be {m}; split x")
    return m, k, n


def _group_size(contract: Contract, value: Any, k: int) -> int:
    size = contract.integer("antiquant_group_size", value)
    if contract.spec.series == "Atlas inference":
        contract.require(
            size == 0,
            f"antiquant_group_size must be 0 on {contract.spec.series}, not {size}; "
            f"pass a scale for each column",
        )
    sizes = f", or a multiple of 32 in [32, k - 1 = {k - 1}]" if k > 32 else f" for k = {k}"
    remedy = "pass 0, with one scale for each column"
    if k > 32:
        near = min(max(size // 32, 1), (k - 1) // 32) * 32
        remedy = f"pass {near} with scales ({ceil_div(k, near)}, n), or 0 with one for each column"
    contract.require(
        size == 0 or (32 <= size <= k - 1 and size % 32 == 0),
        f"antiquant_group_size must be 0{sizes}, not {size}; {remedy}",
    )
    return size


def _transposed_as(weight: Operand, groups: Operand) -> Operand:
    """Numbers of groups as aclnn hands them to the kernels: transposed as the weight is."""
    spec = replace(groups.spec, transposed=weight.spec.transposed)
    return Operand(groups.name, spec, groups.array)


def _as_fractals(weight: Operand) -> Operand:
    """An ND weight as aclnn hands it to the kernel of 310P: FRACTAL_NZ of its transpose."""
    if weight.spec.layout != "ND":
        return weight
    k, n = weight.shape
    spec = TensorSpec((n, k), weight.spec.dtype, "FRACTAL_NZ").T
    fractal = FRACTAL_ROWS, c0(weight.element)
    array = None if weight.array is None else to_fractals(weight.array.T, NZ, fractal)
    return Operand(weight.name, spec, array)
