"""The words of an engine's file for multi-head latent attention (MLA).

In decode, queries are multiplied with the latent rows of the KV cache: the weights that would
expand keys and values are absorbed, `q (m, n, nope) @ W_UK (n, nope, rank)`. In prefill, keys and
values are expanded.
"""

from __future__ import annotations

from typing import Any

from npusim.data.integers import ceil_div
from npusim.models.chain import EPSILON, PAGE, Chain, Word
from npusim.models.shapes import Latent
from npusim.models.words import MASK, product
from npusim.models.words import WORDS as COMMON

__all__ = ["WORDS"]


def _latent(own: Chain) -> Latent:
    found = own.rank.shapes.attention
    assert isinstance(found, Latent)
    return found


def _count(own: Chain) -> int:
    return own.rank.share(_latent(own).count)


def _qkv_a(own: Chain) -> None:
    latent = _latent(own)
    columns = (latent.q_rank or 0) + latent.kv_rank + latent.rope
    if latent.q_rank is None:
        columns += _count(own) * (latent.nope + latent.rope)
    own["latent"] = product(own, own["rows"], columns)
    width = columns - latent.kv_rank - latent.rope
    own["rows"], own["row_scale"] = own.spec(own.rank.tokens, width), None


def _slice_latent(own: Chain) -> None:
    latent, both = _latent(own), own["latent"]
    width = both.shape[-1] - latent.kv_rank - latent.rope
    own["rows"] = own.kernel("narrow", both, 1, 0, width, fresh="x")
    own.kernel("narrow", both, 1, width, latent.kv_rank + latent.rope, fresh="x")


def _q_a_norm(own: Chain) -> None:
    rows = own["rows"]
    if _latent(own).q_rank is not None:
        weight = own.spec(rows.shape[-1])
        own["rows"] = own.kernel("npu_rms_norm", rows, weight, EPSILON, fresh="x")[0]


def _q_b(own: Chain) -> None:
    latent = _latent(own)
    if latent.q_rank is not None:
        product(own, own["rows"], _count(own) * (latent.nope + latent.rope))


def _absorb_k(own: Chain) -> None:
    latent, tokens = _latent(own), own.rank.tokens
    queries = own.spec(tokens, _count(own), latent.nope)
    _absorb(own, queries, own.spec(_count(own), latent.nope, latent.kv_rank))


def _absorb_v(own: Chain) -> None:
    latent, tokens = _latent(own), own.rank.tokens
    heads = own.spec(tokens, _count(own), latent.kv_rank)
    _absorb(own, heads, own.spec(_count(own), latent.kv_rank, latent.value))
    own["rows"] = own.spec(tokens, _count(own) * latent.value)


def _absorb(own: Chain, x: object, weight: object) -> None:
    """Multiply each head by its weight: a product batched over heads, between transpositions."""
    turn: dict[str, Any] = {"perm_x1": [1, 0, 2], "perm_x2": [0, 1, 2], "perm_y": [1, 0, 2]}
    own.kernel("npu_transpose_batchmatmul", x, weight, fresh="input", **turn)


def _latent_rope(own: Chain) -> None:
    latent, tokens = _latent(own), own.rank.tokens
    queries, key = own.spec(tokens, _count(own), latent.rope), own.spec(tokens, 1, latent.rope)
    turn = own.spec(tokens, 1, latent.rope)
    args = queries, key, turn, turn, "TND"
    own.kernel("npu_apply_rotary_pos_emb", *args, fresh="query key", stands_for="InterleaveRope")


def _kv_norm_rope_cache(own: Chain) -> None:
    latent, rank = _latent(own), own.rank
    begin = len(own.launched)
    rows = own.spec(rank.tokens, latent.kv_rank)
    own.kernel("npu_rms_norm", rows, own.spec(latent.kv_rank), EPSILON, fresh="x")
    pages = rank.requests * ceil_div(rank.context, PAGE)
    new = own.spec(rank.tokens, 1, latent.kv_rank), own.spec(rank.tokens, 1, latent.rope)
    caches = own.spec(pages, PAGE, 1, latent.kv_rank), own.spec(pages, PAGE, 1, latent.rope)
    slots = own.spec(rank.tokens, dtype="int32")
    own.kernel(
        "npu_scatter_pa_kv_cache", *new, *caches, slots, cache_mode="Norm", fresh="key value"
    )
    own.one(own.parts(begin), "KvRmsNormRopeCache")


def _mla_preprocess(own: Chain) -> None:
    """One kernel for everything before attention, which starts once."""
    is_int8 = own.rank.quant != "float"
    quantised = ("quantize",) if is_int8 else ()
    begin = len(own.launched)
    for word in (*quantised, "qkv_a", "slice_latent", "q_a_norm", *quantised, "q_b"):
        (COMMON.get(word) or WORDS[word])(own)
    for word in ("absorb_k", "latent_rope", "kv_norm_rope_cache"):
        WORDS[word](own)
    if is_int8:
        own.one(own.parts(begin), "MlaPreprocess")


def _latent_attention(own: Chain) -> None:
    latent, rank = _latent(own), own.rank
    pages, tokens = rank.requests * ceil_div(rank.context, PAGE), rank.requests * rank.new
    keys, turned = own.spec(pages, PAGE, latent.kv_rank), own.spec(pages, PAGE, latent.rope)
    own.kernel(
        "npu_fused_infer_attention_score_v2",
        *(own.spec(tokens, _count(own), latent.kv_rank), keys, keys),
        query_rope=own.spec(tokens, _count(own), latent.rope),
        key_rope=turned,
        block_table=own.spec(rank.requests, pages // rank.requests, dtype="int32"),
        actual_seq_qlen=[*range(rank.new, tokens + 1, rank.new)],
        actual_seq_kvlen=[rank.context] * rank.requests,
        num_query_heads=_count(own),
        num_key_value_heads=1,
        softmax_scale=(latent.nope + latent.rope) ** -0.5,
        input_layout="TND",
        block_size=PAGE,
        sparse_mode=0,
        fresh="query query_rope",
    )


def _expand_kv(own: Chain) -> None:
    latent, tokens = _latent(own), own.rank.tokens
    columns = _count(own) * (latent.nope + latent.value)
    weight = own.spec(columns, latent.kv_rank).T
    expanded = own.kernel("matmul", own.spec(tokens, latent.kv_rank), weight, fresh="x1")
    for start, width in ((0, latent.nope), (latent.nope, latent.value)):
        own.kernel("narrow", expanded, 1, start, _count(own) * width, fresh="x")


def _expanded_attention(own: Chain) -> None:
    latent, tokens = _latent(own), own.rank.tokens
    count, head = _count(own), latent.nope + latent.rope
    own.kernel(
        "npu_fused_infer_attention_score_v2",
        *(own.spec(tokens, count, head), own.spec(tokens, count, head)),
        own.spec(tokens, count, latent.value),
        atten_mask=own.spec(MASK, MASK, dtype="int8"),
        actual_seq_qlen=[own.rank.new],
        actual_seq_kvlen=[own.rank.context],
        num_query_heads=count,
        num_key_value_heads=count,
        softmax_scale=head**-0.5,
        input_layout="TND",
        sparse_mode=3,
        fresh="query key value",
    )
    own["rows"] = own.spec(tokens, count * latent.value)


def _zero_heads(own: Chain) -> None:
    latent = _latent(own)
    own.kernel("fill", own.spec(own.rank.tokens, _count(own) * latent.value), 0.0)


def _copy_rows(own: Chain) -> None:
    own["rows"] = own.kernel("clone", own["rows"], fresh="x")


WORDS: dict[str, Word] = {
    "qkv_a": _qkv_a,
    "slice_latent": _slice_latent,
    "q_a_norm": _q_a_norm,
    "q_b": _q_b,
    "absorb_k": _absorb_k,
    "absorb_v": _absorb_v,
    "latent_rope": _latent_rope,
    "kv_norm_rope_cache": _kv_norm_rope_cache,
    "mla_preprocess": _mla_preprocess,
    "latent_attention": _latent_attention,
    "expand_kv": _expand_kv,
    "expanded_attention": _expanded_attention,
    "zero_heads": _zero_heads,
    "copy_rows": _copy_rows,
}
