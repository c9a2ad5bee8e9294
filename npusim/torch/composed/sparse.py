"""Sparse attention of DeepSeek-V3.2: choose the best keys of each token, and attend to them.

In npu_lightning_indexer the score of a key is `sum over heads of weight * relu(query . key)`, all
in fp32. npu_sparse_flash_attention attends to the chosen keys, block by block, in fp32 with softmax
weights rounded to the type of the query. Both kernels are public; here products, sums, sorts and
gathers of torch replace them and take more time. Bits differ from those of a card, whose attention
rescales its sums through their exponents (AMLA).

Sources: op-plugin@517f2e7, torch_npu-npu_lightning_indexer.md and
torch_npu-npu_sparse_flash_attention.md; ops-transformer@3a280bc attention/sparse_flash_attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from npusim.torch import card
from npusim.torch.errors import require_option

__all__ = ["lightning_indexer", "sparse_flash_attention"]

CAUSAL = 3
WHOLE = 2**63 - 1
"""The default bound of a band: none."""
LATENT = 2
"""The attention mode in which latent keys are also the values (op-plugin@517f2e7, the document
torch_npu-npu_sparse_flash_attention.md)."""
TOKENS_AT_ONCE = 16
"""Tokens whose keys are gathered together."""
LOWEST, LEAST = -1e12, 1e-30
"""The score of a hidden key, and the lower bound of a sum of exponentials."""


class _Request(NamedTuple):
    """Tokens and keys of a request."""

    tokens: slice
    """Its tokens among those of all requests."""
    keys: torch.Tensor
    """`(keys, columns)` of its single head."""


def _lengths(given: torch.Tensor | None, count: int, room: int, *, is_sum: bool) -> list[int]:
    """The lengths of *count* requests; each is *room* if no lengths are given."""
    if given is None or not card.computes_values():
        return [room] * count
    found = [int(x) for x in given.tolist()]
    return [b - a for a, b in zip([0, *found], found, strict=False)] if is_sum else found


def _keys_of(
    key: torch.Tensor, layout: str, number: int, first: int, length: int, table: torch.Tensor | None
) -> torch.Tensor:
    """The keys of request *number*, which start at *first* in TND: `(keys, columns)`."""
    if layout == "PA_BSND":
        assert table is not None
        blocks = -(-length // key.shape[1])
        found = key.index_select(0, table[number, :blocks].long())
        return found.reshape(-1, key.shape[-1])[:length]
    if layout == "TND":
        return key[first : first + length, 0]
    return key[number, :length, 0]


def _requests(
    query: torch.Tensor,
    key: torch.Tensor,
    layouts: tuple[str, str],
    lengths: tuple[torch.Tensor | None, torch.Tensor | None],
    table: torch.Tensor | None,
) -> Iterator[_Request]:
    """Each request of a call. Token indices run over all requests, padding included."""
    is_packed = layouts[0] == "TND"
    if is_packed:
        count = 1 if lengths[0] is None else len(lengths[0])
        room = query.shape[0] // count
    else:
        count, room = query.shape[:2]
    of_keys = {"PA_BSND": 0 if table is None else table.shape[1] * key.shape[1],
               "TND": key.shape[0] // count, "BSND": key.shape[1]}[layouts[1]]  # fmt: skip
    tokens = _lengths(lengths[0], count, room, is_sum=is_packed)
    keys = _lengths(lengths[1], count, of_keys, is_sum=layouts[1] == "TND")
    first = at = 0
    for number, (own, seen) in enumerate(zip(tokens, keys, strict=True)):
        found = _keys_of(key, layouts[1], number, at, seen, table)
        yield _Request(slice(first, first + own), found)
        first += own if is_packed else room
        at += seen


def _require_whole(function: str, sparse_mode: int, pre_tokens: int, next_tokens: int) -> None:
    """Refuse bands: the keys that a token sees are all, or those up to its own."""
    require_option(function, "sparse_mode", sparse_mode, 0, CAUSAL)
    require_option(function, "pre_tokens", pre_tokens, WHOLE)
    require_option(function, "next_tokens", next_tokens, WHOLE)


def lightning_indexer(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    *,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_key: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    layout_query: str = "BSND",
    layout_key: str = "BSND",
    sparse_count: int = 2048,
    sparse_mode: int = CAUSAL,
    pre_tokens: int = WHOLE,
    next_tokens: int = WHOLE,
    return_value: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices of the best keys of each token, best first, -1 for none; and their scores."""
    _require_whole("npu_lightning_indexer", sparse_mode, pre_tokens, next_tokens)
    shape = (*query.shape[:-2], 1, sparse_count)
    rows = query.reshape(-1, *query.shape[-2:])
    factors = weights.reshape(-1, weights.shape[-1])
    places = query.new_full((rows.shape[0], sparse_count), -1, dtype=torch.int32)
    values = query.new_full(places.shape, float("-inf"))
    lengths = actual_seq_lengths_query, actual_seq_lengths_key
    for own in _requests(query, key, (layout_query, layout_key), lengths, block_table):
        q, w = rows[own.tokens], factors[own.tokens]
        tokens, keys = q.shape[0], own.keys.shape[0]
        if not tokens or not keys:
            continue
        products = torch.relu(q.float() @ own.keys.float().t())
        scores = (products * w.float()[..., None]).sum(1)
        if sparse_mode == CAUSAL:
            apart = (
                torch.arange(keys, device=q.device) - torch.arange(tokens, device=q.device)[:, None]
            )
            scores = scores.masked_fill(apart > keys - tokens, float("-inf"))
        best, order = torch.sort(scores, dim=1, descending=True, stable=True)
        count = min(sparse_count, keys)
        best, order = best[:, :count], order[:, :count].to(torch.int32)
        places[own.tokens, :count] = order.masked_fill(best == float("-inf"), -1)
        if return_value:
            values[own.tokens, :count] = best.to(values.dtype)
    found = values.reshape(shape) if return_value else values.new_empty(0)
    return places.reshape(shape), found


def sparse_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor | None,  # noqa: ARG001
    sparse_indices: torch.Tensor,
    scale_value: float,
    *,
    block_table: torch.Tensor | None = None,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_kv: torch.Tensor | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = CAUSAL,
    pre_tokens: int = WHOLE,
    next_tokens: int = WHOLE,
    attention_mode: int = 0,
    return_softmax_lse: bool = False,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The attention output over latent keys, and maxima and sums.

    The keys without their rotated part are the values; *value* is not read (assumed).
    """
    if query_rope is None or key_rope is None or sinks is not None:
        raise RuntimeError(
            "npu_sparse_flash_attention: query_rope and key_rope must be given, and sinks not: "
            "keys without rotated parts and sinks are of later chips; pass both parts"
        )
    _require_whole("npu_sparse_flash_attention", sparse_mode, pre_tokens, next_tokens)
    require_option("npu_sparse_flash_attention", "attention_mode", attention_mode, 0, LATENT)
    heads, width = query.shape[-2:]
    q = torch.cat([query, query_rope], -1).reshape(-1, heads, width + query_rope.shape[-1])
    whole = torch.cat([key, key_rope], -1)
    chosen = sparse_indices.reshape(q.shape[0], sparse_indices.shape[-1])
    output = query.new_zeros((q.shape[0], heads, width))
    largest, total = (q.new_zeros((q.shape[0], heads), dtype=torch.float32) for _ in range(2))
    lengths = actual_seq_lengths_query, actual_seq_lengths_kv
    for own in _requests(query, whole, (layout_query, layout_kv), lengths, block_table):
        tokens, keys = own.tokens.stop - own.tokens.start, own.keys.shape[0]
        for first in range(0, tokens if keys and chosen.numel() else 0, TOKENS_AT_ONCE):
            last = min(first + TOKENS_AT_ONCE, tokens)
            here = slice(own.tokens.start + first, own.tokens.start + last)
            places = _places(chosen[here].long(), sparse_block_size)
            seen = (places >= 0) & (places < keys)
            if sparse_mode == CAUSAL:
                token = torch.arange(first, last, device=q.device)[:, None]
                seen = seen & (places <= keys - tokens + token)
            taken = own.keys[places.clamp(0, keys - 1)].float()
            found = _attend(q[here].float() * scale_value, taken, seen, width, query.dtype)
            output[here], largest[here], total[here] = found
    if not return_softmax_lse:
        none = largest.new_empty(0)
        return output.reshape(query.shape), none, none
    # (requests, 1, tokens, heads), or (1, tokens, heads) in TND.
    axis = 0 if layout_query == "TND" else 1
    largest, total = (x.reshape(query.shape[:-1]).unsqueeze(axis) for x in (largest, total))
    return output.reshape(query.shape), largest, total


def _places(blocks: torch.Tensor, size: int) -> torch.Tensor:
    """Key indices `(tokens, keys)` of *blocks* `(tokens, blocks)` of *size*; negative for -1."""
    inside = torch.arange(size, device=blocks.device)
    return (blocks[..., None] * size + inside).flatten(1)


def _attend(
    q: torch.Tensor, taken: torch.Tensor, seen: torch.Tensor, width: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output, maxima and sums of scaled queries `(tokens, heads, columns)` and their keys."""
    scores = (q @ taken.transpose(1, 2)).masked_fill(~seen[:, None], LOWEST)
    largest = scores.amax(-1, keepdim=True)
    weights = (scores - largest).exp() * seen[:, None]
    total = weights.sum(-1, keepdim=True)
    product = weights.to(dtype).float() @ taken[..., :width]
    return (product / total.clamp_min(LEAST)).to(dtype), largest[..., 0], total[..., 0]
