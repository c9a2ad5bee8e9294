"""A call of each operator and of what it does otherwise, which between them pass every tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim import Tensor
from npusim.data.dtypes import FLOAT16
from npusim.ops.families.elementwise.expression import ONE, TWO
from npusim.ops.families.elementwise.expressions import EXPRESSIONS
from npusim.ops.families.elementwise.gradients import BACKWARD

F16, F32 = np.float16, np.float32
N = 64
"""Rows and columns of every matrix, so that a transposed one has the shape of the other."""


def ones(*shape: int, dtype: Any = F32) -> Any:
    return np.ones(shape, dtype)


def half_ones(*shape: int, dtype: Any = F16) -> Any:
    return np.ones(shape, dtype)


FUNCTIONS = [each for each in EXPRESSIONS.values() if FLOAT16 in each.computed_in]
ELEMENTWISE_OF_ONE = tuple(each.name for each in FUNCTIONS if each.parameters == ONE)
ELEMENTWISE_OF_TWO = tuple(each.name for each in FUNCTIONS if each.parameters == TWO)
GRADIENTS = tuple(each.name for each in FUNCTIONS if each.parameters.startswith(BACKWARD))
HALF, BYTES = ones(N, N, dtype=F16), ones(N, N, dtype=np.int8)
FLAGS = ones(N, N, dtype=np.uint8)
ROW16, ROW32 = ones(1, N, dtype=F16), ones(1, N)
INDEX = np.array([N], np.int32)
HEAD = ones(1, 1, 4, N, dtype=F16)
TOKENS = {
    **{name: ones(1, 1, N, dtype=F16) for name in ("key", "value")},
    **{name: ones(2, N, 1, N, dtype=F16) for name in ("key_cache", "value_cache")},
}
SLOTS = np.array([5], np.int32)
GROUPS = {"group_list": np.array([N]), "group_type": 0, "split_item": 3}
PRODUCT = {"x1": BYTES, "x2": BYTES}
SUM = {"x1": HALF, "x2": HALF, "gamma": ones(N, dtype=F16)}
STENCIL = np.triu(np.ones((2048, 2048), np.int8), 1)
ATTENTION = {
    **dict.fromkeys(("query", "key", "value"), ones(N, 1, N, dtype=F16)),
    "atten_mask": STENCIL,
    "actual_seq_lengths": [N],
    "actual_seq_lengths_kv": [N],
    "input_layout": "TND",
    "sparse_mode": 3,
}
V2_NAMES = {
    "actual_seq_lengths": "actual_seq_qlen",
    "actual_seq_lengths_kv": "actual_seq_kvlen",
    "num_heads": "num_query_heads",
}
ATTENTION_V2 = {V2_NAMES.get(name, name): value for name, value in ATTENTION.items()}
ROTATED = {
    **dict.fromkeys(("query", "key", "value"), ones(1, N, 2, 2 * N, dtype=F16)),
    **dict.fromkeys(("query_rope", "key_rope"), ones(1, N, 2, N, dtype=F16)),
    "atten_mask": STENCIL,
    "num_heads": 2,
    "input_layout": "BSND",
    "sparse_mode": 3,
}
LATENT = {
    "query": ones(1, 2, 1, 512, dtype=F16),
    **dict.fromkeys(("key", "value"), ones(1, 1, N, 512, dtype=F16)),
    "query_rope": ones(1, 2, 1, N, dtype=F16),
    "key_rope": ones(1, 1, N, N, dtype=F16),
    "num_heads": 2,
    "num_key_value_heads": 1,
    "input_layout": "BNSD_NBSD",
}
TRAINING = {
    **dict.fromkeys(("query", "key", "value"), ones(1, 2, N, N, dtype=F16)),
    "head_num": 2,
    "input_layout": "BNSD",
    "atten_mask": STENCIL.view(np.uint8),
    "sparse_mode": 2,
}
TRAINED = {
    **TRAINING,
    **dict.fromkeys(("dy", "attention_in"), ones(1, 2, N, N, dtype=F16)),
    **dict.fromkeys(("softmax_max", "softmax_sum"), ones(1, 2, N, 8)),
    "softmax_in": ones(0, dtype=F16),
}
"""The same backward, with what forward gave."""
DROPPED = {
    "pse": ones(1, 2, N, N, dtype=F16),
    "keep_prob": 0.5,
    "dropout_mask": ones(2 * N * N // 8, dtype=np.uint8),
}
"""What training may add to both."""
LATENT_KEYS = {
    "kv": ones(2, 1, 1, 576, dtype=F16),
    "gamma": ones(512, dtype=F16),
    **dict.fromkeys(("cos", "sin"), ones(2, 1, 1, N, dtype=F16)),
    "index": np.array([3, 5]),
    "k_cache": ones(1, 16, 1, N, dtype=F16),
    "ckv_cache": ones(1, 16, 1, 512, dtype=F16),
    "cache_mode": "PA",
}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "matmul": ("matmul", {"x1": HALF, "x2": HALF, "bias": ROW16}),
    "words": ("npu_trans_quant_param", {"scale": ROW32, "offset": ROW32}),
    "multiplied": (
        "npu_quantize",
        {"input": HALF, "scales": ROW16, "zero_points": ROW16, "dtype": "qint8", "axis": -1}
        | {"div_mode": False},
    ),
    "divided": (
        "npu_quantize",
        {"input": HALF, "scales": ones(N), "zero_points": ones(N, dtype=np.int8)}
        | {"dtype": "qint8"},
    ),
    "back to floats": ("npu_anti_quant", {"x": BYTES, "scale": ones(N), "offset": ones(N)}),
    "groups": (
        "npu_group_quant",
        {"x": HALF, "scale": ones(2, N), "group_index": np.array([3, N]), "offset": ones(1)},
    ),
    "dynamic": ("npu_dynamic_quant", {"x": HALF, "smooth_scales": ones(N, dtype=F16)}),
    "dynamic, groups": (
        "npu_dynamic_quant",
        {"x": HALF, "smooth_scales": ones(1, N, dtype=F16), "group_index": INDEX},
    ),
    "norm": ("npu_rms_norm", {"x": HALF, "gamma": ones(N, dtype=F16)}),
    "norm, backward": (
        "npu_rms_norm_backward",
        {"dy": HALF, "x": HALF, "gamma": ones(N, dtype=F16), "rstd": ones(N)},
    ),
    "norm of a sum": ("npu_add_rms_norm", SUM),
    "norm, quantised": (
        "npu_add_rms_norm_quant",
        SUM
        | {
            "scales1": ones(N),
            "zero_points1": ones(N, dtype=np.int32),
            "beta": ones(N, dtype=F16),
            "scales2": ones(N),
            "zero_points2": ones(N, dtype=np.int32),
        },
    ),
    "norm, quantised by rows": (
        "npu_add_rms_norm_dynamic_quant",
        SUM | dict.fromkeys(("smooth_scale1", "smooth_scale2", "beta"), ones(N, dtype=F16)),
    ),
    "attention": ("npu_fused_infer_attention_score", ATTENTION),
    "attention, pages": (
        "npu_fused_infer_attention_score",
        ATTENTION
        | dict.fromkeys(("key", "value"), ones(1, N, N, dtype=F16))
        | {"block_table": np.array([[0]], np.int32), "block_size": N, "num_key_value_heads": 1},
    ),
    "attention, heads first": (
        "npu_fused_infer_attention_score",
        dict.fromkeys(("query", "key", "value"), ones(1, 2, N, N, dtype=F16))
        | {"atten_mask": ones(N, N, dtype=np.uint8), "num_heads": 2, "input_layout": "BNSD"},
    ),
    "attention, rotated parts": ("npu_fused_infer_attention_score", ROTATED),
    "attention, latent keys": ("npu_fused_infer_attention_score", LATENT),
    "attention, int8": (
        "npu_fused_infer_attention_score",
        dict.fromkeys(("key", "value"), ones(1, N, 2 * N, dtype=np.int8))
        | {"query": ones(1, 1, 4 * N, dtype=F16), "num_heads": 2, "num_key_value_heads": 1}
        | dict.fromkeys(("key_antiquant_scale", "value_antiquant_scale"), ones(1, dtype=F16)),
    ),
    "attention, int8 alone": (
        "npu_incre_flash_attention",
        dict.fromkeys(("key", "value"), ones(1, N, 2 * N, dtype=np.int8))
        | {"query": ones(1, 1, 4 * N, dtype=F16), "num_heads": 2, "num_key_value_heads": 1}
        | {"antiquant_scale": ones(2, 2 * N, dtype=F16)},
    ),
    "attention, int8, one tensor of scales": (
        "npu_fused_infer_attention_score",
        dict.fromkeys(("key", "value"), ones(1, N, 2 * N, dtype=np.int8))
        | {"query": ones(1, 1, 4 * N, dtype=F16), "num_heads": 2, "num_key_value_heads": 1}
        | {"antiquant_scale": ones(2, 1, N), "antiquant_mode": 1},
    ),
    "attention, float16 alone": (
        "npu_incre_flash_attention",
        dict.fromkeys(("key", "value"), ones(3, N, 8 * N, dtype=F16))
        | {"query": ones(3, 1, 8 * N, dtype=F16), "num_heads": 8},
    ),
    "attention, int8 alone, pages": (
        "npu_incre_flash_attention",
        dict.fromkeys(("key", "value"), ones(1, 2 * N, 2 * N, dtype=np.int8))
        | {"query": ones(1, 1, 4 * N, dtype=F16), "num_heads": 2, "num_key_value_heads": 1}
        | {"antiquant_scale": ones(2, dtype=F16), "actual_seq_lengths": [N]}
        | {"block_table": np.array([[0]], np.int32), "block_size": 2 * N},
    ),
    **{
        f"attention, int8, {many}": (
            "npu_fused_infer_attention_score",
            dict.fromkeys(("key", "value"), ones(1, N, N, dtype=np.int8))
            | {"query": ones(1, 1, N, dtype=F16), "input_layout": "TND", "actual_seq_lengths": [1]}
            | {"actual_seq_lengths_kv": [N], "block_table": np.array([[0]], np.int32)}
            | {"block_size": N}
            | {name.format(what): row for name in names for what in ("scale", "offset")},
        )
        for many, row, names in (
            ("offsets", ones(1, N), ("key_antiquant_{}", "value_antiquant_{}")),
            ("one tensor of offsets", ones(2, N), ("antiquant_{}",)),
        )
    },
    "attention, second version": ("npu_fused_infer_attention_score_v2", ATTENTION_V2),
    "attention, second version, rotated parts": (
        "npu_fused_infer_attention_score_v2",
        {V2_NAMES.get(name, name): value for name, value in ROTATED.items()},
    ),
    "attention, second version, pages": (
        "npu_fused_infer_attention_score_v2",
        ATTENTION_V2
        | dict.fromkeys(("key", "value"), ones(1, N, N, dtype=F16))
        | {"block_table": np.array([[0]], np.int32), "block_size": N, "num_key_value_heads": 1},
    ),
    "attention for training": ("npu_fusion_attention", TRAINING),
    "attention for training, rotated": (
        "npu_fusion_attention_v2",
        dict.fromkeys(("query", "key", "value"), ones(N, 1, 2 * N, dtype=F16))
        | dict.fromkeys(("query_rope", "key_rope"), ones(N, 1, N, dtype=F16))
        | {"head_num": 1, "input_layout": "TND", "atten_mask": STENCIL.view(np.uint8)}
        | {"actual_seq_qlen": [N], "actual_seq_kvlen": [N], "sparse_mode": 3},
    ),
    "attention for training, dropout": ("npu_fusion_attention", TRAINING | DROPPED),
    "attention, backward": ("npu_fusion_attention_grad", TRAINED),
    "attention, backward of dropout": ("npu_fusion_attention_grad", TRAINED | DROPPED),
    "attention, second version, dropout": ("npu_fusion_attention_v2", TRAINING | DROPPED),
    "attention, second version, backward": ("npu_fusion_attention_grad_v2", TRAINED | DROPPED),
    "numbered choices": (
        "npu_moe_init_routing",
        {
            "x": HALF,
            "row_idx": np.arange(2 * N, dtype=np.int32).reshape(2, N).T.copy(),
            "expert_idx": np.ones((N, 2), np.int32),
            "active_num": N,
        },
    ),
    "ends of experts": (
        "npu_moe_compute_expert_tokens",
        {"sorted_expert_for_source_row": np.array([0, 0, 2], np.int32), "num_expert": 4},
    ),
    "latent keys": ("npu_kv_rmsnorm_rope_cache", LATENT_KEYS),
    "swiglu": ("npu_swiglu", {"x": HALF}),
    "swiglu, backward": (
        "npu_swiglu_backward",
        {"grad_output": ones(N, N // 2, dtype=F16), "x": HALF},
    ),
    "blocks": ("npu_dynamic_block_quant", {"x": HALF}),
    "turned pairs": (
        "npu_interleave_rope",
        {"x": HEAD} | dict.fromkeys(("cos", "sin"), ones(1, 1, 4, N, dtype=F16)),
    ),
    "tokens by expert": (
        "npu_moe_token_permute",
        {"tokens": HALF, "indices": np.zeros((N, 2), np.int32)},
    ),
    "rows of ranks": (
        "npu_moe_re_routing",
        {"tokens": HALF, "expert_token_num_per_rank": np.full((2, 2), N // 4, np.int32)}
        | {"per_token_scales": ones(N)},
    ),
    "tokens of experts": (
        "npu_moe_token_unpermute",
        {"permuted_tokens": HALF, "sorted_indices": np.arange(N, dtype=np.int32)}
        | {"probs": ones(N // 2, 2, dtype=F16)},
    ),
    "turned halves": ("npu_rotary_mul", dict.fromkeys(("self", "r1", "r2"), HEAD)),
    "turned halves, backward": (
        "npu_rotary_mul_backward",
        dict.fromkeys(("grad", "self", "r1", "r2"), ones(1, 2, 4, N, dtype=F16)),
    ),
    "turned heads": (
        "npu_apply_rotary_pos_emb",
        dict.fromkeys(("query", "key", "cos", "sin"), ones(1, 2, 1, 128, dtype=F16)),
    ),
    "tokens": ("npu_scatter_pa_kv_cache", TOKENS | {"slot_mapping": SLOTS, "cache_mode": "Norm"}),
    "tokens of blocks": ("npu_reshape_and_cache", TOKENS | {"slot_indices": SLOTS}),
    "rows replaced": (
        "npu_scatter_nd_update",
        {"self": HALF, "indices": np.array([[N - 1]]), "updates": ones(1, N, dtype=F16)},
    ),
    "rows of experts": (
        "npu_moe_finalize_routing",
        {"expanded_permuted_rows": HALF, "scales": ones(N // 2, 2, dtype=F16)}
        | dict.fromkeys(("skip1", "skip2"), ones(N // 2, N, dtype=F16))
        | {"bias": ones(1, N, dtype=F16), "expanded_src_to_dst_row": np.arange(N, dtype=np.int32)}
        | {"export_for_source_row": np.zeros((N // 2, 2), np.int32)},
    ),
    "rows by expert": (
        "npu_moe_init_routing_v2",
        {"x": HALF, "expert_idx": np.zeros((N, 1), np.int32), "expert_num": 1}
        | {"scale": ones(1, N), "quant_mode": 1},
    ),
    "rows by expert as they are": (
        "npu_moe_init_routing_v2",
        {"x": HALF, "expert_idx": np.zeros((N, 1), np.int32), "expert_num": 1, "active_num": 0},
    ),
    "best experts by softmax": (
        "npu_moe_gating_top_k_softmax",
        {"x": HALF, "finished": np.zeros(N, np.uint8), "k": 2},
    ),
    "best experts": ("npu_moe_gating_top_k", {"x": HALF, "k": 2, "bias": ones(N, dtype=F16)}),
    "parts": ("index_select", {"x": HALF, "dim": 0, "index": np.array([N - 1])}),
    "rows of a table": ("embedding", {"weight": HALF, "indices": np.array([N - 1])}),
    "dequantised halves": (
        "npu_dequant_swiglu_quant",
        {"x": ones(N, N, dtype=np.int32), "weight_scale": ones(N), "activation_scale": ones(N)}
        | {"bias": ones(N), "quant_scale": ones(N // 2), "quant_offset": ones(N // 2)},
    ),
    "dequantised halves, groups": (
        "npu_dequant_swiglu_quant",
        {"x": ones(N, 128, dtype=np.int32), "weight_scale": ones(1, 128), "quant_mode": 1}
        | {"group_index": np.array([N])},
    ),
    "quantised halves": (
        "npu_swiglu_quant",
        {"x": HALF, "smooth_scales": ones(1, N // 2), "offsets": ones(1, N // 2)}
        | {"group_index": INDEX},
    ),
    "dynamic, offsets": (
        "npu_dynamic_quant_asymmetric",
        {"x": HALF, "smooth_scales": ones(1, N, dtype=F16), "group_index": INDEX},
    ),
    "cast": ("npu_format_cast", {"x": HALF, "acl_format": 2}),
    "packed": ("npu_convert_weight_to_int4pack", {"weight": ones(N, N, dtype=np.int32)}),
    "groups of a weight of int8": (
        "npu_grouped_matmul",
        {"x": HALF, "weight": ones(1, N, N, dtype=np.int8), **GROUPS}
        | dict.fromkeys(("antiquant_scale", "antiquant_offset"), ROW16),
    ),
    "groups of int4": (
        "npu_grouped_matmul",
        {"x": ones(N, N // 8, dtype=np.int32), "weight": ones(1, N, N // 8, dtype=np.int32)}
        | {"scale": ones(1, N, dtype=np.int64) << 29, "per_token_scale": ones(N), **GROUPS}
        | {"output_dtype": "float16"},
    ),
    "groups of int8 by int4": (
        "npu_grouped_matmul",
        {"x": ones(N, 2048, dtype=np.int8), "weight": ones(1, 2048, 896, dtype=np.int32)}
        | {"scale": ones(1, 7168, dtype=np.int64) << 29, "per_token_scale": ones(N), **GROUPS}
        | {"bias": ones(1, 7168), "offset": ones(1, 1, 7168), "group_list_type": 1}
        | {"output_dtype": "float16"},
    ),
    "swiglu of groups of int4": (
        "npu_grouped_matmul_swiglu_quant",
        {"x": BYTES, "weight": Tensor.of(ones(1, N, N // 8, dtype=np.int32), "FRACTAL_NZ")}
        | {"group_list": np.array([N]), "weight_scale": ones(1, 1, N, dtype=np.int64) << 29}
        | {"x_scale": ones(N), "bias": ROW32},
    ),
    "swiglu of groups": (
        "npu_grouped_matmul_swiglu_quant",
        {"x": BYTES, "weight": Tensor.of(ones(1, N, N, dtype=np.int8), "FRACTAL_NZ")}
        | {"group_list": np.array([N]), "weight_scale": ROW32, "x_scale": ones(N)},
    ),
    "int8 times int4": (
        "npu_quant_matmul",
        {"x1": BYTES, "x2": ones(N, N // 8, dtype=np.int32), "scale": ones(N, dtype=np.int64) << 29}
        | {"offset": ones(N), "pertoken_scale": ones(N), "output_dtype": "float16"},
    ),
    "heads": (
        "npu_transpose_batchmatmul",
        {"input": ones(2, N, N, dtype=F16), "weight": ones(2, N, N, dtype=F16)}
        | {"scale": ones(2 * N, dtype=np.int64) << 46},
    ),
    "groups of rows": (
        "npu_grouped_matmul",
        {"x": HALF, "weight": ones(1, N, N, dtype=F16), "bias": ROW16} | GROUPS,
    ),
    "groups of int8": (
        "npu_grouped_matmul",
        {"x": BYTES, "weight": ones(1, N, N, dtype=np.int8), "scale": ROW32, **GROUPS}
        | {"per_token_scale": ones(N), "output_dtype": "float16"},
    ),
    "int8 product": (
        "npu_quant_matmul",
        PRODUCT | {"scale": ones(N), "offset": ones(N), "bias": ones(N, dtype=np.int32)},
    ),
    "words of a product": (
        "npu_quant_matmul",
        PRODUCT | {"scale": ones(1, N, dtype=np.int64) << 46},
    ),
    "float16 product": (
        "npu_quant_matmul",
        PRODUCT | {"scale": ones(N), "pertoken_scale": ones(N), "output_dtype": "float16"},
    ),
    "int4 product": (
        "npu_quant_matmul",
        {"x1": ones(N, N // 8, dtype=np.int32), "x2": ones(N, N // 8, dtype=np.int32)}
        | {"scale": ones(1), "output_dtype": "float16"},
    ),
    "weight": (
        "npu_weight_quant_batchmatmul",
        {"x": HALF, "weight": BYTES, "antiquant_scale": ROW16, "antiquant_offset": ROW16}
        | {"quant_scale": ROW32, "quant_offset": ROW32, "bias": ROW16},
    ),
    "weight in groups": (
        "npu_weight_quant_batchmatmul",
        {"x": HALF, "weight": BYTES, "antiquant_scale": ones(2, N, dtype=F16)}
        | {"antiquant_group_size": 32},
    ),
}
CALLS |= {op: (op, {"x": HALF}) for op in ELEMENTWISE_OF_ONE}
CALLS |= {op: (op, {"x": HALF, "other": HALF}) for op in ELEMENTWISE_OF_TWO}
CALLS |= {op: (op, {"grad_output": HALF, "x": HALF}) for op in GRADIENTS}
CALLS |= {
    op: (op, {"x": HALF}) for op in ("sum", "mean", "amax", "argmax", "softmax", "log_softmax")
}
CALLS |= {
    "a copy": ("clone", {"x": HALF}),
    "a part": ("narrow", {"x": HALF, "dim": 0, "start": 1, "length": 2}),
    "one of several": ("concat", {"tensors": HALF, "dim": -1}),
    "broadcast": ("broadcast_to", {"x": HALF, "shape": (2, N, N)}),
    "full": ("fill", {"x": HALF, "value": 2.0}),
    "turned": ("permute", {"x": HALF, "dims": (1, 0)}),
    "a selection": ("where", {"condition": ones(N, N, dtype=np.uint8), "x": HALF, "other": HALF}),
    "a multiple": ("axpy", {"x": HALF, "other": HALF, "alpha": 2.0}),
    "a polynomial": ("npu_gelu", {"x": HALF}),
    **{op: (op, {"x": FLAGS, "other": FLAGS}) for op in ("logical_and", "logical_or")},
    "not": ("logical_not", {"x": FLAGS}),
    "a power": ("pow", {"x": HALF, "exponent": 2}),
    "bounds": ("clamp", {"x": HALF, "low": -1.0}),
    "conversion": ("cast", {"x": HALF, "dtype": "float32"}),
}
OF_EACH = dict(reversed(CALLS.values()))
"""The first of each operator."""
