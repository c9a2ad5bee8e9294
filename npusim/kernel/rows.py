"""Copies of matrix rows between global memory and the unified buffer.

On A2 and A3 a copy may have any number of bytes. On 310P it moves whole blocks of 32 bytes: a load
reads a little past the row, and a store that would end within a block instead stores the last 32
bytes of the row again, from a copy made by the scalar unit (the vendor's kernels do both;
ops-nn@e5c3fa9 quant/ascend_quant_v2, MoveOutY).
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.data.dtypes import UINT8, DType
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import BLOCK_BYTES, Global, ScalarLoad, ScalarLoop, ScalarStore
from npusim.kernel.builder import Builder
from npusim.kernel.queues import Queue, Slot
from npusim.kernel.views import GmView

__all__ = ["BODY_ROWS", "Writer", "balanced", "fill", "load", "parts_of", "pieces", "whole_blocks"]

__kernel_vocabulary__ = True

BODY_ROWS = 4
"""Rows that a row-by-row kernel writes as one body, called for all following rows.
It does not affect the result: fewer make more calls, more make longer bodies to check."""


def balanced(extent: int, parts: int) -> int:
    """How many parts get work when *extent* is split evenly into at most *parts*.

    >>> balanced(256, 48)
    43
    """
    return ceil_div(extent, ceil_div(extent, parts))


def pieces(extent: int, step: int, least: int = 1) -> Iterator[tuple[int, int]]:
    """Split *extent* into `(start, width)` pieces of *step*, the last at least *least* wide.

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
        # The remainder would be too narrow: this piece gives up *least*.
        if 0 < left < least < width:
            width -= least
        yield start, width
        start += width


def parts_of(columns: int, step: int) -> tuple[slice, ...]:
    """The parts of a row, of *step* columns each; the last one has the remainder.

    >>> parts_of(100, 64)
    (slice(0, 64, None), slice(64, 100, None))
    """
    return tuple(slice(start, start + width) for start, width in pieces(columns, step))


def whole_blocks(columns: int, dtype: DType) -> int:
    """*columns* of *dtype*, rounded up to whole blocks of 32 bytes: the row pitch in a buffer.

    >>> from npusim.data.dtypes import FLOAT16
    >>> whole_blocks(100, FLOAT16)
    112
    """
    return align_up(columns, BLOCK_BYTES * 8 // dtype.bits)


def load(
    builder: Builder,
    spec: DeviceSpec,
    queue: Queue,
    view: GmView,
    pitch_bytes: int | None = None,
    *,
    one_by_one: bool = False,
) -> Slot:
    """Load *view* into a slot of *queue*, and enqueue it for the consumer; see :func:`fill`.

    Free the slot after it has been read.
    """
    slot = queue.alloc()
    fill(builder, spec, slot, view, pitch_bytes, one_by_one=one_by_one)
    queue.enque(slot)
    return queue.deque()


def fill(
    builder: Builder,
    spec: DeviceSpec,
    slot: Slot,
    view: GmView,
    pitch_bytes: int | None = None,
    *,
    one_by_one: bool = False,
) -> None:
    """Load *view* into *slot*, with rows *pitch_bytes* apart, or at the next block of 32 bytes.

    *one_by_one* loads each row separately, even where the chip could load several in one copy.
    """
    granule, row_bytes = spec.transfer.load_granule_bytes, view.row_bytes
    pitch_bytes = _pitch_bytes(view, pitch_bytes)
    whole = _in_one_copy(view, pitch_bytes, granule)
    if whole and not one_by_one:
        builder.data_copy(slot.of(UINT8, view.extent_bytes(pitch_bytes)), whole, pitch_bytes)
        return
    # Rows that are no whole granules are loaded separately, each a little past its end.
    for row in range(view.rows):
        dst = slot.of(UINT8, row_bytes, row * pitch_bytes)
        builder.data_copy(dst, _part_of_row(view, row, align_up(row_bytes, granule)))


class Writer:
    """Stores rows that pipe *source* wrote, with overlapping tails where the chip needs them.

    *one_by_one* stores each row separately, after the one before has left the core, and stops all
    pipes around the scalar unit's copy of a tail. If no row *has_tails*, that is, rows are whole
    blocks, no room for a tail is needed.
    """

    def __init__(
        self,
        builder: Builder,
        spec: DeviceSpec,
        source: Pipe = "vector",
        *,
        one_by_one: bool = False,
        has_tails: bool = True,
    ) -> None:
        self._builder = builder
        self._source = source
        self._one_by_one = one_by_one
        self._granule = spec.transfer.store_granule_bytes
        self._tails = None
        if has_tails and self._granule > 1:
            self._tails = builder.queue("ub", self._granule, "scalar", "mte3")

    def store(self, queue: Queue, slot: Slot, view: GmView, pitch_bytes: int | None = None) -> None:
        """Store *slot* of *queue*, filled by the producer, to *view*, and free the slot.

        Rows are *pitch_bytes* apart, or begin at the next block of 32 bytes.
        """
        queue.enque(slot)
        slot = queue.deque()
        self.copy(slot, view, pitch_bytes)
        queue.free(slot)

    def copy(self, slot: Slot, view: GmView, pitch_bytes: int | None = None) -> None:
        """Store *slot*, which has been dequeued, to *view*; see `store`."""
        pitch_bytes = _pitch_bytes(view, pitch_bytes)
        whole = _in_one_copy(view, pitch_bytes, self._granule)
        if whole and not self._one_by_one:
            src = slot.of(UINT8, view.extent_bytes(pitch_bytes))
            self._builder.data_copy(whole, src, pitch_bytes)
        else:
            for row in range(view.rows):
                self._store_row(slot, view, row, row * pitch_bytes)
                if self._one_by_one:
                    self._builder.barrier("mte3")

    def _store_row(self, slot: Slot, view: GmView, row: int, start: int) -> None:
        """Store a row that begins *start* bytes into *slot*."""
        granule, row_bytes = self._granule, view.row_bytes
        if row_bytes < granule:
            # Spills into the next row, which the same core stores afterwards, or into the slack
            # that the allocator leaves after each tensor.
            src = slot.of(UINT8, granule, start)
            self._builder.data_copy(_part_of_row(view, row, granule), src)
            return
        # Whole granules first; then the granule that ends where the row ends.
        whole = align_down(row_bytes, granule)
        self._builder.data_copy(_part_of_row(view, row, whole), slot.of(UINT8, whole, start))
        if whole < row_bytes:
            self._store_tail(slot, view, row, start + row_bytes - granule)

    def _store_tail(self, slot: Slot, view: GmView, row: int, start: int) -> None:
        """Store the last granule of a row, which begins *start* bytes into *slot*, again."""
        granule = self._granule
        assert self._tails is not None
        if self._one_by_one:
            self._builder.barrier()
        elif self._source != "scalar":
            self._builder.sync(self._source, "scalar")
        # A store must begin at a block of the buffer, so the scalar unit copies the bytes to one.
        tail = self._tails.alloc()
        copy = (
            ScalarLoad("byte", slot.of(UINT8, 1, start), 1),
            ScalarStore(tail.of(UINT8, 1), "byte", 1),
        )
        self._builder.emit(ScalarLoop(granule, copy))
        if self._one_by_one:
            self._builder.barrier()
        self._tails.enque(tail)
        tail = self._tails.deque()
        dst = _part_of_row(view, row, granule, view.row_bytes - granule)
        self._builder.data_copy(dst, tail.of(UINT8, granule))
        self._tails.free(tail)


def _pitch_bytes(view: GmView, pitch_bytes: int | None) -> int:
    return align_up(view.row_bytes, BLOCK_BYTES) if pitch_bytes is None else pitch_bytes


def _part_of_row(view: GmView, row: int, nbytes: int, skip_bytes: int = 0) -> Global:
    """*nbytes* of row number *row*, after *skip_bytes*."""
    return Global(view.name, view.offset_bytes + row * view.pitch_bytes + skip_bytes, nbytes)


def _in_one_copy(view: GmView, pitch_bytes: int, granule_bytes: int) -> Global | None:
    """All rows in one copy, if the chip supports it with rows *pitch_bytes* apart in UB."""
    row_bytes, stride_bytes = view.row_bytes, view.pitch_bytes
    if view.rows == 1 or row_bytes == stride_bytes == pitch_bytes:
        # One burst: the rows are adjacent in both.
        nbytes = view.rows * row_bytes
        if nbytes % granule_bytes == 0:
            return Global(view.name, view.offset_bytes, nbytes)
    elif row_bytes % granule_bytes == stride_bytes % granule_bytes == 0:
        return view.operand
    return None
