"""Whole traces of tiny calls, a line a micro-op: a change of cost, order or tiling shows as a diff.

`pytest --update-golden` rewrites the files in tests/golden.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from tiny import fewer_cores

from npusim import TensorSpec, run
from npusim.devices.schema import DeviceSpec

FOLDER = Path(__file__).parents[1] / "golden"


class Case(NamedTuple):
    """A call, and the chips whose traces of it are kept."""

    op: str
    what: str
    args: tuple[Any, ...]
    devices: tuple[str | DeviceSpec, ...]
    keywords: Mapping[str, Any] = MappingProxyType({})
    cores: int = 1000
    """How many of the first cores are kept; the others do the like."""


ALL = ("ascend310p3", "ascend910b2", "ascend910_9391")
CHANNEL = TensorSpec((40,), "float16")
CHANNEL_32 = TensorSpec((32,), "float16")
CHANNEL_24 = TensorSpec((24,), "float16")
ONE = TensorSpec((1,), "float32")
FIVE = TensorSpec((5,), "float32")
# One cube core, so that it has three blocks: two buffers in turn, and the first one once more.
A2 = fewer_cores("ascend910b2", aic=1, aiv=2)
INFERENCE = fewer_cores("ascend310p3", ai_core=1)
WIDE = TensorSpec((128, 520), "int8", "FRACTAL_NZ")
GROUPS = TensorSpec((2, 64), "bfloat16")
SQUARE = TensorSpec((64, 64), "int8").T
SMALL_NZ = TensorSpec((18, 40), "int8", "FRACTAL_NZ").T
NARROW = TensorSpec((18,), "float16")
IN_GROUPS = tuple(
    TensorSpec(shape, dtype)
    for shape, dtype in (((1, 128), "float16"), ((128, 8), "int32"), ((2, 64), "float16"))
)
OF_64 = {"antiquant_group_size": 64}
HEADS, LINE = TensorSpec((1, 2, 3, 64), "bfloat16"), TensorSpec((1, 1, 3, 64), "bfloat16")
NEW_TOKENS, SLOTS = TensorSpec((2, 1, 32), "float16"), np.array([3, 1], np.int32)
INDICES = TensorSpec((5,), "int64")


def _heads(count: int, dtype: str) -> TensorSpec:
    """So many heads of three tokens."""
    return TensorSpec((1, 3, count, 64), dtype)


ROWS_OF_HALVES, ROWS_OF_BYTES = (TensorSpec((20, 40), dtype) for dtype in ("float16", "int8"))
HALF_EXPERTS, BYTE_EXPERTS = (TensorSpec((2, 40, 260), dtype) for dtype in ("float16", "int8"))
GROUPED = {"group_list": np.array([0, 20]), "group_type": 0, "split_item": 3}
ATTENTION = {
    "atten_mask": TensorSpec((2048, 2048), "int8"),
    "num_key_value_heads": 1,
    "scale": 0.125,
    "input_layout": "TND",
    "sparse_mode": 3,
}
PAGES = {"block_table": np.array([[3, 1, 0], [2, 4, 0]], np.int32), "block_size": 16}
HALF_ROWS = TensorSpec((4, 72), "float16")
HALF_ROW = TensorSpec((72,), "float16")
BRAIN_ROWS = TensorSpec((4, 72), "bfloat16")
BRAIN_ROW = TensorSpec((72,), "bfloat16")
FULL_ROWS, FULL_ROW = TensorSpec((4, 72), "float32"), TensorSpec((72,), "float32")
SUM_OF_HALVES = HALF_ROWS, HALF_ROWS, HALF_ROW
SUM_OF_BRAINS = BRAIN_ROWS, BRAIN_ROWS, BRAIN_ROW
POINTS = TensorSpec((72,), "int32")
IN_COLUMNS = *SUM_OF_HALVES, FULL_ROW, POINTS
NORM_CASES = [
    Case("npu_rms_norm", "merged", (HALF_ROWS, HALF_ROW), (A2,), cores=1),
    Case("npu_rms_norm", "merged_in_planes", (FULL_ROWS, FULL_ROW), (A2,), cores=1),
    *(
        Case("npu_rms_norm", name, (BRAIN_ROWS, weights), (A2,), {"template": name}, 1)
        for name, weights in (
            ("normal", BRAIN_ROW), ("split_d", BRAIN_ROW), ("single_row", FULL_ROW),
        )
    ),
    Case("npu_rms_norm", "normal", (HALF_ROWS, HALF_ROW), (INFERENCE,)),
    *(
        Case("npu_add_rms_norm", name, SUM_OF_BRAINS, (A2,), {"template": name}, 1)
        for name in ("normal", "split_d", "merge_n")
    ),
    Case("npu_add_rms_norm", "single_n", tuple(
        TensorSpec((2, 72), "bfloat16") if x is BRAIN_ROWS else x for x in SUM_OF_BRAINS
    ), (A2,), cores=1),
    Case("npu_add_rms_norm", "multi_n", tuple(
        TensorSpec((*x.shape[:-1], 80), "float16") for x in SUM_OF_HALVES
    ), (A2, INFERENCE), cores=1),
    *(
        Case("npu_add_rms_norm_quant", name, IN_COLUMNS, (A2,), {"template": name}, 1)
        for name in ("normal", "split_d")
    ),
    Case("npu_add_rms_norm_quant", "single_n", tuple(
        TensorSpec((2, 72), "float16") if x is HALF_ROWS else x for x in IN_COLUMNS
    ), (A2,), {"beta": HALF_ROW}, 1),
    *(
        Case("npu_add_rms_norm_dynamic_quant", name, SUM_OF_BRAINS, (A2,), {"template": name}, 1)
        for name in ("normal", "single_row", "slice_d")
    ),
]  # fmt: skip
CASES = [
    *NORM_CASES,
    Case(
        "npu_quantize", "by_channel",
        (TensorSpec((1, 40), "float16"), CHANNEL, CHANNEL, "qint8", -1, False), ALL,
    ),
    Case(
        "npu_quantize", "int32",
        (TensorSpec((2, 40), "float32"), ONE, TensorSpec((1,), "int32"), "int32", 1, True), ALL,
    ),
    Case(
        "npu_group_quant", "empty_group",
        (TensorSpec((1, 16), "float16"), TensorSpec((2, 16), "float32"),
         np.array([0, 1], np.int32)), ALL[1:],
    ),
    Case("npu_dynamic_quant", "two_rows", (TensorSpec((2, 128), "bfloat16"),), ALL[1:]),
    Case("npu_dynamic_quant", "patches", (TensorSpec((10, 32), "float16"),), (INFERENCE,)),
    # Nine rows: eight at a time, and what is left to the last core.
    Case("npu_dynamic_quant", "rows_left", (TensorSpec((9, 64), "float16"),), (INFERENCE,)),
    Case("npu_dynamic_quant", "single_row", (TensorSpec((4, 4096), "float16"),), ALL[1:2]),
    *(
        Case(
            "npu_dynamic_quant", template, (TensorSpec((1, columns), "bfloat16"),), ALL[1:2],
            {"smooth_scales": TensorSpec((columns,), "bfloat16"), "template": template},
        )
        for template, columns in (("db", 72), ("base", 72), ("large", 10256))
    ),
    Case(
        "npu_dynamic_quant", "moe_large", (TensorSpec((1, 10256), "bfloat16"),), ALL[1:2],
        {"smooth_scales": TensorSpec((1, 10256), "bfloat16"), "template": "moe_large",
        "group_index": np.array([1], np.int32)},
    ),
    Case("npu_dynamic_quant", "long_rows", (TensorSpec((1, 4128), "float16"),), (INFERENCE,)),
    # Two rows of one core, each of another group.
    Case(
        "npu_dynamic_quant", "groups", (TensorSpec((96, 16), "bfloat16"),), ALL[1:2],
        {"smooth_scales": TensorSpec((96, 16), "bfloat16"), "dst_type": "quint4x2",
        "group_index": np.arange(1, 97, dtype=np.int32)}, 1,
    ),
    Case("npu_swiglu", "widened", (TensorSpec((3, 64), "float16"),), ALL),
    Case("npu_swiglu", "float32", (TensorSpec((2, 52), "float32"),), ALL[1:2]),
    Case("npu_rotary_mul", "half", (HEADS, LINE, LINE), ALL[1:2]),
    Case("npu_rotary_mul", "coupled", (_heads(2, "float16"), *[_heads(1, "float16")] * 2),
         (INFERENCE,)),
    *(
        Case(
            "npu_rotary_mul", template,
            (TensorSpec(x, "bfloat16"), *[TensorSpec((1, 1, 1, x[-1]), "bfloat16")] * 2),
            ALL[1:2], {"rotary_mode": "interleave"},
        )
        for template, x in (
            ("split_s", (1, 1, 2, 128)), ("split_bs", (13, 1, 1, 894)),
            ("split_bsn", (1, 1, 13, 894)),
        )
    ),
    Case(
        "npu_rotary_mul", "odd_halves",
        (TensorSpec((1, 2, 1, 20), "float32"), *[TensorSpec((1, 1, 1, 20), "float32")] * 2),
        ALL[1:2],
    ),
    *(
        Case("npu_apply_rotary_pos_emb", dtype, (_heads(2, dtype), *[_heads(1, dtype)] * 3),
             (A2, INFERENCE) if dtype == "float16" else (A2,))
        for dtype in ("float16", "bfloat16")
    ),
    *(
        Case("npu_scatter_pa_kv_cache", mode, (*[NEW_TOKENS] * 2, *[pages] * 2, SLOTS), (A2,),
             {"cache_mode": mode})
        for mode, pages in (
            ("Norm", TensorSpec((1, 4, 1, 32), "float16")),
            ("PA_NZ", TensorSpec((1, 2, 4, 16), "float16")),
        )
    ),
    *(
        Case(
            "npu_dequant_swiglu_quant", what, (TensorSpec((2, columns), dtype),), ALL[1:2],
            {name: TensorSpec(shape, "float32") for name, shape in more.items()}
            | {"quant_mode": mode},
        )
        for what, columns, dtype, mode, more in (
            ("dynamic", 64, "float16", 1, {"quant_scale": (32,)}),
            ("dynamic_long", 15808, "bfloat16", 1, {}),
            ("performance", 64, "int32", 1, {"weight_scale": (64,), "activation_scale": (2,)}),
            ("static", 64, "int32", 0,
             {"weight_scale": (64,), "bias": (64,), "quant_scale": (32,), "quant_offset": (32,)}),
        )
    ),
    Case(
        "npu_dequant_swiglu_quant", "groups", (TensorSpec((4, 128), "int32"),), ALL[1:2],
        {"weight_scale": TensorSpec((2, 128), "float32"), "group_index": np.array([3, 1]),
        "activation_scale": TensorSpec((4, 1), "float32"), "quant_mode": 1}, 1,
    ),
    Case(
        "npu_dequant_swiglu_quant", "whole_groups", (TensorSpec((64, 128), "int32"),), ALL[1:2],
        {"weight_scale": TensorSpec((32, 128), "float32"), "group_index": np.full(32, 2),
        "quant_scale": TensorSpec((32, 64), "float32"), "quant_mode": 1, "swiglu_mode": 1}, 1,
    ),
    # Two rows of a core, each of another group.
    *(
        Case(
            "npu_swiglu_quant", what, (TensorSpec((96, 32), "bfloat16"),), ALL[1:2],
            {"smooth_scales": TensorSpec((96, 16), "float32"), "quant_mode": mode}
            | {"group_index": np.arange(1, 97, dtype=np.int32)} | more, 1,
        )
        for what, mode, more in (
            ("dynamic", 1, {}), ("static", 0, {"offsets": TensorSpec((96, 16), "float32")}),
        )
    ),
    *(
        Case(
            "npu_dynamic_quant_asymmetric", template,
            (TensorSpec((rows, columns), "float16"),), ALL[1:2],
            {"smooth_scales": TensorSpec((rows, columns), "float16"), "template": template}
            | {"group_index": np.arange(1, rows + 1, dtype=np.int32)}
            if "moe" in template else {"template": template}, 1,
        )
        for template, rows, columns in (
            ("db", 97, 136), ("base", 1, 136), ("large", 1, 10256), ("moe", 96, 24),
            ("moe_large", 1, 10256),
        )
    ),
    *(
        Case(
            "npu_scatter_nd_update", template,
            (TensorSpec((rows, *[4] * (depth - 1), 32), "float16"), TensorSpec((3, depth), dtype),
             TensorSpec((3, 32), "float16")), (A2,),
        )
        for template, rows, depth, dtype in (
            ("sorted", 9, 2, "int64"), ("scanned", 2**24, 1, "int32"),
        )
    ),
    Case(
        "npu_moe_gating_top_k", "groups_of_32", (TensorSpec((1, 256), "bfloat16"), 8), (A2,),
        {"bias": TensorSpec((256,), "bfloat16"), "k_group": 4, "group_count": 8,
        "group_select_mode": 1, "norm_type": 1},
    ),
    Case("npu_moe_gating_top_k", "no_group", (TensorSpec((3, 72), "float16"), 2), (A2,)),
    Case(
        "npu_moe_gating_top_k", "any_groups", (TensorSpec((2, 60), "float32"), 4), (A2,),
        {"k_group": 2, "group_count": 3, "out_flag": True},
    ),
    *(
        Case("npu_moe_gating_top_k_softmax", dtype,
             (TensorSpec((3, 40), dtype), TensorSpec((3,), "uint8"), 2), (A2,))
        for dtype in ("float16", "bfloat16")
    ),
    Case("npu_moe_gating_top_k_softmax", "coupled", (TensorSpec((2, 80), "float16"), None, 2),
         (INFERENCE,)),
    # Core 0 sorts, the others copy; its share is one row.
    *(
        Case(
            "npu_moe_init_routing_v2", what,
            (TensorSpec((2, 40), "float16"), np.array([[2, 0], [1, 2]], np.int32)), ALL[1:2],
            {"expert_num": 3, "expert_tokens_num_flag": True} | more, 2,
        )
        for what, more in (
            ("rows", {}),
            ("quantised", {"quant_mode": 1, "scale": TensorSpec((2, 40), "float32"),
                           "active_expert_range": (1, 3), "expert_tokens_num_type": 2}),
            ("padded", {"drop_pad_mode": 1, "expert_capacity": 1,
                        "scale": TensorSpec((2,), "float32")}),
        )
    ),
    Case(
        "npu_moe_init_routing_v2", "full_load",
        (TensorSpec((2, 32), "float16"), np.array([[2, 0], [1, 2]], np.int32)), (INFERENCE,),
        {"expert_num": 3, "active_num": 0},
    ),
    Case(
        "npu_moe_token_permute", "two_tokens",
        (TensorSpec((2, 40), "float16"), np.array([[2, 0], [1, 2]], np.int32)), (A2,), cores=1,
    ),
    Case(
        "npu_moe_token_unpermute", "two_tokens",
        (TensorSpec((4, 40), "float16"), np.array([2, 0, 1, 4], np.int32),
         TensorSpec((2, 2), "float32")), (A2,),
    ),
    Case(
        "npu_moe_re_routing", "two_ranks",
        (TensorSpec((5, 40), "float16"), np.array([[1, 2], [2, 0]], np.int32)), (A2,),
        {"per_token_scales": TensorSpec((5,), "float32")},
    ),
    Case("npu_dynamic_block_quant", "blocks", (TensorSpec((2, 300), "bfloat16"),), (A2,), cores=1),
    Case("npu_dynamic_block_quant", "halves", (TensorSpec((2, 256), "float16"),), (A2,), cores=1),
    *(
        Case("npu_interleave_rope", name, (
            TensorSpec((batches, heads, tokens, 64), "float16"),
            *[TensorSpec((batches, 1, lines, 64), "float16")] * 2,
        ), (A2,), cores=1)
        for name, batches, heads, tokens, lines in (
            ("bn1d", 1, 2, 512, 512), ("b11d", 2, 3, 1, 1), ("b1sd", 1, 2, 3, 3),
        )
    ),
    Case("npu_interleave_rope", "fixed_b11d", (
        TensorSpec((32, 32, 1, 64), "float16"), *[TensorSpec((32, 1, 1, 64), "float16")] * 2,
    ), ("ascend910b2",), cores=1),
    Case(
        "npu_fusion_attention", "causal",
        (*[TensorSpec((1, 1, 20, 16), "bfloat16")] * 3, 1, "BNSD"), (A2,),
        {"atten_mask": TensorSpec((2048, 2048), "uint8"), "sparse_mode": 3, "scale": 0.25},
    ),
    Case(
        "npu_fusion_attention", "bias_and_dropout",
        (*[TensorSpec((1, 1, 20, 16), "float16")] * 3, 1, "BNSD"), (A2,),
        {"pse": TensorSpec((1, 1, 20, 20), "float16"), "keep_prob": 0.5,
         "dropout_mask": TensorSpec((50,), "uint8")}, cores=2,
    ),
    Case(
        "npu_moe_init_routing", "two_tokens",
        (TensorSpec((2, 32), "float16"), np.array([[0, 2], [1, 3]], np.int32),
         np.array([[1, 0], [0, 1]], np.int32), 2), (A2,), cores=1,
    ),
    Case(
        "npu_moe_compute_expert_tokens", "three_of_four_experts",
        (np.array([0, 0, 1, 3], np.int32), 4), (A2,), cores=1,
    ),
    Case(
        "npu_kv_rmsnorm_rope_cache", "pages",
        (TensorSpec((2, 1, 1, 576), "bfloat16"), TensorSpec((512,), "bfloat16"),
         *[TensorSpec((2, 1, 1, 64), "bfloat16")] * 2, np.array([3, 5]),
         TensorSpec((1, 16, 1, 64), "bfloat16"), TensorSpec((1, 16, 1, 512), "bfloat16")), (A2,),
        {"cache_mode": "PA"}, cores=1,
    ),
    Case(
        "npu_fusion_attention_grad", "causal",
        (*[TensorSpec((1, 1, 20, 16), "bfloat16")] * 4, 1, "BNSD"), (A2,),
        {"atten_mask": TensorSpec((2048, 2048), "uint8"), "sparse_mode": 3, "scale_value": 0.25,
         "attention_in": TensorSpec((1, 1, 20, 16), "bfloat16"),
         **dict.fromkeys(("softmax_max", "softmax_sum"), TensorSpec((1, 1, 20, 8), "float32"))},
        cores=1,
    ),
    Case(
        "npu_fusion_attention_grad", "bias_and_dropout",
        (*[TensorSpec((1, 1, 16, 16), "bfloat16")] * 4, 1, "BNSD"), (A2,),
        {"pse": TensorSpec((1, 1, 1, 16), "bfloat16"), "keep_prob": 0.5,
         "dropout_mask": TensorSpec((32,), "uint8"),
         "attention_in": TensorSpec((1, 1, 16, 16), "bfloat16"),
         **dict.fromkeys(("softmax_max", "softmax_sum"), TensorSpec((1, 1, 16, 8), "float32"))},
        cores=2,
    ),
    Case(
        "npu_moe_finalize_routing", "two_tokens",
        (TensorSpec((4, 40), "float16"), None, None, None, TensorSpec((2, 2), "float16"),
         np.array([2, 0, 1, 3], np.int32), None), (A2,),
    ),
    Case(
        "npu_moe_finalize_routing", "all_given",
        (TensorSpec((1, 2, 40), "bfloat16"), *[TensorSpec((1, 40), "bfloat16")] * 3,
         TensorSpec((1, 2), "bfloat16"), np.array([-1, 1], np.int32), np.zeros((1, 2), np.int32),
         3), (A2,),
    ),
    *(
        Case("embedding", template, (TensorSpec((rows, columns), "float16"), INDICES), (chip,))
        for template, rows, columns, chip in (
            ("short", 9000, 8, INFERENCE), ("short_table", 9, 8, A2), ("whole", 9000, 32, A2),
            ("whole_table", 9, 32, A2), ("ragged", 9, 40, A2), ("pieces", 2, 60000, A2),
        )
    ),
    # Two tiles of keys, the mask on the second one; pages; keys that are split over four cores.
    Case(
        "npu_fused_infer_attention_score", "causal",
        (TensorSpec((5, 1, 32), "float16"), *[TensorSpec((520, 1, 32), "float16")] * 2), (A2,),
        ATTENTION | {"actual_seq_lengths": [5], "actual_seq_lengths_kv": [520]},
    ),
    Case(
        "npu_fused_infer_attention_score", "pages",
        (TensorSpec((2, 4, 32), "bfloat16"), *[TensorSpec((5, 16, 32), "bfloat16")] * 2), (A2,),
        ATTENTION | PAGES
        | {"actual_seq_lengths": [1, 2], "actual_seq_lengths_kv": [40, 17], "num_heads": 4},
    ),
    Case(
        "npu_fused_infer_attention_score", "decode",
        (TensorSpec((2, 4, 32), "float16"), *[TensorSpec((2, 128, 64), "float16")] * 2), (A2,),
        ATTENTION | {"atten_mask": None, "sparse_mode": 0, "num_key_value_heads": 2}
        | {"block_table": TensorSpec((2, 1), "int32"), "block_size": 128, "num_heads": 4}
        | {"actual_seq_lengths": [1, 2], "actual_seq_lengths_kv": [20, 33]},
    ),
    Case(
        "npu_fused_infer_attention_score", "split",
        (TensorSpec((1, 4, 32), "float16"), *[TensorSpec((64, 16, 32), "float16")] * 2), ALL[1:2],
        ATTENTION | {"block_table": TensorSpec((1, 64), "int32"), "block_size": 16}
        | {"actual_seq_lengths": [1], "actual_seq_lengths_kv": [1024], "num_heads": 4}, 3,
    ),
    # FIA: a tile under the mask; three tiles of a row of them that three cores share.
    Case(
        "npu_fused_infer_attention_score", "fia",
        (TensorSpec((1, 2, 20, 32), "float16"), *[TensorSpec((1, 1, 40, 32), "float16")] * 2),
        (A2,), ATTENTION | {"input_layout": "BNSD", "num_heads": 2},
    ),
    Case(
        "npu_fused_infer_attention_score", "fia_pieces",
        (TensorSpec((1, 17, 1, 32), "bfloat16"), *[TensorSpec((1, 1030, 1, 32), "bfloat16")] * 2),
        ALL[1:2], ATTENTION | {"input_layout": "BSND", "num_heads": 1}, 3,
    ),
    # FIA with rotated parts; latent keys, two tiles of a row of them, whose sums are scaled.
    Case(
        "npu_fused_infer_attention_score", "rotated",
        (TensorSpec((20, 2, 128), "bfloat16"), *[TensorSpec((40, 2, 128), "bfloat16")] * 2),
        (A2,), ATTENTION | {"num_heads": 2, "num_key_value_heads": 2, "softmax_lse_flag": True}
        | {"actual_seq_lengths": [20], "actual_seq_lengths_kv": [40]}
        | {"query_rope": TensorSpec((20, 2, 64), "bfloat16")}
        | {"key_rope": TensorSpec((40, 2, 64), "bfloat16")}, 3,
    ),
    *(
        Case(
            "npu_fused_infer_attention_score", f"latent{what}",
            (TensorSpec((1, 16, 1, 512), "bfloat16"), *[TensorSpec(key, "bfloat16")] * 2), (A2,),
            {"query_rope": TensorSpec((1, 16, 1, 64), "bfloat16"), "num_heads": 16, "scale": 0.5}
            | {"key_rope": TensorSpec(rope, "bfloat16"), "input_layout": "BNSD_NBSD"}
            | {"num_key_value_heads": 1, "block_size": 128, "actual_seq_lengths_kv": [keys]}
            | {"block_table": TensorSpec((1, 6), "int32")}, 3,
        )
        for what, keys, key, rope in (
            ("", 600, (6, 1, 128, 512), (6, 1, 128, 64)),
            ("_fractals", 300, (6, 1, 32, 128, 16), (6, 1, 4, 128, 16)),
        )
    ),
    # IFA: a token of two requests to keys of int8, with scales of columns.
    Case(
        "npu_fused_infer_attention_score", "ifa",
        (TensorSpec((2, 1, 64), "float16"), *[TensorSpec((2, 40, 32), "int8")] * 2), (A2,),
        {"num_heads": 2, "num_key_value_heads": 1, "scale": 0.5}
        | {"antiquant_scale": TensorSpec((2, 32), "float16")}, 3,
    ),
    Case(
        "npu_incre_flash_attention", "vector",
        (TensorSpec((2, 1, 128), "float16"), *[TensorSpec((2, 20, 128), "float16")] * 2), (A2,),
        {"num_heads": 4, "actual_seq_lengths": [20, 7]}, 1,
    ),
    Case(
        "npu_incre_flash_attention", "pages",
        (TensorSpec((2, 1, 64), "bfloat16"), *[TensorSpec((3, 32, 32), "int8")] * 2), (A2,),
        {"num_heads": 2, "num_key_value_heads": 1, "scale_value": 0.5, "block_size": 32}
        | {"block_table": TensorSpec((2, 2), "int32"), "actual_seq_lengths": [40, 7]}
        | {"antiquant_scale": TensorSpec((2,), "bfloat16")}, 3,
    ),
    Case(
        "npu_anti_quant", "by_column",
        (TensorSpec((2, 40), "int8"), TensorSpec((40,), "float32")), ALL,
    ),
    Case("npu_trans_quant_param", "five", (FIVE, FIVE), ALL),
    Case("narrow", "three_rows", (TensorSpec((3, 40), "float16"), 1, 4, 20), ALL),
    Case("broadcast_to", "columns", (TensorSpec((3, 1), "float16"), (3, 40)), ALL),
    Case("fill", "three_rows", (TensorSpec((3, 40), "float16"), 1.5), ALL),
    Case("permute", "moved", (TensorSpec((3, 5, 32), "float16"), (1, 0, 2)), ALL),
    Case("permute", "turned", (TensorSpec((16, 40), "float16"), (1, 0)), ALL),
    Case("permute", "turned_bytes", (TensorSpec((32, 16), "int8"), (1, 0)), ALL),
    Case("permute", "turned_64_bits", (TensorSpec((8, 6), "int64"), (1, 0)), ALL),
    Case("permute", "turned_words", (TensorSpec((16, 12), "float32"), (1, 0)), ALL),
    Case("sum", "columns", (TensorSpec((3, 40), "float16"), 0), ALL),
    Case("argmax", "two_rows", (TensorSpec((2, 70), "float16"),), ALL),
    Case(
        "index_select", "rows_of_two_tables",
        (TensorSpec((2, 5, 16), "float16"), 1, TensorSpec((3,), "int32")), (A2,),
    ),
    Case("argmax", "columns", (TensorSpec((3, 20), "float16"), 0), ALL),
    Case("argmax", "segments", (TensorSpec((1, 14000), "float16"),), (A2,)),
    Case("softmax", "columns", (TensorSpec((3, 20), "float16"), 0), ALL),
    Case("softmax", "two_rows", (TensorSpec((2, 70), "float16"),), ALL),
    Case("sigmoid", "three_rows", (TensorSpec((3, 50), "float16"),), ALL),
    Case(
        "add", "numbers_a_row",
        (TensorSpec((2, 3, 70), "float16"), TensorSpec((3, 1), "float16")), ALL,
    ),
    Case("npu_format_cast", "to_fractals", (TensorSpec((18, 40), "int8"), 29), ALL),
    Case("npu_format_cast", "to_rows", (TensorSpec((2, 40), "int8", "FRACTAL_NZ"), 2), ALL),
    Case(
        "matmul", "three_blocks",
        (TensorSpec((3, 20, 48), "float16"), TensorSpec((3, 48, 40), "float16"), CHANNEL), (A2,),
    ),
    Case(
        "matmul", "two_blocks",
        (TensorSpec((2, 2, 40), "float16"), TensorSpec((2, 40, 32), "float16")), (INFERENCE,),
    ),
    *(
        Case(
            "matmul", template,
            (TensorSpec((20, 400), "float16"), TensorSpec((400, 24), "float16"), CHANNEL_24),
            (A2,), {"template": template},
        )
        for template in ("single_core_split_k", "deterministic_split_k")
    ),
    # A cube core, and the vector cores that have both rows of two groups.
    Case(
        "npu_grouped_matmul_swiglu_quant", "whole",
        (TensorSpec((2, 32), "int8"), TensorSpec((2, 32, 64), "int8", "FRACTAL_NZ"),
         np.array([1, 2]), TensorSpec((2, 64), "float32"), TensorSpec((2,), "float32")),
        (A2,),
    ),
    Case(
        "matmul", "float32_sums",
        (TensorSpec((20, 48), "float16"), TensorSpec((48, 32), "float16"), CHANNEL_32), (A2,),
        {"output_dtype": "float32"},
    ),
    Case(
        "npu_grouped_matmul_swiglu_quant", "int4",
        (TensorSpec((2, 512), "int8"), TensorSpec((1, 512, 8), "int32", "FRACTAL_NZ"),
         np.array([2]), TensorSpec((1, 2, 64), "uint64"), TensorSpec((2,), "float32")),
        (A2,), {"bias": TensorSpec((1, 64), "float32")},
    ),
    Case(
        "npu_quant_matmul", "msd",
        (TensorSpec((1, 512), "int8"), TensorSpec((512, 8), "int32"),
         TensorSpec((2, 64), "uint64")), ALL[1:2],
        {"pertoken_scale": TensorSpec((1, 1), "float32"), "output_dtype": "float16"}
        | {"offset": TensorSpec((64,), "float32"), "group_sizes": [0, 0, 256]}, 3,
    ),
    Case(
        "npu_quant_matmul", "pergroup",
        (TensorSpec((3, 128), "int32"), TensorSpec((256, 128), "int32").T,
         TensorSpec((4, 256), "float32")), ALL[1:2],
        {"pertoken_scale": TensorSpec((3, 1), "float32"), "output_dtype": "float16"}
        | {"offset": TensorSpec((4, 256), "float16"), "group_sizes": [0, 0, 256]},
    ),
    Case(
        "npu_transpose_batchmatmul", "two_heads",
        (TensorSpec((3, 2, 48), "float16"), TensorSpec((2, 48, 48), "float16")), (A2,),
        {"perm_x1": (1, 0, 2)},
    ),
    Case("npu_quant_matmul", "fixpipe", (TensorSpec((2, 128), "int8"), WIDE, ONE), (A2,)),
    Case(
        "npu_quant_matmul", "vector", (TensorSpec((2, 128), "int8"), WIDE, ONE), (A2,),
        {"output_dtype": "bfloat16"},
    ),
    Case(
        "npu_quant_matmul", "two_blocks",
        (TensorSpec((2, 2, 40), "int8"), TensorSpec((40, 32), "int8"), ONE), (INFERENCE,),
    ),
    # Two experts, of which one has no rows, with tiles that go through the ring once more.
    Case(
        "npu_grouped_matmul", "antiquant", (ROWS_OF_HALVES, BYTE_EXPERTS), (A2,),
        GROUPED | dict.fromkeys(
            ("antiquant_scale", "antiquant_offset"), TensorSpec((2, 260), "float16")
        ),
    ),
    # Every core has a part of the one row, and one has a block.
    Case(
        "npu_grouped_matmul", "msd",
        (TensorSpec((1, 128), "float16"), TensorSpec((1, 128, 1024), "int8")), (A2,),
        GROUPED | {"group_list": np.array([1])} | dict.fromkeys(
            ("antiquant_scale", "antiquant_offset"), TensorSpec((1, 1024), "float16")
        ),
    ),
    Case(
        "npu_grouped_matmul", "a4w4",
        (TensorSpec((20, 8), "int32"), TensorSpec((2, 64, 8), "int32")), (A2,),
        GROUPED | {"scale": TensorSpec((2, 2, 64), "uint64"), "output_dtype": "float16"}
        | {"per_token_scale": TensorSpec((20,), "float32")},
    ),
    Case(
        "npu_grouped_matmul", "a8w4",
        (TensorSpec((3, 64), "int8"), TensorSpec((2, 64, 8), "int32")), (A2,),
        GROUPED | {"scale": TensorSpec((2, 64), "uint64"), "output_dtype": "float16"}
        | {"per_token_scale": TensorSpec((3,), "float32"), "bias": TensorSpec((2, 64), "float32")}
        | {"group_list": np.array([1, 2]), "group_list_type": 1},
    ),
    # Few columns: the weight and its scales are unpacked first.
    Case(
        "npu_grouped_matmul", "a8w4_unpacked",
        (TensorSpec((3, 64), "int8"), TensorSpec((1, 64, 1), "int32")), (A2,),
        GROUPED | {"scale": TensorSpec((1, 8), "uint64"), "output_dtype": "bfloat16"}
        | {"per_token_scale": TensorSpec((3,), "float32"), "bias": TensorSpec((1, 8), "float32")}
        | {"group_list": np.array([3]), "group_list_type": 1},
    ),
    Case("npu_grouped_matmul", "plain", (ROWS_OF_HALVES, HALF_EXPERTS), (A2,), GROUPED),
    Case(
        "npu_grouped_matmul", "coupled",
        (TensorSpec((2, 16), "float16"), TensorSpec((2, 16, 32), "float16", "FRACTAL_NZ")),
        (INFERENCE,), GROUPED | {"group_list": np.array([0, 2])},
    ),
    Case(
        "npu_grouped_matmul", "fixpipe", (ROWS_OF_BYTES, BYTE_EXPERTS), (A2,),
        GROUPED | {"scale": TensorSpec((2, 260), "uint64")},
    ),
    Case(
        "npu_grouped_matmul", "dequantise", (ROWS_OF_BYTES, BYTE_EXPERTS), (A2,),
        GROUPED | {"scale": TensorSpec((2, 260), "float32"), "output_dtype": "float16",
                   "per_token_scale": TensorSpec((20,), "float32")},
    ),
    # Three rounds of columns, which vector cores dequantise while the cube multiplies others.
    Case(
        "npu_weight_quant_batchmatmul", "custom",
        (TensorSpec((1, 32), "float16"), TensorSpec((32, 520), "int8"),
         TensorSpec((1,), "float16")), (A2,),
    ),
    Case(
        "npu_weight_quant_batchmatmul", "nz_splitk",
        (TensorSpec((2, 32), "bfloat16"), TensorSpec((16, 32), "int8", "FRACTAL_NZ").T,
         TensorSpec((16,), "bfloat16")), ALL[1:2], {"template": "nz_splitk"}, 2,
    ),
    Case(
        "npu_weight_quant_batchmatmul", "split_k",
        (TensorSpec((1, 128), "bfloat16"), TensorSpec((128, 64), "int8"), GROUPS, GROUPS),
        ALL[1:2], OF_64 | {"template": "split_k"}, 2,
    ),
    Case(
        "npu_weight_quant_batchmatmul", "fixpipe",
        (TensorSpec((1, 64), "float16"), SQUARE, TensorSpec((64,), "int64")), ALL[1:2],
    ),
    Case(
        "npu_weight_quant_batchmatmul", "weight_nz",
        (TensorSpec((2, 40), "float16"), SMALL_NZ, NARROW, NARROW, None, None, NARROW), ALL[:1],
    ),
    Case(
        "npu_weight_quant_batchmatmul", "msd",
        (TensorSpec((1, 128), "float16"), TensorSpec((128, 32), "int8"),
         TensorSpec((32,), "float16")), ALL[1:2],
    ),
    Case("npu_weight_quant_batchmatmul", "msd_group", IN_GROUPS, ALL[1:2], OF_64, 3),
    Case(
        "npu_weight_quant_batchmatmul", "msd_per_group", IN_GROUPS, ALL[1:2],
        OF_64 | {"template": "msd"}, 3,
    ),
]  # fmt: skip


def name_of(device: str | DeviceSpec) -> str:
    return device if isinstance(device, str) else device.name


FILES = {
    f"{case.op}_{case.what}_{name_of(device)}.txt": (case, device)
    for case in CASES
    for device in case.devices
}


@pytest.mark.parametrize("name", FILES)
def test_trace(name: str, pytestconfig: pytest.Config) -> None:
    case, device = FILES[name]
    trace = run(case.op, *case.args, device=device, **case.keywords).trace
    assert trace is not None
    head, *lines = trace.to_text().splitlines(keepends=True)
    text = head + "".join(line for line in lines if int(line.split()[0]) < case.cores)
    path = FOLDER / name
    if pytestconfig.getoption("--update-golden"):
        path.write_text(text)
    assert text == path.read_text()


def test_every_file_has_its_case() -> None:
    assert {path.name for path in FOLDER.glob("*.txt")} == {*FILES}
