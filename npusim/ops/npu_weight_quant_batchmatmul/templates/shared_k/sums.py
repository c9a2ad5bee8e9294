"""Sums that several cube cores add up in global memory: zeroed before, turned into y after.

Both is the work of all vector cores. The zeros must be there before any cube core adds to them, and
every sum complete before one is read: all cores of a kind wait for each other, then set a flag for
the other kind (ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel, *_custom_nz_splitk.h,
*_custom_mix_splitk.h: InitOutput, SyncAll, the vector epilogue).
"""

from __future__ import annotations

from typing import Literal

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.isa import Cast, Duplicate, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_float32
from npusim.kernel.cross_core import sync_all
from npusim.kernel.plane import REPEAT, Plane, by_row
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, load, repeat, store
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem

__all__ = ["ALL_CORES", "DONE", "ZEROED", "Epilogue", "Zeros"]

ZEROED, DONE = 2, 3
"""Flags between a cube core and its vector cores: sums may be added, and all have been."""
ALL_CORES = 4
"""Flag among the vector cores, and among the cube cores."""
MAX_ZEROS_BYTES = 65536
"""Size of a store of zeros; assumed."""
MAX_COLUMNS = 2048
MAX_ROWS = 128
"""Rows and columns of the output that are computed at a time; assumed."""


class Zeros:
    """Fills the sums with zeros: an even part of them each of *cores* vector cores."""

    def __init__(self, builder: Builder, p: Problem, cores: int) -> None:
        self._builder = builder
        self._sums = GmView.vector("sums", FLOAT32, p.traits.m * p.traits.n)
        # (m x n,) fp32, an equal part of whole repeats for each core
        self._part = align_up(ceil_div(self._sums.columns, cores), REPEAT)
        self._max_count = min(self._part, MAX_ZEROS_BYTES // FLOAT32.nbytes(1))
        self._zeros = builder.claim("ub", FLOAT32.nbytes(self._max_count))

    def write(self, core: int) -> None:
        """Fill the part of vector core number *core*; all vector cores leave together."""
        builder, start = self._builder, core * self._part
        part = self._sums[:, start : start + self._part]
        if part.columns:
            repeat(builder, self._fill)
        # The same zeros are stored again and again: nothing overwrites them.
        for first, count in pieces(part.columns, self._max_count):
            repeat(builder, self._store, part[:, first : first + count])
        repeat(builder, sync_all, builder, "mte3", "mte2", ALL_CORES, ZEROED)

    def _fill(self) -> None:
        self._builder.emit(Duplicate(self._zeros.of(FLOAT32, self._max_count), 0.0))
        self._builder.sync("vector", "mte3")

    def _store(self, sums: GmView) -> None:
        self._builder.data_copy(sums.operand, self._zeros.of(FLOAT32, sums.columns))


class Epilogue:
    """Computes the output from the sums: *cores* vector cores share the columns evenly."""

    def __init__(
        self, builder: Builder, p: Problem, cores: int, scaled: bool, mode: Literal["rint", "round"]
    ) -> None:
        """*scaled* says that the scale is applied only now, *mode* how the output is rounded."""
        self._builder, self._mode, f, out = builder, mode, p.traits, p.output.element
        self._sums = GmView.of("sums", FLOAT32, f.m, f.n)
        self._output = GmView.of("output", out, f.m, f.n)
        # (m, n): all rows of an equal part of the columns for each core
        self._part = align_up(ceil_div(f.n, cores), REPEAT)
        columns = min(self._part, MAX_COLUMNS)
        self._vectors: list[_RowVector] = []
        if scaled:
            scale = GmView.vector("antiquant_scale", p.antiquant_scale.element, f.n)
            self._vectors.append(_RowVector(builder, scale, "mul", columns))
        if p.bias is not None:
            bias = GmView.vector("bias", p.bias.element, f.n)
            self._vectors.append(_RowVector(builder, bias, "add", columns))
        # Sums and results are double buffered.
        row_bytes = 2 * FLOAT32.nbytes(columns) + 2 * out.nbytes(columns)
        self._rows = min(f.m, MAX_ROWS, builder.room_bytes("ub") // row_bytes)
        count = self._rows * columns
        self._tiles = builder.queue("ub", FLOAT32.nbytes(count), "mte2", "vector", 2)
        self._results = builder.queue("ub", out.nbytes(count), "vector", "mte3", 2)

    def write(self, core: int) -> None:
        """Make the part of vector core number *core*, when all cube cores have added theirs."""
        builder, start = self._builder, core * self._part
        repeat(builder, builder.cross_core_wait_flag, "group", "mte2", DONE)
        part = self._output[:, start : start + self._part]
        for first, count in pieces(part.columns, MAX_COLUMNS):
            columns = slice(start + first, start + first + count)
            # Scale and bias of these columns serve all rows.
            if self._vectors:
                repeat(builder, self._load, *(x.tensor[:, columns] for x in self._vectors))
            for row, rows in pieces(part.rows, self._rows):
                here = slice(row, row + rows), columns
                repeat(builder, self._finish, self._sums[here], self._output[here])

    def _load(self, *views: GmView) -> None:
        """Scale and bias of some columns, each (1, columns)."""
        self._builder.sync("vector", "mte2")
        for vector, view in zip(self._vectors, views, strict=True):
            vector.load(view)
        self._builder.sync("mte2", "vector")
        for vector, view in zip(self._vectors, views, strict=True):
            vector.widen(view.columns)

    def _finish(self, sums: GmView, output: GmView) -> None:
        """`output = sums x scale + bias`, both (rows, columns)."""
        builder, columns = self._builder, align_up(sums.columns, REPEAT)
        # (rows, columns) fp32, rows filled up to whole repeats
        slot = load(builder, self._tiles, sums, pitch=columns)
        tile = Plane(slot, sums.rows, columns)
        for vector in self._vectors:
            # (rows, columns) op (columns,)
            by_row(builder, vector.op, tile, vector.numbers(columns))
        # (rows, columns) fp32 -> the type of the output
        result = self._results.alloc()
        count = sums.rows * columns
        step(builder, Cast(result.of(output.dtype, count), tile.whole(), self._mode))
        self._tiles.free(slot)
        store(builder, self._results, result, output, pitch=columns)


class _RowVector:
    """A number a column, as float32 in the unified buffer."""

    def __init__(
        self, builder: Builder, tensor: GmView, op: Literal["mul", "add"], columns: int
    ) -> None:
        """*op* is what it does to each row; claims what *columns* columns need."""
        self._builder, self.tensor, self.op = builder, tensor, op
        self._floats = builder.claim("ub", FLOAT32.nbytes(columns))
        self._raw: Slot | None = None
        if tensor.dtype is not FLOAT32:
            self._raw = builder.claim("ub", tensor.dtype.nbytes(columns))

    def load(self, view: GmView) -> None:
        slot = self._raw or self._floats
        self._builder.data_copy(slot.of(view.dtype, view.columns), view.operand)

    def widen(self, columns: int) -> None:
        if self._raw is not None:
            raw = self._raw.of(self.tensor.dtype, columns)
            to_float32(self._builder, self.numbers(columns), raw)

    def numbers(self, columns: int) -> Local:
        return self._floats.of(FLOAT32, columns)
