"""Sparse attention of DeepSeek-V3.2: choose the best keys of each token, and attend to them.

In npu_lightning_indexer the score of a key is `sum over heads of weight * relu(query . key)`, all
in fp32. In npu_quant_lightning_indexer products of int8 are rounded to fp16 as the cube core writes
them out, and the scale of a key multiplies its sum. npu_sparse_flash_attention attends to the
chosen keys, block by block, in fp32 with softmax weights rounded to the type of the query;
npu_kv_quant_sparse_flash_attention dequantises them first. The kernels are public; here products,
sums, sorts and gathers of torch replace them and take more time. Bits of attention differ from
those of a card, which rescales its sums through their exponents (AMLA).

Sources: op-plugin@517f2e7, the documents of the four functions; ops-transformer@3a280bc,
attention/sparse_flash_attention, attention/quant_lightning_indexer (op_kernel/arch22) and
attention/kv_quant_sparse_flash_attention (op_host and op_kernel).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch

from npusim.torch import card
from npusim.torch.errors import require_option

__all__ = [
    "kv_quant_sparse_flash_attention",
    "lightning_indexer",
    "quant_lightning_indexer",
    "sparse_flash_attention",
]

CAUSAL = 3
WHOLE = 2**63 - 1
"""The default bound of a band: none."""
LATENT = 2
"""The attention mode in which latent keys are also the values (op-plugin@517f2e7, the document
torch_npu-npu_sparse_flash_attention.md)."""
TOKENS_AT_ONCE = 16
"""Tokens whose keys are gathered together."""
PRODUCT_SCALE = 2.0**-10
"""What the cube core multiplies products of int8 by, before it rounds them to fp16."""
PER_TILE = 2
"""The mode of quantisation in which TILE columns of a key share a scale."""
COMBINED = 1
"""The mode in which a key holds its scales, behind its rotated part."""
TILE, ROTATED, LATENT_COLUMNS = 128, 64, 512
"""Columns that share a scale, those of the rotated part, and those of the other."""
BLOCK_SIZES = (1, 2, 4, 8, 16)
"""Keys of a block in npu_kv_quant_sparse_flash_attention, on the chips before Ascend 950."""
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
    """Each request that has tokens and keys. Indices run over the tokens of all, with padding."""
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
        if own and seen:
            found = _keys_of(key, layouts[1], number, at, seen, table)
            yield _Request(slice(first, first + own), found)
        first += own if is_packed else room
        at += seen


def _require_whole(function: str, sparse_mode: int, pre_tokens: int, next_tokens: int) -> None:
    """Refuse bands: the keys that a token sees are all, or those up to its own."""
    require_option(function, "sparse_mode", sparse_mode, 0, CAUSAL)
    require_option(function, "pre_tokens", pre_tokens, WHOLE)
    require_option(function, "next_tokens", next_tokens, WHOLE)


def _require_type(function: str, dtype: torch.dtype, **tensors: torch.Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype != dtype:
            raise RuntimeError(
                f"{function}: {name} must be {dtype} on this chip, not {tensor.dtype}; convert it"
            )


# ---- choice of keys ----


def _rank(
    scores: Iterable[tuple[slice, torch.Tensor]],
    query: torch.Tensor,
    most: int,
    sparse_mode: int,
    values: torch.Tensor | None = None,
) -> torch.Tensor:
    """The indices of the *most* best keys of each token, best first, -1 for none.

    *scores* has tokens and `(tokens, keys)` of each request. Those of the best go to *values*.
    """
    shape = (*query.shape[:-2], 1, most)
    places = query.new_full(shape, -1, dtype=torch.int32).view(-1, most)
    for own, found in scores:
        tokens, keys = found.shape
        if sparse_mode == CAUSAL:
            token = torch.arange(tokens, device=query.device)[:, None]
            apart = torch.arange(keys, device=query.device) - token
            found = found.masked_fill(apart > keys - tokens, float("-inf"))
        best, order = torch.sort(found, dim=1, descending=True, stable=True)
        count = min(most, keys)
        best, order = best[:, :count], order[:, :count].to(torch.int32)
        places[own, :count] = order.masked_fill(best == float("-inf"), -1)
        if values is not None:
            values.view(-1, most)[own, :count] = best.to(values.dtype)
    return places.view(shape)


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
    rows = query.reshape(-1, *query.shape[-2:])
    factors = weights.reshape(-1, weights.shape[-1], 1)
    lengths = actual_seq_lengths_query, actual_seq_lengths_key
    requests = _requests(query, key, (layout_query, layout_key), lengths, block_table)

    def scores() -> Iterator[tuple[slice, torch.Tensor]]:
        for own in requests:
            products = torch.relu(rows[own.tokens].float() @ own.keys.float().t())
            yield own.tokens, (products * factors[own.tokens].float()).sum(1)

    shape = (*query.shape[:-2], 1, sparse_count)
    values = query.new_full(shape, float("-inf")) if return_value else None
    places = _rank(scores(), query, sparse_count, sparse_mode, values)
    return places, query.new_empty(0) if values is None else values


def quant_lightning_indexer(
    query: torch.Tensor,
    key: torch.Tensor,
    weights: torch.Tensor,
    query_dequant_scale: torch.Tensor,
    key_dequant_scale: torch.Tensor,
    query_quant_mode: int,
    key_quant_mode: int,
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
    query_dtype: int | None = None,  # noqa: ARG001
    key_dtype: int | None = None,  # noqa: ARG001
) -> torch.Tensor:
    """The indices of the best int8 keys of each token, best first, -1 for none.

    The types that may be named are those of later chips; here the tensors say theirs.
    """
    name = "npu_quant_lightning_indexer"
    _require_whole(name, sparse_mode, pre_tokens, next_tokens)
    require_option(name, "query_quant_mode", query_quant_mode, 0)
    require_option(name, "key_quant_mode", key_quant_mode, 0)
    _require_type(name, torch.int8, query=query, key=key)
    scales = {"query_dequant_scale": query_dequant_scale, "key_dequant_scale": key_dequant_scale}
    _require_type(name, torch.float16, weights=weights, **scales)
    rows = query.reshape(-1, *query.shape[-2:])
    factors = (weights * query_dequant_scale).reshape(-1, weights.shape[-1], 1)
    where = (layout_query, layout_key), (actual_seq_lengths_query, actual_seq_lengths_key)
    requests = (
        _requests(query, each, *where, block_table) for each in (key, key_dequant_scale[..., None])
    )

    def scores() -> Iterator[tuple[slice, torch.Tensor]]:
        for own, scale in zip(*requests, strict=True):
            # A power of two loses no bit, so that the product rounds once, as on the cube core.
            scaled = rows[own.tokens].half() * PRODUCT_SCALE
            products = torch.relu(scaled @ own.keys.half().t())
            total = (products.float() * factors[own.tokens].float()).sum(1)
            yield own.tokens, total * scale.keys.float().t()

    return _rank(scores(), query, sparse_count, sparse_mode)


# ---- attention to chosen keys ----


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
    whole = torch.cat([query, query_rope], -1), torch.cat([key, key_rope], -1)
    lengths = actual_seq_lengths_query, actual_seq_lengths_kv
    requests = _requests(*whole, (layout_query, layout_kv), lengths, block_table)
    output, largest, total = _attention(
        requests, whole[0], sparse_indices, scale_value, sparse_block_size, sparse_mode,
        query.shape[-1], torch.Tensor.float,
    )  # fmt: skip
    if not return_softmax_lse:
        none = largest.new_empty(0)
        return output, none, none
    # (requests, 1, tokens, heads), or (1, tokens, heads) in TND.
    axis = 0 if layout_query == "TND" else 1
    return output, largest.unsqueeze(axis), total.unsqueeze(axis)


def kv_quant_sparse_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,  # noqa: ARG001
    sparse_indices: torch.Tensor,
    scale_value: float,
    key_quant_mode: int,
    value_quant_mode: int,
    *,
    key_dequant_scale: torch.Tensor | None = None,  # noqa: ARG001
    value_dequant_scale: torch.Tensor | None = None,  # noqa: ARG001
    block_table: torch.Tensor | None = None,
    actual_seq_lengths_query: torch.Tensor | None = None,
    actual_seq_lengths_kv: torch.Tensor | None = None,
    sparse_block_size: int = 1,
    layout_query: str = "BSND",
    layout_kv: str = "BSND",
    sparse_mode: int = CAUSAL,
    pre_tokens: int = WHOLE,
    next_tokens: int = WHOLE,
    attention_mode: int = 0,
    quant_scale_repo_mode: int = COMBINED,
    tile_size: int = TILE,
    rope_head_dim: int = ROTATED,
    key_dtype: int | None = None,  # noqa: ARG001
    value_dtype: int | None = None,  # noqa: ARG001
) -> torch.Tensor:
    """The attention output over latent keys of int8, which hold their rotated part and scales.

    The keys without these are the values; *value* is not read (assumed), nor are the scales that
    are apart, which the combined mode does not use. Types to name are those of later chips.
    """
    name = "npu_kv_quant_sparse_flash_attention"
    _require_whole(name, sparse_mode, pre_tokens, next_tokens)
    require_option(name, "key_quant_mode", key_quant_mode, PER_TILE)
    require_option(name, "value_quant_mode", value_quant_mode, PER_TILE)
    require_option(name, "attention_mode", attention_mode, LATENT)
    require_option(name, "quant_scale_repo_mode", quant_scale_repo_mode, COMBINED)
    require_option(name, "tile_size", tile_size, TILE)
    require_option(name, "rope_head_dim", rope_head_dim, ROTATED)
    require_option(name, "sparse_block_size", sparse_block_size, *BLOCK_SIZES)
    _require_type(name, torch.int8, key=key)
    lengths = actual_seq_lengths_query, actual_seq_lengths_kv
    requests = _requests(query, key, (layout_query, layout_kv), lengths, block_table)
    return _attention(
        requests, query, sparse_indices, scale_value, sparse_block_size, sparse_mode,
        LATENT_COLUMNS, lambda keys: _dequantised(keys, query.dtype),
    )[0]  # fmt: skip


def _dequantised(keys: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Int8 *keys* in fp32, rounded to *dtype* as the kernel stores them between its two parts."""
    sizes = LATENT_COLUMNS, ROTATED * dtype.itemsize, LATENT_COLUMNS // TILE * 4
    latent, rotated, scales = (each.contiguous() for each in keys.split(sizes, -1))
    tiles = latent.float().unflatten(-1, (-1, TILE)) * scales.view(torch.float32)[..., None]
    return torch.cat([tiles.flatten(-2).to(dtype), rotated.view(dtype)], -1).float()


def _attention(
    requests: Iterable[_Request],
    query: torch.Tensor,
    sparse_indices: torch.Tensor,
    scale_value: float,
    block_size: int,
    sparse_mode: int,
    width: int,
    in_float: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output, maxima and sums of attention to keys, whose first *width* columns are values.

    *in_float* turns keys that were gathered into fp32.
    """
    q = query.reshape(-1, *query.shape[-2:])
    chosen = sparse_indices.reshape(q.shape[0], sparse_indices.shape[-1])
    output = q.new_zeros((*q.shape[:-1], width))
    largest, total = (q.new_zeros(q.shape[:-1], dtype=torch.float32) for _ in range(2))
    for own in requests:
        tokens, keys = own.tokens.stop - own.tokens.start, own.keys.shape[0]
        for first in range(0, tokens if chosen.numel() else 0, TOKENS_AT_ONCE):
            last = min(first + TOKENS_AT_ONCE, tokens)
            here = slice(own.tokens.start + first, own.tokens.start + last)
            places = _places(chosen[here].long(), block_size)
            seen = (places >= 0) & (places < keys)
            if sparse_mode == CAUSAL:
                token = torch.arange(first, last, device=q.device)[:, None]
                seen = seen & (places <= keys - tokens + token)
            taken = in_float(own.keys[places.clamp(0, keys - 1)])
            found = _attend(q[here].float() * scale_value, taken, seen, width, query.dtype)
            output[here], largest[here], total[here] = found
    rows = query.shape[:-1]
    return output.reshape(*rows, width), largest.reshape(rows), total.reshape(rows)


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
