"""npu_dynamic_quant where groups of rows have smooth scales of their own: moe and moe_large.

Both look for the group of each row in group_index, entry after entry from the first one on, and
load its smooth scales when it is another one than before.

ops-nn@e5c3fa9 quant/dynamic_quant/op_kernel/dynamic_quant_moe.h, dynamic_quant_moe_large_shape.h.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, INT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryScalar,
    Local,
    ScalarAlu,
    ScalarLoad,
    ScalarLoop,
    ScalarStore,
    Unary,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_quantised
from npusim.kernel.program import Block, Program
from npusim.kernel.reduction import Reduction
from npusim.kernel.rows import Writer, load, pieces
from npusim.kernel.views import GmView, bindings, store
from npusim.ops.npu_dynamic_quant.contract import Problem
from npusim.ops.npu_dynamic_quant.long_rows import LongRows
from npusim.ops.npu_dynamic_quant.row_steps import (
    FLOATS_PER_BLOCK,
    RowKernel,
    float_bits,
    matrices,
)
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
            kind = MoeLarge if plan.template == "moe_large" else Moe
            programs[groups] = kind(spec, p, plan).program(groups)
        bound = bindings(x[first:, :], output[first:, :], scale[:, first:], smooth, index)
        blocks.append(Block(core, spec.vector_cores[core], programs[groups], bound))
        first += rows
    return tuple(blocks)


class GroupSearch:
    """The group_index in the buffer, and how far the scalar unit has looked."""

    def __init__(self, builder: Builder, count: int) -> None:
        self.builder, self.count = builder, count
        self.index = self.builder.claim("ub", INT32.nbytes(self.count))
        self.group = 0

    def begin(self) -> None:
        """Load the group_index."""
        view = GmView.vector("group_index", INT32, self.count)
        self.builder.data_copy(self.index.of(INT32, self.count), view.operand)
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


class Moe(RowKernel):
    """Pieces of whole rows, all buffers single."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        claim, queue, rows = self.builder.claim, self.builder.queue, plan.row_step
        row_bytes = FLOAT32.nbytes(p.columns)
        self.search = GroupSearch(self.builder, p.groups)
        self.x = queue("ub", rows * self.x_pitch, "mte2", "vector")
        self.y = queue("ub", rows * self.y_pitch, "vector", "mte3")
        self.scale = queue("ub", FLOAT32.nbytes(rows), "scalar", "mte3")
        self.row_smooth = claim("ub", self.smooth_bytes)
        self.values, self.work = claim("ub", row_bytes), claim("ub", row_bytes)
        self.largest, self.absmax = claim("ub", BLOCK_BYTES), claim("ub", BLOCK_BYTES)
        self.factor = queue("ub", BLOCK_BYTES, "vector", "scalar")
        self.reduction = Reduction(self.builder, p.columns)
        self.writer = Writer(self.builder, spec)

    def program(self, groups: Groups) -> Program:
        """Rows that belong to *groups*, piece by piece."""
        x, output, scale = matrices(self.p)
        self.search.begin()
        self.fill_block(self.largest, self.p.largest)
        for row, count in pieces(len(groups), self.plan.row_step):
            here = slice(row, row + count)
            self._piece(x[here, :], output[here, :], scale[:, here], groups[here])
        return self.builder.build()

    def _piece(self, x: GmView, output: GmView, scale: GmView, groups: Groups) -> None:
        """*output* and *scale* `(rows,)` of *x*, both `(rows, columns)`."""
        builder, columns = self.builder, x.columns
        slot = load(builder, self.spec, self.x, x, self.x_pitch)
        # Every piece begins with the smooth scales of the group that the last one ended with.
        self._load_smooth()
        out, scales = self.y.alloc(), self.scale.alloc()
        values = self.values.of(FLOAT32, columns)
        for row, group in enumerate(groups):
            if self.search.advance(group):
                self._load_smooth()
            source = slot.of(x.dtype, columns, row * self.x_pitch)
            # (columns,) fp16 or bf16 -> fp32, smoothed
            self.widen(values, source, self.row_smooth)
            self._find_factor(values, scales.of(FLOAT32, 1, FLOAT32.nbytes(row)))
            # (columns,) fp32 x factor -> int8 or int4
            step(builder, BinaryScalar("mul", values, values, "factor"))
            y = out.of(output.dtype, columns, row * self.y_pitch)
            to_quantised(builder, self.spec, y, values)
        self.x.free(slot)
        self.writer.store(self.y, out, output, self.y_pitch)
        store(builder, self.scale, scales, scale)

    def _load_smooth(self) -> None:
        """Those of the current group, in fp32, behind a barrier of all pipes."""
        columns = self.p.columns
        # Rows before may still be multiplied by the ones that are there.
        self.builder.sync("vector", "mte2")
        self.load_smooth(self.row_smooth, slice(columns), self.search.group)
        self.builder.barrier()
        self.widen_smooth(self.row_smooth, columns)

    def _find_factor(self, values: Local, scale: Local) -> None:
        """127 / M, by the vector unit, into register `factor`; its inverse to *scale* `(1,)`."""
        builder, work = self.builder, self.work.of(FLOAT32, values.count)
        step(builder, Unary("abs", work, values))
        self.reduction.find_largest(self.absmax, work)
        slot = self.factor.alloc()
        factor, largest, absmax = (
            block.of(FLOAT32, FLOATS_PER_BLOCK) for block in (slot, self.largest, self.absmax)
        )
        builder.emit(Binary("div", factor, largest, absmax))
        self.factor.enque(slot)
        slot = self.factor.deque()
        builder.emit(
            ScalarLoad("factor", factor.at(0, 1)),
            ScalarAlu("f32_div", "scale", float_bits(1), "factor"),
            ScalarStore(scale, "scale"),
        )
        self.factor.free(slot)


class MoeLarge(LongRows):
    """A row in parts, loaded twice but for the last one; all buffers single.

    Smooth scales come with every part. The last part is quantised at the end of the first pass,
    while it is still in the buffer.
    """

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan, depth=1)
        self.search = GroupSearch(self.builder, p.groups)
        self.smooth_part = self.builder.queue("ub", self.smooth_bytes, "mte2", "vector")

    def program(self, groups: Groups) -> Program:
        """Rows that belong to *groups*, one after the other."""
        x, output, scale = matrices(self.p)
        self.search.begin()
        for row, group in enumerate(groups):
            self.search.advance(group)
            here = slice(row, row + 1)
            self._row(x[here, :], output[here, :], scale[:, here])
        return self.builder.build()

    def _row(self, x: GmView, output: GmView, scale: GmView) -> None:
        """*output* and *scale* `(1,)` of *x*, both `(1, columns)`."""
        columns = pieces(x.columns, self.plan.column_step)
        parts = [slice(start, start + width) for start, width in columns]
        for part in parts:
            values = self._values(x[:, part], part)
            self.find_largest(values, is_first=part is parts[0])
        self.divide(scale)
        self.quantise(values, output[:, parts[-1]])
        # Second pass: the others are loaded again.
        for part in parts[:-1]:
            self.quantise(self._values(x[:, part], part), output[:, part])

    def _values(self, x: GmView, part: slice) -> Local:
        """Columns *part* of a row in fp32, smoothed."""
        smooth = self.smooth_part.alloc()
        self.load_smooth(smooth, part, self.search.group)
        self.smooth_part.enque(smooth)
        slot = load(self.builder, self.spec, self.x, x)
        smooth = self.smooth_part.deque()
        self.widen_smooth(smooth, x.columns)
        values = self.values.of(FLOAT32, x.columns)
        self.widen(values, slot.of(x.dtype, x.columns), smooth)
        self.x.free(slot)
        self.smooth_part.free(smooth)
        return values
