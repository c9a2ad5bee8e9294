"""The templates db and base: an instruction a row.

db loads the next rows while it works on these, and no number passes through the scalar unit; base
loads a row at a time, whose factor the scalar unit reads and divides once more.

ops-nn@e5c3fa9 quant/dynamic_quant/op_kernel/dynamic_quant_db.h and dynamic_quant.h. Assumed: in
which order their buffers lie, and that base keeps a row until it has been quantised.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryScalar,
    Broadcast,
    Cast,
    Local,
    ScalarAlu,
    ScalarLoad,
    ScalarStore,
    Unary,
    WholeReduce,
)
from npusim.kernel.chain import step, to_quantised
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, load
from npusim.kernel.views import GmView, store
from npusim.ops.npu_dynamic_quant.contract import Problem
from npusim.ops.npu_dynamic_quant.row_steps import (
    FLOAT_LANES,
    FLOATS_PER_BLOCK,
    RowKernel,
    everywhere,
    find_absmax,
    float_bits,
    fold,
    round_by_int16,
)
from npusim.ops.npu_dynamic_quant.tiling import Plan

__all__ = ["Base", "Db"]


class Db(RowKernel):
    """Rows of whole blocks in the buffer, one after the other."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        claim, queue, rows = self.builder.claim, self.builder.queue, plan.row_step
        row_bytes = FLOAT32.nbytes(align_up(p.columns, FLOAT_LANES))
        self.in_half = p.x.element is FLOAT16 and p.smooth_scales is None
        self.x = queue("ub", rows * self.x_pitch, "mte2", "vector", plan.depth)
        self.y = queue("ub", rows * self.y_pitch, "vector", "mte3")
        self.scale = queue("ub", FLOAT32.nbytes(align_up(rows, FLOATS_PER_BLOCK)), "vector", "mte3")
        self.claim_smooth()
        self.values, self.work = claim("ub", row_bytes), claim("ub", row_bytes)
        self.absmax, self.factor = claim("ub", BLOCK_BYTES), claim("ub", BLOCK_BYTES)
        self.blocks = claim("ub", FLOATS_PER_BLOCK * BLOCK_BYTES)
        """M of the row eight times, and what else Brcb spreads."""
        self.largest, self.inverse = claim("ub", BLOCK_BYTES), claim("ub", BLOCK_BYTES)
        self.writer = Writer(self.builder, spec)

    def begin(self) -> None:
        """As :class:`RowKernel` says."""
        self.fill_block(self.largest, self.p.largest)
        self.fill_block(self.inverse, 1 / self.p.largest)
        self.keep_smooth()

    def piece(self, x: GmView, output: GmView, scale: GmView) -> None:
        """As :class:`RowKernel` says."""
        builder, columns = self.builder, x.columns
        slot = load(builder, self.spec, self.x, x, self.x_pitch)
        out: Slot | None = None
        scales: Slot | None = None
        for row in range(x.rows):
            self._find_factor(slot.of(x.dtype, columns, row * self.x_pitch))
            halves = self._scaled(columns)
            if out is None or scales is None:
                # Not before they are needed, when the last piece may be on its way out.
                out, scales = self.y.alloc(), self.scale.alloc()
            self._scale_of(scales, row)
            y = out.of(output.dtype, columns, row * self.y_pitch)
            # No barrier: what the next row overwrites first, nobody reads any more.
            builder.emit(Cast(y, halves, "trunc"))
        assert out is not None
        assert scales is not None
        self.x.free(slot)
        self.writer.store(self.y, out, output, self.y_pitch)
        store(builder, self.scale, scales, scale)

    def _find_factor(self, x: Local) -> None:
        """*x* `(columns,)` in fp32 to `values`, smoothed; M and 127 / M eight times each."""
        builder = self.builder
        values, work = (slot.of(FLOAT32, x.count) for slot in (self.values, self.work))
        absmax = self.absmax
        if self.in_half:
            # Beside x, which the vendor's kernel overwrites: no barrier is between the two there.
            magnitudes = self.work.of(FLOAT16, x.count, self.work.nbytes // 2)
            builder.emit(Cast(values, x))
            step(builder, Unary("abs", magnitudes, x))
            step(builder, WholeReduce("max", magnitudes.at(0, 1), fold(builder, magnitudes)))
            # All of the row is widened again, for its first element.
            step(builder, Cast(work, magnitudes))
            absmax = self.work
        else:
            self.widen(values, x, self.smooth)
            find_absmax(builder, absmax.of(FLOAT32, 1), work, values)
        # The other seven are what they are: of the blocks only the first is used.
        spread = self.blocks.of(FLOAT32, FLOATS_PER_BLOCK**2)
        step(builder, Broadcast(spread, absmax.of(FLOAT32, FLOATS_PER_BLOCK)))
        largest, factor = (
            slot.of(FLOAT32, FLOATS_PER_BLOCK) for slot in (self.largest, self.factor)
        )
        step(builder, Binary("div", factor, largest, spread.at(0, FLOATS_PER_BLOCK)))

    def _scaled(self, columns: int) -> Local:
        """`values` times 127 / M, rounded, `(columns,)`."""
        # Whole repeats: numbers behind those of the row are never used.
        whole = self.values.of(FLOAT32, align_up(columns, FLOAT_LANES))
        factor = everywhere(self.factor.of(FLOAT32, FLOATS_PER_BLOCK), whole.count)
        step(self.builder, Binary("mul", whole, whole, factor))
        return round_by_int16(self.builder, whole.at(0, columns), self.work)

    def _scale_of(self, scales: Slot, row: int) -> None:
        """M / 127 to element *row* of *scales*, picked by a mask of one lane. No barrier."""
        lane_bytes = FLOAT32.nbytes(row % FLOATS_PER_BLOCK)
        scale = scales.of(FLOAT32, 1, FLOAT32.nbytes(row))
        absmax, inverse = (slot.of(FLOAT32, 1, lane_bytes) for slot in (self.blocks, self.inverse))
        self.builder.emit(Binary("mul", scale, absmax, inverse))


class Base(RowKernel):
    """One row at a time, all buffers single."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        claim, queue = self.builder.claim, self.builder.queue
        self.x = queue("ub", self.x_pitch, "mte2", "vector", plan.depth)
        self.y = queue("ub", self.y_pitch, "vector", "mte3")
        self.scale = queue("ub", BLOCK_BYTES, "scalar", "mte3")
        self.claim_smooth()
        self.values = claim("ub", FLOAT32.nbytes(p.columns))
        self.work = claim("ub", FLOAT32.nbytes(p.columns))
        self.absmax, self.largest = claim("ub", BLOCK_BYTES), claim("ub", BLOCK_BYTES)
        self.factor = queue("ub", BLOCK_BYTES, "vector", "scalar")
        self.writer = Writer(self.builder, spec)

    def begin(self) -> None:
        """As :class:`RowKernel` says."""
        self.fill_block(self.largest, self.p.largest)
        self.keep_smooth()

    def piece(self, x: GmView, output: GmView, scale: GmView) -> None:
        """As :class:`RowKernel` says, for one row."""
        builder, columns = self.builder, x.columns
        values, work = (slot.of(FLOAT32, columns) for slot in (self.values, self.work))
        slot = load(builder, self.spec, self.x, x)
        self.widen(values, slot.of(x.dtype, columns), self.smooth)
        self.x.free(slot)
        find_absmax(builder, self.absmax.of(FLOAT32, 1), work, values)
        factor = self.factor.alloc()
        largest, absmax = (slot.of(FLOAT32, 1) for slot in (self.largest, self.absmax))
        builder.emit(Binary("div", factor.of(FLOAT32, 1), largest, absmax))
        self.factor.enque(factor)
        factor, scales = self.factor.deque(), self.scale.alloc()
        builder.emit(
            ScalarLoad("factor", factor.of(FLOAT32, 1)),
            ScalarAlu("f32_div", "scale", float_bits(1), "factor"),
            ScalarStore(scales.of(FLOAT32, 1), "scale"),
        )
        self.factor.free(factor)
        step(builder, BinaryScalar("mul", values, values, "factor"))
        out = self.y.alloc()
        to_quantised(builder, self.spec, out.of(output.dtype, columns), values)
        self.writer.store(self.y, out, output)
        store(builder, self.scale, scales, scale)
