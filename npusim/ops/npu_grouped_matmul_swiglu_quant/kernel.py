"""The programs of npu_grouped_matmul_swiglu_quant.

Cube cores write the int32 sums of a chunk of rows into a workspace; when all of them are done, the
vector cores take the rows, evenly shared. Of two chunks in the workspace one is made while the
other is read (ops-transformer@c29bc10 gmm/grouped_matmul_swiglu_quant/op_kernel).
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, INT4, INT8, INT32, INT64, UINT64
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe, ScalarLoadGlobal
from npusim.kernel.builder import Builder
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube import CubeWriter, GmFeed, GmMatrix, GmTile
from npusim.kernel.cube_core import CubeCore
from npusim.kernel.launch import mixed_launch
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, repeat
from npusim.ops._int4_matmul import DigitSplitter, ScaledGroups, digits_of
from npusim.ops.npu_grouped_matmul_swiglu_quant.contract import Problem
from npusim.ops.npu_grouped_matmul_swiglu_quant.rows import RowKernel
from npusim.ops.npu_grouped_matmul_swiglu_quant.tiling import (
    TILE,
    TILE_OF_INT4,
    Plan,
    Tile,
    chunks,
    tiles_of_cores,
)

__all__ = ["build", "read_ends"]

OP = "npu_grouped_matmul_swiglu_quant"
ALL_CUBES, MADE, ALL_VECTORS, READ, SPLIT = range(5)
"""Flags: all cube cores wait for each other and tell their vector cores, and the other way round;
the digits of x are there."""
ONCE = "weight_once"
"""The weight as groups know it that read it once only, and so past the L2."""
LINE_BYTES = 64
"""Of the scalar unit's data cache."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Three blocks a group: a cube core and its two vector cores."""
    names = (*(x.name for x in p.inputs), *p.outputs, *plan.workspaces)
    bound = {name: Binding(name) for name in names} | {ONCE: Binding("weight", is_cached=False)}
    cube = (_DigitCubeCore if p.is_int4 else _CubeCore)(spec, p, plan)
    vector = _VectorCore(spec, p, plan)
    return mixed_launch(
        plan.block_dim,
        lambda _: bound,
        cube.program,
        lambda group, half: vector.program(2 * group + half),
    )


def read_ends(builder: Builder, p: Problem) -> None:
    """Read group_list from end to end, as every core does, busy or not."""
    for index in range(p.experts):
        end = GmView.vector("group_list", INT64, 1).shifted_to(INT64.nbytes(index))
        repeat(builder, _read, builder, end, end.offset_bytes % LINE_BYTES != 0)


def _read(builder: Builder, end: GmView, is_cached: bool) -> None:
    builder.emit(ScalarLoadGlobal("end", end.operand, INT64, is_cached))


class _CubeCore:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.plan = p, plan
        self.builder = CubeCore(OP, spec)
        self.x = GmMatrix("x", INT8, p.m, p.k, k_is_first=False)
        self.feeds = GmFeed(self.builder, self.x), GmFeed(self.builder, self.weight("weight"))
        self.writer = CubeWriter(self.builder, TILE, *self.feeds, p.k)

    def weight(self, name: str) -> GmMatrix:
        return GmMatrix(name, INT8, self.p.k, self.p.n, k_is_first=True, layout="FRACTAL_NZ")

    def program(self, core: int) -> Program:
        """Make the sums of the blocks of core number *core*, a chunk after the other."""
        builder, p, plan = self.builder, self.p, self.plan
        self._begin()
        for chunk in chunks(p, plan):
            if chunk.number >= plan.buffers:
                builder.cross_core_wait_flag("group", "fixpipe", READ)
            first = chunk.number % plan.buffers * plan.chunk_rows - chunk.first
            read_ends(builder, p)
            for tile in tiles_of_cores(p, plan, chunk)[core]:
                self._write(tile, first + tile.row)
            sync_all(builder, "fixpipe", "fixpipe", ALL_CUBES, MADE)
        return builder.build()

    def _begin(self) -> None:
        """Wait for what must be there before the first block."""

    def _write(self, tile: Tile, row: int) -> None:
        """The sums of *tile* to row number *row* of the workspace, and on."""
        p, plan = self.p, self.plan
        weight = self.weight(ONCE if tile.is_alone else "weight")
        sums = GmView.of("sums", INT32, plan.buffers * plan.chunk_rows, p.n)
        columns = slice(tile.column, tile.column + tile.columns)
        repeat(
            self.builder,
            self._block,
            self.x.tile(tile.row, tile.rows),
            weight.tile(tile.column, tile.columns, matrix=tile.expert),
            sums[row : row + tile.rows, columns],
            weight,
        )

    def _block(self, x: GmTile, weight: GmTile, sums: GmView, matrix: GmMatrix) -> None:
        """*sums* `(rows, columns)` of (rows, k) times (k, columns)."""
        self.feeds[1].gm_matrix = matrix
        slot = self.writer.product(x.extent, weight.extent, x.k)
        rows_padded = align_up(sums.rows, FRACTAL_ROWS)
        total = slot.of(INT32, rows_padded * align_up(sums.columns, FRACTAL_ROWS))
        # L0C (columns / 16, rows_padded, 16) int32 -> (rows, columns) int32
        op = Fixpipe(sums.operand, total, sums.rows, sums.columns, rows_padded, INT32)
        self.writer.drain(slot, op)


class _DigitCubeCore(_CubeCore):
    """The kernel of a cube core where x is written as two int4 a number."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.plan = p, plan
        self.builder = CubeCore(OP, spec)
        self.x = GmMatrix("digits", INT4, 2 * p.m, p.k, k_is_first=False)
        self.sums = ScaledGroups(
            *(self.builder, TILE_OF_INT4, self.x, self.weight("weight"), p.k // p.groups_of_k),
            signals=False,
        )

    def weight(self, name: str) -> GmMatrix:
        return GmMatrix(name, INT4, self.p.k, self.p.n, k_is_first=True, layout="FRACTAL_NZ")

    def _begin(self) -> None:
        self.builder.cross_core_wait_flag("group", "mte2", SPLIT)

    def _write(self, tile: Tile, row: int) -> None:
        p, plan, each = self.p, self.plan, self.p.groups_of_k
        weight = self.weight(ONCE if tile.is_alone else "weight")
        sums = GmView.of("sums", FLOAT16, 2 * plan.buffers * plan.chunk_rows, p.n)
        words = GmView.of("weight_scale", UINT64, p.experts * each, p.n)
        columns = slice(tile.column, tile.column + tile.columns)
        repeat(
            self.builder,
            self.sums.block,
            self.x.tile(2 * tile.row, 2 * tile.rows),
            weight.tile(tile.column, tile.columns, matrix=tile.expert),
            words[tile.expert * each : (tile.expert + 1) * each, columns],
            sums[2 * row : 2 * (row + tile.rows), columns],
            False,
            (self.x, weight),
        )


class _VectorCore:
    """The kernel of a vector core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.plan = p, plan
        self.builder = VectorCore(OP, spec)
        self.splitter = DigitSplitter(self.builder, p.k) if p.is_int4 else None
        self.builder.reset_buffers()
        self.rows = RowKernel(self.builder, p, plan)

    def program(self, core: int) -> Program:
        """Epilogue the rows of core number *core*, a chunk after the other."""
        builder, p, plan = self.builder, self.p, self.plan
        every = chunks(p, plan)
        if self.splitter is not None:
            self.splitter.prepare()
            x, digits = GmView.of("x", INT8, p.m, p.k), digits_of(p.m, p.k)
            self.splitter.rows(x, digits, core, 2 * plan.block_dim)
            builder.end_stage()
            sync_all(builder, "mte3", "mte2", ALL_VECTORS, SPLIT)
        read_ends(builder, p)
        for chunk in every:
            builder.cross_core_wait_flag("group", "mte2", MADE)
            self.rows.write(chunk, core)
            if chunk.number + plan.buffers < len(every):
                sync_all(builder, "mte2", "mte2", ALL_VECTORS, READ)
        return builder.build()
