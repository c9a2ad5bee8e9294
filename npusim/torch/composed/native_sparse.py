"""Native sparse attention: each token attends to compressed keys, and to the blocks of keys that
were chosen for it by these.

Sources: op-plugin@517f2e7 op_plugin_functions.yaml; ops-transformer@3a280bc attention/nsa_compress,
nsa_compress_attention and nsa_selected_attention. Products, softmax, sorts and gathers of torch
replace their kernels. Lengths are cumulative, and without them all tokens are one sequence.
"""

from __future__ import annotations

import torch

__all__ = ["compress", "compress_attention", "select_attention"]

SIDE_BY_SIDE = 8
"""The number of equal columns in which a maximum or a sum is stored."""
MASKED = -40000.0
"""What npu_nsa_compress_attention adds to masked scores (the vendor's test)."""
ALWAYS_CHOSEN = 23333.0
"""The importance of a block that topk_mask marks (the vendor's test)."""


def compress(
    input: torch.Tensor,
    weight: torch.Tensor,
    compress_block_size: int,
    compress_stride: int,
    *,
    actual_seq_len: list[int] | None = None,
) -> torch.Tensor:
    """The sums of `compress_block_size` rows of *input* `(tokens, heads, columns)`, every
    `compress_stride` rows of a sequence, by *weight* `(compress_block_size, heads)`."""
    # Sequences that are shorter than a block give none.
    found, first = [input.new_empty((0, *input.shape[1:]), dtype=torch.float32)], 0
    for last in actual_seq_len or [input.shape[0]]:
        if last - first >= compress_block_size:
            # (blocks, heads, columns, rows of a block)
            blocks = input[first:last].float().unfold(0, compress_block_size, compress_stride)
            found.append((blocks * weight.float().t()[:, None]).sum(-1))
        first = last
    return torch.cat(found).to(input.dtype)


def _importance(compressed: int, chosen: int, reach: int, parts: int) -> torch.Tensor:
    """How often a compressed key counts for a block of keys, `(compressed, chosen)`: a block
    overlaps with the `reach + parts - 1` keys that end where it does."""
    found = torch.zeros(compressed, chosen)
    width = reach + parts - 1
    for block in range(chosen):
        for behind in range(width):
            key = reach * (block + 1) - behind
            if 0 <= key < compressed:
                times = behind + 1 if behind < width / 2 else width - behind
                found[key, block] += min(times, parts)
    return found


def compress_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale_value: float,
    head_num: int,  # noqa: ARG001
    compress_block_size: int,
    compress_stride: int,
    select_block_size: int,
    select_block_count: int,
    *,
    topk_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_cmp_seq_kvlen: list[int] | None = None,
    actual_sel_seq_kvlen: list[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention `(tokens, heads, columns)` to compressed keys, the blocks of keys that matter most
    to each token `(tokens, key heads, select_block_count)`, and the maxima and sums of scores."""
    tokens, heads = query.shape[:2]
    kv_heads = key.shape[1]
    reach, parts = select_block_size // compress_stride, compress_block_size // compress_stride
    ends = actual_seq_qlen or [tokens]
    of_keys = actual_cmp_seq_kvlen or [key.shape[0]]
    of_blocks = actual_sel_seq_kvlen or [key.shape[0] // reach]
    found, chosen = [], []
    first = at = before = 0
    for last, end, behind in zip(ends, of_keys, of_blocks, strict=True):
        q = query[first:last].float().reshape(last - first, kv_heads, heads // kv_heads, -1)
        k, v = (x[at:end].float().transpose(0, 1)[:, None] for x in (key, value))
        # (key heads, heads of a group, tokens, compressed keys)
        scores = q.permute(1, 2, 0, 3) @ k.mT * scale_value
        if atten_mask is not None:
            scores = scores + atten_mask[: last - first, : end - at].bool() * MASKED
        largest = scores.amax(-1, keepdim=True)
        total = (scores - largest).exp().sum(-1, keepdim=True)
        shares = (scores - largest).exp() / total
        found.append([x.permute(2, 0, 1, 3).flatten(1, 2) for x in (shares @ v, largest, total)])
        counts = _importance(end - at, behind - before, reach, parts).to(query.device)
        importance = shares.sum(1) @ counts
        if topk_mask is not None:
            marked = topk_mask[: last - first, : behind - before].bool()
            importance = importance.masked_fill(marked, ALWAYS_CHOSEN)
        order = torch.sort(importance, dim=-1, descending=True, stable=True)[1]
        chosen.append(order[..., :select_block_count].transpose(0, 1))
        first, at, before = last, end, behind
    outputs, largest, total = (torch.cat(list(each)) for each in zip(*found, strict=True))
    wide = (x.expand(tokens, heads, SIDE_BY_SIDE).contiguous() for x in (largest, total))
    return outputs.to(query.dtype), torch.cat(chosen).to(torch.int32), *wide


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
