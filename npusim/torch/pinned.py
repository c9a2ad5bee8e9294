"""Pinned memory: host tensors marked as pinned, which a card can copy asynchronously.

Copies take no simulated time, so pinned memory is ordinary memory here. torch's own functions would
need an allocator that only a backend in C++ can provide.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable

import torch
from torch.jit._builtins import _register_builtin
from torch.overrides import handle_torch_function
from torch.utils._device import _device_constructors

__all__ = ["patch"]

FACTORIES = (
    *("arange", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace"),
    *("logspace", "ones", "ones_like", "rand", "rand_like", "randint", "randint_like", "randn"),
    *("randn_like", "randperm", "tensor", "zeros", "zeros_like"),
)
METHODS = "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"
"""Functions and methods of torch that take pin_memory."""

_pinned: set[int] = set()
"""Storages with the mark."""


def patch() -> None:
    """Replace torch's functions by ones that handle the mark."""
    # torch caches the set of functions that `with torch.device(...)` affects.
    _device_constructors()
    for name in FACTORIES:
        make = _marking(getattr(torch, name))
        setattr(torch, name, make)
        # torch.jit.script compiles a function that it does not know from its source.
        _register_builtin(make, f"aten::{name}")
    for name in METHODS:
        setattr(torch.Tensor, name, _marking(getattr(torch.Tensor, name)))
    torch.Tensor.pin_memory = _pin
    torch.Tensor.is_pinned = _is_pinned


def _marking(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(make)
    def made(*args: object, **kwargs: object) -> torch.Tensor:
        likes = [arg for arg in args if hasattr(type(arg), "__torch_function__")]
        if not all(isinstance(arg, torch.Tensor) for arg in likes):
            # A tensor-like class with __torch_function__ is passed the function that was called.
            found: torch.Tensor = handle_torch_function(made, args, *args, **kwargs)
            return found
        if not kwargs.pop("pin_memory", False):
            return make(*args, **kwargs)
        tensor = make(*args, **kwargs)
        _mark(tensor)
        return tensor

    return made


def _pin(tensor: torch.Tensor, device: object = None) -> torch.Tensor:  # noqa: ARG001
    """A copy in pinned memory, or *tensor* itself if it is already pinned.

    Raises RuntimeError for a tensor on the card, as torch does.
    """
    if _is_pinned(tensor):
        return tensor
    copy = tensor.clone()
    _mark(copy)
    return copy


def _is_pinned(tensor: torch.Tensor, device: object = None) -> bool:  # noqa: ARG001
    return tensor.untyped_storage()._cdata in _pinned


def _mark(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise RuntimeError(
            f"cannot pin 'torch.npu.{tensor.dtype}' only dense CPU tensors can be pinned\n"
            "npusim.torch: a tensor must lie on the host to be pinned, not on npu; leave it there"
        )
    storage = tensor.untyped_storage()
    key = storage._cdata
    if key not in _pinned:
        _pinned.add(key)
        weakref.finalize(storage, _pinned.discard, key)
