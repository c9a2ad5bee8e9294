"""What the kernels of npu_dynamic_quant have in common: buffers, copies, and fp32 numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial

import numpy as np

from npusim.dtypes import FLOAT32, INT8
from npusim.isa import Binary, Global, Local, ScalarAlu, ScalarLoad, ScalarStore, Unary
from npusim.ops._chain import step, to_float32
from npusim.ops._rows import padded, pieces
from npusim.ops.npu_dynamic_quant.choice import BY_SCALAR
from npusim.ops.npu_dynamic_quant.contract import Problem
from npusim.ops.npu_dynamic_quant.tiling import Plan
from npusim.program import Builder, Program, Slot
from npusim.spec import DeviceSpec, Pipe

__all__ = ["Writing", "shifts"]

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
    """A kernel while it is written."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = Builder("npu_dynamic_quant", spec.cores[spec.vector_kinds[0]], spec.sync)
        queue, claim = self.builder.queue, self.builder.claim
        together, width = plan.row_step * plan.column_step, plan.group * plan.column_step
        self.x = queue("ub", p.x.element.nbytes(together), "mte2", "vector", plan.depth)
        self.y = queue("ub", INT8.nbytes(together), "vector", "mte3")
        self.values = claim("ub", FLOAT32.nbytes(width))
        self.magnitudes = claim("ub", FLOAT32.nbytes(width))
        few = FLOAT32.nbytes(plan.group)
        self.asked = queue("ub", few, "vector", "scalar")
        """What the scalar unit reads: M, or 127 / M of each row."""
        writer: Pipe = "scalar" if plan.template in BY_SCALAR else "vector"
        self.scale = queue("ub", few, writer, "mte3")
        # The fp32 numbers are made in place, from 16-bit ones in the upper half.
        self.smooth_bytes = 2 * padded(p.x.element.nbytes(plan.column_step))

    def program(self, rows: int) -> Program:
        """*rows* rows, piece by piece."""
        for row, count in pieces(rows, self.plan.row_step):
            self.builder.call(count, shifts(self.p, row), partial(self.piece, count))
        return self.builder.build()

    @abstractmethod
    def piece(self, rows: int) -> None:
        """*rows* rows from the first one on."""

    # ---- in and out ----

    def load(self, column: int, count: int) -> Slot:
        """*count* elements of x from *column* on."""
        element = self.p.x.element
        slot = self.x.alloc()
        place = Global("x", element.nbytes(column), element.nbytes(count))
        self.builder.load(slot.of(element, count), place)
        self.x.enque(slot)
        return self.x.deque()

    def store(self, out: Slot, column: int, count: int) -> None:
        """*count* elements of the output from *column* on."""
        self.y.enque(out)
        out = self.y.deque()
        place = Global("output", INT8.nbytes(column), INT8.nbytes(count))
        self.builder.store(place, out.of(INT8, count))
        self.y.free(out)

    def store_scales(self, slot: Slot, row: int, count: int) -> None:
        """The scales of *count* rows from *row* on."""
        self.scale.enque(slot)
        slot = self.scale.deque()
        place = Global("scale", FLOAT32.nbytes(row), FLOAT32.nbytes(count))
        self.builder.store(place, slot.of(FLOAT32, count))
        self.scale.free(slot)

    def load_smooth(self, slot: Slot, column: int, width: int) -> None:
        """Smooth scales of *width* columns from *column* on, not yet in fp32."""
        element = self.p.x.element
        place = Global("smooth_scales", element.nbytes(column), element.nbytes(width))
        self.builder.load(slot.of(element, width, slot.nbytes // 2), place)

    def widen_smooth(self, slot: Slot, width: int) -> None:
        """What :meth:`load_smooth` brought, in fp32."""
        narrow = slot.of(self.p.x.element, width, slot.nbytes // 2)
        to_float32(self.builder, slot.of(FLOAT32, width), narrow)

    # ---- arithmetic ----

    def widen(self, x: Local, rows: int, smooth: Slot | None) -> Local:
        """*rows* of x in fp32, times the smooth scales."""
        values, columns = self.values.of(FLOAT32, x.count), x.count // rows
        to_float32(self.builder, values, x)
        if smooth is not None:
            for row in range(rows):
                line = values.at(row * columns, columns)
                self.builder.emit(Binary("mul", line, line, smooth.of(FLOAT32, columns)))
            self.builder.barrier("vector")
        return values

    def magnitudes_of(self, values: Local) -> Local:
        """Their magnitudes, beside them."""
        magnitudes = self.magnitudes.of(FLOAT32, values.count)
        step(self.builder, Unary("abs", magnitudes, values))
        return magnitudes

    def divide_twice(self, largest: Slot, row: int) -> None:
        """127 / M into register `factor`, 1 / (127 / M) into the scale of *row*."""
        self.asked.enque(largest)
        largest, scale = self.asked.deque(), self.scale.alloc()
        self.builder.emit(
            ScalarLoad("largest", largest.of(FLOAT32, 1)),
            ScalarAlu("f32_div", "factor", BITS_127, "largest"),
            ScalarAlu("f32_div", "scale", BITS_1, "factor"),
            ScalarStore(scale.of(FLOAT32, 1), "scale"),
        )
        self.asked.free(largest)
        self.store_scales(scale, row, 1)
