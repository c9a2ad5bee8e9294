"""Rows of a matrix on their way between global memory and the unified buffer.

On A2 and A3 a copy may have any number of bytes. On 310P it moves whole blocks of 32 bytes: a load
reads a little more than the row, and a store that would end within a block instead stores the last
32 bytes of the row once more, from a copy that the scalar unit makes (the vendor's kernels do both;
ops-nn@e5c3fa9 quant/ascend_quant_v2, MoveOutY).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from npusim.data.dtypes import UINT8
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import Global, ScalarLoad, ScalarLoop, ScalarStore
from npusim.kernel.builder import Builder
from npusim.kernel.queues import Slot

__all__ = ["Rows", "Writer", "balanced", "load", "pieces"]

__kernel_vocabulary__ = True


def balanced(extent: int, parts: int) -> int:
    """How many parts are really used when *extent* is dealt out evenly to at most *parts*.

    >>> balanced(256, 48)
    43
    """
    return ceil_div(extent, ceil_div(extent, parts))


def pieces(extent: int, step: int, least: int = 1) -> Iterator[tuple[int, int]]:
    """Cut *extent* into `(start, width)` pieces of *step*, the last at least *least* wide.

    A remainder that is too narrow takes *least* from the piece before.

    >>> list(pieces(100, 48, least=4))
    [(0, 48), (48, 48), (96, 4)]
    >>> list(pieces(100, 96, least=32))
    [(0, 64), (64, 36)]
    """
    start = 0
    while start < extent:
        width = min(step, extent - start)
        left = extent - start - width
        if 0 < left < least < width:
            width -= least
        yield start, width
        start += width


@dataclass(frozen=True, slots=True)
class Rows:
    """*count* rows of tensor *name*, *stride_bytes* from start to start."""

    name: str
    offset_bytes: int
    count: int
    width_bytes: int
    stride_bytes: int

    def part(self, index: int, width_bytes: int, skip_bytes: int = 0) -> Global:
        """*width_bytes* of row *index*, after *skip_bytes*."""
        start = self.offset_bytes + index * self.stride_bytes + skip_bytes
        return Global(self.name, start, width_bytes)

    def together(self, pitch_bytes: int, granule_bytes: int) -> Global | None:
        """All rows in one copy, if the chip can do that with rows *pitch_bytes* apart in UB."""
        if self.count == 1 or self.width_bytes == self.stride_bytes == pitch_bytes:
            if self.count * self.width_bytes % granule_bytes == 0:
                return Global(self.name, self.offset_bytes, self.count * self.width_bytes)
        elif self.width_bytes % granule_bytes == self.stride_bytes % granule_bytes == 0:
            return Global(
                self.name, self.offset_bytes, self.width_bytes, self.count, self.stride_bytes
            )
        return None


def load(builder: Builder, spec: DeviceSpec, slot: Slot, rows: Rows, pitch_bytes: int) -> None:
    """Load *rows* into *slot*, *pitch_bytes* apart."""
    granule = spec.transfer.load_granule_bytes
    together = rows.together(pitch_bytes, granule)
    if together:
        builder.load(slot.of(UINT8, rows.width_bytes), together, pitch_bytes)
        return
    width = align_up(rows.width_bytes, granule)
    for index in range(rows.count):
        dst = slot.of(UINT8, rows.width_bytes, index * pitch_bytes)
        builder.load(dst, rows.part(index, width))


class Writer:
    """Stores rows that pipe *source* wrote, with overlapping tails where the chip needs them."""

    def __init__(self, builder: Builder, spec: DeviceSpec, source: Pipe = "vector") -> None:
        self._builder = builder
        self._source = source
        self._granule = spec.transfer.store_granule_bytes
        self._tails = None
        if self._granule > 1:
            self._tails = builder.queue("ub", self._granule, "scalar", "mte3")

    def store(self, slot: Slot, rows: Rows, pitch_bytes: int) -> None:
        """Store *rows* that lie *pitch_bytes* apart in *slot*."""
        together = rows.together(pitch_bytes, self._granule)
        if together:
            self._builder.store(together, slot.of(UINT8, rows.width_bytes), pitch_bytes)
            return
        for index in range(rows.count):
            self._store_row(slot, rows, index, index * pitch_bytes)

    def _store_row(self, slot: Slot, rows: Rows, index: int, start: int) -> None:
        granule, width = self._granule, rows.width_bytes
        if width < granule:
            # Spills into the next row, which the same core stores afterwards, or into the slack
            # that the allocator leaves behind each tensor.
            self._builder.store(rows.part(index, granule), slot.of(UINT8, granule, start))
            return
        whole = width // granule * granule
        self._builder.store(rows.part(index, whole), slot.of(UINT8, whole, start))
        if whole < width:
            self._store_tail(slot, rows, index, start + width - granule)

    def _store_tail(self, slot: Slot, rows: Rows, index: int, start: int) -> None:
        granule = self._granule
        assert self._tails is not None
        if self._source != "scalar":
            self._builder.sync(self._source, "scalar")
        tail = self._tails.alloc()
        self._builder.emit(
            ScalarLoop(
                granule,
                (
                    ScalarLoad("byte", slot.of(UINT8, 1, start), 1),
                    ScalarStore(tail.of(UINT8, 1), "byte", 1),
                ),
            )
        )
        self._tails.enque(tail)
        tail = self._tails.deque()
        skip = rows.width_bytes - granule
        self._builder.store(rows.part(index, granule, skip), tail.of(UINT8, granule))
        self._tails.free(tail)
