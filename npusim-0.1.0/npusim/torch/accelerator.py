"""`torch.accelerator`, `torch.Event` and `torch.Stream`, which torch asks backends in C++ for."""

from __future__ import annotations

import torch

from npusim.torch import allocator, npu, streams

__all__ = ["patch"]

MEMORY = (
    *("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"),
    *("memory_stats", "reset_accumulated_memory_stats", "reset_peak_memory_stats"),
    "empty_cache",
)
"""Functions of torch.accelerator that torch.npu has by the same name."""


def patch() -> None:
    """Put the card's functions and classes in the place of torch's."""
    torch.accelerator.synchronize = npu.synchronize
    torch.accelerator.get_memory_info = allocator.mem_get_info
    for name in MEMORY:
        setattr(torch.accelerator, name, getattr(allocator, name))
        setattr(torch.accelerator.memory, name, getattr(allocator, name))
    torch.Event = _class_of("Event", torch.Event, streams.Event)
    torch.Stream = _class_of("Stream", torch.Stream, streams.Stream)
    torch.Tensor.record_stream = _record_stream


def _class_of(name: str, other: type, own: type) -> object:
    """A class that makes one of *own* unless it is asked for another device than npu."""

    class _Either(type):
        def __call__(cls, device: object = None, *args: object, **kwargs: object) -> object:
            if device is None or torch.device(device).type == "npu":
                return own(*args, **kwargs) if name == "Event" else own(device, *args, **kwargs)
            return other(device, *args, **kwargs)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, own | other)

    return _Either(name, (), {"__doc__": other.__doc__, "__module__": "torch"})


def _record_stream(tensor: torch.Tensor, stream: object) -> None:
    """Memory is given back when nothing refers to it, and all streams are one line of time."""
