"""Relabel memory between the host and the card, without a copy.

A tensor on `npu:0` is an ordinary torch tensor in host memory that carries another device type.
torch exports a CPU tensor to DLPack as kDLCPU and imports kDLExtDev as its PrivateUse1 device
(pytorch, aten/src/ATen/DLConvertor.cpp), so changing that one word in between moves no data.
"""

from __future__ import annotations

import ctypes

import torch

from npusim.torch import card
from npusim.torch.memory import memory
from npusim.values.buffers import UNWRITTEN

__all__ = ["memory_of", "overwrite", "pointer_of", "to_host", "to_npu", "unwritten"]

_CPU, _EXTENSION = 1, 12
"""kDLCPU and kDLExtDev of dlpack.h."""

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_device_type = ctypes.c_int32.from_address
_DEVICE_BYTE = ctypes.sizeof(ctypes.c_void_p)
"""Offset of the device in a DLTensor: it follows the pointer to the data."""


def pointer_of(capsule: object) -> int:
    """The address of the DLTensor in *capsule*."""
    found: int = _pointer(capsule, b"dltensor")
    return found


_export, _adopt = torch._C._to_dlpack, torch._C._from_dlpack


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the memory of an npu tensor; other tensors are returned unchanged."""
    return _relabel(tensor, _CPU) if tensor.is_npu else tensor


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """:func:`to_host` of an npu tensor that is neither a conjugate nor a negative view."""
    capsule = _export(tensor.detach())
    _device_type(_pointer(capsule, b"dltensor") + _DEVICE_BYTE).value = _CPU
    return _adopt(capsule)


def to_npu(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on npu:0 over the memory of a strided CPU tensor."""
    if tensor.is_conj() or tensor.is_neg():
        # Resolve here: resolving on npu would call the fallback, which comes back to this function.
        tensor = tensor.resolve_conj().resolve_neg()
    relabelled = _relabel(tensor, _EXTENSION)
    memory.take(relabelled)
    return relabelled


def overwrite(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy *source* into *target* on npu in zero time, for a kernel that writes there directly.

    `copy_` between two npu tensors would launch a separate kernel.
    """
    if card.computes_values():
        to_host(target).copy_(to_host(source))


def unwritten(tensor: torch.Tensor) -> torch.Tensor:
    """*tensor* on npu, contiguous, with the bytes of memory that no kernel has written."""
    if card.computes_values() and tensor.numel():
        to_host(tensor).view(torch.uint8).fill_(UNWRITTEN)
    return tensor


def _relabel(tensor: torch.Tensor, kind: int) -> torch.Tensor:
    # A capsule owns the tensor that it was made of, not the storage. Without detach(), `.data =` on
    # the caller's tensor would free the storage under the capsule.
    capsule = _export(tensor.detach())
    _device_type(pointer_of(capsule) + _DEVICE_BYTE).value = kind
    seen = _adopt(capsule)
    if tensor.is_conj():
        seen = seen.conj()
    return torch._neg_view(seen) if tensor.is_neg() else seen
