"""From int32 tiles to the output on the vector cores beside a cube core.

==================  ===============================================================================
Brcb                the scales of the rows, eight copies each
Adds, Cast          the scales of the columns to fp32
Cast                the sums to fp32
Mul                 by the scales of the columns, 64 columns of all rows at a time
Adds 0              with scales of rows or an activation: a zero loses its sign there
Mul                 by the scales of the rows
Add                 a bfloat16 bias
activation          see `activations`
Cast                to the output's type, ties to even
==================  ===============================================================================

Every buffer that is loaded or stored is double. Two vector cores take turns with the chunks, one
tile after the other, the second core first. Rows are filled up to 64 columns, where the vendor's
fill them up to 16 (assumed to take as long).
"""

from __future__ import annotations

from itertools import count

from npusim.data.dtypes import BFLOAT16, FLOAT32, INT32, DType
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, BinaryScalar, Cast, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.plane import REPEAT, Plane, by_column, by_row, spread_rows
from npusim.kernel.program import Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, load, repeat, store
from npusim.ops.npu_grouped_matmul.activations import ACTIVATIONS, GELU_TANH
from npusim.ops.npu_grouped_matmul.operands import Operands
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.blocks import walk
from npusim.ops.npu_grouped_matmul.templates.plan import Part
from npusim.ops.npu_grouped_matmul.templates.ring import (
    FILLED,
    READ,
    MixedPlan,
    place_of,
    tiles_of,
)

__all__ = ["Epilogue"]


class Epilogue:
    """The kernel of a vector core beside a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: MixedPlan) -> None:
        self.p, self.plan, self.operands = p, plan, Operands(p)
        self.builder = Builder("npu_grouped_matmul", spec.cores["aiv"], spec.sync)
        queue, claim = self.builder.queue, self.builder.claim
        width = align_up(plan.tile.n, REPEAT)
        size = plan.chunk_rows * width
        scale, out = p.scale[0].element, p.output.element
        self.is_late = bool(p.bias) and p.bias[0].element is not INT32
        """Whether a bias is added here, after the scales; it is loaded behind them."""
        behind_bytes = BFLOAT16.nbytes(width) if self.is_late else 0
        self.columns = queue("ub", scale.nbytes(width) + behind_bytes, "mte2", "vector", 2)
        self.widened = claim("ub", FLOAT32.nbytes(width))
        if p.per_token_scale:
            self.token = queue("ub", FLOAT32.nbytes(align_up(plan.tile.m, 8)), "mte2", "vector", 2)
            self.token_blocks = claim("ub", FLOAT32.nbytes(8 * align_up(plan.chunk_rows, 8)))
        self.sums = queue("ub", INT32.nbytes(size), "mte2", "vector", 2)
        self.results = queue("ub", out.nbytes(size), "vector", "mte3", 2)
        planes = 1 + (p.act_type != 0) + (p.act_type == GELU_TANH)
        self.planes = [claim("ub", FLOAT32.nbytes(size)) for _ in range(planes)]

    def program(self, parts: tuple[Part, ...], half: int) -> Program:
        """Finish *parts* as vector core number *half* of its group."""
        tiles = tuple(tile for part in parts for tile in tiles_of(self.plan, part))
        numbers, chunks = count(), 0

        def write(tile: Part) -> None:
            nonlocal chunks
            self._write(next(numbers), tile, (half + chunks) % self.plan.vector_cores)
            chunks += ceil_div(tile.rows, self.plan.chunk_rows)

        walk(self.builder, self.operands, tiles, write)
        return self.builder.build()

    def _write(self, number: int, tile: Part, turn: int) -> None:
        operands = self.operands
        repeat(
            self.builder,
            self._tile,
            place_of(self.plan, number, tile.rows, tile.columns),
            operands.output(tile),
            operands.columns(self.p.scale, tile),
            operands.rows(self.p.per_token_scale, tile),
            operands.columns(self.p.bias, tile) if self.is_late else None,
            turn,
        )

    def _tile(
        self,
        sums: GmView,
        output: GmView,
        scale: GmView,
        token: GmView | None,
        bias: GmView | None,
        turn: int,
    ) -> None:
        """Make *output* `(rows, columns)` of *sums* as soon as they are there.

        Of two vector cores that with *turn* 1 begins.
        """
        builder = self.builder
        columns = load(builder, self.columns, *([scale] if bias is None else [scale, bias]))
        tokens = None if token is None else load(builder, self.token, token)
        builder.cross_core_wait_flag("group", "mte2", FILLED)
        for number, (row, rows) in enumerate(pieces(output.rows, self.plan.chunk_rows)):
            if self.plan.vector_cores == 1 or number % 2 != turn:
                here = slice(row, row + rows)
                self._rows(sums[here, :], output[here, :], row, scale.dtype, (columns, tokens))
        builder.cross_core_set_flag("group", "mte2", READ)
        self.columns.free(columns)
        if tokens is not None:
            self.token.free(tokens)

    def _rows(
        self,
        sums: GmView,
        output: GmView,
        row: int,
        dtype: DType,
        slots: tuple[Slot, Slot | None],
    ) -> None:
        """Make some rows of a tile, `(rows, columns)`, which begin at *row* of it.

        *slots* hold the scales of the columns, of *dtype*, and the bias behind them, and the scales
        of all rows of the tile.
        """
        builder, p = self.builder, self.p
        rows, width = output.rows, align_up(output.columns, REPEAT)
        columns, tokens = slots
        blocks: Local | None = None
        if tokens is not None:
            # (rows,) -> (rows, 8)
            padded = align_up(rows, 8)
            blocks = self.token_blocks.of(FLOAT32, 8 * padded)
            spread_rows(builder, blocks, tokens.of(FLOAT32, padded, FLOAT32.nbytes(row)))
        numbers = self.widened.of(FLOAT32, width)
        if dtype is FLOAT32:
            step(builder, BinaryScalar("add", numbers, columns.of(dtype, width), 0.0))
        else:
            step(builder, Cast(numbers, columns.of(dtype, width), "none"))
        slot = load(builder, self.sums, sums, pitch=width)
        plane = Plane(self.planes[0], rows, width)
        # (rows, columns_padded), int32 -> float32
        step(builder, Cast(plane.whole(), slot.of(INT32, rows * width), "none"))
        self.sums.free(slot)
        by_row(builder, "mul", plane, numbers)
        if blocks is not None or p.act_type:
            step(builder, BinaryScalar("add", plane.whole(), plane.whole(), 0.0))
        if blocks is not None:
            by_column(builder, "mul", plane, blocks)
        if self.is_late:
            behind_bytes = align_up(dtype.nbytes(output.columns), BLOCK_BYTES)
            step(builder, Cast(numbers, columns.of(BFLOAT16, width, behind_bytes), "none"))
            by_row(builder, "add", plane, numbers)
        self._finish(plane, output)

    def _finish(self, plane: Plane, output: GmView) -> None:
        """Apply the activation and store *plane* as *output*."""
        builder, out = self.builder, output.dtype
        if self.p.act_type:
            work, *more = (Plane(slot, plane.rows, plane.columns) for slot in self.planes[1:])
            last = more[0] if more else work
            ACTIVATIONS[self.p.act_type](builder, plane.whole(), work.whole(), last.whole())
        result = self.results.alloc()
        # (rows, columns_padded) fp32 -> the output's type, ties to even
        step(builder, Cast(result.of(out, plane.rows * plane.columns), plane.whole(), "rint"))
        store(builder, self.results, result, output, pitch=plane.columns)
