"""`torch_npu.X`: `torch.ops.npu.X`, which also accepts the calls of its documents.

torch_npu's documents call the first parameter of npu_quantize `input`, its schema `self`; the first
edition of npu_trans_quant_param's document passes offset and bias of npu_quant_matmul by position,
while today's schema requires names. Both ways work here. A call that does not fit its schema raises
torch's own error, as on a card, with a line that explains what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch

from npusim import ops
from npusim.data.errors import OpError, shown
from npusim.torch import composed, format_casts, hosted
from npusim.torch.distributed.declared import FUSED
from npusim.torch.schemas import named_tensors

__all__ = ["FUNCTIONS"]

CallArguments = tuple[tuple[object, ...], dict[str, object]]
"""The arguments of a call by position, and those by name."""


def _quantize(args: tuple[object, ...], kwargs: dict[str, object]) -> CallArguments:
    return args, {("self" if name == "input" else name): kwargs[name] for name in kwargs}


def _quant_matmul(args: tuple[object, ...], kwargs: dict[str, object]) -> CallArguments:
    late = dict(zip(("offset", "bias"), args[3:], strict=False))
    if len(args) > 5 or late.keys() & kwargs.keys():
        return args, kwargs
    return args[:3], late | kwargs


def _as_given(args: tuple[object, ...], kwargs: dict[str, object]) -> CallArguments:
    return args, kwargs


def _rotary(args: tuple[object, ...], kwargs: dict[str, object]) -> CallArguments:
    mode = kwargs.get("rotary_mode", args[3] if len(args) > 3 else "half")
    if isinstance(mode, str) and mode not in ROTARY_MODES:
        text = (
            f"The rotary_mode of npu_rotary_mul should be half or interleave, but got {mode}\n"
            f"npu_rotary_mul: rotary_mode must be half or interleave, not {mode}; choose one"
        )
        raise RuntimeError(text)
    return args, kwargs


ROTARY_MODES = ("half", "interleave")
"""Modes that torch_npu accepts before it calls aclnn (op-plugin@517f2e7,
RotaryMulKernelNpuOpApi.cpp)."""
AS_DOCUMENTED = {
    "npu_quantize": _quantize,
    "npu_quant_matmul": _quant_matmul,
    "npu_rotary_mul": _rotary,
}
"""Name -> the function that converts arguments of a document's call to those of the schema."""


def _function(module: str, declared: ops.TorchFunction) -> Callable[..., object]:
    """`torch_npu.X` for a function of torch_npu that is documented in *module*."""
    name = declared.name
    packet = getattr(torch.ops.npu, name)
    in_schema = AS_DOCUMENTED.get(name, _as_given)

    def call(*args: object, **kwargs: object) -> object:
        args, kwargs = in_schema(args, kwargs)
        if torch.compiler.is_compiling():
            return packet(*args, **kwargs)
        try:
            return packet(*args, **kwargs)
        except (RuntimeError, TypeError) as error:
            # Only errors of the dispatcher need more text; those of npusim are complete.
            is_ours = isinstance(error, OpError) or f"{name}: " in str(error)
            text = None if is_ours else _misfit(declared, args, kwargs)
            if text is None:
                raise
            raise type(error)(f"{error}\n{name}: {text}") from None

    for overload in packet.overloads():
        # As in torch's overload packets: `torch_npu.X.out`.
        setattr(call, overload, getattr(packet, overload))
    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"See :mod:`npusim.{module}`."
    return call


# ---- calls that do not fit ----


def _misfit(
    declared: ops.TorchFunction, args: tuple[object, ...], kwargs: dict[str, object]
) -> str | None:
    """Describe the argument that does not fit the schema, and the remedy; None if all fit."""
    packet = getattr(torch.ops.npu, declared.name)
    schema = getattr(packet, declared.overload or "default")._schema
    by_name = {argument.name: argument for argument in schema.arguments}
    by_place = [argument.name for argument in schema.arguments if not argument.kwarg_only]
    if len(args) > len(by_place):
        others = ", ".join(name for name in by_name if name not in by_place)
        remedy = f"pass {others} by name" if others else "drop the others"
        return f"at most {len(by_place)} arguments must go by position, not {len(args)}; {remedy}"
    bound = dict(zip(by_place, args, strict=False))
    for name in kwargs:
        if name in bound:
            return f"{name} must be given once, not by position and by name; drop one of them"
        if name not in by_name:
            left = [other for other in by_name if other not in bound and other not in kwargs]
            near = get_close_matches(name, left, n=1)
            hint = f"did you mean {near[0]}?" if near else "leave it out"
            return f"an argument must be one of {', '.join(by_name)}, not {name!r}; {hint}"
    bound |= kwargs
    for name, argument in by_name.items():
        if name not in bound and not argument.has_default_value():
            return f"{name} must be given, but is not; add it"
        if name in bound and (wanted := _wanted(declared, argument, bound[name])) is not None:
            return f"{name} must be {wanted[0]}, not {_came(bound[name])}; {wanted[1]}"
    if not any(named_tensors(bound)):
        return f"{by_place[0]} must be a strided tensor on npu, not None; make it one"
    return None


def _came(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"one of layout {value.layout} on {value.device.type}"
    return shown(value)


def _wanted(
    declared: ops.TorchFunction, argument: torch.Argument, value: Any
) -> tuple[str, str] | None:
    """The kind that *argument* accepts and what to pass, if *value* is of another kind."""
    kind = str(argument.type)
    if value is None and (kind.startswith("Optional") or kind == "Tensor"):
        return None
    if kind.startswith("Optional["):
        kind = kind.removeprefix("Optional[").removesuffix("]")
    if kind == "List[Tensor]":
        is_list = isinstance(value, list | tuple)
        fits = is_list and all(isinstance(part, torch.Tensor) for part in value)
        return None if fits else ("a list of tensors", "pass one, be it of one tensor")
    if kind == "Tensor":
        # The operator itself rejects a tensor on the host.
        fits = (
            isinstance(value, torch.Tensor)
            and value.layout == torch.strided
            and value.device.type in ("npu", "cpu")
        )
        return None if fits else ("a strided tensor on npu", "make it one")
    if argument.name in declared.dtypes:
        fits = _is_int64(value) or isinstance(value, torch.dtype)
        return None if fits else ("a dtype of torch", "pass one, as torch.int8 is")
    if kind == "bool":
        return None if isinstance(value, bool) else ("True or False", "pass one of them")
    if kind == "float":
        return None if isinstance(value, int | float) else ("a number", "pass one without quotes")
    if kind == "str":
        return None if isinstance(value, str) else ("a word", "pass one in quotes")
    if kind == "int":
        remedy = "pass one without quotes or a point"
        return None if _is_int64(value) else ("a whole number of 64 bits", remedy)
    fits = isinstance(value, list | tuple) and all(map(_is_int64, value))
    return None if fits else ("a list of whole numbers", "pass one")


def _is_int64(value: object) -> bool:
    return isinstance(value, int | np.integer) and -(2**63) <= int(value) < 2**63


FUNCTIONS: dict[str, Callable[..., object]] = {
    declared.name: _function(f"ops.{op}", declared)
    for op in ops.names()
    for declared in ops.load(op).torch
    if not declared.overload
} | {
    declared.name: _function(module, declared)
    for module, found in (
        ("collectives", FUSED),
        ("torch.composed", composed.declared()),
        ("torch.host", hosted.declared()),
    )
    for declared in found.values()
    if not (declared.overload and hasattr(getattr(torch.ops.npu, declared.name), "default"))
}
FUNCTIONS |= composed.OF_ATB
FUNCTIONS |= {name: getattr(torch.ops.npu, name) for name in format_casts.FUNCTIONS}
"""Name in torch_npu -> function."""
