"""Recipes of what quantises, activates and quantises, and normalises."""

from __future__ import annotations

from math import prod

from drawing import Arguments, Draw, recipe

__all__: list[str] = []

FLOATS = ("float16", "bfloat16", "float32")


@recipe("npu_quantize")
def quantize(draw: Draw) -> Arguments:
    shape, kind = draw.shape(), draw.floating()
    is_one, is_bare = draw.chance(0.25), draw.chance(0.3)
    if draw.chance(0.5):
        axis = draw.integer(-len(shape), len(shape) - 1)
        scale_kind, point_kind = "float32", draw.pick("int8", "uint8", "int32")
        if kind == "bfloat16" and draw.chance(0.5):
            scale_kind = point_kind = "bfloat16"
        count = 1 if is_one else shape[axis]
        points = draw.numbers((count,), point_kind)
        if point_kind != "bfloat16":
            low = 0 if point_kind == "uint8" else -40
            points = draw.integers((count,), point_kind, low, 40)
        return {
            "input": draw.numbers(shape, kind), "scales": draw.numbers((count,), scale_kind),
            "zero_points": None if is_bare else points,
            "dtype": draw.pick("qint8", "quint8", "int32", "qint32"), "axis": axis,
            "div_mode": True,
        }  # fmt: skip
    lowest = -1 if draw.is_old or len(shape) == 1 else -2
    axis = draw.integer(lowest, len(shape))
    scale_kind = draw.floating() if kind == "float32" else kind
    dtype = "qint8" if draw.is_old else draw.pick("qint8", "quint4x2")
    if dtype == "quint4x2":
        shape = (*shape[:-1], -(-shape[-1] // 8) * 8)
    position = len(shape) - 2 if axis == -2 else len(shape) - 1
    count = 1 if is_one else shape[position]
    own: tuple[int, ...] = (count,)
    if draw.chance(0.5):
        own = tuple(count if index == position else 1 for index in range(len(shape)))
    return {
        "input": draw.numbers(shape, kind), "scales": draw.numbers(own, scale_kind),
        "zero_points": None if is_bare else draw.numbers(own, scale_kind), "dtype": dtype,
        "axis": axis, "div_mode": False,
    }  # fmt: skip


@recipe("npu_group_quant")
def group_quant(draw: Draw) -> Arguments:
    rows, columns = draw.size(120), draw.size(120)
    groups = draw.integer(250, 600) if draw.chance(0.1) else draw.integer(1, 12)
    if draw.chance(0.1):
        rows, columns, groups = draw.integer(1, 4), draw.integer(9000, 16000), 2
    dst_dtype = draw.pick(None, "int8", "qint8", "quint4x2")
    if dst_dtype == "quint4x2":
        columns = -(-columns // 8) * 8
    scale_kind = draw.pick(*FLOATS)
    ends = draw.counts(rows, groups).cumsum()
    offset = draw.pick(None, (), (1,))
    return {
        "x": draw.numbers((rows, columns), draw.pick(*FLOATS)),
        "scale": draw.numbers((groups, columns), scale_kind),
        "group_index": draw.listed(ends, draw.pick("int32", "int64")),
        "offset": None if offset is None else draw.tensor(offset, scale_kind),
        "dst_dtype": dst_dtype,
    }


def _in_groups(draw: Draw, rows: int, columns: int, kind: str) -> Arguments:
    """Smooth scales of groups, whose ends need not be in order."""
    groups = draw.integer(1, 9)
    ends = draw.rng.integers(0, rows, groups, endpoint=True)
    ends[-1] = rows + draw.integer(0, 2)
    return {
        "smooth_scales": draw.tensor((groups, columns), kind, high=2),
        "group_index": draw.listed(ends, "int32"),
    }


@recipe("npu_dynamic_quant")
def dynamic_quant(draw: Draw) -> Arguments:
    shape = draw.shape(2, 4)
    if draw.chance(0.3):
        shape = (*shape[:-1], 8 * draw.integer(14, 40))
    if draw.chance(0.2):
        shape = (draw.integer(1, 5), draw.pick(4096, 4128, 8192, 10256, draw.integer(2500, 14000)))
    if draw.is_old:
        shape = (*shape[:-1], -(-shape[-1] // 32) * 32)
        return {"x": draw.tensor(shape, "float16", "rows")}
    if draw.chance(0.12):
        rows = draw.integer(4, 384) if draw.only_times else draw.integer(4, 8)
        shape, kind = (rows, draw.pick(4096, 5120, 10240)), draw.half()
        found: Arguments = {"x": draw.tensor(shape, kind, "rows")}
        return found | (
            {"smooth_scales": draw.tensor(shape[-1:], kind, high=2)} if draw.chance(0.5) else {}
        )
    return _dynamic(draw, shape, ("single_row", "multi_row", "db", "base", "large"))


def _dynamic(draw: Draw, shape: tuple[int, ...], templates: tuple[str, ...]) -> Arguments:
    kind, dst_type = draw.half(), draw.pick(None, "int8", "quint4x2")
    if dst_type == "quint4x2":
        shape = (*shape[:-1], -(-shape[-1] // 8) * 8)
    found: Arguments = {"x": draw.tensor(shape, kind, "rows"), "dst_type": dst_type}
    match draw.integer(0, 3):
        case 0:
            found["smooth_scales"] = draw.tensor(shape[-1:], kind, "special", high=2)
        case 1:
            found["smooth_scales"] = draw.tensor(shape[-1:], kind, high=2)
        case 2:
            found |= _in_groups(draw, prod(shape[:-1]), shape[-1], kind)
            templates = ("moe", "moe_large")
    if draw.chance(0.4):
        found["template"] = draw.in_turn(*templates)
    return found


@recipe("npu_dynamic_quant_asymmetric")
def dynamic_quant_asymmetric(draw: Draw) -> Arguments:
    shape = draw.shape(2, 4)
    if draw.chance(0.35):
        shape = (draw.integer(1, 4), draw.pick(10256, draw.integer(2500, 14000)))
    if draw.chance(0.2):
        shape = (draw.integer(90, 120), shape[-1] if shape[-1] < 300 else 136)
    return _dynamic(draw, shape, ("db", "base", "large"))


@recipe("npu_dynamic_block_quant")
def dynamic_block_quant(draw: Draw) -> Arguments:
    shape = draw.pick((draw.size(90), draw.size(600)), (draw.integer(1, 4), draw.size(20), 300))
    found: Arguments = {"x": draw.numbers(shape, draw.half())}
    if draw.chance(0.3):
        found["min_scale"] = draw.pick(0.01, 1.0)
    return found


@recipe("npu_anti_quant")
def anti_quant(draw: Draw) -> Arguments:
    shape, is_packed = draw.shape(), draw.chance(0.4)
    columns = 8 * shape[-1] if is_packed else shape[-1]
    kind = draw.pick("float32", "float32", "bfloat16")
    own = draw.pick((1,), (columns,))
    found = {
        "x": draw.words(shape) if is_packed else draw.integers(shape),
        "scale": draw.numbers(own, kind, 1),
        "offset": draw.tensor(own, kind, high=9) if draw.chance(0.6) else None,
        "dst_dtype": draw.pick(None, "float16", "bfloat16"),
    }
    if draw.chance(0.3):
        found["src_dtype"] = "quint4x2" if is_packed else "int8"
    return found


@recipe("npu_trans_quant_param")
def trans_quant_param(draw: Draw) -> Arguments:
    n = draw.size(300)
    if draw.chance(0.5):
        shape = draw.pick((n,), (1, n), (n, 1), (draw.integer(1, 5), n))
        return {"scale": draw.numbers(shape, "float32", 2), "round_mode": draw.integer(0, 1)}
    own, other = draw.pick(((n,), (n,)), ((1,), (n,)), ((n,), (1,)), ((1, n), (1, n)))
    return {
        "scale": draw.numbers(own, "float32", 2), "offset": draw.numbers(other, "float32", 200),
        "round_mode": draw.integer(0, 1),
    }  # fmt: skip


@recipe("npu_convert_weight_to_int4pack")
def int4pack(draw: Draw) -> Arguments:
    shape = draw.size(60), 8 * draw.integer(1, 30)
    layout = "FRACTAL_NZ" if draw.chance(0.3) else "ND"
    if layout != "ND":
        shape = (16 * draw.integer(1, 4), 64 * draw.integer(1, 4))
    weight = draw.integers(shape, "int32", -8, 8, layout=layout)
    return {"weight": weight, "inner_k_tiles": draw.pick(0, 2)}


@recipe("npu_format_cast")
def format_cast(draw: Draw) -> Arguments:
    shape = draw.shape(2, 4)
    dtype = draw.pick("float16", "int8", "bfloat16", "int32", "float32")
    layout = draw.pick("ND", "FRACTAL_NZ")
    more: Arguments = {"layout": layout, "transposed": draw.chance(0.15)}
    if dtype in ("int8", "int32"):
        x = draw.integers(shape, dtype, -100, 100, **more)
    else:
        x = draw.tensor(shape, dtype, **more)
    return {"x": x, "acl_format": draw.pick(29, 29, 2, "FRACTAL_NZ", "ND")}


# ---- activations ----


@recipe("npu_swiglu")
def swiglu(draw: Draw) -> Arguments:
    shape = list(draw.shape(1, 4))
    dim = draw.integer(-len(shape), len(shape) - 1) if draw.chance(0.4) else -1
    dtype = draw.floating()
    step = 2 * (64 // (2 if dtype == "float16" else 4)) if draw.is_old else 2
    shape[dim] = step * max(1, shape[dim] // step)
    return {"x": draw.numbers(tuple(shape), dtype, draw.pick(2, 40)), "dim": dim}


@recipe("npu_swiglu_backward")
def swiglu_backward(draw: Draw) -> Arguments:
    given = swiglu(draw)
    shape, dim = list(given["x"].shape), given["dim"]
    shape[dim] //= 2
    grad = draw.numbers(tuple(shape), str(given["x"].dtype), 2)
    return {"grad_output": grad, **given}


@recipe("npu_swiglu_quant")
def swiglu_quant(draw: Draw) -> Arguments:
    rows, half, mode = draw.size(120), draw.size(120), draw.integer(0, 1)
    groups = draw.integer(1, 9) if draw.chance(0.9) else draw.integer(1, 96)
    dst_type = draw.pick(None, "int8", "quint4x2")
    half = 8 * max(1, half // 8) if dst_type == "quint4x2" else half
    kind = draw.integer(0, 1)
    counts = draw.counts(rows, groups)
    own: tuple[int, ...] = (groups, half)
    if mode == 0 and draw.chance(0.3):
        own = (groups,)
    found: Arguments = {
        "x": draw.numbers((rows, 2 * half), draw.pick(*FLOATS)),
        "smooth_scales": draw.tensor(own, "float32", high=2),
        "group_index": draw.listed(counts if kind else counts.cumsum(), "int32"),
        "group_list_type": kind, "quant_mode": mode, "dst_type": dst_type,
        "activate_left": draw.chance(0.5),
    }  # fmt: skip
    if draw.chance(0.2):
        found.pop("group_index")
        found["smooth_scales"] = draw.tensor((1, *own[1:]), "float32", high=2)
        own = (1, *own[1:])
    if mode == 0:
        found["offsets"] = draw.tensor(own, "float32", high=9)
    return found


@recipe("npu_dequant_swiglu_quant")
def dequant_swiglu_quant(draw: Draw) -> Arguments:
    rows, half, mode = draw.size(60), draw.size(120), draw.pick(0, 1, 1)
    if draw.chance(0.2):
        rows, half = draw.integer(1, 3), draw.integer(7000, 10000)
    elif draw.chance(0.5):
        return _dequant_in_groups(draw)
    dtype = draw.pick("int32", "float16", "bfloat16")
    if draw.chance(0.3):
        dtype, mode, half = "int32", 1, 32 * draw.integer(1, 8)
    found: Arguments = {"quant_mode": mode, "activate_left": draw.chance(0.5)}
    if dtype == "int32":
        found["x"] = draw.integers((rows, 2 * half), dtype, -3000, 3000)
        found["weight_scale"] = draw.positive((2 * half,), "float32")
        if draw.chance(0.7):
            found["activation_scale"] = draw.positive(draw.pick((rows,), (rows, 1)), "float32")
        if draw.chance(0.4):
            kind = draw.pick("int32", "float16", "bfloat16", "float32")
            found["bias"] = (
                draw.integers((2 * half,), kind, -999, 999) if kind == "int32"
                else draw.tensor((2 * half,), kind)
            )  # fmt: skip
    else:
        found["x"] = draw.numbers((rows, 2 * half), dtype, 3)
    own = draw.pick((half,), (1,)) if mode == 0 else (half,)
    if mode == 0 or draw.chance(0.6):
        found["quant_scale"] = draw.positive(own, "float32", 1)
    if mode == 0:
        found["quant_offset"] = draw.tensor(own, "float32", high=9)
    return found


def _dequant_in_groups(draw: Draw) -> Arguments:
    half, groups = 64 * draw.integer(1, 4), draw.integer(1, 8)
    if draw.chance(0.2):
        groups = draw.integer(20, 40)
    rows = draw.integer(1, 90)
    counts = draw.counts(rows, groups)
    if draw.chance(0.2):
        counts[-1] = max(0, counts[-1] - 2)
    dtype = draw.pick("int32", "bfloat16")
    found: Arguments = {"quant_mode": 1, "group_index": draw.listed(counts, "int64")}
    if dtype == "int32":
        found["x"] = draw.integers((rows, 2 * half), dtype, -3000, 3000)
        found["weight_scale"] = draw.positive((groups, 2 * half), "float32")
        found["activation_scale"] = draw.positive(draw.pick((rows,), (rows, 1)), "float32")
    else:
        found["x"] = draw.numbers((rows, 2 * half), dtype, 3)
    if draw.chance(0.5):
        found["quant_scale"] = draw.positive((groups, half), "float32", 1)
    if draw.chance(0.5):
        found["swiglu_mode"] = draw.integer(0, 2)
        found["clamp_limit"] = draw.pick(7.0, 2.5)
    found["activate_left"] = draw.chance(0.5)
    return found


# ---- norms ----


def _rows(draw: Draw) -> tuple[int, int]:
    """Rows and columns: few, many, short, long, multiples of blocks or not."""
    match draw.integer(0, 6):
        case 0:
            return draw.integer(1, 3), draw.size(1200)
        case 1:
            return draw.integer(1, 6), draw.integer(4000, 21000)
        case 2:
            return draw.integer(100, 500), draw.pick(16, 32, 48, 64, 80, 72)
        case _:
            return draw.size(90), draw.size(400)


def _epsilon(draw: Draw) -> Arguments:
    return {"epsilon": draw.pick(1e-6, 1e-5, 0.01)} if draw.chance(0.5) else {}


def _template(draw: Draw, *names: str) -> Arguments:
    is_free = draw.is_old or draw.chance(0.55)
    return {} if is_free else {"template": draw.in_turn(*names)}


def _norm_shapes(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    rows, columns = _rows(draw)
    if draw.is_old:
        columns = -(-columns // 16) * 16
        if draw.chance(0.1):
            rows, columns = 16 * draw.integer(1, 4), 128
    shape, own = (rows, columns), (columns,)
    if draw.chance(0.2):
        return (draw.integer(1, 3), *shape), own
    if draw.chance(0.1):
        return (2, rows, 4, 16), (4, 16)
    return shape, own


@recipe("npu_rms_norm")
def rms_norm(draw: Draw) -> Arguments:
    dtype = draw.floating()
    shape, own = _norm_shapes(draw)
    is_mixed = not draw.is_old and draw.chance(0.25)
    how = "normal" if draw.is_old else draw.pick("normal", "rows")
    names = ("merge_n", "normal", "split_d", *(("single_row",) if is_mixed else ()))
    return {
        "x": draw.tensor(shape, dtype, how),
        "gamma": draw.tensor(own, "float32" if is_mixed else dtype),
        **_epsilon(draw), **_template(draw, *names),
    }  # fmt: skip


@recipe("npu_rms_norm_backward")
def rms_norm_backward(draw: Draw) -> Arguments:
    shape, own = _norm_shapes(draw)
    dtype, is_mixed = draw.floating(), draw.chance(0.25)
    return {
        "dy": draw.tensor(shape, dtype), "x": draw.tensor(shape, dtype),
        "gamma": draw.tensor(own, "float32" if is_mixed else dtype),
        "rstd": draw.tensor((*shape[: len(shape) - len(own)], *[1] * len(own)), "float32"),
    }  # fmt: skip


@recipe("npu_add_rms_norm")
def add_rms_norm(draw: Draw) -> Arguments:
    dtype = draw.floating()
    shape, own = _norm_shapes(draw)
    if draw.chance(0.15):
        # Rows of which a core takes several at a time.
        dtype, own = "float16", (16 * draw.integer(1, 40),)
        shape = (draw.integer(49, 120), *own)
    how = "normal" if draw.is_old else draw.pick("normal", "rows")
    return {
        "x1": draw.tensor(shape, dtype, how), "x2": draw.tensor(shape, dtype, how),
        "gamma": draw.tensor(own, dtype), **_epsilon(draw),
        **_template(draw, "split_d", "single_n", "merge_n", "multi_n", "normal"),
    }  # fmt: skip


@recipe("npu_add_rms_norm_dynamic_quant")
def add_rms_norm_dynamic_quant(draw: Draw) -> Arguments:
    dtype, (rows, columns) = draw.half(), _rows(draw)
    shape = (2, rows, columns) if draw.chance(0.2) else (rows, columns)
    found: Arguments = {
        name: draw.tensor(shape, dtype, draw.pick("normal", "rows")) for name in ("x1", "x2")
    }
    found["gamma"] = draw.tensor((columns,), dtype)
    if draw.chance(0.6):
        found["smooth_scale1"] = draw.tensor((columns,), dtype)
        if draw.chance(0.6):
            found["smooth_scale2"] = draw.tensor((columns,), dtype)
    if draw.chance(0.4):
        found["beta"] = draw.tensor((columns,), dtype)
    if draw.chance(0.2):
        found["output_mask"] = draw.pick([True, False], [True, True], [False, True])
    if draw.chance(0.25):
        found["y_dtype"] = draw.pick("int8", "quint4x2")
    return found | _epsilon(draw) | _template(draw, "normal", "single_row", "slice_d")


@recipe("npu_add_rms_norm_quant")
def add_rms_norm_quant(draw: Draw) -> Arguments:
    dtype = draw.half()
    shape, own = _norm_shapes(draw)
    is_float = dtype == "float16" or draw.chance(0.2)
    scale_kind, point_kind = ("float32", "int32") if is_float else ("bfloat16", "bfloat16")
    is_one = not draw.is_old and draw.chance(0.2)
    columns = (1,) if is_one else own

    def points() -> object:
        if point_kind == "int32":
            return draw.integers(columns, "int32", -20, 20)
        return draw.tensor(columns, point_kind, high=9)

    found: Arguments = {
        "x1": draw.tensor(shape, dtype), "x2": draw.tensor(shape, dtype),
        "gamma": draw.tensor(own, dtype), "scales1": draw.positive(columns, scale_kind, 1),
        "zero_points1": points() if draw.chance(0.8) else None,
    }  # fmt: skip
    if draw.chance(0.4) or is_one:
        found["beta"] = draw.tensor(own, dtype)
    if draw.chance(0.3) and not is_one:
        found["scales2"] = draw.positive(columns, scale_kind, 1)
        found["zero_points2"] = points()
    if draw.chance(0.4) and not is_one:
        found["div_mode"] = draw.chance(0.5)
    names = {} if is_one else _template(draw, "single_n", "split_d", "normal")
    return found | _epsilon(draw) | names
