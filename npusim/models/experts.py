"""The words of an engine's file for a mixture of experts.

Rows are spread evenly over the experts that are chosen at all: if each token chooses k of E experts
at random, `E (1 - k / E) ** tokens` experts get no row, and their weights are not read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.errors import OpError
from npusim.data.integers import ceil_div
from npusim.data.tensor import TensorSpec
from npusim.models.chain import Chain, Word
from npusim.models.shapes import Experts
from npusim.models.words import WORDS as COMMON
from npusim.models.words import product

__all__ = ["WORDS"]


def _experts(own: Chain) -> Experts:
    experts = own.rank.shapes.experts
    assert experts is not None
    return experts


def _local(own: Chain) -> int:
    """The number of experts on a card."""
    return ceil_div(_experts(own).count, own.rank.ep)


def _intermediate(own: Chain) -> int:
    """The part of an expert's width on a card: all of it if the experts are split over cards."""
    return (
        own.rank.share(_experts(own).intermediate)
        if own.rank.ep == 1
        else (_experts(own).intermediate)
    )


def _rows(own: Chain) -> int:
    """Rows of the experts on a card."""
    chosen = own.rank.gathered * _experts(own).chosen
    return max(1, round(chosen * _local(own) / _experts(own).count))


def _ends(own: Chain) -> Array:
    """The ends of the rows of each local expert."""
    experts, local, rows = _experts(own), _local(own), _rows(own)
    idle = (1 - experts.chosen / experts.count) ** own.rank.gathered
    busy = min(rows, max(1, round(local * (1 - idle))))
    ends = np.minimum(np.arange(1, local + 1) * rows // busy, rows)
    return ends.astype(np.int64)


# ---- the gate ----


def _gate_cast(own: Chain) -> None:
    own["gate_rows"] = own.kernel("cast", own["rows"], "float32", fresh="x")


def _gate(own: Chain) -> None:
    rows = own["gate_rows"]
    weight = own.spec(_experts(own).count, rows.shape[-1], dtype=rows.dtype).T
    own["scores"] = own.kernel("matmul", rows, weight, fresh="x1")


def _gate_short(own: Chain) -> None:
    weight = own.spec(_experts(own).count, own.rank.shapes.hidden).T
    own["scores"] = own.kernel("matmul", own["rows"], weight, fresh="x1")


def _gating_top_k(own: Chain) -> None:
    experts, scores = _experts(own), own["scores"]
    grouped: dict[str, Any] = {"k_group": experts.chosen_groups, "group_count": experts.groups}
    if experts.groups > 1:
        grouped["group_select_mode"] = 1
    norm_type = int(experts.is_sigmoid)
    own.kernel(
        "npu_moe_gating_top_k", scores, experts.chosen, norm_type=norm_type, fresh="x", **grouped
    )


def _gating_softmax(own: Chain) -> None:
    k = _experts(own).chosen
    own.kernel("npu_moe_gating_top_k_softmax", own["scores"], k=k, fresh="x")


def _ids_cast(own: Chain) -> None:
    own.kernel("cast", _choice(own, "float32"), "int32", fresh="x")


def _weights_cast(own: Chain) -> None:
    own.kernel("cast", _choice(own, ""), "float32", fresh="x")


def _choice(own: Chain, dtype: str) -> TensorSpec:
    return own.spec(own.rank.tokens, _experts(own).chosen, dtype=dtype)


# ---- tokens to experts and back ----


def _gather_tokens(own: Chain) -> None:
    rank = own.rank
    if rank.ep > 1:
        own.collective("all_gather", rank.tokens * rank.shapes.hidden * 2, rank.dp)


def _scatter_tokens(own: Chain) -> None:
    rank = own.rank
    if rank.ep > 1:
        own.collective("reduce_scatter", rank.tokens * rank.shapes.hidden * 2, rank.dp)


def _init_routing(own: Chain, quant_mode: int = -1) -> None:
    experts, rank = _experts(own), own.rank
    x = own.spec(rank.gathered, rank.shapes.hidden)
    local: dict[str, Any] = {"active_expert_range": [0, _local(own)]} if rank.ep > 1 else {}
    own.kernel(
        "npu_moe_init_routing_v2",
        *(x, own.spec(rank.gathered, experts.chosen, dtype="int32")),
        expert_num=experts.count,
        expert_tokens_num_flag=True,
        quant_mode=quant_mode,
        fresh="x expert_idx",
        **local,
    )
    _sorted_rows(own, "int8" if quant_mode == 1 else "")


def _init_routing_quant(own: Chain) -> None:
    _init_routing(own, 1)


def _sorted_rows(own: Chain, dtype: str) -> None:
    own["rows"] = own.spec(_rows(own), own.rank.shapes.hidden, dtype=dtype)
    own["row_scale"] = own.spec(_rows(own), dtype="float32")


def _counts_cast(own: Chain) -> None:
    own.kernel("cast", own.spec(_local(own), dtype="int32"), "float32", fresh="x",
               stands_for="Cast to int64")  # fmt: skip


def _counts_sum(own: Chain) -> None:
    counts = own.spec(1, _local(own), dtype="float32")
    own.kernel("sum", counts, -1, fresh="x", stands_for="Cumsum")


def _pad_tokens(own: Chain) -> None:
    rank = own.rank
    if rank.tp > 1 and rank.tokens % rank.tp:
        padded = own.spec(ceil_div(rank.tokens, rank.tp) * rank.tp, rank.shapes.hidden)
        own.kernel("clone", padded, fresh="x", stands_for="PadV3")


def _unpermute(own: Chain) -> None:
    rank, experts = own.rank, _experts(own)
    rows = own.spec(rank.gathered * experts.chosen, rank.shapes.hidden)
    index = own.spec(rank.gathered * experts.chosen, dtype="int32")
    weights = own.spec(rank.gathered, experts.chosen)
    args = rows, None, None, None, weights, index, None, 2
    fresh, stands_for = "expanded_permuted_rows scales", "MoeTokenUnpermute"
    own.kernel("npu_moe_finalize_routing", *args, fresh=fresh, stands_for=stands_for)
    own["rows"] = own.spec(rank.tokens, rank.shapes.hidden)


def _abs_index(own: Chain) -> None:
    index = own.spec(own.rank.gathered * _experts(own).chosen, dtype="float32")
    own.kernel("abs", index, fresh="x", stands_for="Abs of int32")


def _sent_bytes(own: Chain, bytes_each: int) -> int:
    rank, experts = own.rank, _experts(own)
    return ceil_div(rank.tokens, rank.tp) * experts.chosen * rank.shapes.hidden * bytes_each


def _dispatch(own: Chain) -> None:
    is_int8 = own.rank.quant.startswith("w8a8")
    own.route("dispatch", _sent_bytes(own, 1 if is_int8 else 2), own.rank.ep)
    _sorted_rows(own, "int8" if is_int8 else "")


def _combine(own: Chain) -> None:
    own.route("combine", _sent_bytes(own, 2), own.rank.ep)
    own["rows"] = own.spec(own.rank.tokens, own.rank.shapes.hidden)


def _all_gather(own: Chain) -> None:
    rank = own.rank
    own.collective("all_gather", ceil_div(rank.tokens, rank.tp) * rank.shapes.hidden * 2, rank.tp)


def _all_to_all(own: Chain) -> None:
    own.collective("all_to_all", _experts(own).count * 8, own.rank.ep)
    own.collective("all_to_all", _sent_bytes(own, 2), own.rank.ep)


def _all_to_all_back(own: Chain) -> None:
    own.collective("all_to_all", _sent_bytes(own, 2), own.rank.ep)


# ---- the experts' products ----


def _experts_up(own: Chain) -> None:
    own["rows"] = _grouped(own, 2 * _intermediate(own))


def _experts_down(own: Chain) -> None:
    own["rows"] = _grouped(own, own.rank.shapes.hidden)


def _grouped(own: Chain, columns: int) -> TensorSpec:
    x, local = own["rows"], _local(own)
    options: dict[str, Any] = {"group_list": _ends(own), "split_item": 3, "group_type": 0}
    found: TensorSpec
    if x.dtype == "int8":
        weight = TensorSpec((local, x.shape[-1], columns), "int8", "FRACTAL_NZ")
        options |= {"scale": [own.spec(local, columns)], "per_token_scale": [own["row_scale"]]}
        options |= {"output_dtype": own.rank.real, "fresh": "x per_token_scale"}
        found = own.kernel("npu_grouped_matmul", [x], [weight], **options)
        return found
    weight = TensorSpec((local, x.shape[-1], columns), own.rank.real)
    found = own.kernel("npu_grouped_matmul", [x], [weight], fresh="x", **options)
    return found


def _experts_up_swiglu_quant(own: Chain) -> None:
    """Use separate kernels if the fused one does not accept the sizes."""
    x, local, columns = own["rows"], _local(own), 2 * _intermediate(own)
    weight = TensorSpec((local, x.shape[-1], columns), "int8", "FRACTAL_NZ")
    scale = own.spec(local, columns, dtype="float32")
    try:
        found = own.kernel(
            "npu_grouped_matmul_swiglu_quant",
            *(x, weight, _ends(own), scale, own["row_scale"]),
            fresh="x x_scale",
        )
    except OpError:
        begin = len(own.launched)
        for word in (_experts_up, COMMON["swiglu"], COMMON["dynamic_quant"]):
            word(own)
        own.one(own.parts(begin), "GroupedMatmulSwigluQuant")
        return
    own["rows"], own["row_scale"] = found[:2]


# ---- the shared expert ----


def _has_shared(own: Chain) -> bool:
    return _experts(own).shared_intermediate > 0


def _shared(word: str) -> Word:
    """*word* on the rows of the shared expert; nothing in models without a shared expert."""

    def launch(own: Chain) -> None:
        if not _has_shared(own):
            return
        rows, scale = own["rows"], own.scale
        if "shared" not in own:
            own["shared"], own["shared_scale"] = rows, scale
        own["rows"], own["row_scale"] = own["shared"], own["shared_scale"]
        SHARED[word](own)
        own["shared"], own["shared_scale"] = own["rows"], own["row_scale"]
        own["rows"], own["row_scale"] = rows, scale

    return launch


def _shared_gate_up(own: Chain) -> None:
    intermediate = own.rank.share(_experts(own).shared_intermediate)
    own["rows"] = product(own, own["rows"], 2 * intermediate)


SHARED: dict[str, Word] = {
    "shared_quant": COMMON["dynamic_quant"],
    "shared_gate_up": _shared_gate_up,
    "shared_swiglu": COMMON["swiglu"],
    "shared_swiglu_quant": COMMON["swiglu_quant"],
    "shared_down": COMMON["down"],
}


def _muls_add(own: Chain) -> None:
    if _has_shared(own):
        rows = own["rows"]
        own["rows"] = own.kernel("add", rows, rows, fresh="x other", stands_for="muls_add")


WORDS: dict[str, Word] = {
    "gate_cast": _gate_cast,
    "gate": _gate,
    "gate_short": _gate_short,
    "gating_top_k": _gating_top_k,
    "gating_softmax": _gating_softmax,
    "ids_cast": _ids_cast,
    "weights_cast": _weights_cast,
    "gather_tokens": _gather_tokens,
    "scatter_tokens": _scatter_tokens,
    "init_routing": _init_routing,
    "init_routing_quant": _init_routing_quant,
    "counts_cast": _counts_cast,
    "counts_sum": _counts_sum,
    "pad_tokens": _pad_tokens,
    "experts_up": _experts_up,
    "experts_swiglu": COMMON["swiglu"],
    "experts_swiglu_quant": COMMON["swiglu_quant"],
    "experts_quant": COMMON["dynamic_quant"],
    "experts_up_swiglu_quant": _experts_up_swiglu_quant,
    "experts_down": _experts_down,
    "abs_index": _abs_index,
    "unpermute": _unpermute,
    "dispatch": _dispatch,
    "combine": _combine,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "all_to_all_back": _all_to_all_back,
    "muls_add": _muls_add,
} | {word: _shared(word) for word in SHARED}
