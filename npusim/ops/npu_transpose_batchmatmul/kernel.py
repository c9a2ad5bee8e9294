"""The program of a cube core for npu_transpose_batchmatmul.

A block of a head's output after the other: (rows, k) of input times (k, columns) of weight, summed
in fp32 in L0C, and stored by the fixpipe between the columns of other heads. No vector core starts.
"""

from __future__ import annotations

from typing import Literal

from npusim.data.dtypes import FLOAT32, UINT64
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe, QuantMode
from npusim.kernel.blocks import base_tile
from npusim.kernel.builder import Builder
from npusim.kernel.cube import CubeWriter, GmFeed, GmMatrix, GmTile, Tables
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.tiles import Piece
from npusim.kernel.views import GmView, repeat
from npusim.ops.npu_transpose_batchmatmul.contract import Problem
from npusim.ops.npu_transpose_batchmatmul.tiling import Plan, shares, starts_elsewhere

__all__ = ["build"]


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block for each cube core that has work."""
    kernel = Heads(spec, p, plan)
    bound = {name: Binding(name) for name in (*(x.name for x in p.inputs), "output")}
    return tuple(
        Block(core, "aic", kernel.program(core, pieces), bound)
        for core, pieces in enumerate(shares(plan.cube, p.product))
    )


class Heads:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, pr, tile = p, p.product, base_tile(plan.cube)
        self.builder = Builder(
            "npu_transpose_batchmatmul", spec.cores["aic"], spec.sync, alone=True
        )
        # (M, B * K), or (M, K) of each head
        row = pr.matrices * pr.k if p.heads_inside else pr.k
        self.x = GmMatrix("input", pr.element, pr.m, row, k_is_first=False)
        rows, columns = (pr.n, pr.k) if pr.transposed_b else (pr.k, pr.n)
        layout: Literal["ND", "FRACTAL_NZ"] = "FRACTAL_NZ" if pr.fractal_b else "ND"
        self.weight = GmMatrix("weight", pr.element, rows, columns, not pr.transposed_b, layout)
        a, b = GmFeed(self.builder, self.x), GmFeed(self.builder, self.weight)
        # That the fixpipe stores behind the last Mmad of a block, as in matmul, is assumed.
        self.writer = CubeWriter(self.builder, tile, a, b, pr.k, unit_flag=True)
        self.tables = Tables(self.builder, tile.n, scale=p.scale is not None)

    def program(self, core: int, pieces: tuple[Piece, ...]) -> Program:
        """Compute *pieces* one after the other, as core number *core*."""
        pr = self.p.product
        first_k = self.writer.stagger(core, pr.k) if starts_elsewhere(pr) else 0
        for piece in pieces:
            repeat(self.builder, self.block, *self._operands(piece), first_k)
        return self.builder.build()

    def _operands(self, piece: Piece) -> tuple[GmTile, GmTile, GmView, GmView | None]:
        """The tiles of a block, where it goes, and its words."""
        p, pr, head = self.p, self.p.product, piece.matrix
        if p.heads_inside:
            x = self.x.tile(piece.row, piece.rows, head * pr.k, pr.k)
        else:
            x = self.x.tile(piece.row, piece.rows, matrix=head)
        weight = self.weight.tile(piece.column, piece.columns, matrix=head)
        # (slices x M, heads of a slice x N)
        part, place = divmod(head, pr.matrices // p.slices)
        width = pr.matrices // p.slices * pr.n
        output = GmView.of("output", p.output.element, p.slices * pr.m, width)
        row, column = part * pr.m + piece.row, place * pr.n + piece.column
        rows, columns = slice(row, row + piece.rows), slice(column, column + piece.columns)
        scale = None
        if p.scale is not None:
            scale = GmView.vector("scale", UINT64, pr.matrices * pr.n)[:, columns]
        return x, weight, output[rows, columns], scale

    def block(
        self, x: GmTile, weight: GmTile, output: GmView, scale: GmView | None, first_k: int
    ) -> None:
        """`output (rows, columns) = x (rows, k) @ weight (k, columns)`, times *scale* `(columns,)`.

        Sums begin at *first_k*.
        """
        # (rows, k) @ (k, columns), fp32 sums that start from zero
        slot = self.writer.product(x.extent, weight.extent, x.k, first_k=first_k)
        words = None if scale is None else self.tables.take_scale(scale)
        # L0C holds (columns / 16, rows_padded, 16) in fp32.
        rows_padded = align_up(output.rows, FRACTAL_ROWS)
        sums = slot.of(FLOAT32, rows_padded * align_up(output.columns, FRACTAL_ROWS))
        size = output.rows, output.columns, rows_padded
        mode: QuantMode = "none" if output.dtype is FLOAT32 else "cast"
        mode = mode if words is None else "qf322b8"
        op = Fixpipe(output.operand, sums, *size, output.dtype, mode, words)
        self.writer.drain(slot, op)
