"""The programs that the cores run for npu_dynamic_quant."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, INT8
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
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.ops.npu_dynamic_quant.choice import Template
from npusim.ops.npu_dynamic_quant.contract import Problem
from npusim.ops.npu_dynamic_quant.tiling import Plan
from npusim.ops.npu_dynamic_quant.writing import Writing, shifts

__all__ = ["build"]


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with as many rows share their program."""
    writing = KERNELS[plan.template](spec, p, plan)
    programs: dict[int, Program] = {}
    blocks: list[Block] = []
    first = 0
    for core, rows in enumerate(plan.rows_of_core):
        if rows not in programs:
            programs[rows] = writing.program(rows)
        bindings = {name: Binding(name, nbytes) for name, nbytes in shifts(p, first).items()}
        if p.smooth_scales is not None:
            bindings["smooth_scales"] = Binding("smooth_scales")
        blocks.append(Block(core, spec.vector_cores[core], programs[rows], bindings))
        first += rows
    return tuple(blocks)


class _WholeRows(Writing):
    """The template base, and what others add to: smooth scales stay, rows are loaded once."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        self.smooth: Slot | None = None
        if p.smooth_scales is not None:
            self.smooth = self.builder.claim("ub", self.smooth_bytes)

    def program(self, rows: int) -> Program:
        if self.smooth is not None:
            self.load_smooth(self.smooth, 0, self.p.columns)
            self.builder.sync("mte2", "vector")
            self.widen_smooth(self.smooth, self.p.columns)
        return super().program(rows)

    def piece(self, rows: int) -> None:
        columns = self.p.columns
        slot = self.load(rows, 0, columns)
        out: Slot | None = None
        for row in range(rows):
            x = slot.of(self.p.x.element, columns, row * self.x_pitch)
            values = self.widen(x, self.smooth)
            if row == rows - 1:
                self.x.free(slot)
            self.find_factor(values, row, rows)
            # Not before it is needed, when the last piece may be on its way out.
            out = out or self.y.alloc()
            self.quantise(out.of(INT8, columns, row * self.y_pitch), values)
        assert out is not None
        self.store(out, rows, 0, columns)

    def find_factor(self, values: Local, row: int, rows: int) -> None:
        """127 / M into register `factor`; with the last row of a piece, its scales are stored."""
        assert row == rows - 1 == 0
        largest = self.asked.alloc()
        self.find_largest(largest.of(FLOAT32, 1), values)
        self.divide_twice(largest)


class _RowsByVector(_WholeRows):
    """The templates whose vector unit divides: the scales of a piece come from its M together."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        self.range = self.builder.claim("ub", FLOAT32.nbytes(1))
        self.largest = self.builder.queue("ub", FLOAT32.nbytes(plan.row_step), "scalar", "vector")
        self.found: Slot | None = None
        """The M of this piece's rows."""

    def program(self, rows: int) -> Program:
        step(self.builder, Duplicate(self.range.of(FLOAT32, 1), 127.0))
        return super().program(rows)

    def find_factor(self, values: Local, row: int, rows: int) -> None:
        self.found = self.found or self.largest.alloc()
        asked = self.asked.alloc()
        largest, factor = (asked.of(FLOAT32, 1, start) for start in (0, BLOCK_BYTES))
        self.find_largest(largest, values)
        self.builder.emit(Binary("div", factor, self.range.of(FLOAT32, 1), largest))
        self.asked.enque(asked)
        asked = self.asked.deque()
        self.builder.emit(
            ScalarLoad("largest", largest),
            ScalarStore(self.found.of(FLOAT32, 1, FLOAT32.nbytes(row)), "largest"),
            ScalarLoad("factor", factor),
        )
        self.asked.free(asked)
        if row == rows - 1:
            self._scale(self.found, rows)
            self.found = None

    def _scale(self, found: Slot, rows: int) -> None:
        """The scales of a piece from what was *found* for its rows."""
        self.largest.enque(found)
        found, scale = self.largest.deque(), self.scale.alloc()
        largest, scales = (slot.of(FLOAT32, rows) for slot in (found, scale))
        self.builder.emit(BinaryScalar("mul", scales, largest, 1 / 127))
        self.largest.free(found)
        self.store_scales(scale, rows)


class _LongRows(Writing):
    """The template large: a row in pieces, once for its largest number and once to quantise it."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        if p.smooth_scales is not None:
            self.smooth = self.builder.queue("ub", self.smooth_bytes, "mte2", "vector")

    def piece(self, rows: int) -> None:
        assert rows == 1
        parts = tuple(pieces(self.p.columns, self.plan.column_step))
        asked = self.asked.alloc()
        largest, here = (asked.of(FLOAT32, 1, start) for start in (0, BLOCK_BYTES))
        for column, width in parts:
            self.find_largest(here if column else largest, self._values(column, width))
            if column:
                step(self.builder, Binary("max", largest, largest, here))
        self.divide_twice(asked)
        for column, width in parts:
            values, out = self._values(column, width), self.y.alloc()
            self.quantise(out.of(INT8, width), values)
            self.store(out, 1, column, width)

    def _values(self, column: int, width: int) -> Local:
        """A piece of a row in fp32, smoothed."""
        smooth: Slot | None = None
        if self.p.smooth_scales is not None:
            smooth = self.smooth.alloc()
            self.load_smooth(smooth, column, width)
            self.smooth.enque(smooth)
        slot = self.load(1, column, width)
        if smooth is not None:
            smooth = self.smooth.deque()
            self.widen_smooth(smooth, width)
        values = self.widen(slot.of(self.p.x.element, width), smooth)
        self.x.free(slot)
        if smooth is not None:
            self.smooth.free(smooth)
        return values


KERNELS: dict[Template, type[Writing]] = {
    "single_row": _RowsByVector,
    "multi_row": _RowsByVector,
    "db": _RowsByVector,
    "base": _WholeRows,
    "large": _LongRows,
}
