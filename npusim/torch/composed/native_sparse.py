"""Native sparse attention: each token attends to the blocks of keys that were chosen for it.

Sources: op-plugin@517f2e7 op_plugin_functions.yaml; ops-transformer@3a280bc
attention/nsa_selected_attention. Products, softmax and gathers of torch replace its kernel.
"""

from __future__ import annotations

import torch

__all__ = ["select_attention"]

SIDE_BY_SIDE = 8
"""The number of equal columns in which a maximum or a sum is stored."""


def select_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    topk_indices: torch.Tensor,
    scale_value: float,
    head_num: int,  # noqa: ARG001
    select_block_size: int,
    select_block_count: int,  # noqa: ARG001
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The attention output `(tokens, heads, columns)`, and the maxima and sums of the scores."""
    tokens, heads = query.shape[:2]
    kv_heads = key.shape[1]
    ends = actual_seq_qlen or [tokens]
    of_keys = actual_seq_kvlen or [key.shape[0]]
    inside = torch.arange(select_block_size, device=query.device)
    head = torch.arange(kv_heads, device=query.device)[:, None]
    found = []
    first = at = 0
    for last, end in zip(ends, of_keys, strict=True):
        for token in range(first, last):
            chosen = topk_indices[token].long()
            places = (chosen[..., None] * select_block_size + inside).flatten(1)
            hidden = (places < 0) | (places >= end - at)
            if atten_mask is not None:
                hidden = hidden | atten_mask[token - first].bool()[places.clamp(0, end - at - 1)]
            rows = places.clamp(0, end - at - 1) + at
            q = query[token].reshape(kv_heads, heads // kv_heads, -1)
            k, v = key[rows, head], value[rows, head]
            scores = q.float() @ k.float().mT * scale_value
            scores = scores.masked_fill(hidden[:, None], float("-inf"))
            largest = scores.amax(-1, keepdim=True)
            total = (scores - largest).exp().sum(-1, keepdim=True)
            weights = torch.softmax(scores, -1).to(query.dtype)
            found.append((weights.float() @ v.float(), largest, total))
        first, at = last, end
    outputs, largest, total = (
        torch.stack([x.reshape(heads, -1) for x in each]) for each in zip(*found, strict=True)
    )
    wide = (x.expand(tokens, heads, SIDE_BY_SIDE).contiguous() for x in (largest, total))
    return outputs.to(query.dtype), *wide
