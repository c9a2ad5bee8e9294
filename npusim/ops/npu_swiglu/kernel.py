"""The program that each core runs for npu_swiglu: a whole tile an instruction.

ops-nn@e5c3fa9 activation/swi_glu/op_kernel/swi_glu_impl.hpp, swi_glu_bf16.hpp. Assumed: in which
order the buffers lie, and that the 1 that float32 divides by its sum is a block read again and
again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from npusim.data.dtypes import FLOAT32, RoundMode
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Binary, BinaryScalar, Cast, Duplicate, Local, Unary
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.launch import launch
from npusim.kernel.program import Block
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, fill
from npusim.kernel.steps import Step, tiles
from npusim.kernel.views import GmView
from npusim.ops.npu_swiglu.contract import Problem
from npusim.ops.npu_swiglu.tiling import Plan

__all__ = ["build"]

FLOATS_PER_BLOCK, FLOAT_LANES = 8, 64
"""fp32 numbers in a block of 32 bytes, and in a repeat."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Tiles of y and of both halves of x, row by row, go to the cores in turn."""
    kernel = SwiGlu(spec, p, plan)
    x = GmView.of("x", p.element, p.rows, 2 * p.columns)
    y = GmView.of("output", p.element, p.rows, p.columns)
    a, b, out = (
        tiles(view, plan.row_step, plan.column_step)
        for view in (x[:, : p.columns], x[:, p.columns :], y)
    )
    number = np.arange(plan.tiles(p))
    step = Step(kernel.tile, (a, b, out), number % plan.block_dim, number)
    return launch(kernel.builder, spec.vector_kinds[0], step, begin=kernel.begin)


class SwiGlu:
    """The kernel of one core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = Builder("npu_swiglu", spec.cores[spec.vector_kinds[0]], spec.sync)
        queue, claim = self.builder.queue, self.builder.claim
        # Rows begin at blocks.
        nbytes = plan.row_step * align_up(p.element.nbytes(plan.column_step), BLOCK_BYTES)
        wide_bytes = nbytes // p.element.nbytes(1) * FLOAT32.nbytes(1)
        self.a = queue("ub", nbytes, "mte2", "vector", plan.depth)
        self.b = queue("ub", nbytes, "mte2", "vector", plan.depth)
        self.y = queue("ub", nbytes, "vector", "mte3", plan.depth)
        self.in_float32 = p.element is FLOAT32
        self.work = claim("ub", wide_bytes)
        self.values = self.work if self.in_float32 else claim("ub", wide_bytes)
        self.ones = claim("ub", BLOCK_BYTES) if self.in_float32 else self.work
        self.writer = Writer(self.builder, spec)

    @property
    def begin(self) -> Callable[[], None] | None:
        """What a core does before its first tile."""
        ones = self.ones.of(FLOAT32, FLOATS_PER_BLOCK)
        return partial(step, self.builder, Duplicate(ones, 1.0)) if self.in_float32 else None

    def tile(self, a: GmView, b: GmView, y: GmView) -> None:
        """*y* of *a* and *b*, all `(rows, columns)`."""
        pitch_bytes = align_up(a.row_bytes, BLOCK_BYTES)
        # Whole rows in the buffer, with what fills up their last blocks.
        count = a.rows * pitch_bytes // a.dtype.nbytes(1)
        first, second = self.a.alloc(), self.b.alloc()
        for queue, slot, view in ((self.a, first, a), (self.b, second, b)):
            fill(self.builder, self.spec, slot, view)
            queue.enque(slot)
        out = self._in_float32(count) if self.in_float32 else self._widened(count)
        self.writer.store(self.y, out, y)

    def _in_float32(self, count: int) -> Slot:
        """((1 / (exp(-a) + 1)) x a) x b, *count* elements of the next slots."""
        builder, slot = self.builder, self.a.deque()
        a, work = slot.of(FLOAT32, count), self.work.of(FLOAT32, count)
        self._exp_plus_1(work, a)
        self._invert(work)
        step(builder, Binary("mul", work, work, a))
        self.a.free(slot)
        slot, out = self.b.deque(), self.y.alloc()
        step(builder, Binary("mul", out.of(FLOAT32, count), work, slot.of(FLOAT32, count)))
        self.b.free(slot)
        return out

    def _widened(self, count: int) -> Slot:
        """round((f32(a) / (exp(-f32(a)) + 1)) x f32(b)), *count* of them."""
        builder, dtype = self.builder, self.p.element
        values, work = self.values.of(FLOAT32, count), self.work.of(FLOAT32, count)
        slot = self.a.deque()
        step(builder, Cast(values, slot.of(dtype, count)))
        self.a.free(slot)
        self._exp_plus_1(work, values)
        step(builder, Binary("div", values, values, work))
        slot = self.b.deque()
        step(builder, Cast(work, slot.of(dtype, count)))
        self.b.free(slot)
        step(builder, Binary("mul", values, values, work))
        out = self.y.alloc()
        # 310P has one conversion to fp16, and that rounds to nearest even as well.
        rounding: RoundMode = "none" if self.spec.arch == "2002" else "rint"
        step(builder, Cast(out.of(dtype, count), values, rounding))
        return out

    def _invert(self, values: Local) -> None:
        """`values = 1 / values`, where the 1 is a block of them again and again."""
        # Strided operands are whole repeats, or less than one: what is left of them comes apart.
        whole = values.count // FLOAT_LANES * FLOAT_LANES
        for part in (values.at(0, whole), values.at(whole, values.count - whole)):
            if part.count:
                ones = Local("ub", self.ones.offset_bytes, FLOAT32, part.count, 0, 0)
                self.builder.emit(Binary("div", part, ones, part))
        self.builder.barrier("vector")

    def _exp_plus_1(self, dst: Local, a: Local) -> None:
        """`dst = exp(-a) + 1`."""
        step(self.builder, BinaryScalar("mul", dst, a, -1.0))
        step(self.builder, Unary("exp", dst, dst))
        step(self.builder, BinaryScalar("add", dst, dst, 1.0))
