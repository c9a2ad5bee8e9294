"""Recipes of what routes tokens to experts and back."""

from __future__ import annotations

import numpy as np
from drawing import Arguments, Draw, recipe

__all__: list[str] = []

FLOATS = ("float16", "bfloat16", "float32")


@recipe("npu_moe_gating_top_k")
def gating_top_k(draw: Draw) -> Arguments:
    rows, dtype = draw.size(60), draw.pick(*FLOATS)
    if draw.chance(0.25):
        return {
            "x": draw.tensor((rows, 256), dtype, high=2), "k": draw.integer(1, 32), "k_group": 4,
            "group_count": 8, "group_select_mode": 1, "norm_type": 1,
            "bias": draw.tensor((256,), dtype),
        }  # fmt: skip
    if draw.chance(0.2):
        experts, groups, chosen, k = 256, 8, 4, 8
    else:
        groups = draw.pick(1, 1, draw.integer(2, 6))
        experts = groups * draw.integer(1, 40)
        chosen = draw.integer(1, groups)
        k = draw.integer(1, min(32, max(1, chosen * experts // groups)))
    found: Arguments = {
        "x": draw.tensor((rows, experts), dtype, high=2), "k": k, "k_group": chosen,
        "group_count": groups, "group_select_mode": draw.integer(0, 1),
        "norm_type": draw.integer(0, 1),
    }  # fmt: skip
    if draw.chance(0.5):
        found["bias"] = draw.tensor((experts,), dtype)
    if draw.chance(0.3):
        found["out_flag"] = True
    if draw.chance(0.3):
        found["routed_scaling_factor"] = draw.pick(2.5, 16.0)
    return found


@recipe("npu_moe_gating_top_k_softmax")
def gating_top_k_softmax(draw: Draw) -> Arguments:
    experts = draw.size(200)
    shape = draw.pick((draw.size(60), experts), (draw.integer(1, 4), draw.size(20), experts))
    found: Arguments = {"x": draw.tensor(shape, draw.pick(*FLOATS), draw.pick("normal", "rows"))}
    if draw.chance(0.5):
        found["finished"] = draw.tensor(shape[:-1], "uint8", "chance", high=0.3)
    return found | {"k": draw.integer(1, min(experts, 16))}


@recipe("npu_moe_init_routing_v2")
def init_routing(draw: Draw) -> Arguments:
    tokens, k, width = draw.size(90), draw.integer(1, 6), draw.size(200)
    experts = draw.integer(2, 40)
    tokens = min(tokens, 150)
    if draw.only_times and draw.chance(0.12):
        tokens, k, width = draw.integer(700, 1000), 8, draw.integer(8, 32)
    if draw.chance(0.06):
        return _one_token(draw)
    write = draw.tensor if draw.chance(0.2) else draw.known
    found: Arguments = {
        "expert_idx": write((tokens, k), "int32", "integers", low=0, high=experts),
        "expert_num": experts, "expert_tokens_num_type": draw.integer(0, 2),
        "expert_tokens_num_flag": draw.chance(0.6),
    }  # fmt: skip
    dtype = draw.pick(*FLOATS)
    match draw.integer(0, 3):
        case 0:
            found |= {"drop_pad_mode": 1, "expert_capacity": draw.integer(1, tokens)}
            if draw.chance(0.5):
                found["scale"] = draw.positive((tokens,), "float32", 1)
        case 1:
            found["quant_mode"] = 1
            if draw.chance(0.6):
                found["scale"] = draw.positive((draw.pick(1, experts), width), "float32", 1)
        case 2:
            if draw.chance(0.3):
                dtype = "int8"
            if draw.chance(0.5):
                found["scale"] = draw.positive((tokens,), "float32", 1)
            first = draw.integer(0, experts - 1)
            found["active_expert_range"] = (first, draw.integer(first + 1, experts))
    if "drop_pad_mode" not in found:
        found["row_idx_type"] = draw.integer(0, 1)
    x = draw.integers((tokens, width)) if dtype == "int8" else draw.tensor(
        (tokens, width), dtype, "normal"
    )  # fmt: skip
    return {"x": x} | found


def _one_token(draw: Draw) -> Arguments:
    """The call that a separate kernel takes."""
    width, k, experts = 7168, 8, 256
    return {
        "x": draw.tensor((1, width), "bfloat16"),
        "expert_idx": draw.known((1, k), "int32", "permutation", high=experts),
        "scale": draw.positive((experts, width), "float32", 1), "expert_num": experts,
        "expert_tokens_num_type": 2, "expert_tokens_num_flag": True, "quant_mode": 1,
        "row_idx_type": draw.integer(0, 1),
    }  # fmt: skip


@recipe("npu_moe_init_routing")
def init_numbered_routing(draw: Draw) -> Arguments:
    tokens, k = draw.size(90), draw.integer(1, 6)
    return {
        "x": draw.tensor((tokens, draw.size(200)), draw.pick(*FLOATS)),
        "row_idx": draw.listed(np.arange(tokens * k).reshape(k, tokens).T, "int32"),
        "expert_idx": draw.known((tokens, k), "int32", "integers", low=0, high=30),
        "active_num": draw.pick(tokens, draw.integer(1, tokens)),
    }


@recipe("npu_moe_compute_expert_tokens")
def compute_expert_tokens(draw: Draw) -> Arguments:
    experts, rows = draw.integer(1, 64), draw.size(600)
    chosen = np.sort(draw.rng.integers(0, experts, rows))
    return {"sorted_expert_for_source_row": draw.listed(chosen, "int32"), "num_expert": experts}


@recipe("npu_moe_token_permute")
def token_permute(draw: Draw) -> Arguments:
    tokens, k, dtype = draw.size(90), draw.integer(1, 6), draw.pick(*FLOATS)
    shape = draw.pick((tokens, k), (tokens,))
    write = draw.tensor if draw.chance(0.2) else draw.known
    return {
        "tokens": draw.tensor((tokens, draw.size(200)), dtype),
        "indices": write(shape, draw.pick("int32", "int64"), "integers", low=0, high=30),
    }


@recipe("npu_moe_re_routing")
def re_routing(draw: Draw) -> Arguments:
    ranks, experts, kind = draw.integer(1, 12), draw.integer(1, 8), draw.pick("int32", "int64")
    most, width = draw.integer(1, 12), draw.size(200)
    rows = ranks * experts * (most - 1) + draw.integer(0, 5)
    found: Arguments = {
        "tokens": draw.tensor((max(1, rows), width), draw.pick("float16", "bfloat16", "int8")),
        "expert_token_num_per_rank": draw.known(
            (ranks, experts), kind, "integers", low=0, high=most
        ),
    }
    if draw.chance(0.6):
        found["per_token_scales"] = draw.tensor((max(1, rows),), "float32")
    return found


@recipe("npu_moe_token_unpermute")
def token_unpermute(draw: Draw) -> Arguments:
    tokens, k = draw.size(60), draw.integer(1, 6)
    rows, width, dtype = tokens * k, draw.size(200), draw.pick(*FLOATS)
    left = draw.integer(1, rows) if draw.chance(0.3) else rows
    found: Arguments = {
        "permuted_tokens": draw.tensor((left, width), dtype),
        "sorted_indices": draw.known((rows,), "int32", "permutation", high=rows),
    }
    if draw.chance(0.7):
        found["probs"] = draw.known((tokens, k), draw.pick(*FLOATS), "chance", high=0.7)
    return found


@recipe("npu_moe_finalize_routing")
def finalize_routing(draw: Draw) -> Arguments:
    tokens, k, width = draw.size(60), draw.integer(1, 5), draw.size(200)
    dtype, rows = draw.pick(*FLOATS), tokens * k
    experts = draw.integer(1, 8)
    found: Arguments = dict.fromkeys(("skip1", "skip2", "bias", "export_for_source_row"))
    found["expanded_permuted_rows"] = draw.tensor((rows, width), dtype)
    if k > 1 or draw.chance(0.7):
        found["scales"] = draw.tensor((tokens, k), dtype)
    else:
        found["scales"] = None
    if draw.chance(0.5):
        found["skip1"] = draw.tensor((tokens, width), dtype)
        if draw.chance(0.5):
            found["skip2"] = draw.tensor((tokens, width), dtype)
    if draw.chance(0.5) and found["scales"] is not None:
        found["bias"] = draw.tensor((experts, width), dtype)
        found["export_for_source_row"] = draw.known(
            (tokens, k), "int32", "integers", low=0, high=experts
        )
    mode = draw.pick(0, 0, 2, 1, 3)
    if mode in (1, 3):
        capacity = -(-rows // experts)
        shape = (experts, capacity, width)
        found["expanded_permuted_rows"] = draw.tensor(shape, dtype)
    where = draw.known((rows,), "int32", "permutation", high=rows)
    order = ("expanded_permuted_rows", "skip1", "skip2", "bias", "scales")
    ordered = {name: found[name] for name in order}
    return ordered | {
        "expanded_src_to_dst_row": where,
        "export_for_source_row": found["export_for_source_row"], "drop_pad_mode": mode,
    }  # fmt: skip
