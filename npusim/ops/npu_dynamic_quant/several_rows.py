"""The templates multi_row and single_row: several rows an instruction.

The rows of a piece follow each other in the buffer, so an instruction takes all of them, but for
those that look for the largest number of each. No number passes through the scalar unit, but for
multi_row in pieces of one row.

ops-nn@e5c3fa9 quant/dynamic_quant/op_kernel/dynamic_quant_{multi,single}_row.h. Assumed: where the
small buffers of single_row lie.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryOp,
    BinaryScalar,
    Broadcast,
    Cast,
    Copy,
    Duplicate,
    Local,
    ScalarLoad,
    Unary,
    WholeReduce,
)
from npusim.kernel.chain import step, to_quantised
from npusim.kernel.queues import Queue, Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView
from npusim.ops.npu_dynamic_quant.contract import Problem
from npusim.ops.npu_dynamic_quant.row_steps import (
    FLOAT_LANES,
    FLOATS_PER_BLOCK,
    RowKernel,
    burst,
    everywhere,
    fold,
    lanes_of,
    repeat_block,
    round_by_int16,
)
from npusim.ops.npu_dynamic_quant.tiling import Plan

__all__ = ["MultiRow", "SingleRow"]

PER_ROW_BYTES = 768
"""What multi_row keeps for one number of each row."""
SPREAD_ROWS = 32
"""BroadCast takes so many rows at a time: what the 1152 bytes beside its tensors have room for."""


class SeveralRows(RowKernel):
    """What both have in common."""

    x: Queue

    def load(self, x: GmView, start_bytes: int = 0) -> Slot:
        """Load all rows of *x*, as one burst, *start_bytes* into a slot."""
        slot = self.x.alloc()
        self.builder.data_copy(slot.of(x.dtype, x.rows * x.columns, start_bytes), burst(x))
        self.x.enque(slot)
        return self.x.deque()

    def store(self, queue: Queue, slot: Slot, view: GmView) -> None:
        """Store all rows of *view*, as one burst, and free *slot*."""
        queue.enque(slot)
        slot = queue.deque()
        self.builder.data_copy(burst(view), slot.of(view.dtype, view.rows * view.columns))
        queue.free(slot)

    def find_maxima(self, result: Local, magnitudes: Local) -> None:
        """The largest of each row of *magnitudes* `(rows, columns)` to *result* `(rows,)`.

        *magnitudes* is overwritten.
        """
        columns, lanes, dtype = self.p.columns, lanes_of(magnitudes), magnitudes.dtype
        for row in range(result.count):
            fold(self.builder, magnitudes.at(row * columns, columns))
        self.builder.barrier("vector")
        # (rows, lanes): the first repeat of each row.
        pitch = dtype.nbytes(columns) // BLOCK_BYTES
        where = magnitudes.buffer, magnitudes.offset_bytes
        firsts = Local(*where, dtype, result.count * lanes, 1, pitch)
        step(self.builder, WholeReduce("max", result, firsts))

    def repeat_smooth(self, plane: Local) -> None:
        """The smooth scales to each row of *plane* `(rows, columns)`."""
        assert self.smooth is not None
        smooth = self.smooth.of(FLOAT32, self.p.columns)
        for first in range(0, plane.count, smooth.count):
            self.builder.emit(Copy(plane.at(first, smooth.count), smooth))
        self.builder.barrier("vector")

    def repeat_numbers(self, plane: Local, numbers: Local, blocks: Slot) -> None:
        """Each of *numbers* `(rows,)` to its row of *plane* `(rows, columns)`.

        *blocks* has room for eight of each number.
        """
        columns = self.p.columns
        # (rows,) -> (rows, 8) -> (rows, columns)
        spread = blocks.of(FLOAT32, numbers.count * FLOATS_PER_BLOCK)
        step(self.builder, Broadcast(spread, numbers))
        for row in range(numbers.count):
            block = spread.at(row * FLOATS_PER_BLOCK, FLOATS_PER_BLOCK)
            repeat_block(self.builder, plane.at(row * columns, columns), block)
        self.builder.barrier("vector")


class MultiRow(SeveralRows):
    """As many rows as 255 repeats hold in fp32; all buffers are single."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        claim, queue = self.builder.claim, self.builder.queue
        count = plan.row_step * p.columns
        self.x = queue("ub", p.x.element.nbytes(count), "mte2", "vector")
        self.claim_smooth()
        self.values = claim("ub", FLOAT32.nbytes(count))
        self.work = claim("ub", FLOAT32.nbytes(count))
        # A byte an element for int4 too.
        self.y = queue("ub", count, "vector", "mte3")
        self.scale = queue("ub", PER_ROW_BYTES, "vector", "mte3")
        self.absmax, self.factor = claim("ub", PER_ROW_BYTES), claim("ub", PER_ROW_BYTES)
        self.largest, self.inverse = claim("ub", BLOCK_BYTES), claim("ub", BLOCK_BYTES)
        self.blocks = claim("ub", SPREAD_ROWS * BLOCK_BYTES)

    def begin(self) -> None:
        """As :class:`RowKernel` says."""
        self.fill_block(self.largest, self.p.largest)
        self.fill_block(self.inverse, 1 / self.p.largest)
        self.keep_smooth()

    def piece(self, x: GmView, output: GmView, scale: GmView) -> None:
        """As :class:`RowKernel` says."""
        builder, rows, count = self.builder, x.rows, x.rows * x.columns
        # (rows, columns) in fp32, and room for as many
        values, work = (slot.of(FLOAT32, count) for slot in (self.values, self.work))
        slot = self.load(x)
        step(builder, Cast(values, slot.of(x.dtype, count)))
        # All is in fp32: mte2 may load the next piece.
        self.x.free(slot)
        self._smooth(values, work)
        step(builder, Unary("abs", work, values))
        self.find_maxima(self.absmax.of(FLOAT32, rows), work)
        self._by_row("div", self.factor, self.largest, self.absmax, rows)
        builder.barrier("vector")
        self._repeat_factors(work, self.factor.of(FLOAT32, rows))
        step(builder, Binary("mul", work, values, work))
        self._store(work, output, scale)

    def _smooth(self, values: Local, work: Local) -> None:
        """*values* `(rows, columns)` times the smooth scales."""
        if self.smooth is None:
            return
        factors = self.smooth.of(FLOAT32, self.p.columns)
        if values.count > factors.count:
            # BroadCast copies with an Or, whose other operand are zeros; Copy takes as long.
            step(self.builder, Duplicate(work.at(0, FLOATS_PER_BLOCK), 0.0))
            self.repeat_smooth(work)
            factors = work
        step(self.builder, Binary("mul", values, values, factors))

    def _by_row(self, op: BinaryOp, dst: Slot, a: Slot, b: Slot, rows: int) -> None:
        """`dst = a op b` for each row; one of the two is a constant. No barrier follows."""
        # A mask of 64 lanes, of which those behind the rows are never used.
        count = align_up(rows, FLOAT_LANES)
        a_lanes, b_lanes = (
            everywhere(slot.of(FLOAT32, FLOATS_PER_BLOCK), count)
            if slot.nbytes == BLOCK_BYTES
            else slot.of(FLOAT32, count)
            for slot in (a, b)
        )
        self.builder.emit(Binary(op, dst.of(FLOAT32, count), a_lanes, b_lanes))

    def _repeat_factors(self, plane: Local, factors: Local) -> None:
        """Each of *factors* `(rows,)` to its row of *plane* `(rows, columns)`."""
        builder, columns = self.builder, self.p.columns
        if factors.count == 1:
            # BroadCast of one number goes by way of the scalar unit.
            builder.sync("vector", "scalar")
            builder.emit(ScalarLoad("factor", factors))
            builder.sync("scalar", "vector")
            step(builder, Duplicate(plane, "factor"))
            return
        for first, count in pieces(factors.count, SPREAD_ROWS):
            rows = plane.at(first * columns, count * columns)
            self.repeat_numbers(rows, factors.at(first, count), self.blocks)

    def _store(self, scaled: Local, output: GmView, scale: GmView) -> None:
        """*scaled* `(rows, columns)` and the scales of its rows, rounded, to global memory."""
        halves = round_by_int16(self.builder, scaled)
        out, scales = self.y.alloc(), self.scale.alloc()
        self._by_row("mul", scales, self.absmax, self.inverse, output.rows)
        step(self.builder, Cast(out.of(output.dtype, scaled.count), halves, "trunc"))
        self.store(self.scale, scales, scale)
        self.store(self.y, out, output)


class SingleRow(SeveralRows):
    """Up to 16384 elements, in rows of 4096, 5120 or 10240.

    Without smooth scales the largest of fp16 numbers are found in fp16.
    """

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        claim, queue = self.builder.claim, self.builder.queue
        rows, count = plan.row_step, plan.row_step * p.columns
        self.in_half = p.x.element is FLOAT16 and p.smooth_scales is None
        # Room for fp32; numbers of 16 bits come into the upper half unless they stay 16 bits wide.
        self.x = queue("ub", FLOAT32.nbytes(count), "mte2", "vector")
        self.start_bytes = 0 if self.in_half else FLOAT32.nbytes(count) // 2
        self.y = queue("ub", count, "vector", "mte3")
        self.scale = queue("ub", BLOCK_BYTES, "vector", "mte3")
        self.work = claim("ub", FLOAT32.nbytes(count))
        self.claim_smooth()
        self.halves, self.absmax, self.factor = (claim("ub", BLOCK_BYTES) for _ in range(3))
        self.blocks = claim("ub", rows * BLOCK_BYTES)

    def begin(self) -> None:
        """As :class:`RowKernel` says."""
        self.keep_smooth()

    def piece(self, x: GmView, output: GmView, scale: GmView) -> None:
        """As :class:`RowKernel` says."""
        builder, rows, count = self.builder, x.rows, x.rows * x.columns
        slot = self.load(x, self.start_bytes)
        values, plane = self.work.of(FLOAT32, count), slot.of(FLOAT32, count)
        narrow = slot.of(x.dtype, count, self.start_bytes)
        step(builder, Cast(values, narrow))
        absmax, factor = (slot.of(FLOAT32, rows) for slot in (self.absmax, self.factor))
        if self.in_half:
            step(builder, Unary("abs", narrow, narrow))
            halves = self.halves.of(FLOAT16, rows)
            self.find_maxima(halves, narrow)
            step(builder, Cast(absmax, halves))
        else:
            if self.smooth is not None:
                self.repeat_smooth(plane)
                step(builder, Binary("mul", values, values, plane))
            step(builder, Unary("abs", plane, values))
            self.find_maxima(absmax, plane)
        out, scales = self.y.alloc(), self.scale.alloc()
        # Which of the two comes first differs with the type, but not how long they take.
        step(builder, Duplicate(factor, self.p.largest))
        step(builder, Binary("div", factor, factor, absmax))
        inverse = 1 / self.p.largest
        step(builder, BinaryScalar("mul", scales.of(FLOAT32, rows), absmax, inverse))
        self.repeat_numbers(plane, factor, self.blocks)
        step(builder, Binary("mul", values, values, plane))
        self.x.free(slot)
        to_quantised(builder, self.spec, out.of(output.dtype, count), values)
        self.store(self.scale, scales, scale)
        self.store(self.y, out, output)
