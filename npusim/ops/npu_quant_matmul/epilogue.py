"""What vector cores make of int32 sums: full scales, scales a row, a bias, one rounding at the end.

`((f32(sum) x scale) x pertoken) + bias`, each step rounded to float32, the result to the output's
type, ties to even (ops-nn@e5c3fa9 matmul/quant_batch_matmul_v3/op_kernel/basic_epilogue.h). Each of
the two vector cores of a group takes half of the rows of a block, some at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import align_up, ceil_div
from npusim.data.tensor import Operand
from npusim.devices.schema import DeviceSpec
from npusim.isa import BinaryScalar, Cast, Global, Local, ScalarLoad
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_float32
from npusim.kernel.plane import REPEAT, Plane, by_column, by_row, spread_rows
from npusim.kernel.program import Program
from npusim.kernel.queues import Queue, Slot
from npusim.kernel.rows import pieces as cut
from npusim.kernel.tiles import Piece
from npusim.ops.npu_quant_matmul.contract import Problem
from npusim.ops.npu_quant_matmul.tiling import Plan

__all__ = ["FILLED", "READ", "Epilogue", "tile_bytes"]

FILLED, READ = 0, 1
"""Flags between a cube core and its vector cores: a block is in the workspace; it was read."""


def tile_bytes(plan: Plan) -> int:
    """Bytes of a block of int32 in the workspace."""
    return INT32.nbytes(plan.cube.base_m * plan.cube.base_n)


class Epilogue:
    """The kernel of a vector core beside a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.plan = p, plan
        self.builder = Builder("npu_quant_matmul", spec.cores["aiv"], spec.sync)
        self.wide = align_up(plan.cube.base_n, REPEAT)
        queue, claim = self.builder.queue, self.builder.claim
        self.vectors = {
            operand.name: _Vector(self.builder, operand, self.wide)
            for operand in (p.scale, None if p.bias is p.start else p.bias)
            if operand is not None
        }
        self.token: Queue | None = None
        if p.pertoken_scale is not None:
            most = align_up(ceil_div(plan.cube.base_m, 2), 8)
            self.token = queue("ub", FLOAT32.nbytes(most), "mte2", "vector")
            self.token_blocks = claim("ub", 32 * most)
        row_bytes = 2 * INT32.nbytes(self.wide) + 2 * p.output.element.nbytes(self.wide)
        fitting = self.builder.room_bytes("ub") // row_bytes
        self.step = max(1, min(fitting, plan.epilogue_rows))
        self.sums = queue("ub", self.step * INT32.nbytes(self.wide), "mte2", "vector", 2)
        out = self.step * p.output.element.nbytes(self.wide)
        self.results = queue("ub", out, "vector", "mte3", 2)

    def program(self, pieces: tuple[Piece, ...], half: int) -> Program:
        """Finish *pieces*, of each the first or the second *half* of the rows."""
        p, out = self.p, self.p.output.element
        singles = [vector for vector in self.vectors.values() if vector.is_single]
        for vector in singles:
            vector.take_single()
        for index, piece in enumerate(pieces):
            upper = ceil_div(piece.rows, 2)
            start, rows = (0, upper) if half == 0 else (upper, piece.rows - upper)
            row, column = piece.row + start, piece.column
            pitch = INT32.nbytes(self.plan.cube.base_n)
            block = index % self.plan.workspace_blocks * tile_bytes(self.plan)
            shifts = {
                "workspace": block + start * pitch,
                "output": out.nbytes((piece.matrix * p.product.m + row) * p.product.n + column),
                "pertoken_scale": FLOAT32.nbytes(row),
            }
            for name, vector in self.vectors.items():
                first = column + (piece.matrix * p.product.n if vector.is_batched else 0)
                shifts[name] = vector.operand.element.nbytes(0 if vector.is_single else first)
            self.builder.call((rows, piece.columns), shifts, self._writing(rows, piece.columns))
        return self.builder.build()

    def _writing(self, rows: int, columns: int) -> Callable[[], None]:
        return lambda: self._block(rows, columns)

    def _block(self, rows: int, columns: int) -> None:
        builder = self.builder
        builder.cross_core_wait_flag("group", "mte2", FILLED)
        for vector in self.vectors.values():
            vector.take(columns)
        token = self._take_token(rows) if rows else None
        for row, count in cut(rows, self.step):
            self._rows(row, count, columns)
        if token is not None and self.token is not None:
            self.token.free(token)
        for vector in self.vectors.values():
            vector.drop()
        builder.cross_core_set_flag("group", "mte2", READ)

    def _take_token(self, rows: int) -> Slot | None:
        """The scales of *rows* rows, each as a block of eight."""
        if self.token is None:
            return None
        slot = self.token.alloc()
        place = Global("pertoken_scale", 0, FLOAT32.nbytes(rows))
        self.builder.load(slot.of(FLOAT32, rows), place)
        self.token.enque(slot)
        slot = self.token.deque()
        count = align_up(rows, 8)
        spread_rows(self.builder, self.token_blocks.of(FLOAT32, 8 * count), slot.of(FLOAT32, count))
        return slot

    def _rows(self, row: int, count: int, columns: int) -> None:
        p, builder, out = self.p, self.builder, self.p.output.element
        wide = align_up(columns, REPEAT)
        stride = INT32.nbytes(self.plan.cube.base_n)
        slot = self.sums.alloc()
        place = Global("workspace", row * stride, INT32.nbytes(columns), count, stride)
        builder.load(slot.of(INT32, columns), place, INT32.nbytes(wide))
        self.sums.enque(slot)
        slot = self.sums.deque()
        plane = Plane(slot, count, wide)
        step(builder, Cast(plane.whole(), plane.whole(INT32), "none"))
        self.vectors["scale"].apply("mul", plane)
        if self.token is not None:
            first = self.token_blocks.of(FLOAT32, 8 * count, 32 * row)
            by_column(builder, "mul", plane, first)
        if "bias" in self.vectors:
            self.vectors["bias"].apply("add", plane)
        result = self.results.alloc()
        step(builder, Cast(result.of(out, count * wide), plane.whole(), "rint"))
        self.sums.free(slot)
        self.results.enque(result)
        result = self.results.deque()
        line = out.nbytes(p.product.n)
        place = Global("output", row * line, out.nbytes(columns), count, line)
        builder.store(place, result.of(out, columns), out.nbytes(wide))
        self.results.free(result)


class _Vector:
    """The scales or the bias along n: float32 in the unified buffer, or one number."""

    def __init__(self, builder: Builder, operand: Operand, wide: int) -> None:
        self._builder, self.operand = builder, operand
        self.is_single = operand.spec.size == 1
        self.is_batched = len(operand.shape) == 3 and operand.shape[0] > 1
        element = operand.element
        self._raw = builder.queue("ub", element.nbytes(wide), "mte2", "vector")
        self._wide = None if element is FLOAT32 else builder.claim("ub", FLOAT32.nbytes(wide))
        self._slot: Slot | None = None
        self._numbers: Local | None = None

    def take_single(self) -> None:
        """Bring the one number into a register, for the whole program."""
        self._fetch(1)
        assert self._numbers is not None
        self._builder.sync("vector", "scalar")
        self._builder.emit(ScalarLoad(self.operand.name, self._numbers.at(0, 1)))
        self.drop()

    def take(self, columns: int) -> None:
        """Bring the numbers of *columns* columns; free them with `drop`."""
        if not self.is_single:
            self._fetch(columns)

    def _fetch(self, count: int) -> None:
        element = self.operand.element
        slot = self._raw.alloc()
        place = Global(self.operand.name, 0, element.nbytes(count))
        self._builder.load(slot.of(element, count), place)
        self._raw.enque(slot)
        self._slot = self._raw.deque()
        self._numbers = self._slot.of(element, count)
        if self._wide is not None:
            raw, self._numbers = self._numbers, self._wide.of(FLOAT32, count)
            to_float32(self._builder, self._numbers, raw)

    def drop(self) -> None:
        """The numbers have been used."""
        if self._slot is not None:
            self._raw.free(self._slot)
            self._slot = None

    def apply(self, op: Literal["mul", "add"], plane: Plane) -> None:
        if self.is_single:
            whole = plane.whole()
            step(self._builder, BinaryScalar(op, whole, whole, self.operand.name))
        else:
            assert self._numbers is not None
            by_row(self._builder, op, plane, self._numbers)
