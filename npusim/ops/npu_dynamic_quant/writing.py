"""What the kernels of npu_dynamic_quant have in common: buffers, copies, and fp32 numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial

import numpy as np

from npusim.data.dtypes import FLOAT32, INT8
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryScalar,
    Global,
    Local,
    Reduce,
    ScalarAlu,
    ScalarLoad,
    ScalarStore,
    Unary,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_float32, to_quantised
from npusim.kernel.program import Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Rows, Writer, load, pieces
from npusim.ops.npu_dynamic_quant.choice import BY_SCALAR
from npusim.ops.npu_dynamic_quant.contract import Problem
from npusim.ops.npu_dynamic_quant.tiling import Plan

__all__ = ["Writing", "shifts"]

REPEAT_ELEMENTS = 64
"""So many fp32 numbers a vector instruction takes at a time."""
FOLDED_ELEMENTS = 8 * REPEAT_ELEMENTS
"""Rows of at most so many are not folded: another barrier would cost more (assumed)."""

BITS_1, BITS_127 = (int(np.float32(number).view(np.uint32)) for number in (1, 127))
"""Floats as the scalar unit takes them."""


def shifts(p: Problem, row: int) -> dict[str, int]:
    """Name of a tensor -> bytes before *row*."""
    elements = row * p.columns
    return {
        "x": p.x.element.nbytes(elements),
        "output": INT8.nbytes(elements),
        "scale": FLOAT32.nbytes(row),
    }


class Writing(ABC):
    """A kernel while it is written; its rows are worked on one after the other."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = Builder("npu_dynamic_quant", spec.cores[spec.vector_kinds[0]], spec.sync)
        queue, claim = self.builder.queue, self.builder.claim
        rows, width = plan.row_step, plan.column_step
        self.x_pitch = align_up(p.x.element.nbytes(width), BLOCK_BYTES)
        self.y_pitch = align_up(INT8.nbytes(width), BLOCK_BYTES)
        self.x = queue("ub", rows * self.x_pitch, "mte2", "vector", plan.depth)
        self.y = queue("ub", rows * self.y_pitch, "vector", "mte3")
        self.values = claim("ub", FLOAT32.nbytes(width))
        self.magnitudes = claim("ub", FLOAT32.nbytes(width))
        self.asked = queue("ub", 2 * BLOCK_BYTES, "vector", "scalar")
        """What the scalar unit reads: M, and 127 / M a block later if the vector unit divides."""
        writer: Pipe = "scalar" if plan.template in BY_SCALAR else "vector"
        self.scale = queue("ub", FLOAT32.nbytes(rows), writer, "mte3")
        self.smooth_bytes = 2 * self.x_pitch
        """Smooth scales become fp32 in place, from 16-bit numbers in the upper half."""

    def program(self, rows: int) -> Program:
        """*rows* rows, piece by piece."""
        for row, count in pieces(rows, self.plan.row_step):
            self.builder.call(count, shifts(self.p, row), partial(self.piece, count))
        return self.builder.build()

    @abstractmethod
    def piece(self, rows: int) -> None:
        """*rows* rows from the first one on."""

    # ---- in and out ----

    def load(self, rows: int, column: int, width: int) -> Slot:
        """*width* columns of *rows* rows of x, from *column* on."""
        element = self.p.x.element
        slot = self.x.alloc()
        stride = element.nbytes(self.p.columns)
        place = Rows("x", element.nbytes(column), rows, element.nbytes(width), stride)
        load(self.builder, self.spec, slot, place, self.x_pitch)
        self.x.enque(slot)
        return self.x.deque()

    def store(self, out: Slot, rows: int, column: int, width: int) -> None:
        """The same of the output."""
        self.y.enque(out)
        out = self.y.deque()
        stride = INT8.nbytes(self.p.columns)
        place = Rows("output", INT8.nbytes(column), rows, INT8.nbytes(width), stride)
        Writer(self.builder, self.spec).store(out, place, self.y_pitch)
        self.y.free(out)

    def store_scales(self, slot: Slot, count: int) -> None:
        """The first *count* scales."""
        self.scale.enque(slot)
        slot = self.scale.deque()
        place = Global("scale", 0, FLOAT32.nbytes(count))
        self.builder.store(place, slot.of(FLOAT32, count))
        self.scale.free(slot)

    def load_smooth(self, slot: Slot, column: int, width: int) -> None:
        """Smooth scales of *width* columns from *column* on, not yet in fp32."""
        element = self.p.x.element
        place = Global("smooth_scales", element.nbytes(column), element.nbytes(width))
        self.builder.load(slot.of(element, width, self.x_pitch), place)

    def widen_smooth(self, slot: Slot, width: int) -> None:
        """What :meth:`load_smooth` brought, in fp32."""
        narrow = slot.of(self.p.x.element, width, self.x_pitch)
        to_float32(self.builder, slot.of(FLOAT32, width), narrow)

    # ---- arithmetic ----

    def widen(self, x: Local, smooth: Slot | None) -> Local:
        """x in fp32, times the smooth scales."""
        values = self.values.of(FLOAT32, x.count)
        to_float32(self.builder, values, x)
        if smooth is not None:
            step(self.builder, Binary("mul", values, values, smooth.of(FLOAT32, x.count)))
        return values

    def find_largest(self, result: Local, values: Local) -> None:
        """The largest magnitude of *values*.

        A reduction takes seven times as long as Max (asc-devkit, vector throughput table), so long
        rows are folded in halves first (inferred: cann-bench's 361 us for 8192 x 16384 on 910B2
        leave no room for reductions of whole rows).
        """
        width = values.count
        magnitudes = self.magnitudes.of(FLOAT32, width)
        step(self.builder, Unary("abs", magnitudes, values))
        while width > FOLDED_ELEMENTS:
            half = align_up(ceil_div(width, 2), REPEAT_ELEMENTS)
            low, high = magnitudes.at(0, width - half), magnitudes.at(half, width - half)
            step(self.builder, Binary("max", low, low, high))
            width = half
        step(self.builder, Reduce("max", result, magnitudes.at(0, width)))

    def divide_twice(self, largest: Slot) -> None:
        """127 / M into register `factor`, 1 / (127 / M) into the row's scale."""
        self.asked.enque(largest)
        largest, scale = self.asked.deque(), self.scale.alloc()
        self.builder.emit(
            ScalarLoad("largest", largest.of(FLOAT32, 1)),
            ScalarAlu("f32_div", "factor", BITS_127, "largest"),
            ScalarAlu("f32_div", "scale", BITS_1, "factor"),
            ScalarStore(scale.of(FLOAT32, 1), "scale"),
        )
        self.asked.free(largest)
        self.store_scales(scale, 1)

    def quantise(self, out: Local, values: Local) -> None:
        """*values* times register `factor`, as int8."""
        step(self.builder, BinaryScalar("mul", values, values, "factor"))
        to_quantised(self.builder, self.spec, out, values)
