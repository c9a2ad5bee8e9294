"""Shapes without values: what a model launches and how long it takes, for no memory.

Tensors on npu have no memory, but for those whose values may be known (:mod:`npusim.torch.known`).
Operators of the
card are given shapes and types alone, and find their times as :func:`npusim.run` does for a
`TensorSpec`. Other operations find the shapes of their results as torch does on its meta device.
Whoever needs a value, to decide or to print, is refused with the line of the script.
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
    """A script asks for a value where shapes alone are simulated."""


def refuse(what: str) -> NoReturn:
    """Raise ShapesOnlyError for the line of the script that is running."""
    frame = sys._getframe(callers_level() - 1)
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    raise ShapesOnlyError(
        f"npusim.torch: shapes alone are simulated, so that {what} must not need a value, but does "
        f"at {where}; run the script without --shapes, or make it decide by shapes"
    )


def untouched(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A host tensor of that geometry for which no address space is reserved, never to be touched.

    DLPack carries one element of memory, and says of it what strides it has.
    """
    one = torch.empty((1,) * len(shape), dtype=dtype)
    capsule = torch._C._to_dlpack(one.expand(tuple(shape)))
    steps = _pointer_at(pointer_of(capsule) + _STRIDES_BYTE)
    if steps.value is not None:
        (ctypes.c_int64 * len(shape)).from_address(steps.value)[:] = [*stride]
    return torch._C._from_dlpack(capsule)


_pointer_at = ctypes.c_void_p.from_address
_STRIDES_BYTE = 32
"""Where DLTensor keeps the pointer to its strides: behind the data, the device, the number of axes,
the type, and the shape (dlpack.h)."""


def like(meta: torch.Tensor) -> torch.Tensor:
    """A tensor on npu of the geometry of *meta*; where its values may be known, with memory."""
    if not known.may_be_known(meta.shape, meta.dtype):
        return to_npu(untouched(meta.shape, meta.stride(), meta.dtype))
    found = to_npu(torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype))
    known.own(found)
    return found


def is_small(
    op: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> bool:
    """Whether all that *op* gives may be known; what depends on values has no more than these."""

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
    """A host tensor of the shape and type of *spec*, row after row, whatever its layout."""
    return untouched(spec.shape, _rows(spec.shape), getattr(torch, spec.dtype))


def _rows(shape: Sequence[int]) -> list[int]:
    """The strides of a tensor that lies row after row."""
    return [prod(max(size, 1) for size in shape[axis + 1 :]) for axis in range(len(shape))]


def spec_of(tensor: torch.Tensor, acl_format: int) -> TensorSpec:
    """*tensor* as an operator of npusim is asked for its time; bool is a byte, as on the card."""
    dtype = "uint8" if tensor.dtype == torch.bool else str(tensor.dtype).removeprefix("torch.")
    is_turned = tensor.dim() > 1 and not tensor.is_contiguous() and tensor.mT.is_contiguous()
    layout = "ND" if acl_format == ND else "FRACTAL_NZ"
    return TensorSpec(tuple(tensor.shape), dtype, layout, is_turned)


def printed(to_text: Callable[..., str]) -> Callable[..., str]:
    """*to_text*, which prints tensors, for those without values too: as torch's meta device."""

    @wraps(to_text)
    def text(tensor: torch.Tensor, *args: object, **kwargs: object) -> str:
        if card.computes_values() or not tensor.is_npu:
            return to_text(tensor, *args, **kwargs)
        size, dtype = tuple(tensor.shape), tensor.dtype
        return f"tensor(..., device='npu:0', size={size}, dtype={dtype})"

    return text


def run(op: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
    """What *op* of torch gives for npu tensors, by its rule for shapes."""
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
            # In place or into `out=`, which torch has resized.
            tensor.data = like(meta)
    return tree_map(up, found)
