"""The operators' schemas in the namespace `npu`, and the shapes that come out.

The schemas are op-plugin's (op_plugin_functions.yaml): a dtype is an int there, and torch takes
`torch.qint8` for one as well. The shapes are told without values, so they serve fake tensors and
sizes that are symbols; what a call must fulfil beside is checked when it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["FAKES", "SCHEMAS", "dtype_name"]

INT4_PER_INT32 = 8

SCHEMAS = {
    "npu_trans_quant_param": "(Tensor scale, Tensor? offset=None, int? round_mode=0) -> Tensor",
    "npu_quantize": "(Tensor self, Tensor scales, Tensor? zero_points, int dtype, int axis=1, "
    "bool div_mode=True) -> Tensor",
    "npu_group_quant": "(Tensor x, Tensor scale, Tensor group_index, *, Tensor? offset=None, "
    "int? dst_dtype=None) -> Tensor",
    "npu_dynamic_quant": "(Tensor input, *, Tensor? smooth_scales=None, "
    "Tensor? group_index=None, int? dst_type=None) -> (Tensor, Tensor)",
    "npu_quant_matmul": "(Tensor x1, Tensor x2, Tensor scale, *, Tensor? offset=None, "
    "Tensor? pertoken_scale=None, Tensor? bias=None, int? output_dtype=None, "
    "int? x1_dtype=None, int? x2_dtype=None, int? pertoken_scale_dtype=None, "
    "int? scale_dtype=None, SymInt[]? group_sizes=None, Tensor? y_scale=None) -> Tensor",
    "npu_weight_quant_batchmatmul": "(Tensor x, Tensor weight, Tensor antiquant_scale, "
    "Tensor? antiquant_offset=None, Tensor? quant_scale=None, Tensor? quant_offset=None, "
    "Tensor? bias=None, int antiquant_group_size=0, int inner_precise=0, "
    "int? weight_dtype=None) -> Tensor",
    "npu_convert_weight_to_int4pack": "(Tensor weight, int inner_k_tiles=0) -> Tensor",
    "npu_format_cast": "(Tensor self, int acl_format) -> Tensor",
    "npu_format_cast_": "(Tensor(a!) self, int acl_format) -> Tensor(a!)",
}
"""Name -> parameters and results."""

# c10/core/ScalarType.h of PyTorch: its dtypes in the order in which it counts them.
_NAMES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool"),
    *("qint8", "quint8", "qint32", "bfloat16", "quint4x2"),
)


def dtype_name(number: int | None) -> str | None:
    """The name of the dtype that torch counts as *number*; the number itself if it has none."""
    if number is None:
        return None
    return _NAMES[number] if 0 <= number < len(_NAMES) else str(number)


def _quantized(x: torch.Tensor, dtype: int | None) -> torch.Tensor:
    """x with its numbers as *dtype*: int4 packed eight to an int32."""
    name = dtype_name(dtype) or "int8"
    if name == "quint4x2":
        packed = x.shape[-1] // INT4_PER_INT32
        return x.new_empty((*x.shape[:-1], packed), dtype=torch.int32)
    name = name.removeprefix("q") if name != "quint8" else "uint8"
    return x.new_empty(x.shape, dtype=getattr(torch, name, torch.int8))


def _trans_quant_param(
    scale: torch.Tensor,
    offset: torch.Tensor | None = None,
    round_mode: int | None = 0,  # noqa: ARG001
) -> torch.Tensor:
    shape = tuple(scale.shape)
    if offset is not None and scale.dim() == 1:
        shape = (torch.sym_max(scale.shape[0], offset.shape[0]),)
    return scale.new_empty(shape, dtype=torch.int64)


def _quantize(self: torch.Tensor, _scales: Any, _points: Any, dtype: int, *_: Any) -> torch.Tensor:
    return _quantized(self, dtype)


def _group_quant(
    x: torch.Tensor, _scale: Any, _index: Any, *, dst_dtype: int | None = None, **_: Any
) -> torch.Tensor:
    return _quantized(x, dst_dtype)


def _dynamic_quant(
    input: torch.Tensor, *, dst_type: int | None = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return _quantized(input, dst_type), input.new_empty(input.shape[:-1], dtype=torch.float32)


def _columns(weight: torch.Tensor) -> Any:
    """n of a `(k, n)` weight, which holds int4 along the axis that lies inside if it is int32."""
    columns = weight.shape[-1]
    is_turned = weight.stride(-1) != 1 and weight.stride(-2) == 1
    return columns * INT4_PER_INT32 if weight.dtype == torch.int32 and not is_turned else columns


def _quant_matmul(
    x1: torch.Tensor, x2: torch.Tensor, _scale: Any, *, output_dtype: int | None = None, **_: Any
) -> torch.Tensor:
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    name = dtype_name(output_dtype) or "int8"
    shape = (*batch, x1.shape[-2], _columns(x2))
    return x1.new_empty(shape, dtype=getattr(torch, name, torch.int8))


def _weight_quant_batchmatmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    antiquant_scale: Any,  # noqa: ARG001
    antiquant_offset: Any = None,  # noqa: ARG001
    quant_scale: Any = None,
    *_: Any,
    **__: Any,
) -> torch.Tensor:
    dtype = x.dtype if quant_scale is None else torch.int8
    return x.new_empty((x.shape[0], _columns(weight)), dtype=dtype)


def _int4pack(weight: torch.Tensor, *_: Any) -> torch.Tensor:
    return weight.new_empty((weight.shape[0], weight.shape[1] // INT4_PER_INT32))


def _format_cast(self: torch.Tensor, _acl_format: int) -> torch.Tensor:
    return self.new_empty(self.shape)


def _format_cast_(self: torch.Tensor, _acl_format: int) -> torch.Tensor:
    return self


FAKES: dict[str, Callable[..., Any]] = {
    "npu_trans_quant_param": _trans_quant_param,
    "npu_quantize": _quantize,
    "npu_group_quant": _group_quant,
    "npu_dynamic_quant": _dynamic_quant,
    "npu_quant_matmul": _quant_matmul,
    "npu_weight_quant_batchmatmul": _weight_quant_batchmatmul,
    "npu_convert_weight_to_int4pack": _int4pack,
    "npu_format_cast": _format_cast,
    "npu_format_cast_": _format_cast_,
}
"""Name -> what comes out, as empty tensors."""
