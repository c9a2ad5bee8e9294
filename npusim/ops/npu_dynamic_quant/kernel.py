"""The programs that the cores run for npu_dynamic_quant."""

from __future__ import annotations

from npusim.dtypes import FLOAT32, INT8
from npusim.isa import (
    Binary,
    BinaryScalar,
    Duplicate,
    Local,
    Reduce,
    ScalarLoad,
    ScalarLoop,
    ScalarStore,
)
from npusim.ops._chain import step, to_quantised
from npusim.ops._rows import pieces
from npusim.ops.npu_dynamic_quant.choice import BY_SCALAR
from npusim.ops.npu_dynamic_quant.contract import Problem
from npusim.ops.npu_dynamic_quant.tiling import Plan
from npusim.ops.npu_dynamic_quant.writing import Writing, shifts
from npusim.program import Binding, Block, Program, Slot
from npusim.spec import DeviceSpec

__all__ = ["build"]


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with as many rows share their program."""
    writing = (_LongRows if plan.template == "large" else _WholeRows)(spec, p, plan)
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
    """All templates but large: the smooth scales stay in the buffer, rows are loaded once."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        self.smooth: Slot | None = None
        if p.smooth_scales is not None:
            self.smooth = self.builder.claim("ub", self.smooth_bytes)
        if plan.template not in BY_SCALAR:
            few = FLOAT32.nbytes(plan.group)
            self.range, self.largest = (self.builder.claim("ub", few) for _ in range(2))

    def program(self, rows: int) -> Program:
        if self.smooth is not None:
            self.load_smooth(self.smooth, 0, self.p.columns)
            self.builder.sync("mte2", "vector")
            self.widen_smooth(self.smooth, self.p.columns)
        if self.plan.template not in BY_SCALAR:
            step(self.builder, Duplicate(self.range.of(FLOAT32, self.plan.group), 127.0))
        return super().program(rows)

    def piece(self, rows: int) -> None:
        columns, element = self.p.columns, self.p.x.element
        slot, out = self.load(0, rows * columns), self.y.alloc()
        for row, count in pieces(rows, self.plan.group):
            elements = count * columns
            x = slot.of(element, elements, element.nbytes(row * columns))
            values = self.widen(x, count, self.smooth)
            if self.plan.template in BY_SCALAR:
                self._scale_by_scalar(values, row)
            else:
                self._scale_by_vector(values, row, count)
            y = out.of(INT8, elements, INT8.nbytes(row * columns))
            to_quantised(self.builder, self.spec, y, values)
        self.x.free(slot)
        self.store(out, 0, rows * columns)

    def _scale_by_scalar(self, values: Local, row: int) -> None:
        largest = self.asked.alloc()
        step(self.builder, Reduce("max", largest.of(FLOAT32, 1), self.magnitudes_of(values)))
        self.divide_twice(largest, row)
        step(self.builder, BinaryScalar("mul", values, values, "factor"))

    def _scale_by_vector(self, values: Local, first: int, rows: int) -> None:
        """*rows* of a piece from *first* on, times 127 / M; their scales are stored."""
        largest = self.largest.of(FLOAT32, rows)
        self._find_largest(largest, self.magnitudes_of(values))
        asked, scale = self.asked.alloc(), self.scale.alloc()
        factors = asked.of(FLOAT32, rows)
        self.builder.emit(
            Binary("div", factors, self.range.of(FLOAT32, rows), largest),
            BinaryScalar("mul", scale.of(FLOAT32, rows), largest, 1 / 127),
        )
        self.store_scales(scale, first, rows)
        self.asked.enque(asked)
        asked, columns = self.asked.deque(), values.count // rows
        for row in range(rows):
            line = values.at(row * columns, columns)
            self.builder.emit(
                ScalarLoad("factor", factors.at(row, 1)),
                BinaryScalar("mul", line, line, "factor"),
            )
        self.asked.free(asked)
        self.builder.barrier("vector")

    def _find_largest(self, largest: Local, magnitudes: Local) -> None:
        """The largest of each row; *magnitudes* is overwritten."""
        rows = largest.count
        if rows == 1:
            step(self.builder, Reduce("max", largest, magnitudes))
            return
        columns = magnitudes.count // rows
        for row in range(rows):
            line = magnitudes.at(row * columns, columns)
            self.builder.emit(Reduce("max", line.at(0, 1), line))
        # A vector result begins a block; the scalar unit puts the numbers side by side.
        self.builder.sync("vector", "scalar")
        body = (
            ScalarLoad("largest", magnitudes.at(0, 1), FLOAT32.nbytes(columns)),
            ScalarStore(largest.at(0, 1), "largest", FLOAT32.nbytes(1)),
        )
        self.builder.emit(ScalarLoop(rows, body))
        self.builder.sync("scalar", "vector")


class _LongRows(Writing):
    """Template large: a row in pieces, once for its largest number and once to quantise it."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        if p.smooth_scales is not None:
            self.smooth = self.builder.queue("ub", self.smooth_bytes, "mte2", "vector")

    def piece(self, rows: int) -> None:
        assert rows == 1
        parts = tuple(pieces(self.p.columns, self.plan.column_step))
        slot = self.asked.alloc()
        largest = slot.of(FLOAT32, 1)
        for column, width in parts:
            magnitudes = self.magnitudes_of(self._values(column, width))
            here = largest if column == 0 else magnitudes.at(0, 1)
            step(self.builder, Reduce("max", here, magnitudes))
            if column > 0:
                step(self.builder, Binary("max", largest, largest, here))
        self.divide_twice(slot, 0)
        for column, width in parts:
            values = self._values(column, width)
            step(self.builder, BinaryScalar("mul", values, values, "factor"))
            out = self.y.alloc()
            to_quantised(self.builder, self.spec, out.of(INT8, width), values)
            self.store(out, column, width)

    def _values(self, column: int, width: int) -> Local:
        """A piece of a row in fp32, smoothed."""
        smooth = None
        if self.p.smooth_scales is not None:
            slot = self.smooth.alloc()
            self.load_smooth(slot, column, width)
            self.smooth.enque(slot)
        x = self.load(column, width)
        if self.p.smooth_scales is not None:
            smooth = self.smooth.deque()
            self.widen_smooth(smooth, width)
        values = self.widen(x.of(self.p.x.element, width), 1, smooth)
        self.x.free(x)
        if smooth is not None:
            self.smooth.free(smooth)
        return values
