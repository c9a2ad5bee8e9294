"""Folders that npusim itself writes read back with ratio 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim import TensorSpec, profile
from npusim.exports.profile import write_details

HALF = "float16"
DEVICE = "ascend910b2"


def spec(*shape: int, dtype: str = HALF, layout: str = "ND") -> TensorSpec:
    return TensorSpec(shape, dtype, layout)


CACHE = spec(4, 2, 64), spec(4, 2, 64), spec(9, 128, 2, 64), spec(9, 128, 2, 64)
ATTENTION: dict[str, Any] = {
    "block_table": spec(4, 3, dtype="int32"),
    "block_size": 128,
    "num_heads": 8,
    "num_key_value_heads": 2,
    "input_layout": "TND",
    "actual_seq_lengths": [1, 2, 3, 4],
    "actual_seq_lengths_kv": [100, 200, 300, 384],
    "scale": 0.125,
}
CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "square weight": ("matmul", (spec(16, 256), spec(256, 256).T), {}),
    "transposed input": ("matmul", (spec(256, 32).T, spec(256, 64)), {}),
    "fractals": ("matmul", (spec(16, 256), spec(256, 128, layout="FRACTAL_NZ")), {}),
    "fractals of [N, K]": ("matmul", (spec(16, 100), spec(130, 100, layout="FRACTAL_NZ").T), {}),
    "bias": ("matmul", (spec(16, 256), spec(256, 128), spec(128)), {}),
    "batch": ("matmul", (spec(3, 16, 64), spec(3, 64, 32)), {}),
    "rows of a batch": ("matmul", (spec(3, 16, 64), spec(64, 32)), {}),
    "int8": (
        "npu_quant_matmul",
        (spec(32, 256, dtype="int8"), spec(256, 128, dtype="int8"), spec(128, dtype="float32")),
        {"pertoken_scale": spec(32, dtype="float32"), "output_dtype": HALF},
    ),
    "int8 fractals": (
        "npu_quant_matmul",
        (
            *(spec(32, 256, dtype="int8"), spec(256, 128, dtype="int8", layout="FRACTAL_NZ")),
            spec(128, dtype="int64"),
        ),
        {"bias": spec(128, dtype="int32"), "output_dtype": HALF},
    ),
    "weight of int8": (
        "npu_weight_quant_batchmatmul",
        (spec(16, 256), spec(256, 128, dtype="int8"), spec(128), spec(128)),
        {},
    ),
    "groups": (
        "npu_grouped_matmul",
        ([spec(64, 256)], [spec(4, 256, 128)]),
        {"group_list": np.array([10, 30, 40, 64]), "group_type": 0, "split_item": 3},
    ),
    "rms_norm": ("npu_rms_norm", (spec(64, 512), spec(512)), {}),
    "add_rms_norm": ("npu_add_rms_norm", (spec(64, 512), spec(64, 512), spec(512)), {}),
    "norm and int8": (
        "npu_add_rms_norm_dynamic_quant",
        (spec(64, 512), spec(64, 512), spec(512)),
        {"smooth_scale1": spec(512)},
    ),
    "dynamic_quant": ("npu_dynamic_quant", (spec(64, 512),), {"smooth_scales": spec(512)}),
    "quantize": ("npu_quantize", (spec(64, 512), spec(512), spec(512), "qint8", -1, False), {}),
    "swiglu": ("npu_swiglu", (spec(64, 512),), {}),
    "dequant_swiglu_quant": (
        "npu_dequant_swiglu_quant",
        (spec(64, 512, dtype="int32"),),
        {
            "weight_scale": spec(1, 512, dtype="float32"),
            "activation_scale": spec(64, dtype="float32"),
            "quant_mode": 1,
        },
    ),
    "rotary": (
        "npu_rotary_mul",
        (spec(64, 1, 8, 128), spec(64, 1, 1, 128), spec(64, 1, 1, 128)),
        {},
    ),
    "rotary of two": (
        "npu_apply_rotary_pos_emb",
        (spec(4, 1, 8, 128), spec(4, 1, 2, 128), spec(4, 1, 1, 128), spec(4, 1, 1, 128)),
        {},
    ),
    "attention": (
        "npu_fused_infer_attention_score",
        (spec(4, 8, 64), spec(12, 128, 128), spec(12, 128, 128)),
        ATTENTION | {"atten_mask": spec(2048, 2048, dtype="int8"), "sparse_mode": 3},
    ),
    "pages": (
        "npu_scatter_pa_kv_cache",
        (*CACHE, spec(4, dtype="int32")),
        {"cache_mode": "Norm"},
    ),
    "cache": ("npu_reshape_and_cache", (*CACHE, spec(4, dtype="int32")), {}),
    "scatter": (
        "npu_scatter_nd_update",
        (spec(99, 128), spec(9, 1, dtype="int64"), spec(9, 128)),
        {},
    ),
    "gating": ("npu_moe_gating_top_k_softmax", (spec(16, 64), None, 8), {}),
    "routing": (
        "npu_moe_init_routing_v2",
        (spec(16, 512), spec(16, 4, dtype="int32")),
        {
            "active_num": 64,
            "expert_num": 8,
            "expert_tokens_num_type": 1,
            "expert_tokens_num_flag": True,
            "active_expert_range": [0, 8],
        },
    ),
    "finalize": (
        "npu_moe_finalize_routing",
        (spec(64, 512), None, None, None, spec(16, 4), spec(64, dtype="int32"), None),
        {},
    ),
    "format": ("npu_format_cast", (spec(256, 128), 29), {}),
    "number": ("mul", (spec(64, 512), 2.0), {}),
    "power": ("pow", (spec(64, 512), 2), {}),
    "where": ("where", (spec(64, 1, dtype="uint8"), spec(64, 512), 0.0), {}),
    "fill": ("fill", (spec(64, 512), 0.0), {}),
    "broadcast": ("broadcast_to", (spec(1, 512), [64, 512]), {}),
    "column sums": ("sum", (spec(64, 512, dtype="float32"), 0), {}),
    "concat": ("concat", ([spec(64, 64), spec(64, 96)], 1), {}),
    "slice": ("narrow", (spec(64, 512), 1, 7, 300), {}),
    "orders": ("permute", (spec(8, 8, 8), [2, 0, 1]), {}),
    "gather": ("embedding", (spec(99, 128), spec(16, dtype="int64")), {}),
    "index": ("index_select", (spec(99, 128), 1, spec(16, dtype="int64")), {}),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_kernel_of_an_export_has_ratio_1(call: str, tmp_path: Path) -> None:
    op, args, options = CALLS[call]
    run = npusim.run(op, *args, device=DEVICE, values=False, **options)
    write_details(run, tmp_path / "kernel_details.csv")

    found = profile.read(tmp_path).compare(DEVICE, jobs=1)

    assert [each.reason for each in found.kernels] == [None] * len(run.launches)
    # What a row does not say may decide how much code there is, and how long that takes to come.
    assert [each.ratio for each in found.kernels] == pytest.approx([1.0] * len(run.launches), 0.005)
    assert [*found.slowest, *found.unknown, *found.gaps] == []
