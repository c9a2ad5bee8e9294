"""The templates merge_n and multi_n of npu_add_rms_norm: several rows an instruction.

ops-nn@e5c3fa9 norm/add_rms_norm/op_kernel/add_rms_norm_merge_n.h and add_rms_norm_multi_n.h.
"""

from __future__ import annotations

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Binary, BinaryScalar, Duplicate, Gather, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Queue, Slot
from npusim.kernel.rows import Writer, fill, load
from npusim.kernel.views import GmView, store
from npusim.ops._rms_norm.adding import add
from npusim.ops._rms_norm.rows import whole_blocks
from npusim.ops._rms_norm.steps import (
    multiply_by_block,
    multiply_by_row,
    narrow,
    root_by_vector,
    spread,
    widen,
)
from npusim.ops._rms_norm.sums import FLOATS_PER_BLOCK, LANES, lanes_into, rows_into
from npusim.ops.npu_add_rms_norm.contract import Problem
from npusim.ops.npu_add_rms_norm.one_row import gamma_of
from npusim.ops.npu_add_rms_norm.tiling import Plan

__all__ = ["MergeN", "MultiN"]


class _Several:
    """Buffers of several rows; x1 and x2 take a slot of x each, x and y one of y."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = Builder("npu_add_rms_norm", spec.cores[spec.vector_kinds[0]], spec.sync)
        claim, queue, element = self.builder.claim, self.builder.queue, p.x.element
        rows, self.pitch = plan.row_step, whole_blocks(p.columns, element)
        nbytes, wide_bytes = (rows * kind.nbytes(self.pitch) for kind in (element, FLOAT32))
        self.x = queue("ub", nbytes, "mte2", "vector", 2)
        self.y = queue("ub", nbytes, "vector", "mte3", 2)
        self.gamma = claim("ub", element.nbytes(self.pitch))
        self.squares = claim("ub", wide_bytes)
        self.values = None if element is FLOAT32 else claim("ub", wide_bytes)
        self.writer = Writer(self.builder, spec)

    def begin(self) -> None:
        """As :class:`RowsKernel` says."""
        fill(self.builder, self.spec, self.gamma, gamma_of(self.p))
        self.builder.sync("mte2", "vector")

    def add(self, x1: GmView, x2: GmView, x: GmView) -> tuple[Local, Slot | None]:
        """The sum of rows in fp32, on its way to *x* as well; a slot of x that still holds it."""
        builder, count = self.builder, x1.rows * self.pitch
        pitch_bytes = x1.dtype.nbytes(self.pitch)
        first, second = (load(builder, self.spec, self.x, x, pitch_bytes) for x in (x1, x2))
        out, squares = self.y.alloc(), self.squares.of(FLOAT32, count)
        addends = first.of(x1.dtype, count), second.of(x2.dtype, count)
        values = (self.values or first).of(FLOAT32, count)
        total = out.of(x.dtype, count)
        add(builder, self.spec, total, values, addends, squares, is_rounded=True)
        self.x.free(second)
        if self.values is not None:
            self.x.free(first)
        self.writer.store(self.y, out, x, pitch_bytes)
        return values, first if self.values is None else None

    def square(self, values: Local) -> Local:
        """The squares of *values*, each times 1 / n."""
        squares = self.squares.of(FLOAT32, values.count)
        step(self.builder, Binary("mul", squares, values, values))
        step(self.builder, BinaryScalar("mul", squares, squares, self.p.mean))
        return squares

    def store_y(self, out: Slot, output: GmView) -> None:
        """What is in *out* to *output*."""
        self.writer.store(self.y, out, output, output.dtype.nbytes(self.pitch))


class MergeN(_Several):
    """Short rows, all added up at once. The vector unit waits until x is stored."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        rows, claim = plan.row_step, self.builder.claim
        self.roots = self.builder.queue("ub", FLOAT32.nbytes(rows), "vector", "mte3")
        self.lanes = claim("ub", FLOAT32.nbytes(rows * LANES))
        """64 running sums a row; then ones, and 1 / root of each row eight times."""
        self.wide_gamma = None
        if p.x.element is BFLOAT16:
            self.wide_gamma = claim("ub", FLOAT32.nbytes(self.pitch))

    def group(self, *views: GmView) -> None:
        """As :class:`RowsKernel` says, of x1, x2, output, rstd and x."""
        x1, x2, output, rstd, x = views
        builder, rows = self.builder, x1.rows
        values, slot = self.add(x1, x2, x)
        builder.sync("mte3", "vector")
        squares, kept = self.square(values), self.roots.alloc()
        roots, lanes = kept.of(FLOAT32, rows), self.lanes.of(FLOAT32, rows * LANES)
        rows_into(builder, roots, lanes, squares, x1.columns)
        root_by_vector(builder, roots, lanes.at(0, rows), self.p.epsilon)
        blocks = lanes.at(0, rows * FLOATS_PER_BLOCK)
        spread(builder, blocks, roots)
        store(builder, self.roots, kept, rstd)
        out = self.y.alloc()
        self._scale(out.of(output.dtype, values.count), values, blocks, rows)
        if slot is not None:
            self.x.free(slot)
        self.store_y(out, output)

    def _scale(self, y: Local, values: Local, blocks: Local, rows: int) -> None:
        """*values* times the number of each row in *blocks* and gamma to *y*, `(rows, pitch)`."""
        builder, gamma = self.builder, self.gamma.of(y.dtype, self.pitch)
        if y.dtype is FLOAT32:
            multiply_by_block(builder, values, blocks, rows, y)
            multiply_by_row(builder, y, gamma, rows)
            return
        multiply_by_block(builder, values, blocks, rows)
        narrow(builder, self.spec, y, values)
        if y.dtype is FLOAT16:
            multiply_by_row(builder, y, gamma, rows, FLOAT16)
            return
        widen(builder, values, y)
        assert self.wide_gamma is not None
        wide = self.wide_gamma.of(FLOAT32, self.pitch)
        # Once for all rows of a step.
        widen(builder, wide, gamma)
        multiply_by_row(builder, values, wide, rows)
        narrow(builder, self.spec, y, values)


class MultiN(_Several):
    """Rows of fp16, added up one after the other; the scalar unit waits for nothing."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        claim, queue = self.builder.claim, self.builder.queue
        block_bytes = plan.row_step * BLOCK_BYTES
        self.lanes = claim("ub", FLOAT32.nbytes(LANES))
        self.totals = claim("ub", block_bytes)
        """A block for each row."""
        self.roots: Queue | None = None
        if spec.arch != "2002":
            # 310P does not store them.
            with self.builder.on_top_of(self.totals):
                self.roots = queue("ub", block_bytes, "vector", "mte3")
        self.firsts = claim("ub", block_bytes)
        """Eight times the offset of the first number of each block."""

    def begin(self) -> None:
        """As :class:`RowsKernel` says."""
        super().begin()
        # Seven of eight numbers are never looked at; that they are set first is assumed.
        totals = self.totals.of(FLOAT32, self.plan.row_step * FLOATS_PER_BLOCK)
        self.builder.emit(Duplicate(totals, 0.0))
        for row in range(self.plan.row_step):
            offsets = self.firsts.of(INT32, FLOATS_PER_BLOCK, row * BLOCK_BYTES)
            self.builder.emit(Duplicate(offsets, row * BLOCK_BYTES))
        self.builder.barrier("vector")

    def group(self, *views: GmView) -> None:
        """As :class:`RowsKernel` says, of x1, x2, output, rstd and x."""
        x1, x2, output, rstd, x = views
        builder, rows, columns = self.builder, x1.rows, x1.columns
        values, _ = self.add(x1, x2, x)
        squares = self.square(values)
        kept = self.roots.alloc() if self.roots else self.totals
        for row in range(rows):
            total, lanes = kept.of(FLOAT32, 1, row * BLOCK_BYTES), self.lanes.of(FLOAT32, LANES)
            lanes_into(builder, total, lanes, squares.at(row * columns, columns))
        # A block a row, of which the first number counts.
        count = rows * FLOATS_PER_BLOCK
        roots, blocks = kept.of(FLOAT32, count), squares.at(0, count)
        root_by_vector(builder, roots, blocks, self.p.epsilon)
        step(builder, Gather(blocks, roots, self.firsts.of(INT32, count)))
        if self.roots is not None:
            self._store_roots(kept, rstd)
        out = self.y.alloc()
        y = out.of(output.dtype, values.count)
        for row in range(rows):
            here = values.at(row * columns, columns)
            block = blocks.at(row * FLOATS_PER_BLOCK, FLOATS_PER_BLOCK)
            multiply_by_block(builder, here, block, 1)
        narrow(builder, self.spec, y, values)
        gamma = self.gamma.of(FLOAT16, columns)
        for row in range(rows):
            here = y.at(row * columns, columns)
            step(builder, Binary("mul", here, here, gamma))
        self.store_y(out, output)

    def _store_roots(self, kept: Slot, rstd: GmView) -> None:
        """The first number of each block to *rstd*: four bytes a burst."""
        assert self.roots is not None
        rows = GmView(rstd.name, FLOAT32, rstd.columns, 1, 1, rstd.offset_bytes)
        store(self.builder, self.roots, kept, rows)
