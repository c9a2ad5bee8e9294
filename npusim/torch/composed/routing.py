"""Routing of tokens to experts, composed of operators that sort, select and count.

Sources: op-plugin@517f2e7, the documents torch_npu-npu_moe_init_routing.md,
torch_npu-npu_moe_compute_expert_tokens.md and torch_npu-npu_moe_token_permute.md, and
op_plugin_functions.yaml; functions with a routing map are those of Megatron-LM, which they replace.
"""

from __future__ import annotations

import torch

from npusim.torch.errors import require_option

__all__ = [
    "compute_expert_tokens",
    "init_routing",
    "token_permute",
    "token_permute_with_routing_map",
    "token_unpermute",
    "token_unpermute_with_routing_map",
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


def token_permute_with_routing_map(
    tokens: torch.Tensor,
    routing_map: torch.Tensor,
    *,
    probs: torch.Tensor | None = None,
    num_out_tokens: int | None = None,
    drop_and_pad: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """The rows of *tokens* `(tokens, columns)` of each expert in turn, their shares from *probs*,
    and for each choice of a token its row.

    *routing_map* `(tokens, experts)` marks the choices. With *drop_and_pad* each expert has
    `num_out_tokens / experts` rows, chosen tokens first, and the indices are those of the tokens.
    """
    chosen = routing_map.bool().t().contiguous()
    if drop_and_pad:
        places = torch.sort(chosen.to(torch.uint8), dim=-1, descending=True, stable=True)[1]
        sources = places[:, : (num_out_tokens or 0) // len(chosen)].contiguous()
        shares = None if probs is None else probs.t().contiguous().gather(1, sources).flatten()
        sources = sources.flatten()
        return tokens.index_select(0, sources), shares, sources.to(torch.int32)
    owners, sources = chosen.nonzero().unbind(1)
    shares = None if probs is None else probs[sources, owners]
    order = torch.sort(sources.to(torch.int32), stable=True)[1]
    return tokens.index_select(0, sources), shares, order.to(torch.int32)


def token_unpermute_with_routing_map(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    restore_shape: list[int],
    *,
    probs: torch.Tensor | None = None,
    routing_map: torch.Tensor | None = None,
    drop_and_pad: bool = False,
) -> torch.Tensor:
    """The sums of the rows of each token, multiplied by their shares in *probs* if given, with the
    indices of :func:`token_permute_with_routing_map`."""
    rows, shares = permuted_tokens.float(), None if probs is None else probs.float()
    indices = sorted_indices.long()
    if drop_and_pad:
        if shares is not None:
            of_experts = indices.reshape(shares.shape[1], -1)
            rows = rows * shares.t().contiguous().gather(1, of_experts).reshape(-1, 1)
        whole = rows.new_zeros(restore_shape).index_add(0, indices, rows)
        return whole.to(permuted_tokens.dtype)
    if routing_map is None:
        raise RuntimeError(
            "npu_moe_token_unpermute_with_routing_map: routing_map must be given unless "
            "drop_and_pad is, but is None; pass the map of npu_moe_token_permute_with_routing_map"
        )
    rows = rows.index_select(0, indices).reshape(routing_map.shape[0], -1, rows.shape[1])
    if shares is not None:
        of_choices = shares[routing_map.bool().nonzero().unbind(1)]
        rows = rows * of_choices.reshape(*rows.shape[:2], 1)
    return rows.sum(1).to(permuted_tokens.dtype)


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
