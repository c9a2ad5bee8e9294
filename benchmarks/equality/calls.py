"""The calls that are compared: each follows from the seed, its operator and its number there."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import attention
import elementwise
import experts
import numpy as np
import products
import quantising
import routing
import weights
from described import Call, Drawn
from drawing import DEVICES, RECIPES, Arguments, Draw

__all__ = ["call_named", "calls_of"]

FAMILIES = (attention, elementwise, experts, products, quantising, routing, weights)
"""The modules whose recipes are in RECIPES."""
SHARES = {
    "npu_weight_quant_batchmatmul": 12, "npu_grouped_matmul": 12, "npu_quant_matmul": 8,
    "npu_fused_infer_attention_score": 9, "npu_fused_infer_attention_score_v2": 6, "matmul": 13,
    "npu_dynamic_quant": 8, "npu_dynamic_quant_asymmetric": 5, "npu_add_rms_norm": 6,
    "npu_add_rms_norm_quant": 5, "npu_add_rms_norm_dynamic_quant": 5, "npu_rms_norm": 6,
    "npu_dequant_swiglu_quant": 7, "npu_moe_init_routing_v2": 5, "npu_rotary_mul": 5,
    "npu_quantize": 4, "npu_swiglu_quant": 3, "npu_moe_finalize_routing": 3,
    "npu_moe_gating_top_k": 3, "npu_grouped_matmul_swiglu_quant": 3, "permute": 3,
    "npu_incre_flash_attention": 3, "npu_transpose_batchmatmul": 4, "embedding": 5,
    "index_select": 3, "npu_apply_rotary_pos_emb": 3,
    "npu_format_cast": 2, "npu_reshape_and_cache": 2, "npu_scatter_pa_kv_cache": 2,
    "npu_trans_quant_param": 2,
    "npu_group_quant": 3, "npu_anti_quant": 2, "npu_scatter_nd_update": 3, "npu_swiglu": 3,
    "npu_moe_gating_top_k_softmax": 2, "softmax": 2, "log_softmax": 2, "sum": 2, "argmax": 2,
}  # fmt: skip
"""How many times more calls than another operator one with several kernels gets."""
HAVE_NO_KERNEL_ON_310P = (
    "npu_add_rms_norm_dynamic_quant", "npu_dequant_swiglu_quant", "npu_dynamic_quant_asymmetric",
    "npu_dynamic_block_quant", "npu_fused_infer_attention_score",
    "npu_fused_infer_attention_score_v2", "npu_fusion_attention", "npu_fusion_attention_v2",
    "npu_group_quant", "npu_interleave_rope", "npu_moe_re_routing", "npu_moe_token_permute",
    "npu_moe_token_unpermute",
    "npu_grouped_matmul_swiglu_quant", "npu_incre_flash_attention", "npu_moe_finalize_routing",
    "npu_moe_gating_top_k", "npu_moe_gating_top_k_softmax", "npu_moe_init_routing_v2",
    "npu_rms_norm_backward", "npu_rotary_mul", "npu_rotary_mul_backward",
    "npu_scatter_nd_update", "npu_swiglu_quant",
    "npu_transpose_batchmatmul",
)  # fmt: skip
"""Operators that are asked for there only now and then."""
OLD_SHARE, RARE_OLD_SHARE = 0.3, 0.06
"""How many calls go to Atlas inference."""
TIMES_SHARE = 0.4
"""How many calls are made of shapes alone, larger ones."""
WRONG_SHARE = 0.15
"""In how many calls an argument is exchanged for another."""
SIMPY_SHARE = 0.05
"""How many calls are timed by the engine on SimPy."""
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 64, 2**31, 0.5, float("nan"), "", "int8", "qint8", "int32",
    "quint4x2", "float16", [], [1, 2], (), (1,),
)  # fmt: skip
DTYPES = (
    "float16", "bfloat16", "float32", "int8", "uint8", "int16", "int32", "int64", "uint64",
)  # fmt: skip


def calls_of(operators: Sequence[str], count: int, seed: int) -> list[Call]:
    """*count* calls of *operators*, more of those that have more kernels."""
    missing = [name for name in operators if name not in RECIPES]
    if missing:
        raise SystemExit(f"equality: {', '.join(missing)} must have a recipe; add it to one of "
                         f"{', '.join(family.__name__ for family in FAMILIES)}")  # fmt: skip
    shares = [SHARES.get(name, 1) for name in operators]
    whole = sum(shares)
    found = []
    for operator, share in zip(operators, shares, strict=True):
        own = max(1, round(count * share / whole))
        found += [_call(operator, number, seed) for number in range(own)]
    return found


def call_named(name: str, seed: int) -> Call:
    """The call `operator:number`."""
    operator, _, number = name.partition(":")
    if operator not in RECIPES or not number.isdecimal():
        raise SystemExit(f"equality: --only must be like npu_swiglu:17, not {name}")
    return _call(operator, int(number), seed)


def _call(operator: str, number: int, seed: int) -> Call:
    rng = np.random.default_rng([seed, zlib.crc32(operator.encode()), number])
    share = RARE_OLD_SHARE if operator in HAVE_NO_KERNEL_ON_310P else OLD_SHARE
    is_old = rng.random() < share
    device = DEVICES[2] if is_old else DEVICES[number % 2]
    draw = Draw(rng, number, device, bool(rng.random() < TIMES_SHARE))
    arguments = RECIPES[operator](draw)
    if draw.chance(WRONG_SHARE):
        _spoil(draw, arguments)
    options = {"device": device} | _options(draw)
    return Call(f"{operator}:{number}", operator, arguments, options)


def _options(draw: Draw) -> dict[str, Any]:
    found: dict[str, Any] = {"engine": "simpy" if draw.chance(SIMPY_SHARE) else "compiled"}
    match draw.integer(0, 9):
        case 0 | 1 | 2:
            found["l2"] = "warm"
        case 3:
            found["l2"] = "repeat"
    if draw.chance(0.05):
        found["every_core"] = True
    if draw.chance(0.05) and not draw.only_times:
        found["timing"] = False
    return found


def _spoil(draw: Draw, arguments: Arguments) -> None:
    """Exchange one of *arguments* for another, or leave it out."""
    name = draw.pick(*arguments)
    value = arguments[name]
    if draw.chance(0.1):
        arguments.pop(name)
    elif isinstance(value, list) and value and isinstance(value[0], Drawn) and draw.chance(0.7):
        arguments[name] = [_other(draw, value[0]), *value[1:]]
    elif isinstance(value, Drawn) and draw.chance(0.7):
        arguments[name] = _other(draw, value)
    else:
        arguments[name] = draw.pick(*ODD_VALUES)


def _other(draw: Draw, tensor: Drawn) -> Drawn:
    """*tensor* with another type, another size, or another number of dimensions."""
    shape = list(tensor.shape)
    match draw.integer(0, 3):
        case 0:
            return _retyped(draw, tensor)
        case 1 if shape:
            at = draw.integer(0, len(shape) - 1)
            shape[at] = draw.pick(0, 1, shape[at] + 1, shape[at] + 7, max(1, shape[at] - 1))
        case 2:
            shape = [1, *shape] if draw.chance(0.5) else shape[1:]
        case _:
            is_matrix = len(shape) > 1
            return replace(tensor, layout="FRACTAL_NZ") if is_matrix else _retyped(draw, tensor)
    kept = ("spec", "integers", *(("rows",) if shape else ()))
    how = tensor.how if tensor.how in kept else "normal"
    return replace(tensor, shape=tuple(shape), how=how, listed=())


def _retyped(draw: Draw, tensor: Drawn) -> Drawn:
    how = "normal" if tensor.how in ("integers", "permutation") else tensor.how
    return replace(tensor, dtype=draw.pick(*DTYPES), how=how, low=0, high=40)
