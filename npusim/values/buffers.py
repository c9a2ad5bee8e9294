"""The buffers of one core as bounded bytes, or those of several cores that run the same.

Cores that run the same micro-ops together are *lanes*: each has its own buffers, and arrays read
from or written to them have the lanes as their first axis. A single core has no such axis.

The result of a micro-op may be a lazy tile, whose bytes are written only when a micro-op reads
them: matrices of the cube (``matrices``), which avoids reordering fractals; the integers of a cast
(:class:`WholeTile`), which the next cast uses directly; the result of a comparison
(:class:`MaskTile`); and data loaded from memory that is never written (:class:`ViewTile`). Values
do not change; a byte-exact core writes every tile at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from npusim.data.dtypes import INT4, UINT8, Array, Whole, unpack_int4
from npusim.data.integers import ceil_div
from npusim.devices.schema import Core
from npusim.isa import BLOCK_BYTES, Local, places

__all__ = [
    "UNWRITTEN",
    "Buffers",
    "LazyTile",
    "MaskTile",
    "OutOfBufferError",
    "ViewTile",
    "WholeTile",
]

BUFFERS = ("ub", "l1", "l0a", "l0b", "l0c", "bt", "fb")


UNWRITTEN = 0x7B
"""A byte pattern that is a large number in every type, so that reading unwritten bytes shows:
123 in int8, 61,280 in float16, 1.3e36 in float32."""


class OutOfBufferError(ValueError):
    """A micro-op accesses bytes beyond a buffer of its core."""


class LazyTile(Protocol):
    """Contents of a buffer from *start* to *end* whose bytes are not written yet."""

    start: int
    """First byte."""
    end: int
    """One past the last byte."""

    def covers(self, other: LazyTile) -> bool:
        """Whether this tile writes every byte that *other* would write."""

    def write(self, raw: NDArray[np.uint8]) -> None:
        """Write the tile into *raw*, the bytes of its whole buffer."""


Rows = tuple[Local, int, int, int]
"""The operand at which rows begin, bytes per row, number of rows, and bytes from row to row."""

Sweep = tuple[Local, int, int]
"""The first operand of a run, their number, and bytes from one to the next."""


class Elements:
    """The elements of *place*, which must be contiguous, as a lazy tile."""

    def __init__(self, place: Local) -> None:
        self.place, self.start, self.end = place, place.offset_bytes, place.end_bytes

    def covers(self, other: LazyTile) -> bool:
        return self.start <= other.start and other.end <= self.end


class MaskTile(Elements):
    """One bit of *place* for each of *holds*, the first one lowest in its byte; lanes first."""

    def __init__(self, place: Local, holds: NDArray[np.bool_]) -> None:
        super().__init__(place)
        self.holds = holds

    def write(self, raw: NDArray[np.uint8]) -> None:
        raw[..., self.start : self.end] = np.packbits(self.holds, axis=-1, bitorder="little")


class ViewTile(Elements):
    """Bytes of memory that is never written, as the bytes of *place*; lanes first."""

    def __init__(self, place: Local, there: NDArray[np.uint8]) -> None:
        super().__init__(place)
        self.there = there

    def write(self, raw: NDArray[np.uint8]) -> None:
        raw[..., self.start : self.end] = self.there

    def part(self, start: int, end: int) -> NDArray[np.uint8] | None:
        """Bytes [start, end) of the buffer, if all of them are in this tile."""
        if start < self.start or self.end < end:
            return None
        return self.there[..., start - self.start : end - self.start]


class WholeTile(Elements):
    """Integers as the elements of *place*; lanes first."""

    def __init__(self, place: Local, whole: Whole) -> None:
        super().__init__(place)
        self.whole = whole

    def write(self, raw: NDArray[np.uint8]) -> None:
        dtype = self.place.dtype
        self.whole.put(dtype, raw[..., self.start : self.end].view(dtype.numpy))


class Buffers:
    """The bytes of a core's buffers; bytes never written are UNWRITTEN.

    *lanes* is the number of cores, which then hold no matrices of the cube. *repeats* gives each as
    many copies, for calls that are computed together; their initial bytes are undefined.
    """

    def __init__(
        self,
        core: Core,
        *,
        byte_exact: bool = False,
        lanes: int | None = None,
        repeats: int | None = None,
    ) -> None:
        self.lead = tuple(number for number in (lanes, repeats) if number is not None)
        """Leading axes of everything that is read."""
        self._is_repeated = repeats is not None
        self._byte_exact = byte_exact
        self._tiles: dict[str, dict[int, LazyTile]] = {}
        sizes = {name: getattr(core, f"{name}_bytes") for name in BUFFERS}
        self._sizes: dict[str, int] = {n: size for n, size in sizes.items() if size is not None}
        self._bytes: dict[str, NDArray[np.uint8]] = {}
        """Bytes of the buffers that hold, or have held, more than lazy tiles."""
        self._views: dict[Local, tuple[int, Array]] = {}
        """One past the last byte, and the elements."""
        self._rows: dict[Rows, tuple[int, NDArray[np.uint8]]] = {}
        """One past the last byte, and the bytes."""
        self._sweeps: dict[Sweep, tuple[int, int, Array]] = {}
        """First byte, one past the last, and the elements."""

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that they hold."""
        return sum(raw.nbytes for raw in self._bytes.values())

    def reset(self) -> None:
        """Discard all contents."""
        self._tiles.clear()
        if self._is_repeated:
            return
        for raw in self._bytes.values():
            raw.fill(UNWRITTEN)

    def raw(self, buffer: str) -> NDArray[np.uint8]:
        """All bytes of *buffer*; raises OutOfBufferError when the core has no such buffer."""
        raw = self._raw(buffer)
        self._materialise(buffer, 0, raw.shape[-1])
        return raw

    def _raw(self, buffer: str) -> NDArray[np.uint8]:
        raw = self._bytes.get(buffer)
        if raw is None:
            shape = *self.lead, self._size(buffer)
            raw = self._bytes[buffer] = np.empty(shape, np.uint8)
            if not self._is_repeated:
                raw.fill(UNWRITTEN)
        return raw

    def _size(self, buffer: str) -> int:
        if buffer not in self._sizes:
            raise OutOfBufferError(
                f"buffers: {buffer!r} must be a buffer of the core, one of {', '.join(self._sizes)}"
            )
        return self._sizes[buffer]

    def view(self, local: Local) -> Array:
        """The elements of *local*: a writable view, `(count,)`, or `(repeats, blocks, elements)`.

        Lanes come first. Packed int4 appears as bytes. Raises OutOfBufferError beyond the end of
        the buffer.
        """
        end, view = self._views.get(local) or self._kept(local)
        if self._tiles.get(local.buffer):
            self._materialise(local.buffer, local.offset_bytes, end)
        return view

    def room(self, local: Local) -> Array:
        """A :meth:`view` of elements that are all about to be written; discards their contents."""
        end, view = self._views.get(local) or self._kept(local)
        tiles, first = self._tiles.get(local.buffer), local.offset_bytes
        if tiles and not local.is_strided:
            for start in [x.start for x in tiles.values() if first <= x.start and x.end <= end]:
                del tiles[start]
        if tiles:
            self._materialise(local.buffer, first, end)
        return view

    def read(self, local: Local) -> Array:
        """The elements of *local* in order, `(count,)`, lanes first, int4 unpacked; read-only.

        Data that a load left in memory is read there.
        """
        if local.is_ragged:
            elements, at = self._ragged(local)
            view: Array | None = elements[..., at]
        else:
            view = self.seen(local)
        if view is None:
            view = self.view(local)
        if local.is_strided:
            view = view.reshape(*self.lead, -1)
        return unpack_int4(view)[..., : local.count] if local.dtype is INT4 else view

    def write(self, local: Local, values: Array) -> None:
        """Write *values* to *local*, of which several elements may coincide; int4 packed."""
        if local.is_ragged:
            elements, at = self._ragged(local)
            elements[..., at] = values
            return
        view = self.room(local)
        view[...] = values.reshape(view.shape) if local.is_strided else values

    def _ragged(self, local: Local) -> tuple[Array, NDArray[np.int64]]:
        """All elements from the first byte of *local* on, and the indices of those that it has."""
        dtype = np.dtype(np.uint8) if local.dtype is INT4 else local.dtype.numpy
        return self.window(local).view(dtype), places(local) // dtype.itemsize

    def seen(self, local: Local) -> Array | None:
        """The elements of *local* in memory that is never written, if they are there.

        They do not change later either.
        """
        tiles = self._tiles.get(local.buffer)
        if not tiles or local.is_strided:
            return None
        start, end = local.offset_bytes, local.offset_bytes + local.nbytes
        for tile in tiles.values():
            if isinstance(tile, ViewTile):
                part = tile.part(start, end)
                if part is not None:
                    return part.view(_numpy_of(local))
        return None

    def swept(self, local: Local, count: int, step_bytes: int) -> Array:
        """*count* views like :meth:`view`, *step_bytes* apart, as an axis after the lanes.

        Raises OutOfBufferError beyond the end of the buffer.
        """
        key = local, count, step_bytes
        start, end, view = self._sweeps.get(key) or self._kept_sweep(key)
        if self._tiles.get(local.buffer):
            self._materialise(local.buffer, start, end)
        return view

    def _kept_sweep(self, key: Sweep) -> tuple[int, int, Array]:
        local, count, step_bytes = key
        last = replace(local, offset_bytes=local.offset_bytes + (count - 1) * step_bytes)
        self._within(last)
        one, lead = self._cut(local), len(self.lead)
        shape = *self.lead, count, *one.shape[lead:]
        strides = *one.strides[:lead], step_bytes, *one.strides[lead:]
        start = min(local.offset_bytes, last.offset_bytes)
        end = max(local.end_bytes, last.end_bytes)
        found = self._sweeps[key] = start, end, as_strided(one, shape, strides)
        return found

    def window(self, local: Local) -> NDArray[np.uint8]:
        """The bytes of *local* from first to last, lanes first."""
        window = self._within(local)
        self._materialise(local.buffer, local.offset_bytes, local.end_bytes)
        return window

    def rows(self, local: Local, burst: int, count: int, step: int) -> NDArray[np.uint8]:
        """`(count, burst)` bytes from the start of *local*, rows *step* bytes apart.

        Lanes come first. Raises OutOfBufferError beyond the end of the buffer.
        """
        key = local, burst, count, step
        end, rows = self._rows.get(key) or self._kept_rows(key)
        if self._tiles.get(local.buffer):
            self._materialise(local.buffer, local.offset_bytes, end)
        return rows

    def _kept_rows(self, key: Rows) -> tuple[int, NDArray[np.uint8]]:
        local, burst, count, step = key
        whole = Local(local.buffer, local.offset_bytes, UINT8, (count - 1) * step + burst)
        window = self._within(whole)
        if count == 1:
            rows = window[..., None, :]
        else:
            shape, strides = (*self.lead, count, burst), (*window.strides[:-1], step, 1)
            rows = as_strided(window, shape, strides)
        found = self._rows[key] = whole.end_bytes, rows
        return found

    # ---- lazy tiles ----

    def add_tile(self, buffer: str, tile: LazyTile) -> None:
        """Write *tile* to *buffer*, lazily unless the core is byte-exact.

        Raises OutOfBufferError beyond the end of the buffer.
        """
        size = self._size(buffer)
        start, end = tile.start, tile.end
        if start < 0 or end > size:
            raise OutOfBufferError(
                f"buffers: bytes [{start}:{end}] must lie within {size} bytes of "
                f"{buffer}; use a smaller tile"
            )
        tiles = self._tiles.setdefault(buffer, {})
        # Invariant: lazy tiles never overlap. A tile that the new one covers is dropped unwritten;
        # a tile that it overlaps partly is materialised first, so that its other bytes remain.
        before = tiles.get(start)
        if before is not None and tile.covers(before):
            del tiles[start]
        for other in tiles.values():
            if other.start < end and start < other.end:
                self._materialise(buffer, start, end)
                break
        if self._byte_exact:
            tile.write(self._raw(buffer))
        else:
            tiles[start] = tile

    def tile(self, buffer: str, offset_bytes: int) -> LazyTile | None:
        """The lazy tile that begins at *offset_bytes*, if there is one."""
        tiles = self._tiles.get(buffer)
        return tiles.get(offset_bytes) if tiles else None

    def _materialise(self, buffer: str, start: int, end: int) -> None:
        """Write the lazy tiles that overlap [start, end) to their bytes."""
        tiles = self._tiles.get(buffer)
        if tiles:
            # A list, since the loop removes tiles from the dictionary.
            for tile in [tile for tile in tiles.values() if tile.start < end and start < tile.end]:
                del tiles[tile.start]
                tile.write(self._raw(buffer))

    def _within(self, local: Local) -> NDArray[np.uint8]:
        raw = self._raw(local.buffer)
        size = raw.shape[-1]
        if local.offset_bytes < 0 or local.end_bytes > size:
            raise OutOfBufferError(
                f"buffers: {local} must lie within {size} bytes of {local.buffer}; "
                f"claim it with the builder"
            )
        return raw[..., local.offset_bytes : local.end_bytes]

    def _kept(self, local: Local) -> tuple[int, Array]:
        found = self._views[local] = local.end_bytes, self._cut(local)
        return found

    def _cut(self, local: Local) -> Array:
        dtype = _numpy_of(local)
        window = self._within(local).view(dtype)
        if not local.is_strided:
            return window
        # (repeats, blocks, elements of a block)
        blocks = local.nbytes // BLOCK_BYTES
        repeats, inner = ceil_div(blocks, local.repeat_blocks), min(blocks, local.repeat_blocks)
        shape = (*self.lead, repeats, inner, BLOCK_BYTES // dtype.itemsize)
        steps = (local.repeat_stride * BLOCK_BYTES, local.block_stride * BLOCK_BYTES)
        return as_strided(window, shape, (*window.strides[:-1], *steps, dtype.itemsize))


def _numpy_of(local: Local) -> np.dtype[Any]:
    """The numpy type of the elements of *local*; packed int4 as bytes."""
    return np.dtype(np.uint8) if local.dtype is INT4 else local.dtype.numpy
