"""Kernels that move rows selected by indices: Index, IndexPutV2, InplaceIndexAdd, Scatter.

The indices of a task are loaded together; the scalar unit reads them one by one and computes the
address of each row. Rows of at least one block of 32 bytes are loaded and stored one after the
other, through one buffer, in pieces if they are longer than half of it. Elements of shorter rows
are moved one by one by the scalar unit. The values of the indices do not matter: rows are read in
order.

ops-nn@e5c3fa9 index/index/op_api/aclnn_index.cpp and index_put_v2; for the kernels, the Python of
CANN 8.1.RC1, impl/dynamic/index.py, and scatter_elements of ops-nn. Assumed: the elements of a task
that the scalar unit moves are loaded and stored together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import FLOAT32, UINT8
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import BLOCK_BYTES, ScalarAlu, ScalarLoad, ScalarLoop, ScalarStore
from npusim.kernel import Binding, GmView, GmViews, Kernel, Step, VectorCore, pieces
from npusim.kernel.rectangles import rectangles
from npusim.torch.works.work import INPUT, OUTPUT, Work, by_bits, kernel_of, room_bytes

__all__ = ["RowMoves", "ScalarMoves"]

TASK_ROWS = 128
"""Rows of a task of Index (index.py)."""
FEW_ROWS, MOST_TABLE_ROWS = 32, 50_000
"""Rows of a task if one index selects a row, and the largest table for which this holds."""
KEPT_BYTES = 4096
"""Bytes of the unified buffer that the kernel leaves unused."""
INDEX, PLACE = "index", "place"
"""Registers."""
OUT: tuple[Pipe, Pipe] = ("scalar", "mte3")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMoves(Work):
    """*rows* rows of *row_bytes*, each selected by *indices* indices of *index_bits*."""

    rows: int
    row_bytes: int
    table_rows: int
    """Rows of the tensor that they are read from or written to."""
    index_bits: int = 64
    indices: int = 1
    adds: bool = False
    """Whether a row is added to the destination rather than copied."""

    @property
    def size(self) -> int:
        return self.rows * self.row_bytes

    @property
    def task_rows(self) -> int:
        """Rows that a core processes at a time."""
        is_one = self.indices == 1 and self.table_rows <= MOST_TABLE_ROWS
        return FEW_ROWS if is_one else TASK_ROWS

    def write(self, spec: DeviceSpec) -> Kernel:
        core = VectorCore(self.kernel, spec)
        cores = len(spec.vector_cores)
        tasks = ceil_div(self.rows, self.task_rows)
        mover = _RowMover(core, self)
        first = np.arange(tasks) * self.task_rows
        count = np.minimum(self.task_rows, self.rows - first)
        begin = first % max(1, self.table_rows - self.task_rows + 1)
        table = GmView.of(f"{INPUT}0", UINT8, self.table_rows, self.row_bytes)
        output = GmView.of(f"{OUTPUT}0", UINT8, self.rows, self.row_bytes)
        lists = GmView.vector(f"{INPUT}1", by_bits(self.index_bits), self.rows * self.indices)
        views = (
            GmViews.of(lists, 0, first * self.indices, 1, count * self.indices),
            GmViews.of(table, begin, 0, count, self.row_bytes),
            GmViews.of(output, first, 0, count, self.row_bytes),
        )
        bound = {name: Binding(name) for name in (f"{INPUT}0", f"{INPUT}1", f"{OUTPUT}0")}
        blocks = core.launch(
            Step(mover.run, views, np.arange(tasks) % cores), bound=lambda _: bound
        )
        inputs = (
            (self.table_rows * self.row_bytes, 8),
            (self.rows * self.indices, self.index_bits),
        )
        return kernel_of(self.kernel, blocks, inputs, [(self.rows * self.row_bytes, 8)])


class _RowMover:
    """The buffers of a core, and the steps of a task."""

    def __init__(self, core: VectorCore, work: RowMoves) -> None:
        self.core, self.work = core, work
        count = min(work.task_rows, work.rows) * work.indices
        self.listed = core.tiles(by_bits(work.index_bits), count, "mte2", "scalar")
        half = align_down((room_bytes(core.spec) - KEPT_BYTES) // 2, 8 * BLOCK_BYTES)
        self.piece_bytes = min(align_up(work.row_bytes, BLOCK_BYTES), half // (1 + work.adds))
        self.row = core.tiles(UINT8, self.piece_bytes, "mte2", "mte3")
        if work.adds:
            self.row = core.vecin(UINT8, self.piece_bytes)
            self.sum = core.vecout(UINT8, self.piece_bytes)
            self.old = core.vecin(UINT8, self.piece_bytes)
        core.claim_tails("vector" if work.adds else "mte2")

    def run(self, lists: GmView, table: GmView, output: GmView) -> None:
        """Copy or add rows of *table* to those of *output*."""
        core, work = self.core, self.work
        listed = core.load(self.listed, lists)
        for row in range(output.rows):
            for place in range(row * work.indices, (row + 1) * work.indices):
                core.get_value(INDEX, listed[place : place + 1])
                # The address: (i + n) % n, times the stride, plus the address so far.
                for op in ("add", "mul", "add"):
                    core.alu(op, PLACE, INDEX, 1)
            src, dst = table.row(row % max(1, table.rows)), output.row(row)
            for left, width in pieces(work.row_bytes, self.piece_bytes):
                part = slice(left, left + width)
                self._move(src[:, part], dst[:, part])
        self.listed.free(listed)

    def _move(self, src: GmView, dst: GmView) -> None:
        core = self.core
        loaded = core.load(self.row, src)
        if not self.work.adds:
            core.store(self.row, loaded, dst)
            return
        old, out = core.load(self.old, src), self.sum.alloc()
        count = align_up(src.columns, BLOCK_BYTES) // 4
        a, b, c = (each.as_dtype(FLOAT32, count) for each in (loaded, old, out))
        core.add(c, a, b)
        self.row.free(loaded)
        self.old.free(old)
        core.store(self.sum, out, dst)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarMoves(Work):
    """*count* elements of *bits* that the scalar unit moves one by one, by *count* indices.

    The *table* that they are read from or written to is streamed through the buffers of the cores.
    """

    count: int
    bits: int
    table: int
    rows: int = 1
    """Independent rows, which are distributed over the cores: at most this many cores work."""
    index_bits: int = 64

    @property
    def size(self) -> int:
        return self.count

    def write(self, spec: DeviceSpec) -> Kernel:
        core = VectorCore(self.kernel, spec)
        cores = max(1, min(len(spec.vector_cores), self.rows, self.count))
        dtype, index = by_bits(self.bits), by_bits(self.index_bits)
        third_bits = room_bytes(spec, KEPT_BYTES) // 3 * 8
        most = align_down(third_bits // max(self.bits, self.index_bits), 8 * BLOCK_BYTES)
        tables = core.tiles(dtype, most, "mte2", "scalar")
        listed, moved = core.tiles(index, most, "mte2", "scalar"), core.tiles(dtype, most, *OUT)
        core.claim_tails("scalar")

        def look(table: GmView) -> None:
            tables.free(core.load(tables, table))

        def move(places: GmView, dst: GmView) -> None:
            known, out = core.load(listed, places), moved.alloc()
            steps = index.nbytes(1), dtype.nbytes(1)
            body = (
                ScalarLoad(INDEX, known[:1], steps[0]),
                ScalarAlu("mul", PLACE, INDEX, 1),
                ScalarStore(out[:1], INDEX, steps[1]),
            )
            core.emit(ScalarLoop(places.columns, body))
            listed.free(known)
            core.store(moved, out, dst)

        seen, own = (
            rectangles(1, each, (1, align_up(ceil_div(each, cores), BLOCK_BYTES)), most)
            for each in (self.table, self.count)
        )
        views = [
            parts.views(GmView.vector(name, element, count))
            for parts, name, element, count in (
                (seen, f"{INPUT}0", dtype, self.table),
                (own, f"{INPUT}1", index, self.count),
                (own, f"{OUTPUT}0", dtype, self.count),
            )
        ]
        bound = {view.name: Binding(view.name) for view in views}
        blocks = core.launch(
            Step(look, (views[0],), seen.core, seen.order - seen.order.max() - 1),
            Step(move, tuple(views[1:]), own.core, own.order),
            bound=lambda _: bound,
        )
        inputs = (self.table, self.bits), (self.count, self.index_bits)
        return kernel_of(self.kernel, blocks, inputs, [(self.count, self.bits)])
