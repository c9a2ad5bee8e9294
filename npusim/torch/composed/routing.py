"""What routes tokens to experts, of operators that sort, select and count.

Sources: op-plugin@517f2e7, the documents torch_npu-npu_moe_init_routing.md,
torch_npu-npu_moe_re_routing.md, torch_npu-npu_moe_compute_expert_tokens.md and
torch_npu-npu_moe_token_permute.md, and op_plugin_functions.yaml.
"""

from __future__ import annotations

import torch

__all__ = [
    "compute_expert_tokens",
    "init_routing",
    "re_routing",
    "token_permute",
    "token_unpermute",
]


def token_permute(
    tokens: torch.Tensor,
    indices: torch.Tensor,
    num_out_tokens: int | None = None,
    padded_mode: bool = False,  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_moe_token_permute with fewer rows than choices: the first ones of all."""
    rows, places = torch.ops.npu.npu_moe_token_permute(tokens, indices)
    number = num_out_tokens or 0
    left = max(0, number + rows.shape[0] if number <= 0 else number)
    return rows[:left].clone(), places


def token_unpermute(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_moe_token_unpermute, and what a backward pass needs of it."""
    given = permuted_tokens, sorted_indices, probs, padded_mode, restore_shape
    return torch.ops.npu.npu_moe_token_unpermute(*given), permuted_tokens


def init_routing(
    x: torch.Tensor, row_idx: torch.Tensor, expert_idx: torch.Tensor, active_num: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The rows of tokens, where each choice has gone, and the experts, sorted."""
    rows, k = expert_idx.shape
    experts, order = torch.sort(expert_idx.reshape(-1), stable=True)
    sources = row_idx.reshape(-1)[order]
    places = torch.zeros_like(sources)
    places[sources.long()] = torch.arange(rows * k, dtype=torch.int32, device=x.device)
    first = sources[: min(active_num, rows) * k]
    return x.index_select(0, first % rows), places, experts


def compute_expert_tokens(
    sorted_expert_for_source_row: torch.Tensor, num_expert: int
) -> torch.Tensor:
    """How many rows are those of each expert and of all before."""
    experts = torch.arange(
        num_expert, dtype=torch.int32, device=sorted_expert_for_source_row.device
    )
    found = torch.searchsorted(sorted_expert_for_source_row, experts, right=True)
    return found.to(torch.int32)


def re_routing(
    tokens: torch.Tensor,
    expert_token_num_per_rank: torch.Tensor,
    *,
    per_token_scales: torch.Tensor | None = None,
    expert_token_num_type: int = 1,
    idx_type: int = 0,
    tokens_dtype: int | None = None,  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows that lie rank by rank, expert by expert: rows, scales, sources, and how many."""
    if expert_token_num_type != 1 or idx_type != 0:
        raise RuntimeError(
            "npu_moe_re_routing: expert_token_num_type must be 1 and idx_type 0, not "
            f"{expert_token_num_type} and {idx_type}; leave them out"
        )
    table = expert_token_num_per_rank
    ranks, experts = table.shape
    every = torch.arange(experts, device=table.device).repeat(ranks)
    of_row = every.repeat_interleave(table.reshape(-1).long())[: tokens.shape[0]]
    # Rows that the table does not count stay behind all others.
    missing = tokens.shape[0] - of_row.shape[0]
    of_row = torch.nn.functional.pad(of_row, (0, missing), value=experts)
    order = torch.argsort(of_row, stable=True)
    scales = per_token_scales
    moved = (
        tokens.new_empty(tokens.shape[0], dtype=torch.float32)
        if scales is None
        else scales.index_select(0, order)
    )
    counts = table.sum(0, dtype=table.dtype)
    return tokens.index_select(0, order), moved, order.to(torch.int32), counts
