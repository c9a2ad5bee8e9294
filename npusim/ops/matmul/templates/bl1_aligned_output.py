"""bl1_aligned_output: x2 stays in L1, and vector cores write the rows of a ragged narrow output.

The fixpipe writes a block of rows, each filled up to 512 bytes, into one of two slots in global
memory; the two vector cores of the group copy half of the rows each to where they belong, without
what fills them up, while the cube core makes the next block (ops-nn@e5c3fa9 matmul/mat_mul_v3,
matmul_v3_base_tiling.cpp and mat_mul_optimized_fixpipe_algorithm.h).
"""

from __future__ import annotations

from dataclasses import replace

from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.kernel.blocks import columns_of, write_pieces
from npusim.kernel.builder import Builder
from npusim.kernel.cube import GmTile
from npusim.kernel.launch import mixed_launch
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.tiles import Piece
from npusim.kernel.views import GmView, fill, repeat, store
from npusim.ops.matmul.contract import Problem
from npusim.ops.matmul.templates import base
from npusim.ops.matmul.templates.bl1_full_load import resident_columns
from npusim.ops.matmul.templates.whole_k import CubeMatmul, WholeKPlan

__all__ = ["build", "tile"]

FILLED, READ = 0, 1
"""Flags between a cube core and its vector cores: a block is in its slot; it was read."""
SLOTS = 2
ROW_BYTES = 512
TILE_ELEMENTS = 32768
"""What L0C holds of fp32."""
ROWS, MOST_ROWS = 128, 1024
"""Rows of a block are a multiple of the one; of the other L0A takes 16 of k."""


def tile(spec: DeviceSpec, p: Problem) -> WholeKPlan:
    """Blocks of all columns; that a vector core's share fits its buffer limits rows: assumed."""
    plan, pr = base.tile(spec, p), p.product
    columns = align_up(pr.n, FRACTAL_ROWS)
    size = p.output.element.nbytes(1)
    room = spec.cores["aiv"].usable_bytes("ub") // 4 // size
    most = min(align_down(min(TILE_ELEMENTS, room) // columns, ROWS), MOST_ROWS)
    rows = min(most, align_up(pr.m, FRACTAL_ROWS))
    cube = replace(plan.cube, base_m=rows, base_n=columns, l0c_depth=1)
    cube = resident_columns(spec, p, cube)
    cores = min(ceil_div(pr.m, cube.base_m), spec.cores["aic"].count)
    return replace(
        plan,
        block_dim=cores,
        is_mix=True,
        workspaces={"padded": cores * SLOTS * cube.base_m * ROW_BYTES},
        cube=replace(cube, cores=cores),
        past_l2=(),
    )


def build(spec: DeviceSpec, p: Problem, plan: WholeKPlan) -> tuple[Block, ...]:
    """Three blocks a group: a cube core and its two vector cores."""
    names = (*(operand.name for operand in p.inputs), "output", "padded")
    bindings = {name: Binding(name) for name in names}
    rows = pieces(p.product.m, plan.cube.base_m)
    blocks = [Piece(0, row, 0, count, p.product.n) for row, count in rows]
    shares = [tuple(blocks[core :: plan.block_dim]) for core in range(plan.block_dim)]
    cube, vector = _CubeKernel(spec, p, plan), _VectorKernel(spec, p, plan)
    return mixed_launch(
        plan.block_dim,
        lambda _: bindings,
        lambda group: cube.program(shares[group], group),
        lambda group, half: vector.program(shares[group], group, half),
    )


def _slot(p: Problem, plan: WholeKPlan, group: int, index: int, rows: int) -> GmView:
    """*rows* of the slot of block number *index* of *group*."""
    dtype = p.output.element
    height, width = SLOTS * plan.block_dim * plan.cube.base_m, ROW_BYTES * 8 // dtype.bits
    first = (group * SLOTS + index % SLOTS) * plan.cube.base_m
    return GmView.of("padded", dtype, height, width)[first : first + rows, : p.product.n]


class _CubeKernel:
    """What a cube core does: its blocks, into its two slots."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: WholeKPlan) -> None:
        self._p, self._plan, self._kernel = p, plan, CubeMatmul(spec, p, plan)

    def program(self, share: tuple[Piece, ...], group: int) -> Program:
        kernel, p = self._kernel, self._p

        def arguments(index: int, piece: Piece) -> tuple[GmView | bool | None, ...]:
            bias = None if p.bias is None else columns_of(p.product, piece, p.bias)
            return _slot(p, self._plan, group, index, piece.rows), bias, index >= SLOTS

        write_pieces(kernel.core, kernel.cube, p.product, share, self._block, arguments)
        return kernel.core.build()

    def _block(
        self, x1: GmTile, x2: GmTile, slot: GmView, bias: GmView | None, waits: bool
    ) -> None:
        """A block to *slot*, once it was read if it *waits*."""
        builder = self._kernel.core
        if waits:
            builder.cross_core_wait_flag("group", "fixpipe", READ)
        self._kernel.block(x1, x2, slot, bias)
        builder.cross_core_set_flag("group", "fixpipe", FILLED)


class _VectorKernel:
    """What a vector core does: it moves half of the rows of each block."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: WholeKPlan) -> None:
        self._p, self._plan = p, plan
        self._builder = Builder(plan.template, spec.cores["aiv"], spec.sync)
        # Half of the rows of a block, each filled up to whole blocks of 32 bytes.
        row_bytes = p.output.element.nbytes(align_up(p.product.n, FRACTAL_ROWS))
        nbytes = ceil_div(plan.cube.base_m, 2) * row_bytes
        self._rows = self._builder.queue("ub", nbytes, "mte2", "mte3", 2)

    def program(self, share: tuple[Piece, ...], group: int, half: int) -> Program:
        p, builder = self._p, self._builder
        output = GmView.of("output", p.output.element, p.product.m, p.product.n)
        for index, piece in enumerate(share):
            upper = ceil_div(piece.rows, 2)
            rows = slice(0, upper) if half == 0 else slice(upper, piece.rows)
            slot = _slot(p, self._plan, group, index, piece.rows)[rows, :]
            here = output[piece.row : piece.row + piece.rows, :][rows, :]
            repeat(builder, self._move, slot, here, index + SLOTS < len(share))
        return builder.build()

    def _move(self, slot: GmView, output: GmView, releases: bool) -> None:
        """Rows of *slot* to *output*; it is filled again if this *releases* it."""
        builder = self._builder
        builder.cross_core_wait_flag("group", "mte2", FILLED)
        # A block of one row leaves nothing to the second vector core.
        rows = self._rows.alloc() if slot.rows else None
        if rows is not None:
            fill(builder, rows, slot)
        if releases:
            builder.cross_core_set_flag("group", "mte2", READ)
        if rows is not None:
            store(builder, self._rows, rows, output)
