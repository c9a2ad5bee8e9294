"""From int32 sums to the output on vector cores: float scales, scales a row, a bias, one rounding.

`((f32(sum) x scale) x pertoken) + bias`, each step rounded to float32, the result to the output's
type, ties to even (ops-nn@e5c3fa9 matmul/quant_batch_matmul_v3/op_kernel/basic_epilogue.h). Each of
the two vector cores of a group takes half of the rows of a block, some at a time.
"""

from __future__ import annotations

from typing import Literal

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import align_up, ceil_div
from npusim.data.tensor import Operand
from npusim.devices.schema import DeviceSpec
from npusim.isa import BinaryScalar, Cast, Local
from npusim.kernel.blocks import columns_of, output_of
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.columns import ColumnVector
from npusim.kernel.plane import REPEAT, Plane, by_column, by_row, spread_rows
from npusim.kernel.program import Program
from npusim.kernel.queues import Queue, Slot
from npusim.kernel.rows import pieces as row_pieces
from npusim.kernel.tiles import Piece
from npusim.kernel.views import GmView, load, repeat, store
from npusim.ops.npu_quant_matmul.contract import Problem
from npusim.ops.npu_quant_matmul.tiling import Plan

__all__ = ["FILLED", "READ", "Epilogue", "workspace_of"]

FILLED, READ = 0, 1
"""Flags between a cube core and its vector cores: a block is in the workspace; it was read."""


def workspace_of(plan: Plan, index: int) -> GmView:
    """Block number *index* of int32 `(base_m, base_n)` in the workspace, and those behind it."""
    rows = plan.cube.base_m * plan.workspace_blocks * plan.cube.cores
    blocks = GmView.of("workspace", INT32, rows, plan.cube.base_n)
    return blocks[index * plan.cube.base_m :, :]


class Epilogue:
    """The kernel of a vector core beside a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.plan = p, plan
        self.builder = Builder("npu_quant_matmul", spec.cores["aiv"], spec.sync)
        assert p.scale is not None
        self.operands: dict[str, Operand] = {"scale": p.scale}
        """Scales and bias of columns: `(n,)`, one number, or `(matrices, 1, n)`."""
        if p.bias is not None and p.start is None:
            self.operands["bias"] = p.bias
        columns_padded = align_up(plan.cube.base_n, REPEAT)
        queue, claim = self.builder.queue, self.builder.claim
        self.vectors = {
            name: ColumnVector.claim(self.builder, operand.element, columns_padded)
            for name, operand in self.operands.items()
        }
        self.token: Queue | None = None
        if p.pertoken_scale is not None:
            max_rows = align_up(ceil_div(plan.cube.base_m, 2), 8)
            self.token = queue("ub", FLOAT32.nbytes(max_rows), "mte2", "vector")
            self.token_blocks = claim("ub", FLOAT32.nbytes(8 * max_rows))
        out = p.output.element
        # Sums and results are double buffered.
        row_bytes = 2 * INT32.nbytes(columns_padded) + 2 * out.nbytes(columns_padded)
        fitting = self.builder.room_bytes("ub") // row_bytes
        self.step = max(1, min(fitting, plan.epilogue_rows))
        count = self.step * columns_padded
        self.sums = queue("ub", INT32.nbytes(count), "mte2", "vector", 2)
        self.results = queue("ub", out.nbytes(count), "vector", "mte3", 2)

    def program(self, pieces: tuple[Piece, ...], half: int) -> Program:
        """Finish *pieces*, of each the first or the second *half* of the rows."""
        for name, operand in self.operands.items():
            if operand.spec.size == 1:
                single = GmView.vector(name, operand.element, 1)
                self.vectors[name].take_number(single, name)
                self.vectors[name].drop()
        for index, piece in enumerate(pieces):
            # Vector core 0 takes the upper rows, vector core 1 the rest, which may be none.
            upper = ceil_div(piece.rows, 2)
            own = slice(0, upper) if half == 0 else slice(upper, piece.rows)
            block = workspace_of(self.plan, index % self.plan.workspace_blocks)
            output = output_of(self.p.product, piece, self.p.output.element)
            repeat(
                self.builder,
                self._block,
                block[: piece.rows, : piece.columns][own, :],
                output[own, :],
                self._token_of(piece, own),
                *(self._columns_of(piece, operand) for operand in self.operands.values()),
            )
        return self.builder.build()

    def _token_of(self, piece: Piece, own: slice) -> GmView | None:
        """The scales of those rows of *piece*."""
        if self.p.pertoken_scale is None:
            return None
        scales = GmView.vector("pertoken_scale", FLOAT32, self.p.product.m)
        return scales[:, piece.row : piece.row + piece.rows][:, own]

    def _columns_of(self, piece: Piece, operand: Operand) -> GmView | None:
        """The numbers of the columns of *piece*; None if all columns share one."""
        return None if operand.spec.size == 1 else columns_of(self.p.product, piece, operand)

    def _block(
        self, sums: GmView, output: GmView, token: GmView | None, *vectors: GmView | None
    ) -> None:
        """Make *output* `(rows, columns)` of int32 *sums*; the half of a row may be none."""
        builder = self.builder
        builder.cross_core_wait_flag("group", "mte2", FILLED)
        numbers = {
            name: None if vector is None else self.vectors[name].take(vector)
            for name, vector in zip(self.operands, vectors, strict=True)
        }
        token_slot = self._load_token(token) if token is not None and output.rows else None
        for row, count in row_pieces(output.rows, self.step):
            rows = slice(row, row + count)
            self._rows(sums[rows, :], output[rows, :], row, numbers)
        if token_slot is not None and self.token is not None:
            self.token.free(token_slot)
        for vector in self.vectors.values():
            vector.drop()
        builder.cross_core_set_flag("group", "mte2", READ)

    def _load_token(self, token: GmView) -> Slot | None:
        """Spread the scales *token* `(rows,)`, each into a block of eight."""
        assert self.token is not None
        slot = load(self.builder, self.token, token)
        # (rows,) -> (rows, 8)
        count = align_up(token.columns, 8)
        spread_rows(self.builder, self.token_blocks.of(FLOAT32, 8 * count), slot.of(FLOAT32, count))
        return slot

    def _rows(
        self, sums: GmView, output: GmView, row: int, numbers: dict[str, Local | None]
    ) -> None:
        """Make *output* `(count, columns)`, which begins at *row* of the block."""
        builder, out = self.builder, output.dtype
        columns_padded = align_up(output.columns, REPEAT)
        slot = load(builder, self.sums, sums, pitch=columns_padded)
        # (count, columns_padded), int32 and then, in place, float32
        plane = Plane(slot, output.rows, columns_padded)
        step(builder, Cast(plane.whole(), plane.whole(INT32), "none"))
        # (count, columns_padded) x (columns,)
        self._apply("mul", "scale", plane, numbers)
        if self.token is not None:
            # A block of eight for each row.
            blocks = self.token_blocks.of(FLOAT32, 8 * output.rows, FLOAT32.nbytes(8 * row))
            by_column(builder, "mul", plane, blocks)
        if "bias" in numbers:
            self._apply("add", "bias", plane, numbers)
        result = self.results.alloc()
        # (count, columns_padded) fp32 -> the output's type, ties to even
        step(builder, Cast(result.of(out, output.rows * columns_padded), plane.whole(), "rint"))
        self.sums.free(slot)
        store(builder, self.results, result, output, pitch=columns_padded)

    def _apply(
        self, op: Literal["mul", "add"], name: str, plane: Plane, numbers: dict[str, Local | None]
    ) -> None:
        """`plane = plane op numbers`, of each column, or the one in the register *name*."""
        per_column = numbers[name]
        if per_column is not None:
            by_row(self.builder, op, plane, per_column)
        else:
            whole = plane.whole()
            step(self.builder, BinaryScalar(op, whole, whole, name))
