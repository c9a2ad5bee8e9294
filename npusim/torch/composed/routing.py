"""Routing of tokens to experts, composed of operators that sort, select and count.

Sources: op-plugin@517f2e7, the documents torch_npu-npu_moe_init_routing.md,
torch_npu-npu_moe_compute_expert_tokens.md and torch_npu-npu_moe_token_permute.md, and
op_plugin_functions.yaml.
"""

from __future__ import annotations

import torch

from npusim.torch.errors import require_option

__all__ = [
    "compute_expert_tokens",
    "init_routing",
    "token_permute",
    "token_unpermute",
]


def token_permute(
    tokens: torch.Tensor,
    indices: torch.Tensor,
    num_out_tokens: int | None = None,
    padded_mode: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_moe_token_permute with fewer rows than choices: only the first rows."""
    require_option("npu_moe_token_permute", "padded_mode", padded_mode, False)
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
    """npu_moe_token_unpermute, and the tensor that backward needs."""
    given = permuted_tokens, sorted_indices, probs, padded_mode, restore_shape
    return torch.ops.npu.npu_moe_token_unpermute(*given), permuted_tokens


def init_routing(
    x: torch.Tensor, row_idx: torch.Tensor, expert_idx: torch.Tensor, active_num: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The rows of tokens, the row to which each choice has gone, and the sorted experts."""
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
    """The cumulative number of rows up to and including each expert."""
    experts = torch.arange(
        num_expert, dtype=torch.int32, device=sorted_expert_for_source_row.device
    )
    found = torch.searchsorted(sorted_expert_for_source_row, experts, right=True)
    return found.to(torch.int32)
