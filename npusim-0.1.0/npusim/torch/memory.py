"""How much of the card's memory tensors take, as torch_npu's allocator counts it.

Each storage is rounded up to the allocator's blocks. Nothing is held for later use, so what is
reserved is what is allocated.
"""

from __future__ import annotations

import weakref

import torch

from npusim.data.tensor import allocated_bytes
from npusim.torch import card

__all__ = ["Memory", "memory"]


class _Lease(weakref.ref[object]):
    """A storage on the card, for as long as it lives."""

    __slots__ = ("nbytes",)
    nbytes: int


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
        lease.nbytes = nbytes
        self._leases[id(lease)] = lease

    def _end(self, lease: weakref.ref[object]) -> None:
        nbytes = self._leases.pop(id(lease)).nbytes
        self.allocated_bytes -= nbytes
        self.freed_bytes += nbytes

    def _raise_peak(self, wanted: int, nbytes: int) -> None:
        capacity = int(card.spec().gm.capacity_bytes * self.fraction)
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
