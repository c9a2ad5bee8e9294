"""Pieces of tasks become outputs, at the end of FAI-FD: after all vector cores have met.

.. code-block:: text

    M = max_k lse_k;  s = sum_k exp(lse_k - M);  L = ln(s) + M         k: pieces of a task
    output = T(sum_k exp(lse_k - L) * O_k)                             one after the other, from 0

The sum s is by halves: what lies behind the largest power of two is added to the first ones, then
the upper half to the lower one, of as many pieces as a multiple of eight, zeros among them.

Sources: see :mod:`npusim.ops._attention.fai` (CombineScale.hpp). Assumed: that cube cores do not
wait with the vector cores.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8, RoundMode
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Binary, Cast, Copy, Duplicate, Local, Unary
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot
from npusim.kernel.rows import fill, pieces
from npusim.kernel.views import GmView, repeat
from npusim.ops._attention.description import Attention
from npusim.ops._attention.fai.numbers import Rows, by_row, spread
from npusim.ops._attention.fai.places import Places
from npusim.ops._attention.fai.split import Node
from npusim.ops._attention.fai.tasks import TASK_ROWS, Part
from npusim.ops._attention.fai.vector import rows_at_a_time

__all__ = ["ALL_STORED", "Combiner"]

ALL_STORED = 4
"""The flag of all vector cores: all pieces are in the workspace."""
ROW_UNIT = 8
"""Rows, and pieces, are padded to a multiple of so many."""
TILE_BYTES = 32768


class Combiner:
    """The buffers of a vector core, and how it combines the pieces of its rows."""

    def __init__(
        self, builder: Builder, spec: DeviceSpec, a: Attention, places: Places, most: int
    ) -> None:
        """*most* is how many pieces a task has at most."""
        self._builder, self._spec, self._a, self._places = builder, spec, a, places
        numbers_bytes = FLOAT32.nbytes(align_up(most, ROW_UNIT) * TASK_ROWS)
        vector_bytes = FLOAT32.nbytes(TASK_ROWS)
        self._sums = builder.queue("ub", numbers_bytes, "mte2", "vector")
        self._weights = builder.claim("ub", numbers_bytes)
        self._largest, self._all = (builder.claim("ub", vector_bytes) for _ in range(2))
        self._blocks = builder.claim("ub", BLOCK_BYTES * TASK_ROWS)
        self._loaded = builder.queue("ub", TILE_BYTES, "mte2", "vector", 2)
        self._output = builder.queue("ub", TILE_BYTES, "vector", "mte3")
        self._rounding: RoundMode = "none" if a.element is FLOAT16 else "rint"

    def node(self, node: Node, half: int) -> None:
        """Combine the rows of vector core *half*, 0 or 1, of the task of *node*."""
        form = node.task.form
        first = form.tokens // 2 * form.heads if form.tokens > 1 else form.rows // 2
        row, rows = (0, first) if half == 0 else (first, form.rows - first)
        if rows == 0:
            return
        here, size = slice(row, row + rows), self._a.head_size
        count = node.pieces
        # (pieces, rows) and (pieces x 128, columns); rows of a piece are 128 apart
        sums = GmView.of("sums_of_pieces", FLOAT32, node.first + count, TASK_ROWS)
        outputs = GmView.of("outputs_of_pieces", FLOAT32, (node.first + count) * TASK_ROWS, size)
        top = node.first * TASK_ROWS + row
        # From the first row of the first piece to the last one of the last.
        of_task = outputs[top : top + (count - 1) * TASK_ROWS + rows, :]
        whole, shifts = Part(0, form.heads, 0, form.tokens, 0), self._places.shifts(node.task)
        stored = [
            view.shifted_to(view.offset_bytes + shifts[view.name])
            for _, view in self._places.outputs(whole)
        ]
        lse = []
        if self._a.returns_lse:
            lse = [
                view.shifted_to(view.offset_bytes + shifts[view.name])
                for _, view in self._places.sums(whole)
            ]
        repeat(
            self._builder,
            self._write,
            sums[node.first :, here],
            of_task,
            row,
            len(stored),
            *stored,
            *lse,
        )

    def _write(self, sums: GmView, outputs: GmView, row: int, heads: int, *views: GmView) -> None:
        """Rows from *row* of the task on; *views* are its output and softmax_lse, head by head."""
        builder, (count, rows) = self._builder, (sums.rows, sums.columns)
        pitch = align_up(rows, ROW_UNIT)
        found = self._sums.alloc()
        fill(builder, self._spec, found, sums, FLOAT32.nbytes(pitch))
        self._sums.enque(found)
        found = self._sums.deque()
        self._weigh(found, count, pitch)
        self._sums.free(found)
        for start, some in pieces(rows, rows_at_a_time(self._a.head_size)):
            self._add_up(outputs, count, start, some, pitch, row, views[:heads])
        if views[heads:]:
            spread(builder, self._blocks, self._all.of(FLOAT32, rows))
            builder.sync("vector", "mte3")
            for head, view in enumerate(views[heads:]):
                _store_rows(builder, self._blocks, view, BLOCK_BYTES, head, row, 0, rows)
            builder.sync("mte3", "vector")

    def _weigh(self, found: Slot, count: int, pitch: int) -> None:
        """softmax_lse of *count* pieces `(pieces, rows)` to what the output of each counts."""
        builder = self._builder
        largest, total = (slot.of(FLOAT32, pitch) for slot in (self._largest, self._all))
        lse = [found.of(FLOAT32, pitch, FLOAT32.nbytes(k * pitch)) for k in range(count)]
        weights = [
            self._weights.of(FLOAT32, pitch, FLOAT32.nbytes(k * pitch)) for k in range(count)
        ]
        step(builder, Copy(largest, lse[0]))
        for own in lse[1:]:
            step(builder, Binary("max", largest, largest, own))
        for own, weight in zip(lse, weights, strict=True):
            builder.emit(Binary("sub", weight, own, largest))
        builder.barrier("vector")
        every = self._weights.of(FLOAT32, count * pitch)
        step(builder, Unary("exp", every, every))
        self._sum_by_halves(count, pitch)
        step(builder, Unary("ln", total, self._weights.of(FLOAT32, pitch)))
        step(builder, Binary("add", total, total, largest))
        for own, weight in zip(lse, weights, strict=True):
            builder.emit(Binary("sub", weight, own, total))
        builder.barrier("vector")
        step(builder, Unary("exp", every, every))

    def _sum_by_halves(self, count: int, pitch: int) -> None:
        """The sum of *count* rows of *pitch* numbers to the first one."""
        builder = self._builder
        padded = align_up(count, ROW_UNIT)
        if padded > count:
            nothing = self._weights.of(
                FLOAT32, (padded - count) * pitch, FLOAT32.nbytes(count * pitch)
            )
            step(builder, Duplicate(nothing, 0.0))
        half = 1 << (padded.bit_length() - 1)
        spans = [(half, padded - half)] if padded > half else []
        while half > 1:
            half //= 2
            spans.append((half, half))
        for start, some in spans:
            lower = self._weights.of(FLOAT32, some * pitch)
            upper = self._weights.of(FLOAT32, some * pitch, FLOAT32.nbytes(start * pitch))
            step(builder, Binary("add", lower, lower, upper))

    def _add_up(
        self,
        outputs: GmView,
        count: int,
        start: int,
        rows: int,
        pitch: int,
        row: int,
        views: tuple[GmView, ...],
    ) -> None:
        """The output of *rows* from *start* of the core's on, the first is *row* of the task's."""
        builder, size = self._builder, self._a.head_size
        output = self._output.alloc()
        total = Local(output.buffer, output.offset_bytes, FLOAT32, rows * size)
        step(builder, Duplicate(total, 0.0))
        for k in range(count):
            first = k * TASK_ROWS + start
            loaded = self._loaded.alloc()
            view = outputs[first : first + rows, :]
            fill(builder, self._spec, loaded, view, view.row_bytes)
            self._loaded.enque(loaded)
            loaded = self._loaded.deque()
            plane = Rows(loaded.of(FLOAT32, 1), rows, size, size)
            weight = self._weights.of(FLOAT32, rows, FLOAT32.nbytes(k * pitch + start))
            by_row(builder, "mul", plane, spread(builder, self._blocks, weight))
            step(builder, Binary("add", total, plane.whole(), total))
            self._loaded.free(loaded)
        step(builder, Cast(output.of(self._a.element, rows * size), total, self._rounding))
        self._output.enque(output)
        output = self._output.deque()
        for head, view in enumerate(views):
            _store_rows(builder, output, view, view.row_bytes, head, row, start, rows)
        self._output.free(output)


def _store_rows(
    builder: Builder,
    slot: Slot,
    view: GmView,
    pitch_bytes: int,
    head: int,
    row: int,
    start: int,
    rows: int,
) -> None:
    """What belongs to *head*, `(tokens, n)` *view*, of *rows* in *slot*, *pitch_bytes* apart.

    The first of them is *start* of the core's, and these begin at *row* of the task's.
    """
    first = row + start
    top = max(head * view.rows, first)
    bottom = min((head + 1) * view.rows, first + rows)
    if top >= bottom:
        return
    part = view[top - head * view.rows : bottom - head * view.rows, :]
    offset_bytes = slot.offset_bytes + (top - first) * pitch_bytes
    count = part.extent_bytes(pitch_bytes)
    src = Local(slot.buffer, offset_bytes, UINT8, count)
    builder.data_copy(part.operand, src, pitch_bytes)
