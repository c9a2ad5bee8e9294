"""`torch.npu.memory`: the memory of the card that live tensors use, in bytes.

No memory is cached for later use, so reserved memory equals allocated memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from npusim.data.json import Json
from npusim.torch import card
from npusim.torch.errors import device_number
from npusim.torch.memory import memory
from npusim.torch.refusals import others_of

__all__ = [
    "MemPool",
    "empty_cache",
    "empty_virt_addr_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "host_empty_cache",
    "ipc_collect",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "use_mem_pool",
]


def memory_allocated(device: object = None) -> int:
    """The memory of live tensors, rounded to the allocator's blocks."""
    device_number(device)
    return memory.allocated_bytes


def max_memory_allocated(device: object = None) -> int:
    """The peak of the allocated memory."""
    device_number(device)
    return memory.peak_bytes


memory_reserved = memory_cached = memory_allocated
max_memory_reserved = max_memory_cached = max_memory_allocated


def reset_peak_memory_stats(device: object = None) -> None:
    """Restart the peak from the current value."""
    device_number(device)
    memory.peak_bytes = memory.allocated_bytes


reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: object = None) -> None:
    """Reset the totals of allocated and freed memory."""
    device_number(device)
    memory.taken_bytes = memory.freed_bytes = 0


def mem_get_info(device: object = None) -> tuple[int, int]:
    """Free bytes and total bytes."""
    device_number(device)
    total = card.memory_bytes()
    return total - memory.allocated_bytes, total


def memory_stats(device: object = None) -> OrderedDict[str, int]:
    """Statistics by the names of torch's allocators, as far as they are counted here."""
    device_number(device)
    found: OrderedDict[str, int] = OrderedDict()
    for what in "active_bytes", "allocated_bytes", "reserved_bytes":
        for pool in "all", "large_pool", "small_pool":
            is_all = pool == "all"
            of_it = {
                "current": memory.allocated_bytes,
                "peak": memory.peak_bytes,
                "allocated": memory.taken_bytes,
                "freed": memory.freed_bytes,
            }
            for name, nbytes in of_it.items():
                # All blocks are in one pool.
                found[f"{what}.{pool}.{name}"] = nbytes if is_all or pool == "large_pool" else 0
    found["num_alloc_retries"] = found["num_ooms"] = 0
    return found


def memory_stats_as_nested_dict(device: object = None) -> Json:
    """:func:`memory_stats` as nested dicts, one level for each part of a name."""
    nested: Json = {}
    for name, number in memory_stats(device).items():
        *above, last = name.split(".")
        inner = nested
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = number
    return nested


def memory_summary(device: object = None, abbreviated: bool = False) -> str:  # noqa: ARG001
    """The statistics as text."""
    free, total = mem_get_info(device)
    return (
        f"NPU memory of {card.name()}: {memory.allocated_bytes} bytes allocated, "
        f"{memory.peak_bytes} at most, {free} of {total} free"
    )


def empty_cache() -> None:
    """Do nothing: no memory is cached for later use."""


empty_virt_addr_cache = host_empty_cache = ipc_collect = empty_cache


class MemPool:
    """A separate memory pool. It has no effect: each tensor has separate memory."""

    _numbers = count(1)

    def __init__(self, allocator: object = None, use_on_oom: bool = False) -> None:  # noqa: ARG002
        self.allocator = allocator
        self.id = (0, next(self._numbers))


@contextmanager
def use_mem_pool(pool: MemPool, device: object = None) -> Iterator[None]:  # noqa: ARG001
    """Accepted: allocations inside would use *pool*."""
    device_number(device)
    yield


def memory_snapshot(mempool_id: object = None) -> list[Json]:  # noqa: ARG001
    """A segment with a single block for each live storage on the card."""
    return [
        {
            "device": 0,
            "address": start,
            "total_size": nbytes,
            "allocated_size": nbytes,
            "active_size": nbytes,
            "stream": 0,
            "segment_type": "large",
            "blocks": [{"address": start, "size": nbytes, "state": "active_allocated"}],
        }
        for start, nbytes in memory.segments()
    ]


def get_allocator_backend() -> str:
    return "native"


def get_per_process_memory_fraction(device: object = None) -> float:
    """The fraction of the card's memory that tensors may use."""
    device_number(device)
    return memory.fraction


def set_per_process_memory_fraction(fraction: float, device: object = None) -> None:
    """Set the fraction of the card's memory that tensors may use. Raises ValueError unless it is 0
    to 1."""
    device_number(device)
    if not isinstance(fraction, float | int) or not 0 <= fraction <= 1:
        raise ValueError(
            "torch.npu.set_per_process_memory_fraction: fraction must be 0 to 1, not "
            f"{fraction!r}; pass a share of the card's memory"
        )
    memory.fraction = float(fraction)


__getattr__ = others_of("torch_npu.npu.memory")
