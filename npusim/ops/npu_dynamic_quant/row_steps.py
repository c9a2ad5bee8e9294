"""What the kernels of npu_dynamic_quant have in common: buffers, and the steps that a row takes."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryScalar,
    Local,
    Reduce,
    ScalarAlu,
    ScalarLoad,
    ScalarStore,
    Unary,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_float32, to_quantised
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, load
from npusim.kernel.views import GmView, store
from npusim.ops.npu_dynamic_quant.choice import BY_SCALAR
from npusim.ops.npu_dynamic_quant.contract import Problem
from npusim.ops.npu_dynamic_quant.tiling import Plan

__all__ = ["RowSteps", "float_bits", "matrices"]

REPEAT_ELEMENTS = 64
"""fp32 numbers in a repeat of a vector instruction."""
FOLDED_ELEMENTS = 8 * REPEAT_ELEMENTS
"""Rows of at most this many are not folded: another barrier would cost more (assumed)."""


def float_bits(number: float) -> int:
    """The bits of *number* in fp32, as the scalar unit reads it."""
    return int(np.float32(number).view(np.uint32))


def matrices(p: Problem) -> tuple[GmView, GmView, GmView]:
    """x and the output `(rows, columns)`, and the scales `(rows,)`."""
    x = GmView.of("x", p.x.element, p.rows, p.columns)
    output = GmView.of("output", p.target, p.rows, p.columns)
    return x, output, GmView.vector("scale", FLOAT32, p.rows)


class RowSteps:
    """The buffers of a core, and the steps that turn a row of x into integers and its scale."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p = spec, p
        self.builder = Builder("npu_dynamic_quant", spec.cores[spec.vector_kinds[0]], spec.sync)
        queue, claim = self.builder.queue, self.builder.claim
        rows, width = plan.row_step, plan.column_step
        self.x_pitch = align_up(p.x.element.nbytes(width), BLOCK_BYTES)
        """Bytes from row to row of x in the buffer."""
        self.y_pitch = align_up(p.target.nbytes(width), BLOCK_BYTES)
        self.x = queue("ub", rows * self.x_pitch, "mte2", "vector", plan.depth)
        self.y = queue("ub", rows * self.y_pitch, "vector", "mte3")
        self.values = claim("ub", FLOAT32.nbytes(width))
        self.magnitudes = claim("ub", FLOAT32.nbytes(width))
        self.absmax = queue("ub", 2 * BLOCK_BYTES, "vector", "scalar")
        """What the scalar unit reads: M, and 127 / M a block later if the vector unit divides."""
        writer: Pipe = "scalar" if plan.template in BY_SCALAR else "vector"
        self.scale = queue("ub", FLOAT32.nbytes(rows), writer, "mte3")
        self.smooth_bytes = 2 * self.x_pitch
        """Smooth scales become fp32 in place, from 16-bit numbers in the upper half."""
        self.writer = Writer(self.builder, spec)

    # ---- in and out ----

    def load(self, x: GmView) -> Slot:
        """Load *x* `(rows, width)` into the buffer."""
        return load(self.builder, self.spec, self.x, x, self.x_pitch)

    def store(self, out: Slot, output: GmView) -> None:
        """Store *out* to *output* `(rows, width)`."""
        self.writer.store(self.y, out, output, self.y_pitch)

    def store_scales(self, slot: Slot, scale: GmView) -> None:
        """Store *slot* to *scale* `(rows,)`."""
        store(self.builder, self.scale, slot, scale)

    def load_smooth(self, slot: Slot, columns: slice, group: int = 0) -> None:
        """Load the smooth scales of *group* for *columns*, not yet in fp32."""
        p, element = self.p, self.p.x.element
        every = GmView.of("smooth_scales", element, max(1, p.groups), p.columns)
        smooth = every.row(group)[:, columns]
        # In the upper half, so that widening from the start never overtakes what it still reads.
        self.builder.load(slot.of(element, smooth.columns, self.x_pitch), smooth.operand)

    def widen_smooth(self, slot: Slot, width: int) -> None:
        """What :meth:`load_smooth` brought, in fp32."""
        narrow = slot.of(self.p.x.element, width, self.x_pitch)
        to_float32(self.builder, slot.of(FLOAT32, width), narrow)

    # ---- arithmetic ----

    def widen(self, x: Local, smooth: Slot | None) -> Local:
        """*x* `(width,)` in fp32, times the smooth scales."""
        values = self.values.of(FLOAT32, x.count)
        to_float32(self.builder, values, x)
        if smooth is not None:
            step(self.builder, Binary("mul", values, values, smooth.of(FLOAT32, x.count)))
        return values

    def find_absmax(self, result: Local, values: Local) -> None:
        """The largest magnitude of *values* `(width,)` into *result* `(1,)`.

        A reduction takes seven times as long as Max (asc-devkit, vector throughput table), so long
        rows are folded in halves first (inferred: cann-bench's 361 us for 8192 x 16384 on 910B2
        leave no room for reductions of whole rows).
        """
        width = values.count
        magnitudes = self.magnitudes.of(FLOAT32, width)
        step(self.builder, Unary("abs", magnitudes, values))
        while width > FOLDED_ELEMENTS:
            # (width,) -> (half,): whole repeats stay below, so that the next fold is aligned.
            half = align_up(ceil_div(width, 2), REPEAT_ELEMENTS)
            lower, upper = magnitudes.at(0, width - half), magnitudes.at(half, width - half)
            step(self.builder, Binary("max", lower, lower, upper))
            width = half
        # (width,) -> (1,)
        step(self.builder, Reduce("max", result, magnitudes.at(0, width)))

    def divide_twice(self, absmax: Slot, scale: GmView) -> None:
        """By the scalar unit: 127 / M into register `factor`, 1 / (127 / M) to *scale* `(1,)`.

        Of int4 it is 7 / M.
        """
        self.absmax.enque(absmax)
        absmax, out = self.absmax.deque(), self.scale.alloc()
        self.builder.emit(
            ScalarLoad("largest", absmax.of(FLOAT32, 1)),
            ScalarAlu("f32_div", "factor", float_bits(self.p.largest), "largest"),
            ScalarAlu("f32_div", "scale", float_bits(1), "factor"),
            ScalarStore(out.of(FLOAT32, 1), "scale"),
        )
        self.absmax.free(absmax)
        self.store_scales(out, scale)

    def quantise(self, out: Local, values: Local) -> None:
        """*values* `(width,)` times register `factor` into *out*, as int8 or int4."""
        step(self.builder, BinaryScalar("mul", values, values, "factor"))
        # (width,) fp32 -> int8 or int4, by way of int32 and fp16
        to_quantised(self.builder, self.spec, out, values)
