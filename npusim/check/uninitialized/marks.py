"""The bytes of a core's buffers that were never written, or depend on such bytes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np
from numpy.typing import NDArray

from npusim.check.hazards.areas import Area, Rows, edges
from npusim.data.dtypes import INT4
from npusim.data.integers import ceil_div
from npusim.devices.schema import Core
from npusim.isa import Local, places

__all__ = ["NOBODY", "WRITTEN", "Array", "Marks", "Sink"]

Array = NDArray[np.integer]
Sink = Array | None
"""The marks that a micro-op stores outside its core; None if it stores nothing."""
WRITTEN = 0
NOBODY = 1
"""The mark of a byte never written. Larger marks identify the micro-op that read it first."""
BUFFERS = ("ub", "l1", "l0a", "l0b", "l0c", "bt", "fb")


class Marks:
    """A mark for each byte of the buffers of a core, and for each scalar register."""

    def __init__(self, core: Core, dtype: type[np.integer]) -> None:
        sizes = {name: getattr(core, f"{name}_bytes") for name in BUFFERS}
        self.bytes: dict[str, Array] = {
            name: np.full(size, NOBODY, dtype) for name, size in sizes.items() if size
        }
        self.registers: dict[str, int] = {}
        """Registers that are not WRITTEN; unset registers are found by another check."""
        self.changed: set[str] = set()
        """Buffers with marks that changed since this set was last cleared."""
        self._clean: dict[str, set[Area]] = {name: set() for name in self.bytes}
        """Buffer -> areas that are WRITTEN throughout."""
        self.known: dict[str, set[Hashable]] = {name: set() for name in self.bytes}
        """Buffer -> results about its marks, valid until one of them changes."""

    def load(self, buffer: str, marks: Array) -> None:
        """Set the marks of the first bytes of *buffer* to *marks*; the others are NOBODY."""
        self.bytes[buffer][: marks.size] = marks
        self.bytes[buffer][marks.size :] = NOBODY
        self.forget(buffer)

    def forget(self, buffer: str) -> None:
        """Discard what is known of *buffer*."""
        self._clean[buffer].clear()
        self.known[buffer].clear()

    # ---- areas: testing and marking as written ----

    def is_written(self, area: Area) -> bool:
        """Whether all bytes of *area* are WRITTEN."""
        clean = self._clean[area.place]
        if area in clean:
            return True
        if any(view.any() for view in self.views(area)):
            return False
        clean.add(area)
        return True

    def write(self, area: Area) -> None:
        """Make all bytes of *area* WRITTEN."""
        clean = self._clean[area.place]
        if area in clean:
            return
        for view in self.views(area):
            if view.any():
                view[...] = WRITTEN
                self._change(area.place)
        clean.add(area)

    def _change(self, buffer: str, *, marks: Array | None = None) -> None:
        """Record that some marks of *buffer* have become *marks*, or WRITTEN."""
        self.changed.add(buffer)
        self.known[buffer].clear()
        if marks is not None and marks.any():
            self._clean[buffer].clear()

    def views(self, area: Area) -> Iterator[Array]:
        """The marks of *area*, piece by piece."""
        marks, shape = self.bytes[area.place], area.shape
        if shape is None:
            yield marks[area.start : area.end]
        elif not isinstance(shape, Rows) or min(shape.stride, shape.inner_stride) < 0:
            starts, ends = edges(shape)
            for start, end in zip(starts - starts[0], ends - starts[0], strict=True):
                yield marks[area.start + start : area.start + end]
        else:
            whole, left = divmod(shape.pieces, shape.inner)
            size = marks.itemsize
            steps = (shape.stride * size, shape.inner_stride * size, size)
            for outer, inner, first in ((whole, shape.inner, 0), (1, left, whole * shape.stride)):
                if outer and inner:
                    pieces, start = (outer, inner, shape.nbytes), (area.start + first) * size
                    yield np.ndarray(pieces, marks.dtype, marks, start, steps)

    # ---- bytes and elements ----

    def rows(self, buffer: str, offset: int, nbytes: int, count: int, stride: int) -> Array:
        """The marks of *count* rows of *nbytes*, `(count, nbytes)`: a view."""
        marks, size = self.bytes[buffer], self.bytes[buffer].itemsize
        steps = (stride * size, size)
        return np.ndarray((count, nbytes), marks.dtype, marks, offset * size, steps)

    def put_bytes(self, buffer: str, view: Array, marks: Array) -> None:
        """Write *marks* to *view*, which is a view of *buffer*."""
        if (view != marks).any():
            view[...] = marks
            self._change(buffer, marks=marks)

    def elements(self, local: Local) -> Array:
        """The marks of the elements of *local*, `(count,)`: the largest of their bytes."""
        size = local.dtype.bits // 8
        if local.dtype is INT4:
            marks = self.bytes[local.buffer][self._places(local, 1)]
            return np.repeat(marks, 2)[: local.count]
        found: Array = self.bytes[local.buffer][self._places(local, size)].max(axis=1)
        return found

    def put(self, local: Local, marks: Array) -> None:
        """Set the marks of the elements of *local* to *marks* `(count,)`."""
        if local.dtype is INT4:
            even = np.append(marks, WRITTEN)[: 2 * ceil_div(marks.size, 2)]
            spots, marks = self._places(local, 1), even.reshape(-1, 2).max(axis=1)
        else:
            spots = self._places(local, local.dtype.bits // 8)
            marks = np.broadcast_to(marks[:, None], spots.shape)
        before = self.bytes[local.buffer]
        if (before[spots] != marks).any():
            before[spots] = marks
            self._change(local.buffer, marks=marks)

    @staticmethod
    def _places(local: Local, size: int) -> NDArray[np.int64]:
        """Offsets of the bytes of the elements of *local*, `(count, size)`; for int4 `(bytes,)`."""
        if local.is_strided:
            first = local.offset_bytes + places(local)
        else:
            first = np.arange(local.offset_bytes, local.offset_bytes + local.nbytes, size)
        return first if local.dtype is INT4 else first[:, None] + np.arange(size)
