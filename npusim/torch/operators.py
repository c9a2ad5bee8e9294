"""The operators of torch_npu in the namespace `npu`: each call runs on the simulated card.

What goes wrong is told as a card tells it, with torch_npu's first line and CANN's code, and then
what npusim has to say: what must hold, what came, what to do. The form of the first line is that of
published error reports; the same sources as in :mod:`npusim.ops` say which aclnn function an
operator calls, those of dynamic quantisation and format casts are assumed. A kernel that traps is
told at once; a card tells it at the next synchronise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from npusim.data.errors import Code, OpError
from npusim.torch import card, formats
from npusim.torch.backend import Define
from npusim.torch.gradients import inference_only
from npusim.torch.relabel import to_host, to_npu
from npusim.torch.schemas import FAKES, SCHEMAS, dtype_name
from npusim.torch.values import argument, result

__all__ = ["register"]


def register(define: Define) -> None:
    """Define every operator; called once by `npusim.torch.install`."""
    library = torch.library.Library("npu", "IMPL")
    _libraries.append(library)
    for name, parameters in SCHEMAS.items():
        define(name + parameters, real=globals()[name], fake=FAKES[name])
        library.impl(name, _refusal(name), "CPU")
        op = getattr(torch.ops.npu, name).default
        if not op._schema.is_mutable:
            library.impl(name, inference_only(name, op), "AutogradPrivateUse1")


_libraries: list[Any] = []
"""Registrations live as long as their library."""


def _refusal(name: str) -> Callable[..., NoReturn]:
    """What CPU tensors meet: the first line is torch's."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"Could not run 'npu::{name}' with arguments from the 'CPU' backend.\n"
            f"{name}: its tensors must lie on the npu, not on the cpu; move them with .npu()"
        )

    return refuse


# ---- the operators as torch calls them, by the names of their schemas ----


def npu_trans_quant_param(scale: Any, offset: Any = None, round_mode: int | None = 0) -> Any:
    mode = round_mode or 0
    acl = "aclnnTransQuantParamV3" if mode else "aclnnTransQuantParamV2"
    return _run("npu_trans_quant_param", acl, scale=scale, offset=offset, round_mode=mode)


def npu_quantize(
    input: Any,
    scales: Any,
    zero_points: Any,
    dtype: int,
    axis: int = 1,
    div_mode: bool = True,
) -> Any:
    # op-plugin, QuantizeKernelNpuOpApi.cpp: plain integers are taken like the quantised ones.
    name = dtype_name(dtype)
    name = {"int8": "qint8", "uint8": "quint8"}.get(str(name), name)
    acl = "aclnnQuantize" if div_mode else "aclnnAscendQuantV3"
    given = {"input": input, "scales": scales, "zero_points": zero_points}
    return _run("npu_quantize", acl, **given, dtype=name, axis=axis, div_mode=div_mode)


def npu_group_quant(
    x: Any,
    scale: Any,
    group_index: Any,
    *,
    offset: Any = None,
    dst_dtype: int | None = None,
) -> Any:
    given = {"x": x, "scale": scale, "group_index": group_index, "offset": offset}
    target = dtype_name(dst_dtype)
    return _run("npu_group_quant", "aclnnGroupQuant", **given, dst_dtype=target)


def npu_dynamic_quant(
    input: Any,
    *,
    smooth_scales: Any = None,
    group_index: Any = None,
    dst_type: int | None = None,
) -> Any:
    target = dtype_name(dst_type)
    given = {"x": input, "smooth_scales": smooth_scales, "group_index": group_index}
    given["dst_type"] = "int8" if target == "qint8" else target
    acl = "aclnnDynamicQuant" if dst_type is None else "aclnnDynamicQuantV2"
    return _run("npu_dynamic_quant", acl, **given)


def npu_quant_matmul(
    x1: Any,
    x2: Any,
    scale: Any,
    *,
    offset: Any = None,
    pertoken_scale: Any = None,
    bias: Any = None,
    output_dtype: int | None = None,
    group_sizes: list[int] | None = None,
    **later: Any,
) -> Any:
    """*later*: what chips after A3 take."""
    is_nz = formats.get(x2) == formats.NZ
    acl = "aclnnQuantMatmulWeightNz" if is_nz else "aclnnQuantMatmulV5"
    for name, value in later.items():
        _require_none("npu_quant_matmul", acl, name, value)
    given = {"x1": x1, "x2": x2, "scale": scale, "offset": offset, "bias": bias}
    given |= {"pertoken_scale": pertoken_scale, "output_dtype": dtype_name(output_dtype)}
    return _run("npu_quant_matmul", acl, **given, group_sizes=group_sizes)


def npu_weight_quant_batchmatmul(
    x: Any,
    weight: Any,
    antiquant_scale: Any,
    antiquant_offset: Any = None,
    quant_scale: Any = None,
    quant_offset: Any = None,
    bias: Any = None,
    antiquant_group_size: int = 0,
    inner_precise: int = 0,
    weight_dtype: int | None = None,
) -> Any:
    version = "V3" if inner_precise == 1 else "V2"
    acl = f"aclnnWeightQuantBatchMatmul{version}"
    _require_none("npu_weight_quant_batchmatmul", acl, "weight_dtype", weight_dtype)
    return _run(
        "npu_weight_quant_batchmatmul",
        acl,
        x=x,
        weight=weight,
        antiquant_scale=antiquant_scale,
        antiquant_offset=antiquant_offset,
        quant_scale=quant_scale,
        quant_offset=quant_offset,
        bias=bias,
        antiquant_group_size=antiquant_group_size,
        inner_precise=inner_precise,
    )


def npu_convert_weight_to_int4pack(weight: Any, inner_k_tiles: int = 0) -> Any:
    op, acl = "npu_convert_weight_to_int4pack", "aclnnConvertWeightToINT4Pack"
    packed = _run(op, acl, weight=weight, inner_k_tiles=inner_k_tiles)
    formats.put(packed, formats.get(weight))
    return packed


def npu_format_cast(x: Any, acl_format: int) -> Any:
    if acl_format == formats.get(x):
        cast = x.clone()
    else:
        cast = _run("npu_format_cast", "aclnnNpuFormatCast", x=x, acl_format=acl_format)
    formats.put(cast, acl_format)
    return cast


def npu_format_cast_(x: Any, acl_format: int) -> Any:
    if acl_format != formats.get(x):
        x.data = npu_format_cast(x, acl_format)
    return x


def _run(op: str, acl: str, **given: Any) -> Any:
    """Run *op*, which torch_npu hands to the function *acl* of aclnn."""
    try:
        taken = {name: _taken(op, name, value) for name, value in given.items()}
        done = card.run(op, **taken)
    except OpError as error:
        raise _as_on_card(error, op, acl) from None
    outputs = tuple(to_npu(result(output)) for output in done.outputs.values())
    return outputs if len(outputs) > 1 else outputs[0]


def _require_none(op: str, acl: str, name: str, value: Any) -> None:
    """Refuse a parameter that only other chips have."""
    if value is not None:
        text = f"{op}: {name} must be None on the chips that are simulated, not given; leave it out"
        raise _as_on_card(OpError(Code.INVALID_PARAMETER, text), op, acl)


def _taken(op: str, name: str, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type == "cpu":
        # ATen's message for operators of one device (c10/core, structured checks).
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, "
            f"npu:0 and cpu! (when checking argument for argument {name} in method "
            f"wrapper_PrivateUse1__{op})\n"
            f"{op}: {name} must lie on the npu, not on the cpu; move it with .npu()"
        )
    return argument(op, name, to_host(value), formats.get(value))


def _as_on_card(error: OpError, op: str, acl: str) -> OpError:
    """The same error with the line before it that users of a card know."""
    code = error.code
    first = f"{op}: NPU function error: call {acl} failed, error code is {code.value}"
    if code is Code.AICORE_EXCEPTION:
        first = f"ACL stream synchronize failed, error code:{code.value}"
    elif code is Code.OUT_OF_MEMORY:
        first = "NPU out of memory."
    return OpError(code, f"{first}\n{str(error).removesuffix(f' [{code.value}]')}")
