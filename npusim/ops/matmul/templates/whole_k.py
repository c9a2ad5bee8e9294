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
from npusim.kernel.ai_core import AiCore, NdFeed, NdOut, RowTable
from npusim.kernel.blocks import (
    base_tile,
    columns_of,
    gm_matrix_a,
    gm_matrix_b,
    output_of,
    write_pieces,
)
from npusim.kernel.cube_core import CubeCore
from npusim.kernel.matmul import Matmul
from npusim.kernel.matrices import GmTile
from npusim.kernel.program import Binding, Block
from npusim.kernel.tiles import CubeTiles, Piece, work
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

    def arguments(_: int, piece: Piece) -> tuple[GmView | None, ...]:
        bias = None if p.bias is None else columns_of(p.product, piece, p.bias)
        return output_of(p.product, piece, p.output.element), bias

    blocks = []
    for core, pieces in enumerate(work(plan.cube, p.product)):
        write_pieces(kernel.core, kernel.cube, p.product, pieces, kernel.block, arguments)
        blocks.append(Block(core, kind, kernel.core.build(), bindings))
    return tuple(blocks)


class CubeMatmul:
    """The kernel of a cube core: the fixpipe stores."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: WholeKPlan) -> None:
        self.core = CubeCore("matmul", spec, alone=True)
        bias = None if p.bias is None else p.bias.element
        a, b = gm_matrix_a(p.product), gm_matrix_b(p.product)
        # ops-nn@e5c3fa9, mat_mul_base_kernel.h: the configuration of the Matmul API has the unit
        # flag, and no k stagger. The closed kernel of v2 is assumed to have it, too.
        self.cube = Matmul(
            self.core, base_tile(plan.cube), a, b, p.product.k, bias=bias, unit_flag=True
        )

    def block(self, x1: GmTile, x2: GmTile, output: GmView, bias: GmView | None) -> None:
        """`output (rows, columns) = x1 (rows, k) @ x2 (k, columns) + bias (columns,)`."""
        # (rows, k) @ (k, columns), fp32 sums that start from the bias or from zero
        sums = self.cube.multiply(x1.extent, x2.extent, x1.k, bias=bias)
        self.cube.fixpipe(output, sums)


class CoupledMatmul:
    """The kernel of a coupled core: operands and results go through the unified buffer."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: WholeKPlan) -> None:
        tile = base_tile(plan.cube)
        self.core = AiCore("matmul", spec)
        a, b = gm_matrix_a(p.product), gm_matrix_b(p.product)
        left = NdFeed(self.core, a)
        is_nd = b.layout == "ND"
        # FRACTAL_NZ is the layout of L1 already: mte2 copies it there directly.
        right = NdFeed(self.core, b) if is_nd else b
        self.cube = Matmul(self.core, tile, left, right, p.product.k, "vector")
        self.out = NdOut(self.core, tile.m, tile.n, p.output.element)
        self.row: RowTable | None = None
        if p.bias is not None:
            self.row = RowTable(self.core, tile.n, p.bias.element, FLOAT32)

    def block(self, x1: GmTile, x2: GmTile, output: GmView, bias: GmView | None) -> None:
        """`output (rows, columns) = x1 (rows, k) @ x2 (k, columns) + bias (columns,)`."""
        preload = None
        if bias is not None and self.row is not None:
            # There is no bias table: the sums start from rows of bias in L0C.
            preload = partial(self.row.spread, bias, rows=align_up(output.rows, FRACTAL_ROWS))
        sums = self.cube.multiply(x1.extent, x2.extent, x1.k, preload=preload)
        # L0C (columns / 16, rows_padded, 16) fp32 -> (rows, columns) fp16
        self.out.store(output, sums)
        self.cube.free(sums)
