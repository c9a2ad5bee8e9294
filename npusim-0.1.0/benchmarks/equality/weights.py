"""Recipes of npu_weight_quant_batchmatmul, a template each."""

from __future__ import annotations

from typing import Any

from drawing import Arguments, Draw, recipe

__all__: list[str] = []


@recipe("npu_weight_quant_batchmatmul")
def weight_quant_batchmatmul(draw: Draw) -> Arguments:
    """By the template that is meant, each with what it needs; sometimes by name."""
    if draw.is_old:
        m, k, n = draw.size(60), draw.size(200), draw.size(200)
        return _weight_call(
            draw, m, k, n, layout="FRACTAL_NZ", turned=True, x="float16",
            size=0 if draw.chance(0.9) else 32 * draw.integer(1, 4),
        )  # fmt: skip
    template = draw.in_turn(
        "split_k", "msd_group", "msd", "msd", "nz_splitk", "custom", "fixpipe", ""
    )
    found = WEIGHT_CALLS[template](draw)
    if template and draw.chance(0.6):
        found["template"] = template
    if draw.chance(0.05):
        found["deterministic"] = True
    return found


def _weight_call(
    draw: Draw, m: int, k: int, n: int, *, layout: str = "ND", turned: bool = False,
    x: str = "", bits: int = 8, size: int = 0, single: bool = False, offset: bool | None = None,
    bias: bool | None = None, trans_x: bool = False, quant: bool = False,
) -> Arguments:  # fmt: skip
    """Arguments of that kind; where *offset* and *bias* are None, with or without."""
    x = x or draw.half()
    if bits == 4:
        if layout == "FRACTAL_NZ":
            k, n = -(-k // 16) * 16, -(-n // 64) * 64
            if turned:
                k, n = -(-k // 64) * 64, -(-n // 16) * 16
        k, n = (-(-k // 8) * 8, n) if turned else (k, -(-n // 8) * 8)
        shape = (k // 8, n) if turned else (k, n // 8)
        weight = draw.words(shape, layout=layout, transposed=turned)
    else:
        weight = draw.integers((k, n), layout=layout, transposed=turned)
    own: tuple[int, ...] = (-(-k // size), n) if size else draw.pick((n,), (1, n))
    own = (1,) if single else own
    found: Arguments = {
        "x": draw.tensor((m, k), x, transposed=trans_x), "weight": weight,
        "antiquant_scale": draw.positive(own, x, 0.05), "antiquant_group_size": size,
    }  # fmt: skip
    if draw.chance(0.5) if offset is None else offset:
        found["antiquant_offset"] = draw.tensor(own, x, high=9)
    if draw.chance(0.4) if bias is None else bias:
        found["bias"] = draw.tensor((n,), "float16" if x == "float16" else "float32", high=9)
    if quant:
        columns = draw.pick((1,), (n,))
        found["quant_scale"] = draw.positive(columns, "float32", 1)
        if draw.chance(0.6):
            found["quant_offset"] = draw.tensor(columns, "float32", high=99)
    return found


def _split_k(draw: Draw) -> Arguments:
    m, k, n = draw.integer(1, 32), draw.multiple(64, 768), draw.multiple(64, 512)
    return _weight_call(draw, m, k, n, x="bfloat16", size=64, offset=True, bias=False)


def _msd_group(draw: Draw, bits: int = 0) -> Arguments:
    size = draw.pick(64, 128)
    bits = bits or (draw.pick(4, 4, 8) if size == 64 else 4)
    m, k, n = draw.integer(1, size // 8), draw.multiple(size, 768), draw.multiple(64, 512)
    return _weight_call(draw, m, k, n, bits=bits, size=size)


def _msd(draw: Draw) -> Arguments:
    """Its forms: a scale a column, int4, groups of int4 in fp32 and in fp16."""
    k, n = draw.multiple(32, 400), draw.multiple(32, 400)
    if draw.chance(0.4):
        return _msd_group(draw, bits=4) | {"inner_precise": draw.integer(0, 1)}
    if draw.chance(0.3):
        return _weight_call(draw, draw.integer(1, 40), k, n, bits=4, turned=True)
    layout, turned = draw.pick(("ND", False), ("ND", True), ("FRACTAL_NZ", True))
    if draw.chance(0.15):
        k = 32 * draw.integer(430, 450)
        return _weight_call(draw, draw.integer(1, 4), k, 32, layout=layout, turned=turned)
    if draw.only_times and draw.chance(0.25):
        return _weight_call(draw, 36, 8192, 1280, layout=layout, turned=True, bias=False)
    return _weight_call(draw, draw.integer(1, 64), k, n, layout=layout, turned=turned)


def _nz_splitk(draw: Draw) -> Arguments:
    m = draw.integer(65, 256) if draw.chance(0.6) else draw.integer(1, 100)
    k, n = draw.multiple(64, 320), draw.multiple(64, 256)
    return _weight_call(draw, m, k, n, layout="FRACTAL_NZ", turned=True)


def _custom(draw: Draw) -> Arguments:
    m, k, n = draw.size(140), draw.size(220), draw.size(300)
    more: dict[str, Any] = {"turned": draw.chance(0.4), "trans_x": draw.chance(0.2)}
    more |= {"quant": draw.chance(0.25), "bits": draw.pick(8, 8, 4)}
    match draw.integer(0, 3):
        case 0:
            more["single"] = True
        case 1:
            more["size"] = 32 * draw.integer(1, 4)
            k = max(k, 2 * more["size"])
        case 2:
            more |= {"layout": "FRACTAL_NZ", "quant": False}
            if more["bits"] == 4:
                more["turned"] = True
    return _weight_call(draw, m, k, n, **more)


def _fixpipe(draw: Draw) -> Arguments:
    m, k, n = draw.integer(1, 96), draw.multiple(64, 320), draw.multiple(64, 320)
    found = _weight_call(draw, m, k, n, x="float16", turned=True)
    found["antiquant_scale"] = draw.integers((n,), "int64", 0, 2**31)
    if "antiquant_offset" in found:
        found["antiquant_offset"] = draw.integers((n,), "int32", -128, 128)
    return found


def _any(draw: Draw) -> Arguments:
    layout, turned = draw.pick("ND", "FRACTAL_NZ"), draw.chance(0.5)
    size = draw.pick(0, 0, 32, 64, 128)
    m, k, n = draw.size(100), draw.size(200) + size, draw.size(200)
    bits = draw.pick(8, 4)
    return _weight_call(draw, m, k, n, layout=layout, turned=turned, size=size, bits=bits)


WEIGHT_CALLS = {
    "split_k": _split_k,
    "msd_group": _msd_group,
    "msd": _msd,
    "nz_splitk": _nz_splitk,
    "custom": _custom,
    "fixpipe": _fixpipe,
    "": _any,
}
