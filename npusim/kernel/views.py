"""Views: parts of tensors in global memory and of buffers, sliced like numpy arrays.

A stage of a kernel is a function of views and sizes::

    def tile(x: GmView, y: GmView) -> None:        # (rows, columns) of x and of y
        slot = load(builder, x_queue, x)           # mte2, then the vector pipe may go on
        ...
        store(builder, y_queue, result, y)         # mte3 as soon as the vector pipe is done

    for row in range(0, rows, step):
        repeat(builder, tile, x[row : row + step, :], y[row : row + step, :])

:func:`repeat` writes such a stage once for each shape. Calls differ in the offsets of their views,
which become the shifts of the :class:`~npusim.kernel.program.Call`; everything else is part of the
key of the body, so nothing can be left out of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from npusim.data.dtypes import DType
from npusim.data.integers import align_up
from npusim.isa import BLOCK_BYTES, Global
from npusim.kernel.builder import Builder
from npusim.kernel.program import Binding
from npusim.kernel.queues import Queue, Slot

__all__ = [
    "GmView",
    "Shiftable",
    "bindings",
    "fill",
    "load",
    "put",
    "relative",
    "repeat",
    "store",
]

__kernel_vocabulary__ = True


class Shiftable(ABC):
    """An argument of a stage that stands for bytes of a tensor in global memory."""

    __slots__ = ()

    name: str
    """Name of the tensor in programs."""
    offset_bytes: int
    """Its offset in the tensor."""

    @abstractmethod
    def shifted_to(self, offset_bytes: int) -> Self:
        """A copy that begins at *offset_bytes*."""


@dataclass(frozen=True, slots=True)
class GmView(Shiftable):
    """*rows* x *columns* of a row-major matrix in global memory; slicing gives a smaller view.

    >>> from npusim.data.dtypes import FLOAT16
    >>> x = GmView.of("x", FLOAT16, rows=8, columns=100)
    >>> print(x[2:4, 10:20].operand)
    x+420 2x20 B stride 200
    """

    name: str
    dtype: DType
    rows: int
    columns: int
    pitch: int
    """Elements from row to row; 0 for a vector, which has one row."""
    offset_bytes: int = 0

    @staticmethod
    def of(name: str, dtype: DType, rows: int, columns: int) -> GmView:
        """All of tensor *name*, `(rows, columns)`."""
        return GmView(name, dtype, rows, columns, columns)

    @staticmethod
    def vector(name: str, dtype: DType, count: int) -> GmView:
        """All of tensor *name*, `(count,)`, as one row."""
        return GmView(name, dtype, 1, count, 0)

    def __getitem__(self, where: tuple[slice, slice]) -> GmView:
        """`view[top:bottom, left:right]`; bounds beyond the view are clipped, as in numpy."""
        (top, bottom, _), (left, right, _) = (
            part.indices(size) for part, size in zip(where, (self.rows, self.columns), strict=True)
        )
        first = self.offset_bytes + self.dtype.nbytes(top * self.pitch + left)
        rows, columns = max(0, bottom - top), max(0, right - left)
        # Faster than `replace`: this runs for every tile of every core.
        return GmView(self.name, self.dtype, rows, columns, self.pitch, first)

    def row(self, index: int) -> GmView:
        """Row *index* as a vector, a view without a following row."""
        return replace(self[index : index + 1, :], pitch=0)

    @property
    def flat(self) -> GmView:
        """The whole view as one row; its rows must be contiguous in global memory."""
        return GmView(self.name, self.dtype, 1, self.rows * self.columns, 0, self.offset_bytes)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of the view."""
        return self.dtype.nbytes(self.columns)

    @property
    def pitch_bytes(self) -> int:
        """Bytes from row to row."""
        return self.dtype.nbytes(self.pitch)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, without the gaps."""
        return self.rows * self.row_bytes

    def extent_bytes(self, pitch_bytes: int) -> int:
        """Bytes from first to last in a buffer where rows begin *pitch_bytes* apart."""
        return (self.rows - 1) * pitch_bytes + self.row_bytes

    @property
    def operand(self) -> Global:
        """The view as an operand of a copy, one burst per row.

        A single row of a matrix keeps its pitch, since the L2 model spreads a copy by it.
        """
        return Global(self.name, self.offset_bytes, self.row_bytes, self.rows, self.pitch_bytes)

    def shifted_to(self, offset_bytes: int) -> GmView:
        """The same view, beginning at *offset_bytes* of the tensor."""
        return GmView(self.name, self.dtype, self.rows, self.columns, self.pitch, offset_bytes)


def bindings(*views: GmView, is_cached: bool = True) -> dict[str, Binding]:
    """The bindings of the views' names in a block whose tensors begin where the views do.

    *is_cached* says whether the L2 caches what is read through them.
    """
    return {view.name: Binding(view.name, view.offset_bytes, is_cached) for view in views}


def repeat(
    builder: Builder,
    stage: Callable[..., None],
    *arguments: Hashable,
    keeps_slots: bool = False,
) -> None:
    """Call `stage(*arguments)`; calls that differ only in offsets of views are written once.

    Views may also be in tuples. Several views of one tensor are shifted together, by the offset of
    the first. With *keeps_slots* the stage may leave slots in use that the next one takes from the
    queues, such as those of a load ahead.
    """
    shifts: dict[str, int] = {}
    plain = [relative(argument, shifts) for argument in arguments]
    call = builder.call_part if keeps_slots else builder.call
    call((stage, *plain), shifts, partial(stage, *plain))


PLAIN = frozenset((int, bool, float, str, type(None)))
"""Types of arguments without views; checked first, since they are the most common."""


def relative(argument: Any, shifts: dict[str, int]) -> Any:
    """*argument* with its views relative to the first one of their tensor, as in *shifts*."""
    kind = type(argument)
    if kind in PLAIN:
        return argument
    if isinstance(argument, tuple):
        items = [relative(each, shifts) for each in argument]
        return tuple(items) if kind is tuple else kind(*items)
    if isinstance(argument, Shiftable):
        first = shifts.setdefault(argument.name, argument.offset_bytes)
        return argument.shifted_to(argument.offset_bytes - first)
    return argument


def load(
    builder: Builder,
    queue: Queue,
    *views: GmView,
    pitch: int | None = None,
    with_gaps: bool = False,
) -> Slot:
    """Load *views* into a slot of *queue*, as :func:`fill` does, and enqueue it for the consumer.

    Free the slot after it has been read.
    """
    slot = queue.alloc()
    fill(builder, slot, *views, pitch=pitch, with_gaps=with_gaps)
    queue.enque(slot)
    return queue.deque()


def fill(
    builder: Builder,
    slot: Slot,
    *views: GmView,
    pitch: int | None = None,
    with_gaps: bool = False,
) -> None:
    """Load *views*, one behind the other, into *slot*.

    Rows begin *pitch* elements apart, or at the next block of 32 bytes. The destination of the copy
    spans all of its rows, and *with_gaps* also the gap behind the last one.
    """
    start_bytes = 0
    for view in views:
        pitch_bytes = _pitch_bytes(view, pitch)
        dst = slot.of(view.dtype, _count(view, pitch, with_gaps), start_bytes)
        builder.data_copy(dst, view.operand, pitch_bytes if view.rows > 1 else 0)
        start_bytes += view.rows * pitch_bytes


def store(
    builder: Builder,
    queue: Queue,
    slot: Slot,
    view: GmView,
    pitch: int | None = None,
    *,
    with_gaps: bool = False,
) -> None:
    """Store *slot* of *queue*, filled by the producer, to *view*, and free the slot.

    For *pitch* and *with_gaps* see :func:`fill`.
    """
    queue.enque(slot)
    slot = queue.deque()
    put(builder, slot, view, pitch, with_gaps=with_gaps)
    queue.free(slot)


def put(
    builder: Builder,
    slot: Slot,
    view: GmView,
    pitch: int | None = None,
    *,
    with_gaps: bool = False,
) -> None:
    """Store *slot* to *view* without a flag; for *pitch* and *with_gaps* see :func:`fill`."""
    pitch_bytes = _pitch_bytes(view, pitch) if view.rows > 1 else 0
    src = slot.of(view.dtype, _count(view, pitch, with_gaps))
    builder.data_copy(view.operand, src, pitch_bytes)


def _pitch_bytes(view: GmView, pitch: int | None) -> int:
    if pitch is not None:
        return view.dtype.nbytes(pitch)
    return align_up(view.row_bytes, BLOCK_BYTES)


def _count(view: GmView, pitch: int | None, with_gaps: bool) -> int:
    """Elements of the buffer that a copy spans."""
    pitch_bytes = _pitch_bytes(view, pitch)
    if with_gaps:
        return view.rows * pitch_bytes * 8 // view.dtype.bits
    return (view.rows - 1) * pitch_bytes * 8 // view.dtype.bits + view.columns
