"""npu_dynamic_quant where groups of rows have smooth scales of their own: moe and moe_large.

Both look for the group of each row in group_index, entry after entry from the first one on, and
load its smooth scales when it is another one than before. A row is worked on as by the templates
base and large, but for what each says.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, INT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    Duplicate,
    Local,
    ScalarAlu,
    ScalarLoad,
    ScalarLoop,
    ScalarStore,
)
from npusim.kernel.chain import step
from npusim.kernel.program import Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, bindings
from npusim.ops.npu_dynamic_quant.contract import Problem
from npusim.ops.npu_dynamic_quant.row_steps import RowSteps, float_bits, matrices
from npusim.ops.npu_dynamic_quant.tiling import Plan

__all__ = ["build"]

Groups = tuple[int, ...]
"""The group of each row."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores whose rows belong to the same groups share their program."""
    programs: dict[Groups, Program] = {}
    blocks: list[Block] = []
    x, output, scale = matrices(p)
    smooth = GmView.of("smooth_scales", p.x.element, p.groups, p.columns)
    index = GmView.vector("group_index", INT32, p.groups)
    group_of, first = p.group_of, 0
    for core, rows in enumerate(plan.rows_of_core):
        groups = tuple(group_of[first : first + rows].tolist())
        if groups not in programs:
            kind = GroupedLongRows if plan.template == "moe_large" else GroupedRows
            programs[groups] = kind(RowSteps(spec, p, plan), plan).program(groups)
        bound = bindings(x[first:, :], output[first:, :], scale[:, first:], smooth, index)
        blocks.append(Block(core, spec.vector_cores[core], programs[groups], bound))
        first += rows
    return tuple(blocks)


class GroupSearch:
    """The group_index in the buffer, and how far the scalar unit has looked."""

    def __init__(self, steps: RowSteps) -> None:
        self.builder, self.count = steps.builder, steps.p.groups
        self.index = self.builder.claim("ub", INT32.nbytes(self.count))
        self.group = 0

    def begin(self) -> None:
        """Load the group_index."""
        view = GmView.vector("group_index", INT32, self.count)
        self.builder.load(self.index.of(INT32, self.count), view.operand)
        self.builder.sync("mte2", "scalar")

    def advance(self, group: int) -> bool:
        """Look whether the next row belongs to *group*; returns whether that is another one."""
        is_other = group != self.group
        first = self.index.of(INT32, 1, INT32.nbytes(self.group))
        # On the chip the row's number stands in a register; here it is known beforehand.
        body = (ScalarLoad("end", first, INT32.nbytes(1)), ScalarAlu("lt", "inside", 0, "end"))
        self.builder.emit(ScalarLoop(1 + group - self.group, body))
        self.group = group
        return is_other


class GroupedRows:
    """The template moe: pieces of whole rows."""

    def __init__(self, steps: RowSteps, plan: Plan) -> None:
        self.steps, self.row_step = steps, plan.row_step
        builder = steps.builder
        self.search = GroupSearch(steps)
        self.smooth = builder.claim("ub", steps.smooth_bytes)
        self.range = builder.claim("ub", FLOAT32.nbytes(1))

    def program(self, groups: Groups) -> Program:
        """Rows that belong to *groups*, piece by piece."""
        x, output, scale = matrices(self.steps.p)
        largest = float(self.steps.p.largest)
        self.search.begin()
        step(self.steps.builder, Duplicate(self.range.of(FLOAT32, 1), largest))
        for row, count in pieces(len(groups), self.row_step):
            here = slice(row, row + count)
            self._piece(x[here, :], output[here, :], scale[:, here], groups[here])
        return self.steps.builder.build()

    def _piece(self, x: GmView, output: GmView, scale: GmView, groups: Groups) -> None:
        """*output* and *scale* `(rows,)` of *x*, both `(rows, columns)`."""
        steps, columns = self.steps, x.columns
        slot = steps.load(x)
        # Every piece begins with the smooth scales of the group that the last one ended with.
        self._load_smooth()
        out, scales = steps.y.alloc(), steps.scale.alloc()
        for row, group in enumerate(groups):
            if self.search.advance(group):
                self._load_smooth()
            source = slot.of(x.dtype, columns, row * steps.x_pitch)
            # (columns,) fp16 or bf16 -> fp32, smoothed
            values = steps.widen(source, self.smooth)
            self._find_factor(values, scales.of(FLOAT32, 1, FLOAT32.nbytes(row)))
            # (columns,) fp32 x factor -> int8 or int4
            steps.quantise(out.of(output.dtype, columns, row * steps.y_pitch), values)
        steps.x.free(slot)
        steps.store(out, output)
        steps.store_scales(scales, scale)

    def _load_smooth(self) -> None:
        """Those of the current group, in fp32, behind a barrier of all pipes."""
        steps, columns = self.steps, self.steps.p.columns
        # Rows before may still be multiplied by the ones that are there.
        steps.builder.sync("vector", "mte2")
        steps.load_smooth(self.smooth, slice(columns), self.search.group)
        steps.builder.barrier()
        steps.widen_smooth(self.smooth, columns)

    def _find_factor(self, values: Local, scale: Local) -> None:
        """127 / M, by the vector unit, into register `factor`; its inverse to *scale* `(1,)`."""
        steps, builder = self.steps, self.steps.builder
        slot = steps.absmax.alloc()
        absmax, factor = (slot.of(FLOAT32, 1, start) for start in (0, BLOCK_BYTES))
        steps.find_absmax(absmax, values)
        builder.emit(Binary("div", factor, self.range.of(FLOAT32, 1), absmax))
        steps.absmax.enque(slot)
        slot = steps.absmax.deque()
        builder.emit(
            ScalarLoad("factor", factor),
            ScalarAlu("f32_div", "scale", float_bits(1), "factor"),
            ScalarStore(scale, "scale"),
        )
        steps.absmax.free(slot)


class GroupedLongRows:
    """The template moe_large: a row in parts, smooth scales loaded with each of them.

    The last part is quantised at the end of the first pass, while it is still in the buffer.
    """

    def __init__(self, steps: RowSteps, plan: Plan) -> None:
        self.steps, self.column_step = steps, plan.column_step
        self.search = GroupSearch(steps)
        self.smooth = steps.builder.queue("ub", steps.smooth_bytes, "mte2", "vector")

    def program(self, groups: Groups) -> Program:
        """Rows that belong to *groups*, one after the other."""
        x, output, scale = matrices(self.steps.p)
        self.search.begin()
        for row, group in enumerate(groups):
            self.search.advance(group)
            here = slice(row, row + 1)
            self._row(x[here, :], output[here, :], scale[:, here])
        return self.steps.builder.build()

    def _row(self, x: GmView, output: GmView, scale: GmView) -> None:
        """*output* and *scale* `(1,)` of *x*, both `(1, columns)`."""
        steps = self.steps
        parts = [
            slice(start, start + width) for start, width in pieces(x.columns, self.column_step)
        ]
        slot = steps.absmax.alloc()
        # M so far, and that of a part in the block behind it.
        absmax, of_part = (slot.of(FLOAT32, 1, start) for start in (0, BLOCK_BYTES))
        for part in parts:
            values = self._values(x, part)
            steps.find_absmax(of_part if part.start else absmax, values)
            if part.start:
                step(steps.builder, Binary("max", absmax, absmax, of_part))
        steps.divide_twice(slot, scale)
        self._quantise(output, parts[-1], values)
        # Second pass: the others are loaded again.
        for part in parts[:-1]:
            self._quantise(output, part, self._values(x, part))

    def _quantise(self, output: GmView, part: slice, values: Local) -> None:
        """*values* `(width,)` with the factor of the row to *part* of *output*."""
        steps, out = self.steps, self.steps.y.alloc()
        steps.quantise(out.of(output.dtype, values.count), values)
        steps.store(out, output[:, part])

    def _values(self, x: GmView, part: slice) -> Local:
        """Columns *part* of a row in fp32, smoothed."""
        steps, x = self.steps, x[:, part]
        smooth = self.smooth.alloc()
        steps.load_smooth(smooth, part, self.search.group)
        self.smooth.enque(smooth)
        slot = steps.load(x)
        smooth = self.smooth.deque()
        steps.widen_smooth(smooth, x.columns)
        values = steps.widen(slot.of(x.dtype, x.columns), smooth)
        steps.x.free(slot)
        self.smooth.free(smooth)
        return values
