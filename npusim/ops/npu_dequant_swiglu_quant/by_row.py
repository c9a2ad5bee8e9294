"""npu_dequant_swiglu_quant without a group_index: a row of int32, or several of 16 bits, at a time.

ops-nn@e5c3fa9 quant/dequant_swiglu_quant/op_kernel, dynamic_base, dynamic_performance and
static_base. Assumed: in which order buffers lie, how the scales of rows are kept where they do not
all fit, and that the scales of activations come into the buffer where `performance` reads them out
of global memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.data.dtypes import FLOAT32, INT8, INT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryScalar,
    Cast,
    Local,
    ScalarAlu,
    ScalarLoad,
    ScalarStore,
    Unary,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_float32, to_quantised
from npusim.kernel.program import Program
from npusim.kernel.queues import Slot
from npusim.kernel.reduction import Reduction
from npusim.kernel.rows import Writer, fill, load, pieces
from npusim.kernel.views import GmView, repeat, store
from npusim.ops.npu_dequant_swiglu_quant.contract import Problem
from npusim.ops.npu_dequant_swiglu_quant.tiling import Plan
from npusim.ops.npu_dynamic_quant.row_steps import float_bits, round_by_int16

__all__ = ["ByRow"]

KEPT_ROWS = 512
"""At most so many rows keep their scales in the buffer together (assumed)."""
PITCH_UNIT = 32
"""Rows of y begin at blocks, and rows of everything else at as many elements."""


class ByRow:
    """The kernel of one core, for all templates without groups."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = Builder("npu_dequant_swiglu_quant", spec.cores["aiv"], spec.sync)
        queue, claim = self.builder.queue, self.builder.claim
        depth = 2 if plan.template == "performance" else 1
        self.pitch = align_up(plan.column_step, PITCH_UNIT)
        count = plan.row_step * self.pitch
        x_bytes, wide_bytes = p.x.element.nbytes(count), FLOAT32.nbytes(count)
        self.a = queue("ub", x_bytes, "mte2", "vector", depth)
        self.b = queue("ub", x_bytes, "mte2", "vector", depth)
        self.y = queue("ub", count, "vector", "mte3", depth)
        self.vectors = Vectors(self.builder, p, plan.column_step)
        self.work, self.other = claim("ub", wide_bytes), claim("ub", wide_bytes)
        self.is_long = plan.template == "dynamic_long"
        if self.is_long:
            self.parts_out = queue("ub", wide_bytes, "vector", "mte3")
            with self.builder.on_top_of(self.other):
                self.parts_in = queue("ub", wide_bytes, "mte2", "vector")
        else:
            self.values = claim("ub", wide_bytes)
        self.absmax = claim("ub", BLOCK_BYTES)
        self.reduction = Reduction(self.builder, plan.column_step)
        self.writer = Writer(self.builder, spec)
        # Of as many rows as there is room for, a multiple of those of a piece.
        most = min(KEPT_ROWS, ceil_div(p.rows, plan.block_dim))
        fitting = align_down(self.builder.room_bytes("ub") // FLOAT32.nbytes(2) - 16, 16)
        self.kept_rows = max(plan.row_step, min(most, fitting) // plan.row_step * plan.row_step)
        kept_bytes = align_up(FLOAT32.nbytes(self.kept_rows), BLOCK_BYTES)
        self.scale = queue("ub", kept_bytes, "scalar", "mte3") if p.is_dynamic else None
        self.act = queue("ub", kept_bytes, "mte2", "scalar") if p.activation_scale else None

    def program(self, rows: int) -> Program:
        """*rows* rows; names of global memory begin at the first one."""
        p = self.p
        if self.plan.column_step == p.columns:
            self.vectors.load(0, p.columns)
        x = GmView.of("x", p.x.element, rows, 2 * p.columns)
        y = GmView.of("output", INT8, rows, p.columns)
        scale = GmView.vector("scale", FLOAT32, rows)
        act = GmView.vector("activation_scale", FLOAT32, rows)
        for first, count in pieces(rows, self.kept_rows):
            here = slice(first, first + count)
            repeat(self.builder, self._kept, x[here, :], y[here, :], scale[:, here], act[:, here])
        return self.builder.build()

    def _kept(self, x: GmView, y: GmView, scale: GmView, act: GmView) -> None:
        """Rows whose scales stay in the buffer together."""
        acts = load(self.builder, self.spec, self.act, act) if self.act is not None else None
        scales = self.scale.alloc() if self.scale is not None else None
        if self.is_long:
            for row in range(x.rows):
                here = slice(row, row + 1)
                self._long_row(x[here, :], y[here, :], acts, scales, row)
        else:
            self._pieces(x, y, acts, scales)
        if self.act is not None and acts is not None:
            self.act.free(acts)
        if self.scale is not None and scales is not None:
            store(self.builder, self.scale, scales, scale)

    def _pieces(self, x: GmView, y: GmView, acts: Slot | None, scales: Slot | None) -> None:
        """*y* of *x*, whole rows or, of a static row, a part at a time."""
        places = [
            (slice(row, row + rows), slice(column, column + columns))
            for row, rows in pieces(x.rows, self.plan.row_step)
            for column, columns in pieces(y.columns, self.plan.column_step)
        ]
        is_ahead = self.plan.template == "performance"
        for number, (rows, columns) in enumerate(places):
            if number == 0 or not is_ahead:
                self._fetch(x, rows, columns)
            values = self._gated(self.values, y[rows, columns], columns, acts, rows.start)
            if is_ahead and number + 1 < len(places):
                self._fetch(x, *places[number + 1])
            if scales is not None:
                self._scale_rows(values, y[rows, columns], scales, rows.start)
                self._store_dynamic(values, y[rows, columns])
            else:
                self._store_static(values, y[rows, columns])

    def _fetch(self, x: GmView, rows: slice, columns: slice) -> None:
        """Begin to load what columns of y are made of: the activated half, and the other one."""
        p = self.p
        halves = x[:, : p.columns], x[:, p.columns :]
        for queue, half in zip((self.a, self.b), self._sides(), strict=True):
            slot = queue.alloc()
            view = halves[half][rows, columns]
            pitch_bytes = p.x.element.nbytes(self.pitch)
            fill(self.builder, self.spec, slot, view, pitch_bytes if view.rows > 1 else None)
            queue.enque(slot)

    def _sides(self) -> tuple[int, int]:
        """Which half is activated, and which is the other."""
        return (0, 1) if self.p.activate_left else (1, 0)

    def _count(self, y: GmView) -> int:
        """Elements of a piece in the buffer, what fills up its rows included."""
        return y.columns if y.rows == 1 else y.rows * self.pitch

    def _gated(self, where: Slot, y: GmView, columns: slice, acts: Slot | None, row: int) -> Local:
        """The piece of *y* in fp32 before it is quantised: swiglu, times the smooth scales."""
        builder, count = self.builder, self._count(y)
        values, other, work = (slot.of(FLOAT32, count) for slot in (where, self.other, self.work))
        if self.plan.column_step < self.p.columns:
            builder.sync("vector", "mte2")
            self.vectors.load(columns.start, columns.stop - columns.start)
        if acts is not None:
            builder.emit(ScalarLoad("act", acts.of(FLOAT32, 1, FLOAT32.nbytes(row))))
        active, passive = self._sides()
        slot = self.a.deque()
        self._dequantise(values, slot, active, acts is not None)
        self.a.free(slot)
        step(builder, BinaryScalar("mul", work, values, -1.0))
        step(builder, Unary("exp", work, work))
        step(builder, BinaryScalar("add", work, work, 1.0))
        step(builder, Binary("div", values, values, work))
        slot = self.b.deque()
        self._dequantise(other, slot, passive, acts is not None)
        self.b.free(slot)
        step(builder, Binary("mul", values, values, other))
        if self.p.is_dynamic:
            self.vectors.smooth(values, y, self.pitch)
        return values

    def _dequantise(self, dst: Local, slot: Slot, half: int, has_act: bool) -> None:
        """A half of rows of x in fp32, times its scales, plus its bias."""
        builder, vectors = self.builder, self.vectors
        x = slot.of(self.p.x.element, dst.count)
        point = vectors.bias(half, dst.count)
        if point is not None and point.dtype is INT32:
            step(builder, Binary("add", x, x, point))
        to_float32(builder, dst, x)
        weight = vectors.weight(half, dst.count)
        if weight is not None:
            step(builder, Binary("mul", dst, dst, weight))
        if has_act:
            step(builder, BinaryScalar("mul", dst, dst, "act"))
        if point is not None and point.dtype is FLOAT32:
            step(builder, Binary("add", dst, dst, point))

    def _find_scale(self, scales: Slot, row: int) -> None:
        """From M in register `found`: M / 127 kept for *row*, and its inverse in `back`."""
        self.builder.emit(
            ScalarAlu("f32_div", "scale", "found", float_bits(127)),
            ScalarStore(scales.of(FLOAT32, 1, FLOAT32.nbytes(row)), "scale"),
            ScalarAlu("f32_div", "back", float_bits(1), "scale"),
        )

    def _scale_rows(self, values: Local, y: GmView, scales: Slot, first: int) -> None:
        """Bring the largest number of each row to 127."""
        builder = self.builder
        work = self.work.of(FLOAT32, values.count)
        step(builder, Unary("abs", work, values))
        for row in range(y.rows):
            here = row * self.pitch, y.columns
            self.reduction.find_largest(self.absmax, work.at(*here))
            self._find_scale(scales, first + row)
            step(builder, BinaryScalar("mul", values.at(*here), values.at(*here), "back"))

    def _store_dynamic(self, values: Local, y: GmView) -> None:
        halves = round_by_int16(self.builder, values)
        out = self.y.alloc()
        step(self.builder, Cast(out.of(INT8, values.count), halves, "trunc"))
        pitch_bytes = self.pitch if y.rows > 1 else None
        self.writer.store(self.y, out, y, pitch_bytes)

    def _store_static(self, values: Local, y: GmView) -> None:
        self.vectors.quantise(values)
        out = self.y.alloc()
        to_quantised(self.builder, self.spec, out.of(INT8, values.count), values)
        self.writer.store(self.y, out, y)

    # ---- rows in parts ----

    def _long_row(
        self, x: GmView, y: GmView, acts: Slot | None, scales: Slot | None, row: int
    ) -> None:
        """*y* of *x*, both of one row: its numbers wait in global memory for their scale."""
        assert scales is not None
        builder, p = self.builder, self.p
        waiting = GmView.vector("swiglu", FLOAT32, p.columns)
        parts = list(self._parts())
        for part in parts:
            self._fetch(x, slice(1), part)
            out = self.parts_out.alloc()
            values = self._gated(out, y[:, part], part, acts, row)
            work = self.work.of(FLOAT32, values.count)
            step(builder, Unary("abs", work, values))
            self.writer.store(self.parts_out, out, waiting[:, part])
            self.reduction.find_largest(self.absmax, work)
            # Without a part before it, M is that of the first.
            before = "found" if part is parts[0] else "largest"
            builder.emit(ScalarAlu("f32_max", "largest", before, "found"))
        builder.emit(ScalarAlu("add", "found", "largest", 0))
        self._find_scale(scales, row)
        builder.sync("mte3", "mte2")
        # The parts come where the halves that are not activated were.
        builder.sync("vector", "mte2")
        for part in parts:
            slot = load(builder, self.spec, self.parts_in, waiting[:, part])
            values = slot.of(FLOAT32, part.stop - part.start)
            step(builder, BinaryScalar("mul", values, values, "back"))
            self._store_dynamic(values, y[:, part])
            self.parts_in.free(slot)
        # The next row is stored over this one.
        builder.sync("mte2", "mte3")

    def _parts(self) -> Iterator[slice]:
        for column, columns in pieces(self.p.columns, self.plan.column_step):
            yield slice(column, column + columns)


class Vectors:
    """Scales, bias and offsets of the columns that are worked on, in the buffer."""

    def __init__(self, builder: Builder, p: Problem, columns: int) -> None:
        self.builder, self.p = builder, p
        self.columns = columns
        """Of a part; halves lie one behind the other."""
        pitch = align_up(columns, 16)
        self.half_bytes = FLOAT32.nbytes(pitch)
        wide = 2 * self.half_bytes
        self.weights = builder.claim("ub", wide) if p.weight_scale else None
        self.biases = builder.claim("ub", wide) if p.bias else None
        is_narrow = p.bias is not None and p.bias.element.bits == 16
        self.narrow = builder.claim("ub", self.half_bytes) if is_narrow else None
        self.scales = builder.claim("ub", self.half_bytes) if p.quant_scale else None
        self.offsets = builder.claim("ub", self.half_bytes) if p.quant_offset else None
        self.is_one = p.quant_scale is not None and p.quant_scale.spec.size == 1

    def load(self, column: int, count: int) -> None:
        """Load those of *count* columns from *column* on."""
        builder, p = self.builder, self.p
        given = ((self.weights, p.weight_scale), (self.narrow or self.biases, p.bias))
        for slot, operand in given:
            if slot is None or operand is None:
                continue
            whole = GmView.vector(operand.name, operand.element, 2 * p.columns)
            for half in (0, 1):
                first = half * p.columns + column
                view = whole[:, first : first + count]
                start = half * (self.half_bytes // 2 if slot is self.narrow else self.half_bytes)
                builder.data_copy(slot.of(operand.element, view.columns, start), view.operand)
        for slot, operand in ((self.scales, p.quant_scale), (self.offsets, p.quant_offset)):
            if slot is None or operand is None:
                continue
            view = GmView.vector(operand.name, FLOAT32, operand.spec.size)
            view = view if self.is_one else view[:, column : column + count]
            builder.data_copy(slot.of(FLOAT32, view.columns), view.operand)
        builder.sync("mte2", "vector")
        self._finish(count)

    def _finish(self, count: int) -> None:
        """Widen a bias of 16 bits; read a scale and an offset that are one number each."""
        builder = self.builder
        if self.narrow is not None and self.biases is not None and self.p.bias is not None:
            for half in (0, 1):
                narrow = self.narrow.of(self.p.bias.element, count, half * self.half_bytes // 2)
                to_float32(builder, self.biases.of(FLOAT32, count, half * self.half_bytes), narrow)
        if self.is_one and self.scales is not None:
            builder.sync("mte2", "scalar")
            builder.emit(ScalarLoad("quant_scale", self.scales.of(FLOAT32, 1)))
            if self.offsets is not None:
                builder.emit(
                    ScalarAlu("f32_div", "inverse", float_bits(1), "quant_scale"),
                    ScalarLoad("quant_offset", self.offsets.of(FLOAT32, 1)),
                )

    def weight(self, half: int, count: int) -> Local | None:
        """Scales of *half* of the columns, `(count,)` in fp32."""
        if self.weights is None:
            return None
        return self.weights.of(FLOAT32, count, half * self.half_bytes)

    def bias(self, half: int, count: int) -> Local | None:
        """Bias of *half* of the columns, `(count,)` in int32 or fp32."""
        if self.biases is None or self.p.bias is None:
            return None
        dtype = INT32 if self.p.bias.element is INT32 else FLOAT32
        return self.biases.of(dtype, count, half * self.half_bytes)

    def smooth(self, values: Local, y: GmView, pitch: int) -> None:
        """Multiply each row of *values*, *pitch* elements apart, by the smooth scales."""
        if self.scales is None:
            return
        if self.is_one:
            step(self.builder, BinaryScalar("mul", values, values, "quant_scale"))
            return
        for row in range(y.rows):
            here = values.at(row * pitch, y.columns)
            self.builder.emit(Binary("mul", here, here, self.scales.of(FLOAT32, y.columns)))
        self.builder.barrier("vector")

    def quantise(self, values: Local) -> None:
        """`values / scale + offset`, where a single scale is inverted first."""
        builder = self.builder
        if self.scales is None or self.offsets is None:
            return
        if self.is_one:
            step(builder, BinaryScalar("mul", values, values, "inverse"))
            step(builder, BinaryScalar("add", values, values, "quant_offset"))
            return
        step(builder, Binary("div", values, values, self.scales.of(FLOAT32, values.count)))
        step(builder, Binary("add", values, values, self.offsets.of(FLOAT32, values.count)))
