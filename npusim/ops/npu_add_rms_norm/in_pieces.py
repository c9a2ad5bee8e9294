"""The template split_d of npu_add_rms_norm: rows in pieces.

First the sums of up to 64 rows, a piece of all of them after the other, which are stored; then
1 / root of all; then the sums are loaded again, a piece of gamma for all rows.

ops-nn@e5c3fa9 norm/add_rms_norm/op_kernel/add_rms_norm_split_d.h.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Binary, BinaryScalar, BlockReduce, Duplicate, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, fill, load, pieces
from npusim.kernel.views import GmView
from npusim.ops._rms_norm.adding import add, times_gamma, times_root
from npusim.ops._rms_norm.rows import whole_blocks
from npusim.ops._rms_norm.steps import RootsOfRows, read_root, root_by_vector, widen
from npusim.ops._rms_norm.sums import FLOATS_PER_BLOCK, LANES, lanes_of_row
from npusim.ops.npu_add_rms_norm.contract import Problem
from npusim.ops.npu_add_rms_norm.one_row import gamma_of
from npusim.ops.npu_add_rms_norm.tiling import Plan

__all__ = ["InPieces"]


class InPieces:
    """All buffers single; x1 and x2 share one."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = Builder("npu_add_rms_norm", spec.cores[spec.vector_kinds[0]], spec.sync)
        claim, queue, element = self.builder.claim, self.builder.queue, p.x.element
        self.piece_bytes = element.nbytes(whole_blocks(plan.column_step, element))
        wide_bytes = FLOAT32.nbytes(whole_blocks(plan.column_step, element))
        is_wide = element is FLOAT32
        self.x = queue("ub", 2 * self.piece_bytes, "mte2", "vector")
        self.y = queue("ub", self.piece_bytes, "vector", "mte3")
        self.gamma = queue("ub", self.piece_bytes, "mte2", "vector")
        self.values, self.squares = (None if is_wide else claim("ub", wide_bytes) for _ in range(2))
        """Of fp32 the sum is where x1 was, and the squares are where x2 was."""
        rows = plan.row_step
        self.lanes = claim("ub", FLOAT32.nbytes(LANES))
        self.blocks = claim("ub", rows * BLOCK_BYTES)
        self.ones = claim("ub", FLOAT32.nbytes(rows))
        """Sums of a piece, and then ones."""
        # 310P does not store them.
        is_stored = spec.arch != "2002"
        self.roots = RootsOfRows(self.builder, spec, rows, "vector", is_stored=is_stored)
        self.writer = Writer(self.builder, spec)
        granule = spec.transfer.load_granule_bytes
        self.adds_again = element.nbytes(p.columns) % granule != 0
        """Whether a copy of whole blocks would reach from x into a row that another core stores.
        Assumed of 310P, where the vendor's kernel reads beyond the row."""

    def begin(self) -> None:
        """As :class:`RowsKernel` says; nothing stays in the buffer."""

    def group(self, *views: GmView) -> None:
        """As :class:`RowsKernel` says, of x1, x2, output, rstd and x."""
        x1, x2, output, rstd, x = views
        builder, rows = self.builder, x1.rows
        parts = [slice(a, a + width) for a, width in pieces(x1.columns, self.plan.column_step)]
        kept = self.roots.alloc()
        roots, sums = (slot.of(FLOAT32, rows) for slot in (kept, self.ones))
        step(builder, Duplicate(roots, 0.0))
        blocks = self.blocks.of(FLOAT32, rows * FLOATS_PER_BLOCK)
        for part in parts:
            for row in range(rows):
                here = slice(row, row + 1), part
                eight = blocks.at(row * FLOATS_PER_BLOCK, FLOATS_PER_BLOCK)
                self._add_up(x1[here], x2[here], x[here], eight)
            step(builder, BlockReduce("sum", sums, blocks))
            step(builder, Binary("add", roots, roots, sums))
        root_by_vector(builder, roots, sums, self.p.epsilon)
        # What was stored is loaded again.
        builder.sync("mte3", "mte2")
        for part in parts:
            view = gamma_of(self.p)[:, part]
            gamma = load(builder, self.spec, self.gamma, view)
            for row in range(rows):
                here = slice(row, row + 1), part
                read_root(builder, "root", roots.at(row, 1))
                if self.adds_again:
                    values, _, slot = self._sum(x1[here], x2[here], x[here])
                else:
                    values, slot = self._load(x[here])
                self._scale(values, slot, output[here], gamma.of(view.dtype, view.columns))
            self.gamma.free(gamma)
        self.roots.store(kept, rstd)

    def _add_up(self, x1: GmView, x2: GmView, x: GmView, eight: Local) -> None:
        """The sum of *x1* and *x2* to *x*, and eight sums of its squares times 1 / n to *eight*."""
        builder = self.builder
        values, squares, slot = self._sum(x1, x2, x)
        step(builder, Binary("mul", squares, values, values))
        step(builder, BinaryScalar("mul", squares, squares, self.p.mean))
        lanes = self.lanes.of(FLOAT32, LANES)
        lanes_of_row(builder, lanes, squares)
        step(builder, BlockReduce("sum", eight, lanes))
        if slot is not None:
            self.x.free(slot)

    def _sum(self, x1: GmView, x2: GmView, x: GmView) -> tuple[Local, Local, Slot | None]:
        """The sum of *x1* and *x2* in fp32 and to *x*, room for its squares, and its slot of x."""
        builder, count, slot = self.builder, x1.columns, self.x.alloc()
        second = Slot("ub", slot.offset_bytes + self.piece_bytes, self.piece_bytes, -1)
        fill(builder, self.spec, slot, x1)
        fill(builder, self.spec, second, x2)
        self.x.enque(slot)
        slot, out = self.x.deque(), self.y.alloc()
        addends = slot.of(x1.dtype, count), second.of(x2.dtype, count)
        values = (self.values or slot).of(FLOAT32, count)
        squares = (self.squares or second).of(FLOAT32, count)
        add(builder, self.spec, out.of(x.dtype, count), values, addends, squares, is_rounded=False)
        if self.values is not None:
            self.x.free(slot)
        self.writer.store(self.y, out, x)
        return values, squares, slot if self.values is None else None

    def _load(self, x: GmView) -> tuple[Local, Slot | None]:
        """*x* in fp32, and the slot that still holds it."""
        slot = load(self.builder, self.spec, self.x, x)
        if self.values is None:
            return slot.of(FLOAT32, x.columns), slot
        values = self.values.of(FLOAT32, x.columns)
        widen(self.builder, values, slot.of(x.dtype, x.columns))
        self.x.free(slot)
        return values, None

    def _scale(self, values: Local, slot: Slot | None, output: GmView, gamma: Local) -> None:
        """*values*, which are in *slot*, times register `root` and *gamma* to *output*."""
        builder, count = self.builder, values.count
        if slot is not None:
            out = self.y.alloc()
            scaled = out.of(FLOAT32, count)
            times_root(builder, scaled, values)
            self.x.free(slot)
            times_gamma(builder, self.spec, scaled, scaled, gamma, scaled)
        else:
            assert self.squares is not None
            times_root(builder, values, values)
            out = self.y.alloc()
            y, work = out.of(output.dtype, count), self.squares.of(FLOAT32, count)
            times_gamma(builder, self.spec, y, values, gamma, work)
        self.writer.store(self.y, out, output)
