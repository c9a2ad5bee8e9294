"""npu_ffn: two products with an activation between them, for one expert or several.

Its fused kernel, FFN, is not simulated. Its products run as MatMul, GroupedMatmul,
QuantBatchMatmulV3 and WeightQuantBatchMatmulV2. Source: op-plugin@517f2e7, torch_npu-npu_ffn.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["ffn"]

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fastgelu": lambda x: torch.ops.npu.npu_fast_gelu(x),
    "gelu": torch.nn.functional.gelu,
    "relu": torch.nn.functional.relu,
    "silu": torch.nn.functional.silu,
}
GATED = {"geglu": "gelu", "swiglu": "silu", "reglu": "relu"}
"""Gated activation -> the activation of the first half of a row, which scales the second half."""
INT8 = -128, 127


def _activated(x: torch.Tensor, name: str) -> torch.Tensor:
    if name in GATED:
        first, second = x.chunk(2, -1)
        return ACTIVATIONS[GATED[name]](first.contiguous()) * second
    return ACTIVATIONS[name](x)


def ffn(
    x: torch.Tensor,
    weight1: torch.Tensor,
    weight2: torch.Tensor,
    activation: str,
    *,
    expert_tokens: list[int] | None = None,
    expert_tokens_index: list[int] | None = None,
    inner_precise: int | None = None,  # noqa: ARG001
    output_dtype: torch.dtype | None = None,
    **given: torch.Tensor | None,
) -> torch.Tensor:
    """`act(x @ weight1 + bias1) @ weight2 + bias2`, also for int8, and for int8 weights alone."""
    if activation not in ACTIVATIONS | GATED:
        raise RuntimeError(
            f"npu_ffn: activation must be one of {', '.join(ACTIVATIONS | GATED)}, not "
            f"{activation}; choose one of these"
        )
    rows = x.reshape(-1, x.shape[-1])
    if weight1.dim() == 2:
        found = _of_expert(rows, weight1, weight2, activation, output_dtype, given)
    else:
        ends = expert_tokens_index or torch.tensor(expert_tokens).cumsum(0).tolist()
        if x.dtype == weight1.dtype and x.dtype != torch.int8:
            found = _of_all(rows, weight1, weight2, activation, ends, given)
        else:
            parts = zip([0, *ends], ends, strict=False)
            found = torch.cat(
                [
                    _of_expert(
                        rows[first:last],
                        weight1[expert],
                        weight2[expert],
                        activation,
                        output_dtype,
                        {name: None if y is None else y[expert] for name, y in given.items()},
                    )
                    for expert, (first, last) in enumerate(parts)
                    if last > first
                ]
            )
    return found.reshape(*x.shape[:-1], found.shape[-1])


def _of_all(
    x: torch.Tensor,
    weight1: torch.Tensor,
    weight2: torch.Tensor,
    activation: str,
    ends: list[int],
    given: dict[str, torch.Tensor | None],
) -> torch.Tensor:
    """The floating-point case: each product is one launch for all experts."""
    groups = torch.tensor(ends, device=x.device)

    def product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        added = None if bias is None else [bias]
        call = torch.ops.npu.npu_grouped_matmul
        return call(
            [rows], [weight], bias=added, group_list=groups, split_item=3, group_type=0,
            group_list_type=0,
        )[0]  # fmt: skip

    hidden = _activated(product(x, weight1, given.get("bias1")), activation)
    return product(hidden, weight2, given.get("bias2"))


def _of_expert(
    x: torch.Tensor,
    weight1: torch.Tensor,
    weight2: torch.Tensor,
    activation: str,
    output_dtype: torch.dtype | None,
    given: dict[str, torch.Tensor | None],
) -> torch.Tensor:
    bias1, bias2 = given.get("bias1"), given.get("bias2")
    scale = given.get("scale")
    if scale is not None:
        call, dtype = torch.ops.npu.npu_quant_matmul, output_dtype or torch.float16
        first, second = given["deq_scale1"], given["deq_scale2"]
        hidden = _activated(call(x, weight1, first, bias=bias1, output_dtype=dtype), activation)
        # Rounded to half after each operation, as AscendQuant does (asc-devkit, AscendQuant.md).
        levels = hidden.half() * scale.half()
        offset = given.get("offset")
        levels = (levels if offset is None else levels + offset.half()).round().clamp(*INT8)
        return call(levels.to(torch.int8), weight2, second, bias=bias2, output_dtype=dtype)
    if given.get("antiquant_scale1") is not None:
        dequantised = torch.ops.npu.npu_weight_quant_batchmatmul

        def product(rows: torch.Tensor, weight: torch.Tensor, number: int) -> torch.Tensor:
            scales, offsets = (given.get(f"antiquant_{x}{number}") for x in ("scale", "offset"))
            bias = given.get(f"bias{number}")
            return dequantised(rows, weight, scales, antiquant_offset=offsets, bias=bias)

        return product(_activated(product(x, weight1, 1), activation), weight2, 2)
    hidden = _activated(_linear(x, weight1, bias1), activation)
    return _linear(hidden, weight2, bias2)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    found = torch.matmul(x, weight)
    return found if bias is None else (found.float() + bias).to(found.dtype)
