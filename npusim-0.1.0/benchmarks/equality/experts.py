"""Recipes of products whose rows are shared out to experts."""

from __future__ import annotations

from drawing import Arguments, Draw, recipe

__all__: list[str] = []

VECTOR_DEQUANTISED = 1, 16, 256, 512
"""Experts, rows, k and n of int8 by int4 that vector cores scale."""


@recipe("npu_grouped_matmul")
def grouped_matmul(draw: Draw) -> Arguments:
    if draw.is_old:
        return _coupled_experts(draw)
    return draw.in_turn(
        _plain_experts, _int8_experts, _antiquant, _a4w4, _a8w4, _int8_experts, _antiquant,
        _plain_experts, _scaled_by_vector_cores,
    )(draw)  # fmt: skip


def _groups(draw: Draw, rows: int, experts: int) -> Arguments:
    """Rows of each expert, as ends or as counts."""
    counts, kind = draw.counts(rows, experts), draw.integer(0, 1)
    values = counts if kind else counts.cumsum()
    found: Arguments = {"group_list": draw.listed(values), "group_list_type": kind}
    return found | {"group_type": 0, "split_item": draw.pick(2, 3, 3)}


def _coupled_experts(draw: Draw) -> Arguments:
    rows, experts = draw.size(60), draw.integer(1, 4)
    k, n = 16 * draw.integer(1, 10), 16 * draw.integer(1, 10)
    weight = draw.tensor((experts, k, n), "float16", layout="FRACTAL_NZ",
                         transposed=draw.chance(0.5))  # fmt: skip
    return _groups(draw, rows, experts) | {"x": [draw.tensor((rows, k), "float16")],
                                           "weight": [weight]}  # fmt: skip


def _plain_experts(draw: Draw) -> Arguments:
    dtype = draw.pick("float16", "bfloat16", "float16", "bfloat16", "float32")
    rows, experts = draw.size(150), draw.integer(1, 5)
    k, n = draw.size(120), draw.size(200)
    bias_kind = "float16" if dtype == "float16" else "float32"
    if draw.chance(0.2):
        found = _apart(draw, dtype, experts)
        if draw.chance(0.3):
            found["bias"] = [draw.tensor((x.shape[-1],), bias_kind) for x in found["weight"]]
        return found
    if draw.chance(0.12):
        ends = draw.counts(rows, experts).cumsum()
        return {
            "x": [draw.tensor((k, rows), dtype, transposed=True)],
            "weight": [draw.tensor((rows, n), dtype)],
            "group_list": draw.listed(ends), "group_type": 2, "split_item": 3,
        }  # fmt: skip
    layout = "FRACTAL_NZ" if dtype != "float32" and draw.chance(0.3) else "ND"
    if layout != "ND":
        k, n = 16 * draw.integer(1, 10), 16 * draw.integer(1, 14)
    found = _groups(draw, rows, experts)
    found["x"] = [draw.tensor((rows, k), dtype)]
    found["weight"] = [
        draw.tensor((experts, k, n), dtype, layout=layout, transposed=draw.chance(0.3))
    ]
    if draw.chance(0.3):
        found["bias"] = [draw.tensor((experts, n), bias_kind)]
    return found


def _apart(draw: Draw, dtype: str, experts: int) -> Arguments:
    """Tensors of each expert by itself."""
    xs, weights = [], []
    for _ in range(experts):
        m, k, n = draw.size(60), draw.size(80), draw.size(100)
        xs.append(draw.tensor((m, k), dtype))
        weights.append(draw.tensor((k, n), dtype))
    return {"x": xs, "weight": weights, "group_type": -1, "split_item": draw.pick(0, 1)}


def _int8_experts(draw: Draw) -> Arguments:
    target = draw.pick("int8", "int32", "bfloat16", "float16", "bfloat16", "float16")
    rows, experts = draw.size(150), draw.integer(1, 5)
    k, n = draw.size(120), draw.size(200)
    layout = "FRACTAL_NZ" if target != "int8" and draw.chance(0.3) else "ND"
    if layout != "ND":
        k, n = 32 * draw.integer(1, 5), 32 * draw.integer(1, 8)
    found = _groups(draw, rows, experts) | {"output_dtype": target}
    if draw.chance(0.15):
        counts = draw.counts(rows, experts)
        pairs = [[expert, count] for expert, count in enumerate(counts) if count]
        found |= {"group_list": draw.listed(pairs or [[0, rows]]), "group_list_type": 2}
    found["x"] = [draw.integers((rows, k))]
    found["weight"] = [draw.integers((experts, k, n), layout=layout, transposed=draw.chance(0.3))]
    is_late = target in ("bfloat16", "float16")
    if draw.chance(0.15):
        found["tuning_config"] = [draw.integer(1, 256)]
    if target == "int8":
        found["scale"] = [draw.packed((experts, n), to_int8=True)]
    elif is_late:
        kind = "float32" if target == "float16" else "bfloat16"
        found["scale"] = [draw.positive((experts, n), kind, 0.01)]
        if draw.chance(0.6):
            found["per_token_scale"] = [draw.positive((rows,), "float32", 1)]
        if draw.chance(0.4):
            found["act_type"] = draw.pick(0, 1, 2, 4, 5)
    if draw.chance(0.3):
        if layout != "ND" and target == "bfloat16" and draw.chance(0.5):
            found["bias"] = [draw.tensor((experts, n), "bfloat16")]
        else:
            found["bias"] = [draw.integers((experts, n), "int32", -999, 999)]
    return found


def _antiquant(draw: Draw) -> Arguments:
    dtype, bits = draw.pick("float16", "bfloat16"), draw.pick(4, 8, 8)
    rows, experts = draw.size(150), draw.integer(1, 4)
    k, n = draw.pick(32, 136, 288), 8 * draw.integer(1, 40)
    turned = draw.chance(0.3)
    if draw.chance(0.5):
        rows, experts, k, n = draw.integer(1, 10), draw.integer(1, 2), 128, 512 * draw.integer(1, 3)
        bits, turned = 8, False
    groups = draw.pick(0, 0, 1, 4) if bits == 4 else 0
    own = (experts, groups, n) if groups else (experts, n)
    found = _groups(draw, rows, experts)
    found["x"] = [draw.tensor((rows, k), dtype)]
    if bits == 8:
        weight = draw.integers((experts, k, n), transposed=turned)
    else:
        shape = (experts, k // 8, n) if turned else (experts, k, n // 8)
        weight = draw.words(shape, transposed=turned)
    found["weight"] = [weight]
    found["antiquant_scale"] = [draw.positive(own, dtype, 0.05)]
    found["antiquant_offset"] = [draw.tensor(own, dtype, high=9)]
    if draw.chance(0.3):
        kind = "float16" if dtype == "float16" else "float32"
        found["bias"] = [draw.tensor((experts, n), kind)]
    if draw.chance(0.4):
        found["template"] = draw.pick("antiquant", "antiquant_performance", "msd")
    return found


def _a4w4(draw: Draw) -> Arguments:
    rows, experts = draw.size(100), draw.integer(1, 4)
    k, n = 64 * draw.integer(1, 6), 64 * draw.integer(1, 5)
    groups = draw.pick(0, 2)
    found = _groups(draw, rows, experts)
    layout = "FRACTAL_NZ" if draw.chance(0.3) else "ND"
    own = (experts, groups, n) if groups else (experts, n)
    return found | {
        "x": [draw.words((rows, k // 8))],
        "weight": [draw.words((experts, k, n // 8), layout=layout)],
        "scale": [draw.packed(own)],
        "per_token_scale": [draw.positive((rows,), "float32", 1)],
        "output_dtype": draw.pick("float16", "bfloat16"),
    }


def _a8w4(draw: Draw) -> Arguments:
    rows, experts = draw.size(80), draw.integer(1, 4)
    k, n = 64 * draw.integer(1, 6), draw.pick(8 * draw.integer(1, 12), 64 * draw.integer(1, 4))
    has_offset = draw.only_times and draw.chance(0.15)
    if draw.chance(0.3):
        k = 256 * draw.integer(1, 3)
    if has_offset:
        rows, experts, (k, n) = draw.integer(1, 40), 1, draw.pick((7168, 4096), (2048, 7168))
    counts = draw.counts(rows, experts)
    groups = draw.pick(0, 1, k // 256 if k % 256 == 0 else 1)
    own = (experts, groups, n) if groups else (experts, n)
    layout = "FRACTAL_NZ" if n % 64 == 0 and draw.chance(0.3) else "ND"
    target = "float16" if has_offset else draw.pick("float16", "bfloat16")
    found: Arguments = {
        "x": [draw.integers((rows, k))],
        "weight": [draw.words((experts, k, n // 8), layout=layout)],
        "bias": [draw.tensor((experts, n), "float32", high=9)],
        "scale": [draw.packed(own)],
        "per_token_scale": [draw.positive((rows,), "float32", 1)],
        "group_list": draw.listed(counts), "group_list_type": 1, "group_type": 0,
        "split_item": 3, "output_dtype": target,
    }  # fmt: skip
    if has_offset:
        found["offset"] = [draw.tensor((experts, 1, n), "float32", high=3)]
    return found


def _scaled_by_vector_cores(draw: Draw) -> Arguments:
    """int8 by int4 of a shape that a separate template takes."""
    experts, rows, k, n = VECTOR_DEQUANTISED
    return {
        "x": [draw.integers((rows, k))],
        "weight": [draw.words((experts, k, n // 8), layout="FRACTAL_NZ")],
        "bias": [draw.tensor((experts, n), "float32")],
        "scale": [draw.packed((experts, k // 256, n))],
        "per_token_scale": [draw.positive((rows,), "float32", 1)],
        "group_list": draw.listed(draw.counts(rows, experts)), "group_list_type": 1,
        "group_type": 0, "split_item": 3, "output_dtype": draw.pick("float16", "bfloat16"),
    }  # fmt: skip


@recipe("npu_grouped_matmul_swiglu_quant")
def grouped_matmul_swiglu_quant(draw: Draw) -> Arguments:
    rows, experts = draw.size(60), draw.integer(1, 4)
    ends = draw.counts(rows, experts).cumsum()
    if draw.chance(0.35):
        k, n = 256 * draw.integer(1, 3), 64 * draw.integer(1, 4)
        return {
            "x": draw.integers((rows, k)),
            "weight": draw.words((experts, k, n // 8), layout="FRACTAL_NZ"),
            "group_list": draw.listed(ends),
            "weight_scale": draw.integers(
                (experts, draw.pick(1, k // 256), n), "uint64", 2**29, 2**30
            ),
            "x_scale": draw.positive((rows,), "float32", 1),
            "bias": draw.tensor((experts, n), "float32", high=9),
        }
    k, n = 32 * draw.integer(1, 8), 64 * draw.integer(1, 5)
    return {
        "x": draw.integers((rows, k)),
        "weight": draw.integers((experts, k, n), layout="FRACTAL_NZ"),
        "group_list": draw.listed(ends),
        "weight_scale": draw.positive((experts, n), draw.pick("float32", "float16", "bfloat16"),
                                      0.01),
        "x_scale": draw.positive((rows,), "float32", 0.1),
    }  # fmt: skip
