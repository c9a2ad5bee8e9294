"""Memory of the card that tensors use, as counted by torch_npu's allocator.

Each storage is rounded up to the allocator's blocks. No memory is cached for later use, so reserved
memory equals allocated memory.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right, insort
from operator import itemgetter

import torch

from npusim.data.tensor import allocated_bytes
from npusim.run.addresses import Block
from npusim.run.result import Output
from npusim.torch import card

__all__ = ["Memory", "memory"]


class _Lease(weakref.ref[object]):
    """A weak reference to a live storage on the card."""

    __slots__ = ("block", "nbytes", "start")
    nbytes: int
    start: int
    """Its start address in host memory."""
    block: Block | None
    """Its memory on the card, if the contents of the caches are carried from launch to launch."""


class Memory:
    """The live storages on the card."""

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self.peak_bytes = 0
        self.taken_bytes = self.freed_bytes = 0
        """Totals since the last reset."""
        self.fraction = 1.0
        """The fraction of the card's memory that tensors may use."""
        self._leases: dict[int, _Lease] = {}
        self._lying: list[tuple[int, _Lease]] = []
        """Storages with a block, sorted by start address in host memory."""
        self._written: tuple[int, Block] | None = None
        """Address and block of the output of the last kernel, whose storage does not exist yet."""

    def take(self, tensor: torch.Tensor) -> None:
        """Count the storage of *tensor*, which is new on the card, until it is freed.

        Raises torch.OutOfMemoryError if the card does not have enough memory.
        """
        storage = tensor.untyped_storage()
        wanted = storage.nbytes()
        if not wanted:
            return
        nbytes = allocated_bytes(wanted)
        self.allocated_bytes += nbytes
        if self.allocated_bytes > self.peak_bytes or self.fraction < 1:
            self._raise_peak(wanted, nbytes)
        self.taken_bytes += nbytes
        lease = _Lease(storage, self._end)
        lease.nbytes, lease.start = nbytes, storage.data_ptr()
        lease.block = self._block(lease.start, wanted)
        if lease.block is not None:
            insort(self._lying, (lease.start, lease), key=itemgetter(0))
        self._leases[id(lease)] = lease

    def segments(self) -> list[tuple[int, int]]:
        """The start address of each storage in host memory, and its bytes on the card."""
        return sorted((lease.start, lease.nbytes) for lease in self._leases.values())

    def has(self, start: int, nbytes: int) -> bool:
        """Whether the *nbytes* from host address *start* on are memory of a live storage."""
        for lease in self._leases.values():
            storage = lease()
            own_bytes = storage.nbytes() if isinstance(storage, torch.UntypedStorage) else 0
            if lease.start <= start and start + nbytes <= lease.start + own_bytes:
                return True
        return False

    def _end(self, lease: weakref.ref[object]) -> None:
        gone = self._leases.pop(id(lease))
        nbytes = gone.nbytes
        if gone.block is not None:
            self._lying = [each for each in self._lying if each[1] is not gone]
        self.allocated_bytes -= nbytes
        self.freed_bytes += nbytes

    def _block(self, start: int, nbytes: int) -> Block | None:
        """Memory of the card for a storage that starts at *start* on the host."""
        caches = card.caches()
        if caches is None:
            return None
        written, self._written = self._written, None
        if written is not None and written[0] == start:
            return written[1]
        # The memory of the existing storage if this is a relabelled one, else new memory.
        return self._lies_at(start) or caches.take(nbytes)

    def _lies_at(self, start: int) -> Block | None:
        """The block of the storage that starts at host address *start*, if there is one."""
        place = bisect_right(self._lying, start, key=itemgetter(0))
        if not place:
            return None
        first, lease = self._lying[place - 1]
        if lease.block is None or start - first >= lease.nbytes:
            return None
        return lease.block.part(start - first)

    def lie(self, value: Output, tensor: torch.Tensor) -> None:
        """Assign the memory of *tensor* to *value*, an argument of a kernel."""
        caches = card.caches()
        block = None if caches is None else self._lies_at(tensor.data_ptr())
        if caches is not None and block is not None:
            caches.lie(value, block)

    def write(self, tensor: torch.Tensor, value: Output) -> None:
        """Note that *tensor*, in host memory, holds *value*, which a kernel has written."""
        caches = card.caches()
        block = None if caches is None else caches.give_up(value)
        self._written = None if block is None else (tensor.data_ptr(), block)

    def _raise_peak(self, wanted: int, nbytes: int) -> None:
        capacity = int(card.memory_bytes() * self.fraction)
        if self.allocated_bytes > capacity:
            self.allocated_bytes -= nbytes
            free = capacity - self.allocated_bytes
            raise torch.OutOfMemoryError(
                f"NPU out of memory. Tried to allocate {wanted} bytes (NPU 0; {capacity} bytes "
                f"total capacity; {self.allocated_bytes} bytes already allocated; {free} bytes "
                "free)\nnpusim.torch: the tensors must fit into the memory of "
                f"{card.name()}, not take {self.allocated_bytes + nbytes} bytes; free some first"
            )
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)


memory = Memory()
"""The memory of the card."""
