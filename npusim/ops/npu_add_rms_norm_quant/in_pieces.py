"""The template split_d of npu_add_rms_norm_quant: rows in pieces, loaded and added twice.

First the sums of up to 64 rows, a piece of all of them after the other; then 1 / root of all; then
a piece of every vector, and of all rows once more. x is stored both times, and all pipes wait
around each store of y.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, INT8
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Binary, BlockReduce, Duplicate, Local
from npusim.kernel.chain import step
from npusim.kernel.queues import Queue, Slot
from npusim.kernel.rows import Writer, fill, pieces
from npusim.kernel.views import GmView
from npusim.ops._rms_norm.adding import times_root
from npusim.ops._rms_norm.steps import read_root, root_by_vector
from npusim.ops._rms_norm.sums import FLOATS_PER_BLOCK, LANES, lanes_of_row
from npusim.ops.npu_add_rms_norm_quant.contract import Problem
from npusim.ops.npu_add_rms_norm_quant.steps import QuantSteps, vector_of
from npusim.ops.npu_add_rms_norm_quant.tiling import Plan

__all__ = ["InPieces"]


class InPieces(QuantSteps):
    """All buffers single."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        claim, queue, element = self.builder.claim, self.builder.queue, p.x.element
        nbytes, wide_bytes = (kind.nbytes(self.padded) for kind in (element, FLOAT32))
        self.half_bytes = nbytes
        self.x = queue("ub", 2 * nbytes, "mte2", "vector")
        self.y = queue("ub", nbytes, "vector", "mte3")
        self.y2 = queue("ub", self.padded, "vector", "mte3") if p.scales[1] else None
        self.values, self.squares = claim("ub", wide_bytes), claim("ub", wide_bytes)
        narrow = [operand for operand in (p.gamma, p.beta) if operand is not None]
        self.wide_names = {each.name for pair in self.quantisers for each in pair if each}
        wide = [operand for operand in p.inputs if operand.name in self.wide_names]
        sizes = [(each, nbytes) for each in narrow] + [(each, wide_bytes) for each in wide]
        self.operands = tuple(each for each, _ in sizes)
        self.vector_bytes = tuple(size for _, size in sizes)
        self.vectors = queue("ub", sum(self.vector_bytes), "mte2", "vector")
        """A piece of each vector, one behind the other."""
        rows = plan.row_step
        self.blocks = claim("ub", rows * BLOCK_BYTES)
        self.roots, self.ones = (claim("ub", FLOAT32.nbytes(rows)) for _ in range(2))
        self.writer = Writer(self.builder, spec)

    def begin(self) -> None:
        """As :class:`RowsKernel` says."""
        self.read_numbers()

    def group(self, *views: GmView) -> None:
        """As :class:`RowsKernel` says, of x1, x2, output, x and y2."""
        x1, x2, _, x, *_ = views
        builder, rows = self.builder, x1.rows
        parts = [slice(a, a + width) for a, width in pieces(x1.columns, self.plan.column_step)]
        roots, sums = (slot.of(FLOAT32, rows) for slot in (self.roots, self.ones))
        blocks = self.blocks.of(FLOAT32, rows * FLOATS_PER_BLOCK)
        step(builder, Duplicate(roots, 0.0))
        for part in parts:
            for row in range(rows):
                here = slice(row, row + 1), part
                values, squares = self._add(x1[here], x2[here], x[here])
                self.square(squares, values)
                lanes = self.lanes.of(FLOAT32, LANES)
                lanes_of_row(builder, lanes, squares)
                eight = blocks.at(row * FLOATS_PER_BLOCK, FLOATS_PER_BLOCK)
                step(builder, BlockReduce("sum", eight, lanes))
            step(builder, BlockReduce("sum", sums, blocks))
            step(builder, Binary("add", roots, roots, sums))
        root_by_vector(builder, roots, sums, self.p.epsilon)
        for part in parts:
            self._scale_rows(views, part, roots)

    def _add(self, x1: GmView, x2: GmView, x: GmView) -> tuple[Local, Local]:
        """The sum of *x1* and *x2* in fp32, and to *x*; and room for its squares."""
        builder, count, slot = self.builder, x1.columns, self.x.alloc()
        second = Slot("ub", slot.offset_bytes + self.half_bytes, self.half_bytes, -1)
        fill(builder, self.spec, slot, x1)
        fill(builder, self.spec, second, x2)
        self.x.enque(slot)
        slot, out = self.x.deque(), self.y.alloc()
        values, squares = (each.of(FLOAT32, count) for each in (self.values, self.squares))
        addends = slot.of(x1.dtype, count), second.of(x2.dtype, count)
        self.add(out.of(x.dtype, count), values, addends, squares)
        self.x.free(slot)
        self.writer.store(self.y, out, x)
        return values, squares

    def _scale_rows(self, views: tuple[GmView, ...], part: slice, roots: Local) -> None:
        """Columns *part* of all rows, quantised."""
        builder, p = self.builder, self.p
        slot = self.vectors.alloc()
        views_of_part = {each.name: vector_of(each)[:, part] for each in self.operands}
        places = self._places(slot)
        for name, view in views_of_part.items():
            if name in self.wide_names:
                self.fill_wide(places[name], view)
            else:
                fill(builder, self.spec, places[name], view)
        self.vectors.enque(slot)
        slot = self.vectors.deque()
        vectors = {
            name: self.wide(places[name], view)
            if name in self.wide_names
            else places[name].of(view.dtype, view.columns)
            for name, view in views_of_part.items()
        }
        for row in range(roots.count):
            x1, x2, output, x, *others = (view[row : row + 1, part] for view in views)
            read_root(builder, "root", roots.at(row, 1))
            values, squares = self._add(x1, x2, x)
            times_root(builder, values, values)
            self.times_gamma(values, vectors["gamma"], squares)
            if p.beta is not None:
                self.plus_beta(values, vectors["beta"], squares)
            for view in others:
                assert self.y2 is not None
                self._quantise(self.y2, view, vectors, squares, 1)
            self._quantise(self.y, output, vectors, values, 0)
        self.vectors.free(slot)

    def _places(self, slot: Slot) -> dict[str, Slot]:
        """Where in *slot* each vector is."""
        places, start = {}, slot.offset_bytes
        for operand, nbytes in zip(self.operands, self.vector_bytes, strict=True):
            places[operand.name] = Slot(slot.buffer, start, nbytes, -1)
            start += nbytes
        return places

    def _quantise(
        self, queue: Queue, output: GmView, vectors: dict[str, Local], dst: Local, index: int
    ) -> None:
        """`values` by way of *dst* to *output*, with the scales number *index*."""
        builder, count, out = self.builder, output.columns, queue.alloc()
        values = self.values.of(FLOAT32, count)
        scale = point = None
        if self.quantisers:
            pair = self.quantisers[index]
            scale, point = (vectors[operand.name] if operand else None for operand in pair)
        self.quantise(out.of(INT8, count), dst, values, scale, point)
        builder.barrier()
        self.writer.store(queue, out, output)
        builder.barrier()
