"""Addresses of tensors on a card, as torch_npu's allocator assigns them.

The card provides memory in segments, and tensors get blocks of whole 512 bytes. A tensor takes the
smallest free block that is large enough, the lowest one if there are several, and splits off the
rest if that is large enough; a freed block is merged with its free neighbours. No segment is
returned to the card.

Sizes: Ascend/pytorch torch_npu/csrc/core/npu/NPUCachingAllocator.cpp. That segments follow each
other without gaps is assumed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from weakref import finalize

from npusim.data.integers import align_up
from npusim.data.tensor import allocated_bytes

__all__ = ["Addresses", "Block"]

MIB = 1 << 20
SMALL_BYTES = 1 * MIB
"""Blocks up to this size come from separate small segments."""
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
LARGE_BYTES = 10 * MIB
"""A larger tensor that finds no free block gets a segment for itself."""
ROUND_BYTES = 2 * MIB
"""The size of such a segment is a multiple of this."""


class Block:
    """Memory of a card, which is freed when the block is no longer referenced."""

    __slots__ = ("__weakref__", "_whole", "address", "nbytes")

    def __init__(self, address: int, nbytes: int, whole: Block | None = None) -> None:
        self.address, self.nbytes, self._whole = address, nbytes, whole

    def part(self, offset_bytes: int) -> Block:
        """The part from there on, which keeps the whole block alive."""
        return Block(self.address + offset_bytes, self.nbytes - offset_bytes, self)


class Addresses:
    """The memory of a card, in blocks."""

    def __init__(self) -> None:
        self._end = 0
        """Bytes that the card has provided in segments."""
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        """Sizes and addresses of free blocks, sorted: of small segments, and of others."""
        self._segments: set[int] = set()
        """Start addresses of segments."""

    def take(self, nbytes: int) -> Block:
        """A block for a tensor of *nbytes*."""
        wanted = allocated_bytes(nbytes)
        is_small = wanted <= SMALL_BYTES
        free = self._free[is_small]
        place = bisect_left(free, (wanted, 0))
        if place == len(free):
            size = _segment_bytes(wanted)
            self._segments.add(self._end)
            insort(free, (size, self._end))
            self._end += size
            place = bisect_left(free, (wanted, 0))
        size, address = free.pop(place)
        if size - wanted > (0 if is_small else SMALL_BYTES):
            insort(free, (size - wanted, address + wanted))
            size = wanted
        block = Block(address, size)
        finalize(block, self._give_back, is_small, address, size).atexit = False
        return block

    def _give_back(self, is_small: bool, address: int, nbytes: int) -> None:
        free, end = self._free[is_small], address + nbytes
        for size, other in tuple(free):
            is_after = other == end and other not in self._segments
            is_before = other + size == address and address not in self._segments
            if is_after or is_before:
                free.remove((size, other))
                address, nbytes = min(address, other), nbytes + size
        insort(free, (nbytes, address))


def _segment_bytes(wanted: int) -> int:
    """The size of a segment for a block of *wanted* bytes."""
    if wanted <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    return LARGE_SEGMENT_BYTES if wanted < LARGE_BYTES else align_up(wanted, ROUND_BYTES)
