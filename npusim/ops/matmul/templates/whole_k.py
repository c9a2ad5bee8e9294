"""The program of the templates v2 and base: a core sums all of k of a block in L0C.

A core makes blocks of the output one after the other: (rows, k) of x1 times (k, columns) of x2,
summed in fp32 in L0C, plus the bias, rounded once to fp16 or bf16 on the way out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe, Local, QuantMode
from npusim.kernel.blocks import (
    base_tile,
    columns_of_all,
    gm_matrix_a,
    gm_matrix_b,
    output_of_all,
    product_steps,
)
from npusim.kernel.builder import Builder
from npusim.kernel.coupled import NdFeed, NdOut, RowTable
from npusim.kernel.cube import CubeWriter, Feed, GmFeed, GmTile, Tables
from npusim.kernel.launch import launch
from npusim.kernel.program import Binding, Block
from npusim.kernel.tiles import CubeTiles, Pieces
from npusim.kernel.views import GmView
from npusim.ops.matmul.contract import Problem
from npusim.ops.matmul.templates.plan import Plan

__all__ = ["WholeKPlan", "build", "whole_k_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeKPlan(Plan):
    """The cube's tiles; 310P also takes so many rows of a block out of L0C at a time."""

    cube: CubeTiles
    out_rows: int
    """Rows of a block that the unified buffer holds at a time; 0 where the fixpipe stores."""
    past_l2: tuple[str, ...]
    """The operands that the L2 does not keep."""


def whole_k_plan(
    p: Problem, cube: CubeTiles, past_l2: tuple[str, ...] = (), out_rows: int = 0
) -> WholeKPlan:
    """The plan with these tiles, for the kernel that was chosen."""
    return WholeKPlan(
        block_dim=cube.cores,
        template=p.choice.template,
        reason=p.choice.reason,
        cube=cube,
        out_rows=out_rows,
        past_l2=past_l2,
    )


def build(spec: DeviceSpec, p: Problem, plan: WholeKPlan) -> tuple[Block, ...]:
    """One block a core; cores share the bodies of their programs."""
    kind = "ai_core" if spec.arch == "2002" else "aic"
    kernel = (CoupledMatmul if spec.arch == "2002" else CubeMatmul)(spec, p, plan)
    bindings = {name: Binding(name) for name in (*(x.name for x in p.inputs), "output")}
    bindings |= {name: Binding(name, is_cached=False) for name in plan.past_l2}

    pieces = Pieces.of(plan.cube, p.product)
    output = output_of_all(p.product, pieces, p.output.element)
    bias = None if p.bias is None else columns_of_all(p.product, pieces, p.bias)
    steps = product_steps(kernel.writer, p.product, pieces, kernel.block, output, bias)
    return launch(kernel.builder, kind, *steps, bound=lambda _: bindings)


class CubeMatmul:
    """The kernel of a cube core: the fixpipe stores."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: WholeKPlan) -> None:
        tile = base_tile(plan.cube)
        self.builder = Builder("matmul", spec.cores["aic"], spec.sync, alone=True)
        a = GmFeed(self.builder, gm_matrix_a(p.product))
        b = GmFeed(self.builder, gm_matrix_b(p.product))
        # ops-nn@e5c3fa9, mat_mul_base_kernel.h: the configuration of the Matmul API has the unit
        # flag, and no k stagger. The closed kernel of v2 is assumed to have it, too.
        self.writer = CubeWriter(self.builder, tile, a, b, p.product.k, unit_flag=True)
        self.tables = Tables(self.builder, tile.n, None if p.bias is None else p.bias.element)

    def block(self, x1: GmTile, x2: GmTile, output: GmView, bias: GmView | None) -> None:
        """`output (rows, columns) = x1 (rows, k) @ x2 (k, columns) + bias (columns,)`."""
        start = None if bias is None else self.tables.take_bias(bias)
        # (rows, k) @ (k, columns), fp32 sums that start from the bias or from zero
        slot = self.writer.product(x1.extent, x2.extent, x1.k, bias=start)
        self.tables.drop_bias()
        # L0C holds (columns / 16, rows_padded, 16) in fp32.
        rows_padded = align_up(output.rows, FRACTAL_ROWS)
        sums = slot.of(FLOAT32, rows_padded * align_up(output.columns, FRACTAL_ROWS))
        size = output.rows, output.columns, rows_padded
        mode: QuantMode = "none" if output.dtype is FLOAT32 else "cast"
        self.writer.drain(slot, Fixpipe(output.operand, sums, *size, output.dtype, mode))


class CoupledMatmul:
    """The kernel of a coupled core: operands and results go through the unified buffer."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: WholeKPlan) -> None:
        tile = base_tile(plan.cube)
        self.builder = Builder("matmul", spec.cores["ai_core"], spec.sync)
        a, b = gm_matrix_a(p.product), gm_matrix_b(p.product)
        left: Feed = NdFeed(self.builder, spec, a)
        is_nd = b.layout == "ND"
        # FRACTAL_NZ is the layout of L1 already: mte2 copies it there directly.
        right: Feed = NdFeed(self.builder, spec, b) if is_nd else GmFeed(self.builder, b)
        self.writer = CubeWriter(self.builder, tile, left, right, p.product.k, "vector")
        self.out = NdOut(self.builder, spec, tile.m, tile.n, p.output.element)
        self.row: RowTable | None = None
        if p.bias is not None:
            self.row = RowTable(self.builder, spec, tile.n, p.bias.element, FLOAT32)

    def block(self, x1: GmTile, x2: GmTile, output: GmView, bias: GmView | None) -> None:
        """`output (rows, columns) = x1 (rows, k) @ x2 (k, columns) + bias (columns,)`."""
        rows_padded = align_up(output.rows, FRACTAL_ROWS)
        preload = None
        if bias is not None and self.row is not None:
            # There is no bias table: the sums start from rows of bias in L0C.
            preload = partial(self.row.spread, bias, rows=rows_padded)
        slot = self.writer.product(x1.extent, x2.extent, x1.k, preload=preload)
        # L0C (columns / 16, rows_padded, 16) fp32 -> (rows, columns) fp16
        sums: Local = slot.of(FLOAT32, rows_padded * align_up(output.columns, FRACTAL_ROWS))
        self.out.drain(sums, output, "cast")
        self.writer.release(slot)
