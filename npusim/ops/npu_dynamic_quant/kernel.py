"""The programs that the cores run for npu_dynamic_quant.

The rows of a piece are worked on one after the other: widen to fp32, times the smooth scales, find
the largest magnitude M, multiply by 127 / M, round and narrow to int8. The templates differ in what
they load at a time, and in who divides: see `choice`.
"""

from __future__ import annotations

from typing import Protocol

from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryScalar,
    Duplicate,
    Local,
    ScalarLoad,
    ScalarStore,
)
from npusim.kernel.chain import step
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops.npu_dynamic_quant import coupled, groups
from npusim.ops.npu_dynamic_quant.choice import BY_SCALAR
from npusim.ops.npu_dynamic_quant.contract import Problem
from npusim.ops.npu_dynamic_quant.row_steps import RowSteps, matrices
from npusim.ops.npu_dynamic_quant.tiling import Plan

__all__ = ["build"]


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with as many rows share their program."""
    if spec.arch == "2002":
        return coupled.build(spec, p, plan)
    if p.group_index is not None:
        return groups.build(spec, p, plan)
    steps = RowSteps(spec, p, plan)
    kernel: RowKernel = (LongRows if plan.template == "large" else WholeRows)(steps, plan)
    programs: dict[int, Program] = {}
    blocks: list[Block] = []
    x, output, scale = matrices(p)
    smooth = [GmView.vector("smooth_scales", p.x.element, p.columns)] if p.smooth_scales else []
    first = 0
    for core, rows in enumerate(plan.rows_of_core):
        if rows not in programs:
            programs[rows] = _program(kernel, steps, rows, plan.row_step)
        bound = bindings(x[first:, :], output[first:, :], scale[:, first:], *smooth)
        blocks.append(Block(core, spec.vector_cores[core], programs[rows], bound))
        first += rows
    return tuple(blocks)


class RowKernel(Protocol):
    """What a template does with its rows."""

    def begin(self) -> None:
        """Write the steps before the first row."""

    def piece(self, x: GmView, output: GmView, scale: GmView) -> None:
        """Compute *output* and *scale* `(rows,)` from *x*, `(rows, columns)` like *output*."""


def _program(kernel: RowKernel, steps: RowSteps, rows: int, row_step: int) -> Program:
    """*rows* rows, piece by piece."""
    x, output, scale = matrices(steps.p)
    kernel.begin()
    for row, count in pieces(rows, row_step):
        here = slice(row, row + count)
        repeat(steps.builder, kernel.piece, x[here, :], output[here, :], scale[:, here])
    return steps.builder.build()


class WholeRows:
    """All templates but large: smooth scales stay in the buffer, rows are loaded once."""

    def __init__(self, steps: RowSteps, plan: Plan) -> None:
        self.steps = steps
        self.smooth: Slot | None = None
        if steps.p.smooth_scales is not None:
            self.smooth = steps.builder.claim("ub", steps.smooth_bytes)
        self.by_vector: VectorDivision | None = None
        if plan.template not in BY_SCALAR:
            self.by_vector = VectorDivision(steps, plan.row_step)

    def begin(self) -> None:
        """Load what all rows need into the buffer."""
        steps, columns = self.steps, self.steps.p.columns
        if self.by_vector is not None:
            self.by_vector.begin()
        if self.smooth is not None:
            steps.load_smooth(self.smooth, slice(columns))
            steps.builder.sync("mte2", "vector")
            steps.widen_smooth(self.smooth, columns)

    def piece(self, x: GmView, output: GmView, scale: GmView) -> None:
        """As :class:`RowKernel` says."""
        steps, columns = self.steps, x.columns
        slot = steps.load(x)
        out: Slot | None = None
        for row in range(x.rows):
            source = slot.of(x.dtype, columns, row * steps.x_pitch)
            # (columns,) fp16 or bf16 -> fp32, smoothed
            values = steps.widen(source, self.smooth)
            # The last row is in fp32: mte2 may load the next piece.
            if row == x.rows - 1:
                steps.x.free(slot)
            self._find_factor(values, row, scale)
            # Not before it is needed, when the last piece may be on its way out.
            out = out or steps.y.alloc()
            # (columns,) fp32 x factor -> int8 or int4
            steps.quantise(out.of(output.dtype, columns, row * steps.y_pitch), values)
        assert out is not None
        steps.store(out, output)

    def _find_factor(self, values: Local, row: int, scale: GmView) -> None:
        """127 / M into register `factor`; with the last row of a piece, its scales are stored."""
        if self.by_vector is not None:
            self.by_vector.find_factor(values, row, scale)
            return
        assert scale.columns == 1
        absmax = self.steps.absmax.alloc()
        self.steps.find_absmax(absmax.of(FLOAT32, 1), values)
        self.steps.divide_twice(absmax, scale)


class VectorDivision:
    """127 / M by the vector unit; the scales of a piece are computed from its M together."""

    def __init__(self, steps: RowSteps, row_step: int) -> None:
        self.steps, builder = steps, steps.builder
        self.range = builder.claim("ub", FLOAT32.nbytes(1))
        self.found = builder.queue("ub", FLOAT32.nbytes(row_step), "scalar", "vector")
        self.found_slot: Slot | None = None
        """The M of this piece's rows `(rows,)`."""

    def begin(self) -> None:
        """127 into the buffer, 7 for int4."""
        largest = float(self.steps.p.largest)
        step(self.steps.builder, Duplicate(self.range.of(FLOAT32, 1), largest))

    def find_factor(self, values: Local, row: int, scale: GmView) -> None:
        """See :class:`WholeRows`."""
        steps, builder = self.steps, self.steps.builder
        self.found_slot = self.found_slot or self.found.alloc()
        slot = steps.absmax.alloc()
        # M, and 127 / M in the block behind it.
        absmax, factor = (slot.of(FLOAT32, 1, start) for start in (0, BLOCK_BYTES))
        steps.find_absmax(absmax, values)
        # Two single numbers: M of the row, and what it is multiplied by.
        builder.emit(Binary("div", factor, self.range.of(FLOAT32, 1), absmax))
        steps.absmax.enque(slot)
        slot = steps.absmax.deque()
        # `factor` serves this row only; M of all rows is gathered for the scales of the piece.
        builder.emit(
            ScalarLoad("largest", absmax),
            ScalarStore(self.found_slot.of(FLOAT32, 1, FLOAT32.nbytes(row)), "largest"),
            ScalarLoad("factor", factor),
        )
        steps.absmax.free(slot)
        if row == scale.columns - 1:
            self._store_scales(self.found_slot, scale)
            self.found_slot = None

    def _store_scales(self, found: Slot, scale: GmView) -> None:
        """M / 127 of all rows of a piece to *scale* `(rows,)`."""
        self.found.enque(found)
        found, out = self.found.deque(), self.steps.scale.alloc()
        # (rows,) M -> (rows,) scales
        absmax, scales = (slot.of(FLOAT32, scale.columns) for slot in (found, out))
        self.steps.builder.emit(BinaryScalar("mul", scales, absmax, 1 / self.steps.p.largest))
        self.found.free(found)
        self.steps.store_scales(out, scale)


class LongRows:
    """The template large: a row in parts, once for its largest number and once to quantise it."""

    def __init__(self, steps: RowSteps, plan: Plan) -> None:
        self.steps, self.column_step = steps, plan.column_step
        self.has_smooth = steps.p.smooth_scales is not None
        if self.has_smooth:
            self.smooth = steps.builder.queue("ub", steps.smooth_bytes, "mte2", "vector")

    def begin(self) -> None:
        """Nothing stays in the buffer."""

    def piece(self, x: GmView, output: GmView, scale: GmView) -> None:
        """As :class:`RowKernel` says, for one row."""
        assert x.rows == 1
        steps = self.steps
        parts = [
            slice(start, start + width) for start, width in pieces(x.columns, self.column_step)
        ]
        slot = steps.absmax.alloc()
        # M so far, and that of a part in the block behind it.
        absmax, of_part = (slot.of(FLOAT32, 1, start) for start in (0, BLOCK_BYTES))
        # First pass: M of the row is the largest of its parts.
        for part in parts:
            steps.find_absmax(of_part if part.start else absmax, self._values(x, part))
            if part.start:
                step(steps.builder, Binary("max", absmax, absmax, of_part))
        steps.divide_twice(slot, scale)
        # Second pass: every part is loaded again and quantised with the factor of the row.
        for part in parts:
            values, out = self._values(x, part), steps.y.alloc()
            steps.quantise(out.of(output.dtype, values.count), values)
            steps.store(out, output[:, part])

    def _values(self, x: GmView, part: slice) -> Local:
        """Columns *part* of a row in fp32, smoothed."""
        steps, x = self.steps, x[:, part]
        smooth: Slot | None = None
        if self.has_smooth:
            smooth = self.smooth.alloc()
            steps.load_smooth(smooth, part)
            self.smooth.enque(smooth)
        slot = steps.load(x)
        if smooth is not None:
            smooth = self.smooth.deque()
            steps.widen_smooth(smooth, x.columns)
        values = steps.widen(slot.of(x.dtype, x.columns), smooth)
        steps.x.free(slot)
        if smooth is not None:
            self.smooth.free(smooth)
        return values
