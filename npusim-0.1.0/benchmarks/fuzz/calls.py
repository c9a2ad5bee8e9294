"""Calls of operators: right ones, of which some arguments are then exchanged for others."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from outcome import Case

import npusim
from npusim import Tensor, TensorSpec, devices, ops
from npusim.data.dtypes import DTYPES

__all__ = ["call"]

Rng = np.random.Generator
NAMES = tuple(dtype.name for dtype in DTYPES)
SIZES = (1, 2, 3, 8, 16, 17, 31, 32, 33, 40, 64, 96, 128, 200, 256, 512)
FLOATS = ("float16", "bfloat16", "float32")
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 48, 64, 2**31, 2**63, -(2**70), 0.5, float("nan"), float("inf"),
    "", "int8", "qint8", "quint8", "int32", "quint4x2", "float16", "nd", "\x1b[31m", "$x_1$", b"x",
    [], [1, 2], (), (1,), {}, {"a": 1}, object, np.float16, np.dtype("int8"), np.float32(1.5),
    np.int64(7), np.array(3), np.zeros(0, np.float16), np.zeros((2, 0)), np.array(["a"]),
    np.array([None]), np.ones((2, 2), complex), lambda: None,
)  # fmt: skip
NAMES_OF_DEVICES: tuple[Any, ...] = (
    "", " ", "Ascend", "ascend310b", "A2", "910B3", "310p", "Atlas A2", "a/b", "./none.toml", "..",
    "\x1b[2J", "x" * 5000, None, 7, 1.5, b"ascend910b2", [], "$a$", "\0",
)  # fmt: skip


def call(rng: Rng) -> Case:
    """A call of one operator on one chip, right in most of its arguments."""
    op = str(rng.choice(ops.names()))
    arguments = right(rng, op)
    for _ in range(rng.choice([0, 0, 1, 1, 1, 2, 3])):
        name = str(rng.choice([*ops.signature(ops.load(op)).parameters]))
        if rng.random() < 0.1:
            arguments.pop(name, None)
        else:
            arguments[name] = other(rng, arguments.get(name))
    options = _options(rng)
    text = f"run({op!r}, **{_text(arguments)}, **{_text(options)})"
    return Case(text, lambda: _run(op, arguments, options))


def _run(op: str, arguments: dict[str, Any], options: dict[str, Any]) -> None:
    """Run the call; its values must be those of the operator's reference."""
    result = npusim.run(op, **arguments, **options)
    if any(isinstance(output, TensorSpec) for output in result.outputs.values()):
        return
    operator = ops.load(op)
    bound = ops.signature(operator).bind(**arguments)
    bound.apply_defaults()
    # An oracle whose result depends on them takes the chip and the cube's order too.
    own = inspect.signature(operator.reference).parameters
    chosen = {"spec": result.device, "cube_order": _order_of(options)}
    extra = {name: value for name, value in chosen.items() if name in own}
    wanted = operator.reference(**ops.normalize(operator, dict(bound.arguments)), **extra)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for got, reference in zip(result.outputs.values(), wanted, strict=True):
        ours, theirs = _bytes(got), _bytes(reference)
        if ours != theirs:
            raise AssertionError(f"{op}: values differ from those of its reference")


def _order_of(options: dict[str, Any]) -> str:
    """The order in which the cube adds up, as the run had it."""
    return str(options.get("cube_order", "k16"))


def _bytes(values: Any) -> bytes:
    array = values.storage if isinstance(values, Tensor) else np.asarray(values)
    return bytes(np.ascontiguousarray(array).tobytes())


def _options(rng: Rng) -> dict[str, Any]:
    options: dict[str, Any] = {"device": str(rng.choice(devices.names()))}
    if rng.random() < 0.05:
        options["device"] = NAMES_OF_DEVICES[rng.integers(len(NAMES_OF_DEVICES))]
    choices: dict[str, tuple[Any, ...]] = {
        "l2": ("cold", "warm", "repeat", ("x",), (), "again", None, 1, [], np.array(["cold"])),
        "values": (True, False, 0, None),
        "timing": (True, False, "yes"),
        "every_core": (True, False, None),
        "byte_exact": (True, False),
        "cube_order": ("k16", "k8", None, 3, np.array(["k16"])),
    }
    for name, values in choices.items():
        if rng.random() < 0.1:
            options[name] = values[rng.integers(len(values))]
    return options


def right(rng: Rng, op: str) -> dict[str, Any]:
    """Arguments that *op* takes on most chips."""
    m, k, n = (int(size) for size in rng.choice(SIZES, 3))
    dtype = str(rng.choice(FLOATS))

    def tensor(shape: tuple[int, ...], dtype: str, layout: str = "ND") -> Any:
        return tensor_of(rng, shape, dtype, layout)

    layout = str(rng.choice(["ND", "FRACTAL_NZ"]))
    match op:
        case "matmul":
            call = {"x1": tensor((m, k), dtype), "x2": tensor((k, n), dtype, layout)}
            return call | {"output_dtype": str(rng.choice([dtype, "float32"]))}
        case "npu_anti_quant":
            return {"x": tensor((m, n), "int8"), "scale": tensor((n,), "float32")}
        case "npu_convert_weight_to_int4pack":
            return {"weight": tensor((k, 8 * n), "int32")}
        case "npu_dynamic_quant" | "npu_dynamic_quant_asymmetric":
            return {"x": tensor((m, n), dtype)}
        case "npu_format_cast":
            return {"x": tensor((m, n), dtype), "acl_format": 29}
        case "npu_gelu":
            how = str(rng.choice(["none", "tanh"]))
            return {"x": tensor((m, n), dtype), "approximate": how}
        case "npu_group_quant":
            ends = np.sort(rng.integers(0, m, 3)).astype(np.int32)
            ends[-1] = m
            scale = tensor((3, n), "float32")
            return {"x": tensor((m, n), dtype), "scale": scale, "group_index": ends}
        case "npu_grouped_matmul_swiglu_quant":
            weight = rng.integers(-128, 128, (2, 16 * k, 32)).astype(np.int8)
            return {"x": tensor((m, 16 * k), "int8"), "weight": Tensor.of(weight, "FRACTAL_NZ"),
                    "group_list": np.array([m // 2, m]), "x_scale": tensor((m,), "float32"),
                    "weight_scale": tensor((2, 32), dtype)}  # fmt: skip
        case "npu_quant_matmul" if rng.random() < 0.2:
            scale = rng.integers(0, 2**32, 8 * n, dtype=np.uint64)
            return {"x1": tensor((m, 2 * k), "int8"), "x2": tensor((2 * k, n), "int32"),
                    "scale": scale, "offset": tensor((8 * n,), "float32"),
                    "pertoken_scale": tensor((m,), "float32"),
                    "output_dtype": str(rng.choice(["float16", "bfloat16"]))}  # fmt: skip
        case "npu_grouped_matmul":
            return _grouped_matmul(rng, (m, k, n), layout)
        case "npu_quant_matmul":
            x2 = tensor((k, n), "int8", layout)
            scale = tensor((n,), "float32")
            return {"x1": tensor((m, k), "int8"), "x2": x2, "scale": scale,
                    "output_dtype": str(rng.choice(["float16", "bfloat16", "int8"]))}  # fmt: skip
        case "npu_quantize":
            scales = tensor((n,), "float32")
            return {"input": tensor((m, n), dtype), "scales": scales, "zero_points": None,
                    "dtype": "qint8", "axis": 1}  # fmt: skip
        case "npu_trans_quant_param":
            return {"scale": tensor((n,), "float32")}
        case "npu_transpose_batchmatmul":
            half = str(rng.choice(FLOATS))
            return {"input": tensor((3, m, k), half), "weight": tensor((3, k, n), half)}
        case "npu_weight_quant_batchmatmul":
            half = str(rng.choice(FLOATS[:2]))
            weight, scale = tensor((k, n), "int8", layout), tensor((n,), half)
            return {"x": tensor((m, k), half), "weight": weight, "antiquant_scale": scale}
        case _:
            return _between_products(rng, op, (m, k, n), dtype)


def _grouped_matmul(rng: Rng, sizes: tuple[int, int, int], layout: str) -> dict[str, Any]:
    """Rows in three groups, of floats or of int8."""
    m, k, n = sizes
    if rng.random() < 0.4:
        return _of_quantised_weights(rng, (m, k, n))
    dtype, output = [
        ("float16", None), ("bfloat16", None), ("int8", "int32"), ("int8", "float16"),
        ("int8", "bfloat16"),
    ][rng.integers(5)]  # fmt: skip
    ends = np.sort(rng.integers(0, m, 3, endpoint=True))
    given = {"x": tensor_of(rng, (m, k), dtype), "output_dtype": output}
    if output in FLOATS:
        kind = "float32" if output == "float16" else output
        given |= {"scale": tensor_of(rng, (3, n), kind), "act_type": int(rng.choice([0, 1, 5]))}
    if output in FLOATS and rng.random() < 0.5:
        given["per_token_scale"] = tensor_of(rng, (m,), "float32")
    weight = tensor_of(rng, (3, k, n), dtype, layout)
    return given | {"weight": weight, "group_list": ends, "group_type": 0, "split_item": 3}


def _of_quantised_weights(rng: Rng, sizes: tuple[int, int, int]) -> dict[str, Any]:
    """Rows in three groups by weights of int8 or int4: floats, int8 or int4."""
    m, k, n = sizes
    counts = np.diff(np.sort(rng.integers(0, m, 4, endpoint=True)))
    groups = {"group_list": counts, "group_list_type": 1, "group_type": 0, "split_item": 3}
    kind = str(rng.choice(["float16", "bfloat16", "int8", "int32"]))
    if kind in FLOATS:
        numbers = {
            name: tensor_of(rng, (3, n), kind) for name in ("antiquant_scale", "antiquant_offset")
        }
        weight = tensor_of(rng, (3, k, n), "int8")
        return groups | numbers | {"x": tensor_of(rng, (m, k), kind), "weight": weight}
    k, n = 64 * max(1, k // 64), 8 * max(1, n // 8)
    x = tensor_of(rng, (m, k), "int8") if kind == "int8" else tensor_of(rng, (m, k // 8), "int32")
    bias = {"bias": tensor_of(rng, (3, n), "float32")} if kind == "int8" else {}
    scale = rng.integers(0, 2**31, (3, n), dtype=np.uint64)
    more = {"scale": scale, "per_token_scale": tensor_of(rng, (m,), "float32")}
    weight = tensor_of(rng, (3, k, n // 8), "int32")
    return groups | bias | more | {"x": x, "weight": weight, "output_dtype": "float16"}


def _between_products(rng: Rng, op: str, sizes: tuple[int, int, int], dtype: str) -> dict[str, Any]:
    """Arguments of *op*, one of those that stand between the products of a model."""
    m, k, n = sizes

    def tensor(shape: tuple[int, ...], dtype: str) -> Any:
        return tensor_of(rng, shape, dtype)

    match op:
        case "embedding":
            return {"weight": tensor((k, n), dtype), "indices": rng.integers(0, k, m, np.int32)}
        case "index_select":
            return {"x": tensor((k, n), dtype), "dim": 0, "index": rng.integers(0, k, m, np.int32)}
        case "npu_add_rms_norm" | "npu_add_rms_norm_dynamic_quant" | "npu_add_rms_norm_quant":
            half = str(rng.choice(FLOATS[:2]))
            added = {name: tensor((m, n), half) for name in ("x1", "x2")}
            point = "int32" if half == "float16" else half
            scale = tensor((n,), "float32" if half == "float16" else half)
            more = {"scales1": scale, "zero_points1": tensor((n,), point)}
            is_quant = op == "npu_add_rms_norm_quant"
            return {**added, "gamma": tensor((n,), half), **(more if is_quant else {})}
        case "npu_apply_rotary_pos_emb":
            heads = {"query": 4, "key": 1, "cos": 1, "sin": 1}
            return {name: tensor((1, m, count, 64), dtype) for name, count in heads.items()}
        case "npu_fused_infer_attention_score":
            write = (_attention, _attention_in_a_layout, _attention_of_int8)[int(rng.integers(3))]
            return write(rng, m, n, str(rng.choice(FLOATS[:2])))
        case "npu_incre_flash_attention":
            found = _attention_of_int8(rng, m, n, str(rng.choice(FLOATS[:2])), modes=1)
            found["scale_value"] = found.pop("scale")
            return {name: value for name, value in found.items() if name != "antiquant_mode"}
        case "npu_fused_infer_attention_score_v2":
            names = {"actual_seq_lengths": "actual_seq_qlen", "num_heads": "num_query_heads"}
            names |= {"actual_seq_lengths_kv": "actual_seq_kvlen", "scale": "softmax_scale"}
            found = _attention(rng, m, n, str(rng.choice(FLOATS[:2])))
            return {names.get(name, name): value for name, value in found.items()}
        case "npu_dequant_swiglu_quant":
            return {"x": tensor((m, 2 * n), str(rng.choice(FLOATS[:2]))), "quant_mode": 1}
        case "npu_moe_init_routing_v2":
            where = rng.integers(0, 9, (m, 2), np.int32)
            is_padded = rng.random() < 0.5
            padded = {"drop_pad_mode": 1, "expert_capacity": k} if is_padded else {}
            return {"x": tensor((m, n), dtype), "expert_idx": where, "expert_num": 9} | padded
        case "npu_moe_gating_top_k" | "npu_moe_gating_top_k_softmax":
            return {"x": tensor((m, n), dtype), "k": 1}
        case "npu_moe_finalize_routing":
            where = rng.permutation(2 * m).astype(np.int32)
            given = dict.fromkeys(("skip1", "skip2", "bias", "export_for_source_row"))
            rows = {"expanded_permuted_rows": tensor((2 * m, n), dtype)}
            scales = {"scales": tensor((m, 2), dtype)}
            return given | rows | scales | {"expanded_src_to_dst_row": where}
        case "npu_reshape_and_cache" | "npu_scatter_pa_kv_cache":
            tokens = {name: tensor((m, 1, 32), dtype) for name in ("key", "value")}
            is_norm = {"cache_mode": "Norm"} if op == "npu_scatter_pa_kv_cache" else {}
            pages = {f"{name}_cache": tensor((m, 2, 1, 32), dtype) for name in tokens}
            slots = "slot_mapping" if is_norm else "slot_indices"
            return tokens | pages | is_norm | {slots: rng.permutation(2 * m)[:m].astype(np.int32)}
        case "npu_rms_norm":
            return {"x": tensor((m, n), dtype), "gamma": tensor((n,), dtype)}
        case "npu_rotary_mul":
            shapes = {"self": (1, 2, m, 64), "r1": (1, 1, m, 64), "r2": (1, 1, m, 64)}
            return {name: tensor(shape, dtype) for name, shape in shapes.items()}
        case "npu_scatter_nd_update":
            rows = rng.permutation(k)[: min(m, k)].astype(np.int32).reshape(-1, 1)
            tensors = {"self": tensor((k, n), dtype), "updates": tensor((len(rows), n), dtype)}
            return tensors | {"indices": rows}
        case "npu_swiglu" | "npu_swiglu_quant":
            return {"x": tensor((m, 2 * n), dtype)}
        case _:
            return _plain(op, tensor((m, n), dtype), tensor((m, n), dtype))


def _attention_in_a_layout(rng: Rng, tokens: int, keys: int, dtype: str) -> dict[str, Any]:
    """Attention of one or two requests in another layout, with any mask."""
    heads, group, size = int(rng.choice([1, 2])), int(rng.choice([1, 3])), int(rng.choice([16, 64]))
    layout = str(rng.choice(["BSH", "BSND", "BNSD"]))
    # Of one token modes do not count, and a mask is one of (requests, keys).
    mode = int(rng.choice([0, 1, 2, 3, 4])) if tokens > 1 else int(rng.choice([0, 1]))
    requests = int(rng.choice([1, 2]))

    def shape(count: int, length: int) -> tuple[int, ...]:
        if layout == "BNSD":
            return requests, count, length, size
        own = (count, size) if layout == "BSND" else (count * size,)
        return requests, length, *own

    mask = (rng.random((tokens if tokens > 1 else requests, keys)) < 0.2).astype(np.uint8)
    if mode > 1:
        mask = np.triu(np.ones((2048, 2048), np.uint8), 1)
    return {
        "query": tensor_of(rng, shape(heads * group, tokens), dtype),
        "key": tensor_of(rng, shape(heads, keys), dtype),
        "value": tensor_of(rng, shape(heads, keys), dtype),
        "atten_mask": mask,
        "num_heads": heads * group,
        "num_key_value_heads": heads,
        "scale": size**-0.5,
        "input_layout": layout,
        "sparse_mode": mode,
        "pre_tokens": int(rng.integers(10, 40)),
        "next_tokens": int(rng.integers(-10, 40)),
        "inner_precise": int(rng.choice([0, 2])) if tokens > 1 else 0,
        "softmax_lse_flag": bool(rng.random() < 0.5),
    }


def _attention_of_int8(
    rng: Rng, requests: int, keys: int, dtype: str, modes: int = 2
) -> dict[str, Any]:
    """Attention of a token of some requests to keys and values of int8; *modes* of scales."""
    requests = min(requests, 3)
    heads, group, size = int(rng.choice([1, 2])), int(rng.choice([1, 3])), int(rng.choice([32, 64]))
    layout, mode = str(rng.choice(["BSH", "BSND", "BNSD"])), int(rng.integers(modes))

    def shape(count: int, length: int) -> tuple[int, ...]:
        if layout == "BNSD":
            return requests, count, length, size
        own = (count, size) if layout == "BSND" else (count * size,)
        return requests, length, *own

    columns: tuple[int, ...] = {"BSH": (heads * size,), "BSND": (heads, size)}.get(
        layout, (heads, 1, size)
    )
    kind = int(rng.integers(2))
    scale = tensor_of(rng, (2, *columns) if kind else (2,), dtype)
    if mode:
        scale = tensor_of(rng, (2, requests, keys), "float32")
    return {
        "query": tensor_of(rng, shape(heads * group, 1), dtype),
        "key": tensor_of(rng, shape(heads, keys), "int8"),
        "value": tensor_of(rng, shape(heads, keys), "int8"),
        "antiquant_scale": scale,
        "antiquant_mode": mode,
        "num_heads": heads * group,
        "num_key_value_heads": heads,
        "scale": size**-0.5,
        "input_layout": layout,
    }


def _attention(rng: Rng, tokens: int, keys: int, dtype: str) -> dict[str, Any]:
    """Attention of one request in TND, its keys in pages or not, causal where it can be."""
    heads, group, size = int(rng.choice([1, 2])), int(rng.choice([1, 3])), int(rng.choice([16, 64]))
    own: dict[str, Any] = {
        "query": tensor_of(rng, (tokens, heads * group, size), dtype),
        "actual_seq_lengths": [tokens],
        "actual_seq_lengths_kv": [keys],
        "num_heads": heads * group,
        "num_key_value_heads": heads,
        "scale": size**-0.5,
        "input_layout": "TND",
    }
    shape: tuple[int, ...] = keys, heads, size
    if rng.random() < 0.5:
        blocks = -(-keys // 128)
        shape = blocks, 128, heads * size
        table = rng.permutation(blocks).astype(np.int32)[None]
        own |= {"block_table": table, "block_size": 128}
    if keys >= tokens:
        own |= {"sparse_mode": 3, "atten_mask": np.triu(np.ones((2048, 2048), np.int8), 1)}
    return own | {name: tensor_of(rng, shape, dtype) for name in ("key", "value")}


def _plain(op: str, x: Any, other: Any) -> dict[str, Any]:
    """A right call of *op*, an operator of torch's own that takes one tensor or two alike."""
    if op.startswith("logical_"):
        x = other = np.ones(x.shape, np.uint8)
    known = {"x": x, "other": other, "condition": np.zeros(x.shape, np.uint8),
             "dtype": "float32", "dim": 0, "start": 0, "length": 1, "dims": (1, 0),
             "shape": (2, *x.shape), "value": 1.5, "alpha": 2.5, "exponent": 2.0,
             "tensors": [x, other]}  # fmt: skip
    parameters = ops.signature(ops.load(op)).parameters.values()
    needed = [each.name for each in parameters if each.default is each.empty]
    if op.startswith("npu_") or not set(needed) <= set(known):
        raise AssertionError(f"fuzz: there must be a right call of {op}; add one to right()")
    return {name: known[name] for name in needed} | ({"low": -1.0} if op == "clamp" else {})


def tensor_of(rng: Rng, shape: tuple[int, ...], dtype: str, layout: str = "ND") -> Any:
    """A tensor of random numbers, or its shape alone; now and then a transposed one."""
    if rng.random() < 0.5:
        spec = TensorSpec(shape, dtype, layout)  # type: ignore[arg-type]
        return spec.T if rng.random() < 0.1 and len(shape) > 1 else spec
    numbers = rng.normal(0, 40, shape)
    with np.errstate(all="ignore"):
        array = numbers.astype(TensorSpec(shape, dtype).element.numpy)
    if layout == "FRACTAL_NZ":
        return Tensor.of(array, "FRACTAL_NZ")
    if rng.random() < 0.1 and len(shape) > 1:
        return np.ascontiguousarray(array.T).T
    return array


def other(rng: Rng, value: Any) -> Any:
    """Something in place of *value*: a little different, or of quite another kind."""
    if not isinstance(value, np.ndarray | Tensor | TensorSpec) or rng.random() < 0.3:
        if rng.random() < 0.3:
            shape = tuple(int(size) for size in rng.choice((0, *SIZES), rng.integers(0, 4)))
            return tensor_of(rng, shape, str(rng.choice(NAMES)))
        return ODD_VALUES[rng.integers(len(ODD_VALUES))]
    spec = value if isinstance(value, TensorSpec) else None
    shape, dtype = list(value.shape), str(rng.choice(NAMES))
    if spec is not None and rng.random() < 0.5:
        dtype = spec.dtype
    if shape and rng.random() < 0.6:
        shape[rng.integers(len(shape))] = int(rng.choice((0, 1, *SIZES)))
    if rng.random() < 0.2:
        shape = [1, *shape] if rng.random() < 0.5 else shape[1:]
    layout = "FRACTAL_NZ" if rng.random() < 0.2 and len(shape) > 1 else "ND"
    try:
        return tensor_of(rng, tuple(shape), dtype, layout)
    except (ValueError, TypeError):
        # No such tensor can be made, which is not what is tried here.
        return None


def _text(arguments: dict[str, Any]) -> str:
    parts = [f"{name!r}: {_short(value)}" for name, value in arguments.items()]
    return "{" + ", ".join(parts) + "}"


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"<array {value.shape} {value.dtype}>"
    if isinstance(value, Tensor):
        return f"<{value.spec}>"
    return repr(value)[:200]
