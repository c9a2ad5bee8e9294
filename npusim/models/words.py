"""The words of an engine's file for norms, products, heads, and both ends."""

from __future__ import annotations

from typing import Any

from npusim.data.integers import ceil_div
from npusim.data.tensor import TensorSpec
from npusim.models.chain import EPSILON, PAGE, Chain, Word
from npusim.models.shapes import Heads

__all__ = ["WORDS", "product"]

GROUP = 128
"""Rows of an int4 weight that share a scale."""
ROPE_HEADS = (64, 128)
"""Head sizes that npu_apply_rotary_pos_emb accepts."""
FUSED_HEAD = 128
"""The only head size of the fused kernel of norms and rope (vllm-ascend, compilation/passes)."""
MASK = 2048
"""Rows and columns of the causal mask, which do not depend on the lengths (aclnn, sparse mode 3).
"""


# ---- norms and quantisation ----


def _rms_norm(own: Chain) -> None:
    rows = own["rows"]
    if "residual" not in own:
        own["residual"] = rows
    own["rows"] = own.kernel("npu_rms_norm", rows, own.spec(rows.shape[-1]), EPSILON, fresh="x")[0]


def _rms_norm_quant(own: Chain) -> None:
    """MindIE's one kernel for both."""
    begin = len(own.launched)
    _rms_norm(own)
    _quantize(own)
    own.one(own.parts(begin), "RmsNorm with quantisation")


def _add(own: Chain) -> None:
    own["residual"] = own["rows"] = own.kernel("add", own["rows"], own["residual"], fresh="x other")


def _add_rms_norm(own: Chain) -> None:
    rows = own["rows"]
    args = rows, own["residual"], own.spec(rows.shape[-1]), EPSILON
    own["rows"], _, own["residual"] = own.kernel("npu_add_rms_norm", *args, fresh="x1 x2")


def _add_rms_norm_quant(own: Chain) -> None:
    if own.rank.is_310p:  # which has no such fused kernel (vllm-ascend, compilation/passes)
        _add_rms_norm(own)
        _quantize(own)
        return
    rows = own["rows"]
    weight, scale = own.spec(rows.shape[-1]), own.spec(rows.shape[-1])
    found = own.kernel(
        "npu_add_rms_norm_quant",
        *(rows, own["residual"], weight, scale, own.spec(rows.shape[-1])),
        epsilon=EPSILON,
        fresh="x1 x2",
    )
    own["rows"], own["residual"], own["row_scale"] = found[0], found[-1], None


def _add_rms_norm_dynamic_quant(own: Chain) -> None:
    rows = own["rows"]
    found = own.kernel(
        "npu_add_rms_norm_dynamic_quant",
        *(rows, own["residual"], own.spec(rows.shape[-1])),
        epsilon=EPSILON,
        output_mask=[True, False],
        fresh="x1 x2",
    )
    own["rows"], own["residual"] = found[0], found[2]
    own["row_scale"] = own.spec(rows.shape[0], dtype="float32")


def _output_norm(own: Chain) -> None:
    if own.rank.shapes.has_output_norms:
        rows = own["rows"]
        weight = own.spec(rows.shape[-1])
        own["rows"] = own.kernel("npu_rms_norm", rows, weight, EPSILON, fresh="x")[0]


def _quantize(own: Chain) -> None:
    rows = own["rows"]
    scale = own.spec(1)
    options: dict[str, Any] = {"dtype": "qint8", "axis": -1, "div_mode": False}
    own["rows"], own["row_scale"] = (
        own.kernel("npu_quantize", rows, scale, None, fresh="input", **options),
        None,
    )


def _dynamic_quant(own: Chain) -> None:
    own["rows"], own["row_scale"] = own.kernel("npu_dynamic_quant", own["rows"], fresh="x")


# ---- products ----


def product(own: Chain, x: TensorSpec, columns: int) -> TensorSpec:
    """*x* times a weight of this many *columns*, with the product that fits x and the model."""
    rows, real = x.shape[-1], own.rank.real
    if x.dtype == "int8":
        return _int8_product(own, x, columns)
    if own.rank.quant == "w4a16":
        packed = own.spec(rows, columns // 8, dtype="int32")
        scale = own.spec(rows // GROUP, columns)
        found: TensorSpec = own.kernel(
            *("npu_weight_quant_batchmatmul", x, packed, scale),
            antiquant_group_size=GROUP,
            fresh="x",
        )
        return found
    weight = TensorSpec((columns, rows), real).T
    if own.rank.has_nz_weights:
        weight = TensorSpec((rows, columns), real, "FRACTAL_NZ")
    plain: TensorSpec = own.kernel("matmul", x, weight, fresh="x1")
    return plain


def _int8_product(own: Chain, x: TensorSpec, columns: int) -> TensorSpec:
    rows, real = x.shape[-1], own.rank.real
    nz = {"dtype": "int8", "layout": "FRACTAL_NZ"}
    found: TensorSpec
    if own.rank.is_310p:
        packed = own.spec(columns, dtype="int64")
        weight = own.spec(columns, rows, **nz).T
        found = own.kernel("npu_quant_matmul", x, weight, packed, output_dtype=real, fresh="x1")
        return found
    scale = own.spec(columns, dtype="float32")
    options: dict[str, Any] = {"fresh": "x1"}
    if own.scale is not None:
        options = {"pertoken_scale": own["row_scale"], "fresh": "x1 pertoken_scale"}
    weight = own.spec(rows, columns, **nz)
    found = own.kernel("npu_quant_matmul", x, weight, scale, output_dtype=real, **options)
    return found


def _heads(own: Chain) -> Heads:
    heads = own.rank.shapes.attention
    assert isinstance(heads, Heads)
    rank = own.rank
    count, kv_count = rank.share(heads.count), rank.share(heads.kv_count)
    return Heads(count, kv_count, heads.size, heads.has_norms, heads.window, heads.window_share)


def _qkv(own: Chain) -> None:
    heads = _heads(own)
    columns = (heads.count + 2 * heads.kv_count) * heads.size
    own["qkv"] = product(own, own["rows"], columns)


def _o(own: Chain) -> None:
    own["rows"] = product(own, own["rows"], own.rank.shapes.hidden)


def _gate_up(own: Chain) -> None:
    intermediate = own.rank.share(own.rank.shapes.intermediate)
    own["rows"] = product(own, own["rows"], 2 * intermediate)


def _swiglu(own: Chain) -> None:
    own["rows"] = own.kernel("npu_swiglu", own["rows"], fresh="x")


def _swiglu_quant(own: Chain) -> None:
    begin = len(own.launched)
    _swiglu(own)
    _dynamic_quant(own)
    own.one(own.parts(begin), "SwigluQuant")


def _all_reduce(own: Chain) -> None:
    rank = own.rank
    own.collective("all_reduce", rank.tokens * rank.shapes.hidden * 2, rank.tp)


# ---- heads ----


def _part(own: Chain, name: str, start: int, count: int) -> None:
    size, tokens = _heads(own).size, own.rank.tokens
    part = own.kernel("narrow", own["qkv"], 1, start * size, count * size, fresh="x")
    own[name] = TensorSpec((tokens, count, size), part.dtype)


def _slice_q(own: Chain) -> None:
    _part(own, "q", 0, _heads(own).count)


def _slice_k(own: Chain) -> None:
    _part(own, "k", _heads(own).count, _heads(own).kv_count)


def _slice_v(own: Chain) -> None:
    heads = _heads(own)
    _part(own, "v", heads.count + heads.kv_count, heads.kv_count)


def _split(own: Chain) -> None:
    heads, tokens = _heads(own), own.rank.tokens
    own.kernel("clone", own["qkv"], fresh="x", stands_for="Split")
    for name, count in (("q", heads.count), ("k", heads.kv_count), ("v", heads.kv_count)):
        own[name] = own.spec(tokens, count, heads.size)


def _head_norm(own: Chain, name: str) -> None:
    if _heads(own).has_norms:
        part = own[name]
        own[name] = own.kernel("npu_rms_norm", part, own.spec(part.shape[-1]), EPSILON, fresh="x")[
            0
        ]


def _rope(own: Chain) -> None:
    """Heads of a size that the operator does not accept are rotated as several of 64 elements."""
    tokens, size, stands_for = own.rank.tokens, _heads(own).size, ""
    heads: tuple[TensorSpec, ...] = (own["q"], own["k"])
    if size not in ROPE_HEADS:
        times, size, stands_for = ceil_div(size, 64), 64, "_triton_rope"
        heads = tuple(own.spec(tokens, each.shape[1] * times, size) for each in heads)
    turn = own.spec(tokens, 1, size)
    args = *heads, turn, turn, "TND"
    own.kernel("npu_apply_rotary_pos_emb", *args, fresh="query key", stands_for=stands_for)


def _qk_norm_rope(own: Chain) -> None:
    """One kernel for what eager code does in six; the six if the fusion does not apply."""
    heads = _heads(own)
    begin = len(own.launched)
    if not heads.has_norms or heads.size != FUSED_HEAD or own.rank.is_310p:
        for word in ("slice_q", "q_norm", "slice_k", "k_norm", "rope", "slice_v"):
            WORDS[word](own)
        return
    _split(own)
    _head_norm(own, "q")
    _head_norm(own, "k")
    _rope(own)
    # It reads qkv once, and neither norms nor rotated heads go through memory in between.
    own.one(own.parts(begin)[1:], "split_qkv_rmsnorm_rope")
    del own.launched[begin]


def _qk_norm(own: Chain) -> None:
    """xlite's norm of the heads of queries and keys, in place."""
    heads, tokens = _heads(own), own.rank.tokens
    if heads.has_norms:
        both = own.spec(tokens * (heads.count + heads.kv_count), heads.size)
        weight = own.spec(heads.size)
        own.kernel("npu_rms_norm", both, weight, EPSILON, fresh="x", stands_for="qk_rms_norm")


def _rope_and_cache(own: Chain) -> None:
    """xlite's rotary embedding, which also writes the KV cache."""
    heads, tokens = _heads(own), own.rank.tokens
    for name, count in (("q", heads.count), ("k", heads.kv_count), ("v", heads.kv_count)):
        own[name] = own.spec(tokens, count, heads.size)
    begin = len(own.launched)
    _rope(own)
    _cache_write(own)
    own.one(own.parts(begin), "rope_and_cache")


def _caches(own: Chain) -> tuple[TensorSpec, TensorSpec, int]:
    rank, heads = own.rank, _heads(own)
    pages = rank.requests * ceil_div(rank.context, PAGE)
    shape = pages, PAGE, heads.kv_count, heads.size
    return own.spec(*shape), own.spec(*shape), pages


def _cache_write(own: Chain) -> None:
    keys, values, _ = _caches(own)
    slots = own.spec(own.rank.tokens, dtype="int32")
    op, mode = "npu_scatter_pa_kv_cache", {"cache_mode": "Norm"}
    if own.rank.is_310p:
        op, mode = "npu_reshape_and_cache", {}
    own.kernel(op, own["k"], own["v"], keys, values, slots, fresh="key value", **mode)


def _attention(own: Chain) -> None:
    heads, rank = _heads(own), own.rank
    own["rows"] = own.spec(rank.tokens, heads.count * heads.size)
    if rank.is_310p:
        begin = len(own.launched)
        _attention_310p(own, heads)
        own.one(own.parts(begin), "PagedAttention")
        return
    _, _, pages = _caches(own)
    shape = pages, PAGE, heads.kv_count * heads.size
    tokens = rank.requests * rank.new
    own.kernel(
        "npu_fused_infer_attention_score",
        *(own.spec(tokens, heads.count, heads.size), own.spec(*shape), own.spec(*shape)),
        atten_mask=own.spec(MASK, MASK, dtype="int8"),
        block_table=own.spec(rank.requests, pages // rank.requests, dtype="int32"),
        actual_seq_lengths=[*range(rank.new, tokens + 1, rank.new)],
        actual_seq_lengths_kv=[rank.context] * rank.requests,
        num_heads=heads.count,
        num_key_value_heads=heads.kv_count,
        scale=heads.size**-0.5,
        input_layout="TND",
        block_size=PAGE,
        sparse_mode=3,
        fresh="query",
    )


def _attention_310p(own: Chain, heads: Heads) -> None:
    """Attention as products and a softmax, with the KV cache of each request contiguous."""
    rank = own.rank
    groups = rank.requests * heads.kv_count
    rows = heads.count // heads.kv_count * rank.new
    left = own.spec(groups, rows, heads.size)
    right = TensorSpec((groups, heads.size, rank.context), rank.real, transposed=True)
    scores = own.kernel("matmul", left, right, fresh="x1")
    scores = own.kernel("softmax", scores, -1, fresh="x")
    right = own.spec(groups, rank.context, heads.size)
    own.kernel("matmul", scores, right, fresh="x1")


def _copy_heads(own: Chain) -> None:
    own["rows"] = own.kernel("clone", own["rows"], fresh="x")


# ---- both ends ----


def _embedding(own: Chain) -> None:
    shapes, rank = own.rank.shapes, own.rank
    words = own.spec(rank.share(shapes.vocabulary), shapes.hidden)
    ids = own.spec(rank.tokens, dtype="int64")
    own["rows"] = own.kernel("embedding", words, ids)


def _embedding_mask(own: Chain) -> None:
    """If the table is split, ids of other cards are masked, in eight kernels and one more."""
    if own.rank.tp == 1:
        return
    ids = own.spec(own.rank.tokens, dtype="int32")
    for _ in range(8):
        own.kernel("mul", ids, ids, fresh="x other", stands_for="a kernel of the mask of ids")


def _take_rows(own: Chain) -> None:
    rank = own.rank
    rows = own.spec(rank.tokens, rank.shapes.hidden)
    index = own.spec(rank.requests, dtype="int64")
    own["rows"] = own.kernel("index_select", rows, 0, index, fresh="x")


def _lm_head(own: Chain) -> None:
    shapes, rank = own.rank.shapes, own.rank
    columns = rank.share(shapes.vocabulary)
    weight = TensorSpec((columns, shapes.hidden), rank.real).T
    if own.rank.has_nz_head:
        weight = TensorSpec((shapes.hidden, columns), rank.real, "FRACTAL_NZ")
    rows = own.spec(rank.requests, shapes.hidden)
    own["rows"] = own.kernel("matmul", rows, weight, fresh="x1")


def _gather_logits(own: Chain) -> None:
    rank = own.rank
    if rank.tp > 1:
        columns = rank.share(rank.shapes.vocabulary)
        own.collective("all_gather", rank.requests * columns * 2, rank.tp)
        parts = own.spec(rank.tp, rank.requests, columns)
        own.kernel("permute", parts, (1, 0, 2), fresh="x")
    own["rows"] = own.spec(rank.requests, rank.share(rank.shapes.vocabulary) * rank.tp)


def _cast_logits(own: Chain) -> None:
    own["rows"] = own.kernel("cast", own["rows"], "float32", fresh="x")


def _argmax(own: Chain) -> None:
    own.kernel("argmax", own["rows"], -1, fresh="x")


def _rotary_tables(own: Chain) -> None:
    """Gather rows of cosines and sines for the positions."""
    heads, tokens = own.rank.shapes.attention, own.rank.tokens
    size = heads.size if isinstance(heads, Heads) else heads.rope
    table = own.spec(own.rank.shapes.longest, size)
    own.kernel("index_select", table, 0, own.spec(tokens, dtype="int64"))


WORDS: dict[str, Word] = {
    "rms_norm": _rms_norm,
    "rms_norm_quant": _rms_norm_quant,
    "add": _add,
    "add_rms_norm": _add_rms_norm,
    "add_rms_norm_quant": _add_rms_norm_quant,
    "add_rms_norm_dynamic_quant": _add_rms_norm_dynamic_quant,
    "output_norm": _output_norm,
    "quantize": _quantize,
    "dynamic_quant": _dynamic_quant,
    "qkv": _qkv,
    "o": _o,
    "gate_up": _gate_up,
    "down": _o,
    "swiglu": _swiglu,
    "swiglu_quant": _swiglu_quant,
    "all_reduce": _all_reduce,
    "slice_q": _slice_q,
    "slice_k": _slice_k,
    "slice_v": _slice_v,
    "split": _split,
    "q_norm": lambda own: _head_norm(own, "q"),
    "k_norm": lambda own: _head_norm(own, "k"),
    "rope": _rope,
    "qk_norm_rope": _qk_norm_rope,
    "qk_norm": _qk_norm,
    "rope_and_cache": _rope_and_cache,
    "cache_write": _cache_write,
    "attention": _attention,
    "copy_heads": _copy_heads,
    "embedding": _embedding,
    "embedding_mask": _embedding_mask,
    "take_rows": _take_rows,
    "lm_head": _lm_head,
    "gather_logits": _gather_logits,
    "cast_logits": _cast_logits,
    "argmax": _argmax,
    "rotary_tables": _rotary_tables,
}
