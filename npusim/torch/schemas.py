"""Translate a call of torch to an operator's declaration: names of parameters and dtypes.

The schemas themselves are in the operators' declarations, see :class:`npusim.ops.TorchFunction`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from npusim.data.arguments import Arguments
from npusim.ops import TorchFunction, TorchTensor

__all__ = ["CARD_TYPES", "arguments", "bind", "described", "dtype_name", "empty", "named_tensors"]

# c10/core/ScalarType.h of PyTorch: its dtypes in the order of their numbers.
_NAMES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool"),
    *("qint8", "quint8", "qint32", "bfloat16", "quint4x2"),
)
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES}
_ACL_NAMES = re.split(
    " ",
    "float32 float16 int8 int32 uint8 - int16 uint16 uint32 int64 uint64 float64 bool string - - "
    "complex64 complex128 - - - - - - - - - bfloat16 - int4 uint1 - - complex32 hifloat8 "
    "float8_e5m2 float8_e4m3fn float8_e8m0fnu float6_e3m2 float6_e2m3 float4_e2m1fn_x2 "
    "float4_e1m2fn_x2",
)
"""Types in the order of their numbers in acl_base.h, aclDataType."""
CARD_TYPES = {name: 256 + number for number, name in enumerate(_ACL_NAMES) if name != "-"}
"""Types of `torch_npu`, whose numbers start at 256 (Ascend/pytorch@9e73e70,
csrc/custom_dtype/Init.h, g_toAclOffset)."""


def dtype_name(number: int | None) -> str | None:
    """The name of the dtype with torch's *number*; the number itself if it has no name."""
    if number is None:
        return None
    for name, counted in CARD_TYPES.items():
        if number == counted:
            return name
    return _NAMES[number] if 0 <= number < len(_NAMES) else str(number)


def bind(
    schema: torch.FunctionSchema, args: tuple[object, ...], kwargs: dict[str, object]
) -> Arguments:
    """The arguments of a call by their names in *schema*, with defaults filled in."""
    bound = {argument.name: argument.default_value for argument in schema.arguments}
    return bound | dict(zip(bound, args, strict=False)) | kwargs


def arguments(function: TorchFunction, bound: Mapping[str, Any]) -> Arguments:
    """*bound* with the operator's names of parameters and dtypes."""
    found = {}
    for name, value in bound.items():
        if name in function.absent:
            continue
        if name in function.dtypes:
            text = dtype_name(value)
            value = text if text is None else function.dtypes[name].get(text, text)
        if value is None:
            value = function.defaults.get(name)
        found[function.names.get(name, name)] = value
    return found


def described(arguments: Mapping[str, object], layouts: Mapping[str, str]) -> Arguments:
    """*arguments* with tensors described for the declaration; those not in *layouts* are ND.

    The tensors of a list are named by the list and their index, as in `x[1]`.
    """

    def of(name: str, value: object) -> Any:
        if isinstance(value, list | tuple):
            return [of(f"{name}[{place}]", part) for place, part in enumerate(value)]
        is_tensor = isinstance(value, torch.Tensor)
        return _described(value, layouts.get(name, "ND")) if is_tensor else value

    return {name: of(name, value) for name, value in arguments.items()}


def named_tensors(arguments: Mapping[Any, object]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors among *arguments*, including those in lists, by their names in `described`."""
    for name, value in arguments.items():
        if isinstance(value, list | tuple):
            yield from named_tensors({f"{name}[{at}]": part for at, part in enumerate(value)})
        elif isinstance(value, torch.Tensor):
            yield name, value


def _described(tensor: torch.Tensor, layout: str) -> TorchTensor:
    strides = tensor.stride() if tensor.layout == torch.strided else ()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TorchTensor(tuple(tensor.shape), tuple(strides), dtype, layout)


def empty(like: torch.Tensor, shape: tuple[object, ...], dtype: str) -> torch.Tensor:
    """A tensor on the device of *like*; int8 if torch lacks *dtype*, which the run rejects."""
    return like.new_empty(shape, dtype=_DTYPES.get(dtype, torch.int8))
