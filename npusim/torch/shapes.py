"""Simulation by shapes alone: the launches of a model and their times, without memory for tensors.

Tensors on npu have no memory, except those whose values may be known (:mod:`npusim.torch.known`).
Operators of the card get only shapes and types, and are timed as by :func:`npusim.run` for a
`TensorSpec`. Other operations compute the shapes of their results as on torch's meta device. Code
that needs a value, to branch on or to print, gets an error with the line of the script.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_leaves, tree_map

from npusim.data.errors import callers_level
from npusim.data.tensor import TensorSpec
from npusim.torch import card, known
from npusim.torch.formats import ND
from npusim.torch.relabel import pointer_of, to_npu

__all__ = [
    "ShapesOnlyError",
    "contiguous",
    "is_small",
    "like",
    "printed",
    "refuse",
    "run",
    "spec_of",
    "untouched",
]


class ShapesOnlyError(RuntimeError):
    """A script reads a value where shapes alone are simulated."""


def refuse(what: str) -> NoReturn:
    """Raise ShapesOnlyError for the line of the script that is running."""
    frame = sys._getframe(callers_level() - 1)
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    raise ShapesOnlyError(
        f"npusim.torch: shapes alone are simulated, so that {what} must not need a value, but does "
        f"at {where}; run the script without --shapes, or make it decide by shapes"
    )


def untouched(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A host tensor with this geometry but without memory, whose elements must not be accessed.

    DLPack exports one element of memory, whose shape and strides are then changed.
    """
    one = torch.empty((1,) * len(shape), dtype=dtype)
    capsule = torch._C._to_dlpack(one.expand(tuple(shape)))
    steps = _pointer_at(pointer_of(capsule) + _STRIDES_BYTE)
    if steps.value is not None:
        (ctypes.c_int64 * len(shape)).from_address(steps.value)[:] = [*stride]
    return torch._C._from_dlpack(capsule)


_pointer_at = ctypes.c_void_p.from_address
_STRIDES_BYTE = 32
"""Offset of the pointer to the strides in a DLTensor: it follows the data, the device, the number
of axes, the type, and the shape (dlpack.h)."""


def like(meta: torch.Tensor) -> torch.Tensor:
    """A tensor on npu with the geometry of *meta*; with memory if its values may be known."""
    if not known.may_be_known(meta.shape, meta.dtype):
        return to_npu(untouched(meta.shape, meta.stride(), meta.dtype))
    found = to_npu(torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype))
    known.own(found)
    return found


def is_small(
    op: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> bool:
    """Whether all results of *op* are small enough to be known. Results whose shapes depend on
    values are no larger than those values."""

    def down(value: object) -> object:
        if isinstance(value, torch.Tensor) and value.is_npu:
            return _meta(value)
        is_npu = isinstance(value, torch.device) and value.type == "npu"
        return torch.device("meta") if is_npu else value

    low, named = tree_map(down, (args, kwargs))
    try:
        found = op(*low, **named)
    except (NotImplementedError, RuntimeError):
        return True
    sizes = [x.numel() for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
    return all(size <= known.MOST_ELEMENTS for size in sizes)


def _meta(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def contiguous(spec: TensorSpec) -> torch.Tensor:
    """A contiguous host tensor with the shape and type of *spec*, whatever its layout."""
    return untouched(spec.shape, _rows(spec.shape), getattr(torch, spec.dtype))


def _rows(shape: Sequence[int]) -> list[int]:
    """The strides of a contiguous tensor."""
    return [prod(max(size, 1) for size in shape[axis + 1 :]) for axis in range(len(shape))]


def spec_of(tensor: torch.Tensor, acl_format: int) -> TensorSpec:
    """The spec of *tensor* with which operators are timed; bool is a byte, as on the card."""
    dtype = "uint8" if tensor.dtype == torch.bool else str(tensor.dtype).removeprefix("torch.")
    is_turned = tensor.dim() > 1 and not tensor.is_contiguous() and tensor.mT.is_contiguous()
    layout = "ND" if acl_format == ND else "FRACTAL_NZ"
    # The size of a traced tensor may be a symbol, which stands for the size in the first call.
    shape = [size.node.hint if isinstance(size, torch.SymInt) else size for size in tensor.shape]
    return TensorSpec(tuple(shape), dtype, layout, is_turned)


def printed(to_text: Callable[..., str]) -> Callable[..., str]:
    """Wrap *to_text*, which prints tensors: those without values are printed like meta tensors."""

    @wraps(to_text)
    def text(tensor: torch.Tensor, *args: object, **kwargs: object) -> str:
        if card.computes_values() or not tensor.is_npu:
            return to_text(tensor, *args, **kwargs)
        size, dtype = tuple(tensor.shape), tensor.dtype
        return f"tensor(..., device='npu:0', size={size}, dtype={dtype})"

    return text


def run(op: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
    """Run *op* of torch on npu tensors, by its shape function."""
    given: dict[int, torch.Tensor] = {}

    def down(value: object) -> object:
        if isinstance(value, torch.device):
            return torch.device("meta") if value.type == "npu" else value
        if not isinstance(value, torch.Tensor) or (value.dim() == 0 and not value.is_npu):
            return value
        meta = _meta(value)
        given[id(meta)] = value
        _lent.append(meta)
        return meta

    def up(value: object) -> object:
        if not isinstance(value, torch.Tensor) or value.device.type != "meta":
            return value
        return given[id(value)] if id(value) in given else like(value)

    _lent: list[torch.Tensor] = []
    low, named = tree_map(down, (args, kwargs))
    try:
        found = op(*low, **named)
    except (NotImplementedError, RuntimeError) as error:
        if "meta" not in str(error).lower() and "data-dependent" not in str(error):
            raise
        refuse(str(op))
    for meta in _lent:
        tensor = given[id(meta)]
        if tensor.shape != meta.shape:
            # A tensor written in place, or `out=` that torch has resized.
            tensor.data = like(meta)
    return tree_map(up, found)
