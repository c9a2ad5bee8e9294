"""Routing of tokens to experts: gating with softmax, and routing with quantisation to int8.

Sources: op-plugin@517f2e7 op_plugin_functions.yaml and ops/opapi; ops-transformer@3a280bc
moe/moe_gating_top_k_softmax_v2 and moe/moe_init_routing_quant_v2.
"""

from __future__ import annotations

import torch

__all__ = [
    "gating_top_k_softmax",
    "gating_top_k_softmax_v2",
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
