"""`torch.accelerator`, `torch.Event` and `torch.Stream`, which torch implements through C++ hooks
of backends."""

from __future__ import annotations

import torch

from npusim.torch import allocator, npu, streams

__all__ = ["patch"]

MEMORY = (
    *("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"),
    *("memory_stats", "reset_accumulated_memory_stats", "reset_peak_memory_stats"),
    "empty_cache",
)
"""Functions of torch.accelerator that torch.npu has under the same name."""


def patch() -> None:
    """Replace torch's functions and classes by those of the card."""
    torch.accelerator.synchronize = npu.synchronize
    torch.accelerator.get_memory_info = allocator.mem_get_info
    for name in MEMORY:
        setattr(torch.accelerator, name, getattr(allocator, name))
        setattr(torch.accelerator.memory, name, getattr(allocator, name))
    torch.Event = _class_of("Event", torch.Event, streams.Event)
    torch.Stream = _class_of("Stream", torch.Stream, streams.Stream)
    torch.Tensor.record_stream = _record_stream


def _class_of(name: str, other: type, own: type) -> object:
    """A class that constructs *own* for npu, and *other* for any other device."""

    class _Either(type):
        def __call__(cls, device: object = None, *args: object, **kwargs: object) -> object:
            if device is None or torch.device(device).type == "npu":
                return own(*args, **kwargs) if name == "Event" else own(device, *args, **kwargs)
            return other(device, *args, **kwargs)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, own | other)

    return _Either(name, (), {"__doc__": other.__doc__, "__module__": "torch"})


def _record_stream(tensor: torch.Tensor, stream: object) -> None:
    """Do nothing: memory is freed by reference counting, and all streams share one timeline."""
