"""The same memory seen from the host and from the card.

A tensor on `npu:0` is a plain torch tensor whose storage is host memory under another label. DLPack
carries the label: torch writes a CPU tensor as kDLCPU and reads kDLExtDev as its PrivateUse1 device
(pytorch, aten/src/ATen/DLConvertor.cpp), so changing that one word in between moves nothing.
"""

from __future__ import annotations

import ctypes

import torch

from npusim.torch import card
from npusim.torch.memory import memory

__all__ = ["memory_of", "overwrite", "pointer_of", "to_host", "to_npu"]

_CPU, _EXTENSION = 1, 12
"""kDLCPU and kDLExtDev of dlpack.h."""

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_device_type = ctypes.c_int32.from_address
_DEVICE_BYTE = ctypes.sizeof(ctypes.c_void_p)
"""Where DLTensor keeps its device: behind the pointer to the data."""


def pointer_of(capsule: object) -> int:
    """Where the DLTensor of *capsule* lies."""
    found: int = _pointer(capsule, b"dltensor")
    return found


_export, _adopt = torch._C._to_dlpack, torch._C._from_dlpack


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of an npu tensor as a CPU tensor; others come back as they are."""
    return _relabel(tensor, _CPU) if tensor.is_npu else tensor


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same of an npu tensor that is neither a conjugate nor a negative view."""
    capsule = _export(tensor.detach())
    _device_type(_pointer(capsule, b"dltensor") + _DEVICE_BYTE).value = _CPU
    return _adopt(capsule)


def to_npu(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a strided CPU tensor as a tensor on npu:0."""
    if tensor.is_conj() or tensor.is_neg():
        # On this side the bits can be resolved; on the other that would come back here.
        tensor = tensor.resolve_conj().resolve_neg()
    relabelled = _relabel(tensor, _EXTENSION)
    memory.take(relabelled)
    return relabelled


def overwrite(target: torch.Tensor, source: torch.Tensor) -> None:
    """Let *target* on npu hold *source*, where the kernel itself has written there: a copy of one
    npu tensor to another would be a separate kernel."""
    if card.computes_values():
        to_host(target).copy_(to_host(source))


def _relabel(tensor: torch.Tensor, kind: int) -> torch.Tensor:
    # A capsule holds the tensor that it was made of, not its storage, and `.data =` on the caller's
    # own would free the storage under it.
    capsule = _export(tensor.detach())
    _device_type(pointer_of(capsule) + _DEVICE_BYTE).value = kind
    seen = _adopt(capsule)
    if tensor.is_conj():
        seen = seen.conj()
    return torch._neg_view(seen) if tensor.is_neg() else seen
