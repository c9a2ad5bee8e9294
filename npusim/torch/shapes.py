"""Shapes without values: what a model launches and how long it takes, for no memory.

Tensors on npu are of memory that nobody touches, which the system never provides. Operators of the
card are given shapes and types alone, and find their times as :func:`npusim.run` does for a
`TensorSpec`. Other operations find the shapes of their results as torch does on its meta device.
Whoever needs a value, to decide or to print, is refused with the line of the script.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils._pytree import tree_map

from npusim.data.errors import callers_level
from npusim.data.tensor import TensorSpec
from npusim.torch import card
from npusim.torch.formats import ND
from npusim.torch.relabel import to_npu

__all__ = [
    "ShapesOnlyError",
    "contiguous",
    "like",
    "printed",
    "refuse",
    "run",
    "spec_of",
    "untouched",
]


WORDS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
"""Size of an element -> what stands for it where nobody touches it."""


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
    """A host tensor of that geometry, in memory that the system provides when it is touched."""
    reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1
    count = 1 if 0 in tuple(shape) else reach
    memory = torch.from_numpy(np.empty(count * dtype.itemsize, np.uint8))
    return memory.view(dtype).as_strided(tuple(shape), tuple(stride))


def like(meta: torch.Tensor) -> torch.Tensor:
    """A tensor on npu of the geometry of *meta*."""
    return to_npu(untouched(meta.shape, meta.stride(), meta.dtype))


def contiguous(spec: TensorSpec) -> torch.Tensor:
    """A host tensor of the shape and type of *spec*, row after row, whatever its layout."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    memory = torch.from_numpy(np.empty(spec.shape, WORDS[dtype.itemsize]))
    return memory.view(dtype)


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
        meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
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
