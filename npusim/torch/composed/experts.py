"""Experts: gating with softmax, routing with quantisation to int8, and products by groups.

Sources: op-plugin@517f2e7 op_plugin_functions.yaml, ops/opapi, and the document
torch_npu-npu_grouped_matmul_finalize_routing.md; ops-transformer@3a280bc
moe/moe_gating_top_k_softmax_v2 and moe/moe_init_routing_quant_v2.
"""

from __future__ import annotations

from typing import Any

import torch

from npusim.torch.errors import require_option
from npusim.torch.relabel import overwrite

__all__ = [
    "gating_top_k_softmax",
    "gating_top_k_softmax_v2",
    "grouped_matmul_add",
    "grouped_matmul_add_",
    "grouped_matmul_finalize_routing",
    "init_routing_quant",
]

CUMSUM, COUNT = 1, 2
"""Values of expert_tokens_num_mode: cumulative sums, or counts; 0 requests neither."""


def gating_top_k_softmax(
    x: torch.Tensor, finished: torch.Tensor | None = None, k: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """npu_moe_gating_top_k_softmax for rows too long for its kernel: a softmax and a sort."""
    shares = torch.softmax(x.float(), -1)
    values, order = torch.sort(shares, dim=-1, descending=True, stable=True)
    weights, experts = values[..., :k].to(x.dtype), order[..., :k].to(torch.int32)
    if finished is not None:
        experts = experts.masked_fill(finished[..., None], x.shape[-1])
    rows = experts.numel() // k
    places = torch.arange(rows * k, dtype=torch.int32, device=x.device).reshape(k, rows).t()
    return weights, experts, places.reshape(experts.shape).contiguous()


def gating_top_k_softmax_v2(
    x: torch.Tensor,
    *,
    k: int = 1,
    finished: torch.Tensor | None = None,
    renorm: int | None = 0,
    output_softmax: bool | None = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """npu_moe_gating_top_k_softmax and the softmax; with *renorm*, a softmax of the k largest."""
    if not renorm:
        weights, experts, _ = torch.ops.npu.npu_moe_gating_top_k_softmax(x, finished, k)
        whole = torch.softmax(x.float(), -1) if output_softmax else x.new_empty(0).float()
        return weights, experts, whole
    values, order = torch.sort(x, dim=-1, descending=True, stable=True)
    experts = order[..., :k].to(torch.int32)
    if finished is not None:
        experts = experts.masked_fill(finished[..., None], x.shape[-1])
    weights = torch.softmax(values[..., :k].float(), -1).to(x.dtype)
    return weights, experts, x.new_empty(0, dtype=torch.float32)


def init_routing_quant(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    active_num: int = 1024,
    expert_capacity: int = 0,
    expert_num: int = 256,
    drop_pad_mode: int = 0,
    expert_tokens_num_mode: int = 0,
    expert_tokens_before_capacity_flag: bool = False,
    quant_mode: int = 1,
) -> tuple[torch.Tensor, ...]:
    """npu_moe_init_routing_v2 for all experts, quantised: *quant_mode* 0 uses one scale, 1 uses a
    scale for each row."""
    choices = expert_idx.numel()
    is_static = quant_mode == 0
    rows, places, tokens, scales = torch.ops.npu.npu_moe_init_routing_v2(
        x,
        expert_idx,
        scale=None if is_static else scale,
        active_num=active_num or choices,
        expert_capacity=expert_capacity,
        expert_num=expert_num,
        drop_pad_mode=drop_pad_mode,
        expert_tokens_num_type=0 if expert_tokens_num_mode == CUMSUM else 1,
        expert_tokens_num_flag=True,
        quant_mode=-1 if is_static else 1,
        active_expert_range=[0, expert_num],
        row_idx_type=0,
    )
    if is_static and scale is not None:
        levels = rows.float() * scale.float()
        levels = levels if offset is None else levels + offset.float()
        rows = levels.round().clamp(-128, 127).to(torch.int8)
        scales = scales.new_empty(0)
    none = tokens.new_empty(0, dtype=torch.int32)
    tokens = tokens.to(torch.int32) if expert_tokens_num_mode or not drop_pad_mode else none
    before = tokens if expert_tokens_before_capacity_flag and drop_pad_mode else none
    return rows, places, tokens, before, scales


def _counts(group_list: torch.Tensor, group_list_type: int) -> list[int]:
    """The rows of each group, from counts (type 1) or cumulative sums (type 0)."""
    found: list[int] = group_list.tolist()
    if group_list_type == 1:
        return found
    return [last - first for first, last in zip([0, *found], found, strict=False)]


def grouped_matmul_finalize_routing(
    x: torch.Tensor,
    w: torch.Tensor,
    group_list: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    pertoken_scale: torch.Tensor | None = None,
    shared_input: torch.Tensor | None = None,
    logit: torch.Tensor | None = None,
    row_index: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    shared_input_weight: float = 1.0,
    shared_input_offset: int = 0,
    output_bs: int = 0,
    group_list_type: int = 1,
    **others: object,
) -> torch.Tensor:
    """The products of all experts, weighted by *logit* and added to the rows *row_index* of an
    fp32 result `(output_bs, columns)`, together with those of shared experts.

    *x* and *w* are int8; the product is int32, its scales and sums are float32.
    """
    function = "npu_grouped_matmul_finalize_routing"
    for name, given in others.items():
        require_option(function, name, given, None)
    require_option(function, "dtype", dtype, torch.float32, None)
    require_option(function, "w.dtype", w.dtype, torch.int8)
    if scale is None or pertoken_scale is None or logit is None or row_index is None:
        raise RuntimeError(
            f"{function}: scale, pertoken_scale, logit and row_index must be given, but are not "
            "all; pass the missing ones"
        )
    counts = _counts(group_list, group_list_type)
    rows = sum(counts)
    product = torch.ops.npu.npu_grouped_matmul(
        [x], [w], group_list=group_list, split_item=3, group_type=0,
        group_list_type=group_list_type, output_dtype=torch.int32,
    )[0][:rows]  # fmt: skip
    experts = torch.repeat_interleave(torch.tensor(counts)).to(x.device)
    weights = pertoken_scale.reshape(-1)[:rows] * logit.reshape(-1)[:rows]
    found = product.float() * scale.reshape(len(counts), -1)[experts] * weights[:, None]
    whole = found.new_zeros((output_bs or rows, found.shape[1]))
    whole.index_add_(0, row_index[:rows].long(), found)
    if shared_input is not None:
        here = slice(shared_input_offset, shared_input_offset + shared_input.shape[0])
        whole[here] += shared_input.float() * shared_input_weight
    return whole


def grouped_matmul_add(
    input: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    group_list: torch.Tensor,
    *,
    transpose_x: bool = True,
    transpose_weight: bool = False,
    group_type: int = 2,
    group_list_type: int = 0,
) -> torch.Tensor:
    """*input* plus `x.t() @ weight` of the rows of each group, in float32: a product of each."""
    function = "npu_grouped_matmul_add"
    options = ("transpose_x", transpose_x), ("transpose_weight", transpose_weight)
    for (name, given), simulated in zip(options, (True, False), strict=True):
        require_option(function, name, given, simulated)
    require_option(function, "group_type", group_type, 2)
    counts = _counts(group_list, group_list_type)
    parts = zip(x[: sum(counts)].split(counts), weight[: sum(counts)].split(counts), strict=True)
    products = torch.stack([rows.t().float() @ of_rows.float() for rows, of_rows in parts])
    return input + products.reshape(input.shape)


def grouped_matmul_add_(
    input: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    group_list: torch.Tensor,
    **options: Any,
) -> torch.Tensor:
    """The same in place."""
    overwrite(input, grouped_matmul_add(input, x, weight, group_list, **options))
    return input
