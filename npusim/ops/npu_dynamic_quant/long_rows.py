"""The template large: a row in parts, loaded twice.

First for its largest number, which the scalar unit keeps from part to part, then to quantise it
with the factor of the row. The next part is always on its way.

ops-nn@e5c3fa9 quant/dynamic_quant/op_kernel/dynamic_quant_large_shape_opt.h.
"""

from __future__ import annotations

from itertools import zip_longest

from npusim.data.dtypes import FLOAT32
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
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_quantised
from npusim.kernel.queues import Queue
from npusim.kernel.rows import Writer, fill, pieces
from npusim.kernel.views import GmView, store
from npusim.ops.npu_dynamic_quant.contract import Problem
from npusim.ops.npu_dynamic_quant.row_steps import RowKernel, find_absmax, float_bits
from npusim.ops.npu_dynamic_quant.tiling import Plan

__all__ = ["Large", "LongRows"]

INFINITY_BITS = float_bits(float("inf"))


class LongRows(RowKernel):
    """Buffers for parts of a row, and the steps that a part takes."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan, depth: int) -> None:
        super().__init__(spec, p, plan)
        claim, queue = self.builder.claim, self.builder.queue
        self.x = queue("ub", self.x_pitch, "mte2", "vector", depth)
        self.y = queue("ub", self.y_pitch, "vector", "mte3", depth)
        self.scale = queue("ub", BLOCK_BYTES, "scalar", "mte3")
        self.values = claim("ub", FLOAT32.nbytes(plan.column_step))
        self.work = claim("ub", FLOAT32.nbytes(plan.column_step))
        self.absmax = queue("ub", BLOCK_BYTES, "vector", "scalar")
        self.writer = Writer(self.builder, spec)

    def find_largest(self, values: Local, *, is_first: bool) -> None:
        """M of the row so far into register `largest`, after *values* `(width,)`."""
        builder, slot = self.builder, self.absmax.alloc()
        absmax = slot.of(FLOAT32, 1)
        find_absmax(builder, absmax, self.work.of(FLOAT32, values.count), values)
        self.absmax.enque(slot)
        slot = self.absmax.deque()
        builder.emit(ScalarLoad("part" if not is_first else "largest", absmax))
        self.absmax.free(slot)
        if not is_first:
            _keep_larger(builder)

    def divide(self, scale: GmView) -> None:
        """By the scalar unit: 127 / M into register `factor`, 1 / (127 / M) to *scale* `(1,)`."""
        scales = self.scale.alloc()
        self.builder.emit(
            ScalarAlu("f32_div", "factor", float_bits(self.p.largest), "largest"),
            ScalarAlu("f32_div", "scale", float_bits(1), "factor"),
            ScalarStore(scales.of(FLOAT32, 1), "scale"),
        )
        store(self.builder, self.scale, scales, scale)

    def quantise(self, values: Local, output: GmView) -> None:
        """*values* `(width,)` times the factor of the row to *output* `(1, width)`."""
        builder, out = self.builder, self.y.alloc()
        step(builder, BinaryScalar("mul", values, values, "factor"))
        to_quantised(builder, self.spec, out.of(output.dtype, values.count), values)
        self.writer.store(self.y, out, output)


def _keep_larger(builder: Builder) -> None:
    """`largest = largest > part ? largest : part`, of floats: a NaN before is lost.

    Magnitudes are in the order of their bits, but a NaN is larger than nothing.
    """
    builder.emit(
        ScalarAlu("lt", "is_smaller", "part", "largest"),
        ScalarAlu("lt", "is_nan", INFINITY_BITS, "largest"),
        ScalarAlu("select", "is_smaller", "is_nan", 0, "is_smaller"),
        ScalarAlu("select", "largest", "is_smaller", "largest", "part"),
    )


class Large(LongRows):
    """All buffers double, smooth scales loaded with every part."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan, plan.depth)
        self.smooth_parts: Queue | None = None
        if p.smooth_scales is not None:
            queue = self.builder.queue
            self.smooth_parts = queue("ub", self.x_pitch, "mte2", "vector", plan.depth)

    def begin(self) -> None:
        """As :class:`RowKernel` says; nothing stays in the buffer."""

    def piece(self, x: GmView, output: GmView, scale: GmView) -> None:
        """As :class:`RowKernel` says, for one row."""
        columns = list(pieces(x.columns, self.plan.column_step))
        parts = [slice(start, start + width) for start, width in columns]
        self._fetch(x, parts[0])
        passes = [(part, False) for part in parts] + [(part, True) for part in parts]
        for (part, is_second), after in zip_longest(passes, passes[1:]):
            if after is not None:
                self._fetch(x, after[0])
            values = self._values(part.stop - part.start)
            if is_second:
                self.quantise(values, output[:, part])
                continue
            self.find_largest(values, is_first=part is parts[0])
            if part is parts[-1]:
                self.divide(scale)

    def _fetch(self, x: GmView, part: slice) -> None:
        """Begin to load columns *part* of x, and of the smooth scales."""
        slot = self.x.alloc()
        fill(self.builder, self.spec, slot, x[:, part])
        self.x.enque(slot)
        if self.smooth_parts is not None:
            smooth = self.smooth_parts.alloc()
            view = GmView.vector("smooth_scales", x.dtype, self.p.columns)[:, part]
            fill(self.builder, self.spec, smooth, view)
            self.smooth_parts.enque(smooth)

    def _values(self, width: int) -> Local:
        """The oldest part that was fetched, `(width,)` in fp32, smoothed."""
        builder, dtype = self.builder, self.p.x.element
        values, work = (slot.of(FLOAT32, width) for slot in (self.values, self.work))
        slot = self.x.deque()
        step(builder, Cast(values, slot.of(dtype, width)))
        self.x.free(slot)
        if self.smooth_parts is not None:
            smooth = self.smooth_parts.deque()
            step(builder, Cast(work, smooth.of(dtype, width)))
            self.smooth_parts.free(smooth)
            step(builder, Binary("mul", values, values, work))
        return values
