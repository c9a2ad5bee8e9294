"""From a kernel of a profile to the calls that it may have been.

A profile has the type of a kernel and its operands, without values and attributes. What that leaves
open is read in every way that fits, and the times of all readings are the bounds of the kernel's:

* A weight lies as `[N, K]` or `[K, N]` where a square fits both; so does what comes first.
* Rows of a grouped product go to all experts alike, or all to one.
* Requests of an attention have any number of keys, from one a token to as many as their pages hold.
* A slice begins at the first element, at the second, or ends at the last.

Attributes that no shape shows are those that engines for inference pass, assumed: softmax goes
along the last axis, quantisation of rows is dynamic and npu_quantize multiplies, cos and sin turn
halves, gates have no groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice, permutations
from math import prod
from typing import Any

from npusim import ops
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.profile import products
from npusim.profile.attention import attention
from npusim.profile.kernels import Kernel, spec_of
from npusim.profile.shapes import Reading, given, only_output, without_ones
from npusim.validation.timed import Argument, Call, NotModelledError

__all__ = ["readings"]

MOST_ORDERS = 4
"""So many orders of axes are tried for one that shapes leave open."""
VARIANTS = ("AiCore", "Aicore", "AICore")
"""What a kernel may be called behind its type."""


def readings(kernel: Kernel, device: str | DeviceSpec) -> tuple[Call, ...]:
    """The calls that *kernel* may have been on *device*, with nothing in the caches.

    Raises NotModelledError where npusim has no such kernel, or not enough is known of it.
    """
    name = next(
        (kernel.type.removesuffix(end) for end in VARIANTS if kernel.type.endswith(end)),
        kernel.type,
    )
    if kernel.is_communication:
        raise NotModelledError("it moves data between cards")
    if kernel.cores == "AI_CPU":
        raise NotModelledError("it runs on the AI CPU")
    known = routes()
    if name not in known:
        raise NotModelledError(f"npusim has no kernel {kernel.type}")
    try:
        # Of readings that are alike one is enough; values of groups do not compare.
        found = {repr(each): each for each in known[name](kernel)}
    except NotModelledError:
        raise
    except (ValueError, IndexError, TypeError, ZeroDivisionError):
        raise NotModelledError(f"its operands are not those of {kernel.type}") from None
    if not found:
        raise NotModelledError(f"its shapes are not those of {kernel.type}")
    return tuple(
        Call(each.op, each.args, device, "cold", "cold", each.options) for each in found.values()
    )


# ---- one input after the other ----


def _inputs(op: str, kernel: Kernel, *more: Argument, most: int | None = None) -> Iterator[Reading]:
    """*op* of the inputs as they are, and then *more*."""
    yield Reading.of(op, *given(kernel)[:most], *more)


def _first(op: str, kernel: Kernel) -> Iterator[Reading]:
    yield Reading.of(op, given(kernel)[0])


def _binary(op: str, kernel: Kernel) -> Iterator[Reading]:
    """The second may be a number, which is an input without extents or none at all."""
    x, *others = given(kernel)
    if not others or others[0].shape == ():
        yield Reading.of(op, x, 1.0)
    else:
        yield Reading.of(op, x, others[0])


def _power(kernel: Kernel) -> Iterator[Reading]:
    for exponent in (2.0, 3.0, 0.5):
        yield Reading.of("pow", given(kernel)[0], exponent)


def _clamp(kernel: Kernel) -> Iterator[Reading]:
    yield Reading.of("clamp", given(kernel)[0], -1.0, 1.0)


def _where(kernel: Kernel) -> Iterator[Reading]:
    """A number may be an input without extents, or none at all."""
    condition, *tensors = given(kernel)
    values = [1.0 if each.shape == () else each for each in tensors]
    yield Reading.of("where", condition, *values, *[1.0] * (2 - len(values)))


def _cast(kernel: Kernel) -> Iterator[Reading]:
    yield Reading.of("cast", given(kernel)[0], only_output(kernel).dtype)


def _fill(kernel: Kernel) -> Iterator[Reading]:
    yield Reading.of("fill", only_output(kernel), 1.0)


def _broadcast(kernel: Kernel) -> Iterator[Reading]:
    yield Reading.of("broadcast_to", given(kernel)[0], shape=only_output(kernel).shape)


# ---- copies ----


def _concat(kernel: Kernel) -> Iterator[Reading]:
    tensors, out = given(kernel), only_output(kernel).shape
    for dim in range(len(out)):
        joined = sum(each.shape[dim] for each in tensors)
        if (*tensors[0].shape[:dim], joined, *tensors[0].shape[dim + 1 :]) == out:
            yield Reading.of("concat", tensors=tensors, dim=dim)


def _slice(kernel: Kernel) -> Iterator[Reading]:
    x, out = given(kernel)[0], only_output(kernel).shape
    cut = [dim for dim, (a, b) in enumerate(zip(x.shape, out, strict=True)) if a != b]
    if len(cut) > 1:
        raise NotModelledError("it is cut along several axes")
    dim = cut[0] if cut else 0
    last = x.shape[dim] - out[dim]
    for start in dict.fromkeys((0, min(1, last), last)):
        yield Reading.of("narrow", x, dim, start, out[dim])


def _transpose(kernel: Kernel) -> Iterator[Reading]:
    x, out = given(kernel)[0], only_output(kernel).shape
    orders = (
        order
        for order in permutations(range(len(x.shape)))
        if tuple(x.shape[axis] for axis in order) == out and order != tuple(range(len(x.shape)))
    )
    for order in islice(orders, MOST_ORDERS):
        yield Reading.of("permute", x, dims=order)


def _layout(kernel: Kernel) -> Iterator[Reading]:
    out = only_output(kernel)
    x = given(kernel)[0]
    if x.layout == out.layout:
        raise NotModelledError("formats other than ND and FRACTAL_NZ")
    yield Reading.of("npu_format_cast", x, out.layout)


def _gather(op: str, kernel: Kernel) -> Iterator[Reading]:
    table, index, *_ = given(kernel)
    if op == "embedding":
        yield Reading.of(op, table, index)
        return
    out = only_output(kernel).shape
    for dim in range(len(table.shape)):
        if (*table.shape[:dim], *index.shape, *table.shape[dim + 1 :]) == out:
            yield Reading.of(op, table, dim, index)


# ---- reductions ----


def _reduction(op: str, kernel: Kernel) -> Iterator[Reading]:
    """Along neighbouring axes, which are one to the kernel."""
    x, out = given(kernel)[0], without_ones(spec_of(kernel.outputs[0]).shape)
    rank = len(x.shape)
    for first in range(rank):
        for after in range(first + 1, rank + 1):
            before, behind = x.shape[:first], x.shape[after:]
            if without_ones((*before, *behind)) != out:
                continue
            folded = TensorSpec((*before, prod(x.shape[first:after]), *behind), x.dtype)
            yield Reading.of(op, folded, dim=len(before))


# ---- norms, activations, quantisation ----


def _norm_quant(kernel: Kernel) -> Iterator[Reading]:
    x1, x2, gamma, *scales = given(kernel)
    names = ("smooth_scale1", "smooth_scale2")
    yield Reading.of(
        "npu_add_rms_norm_dynamic_quant", x1, x2, gamma, **dict(zip(names, scales, strict=False))
    )


def _static_norm_quant(kernel: Kernel) -> Iterator[Reading]:
    x1, x2, gamma, scales, *rest = given(kernel)
    points = rest[0] if rest else None
    yield Reading.of("npu_add_rms_norm_quant", x1, x2, gamma, scales1=scales, zero_points1=points)


def _quantize(divides: bool, kernel: Kernel) -> Iterator[Reading]:
    x, scale, *rest = given(kernel)
    offset = rest[0] if rest else None
    more = {"scales": scale, "zero_points": offset, "dtype": "qint8", "axis": -1}
    yield Reading.of("npu_quantize", x, **more, div_mode=divides)


def _dynamic_quant(op: str, kernel: Kernel) -> Iterator[Reading]:
    x, *rest = given(kernel)
    smooth = {"smooth_scales": rest[0]} if rest and rest[0].dtype == x.dtype else {}
    if len(rest) > len(smooth):
        raise NotModelledError("groups of rows are not read")
    yield Reading.of(op, x, **smooth)


def _swiglu_quant(kernel: Kernel) -> Iterator[Reading]:
    """x; of int32 its scales by column and by row; and scales of y."""
    x, *rest = given(kernel)
    columns = x.shape[-1]
    rows = prod(x.shape[:-1])
    options: dict[str, Any] = {"quant_mode": 1}
    for each in rest:
        if each.dtype == "int64":
            raise NotModelledError("groups of rows are not read")
        name = "quant_scale"
        if each.shape[-1] == columns and x.dtype == "int32":
            name = "weight_scale"
        elif each.size == rows and "activation_scale" not in options and x.dtype == "int32":
            name = "activation_scale"
        options[name] = each
    yield Reading.of("npu_dequant_swiglu_quant", x, **options)


# ---- rotary embedding and the cache ----


def _rotary(kernel: Kernel) -> Iterator[Reading]:
    yield Reading.of("npu_rotary_mul", *given(kernel)[:3])


def _two_rotary(kernel: Kernel) -> Iterator[Reading]:
    operands = given(kernel)[:4]
    layout = "TND" if len(operands[0].shape) == 3 else "BSND"
    yield Reading.of("npu_apply_rotary_pos_emb", *operands, layout=layout)


def _pages(kernel: Kernel) -> Iterator[Reading]:
    key, value, *rest = given(kernel)
    # torch_npu's order, or that of the kernel: key, key_cache, slot_mapping, value, value_cache.
    if len(rest) == 3 and rest[0].dtype.startswith("int"):
        key_cache, slots, value, value_cache = value, *rest
    else:
        key_cache, value_cache, slots = rest
    mode = "Norm" if key_cache.shape[-1] == key.shape[-1] else "PA_NZ"
    yield Reading.of(
        "npu_scatter_pa_kv_cache", key, value, key_cache, value_cache, slots, cache_mode=mode
    )


# ---- experts ----


def _gate(op: str, kernel: Kernel) -> Iterator[Reading]:
    x, *rest = given(kernel)
    k = spec_of(kernel.outputs[0]).shape[-1]
    if op == "npu_moe_gating_top_k":
        yield Reading.of(op, x, k, **({"bias": rest[0]} if rest else {}))
    else:
        yield Reading.of(op, x, rest[0] if rest else None, k)


def _init_routing(kernel: Kernel) -> Iterator[Reading]:
    x, index, *rest = given(kernel)
    experts = spec_of(kernel.outputs[2]).shape[0]
    options: dict[str, Any] = {"scale": rest[0]} if rest else {}
    options |= {"active_num": index.size, "expert_num": experts, "expert_tokens_num_type": 1}
    options |= {"expert_tokens_num_flag": True, "active_expert_range": (0, experts)}
    options["quant_mode"] = 1 if spec_of(kernel.outputs[0]).dtype == "int8" else -1
    yield Reading.of("npu_moe_init_routing_v2", x, index, **options)


def _finalize_routing(kernel: Kernel) -> Iterator[Reading]:
    rows, *rest = given(kernel)
    indices = [each for each in rest if each.dtype in ("int32", "int64")]
    tokens = only_output(kernel).shape[0]
    scales = next((each for each in rest if each.shape[0] == tokens and each not in indices), None)
    if len(indices) != 1 or scales is None:
        raise NotModelledError("with what is added to rows it is not read")
    yield Reading.of(
        *("npu_moe_finalize_routing", rows, None, None, None, scales, indices[0], None)
    )


@cache
def routes() -> dict[str, Callable[[Kernel], Iterator[Reading]]]:
    """Type of a kernel -> what it may have been."""
    found = {
        _type_of(name): partial(route, name) for route, names in ALIKE.items() for name in names
    }
    return found | products.ROUTES | OTHERS


def _type_of(op: str) -> str:
    kernel = ops.load(op).kernel_type
    assert isinstance(kernel, str)
    return kernel


ALIKE: dict[Callable[[str, Kernel], Iterator[Reading]], tuple[str, ...]] = {
    _first: (
        *("abs", "clone", "exp", "gelu", "log", "log_softmax", "logical_not", "neg", "npu_gelu"),
        *("npu_swiglu", "reciprocal", "relu", "rsqrt", "sigmoid", "silu", "softmax", "sqrt"),
        "tanh",
    ),
    _binary: (
        *("add", "axpy", "div", "eq", "ge", "gt", "le", "logical_and", "logical_or", "lt"),
        *("maximum", "minimum", "ne", "sub"),
    ),
    _reduction: ("sum", "mean", "amax", "argmax"),
}
"""How a kernel is read -> the operators that are, by the type that they declare."""
OTHERS: dict[str, Callable[[Kernel], Iterator[Reading]]] = {
    "Mul": partial(_binary, "mul"),
    "Muls": partial(_binary, "mul"),
    "Adds": partial(_binary, "add"),
    "Pows": _power,
    "ClipByValueV2": _clamp,
    "SelectV2": _where,
    "Select": _where,
    "Cast": _cast,
    "Fill": _fill,
    "BroadcastTo": _broadcast,
    "ConcatD": _concat,
    "Slice": _slice,
    "Transpose": _transpose,
    "TransData": _layout,
    "GatherV2": partial(_gather, "embedding"),
    "GatherV3": partial(_gather, "index_select"),
    "RmsNorm": partial(_inputs, "npu_rms_norm", most=2),
    "AddRmsNorm": partial(_inputs, "npu_add_rms_norm", most=3),
    "AddRmsNormBias": partial(_inputs, "npu_add_rms_norm", most=3),
    "AddRmsNormDynamicQuant": _norm_quant,
    "AddRmsNormQuant": _static_norm_quant,
    "AddRmsNormQuantV2": _static_norm_quant,
    "AscendQuantV2": partial(_quantize, False),
    "Quantize": partial(_quantize, True),
    "DynamicQuant": partial(_dynamic_quant, "npu_dynamic_quant"),
    "DynamicQuantV2": partial(_dynamic_quant, "npu_dynamic_quant_asymmetric"),
    "DequantSwigluQuant": _swiglu_quant,
    "TransQuantParamV2": partial(_inputs, "npu_trans_quant_param"),
    "RotaryMul": _rotary,
    "RotaryPositionEmbedding": _rotary,
    "ApplyRotaryPosEmb": _two_rotary,
    "ScatterPaKvCache": _pages,
    "reshape_and_cache": partial(_inputs, "npu_reshape_and_cache", most=5),
    "ScatterNdUpdate": partial(_inputs, "npu_scatter_nd_update", most=3),
    "MoeGatingTopK": partial(_gate, "npu_moe_gating_top_k"),
    "MoeGatingTopKSoftmax": partial(_gate, "npu_moe_gating_top_k_softmax"),
    "MoeInitRoutingV2": _init_routing,
    "MoeInitRoutingV3": _init_routing,
    "MoeFinalizeRoutingV2": _finalize_routing,
    "FusedInferAttentionScore": attention,
}
"""The same for kernels that are not named by a table of operators."""
