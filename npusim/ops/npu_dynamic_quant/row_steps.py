"""What the kernels of npu_dynamic_quant have in common: their buffers, and steps that rows take."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT16
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    REPEAT_BYTES,
    Binary,
    Cast,
    Copy,
    Duplicate,
    Fold,
    Global,
    Local,
    Unary,
    WholeReduce,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_float32
from npusim.kernel.queues import Slot
from npusim.kernel.views import GmView
from npusim.ops.npu_dynamic_quant.contract import Problem
from npusim.ops.npu_dynamic_quant.tiling import Plan

__all__ = [
    "FLOATS_PER_BLOCK",
    "FLOAT_LANES",
    "RowKernel",
    "burst",
    "everywhere",
    "find_absmax",
    "float_bits",
    "fold",
    "lanes_of",
    "matrices",
    "repeat_block",
    "round_by_int16",
]

FLOATS_PER_BLOCK, FLOAT_LANES = 8, 64
"""fp32 numbers in a block of 32 bytes, and in a repeat."""


def lanes_of(local: Local) -> int:
    """Elements of *local* in a repeat."""
    return REPEAT_BYTES * 8 // local.dtype.bits


def float_bits(number: float) -> int:
    """The bits of *number* in fp32, as the scalar unit reads it."""
    return int(np.float32(number).view(np.uint32))


def matrices(p: Problem) -> tuple[GmView, GmView, GmView]:
    """x and the output `(rows, columns)`, and the scales `(rows,)`."""
    x = GmView.of("x", p.x.element, p.rows, p.columns)
    output = GmView.of("output", p.target, p.rows, p.columns)
    return x, output, GmView.vector("scale", FLOAT32, p.rows)


def burst(view: GmView) -> Global:
    """All of *view*, whose rows follow each other in global memory, as one burst."""
    return Global(view.name, view.offset_bytes, view.nbytes)


def everywhere(block: Local, count: int) -> Local:
    """The numbers of *block*, 32 bytes, again and again: *count* elements in whole repeats."""
    return Local(block.buffer, block.offset_bytes, block.dtype, count, 0, 0)


# ---- the largest number of a row ----


def fold(builder: Builder, row: Local) -> Local:
    """Bring the largest numbers of *row* `(width,)` into its first repeat, which is returned."""
    lanes = lanes_of(row)
    repeats, left = divmod(row.count, lanes)
    if repeats == 0:
        return row
    first = row.at(0, lanes)
    if left:
        head, tail = row.at(0, left), row.at(repeats * lanes, left)
        step(builder, Binary("max", head, head, tail))
    if repeats > 1:
        step(builder, Fold("max", first, row.at(lanes, (repeats - 1) * lanes)))
    return first


def find_absmax(builder: Builder, result: Local, work: Local, values: Local) -> None:
    """The largest magnitude of *values* `(width,)` to *result* `(1,)`, by way of *work*."""
    step(builder, Unary("abs", work, values))
    step(builder, WholeReduce("max", result, fold(builder, work)))


# ---- one number for many elements ----


def repeat_block(builder: Builder, dst: Local, block: Local) -> None:
    """Fill the row *dst* `(width,)` with the numbers of *block*, again and again.

    The kernels fill all rows with one Copy, whose mask counts the elements of a row; a Copy a row
    without a barrier between them takes as long.
    """
    lanes = lanes_of(dst)
    whole = dst.count // lanes * lanes
    for part in (dst.at(0, whole), dst.at(whole, dst.count - whole)):
        if part.count:
            builder.emit(Copy(part, everywhere(block, part.count)))


# ---- fp32 to integers ----


def round_by_int16(builder: Builder, values: Local, where: Slot | None = None) -> Local:
    """*values* as integers in fp16, ties to even, by way of int16 in their place.

    The result lies in *where*, or in the place of *values* too.
    """
    count, start = values.count, where or values
    whole = Local(values.buffer, values.offset_bytes, INT16, count)
    halves = Local(start.buffer, start.offset_bytes, FLOAT16, count)
    step(builder, Cast(whole, values, "rint"))
    step(builder, Cast(halves, whole, "round"))
    return halves


class RowKernel:
    """What all templates of A2 and A3 share: the program of a core, and smooth scales.

    Templates claim their buffers in the order of the vendor's kernels: where they lie decides which
    banks an instruction meets.
    """

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = Builder(p.op, spec.cores[spec.vector_kinds[0]], spec.sync)
        self.x_pitch = align_up(p.x.element.nbytes(plan.column_step), BLOCK_BYTES)
        """Bytes from row to row of x in the buffer, where each begins at a block."""
        self.y_pitch = align_up(p.target.nbytes(plan.column_step), BLOCK_BYTES)
        self.smooth_bytes = 2 * self.x_pitch
        """Smooth scales become fp32 in place, from 16-bit numbers in the upper half."""
        self.smooth: Slot | None = None
        """Smooth scales that stay in the buffer, if there are any."""

    def claim_smooth(self) -> None:
        """Room for smooth scales that stay in the buffer, if there are any."""
        if self.p.smooth_scales is not None:
            self.smooth = self.builder.claim("ub", self.smooth_bytes)

    def keep_smooth(self) -> None:
        """Load them, and widen them once."""
        if self.smooth is not None:
            self.load_smooth(self.smooth, slice(self.p.columns))
            self.builder.sync("mte2", "vector")
            self.widen_smooth(self.smooth, self.p.columns)

    def load_smooth(self, slot: Slot, columns: slice, group: int = 0) -> None:
        """Load the smooth scales of *group* for *columns*, not yet in fp32."""
        p, element = self.p, self.p.x.element
        every = GmView.of("smooth_scales", element, max(1, p.groups), p.columns)
        smooth = every.row(group)[:, columns]
        # In the upper half, so that widening from the start never overtakes what it still reads.
        self.builder.data_copy(slot.of(element, smooth.columns, self.x_pitch), smooth.operand)

    def widen_smooth(self, slot: Slot, width: int) -> None:
        """What :meth:`load_smooth` brought, in fp32."""
        narrow = slot.of(self.p.x.element, width, self.x_pitch)
        to_float32(self.builder, slot.of(FLOAT32, width), narrow)

    def widen(self, values: Local, x: Local, smooth: Slot | None) -> None:
        """*x* `(width,)` in fp32, times the smooth scales."""
        to_float32(self.builder, values, x)
        if smooth is not None:
            step(self.builder, Binary("mul", values, values, smooth.of(FLOAT32, x.count)))

    def fill_block(self, slot: Slot, number: float) -> None:
        """*number* eight times, for :func:`everywhere`."""
        step(self.builder, Duplicate(slot.of(FLOAT32, FLOATS_PER_BLOCK), number))
