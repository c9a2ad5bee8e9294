"""Recipes of attention, of its caches and its rotations."""

from __future__ import annotations

import numpy as np
from drawing import Arguments, Draw, recipe

__all__: list[str] = []

TEMPLATES = ("FAI", "FAI-FD", "FAI-DEC", "FIA", "IFA", "IFA-ATB")


def _causal(draw: Draw, dtype: str = "int8") -> object:
    return draw.tensor((2048, 2048), dtype, "causal")


def _behind_each_other(draw: Draw) -> Arguments:
    """Tokens of all requests in TND, their keys in pages or not."""
    is_decoding = draw.chance(0.35)
    heads, group = draw.pick(1, 2), draw.pick(1, 2, 3, 4)
    size, dtype = draw.pick(16, 32, 64, 128, 256), draw.half()
    requests = draw.integer(1, 4)
    if is_decoding and draw.chance(0.4):
        requests = draw.integer(24, 30)
    tokens = [1 if is_decoding else draw.integer(1, 40) for _ in range(requests)]
    most = 60 if requests > 10 else 300
    keys = [count + draw.integer(0, most) for count in tokens]
    if draw.chance(0.15):
        # Some rows see no key.
        keys[0] = draw.integer(0, tokens[0])
    is_split = requests < 4 and draw.chance(0.3)
    if is_split:
        tokens = [min(count, 8) for count in tokens]
        keys[0] = draw.integer(1024, 1400)
    mode = draw.pick(0, 3, 3, 4)
    found: Arguments = {
        "query": draw.tensor((sum(tokens), heads * group, size), dtype),
        "actual_seq_lengths": np.cumsum(tokens).tolist(), "num_heads": heads * group,
        "num_key_value_heads": heads, "scale": size**-0.5, "input_layout": "TND",
        "sparse_mode": mode,
    }  # fmt: skip
    if mode:
        found["atten_mask"] = _causal(draw, draw.pick("int8", "uint8"))
    if mode == 4:
        found |= {"pre_tokens": draw.integer(0, 60), "next_tokens": draw.integer(0, 60)}
    if draw.chance(0.2):
        found["inner_precise"] = draw.integer(0, 2)
    if draw.chance(0.2):
        found["softmax_lse_flag"] = True
    if draw.chance(0.75) or is_split:
        found |= _pages(draw, keys, heads, size, dtype, draw.pick(128, 128, 16, 64))
    else:
        for name in ("key", "value"):
            found[name] = draw.tensor((sum(keys), heads, size), dtype)
        found["actual_seq_lengths_kv"] = np.cumsum(keys).tolist()
    return found


def _decoding(draw: Draw) -> Arguments:
    """A token of each of so many requests that all cores have one, without a mask."""
    heads, group, size, dtype = draw.pick(1, 2), draw.pick(1, 2, 4), draw.pick(32, 64), draw.half()
    requests = draw.integer(24, 32)
    keys = [draw.integer(1, 200) for _ in range(requests)]
    return {
        "query": draw.tensor((requests, heads * group, size), dtype),
        "actual_seq_lengths": list(range(1, requests + 1)), "num_heads": heads * group,
        "num_key_value_heads": heads, "scale": size**-0.5, "input_layout": "TND", "sparse_mode": 0,
        **_pages(draw, keys, heads, size, dtype, 128, may_have_heads_first=False),
    }  # fmt: skip


def _pages(
    draw: Draw, keys: list[int], heads: int, size: int, dtype: str, block: int, *,
    may_have_heads_first: bool = True,
) -> Arguments:  # fmt: skip
    """Keys and values of each request in blocks of a cache, which lie anywhere."""
    needed = [-(-length // block) for length in keys]
    blocks = draw.rng.permutation(sum(needed) + 2)
    table = np.zeros((len(needed), max(needed) + draw.integer(0, 1)), np.int64)
    first = 0
    for row, count in zip(table, needed, strict=True):
        row[:count] = blocks[first : first + count]
        first += count
    shape: tuple[int, ...] = len(blocks), block, heads * size
    if may_have_heads_first and draw.chance(0.1):
        shape = len(blocks), heads, block, size
    return {
        "key": draw.tensor(shape, dtype), "value": draw.tensor(shape, dtype),
        "block_table": draw.listed(table, "int32"), "block_size": block,
        "actual_seq_lengths_kv": list(keys),
    }  # fmt: skip


def _shape(layout: str, requests: int, heads: int, length: int, size: int) -> tuple[int, ...]:
    if layout == "BNSD":
        return requests, heads, length, size
    own = (heads * size,) if layout == "BSH" else (heads, size)
    return requests, length, *own


def _in_a_layout(draw: Draw) -> Arguments:
    """A few requests of as many tokens each, with any mask."""
    heads, group = draw.pick(1, 2), draw.pick(1, 3)
    size, dtype = draw.pick(16, 32, 64, 64, 128, 512), draw.half()
    layout = draw.pick("BSH", "BSND", "BNSD", "BSND_BNSD")
    requests, tokens = draw.integer(1, 3), draw.pick(1, draw.size(60))
    # Of one token modes do not count, and a mask is one of (requests, keys).
    mode = draw.pick(0, 0, 1, 2, 3, 4) if tokens > 1 else draw.pick(0, 1)
    if layout == "BSND_BNSD":
        size = draw.pick(64, 128)
    keys = draw.pick(draw.size(100), draw.integer(200, 1100))
    query = _shape(layout, requests, heads * group, tokens, size)
    own = _shape(layout, requests, heads, keys, size)
    mask = _causal(draw, "uint8")
    if mode < 2:
        rows = tokens + draw.integer(0, 3) if tokens > 1 or "_" in layout else requests
        columns = keys + draw.integer(0, 9)
        mask = draw.tensor((rows, columns), "uint8", "chance", high=0.2)
        if "_" in layout:
            mask = draw.tensor((1, rows, columns), "uint8", "chance", high=0.2)
    found: Arguments = {
        "query": draw.tensor(query, dtype), "key": draw.tensor(own, dtype),
        "value": draw.tensor(own, dtype), "num_heads": heads * group,
        "num_key_value_heads": heads, "scale": size**-0.5, "input_layout": layout,
        "sparse_mode": mode,
    }  # fmt: skip
    if mode or draw.chance(0.4):
        found["atten_mask"] = mask
    if mode in (0, 4) and draw.chance(0.5):
        found |= {"pre_tokens": draw.integer(10, 40), "next_tokens": draw.integer(-10, 40)}
    if draw.chance(0.3):
        found["inner_precise"] = draw.pick(0, 1, 2)
    if draw.chance(0.3):
        found["softmax_lse_flag"] = True
    if draw.chance(0.3):
        least = draw.pick(0, 1)
        found["actual_seq_lengths_kv"] = [draw.integer(least, keys) for _ in range(requests)]
    return found


def _of_int8(draw: Draw) -> Arguments:
    """A token of some requests to keys and values of int8."""
    heads, group = draw.pick(1, 2), draw.pick(1, 3)
    size, dtype, mode = draw.pick(32, 64), draw.half(), draw.integer(0, 1)
    layout, requests = draw.pick("BSH", "BSND", "BNSD"), draw.integer(1, 4)
    keys = draw.pick(draw.size(120), draw.integer(200, 1100))
    own = _shape(layout, requests, heads, keys, size)
    columns = {"BSH": (heads * size,), "BSND": (heads, size)}.get(layout, (heads, 1, size))
    shape: tuple[int, ...] = draw.pick((2, *columns), (2,))
    scale = draw.positive(shape, dtype, 0.1)
    if mode:
        scale = draw.positive((2, requests, keys), "float32", 0.1)
    found: Arguments = {
        "query": draw.tensor(_shape(layout, requests, heads * group, 1, size), dtype),
        "key": draw.integers(own), "value": draw.integers(own),
        "antiquant_scale": scale, "antiquant_mode": mode, "num_heads": heads * group,
        "num_key_value_heads": heads, "scale": size**-0.5, "input_layout": layout,
    }  # fmt: skip
    if draw.chance(0.3):
        found["actual_seq_lengths_kv"] = [draw.integer(1, keys) for _ in range(requests)]
    if not mode and layout == "BSH" and draw.chance(0.4):
        lengths = [draw.integer(1, 200) for _ in range(requests)]
        paged = _pages(draw, lengths, heads, size, "int8", 32 * draw.pick(1, 4))
        cache = paged["key"].shape
        found |= paged | {"key": draw.integers(cache), "value": draw.integers(cache)}
    return found


def _with_offsets(draw: Draw) -> Arguments:
    """Tokens of requests in TND to keys and values of int8 in pages, which are dequantised."""
    heads, group, size, dtype = draw.pick(1, 2), draw.pick(1, 3), draw.pick(32, 64), draw.half()
    tokens = [draw.integer(1, 30) for _ in range(draw.integer(1, 3))]
    keys = [count + draw.integer(0, 400) for count in tokens]
    found: Arguments = {
        "query": draw.tensor((sum(tokens), heads * group, size), dtype),
        "actual_seq_lengths": np.cumsum(tokens).tolist(), "num_heads": heads * group,
        "num_key_value_heads": heads, "scale": size**-0.5, "input_layout": "TND",
        "sparse_mode": draw.pick(0, 3),
        **_pages(draw, keys, heads, size, "int8", 32 * draw.pick(1, 4), may_have_heads_first=False),
    }  # fmt: skip
    if found["sparse_mode"]:
        found["atten_mask"] = _causal(draw)
    for name in ("key", "value"):
        found[name] = draw.integers(found[name].shape)
        found[f"{name}_antiquant_scale"] = draw.positive((1, heads * size), "float32", 0.1)
        found[f"{name}_antiquant_offset"] = draw.tensor((heads, size), "float32")
    return found


@recipe("npu_fused_infer_attention_score")
def fused_infer_attention(draw: Draw) -> Arguments:
    kinds = _behind_each_other, _in_a_layout, _decoding, _of_int8, _with_offsets
    found = draw.in_turn(*kinds, _behind_each_other)(draw)
    if draw.chance(0.15):
        found["template"] = draw.pick(*TEMPLATES)
    return found


V2 = {
    "actual_seq_lengths": "actual_seq_qlen", "num_heads": "num_query_heads",
    "actual_seq_lengths_kv": "actual_seq_kvlen", "scale": "softmax_scale",
    "softmax_lse_flag": "return_softmax_lse",
}  # fmt: skip


@recipe("npu_fused_infer_attention_score_v2")
def fused_infer_attention_v2(draw: Draw) -> Arguments:
    found = draw.in_turn(_behind_each_other, _in_a_layout, _decoding, _behind_each_other)(draw)
    if draw.chance(0.15):
        found["template"] = draw.pick(*TEMPLATES)
    return {V2.get(name, name): value for name, value in found.items()}


@recipe("npu_incre_flash_attention")
def incre_flash_attention(draw: Draw) -> Arguments:
    found = _of_int8(draw)
    found["scale_value"] = found.pop("scale")
    if found.pop("antiquant_mode"):
        found["antiquant_scale"] = draw.positive((2,), found["query"].dtype, 0.1)
    if "actual_seq_lengths_kv" in found:
        found["actual_seq_lengths"] = found.pop("actual_seq_lengths_kv")
    return found


def _for_training(draw: Draw) -> Arguments:
    heads, group = draw.pick(1, 2), draw.pick(1, 1, 2)
    size, dtype, requests = draw.pick(16, 64, 128), draw.half(), draw.integer(1, 3)
    tokens, keys = draw.size(90), draw.pick(draw.size(90), draw.integer(1000, 1300))
    layout = draw.pick("BSH", "SBH", "BSND", "BNSD")

    def shape(count: int, length: int) -> tuple[int, ...]:
        return {
            "BSH": (requests, length, count * size), "SBH": (length, requests, count * size),
            "BSND": (requests, length, count, size), "BNSD": (requests, count, length, size),
        }[layout]  # fmt: skip

    found: Arguments = {
        "query": draw.tensor(shape(heads * group, tokens), dtype),
        "key": draw.tensor(shape(heads, keys), dtype),
        "value": draw.tensor(shape(heads, keys), dtype),
        "head_num": heads * group, "input_layout": layout, "scale": size**-0.5,
    }  # fmt: skip
    mode = draw.integer(-1, 4)
    if mode in (0, 1):
        own = draw.pick((tokens, keys), (requests, 1, tokens, keys))
        found |= {"atten_mask": draw.tensor(own, "uint8", "chance", high=0.3), "sparse_mode": mode}
        found["inner_precise"] = draw.pick(0, 2)
    elif mode > 1:
        found |= {"atten_mask": _causal(draw, "uint8"), "sparse_mode": mode}
    count = heads * group
    if draw.chance(0.3):
        shape_of_bias = draw.pick(1, requests), count, draw.pick(1, tokens), keys
        found["pse"] = draw.tensor(shape_of_bias, dtype)
    if draw.chance(0.3):
        least = -(-requests * count * tokens * keys // 8)
        bits = draw.integers((least,), "uint8", 0, 256)
        found |= {"keep_prob": draw.pick(0.5, 0.9), "dropout_mask": bits}
    return found


@recipe("npu_fusion_attention")
def fusion_attention(draw: Draw) -> Arguments:
    found = _for_training(draw)
    if found.get("sparse_mode") == 4:
        found |= {"pre_tockens": draw.integer(0, 50), "next_tockens": draw.integer(0, 9)}
    return found


@recipe("npu_fusion_attention_v2")
def fusion_attention_v2(draw: Draw) -> Arguments:
    if draw.chance(0.6):
        found = _for_training(draw)
        if found.get("sparse_mode") == 4:
            found |= {"pre_tokens": draw.integer(0, 50), "next_tokens": draw.integer(0, 9)}
        return found
    lengths = [draw.integer(0, 60) for _ in range(draw.integer(1, 4))]
    lengths[0] += 1
    heads, dtype, sums = draw.pick(1, 2), draw.half(), np.cumsum(lengths).tolist()
    shapes = {"query": 128, "key": 128, "value": 128, "query_rope": 64, "key_rope": 64}
    tensors = {name: draw.tensor((sums[-1], heads, n), dtype) for name, n in shapes.items()}
    return tensors | {
        "head_num": heads, "input_layout": "TND", "atten_mask": _causal(draw, "uint8"),
        "sparse_mode": 3, "actual_seq_qlen": sums, "actual_seq_kvlen": sums,
        "softmax_layout": draw.pick("", "TND"),
    }  # fmt: skip


@recipe("npu_fusion_attention_grad")
def fusion_attention_grad(draw: Draw) -> Arguments:
    return _of_gradient(draw, fusion_attention(draw))


@recipe("npu_fusion_attention_grad_v2")
def fusion_attention_grad_v2(draw: Draw) -> Arguments:
    found = _for_training(draw)
    if found.get("sparse_mode") == 4:
        found |= {"pre_tokens": draw.integer(0, 50), "next_tokens": draw.integer(0, 9)}
    return _of_gradient(draw, found)


def _of_gradient(draw: Draw, found: Arguments) -> Arguments:
    """Arguments of a forward call as those of its gradient, with results of forward."""
    query, layout = found["query"], found["input_layout"]
    requests, tokens = query.shape[layout.index("B")], query.shape[layout.index("S")]
    sums = (requests, found["head_num"], tokens, 8)
    results = {name: draw.tensor(query.shape, query.dtype) for name in ("dy", "attention_in")}
    found["scale_value"] = found.pop("scale")
    return found | results | {
        "softmax_max": draw.tensor(sums, "float32", "blocks", high=2),
        "softmax_sum": draw.tensor(sums, "float32", "blocks", low=9, high=2),
    }  # fmt: skip


# ---- rotations and caches ----


@recipe("npu_kv_rmsnorm_rope_cache")
def kv_rmsnorm_rope_cache(draw: Draw) -> Arguments:
    dtype, batches, tokens = draw.half(), draw.pick(draw.integer(1, 9), 40), draw.size(20)
    mode, block, lines = draw.pick("Norm", "PA", "PA_BNSD"), 16, draw.pick(1, tokens)
    count = -(-batches * tokens // block) + draw.integer(0, 2)
    rows = (batches, 1, tokens) if mode == "Norm" else (count, block, 1)
    places = np.tile(np.arange(tokens), (batches, 1))
    if mode != "Norm":
        places = draw.rng.permutation(count * block)[: batches * tokens]
    return {
        "kv": draw.tensor((batches, 1, tokens, 576), dtype), "gamma": draw.tensor((512,), dtype),
        "cos": draw.tensor((batches, 1, lines, 64), dtype),
        "sin": draw.tensor((batches, 1, lines, 64), dtype), "index": draw.listed(places),
        "k_cache": draw.tensor((*rows, 64), dtype), "ckv_cache": draw.tensor((*rows, 512), dtype),
        "cache_mode": mode, "is_output_kv": draw.chance(0.4),
    }  # fmt: skip


@recipe("npu_interleave_rope")
def interleave_rope(draw: Draw) -> Arguments:
    b, n, s = draw.pick(draw.integer(1, 60), 32), draw.pick(draw.integer(1, 9), 32), draw.size(20)
    if draw.chance(0.2):
        b, n, s = 2, 3, draw.integer(500, 700)
    dtype, lines = draw.half(), draw.pick(1, s)
    shapes = {"x": (b, n, s, 64), "cos": (b, 1, lines, 64), "sin": (b, 1, lines, 64)}
    return {name: draw.tensor(shape, dtype) for name, shape in shapes.items()}


@recipe("npu_rotary_mul")
def rotary_mul(draw: Draw) -> Arguments:
    dtype, mode = draw.floating(), draw.pick("half", "half", "interleave")
    b, n, s = draw.integer(1, 4), draw.integer(1, 5), draw.size(40)
    d = 2 * draw.integer(2, 64) if draw.chance(0.7) else 64
    if mode == "interleave" and draw.chance(0.6):
        b, n, s, d = draw.in_turn((13, 1, 1, 894), (1, 1, 13, 894), (1, 1, 2, 128))
        kind = draw.half()
        turns = {name: draw.tensor((1, 1, 1, d), kind) for name in ("r1", "r2")}
        return {"self": draw.numbers((b, n, s, d), kind, 4), **turns, "rotary_mode": mode}
    x = draw.pick((b, n, s, d), (b, s, n, d), (s, b, n, d))
    own = [1, 1, 1, d]
    for axis in range(3):
        if draw.chance(0.4):
            own[axis] = x[axis]
    kind = "float32" if draw.chance(0.1) else dtype
    return {
        "self": draw.numbers(x, dtype, 4), "r1": draw.tensor(tuple(own), kind),
        "r2": draw.tensor(tuple(own), kind), "rotary_mode": mode,
    }  # fmt: skip


@recipe("npu_rotary_mul_backward")
def rotary_mul_backward(draw: Draw) -> Arguments:
    given = rotary_mul(draw)
    return {"grad": given["self"], **given, "needs_angles": draw.chance(0.6)}


@recipe("npu_apply_rotary_pos_emb")
def apply_rotary_pos_emb(draw: Draw) -> Arguments:
    dtype, width = draw.floating(), draw.pick(64, 128, 128)
    b, s = draw.integer(1, 4), draw.size(60)
    heads = {"query": draw.integer(1, 8), "key": draw.integer(1, 3), "cos": 1, "sin": 1}
    return {name: draw.tensor((b, s, count, width), dtype) for name, count in heads.items()} | (
        {"layout": "BSND"} if draw.chance(0.3) else {}
    )


@recipe("npu_reshape_and_cache")
def reshape_and_cache(draw: Draw) -> Arguments:
    return _cache(draw)


def _cache(draw: Draw) -> Arguments:
    """New tokens, and pages that are fractals of columns or whole tokens."""
    dtype = draw.pick("float16", "int8") if draw.is_old else draw.pick(
        "float16", "bfloat16", "int8"
    )  # fmt: skip
    tokens, heads, block = draw.size(60), draw.integer(1, 4), 16 * draw.integer(1, 8)
    width = 32 * draw.integer(1, 6)
    blocks = -(-tokens // block) + draw.integer(0, 3)
    slots = draw.rng.permutation(blocks * block)[:tokens]
    found: Arguments = {}
    is_fractal = draw.chance(0.4)
    own = 32 // (1 if dtype == "int8" else 2)
    for name in ("key", "value"):
        found[name] = _numbers(draw, (tokens, heads, width), dtype)
    for name in ("key_cache", "value_cache"):
        shape: tuple[int, ...] = (blocks, block, heads, width)
        if is_fractal:
            shape = (blocks, heads * width // own, block, own)
        found[name] = _numbers(draw, shape, dtype, "FRACTAL_NZ" if is_fractal else "ND")
    if draw.only_times and draw.chance(0.4):
        return found | {"slot_indices": draw.tensor((tokens,), "int32")}
    return found | {"slot_indices": draw.listed(slots, "int32")}


def _numbers(draw: Draw, shape: tuple[int, ...], dtype: str, layout: str = "ND") -> object:
    if dtype == "int8":
        return draw.integers(shape, layout=layout)
    return draw.tensor(shape, dtype, layout=layout)


@recipe("npu_scatter_pa_kv_cache")
def scatter_pa_kv_cache(draw: Draw) -> Arguments:
    found = _cache(draw)
    slots = found.pop("slot_indices")
    is_fractal = found["key_cache"].layout != "ND"
    if slots.how == "listed" and draw.chance(0.3):
        slots = draw.listed([-1, *slots.listed[1:]], "int32")
    return found | {"slot_mapping": slots, "cache_mode": "PA_NZ" if is_fractal else "Norm"}
