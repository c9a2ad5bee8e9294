"""How much of the card's memory tensors take, as torch_npu's allocator counts it.

Each storage is rounded up to the allocator's blocks. Nothing is held for later use, so what is
reserved is what is allocated.
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
    """A storage on the card, for as long as it lives."""

    __slots__ = ("block", "nbytes", "start")
    nbytes: int
    start: int
    """Where it begins in the memory of the host."""
    block: Block | None
    """Where it lies on a card whose caches pass from launch to launch."""


class Memory:
    """The storages that live on the card."""

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self.peak_bytes = 0
        self.taken_bytes = self.freed_bytes = 0
        """In all, since they were last set to 0."""
        self.fraction = 1.0
        """The share of the card's memory that tensors may take."""
        self._leases: dict[int, _Lease] = {}
        self._lying: list[tuple[int, _Lease]] = []
        """Storages that have a block, by where they begin in the memory of the host."""
        self._written: tuple[int, Block] | None = None
        """The same of what a kernel has just written, whose storage is to come."""

    def take(self, tensor: torch.Tensor) -> None:
        """Count the storage of *tensor*, which is new on the card, until it is gone.

        Raises torch.OutOfMemoryError where the card has no room for it.
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
        """Where each storage begins in the memory of the host, and its bytes on the card."""
        return sorted((lease.start, lease.nbytes) for lease in self._leases.values())

    def _end(self, lease: weakref.ref[object]) -> None:
        gone = self._leases.pop(id(lease))
        nbytes = gone.nbytes
        if gone.block is not None:
            self._lying = [each for each in self._lying if each[1] is not gone]
        self.allocated_bytes -= nbytes
        self.freed_bytes += nbytes

    def _block(self, start: int, nbytes: int) -> Block | None:
        """Memory of the card for a storage that begins at *start* on the host."""
        caches = card.caches()
        if caches is None:
            return None
        written, self._written = self._written, None
        if written is not None and written[0] == start:
            return written[1]
        # Another label of a storage that lies there already, or memory that is new.
        return self._lies_at(start) or caches.take(nbytes)

    def _lies_at(self, start: int) -> Block | None:
        """What lies from *start* on in the memory of the host."""
        place = bisect_right(self._lying, start, key=itemgetter(0))
        if not place:
            return None
        first, lease = self._lying[place - 1]
        if lease.block is None or start - first >= lease.nbytes:
            return None
        return lease.block.part(start - first)

    def lie(self, value: Output, tensor: torch.Tensor) -> None:
        """*value*, an argument of a kernel, is the memory of *tensor*."""
        caches = card.caches()
        block = None if caches is None else self._lies_at(tensor.data_ptr())
        if caches is not None and block is not None:
            caches.lie(value, block)

    def write(self, tensor: torch.Tensor, value: Output) -> None:
        """*tensor*, in host memory, holds *value*, which a kernel has written."""
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
