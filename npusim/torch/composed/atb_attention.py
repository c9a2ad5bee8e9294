"""Attention of ATB with biases, latent keys or int8 caches, as products and softmax in float32.

ATB's kernels are not public. The softmax weights are rounded to the type of the query before they
are multiplied by the values, as in its kernels; bits may differ. Sources: op-plugin@517f2e7
ops/atb.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from npusim.torch.composed.attention import into
from npusim.torch.errors import require_option

__all__ = [
    "flash_attention_prefix_v2",
    "flash_attention_unpad_v2",
    "flash_attention_v2",
    "flash_attention_v3",
    "latent_attention",
    "paged_attention_mla",
    "paged_attention_quant",
    "paged_attention_v2",
    "ring_mla",
]

NORM, ALIBI, NORM_COMPRESS, ALIBI_COMPRESS, ALIBI_COMPRESS_SQRT = 1, 2, 3, 4, 5
"""ATB's mask types: a mask, a bias, a compressed causal mask, and two compressed biases made of
slopes and distances."""
HIDDEN = float("-inf")
INT8_LARGEST = 127
QUANT_QKV_ONLINE = 3
"""The quant_type whose weights are quantised while they are computed (op-plugin@517f2e7,
test/test_custom_ops/test_atb_paged_attention_quant.py)."""

Bias: TypeAlias = torch.Tensor | None


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, bias: Bias = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention output `(tokens, heads, columns)`, and the log-sum-exp of the scores.

    *k* and *v* may have fewer heads; *bias* is added to scores `(heads, tokens, keys)`.
    """
    scores = _scores(q, k) * scale
    if bias is not None:
        scores = scores + bias.float()
    lse = torch.logsumexp(scores, -1)
    weights = torch.softmax(scores, -1).to(q.dtype).float()
    found = weights @ _of_heads(v, q.shape[1]).float()
    return found.transpose(0, 1).to(q.dtype), lse.t()


def _of_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """`(heads, keys, columns)`: each head of *x* repeated for the query heads that share it."""
    return x.transpose(0, 1).repeat_interleave(heads // x.shape[1], 0)


def _scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    heads = _of_heads(k, q.shape[1])
    return q.transpose(0, 1).float() @ heads.float().transpose(1, 2)


def _bias(
    mask: Bias, slopes: Bias, mask_type: int, request: int, tokens: int, keys: int
) -> torch.Tensor | None:
    """The bias that is added to the scores of a request, or None."""
    if mask is None:
        return None
    if mask_type in (NORM, ALIBI):
        own = mask[min(request, mask.shape[0] - 1)] if mask.dim() == 4 else mask
        if mask.dim() == 3 and mask_type == NORM:
            own = mask[min(request, mask.shape[0] - 1)]
        return own[..., :tokens, :keys]
    row = torch.arange(keys - tokens, keys, device=mask.device)[:, None]
    apart = row - torch.arange(keys, device=mask.device)
    hidden = torch.zeros(apart.shape, device=mask.device).masked_fill(apart < 0, HIDDEN)
    if slopes is None:
        return hidden
    distance = apart.clamp_min(0).float()
    if mask_type == ALIBI_COMPRESS_SQRT:
        distance = distance.sqrt()
    return slopes.float()[:, None, None] * distance + hidden


def _numbers(lengths: Any) -> list[int]:
    return [int(x) for x in lengths]


def _read(cache: torch.Tensor, blocks: torch.Tensor, length: int, heads: int) -> torch.Tensor:
    """The first *length* keys of the pages *blocks*, or all if fewer: `(keys, heads, columns)`."""
    count = -(-length // cache.shape[1])
    rows = cache.index_select(0, blocks[:count].long()).flatten(0, 1)[:length]
    return rows.reshape(rows.shape[0], heads, -1)


def _paged(
    q: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    tables: torch.Tensor,
    lengths: tuple[Sequence[int], Sequence[int]],
    kv_heads: int,
    scale: float,
    masks: tuple[Bias, Bias, int] = (None, None, 0),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of the concatenated tokens `(tokens, heads, columns)` of all requests to keys in
    pages."""
    found, first = [], 0
    for request, (tokens, keys) in enumerate(zip(*lengths, strict=True)):
        own = q[first : first + tokens]
        k, v = (_read(cache, tables[request], keys, kv_heads) for cache in caches)
        found.append(attend(own, k, v, scale, _bias(*masks, request, tokens, k.shape[0])))
        first += tokens
    outputs, sums = zip(*found, strict=True)
    return torch.cat(outputs), torch.cat(sums)


def paged_attention_mla(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,  # noqa: ARG001
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    mla_vheadsize: int,
    out: torch.Tensor,
) -> None:
    """Attention of one token of each request to latent keys, whose first columns are the values."""
    keys = _numbers(context_lens)
    caches = key_cache, key_cache[..., :mla_vheadsize]
    lengths = [1] * len(keys), keys
    found, _ = _paged(query, caches, block_table, lengths, num_kv_heads, scale_value)
    into(out, found.reshape(out.shape))


def paged_attention_v2(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: Sequence[int],
    *,
    value_cache: torch.Tensor,
    mask: Bias = None,
    num_kv_heads: int = 0,
    num_heads: int = 0,
    scale_value: float = 1.0,
    mask_type: int = 0,
    workspace: torch.Tensor | None = None,  # noqa: ARG001
    out: torch.Tensor,
) -> torch.Tensor:
    """Attention of one token of each request; with biases if mask_type is 2."""
    keys = _numbers(context_lens)
    found, _ = _paged(
        query.reshape(len(keys), num_heads, -1),
        (key_cache, value_cache),
        block_table,
        ([1] * len(keys), keys),
        num_kv_heads or num_heads,
        scale_value,
        (mask, None, mask_type),
    )
    return into(out, found.reshape(out.shape))


def paged_attention_quant(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    quant_type: int,
    outdata_type: int,  # noqa: ARG001
    k_descale: torch.Tensor,
    v_descale: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Attention of one token of each request in int8: the softmax weights are quantised by the
    largest weight of a head. *out* has the type of the result."""
    require_option("_npu_paged_attention_quant", "quant_type", quant_type, QUANT_QKV_ONLINE)
    for request, length in enumerate(_numbers(context_lens)):
        k, v = (
            _read(cache, block_table[request], length, num_kv_heads)
            for cache in (key_cache, value_cache)
        )
        own = query[request : request + 1].reshape(1, num_heads, -1)
        scores = _scores(own, k) * k_descale.reshape(-1, 1, 1) * scale_value
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        largest = weights.amax(-1, keepdim=True)
        levels = (weights * (INT8_LARGEST / largest)).round()
        product = levels @ _of_heads(v, num_heads).float()
        product = product * (largest * v_descale.reshape(-1, 1, 1) / INT8_LARGEST)
        found = product / weights.sum(-1, keepdim=True)
        out[request] = found.transpose(0, 1).reshape(out[request].shape).to(out.dtype)


def flash_attention_v2(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seq_len: Sequence[int],
    *,
    mask: Bias = None,
    slopes: Bias = None,
    kernel_type: int = 0,  # noqa: ARG001
    mask_type: int = ALIBI,
    scale_value: float = 1,
    num_heads: int = 0,
    num_kv_heads: int = 0,
    out: torch.Tensor,
) -> torch.Tensor:
    """Attention of the concatenated tokens of all requests to the keys of the same tokens."""
    counts = num_heads, num_kv_heads or num_heads, num_kv_heads or num_heads
    q, k, v = (
        x.reshape(-1, heads, x.shape[-1] // heads if x.dim() == 2 else x.shape[-1])
        for x, heads in zip((query, key, value), counts, strict=True)
    )
    found, first = [], 0
    for request, length in enumerate(_numbers(seq_len)):
        here = slice(first, first + length)
        bias = _bias(mask, slopes, mask_type, request, length, length)
        found.append(attend(q[here], k[here], v[here], scale_value, bias)[0])
        first += length
    return into(out, torch.cat(found).reshape(out.shape))


def flash_attention_unpad_v2(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seq_len: torch.Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    *,
    kernel_type: int = 0,  # noqa: ARG001
    out: torch.Tensor,
) -> None:
    """:func:`flash_attention_v2` without a mask."""
    heads = {"num_heads": num_heads, "num_kv_heads": num_kv_heads}
    flash_attention_v2(
        query, key, value, seq_len.tolist(), scale_value=scale_value, **heads, out=out
    )


def flash_attention_v3(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    seq_len: torch.Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    *,
    mask_type: int = NORM_COMPRESS,
    out: torch.Tensor,
) -> None:
    """:func:`flash_attention_v2` with a causal mask."""
    heads = {"num_heads": num_heads, "num_kv_heads": num_kv_heads}
    masks = {"mask": mask, "mask_type": mask_type}
    lengths = seq_len.tolist()
    flash_attention_v2(
        query, key, value, lengths, scale_value=scale_value, **masks, **heads, out=out
    )


def flash_attention_prefix_v2(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    mask: torch.Tensor,
    seq_len: Sequence[int],
    context_lens: Sequence[int],
    *,
    slopes: Bias = None,
    kernel_type: int = 1,  # noqa: ARG001
    mask_type: int = NORM_COMPRESS,
    num_kv_heads: int = 0,
    num_heads: int = 0,
    scale_value: float = 1,
    out: torch.Tensor,
) -> torch.Tensor:
    """Attention of some tokens of each request to the keys in its pages, which end with the keys of
    these tokens."""
    lengths = _numbers(seq_len), _numbers(context_lens)
    q = query.reshape(sum(lengths[0]), num_heads, -1)
    masks = mask, slopes, mask_type
    caches, heads = (key_cache, value_cache), num_kv_heads or num_heads
    found, _ = _paged(q, caches, block_table, lengths, heads, scale_value, masks)
    return into(out, found.reshape(out.shape))


# ---- latent keys in two parts ----


def latent_attention(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    ctkv: torch.Tensor,
    k_rope: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: Sequence[int],
    q_headnum: int,
    qk_scale: float,
    kv_headnum: int,
    return_lse: bool = False,
    *,
    mask: Bias = None,
    qseqlen: Sequence[int] | None = None,
    cache_mode: str | None = None,
    output: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    **given: Any,
) -> Any:
    """npu_multi_head_latent_attention: the latent part of the keys is also the values; the rest is
    rotated."""
    if cache_mode not in (None, "krope_ctkv") or given.get("qk_descale") is not None:
        raise NotImplementedError(
            f"npu_multi_head_latent_attention: cache_mode must be krope_ctkv without int8, not "
            f"{cache_mode}: the order of other caches is not simulated; keep keys in ND"
        )
    keys = _numbers(context_lens)
    tokens = [1] * len(keys) if qseqlen is None else _numbers(qseqlen)
    q = torch.cat([q_nope, q_rope], -1).reshape(-1, q_headnum, q_nope.shape[-1] + q_rope.shape[-1])
    caches = torch.cat([ctkv, k_rope], -1), ctkv
    masks = (None, None, 0) if mask is None else (mask, None, NORM_COMPRESS)
    found, sums = _paged(q, caches, block_tables, (tokens, keys), kv_headnum, qk_scale, masks)
    found, sums = found.reshape(q_nope.shape), sums[..., None].to(q_rope.dtype)
    if output is not None:
        found = into(output, found)
    if lse is not None:
        sums = into(lse, sums.reshape(lse.shape))
    return (found, sums) if return_lse else found


def ring_mla(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    k_nope: torch.Tensor,
    k_rope: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    seqlen: torch.Tensor,
    head_num: int,
    kv_head_num: int,  # noqa: ARG001
    *,
    pre_out: torch.Tensor | None = None,
    prev_lse: torch.Tensor | None = None,
    qk_scale: float = 1,
    kernel_type: str | None = None,  # noqa: ARG001
    mask_type: str | None = None,
    input_layout: str | None = None,
    calc_type: str | None = None,
    output: torch.Tensor | None = None,
    softmax_lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to a part of the keys of each request, merged with the result of earlier parts."""
    require_option("npu_ring_mla", "input_layout", input_layout, None, "type_bsnd")
    q, k = torch.cat([q_nope, q_rope], -1), torch.cat([k_nope, k_rope], -1)
    both = seqlen.reshape(-1, seqlen.shape[-1]) if seqlen.dim() > 1 else seqlen[None]
    tokens, keys = _numbers(both[0]), _numbers(both[-1])
    found, first, at = [], 0, 0
    for own, seen in zip(tokens, keys, strict=True):
        bias = None
        if mask_type == "mask_type_triu":
            bias = _bias(mask, None, NORM_COMPRESS, 0, own, seen)
        part = slice(at, at + seen)
        found.append(attend(q[first : first + own], k[part], value[part], qk_scale, bias))
        first, at = first + own, at + seen
    outputs, sums = (torch.cat(each) for each in zip(*found, strict=True))
    lse = sums.t()
    if calc_type == "calc_type_default" and pre_out is not None and prev_lse is not None:
        joined = torch.logaddexp(prev_lse.float(), lse)
        before, after = ((x - joined).exp().t()[..., None] for x in (prev_lse.float(), lse))
        outputs = (pre_out.float() * before + outputs.float() * after).to(outputs.dtype)
        lse = joined
    outputs = outputs.reshape(-1, head_num, value.shape[-1])
    if output is not None and softmax_lse is not None:
        return into(output, outputs), into(softmax_lse, lse.reshape(softmax_lse.shape))
    return outputs, lse.contiguous()
