"""Recipes of products: floats, int8 and int4."""

from __future__ import annotations

from drawing import Arguments, Draw, recipe

__all__: list[str] = []

MATMUL = (
    "bl1_aligned_output", "al1_split_k", "bl1_full_load", "single_core_split_k",
    "deterministic_split_k", "v2", "nd2nz", "base",
)  # fmt: skip
TARGETS = ("int8", "float16", "bfloat16", "int32")


@recipe("matmul")
def matmul(draw: Draw) -> Arguments:
    if not draw.is_old and draw.chance(0.5):
        return _matmul_by_name(draw)
    m, k, n = _matmul_sizes(draw)
    dtype = draw.half() if draw.is_old or draw.chance(0.8) else "float32"
    a, b = draw.batch() if draw.chance(0.4) else ((), ())
    layout = "FRACTAL_NZ" if dtype != "float32" and draw.chance(0.35) else "ND"
    x1 = draw.tensor((*a, m, k), dtype, transposed=draw.chance(0.25))
    x2 = draw.tensor((*b, k, n), dtype, layout=layout, transposed=draw.chance(0.35))
    found: Arguments = {"x1": x1, "x2": x2}
    if draw.chance(0.35):
        kinds = ("float32", "float16") if dtype == "float16" else ("float32",)
        found["bias"] = draw.tensor(draw.pick((n,), (1, n)), draw.pick(*kinds))
    if not draw.is_old and draw.chance(0.15):
        found["output_dtype"] = draw.pick("float32", dtype)
    return found


def _matmul_by_name(draw: Draw) -> Arguments:
    """A call that names its template, most of which have what that needs."""
    template = draw.in_turn(*MATMUL)
    m, k, n = draw.size(200), draw.integer(385, 1300), draw.size(200)
    dtype, layout = draw.half(), draw.pick("ND", "ND", "FRACTAL_NZ")
    if template.startswith("bl1"):
        k, n = draw.integer(1, 256), draw.integer(1, 255)
        if draw.only_times and draw.chance(0.4):
            m = draw.integer(512 * 24, 512 * 30)
    if template == "nd2nz":
        layout = "ND"
    if template == "al1_split_k":
        m, layout = draw.integer(1, 256), "ND"
    found: Arguments = {
        "x1": draw.tensor((m, k), dtype, transposed=template != "al1_split_k" and draw.chance(0.2)),
        "x2": draw.tensor((k, n), dtype, layout=layout, transposed=draw.chance(0.3)),
    }  # fmt: skip
    if draw.chance(0.35):
        found["bias"] = draw.tensor((n,), "float16" if dtype == "float16" else "float32")
    if draw.chance(0.85):
        found["template"] = template
    return found


def _matmul_sizes(draw: Draw) -> tuple[int, int, int]:
    """Sizes of all kinds, and for times those for which the vendor has separate kernels."""
    if draw.only_times and draw.chance(0.5):
        return draw.pick(
            (16 * draw.integer(1, 24), 256 * draw.integer(8, 40), 64 * draw.integer(1, 12)),
            (128 * draw.integer(8, 40), 16 * draw.integer(1, 16), 16 * draw.integer(1, 20)),
            (draw.integer(1, 16), 1024 * draw.integer(2, 16), draw.integer(16, 512)),
            (128 * draw.integer(8, 16), 128 * draw.integer(8, 16), 128 * draw.integer(8, 16)),
            (draw.integer(600, 3000), draw.integer(30, 300), draw.integer(30, 300)),
            (draw.integer(300, 900), draw.integer(1100, 4000), draw.integer(100, 700)),
            (draw.integer(1, 256), 128 * draw.integer(72, 100), 128 * draw.integer(73, 90)),
            (128 * draw.integer(8, 12), 27392 + 128 * draw.integer(0, 20), 512),
        )
    most = draw.pick(90, 90, 200)
    k = draw.size(most) if draw.chance(0.7) else draw.integer(385, 1300)
    return draw.size(most), k, draw.size(most)


@recipe("npu_transpose_batchmatmul")
def transpose_batchmatmul(draw: Draw) -> Arguments:
    batch, m = draw.integer(1, 8), draw.size(60)
    k, n = 16 * draw.integer(1, 20), 16 * draw.integer(1, 12)
    if draw.chance(0.15):
        k, n = draw.size(100), draw.size(100)
    if draw.only_times and draw.chance(0.15):
        batch, m, n = draw.integer(1, 3), 128 * draw.integer(2, 8), 128 * draw.integer(3, 8)
    dtype = draw.pick("float16", "bfloat16", "float16", "bfloat16", "float32")
    is_scaled = draw.chance(0.25)
    dtype = "float16" if is_scaled else dtype
    is_turned = dtype != "float32" and draw.chance(0.6)
    shape = (m, batch, k) if is_turned else (batch, m, k)
    found: Arguments = {"input": draw.tensor(shape, dtype)}
    if is_turned:
        found["perm_x1"] = (1, 0, 2)
    is_back = (is_scaled or not is_turned) and draw.chance(0.4)
    layout = "FRACTAL_NZ" if is_turned and not is_back and draw.chance(0.5) else "ND"
    own = (batch, n, k) if is_back else (batch, k, n)
    found["weight"] = draw.tensor(own, dtype, layout=layout)
    if is_back:
        found["perm_x2"] = (0, 2, 1)
    if draw.chance(0.5):
        found["perm_y"] = (1, 0, 2)
    if is_scaled:
        found["scale"] = draw.packed((batch * n,), to_int8=True)
    elif draw.chance(0.25):
        found["batch_split_factor"] = draw.pick(1, 2, batch)
    return found


# ---- int8 and int4 ----


@recipe("npu_quant_matmul")
def quant_matmul(draw: Draw) -> Arguments:
    if not draw.is_old and draw.chance(0.3):
        return draw.pick(_int8_times_int4, _groups_of_int4)(draw)
    target = draw.pick(*(TARGETS[:2] if draw.is_old else TARGETS))
    most = draw.pick(90, 200)
    m, k, n = draw.size(most), draw.size(most), draw.size(most)
    if draw.only_times and draw.chance(0.06) and not draw.is_old:
        return _few_rows(draw)
    if draw.only_times and draw.chance(0.3):
        m, k, n = draw.integer(1, 600), 128 * draw.integer(4, 40), 128 * draw.integer(2, 30)
    a, b = draw.batch() if draw.chance(0.35) else ((), ())
    is_turned = draw.chance(0.4)
    is_vector = target in TARGETS[1:3] and not draw.is_old
    found: Arguments = {"output_dtype": target}
    if is_vector and draw.chance(0.25):
        k, n = -(-k // 8) * 8 + 8, -(-n // 8) * 8
        found["x1"] = draw.words((*a, m, k // 8))
        shape = (k // 8, n) if is_turned else (k, n // 8)
        found["x2"] = draw.words((*b, *shape), transposed=is_turned)
    else:
        layout = draw.pick("ND", "FRACTAL_NZ")
        is_turned = is_turned or (draw.is_old and layout != "ND")
        found["x1"] = draw.integers((*a, m, k), transposed=draw.chance(0.2))
        found["x2"] = draw.integers((*b, k, n), layout=layout, transposed=is_turned)
    is_token = is_vector and draw.chance(0.5)
    if is_token:
        found["pertoken_scale"] = draw.positive((m,), "float32", 1)
    found |= _scale_of(draw, target, n, is_token)
    found |= _bias_of(draw, target, n, is_token)
    if draw.chance(0.35):
        own = ("pp", "coupled") if draw.is_old else ("basic", "tbe", "tbe_opt")
        found["template"] = draw.in_turn(*own)
    return found


def _few_rows(draw: Draw) -> Arguments:
    """Few rows of tokens by a large weight."""
    m, k, n = draw.integer(1, 256), 4096, 32 * draw.integer(224, 260)
    return {
        "x1": draw.integers((m, k)), "x2": draw.integers((k, n), layout="FRACTAL_NZ"),
        "scale": draw.positive((n,), "float32"), "output_dtype": "bfloat16",
        "pertoken_scale": draw.positive((m,), "float32", 1),
    }  # fmt: skip


def _scale_of(draw: Draw, target: str, n: int, is_token: bool) -> Arguments:
    """A scale in floats or in words of npu_trans_quant_param, and an offset for int8."""
    shape = draw.pick((1,), (n,))
    is_words = target in TARGETS[:2] and not is_token and draw.chance(0.4)
    if is_words:
        return {"scale": draw.packed(shape, to_int8=target == "int8")}
    kind = draw.pick("float32", "bfloat16") if target in TARGETS[2:] else "float32"
    found: Arguments = {"scale": draw.positive(shape, kind, 0.01)}
    if target == "int8" and draw.chance(0.5):
        found["offset"] = draw.tensor(draw.pick((1,), (n,)), "float32", high=90)
    return found


def _bias_of(draw: Draw, target: str, n: int, is_token: bool) -> Arguments:
    if draw.chance(0.6):
        return {}
    kind = "int32"
    if target == "bfloat16" or is_token:
        kind = draw.pick("int32", "float32", target)
    spread = draw.pick(10**3, 10**9)
    if kind == "int32":
        return {"bias": draw.integers((n,), kind, -spread, spread)}
    return {"bias": draw.tensor((n,), kind, high=5)}


def _int8_times_int4(draw: Draw) -> Arguments:
    is_grouped = draw.chance(0.5)
    m, n = draw.size(40), 8 * draw.integer(1, 24)
    k = 256 * draw.integer(1, 4) if is_grouped else 8 * draw.integer(1, 60)
    is_turned = not is_grouped and draw.chance(0.4)
    shape = (k // 8, n) if is_turned else (k, n // 8)
    layout = "FRACTAL_NZ" if not is_grouped and draw.chance(0.4) else "ND"
    found = {
        "x1": draw.integers((m, k)),
        "x2": draw.words(shape, layout=layout, transposed=is_turned),
        "scale": draw.packed((k // 256, n) if is_grouped else (n,)),
        "offset": draw.tensor((n,), "float32", high=9),
        "pertoken_scale": draw.positive((m, 1) if is_grouped else (m,), "float32", 1),
        "output_dtype": draw.pick("float16", "bfloat16"),
    }
    if is_grouped:
        found["group_sizes"] = [0, 0, 256]
    return found


def _groups_of_int4(draw: Draw) -> Arguments:
    m, k, n = draw.size(40), 1024 * draw.integer(1, 2), 256 * draw.integer(1, 2)
    return {
        "x1": draw.words((m, k // 8)),
        "x2": draw.words((k // 8, n), transposed=True),
        "scale": draw.positive((k // 256, n), "float32", 0.01),
        "offset": draw.tensor((k // 256, n), "float16", high=3),
        "pertoken_scale": draw.positive((m, 1), "float32", 1),
        "output_dtype": draw.pick("float16", "bfloat16"),
        "group_sizes": [0, 0, 256],
    }
