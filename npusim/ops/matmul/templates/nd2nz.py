"""nd2nz: vector cores turn x1, x2 or both into FRACTAL_NZ, then the cube cores do as base does.

A tile of rows goes through the unified buffer, half of which holds it as rows and half as NZ, where
a column of blocks follows the other. x1 is turned before x2. The cube cores wait until all vector
cores are done with both (ops-nn@e5c3fa9 matmul/mat_mul_v3/op_kernel, mat_mul_nd2nz.h and
mat_mul_unaligned_base_kernel.h).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from npusim.data.dtypes import FLOAT16, UINT8
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Copy, Duplicate, Local
from npusim.kernel.blocks import columns_of, gm_matrix_a, gm_matrix_b, output_of, write_pieces
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube import GmMatrix
from npusim.kernel.launch import mixed_launch
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.tiles import Piece, work
from npusim.kernel.views import GmView, load, repeat, store
from npusim.ops.matmul.contract import Problem
from npusim.ops.matmul.nz_pass import Side, conflicts, turned
from npusim.ops.matmul.templates import base
from npusim.ops.matmul.templates.whole_k import CubeMatmul, WholeKPlan
from npusim.ops.matmul.traits import Chip

__all__ = ["TurningPlan", "build", "tile"]

TURNED, ALL_VECTOR_CORES = 0, 1
"""Flags: to the cube core of a group, and among the vector cores."""
NARROW_BYTES = 2048
"""Rows up to here are turned whole."""
WIDTHS_BYTES = (6144, 4096, 2048)
"""What is tried of wider ones."""
CONFLICT_TILE = (96, 512)
"""Rows and columns where x2 is turned for the banks' sake."""


@dataclass(frozen=True, slots=True)
class RowTile:
    """What a vector core turns at a time."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurningPlan(WholeKPlan):
    """That of base, and what is turned before."""

    turned: dict[Side, RowTile]


def tile(spec: DeviceSpec, p: Problem) -> TurningPlan:
    """As base, with the tiles of the pass; whole fractals of rows are assumed."""
    plan = base.tile(spec, p)
    chip, vector_cores = Chip.of(spec), 2 * plan.block_dim
    room_bytes = (spec.cores["aiv"].ub_bytes or 0) // 2
    tiles: dict[Side, RowTile] = {}
    for side in turned(p.traits, chip):
        matrix = _matrix(p, side)
        if side == "x2" and conflicts(p.traits, chip):
            tiles[side] = RowTile(*CONFLICT_TILE)
        else:
            tiles[side] = _row_tile(matrix, room_bytes, vector_cores)
    return TurningPlan(
        block_dim=plan.block_dim,
        template=plan.template,
        reason=plan.reason,
        is_mix=True,
        workspaces={f"{side}_nz": _nz_bytes(_matrix(p, side)) for side in tiles},
        cube=plan.cube,
        out_rows=plan.out_rows,
        past_l2=tuple(name for name in plan.past_l2 if name not in tiles),
        turned=tiles,
    )


def _matrix(p: Problem, side: Side) -> GmMatrix:
    return gm_matrix_a(p.product) if side == "x1" else gm_matrix_b(p.product)


def _nz_bytes(matrix: GmMatrix) -> int:
    return replace(matrix, layout="FRACTAL_NZ").matrix_bytes


def _row_tile(matrix: GmMatrix, room_bytes: int, vector_cores: int) -> RowTile:
    """What half of the unified buffer takes, so that the cores get equal shares."""
    width, outer = align_up(matrix.columns, c0(matrix.dtype)), matrix.rows
    if matrix.dtype.nbytes(width) <= NARROW_BYTES:
        most = max(FRACTAL_ROWS, align_down(room_bytes // matrix.dtype.nbytes(width), FRACTAL_ROWS))
        rounds = ceil_div(outer, most * vector_cores)
        rows = align_up(ceil_div(outer, rounds * vector_cores), FRACTAL_ROWS)
        return RowTile(min(rows, most), width)
    best, most_left = RowTile(0, 0), -1
    for width_bytes in WIDTHS_BYTES:
        columns = width_bytes * 8 // matrix.dtype.bits
        highest = align_down(room_bytes // width_bytes, FRACTAL_ROWS)
        for rows in range(highest, 0, -FRACTAL_ROWS):
            left = ceil_div(outer, rows) * ceil_div(matrix.columns, columns) % vector_cores
            if left == 0:
                return RowTile(rows, columns)
            if left > most_left:
                best, most_left = RowTile(rows, columns), left
    return best


# ---- programs ----


def build(spec: DeviceSpec, p: Problem, plan: TurningPlan) -> tuple[Block, ...]:
    """Three blocks a group: a cube core and its two vector cores."""
    bindings = {name: Binding(name) for name in (*(x.name for x in p.inputs), "output")}
    for side in plan.turned:
        # The cube knows the NZ of an operand by the operand's name, vector cores its rows by _nd.
        bindings |= {f"{side}_nd": Binding(side), side: Binding(f"{side}_nz")}
    bindings |= {name: Binding(name, is_cached=False) for name in plan.past_l2}
    nz = replace(
        p.product,
        fractal_a="x1" in plan.turned,
        fractal_b=p.product.fractal_b or "x2" in plan.turned,
    )
    cube, vector = _CubeKernel(spec, replace(p, product=nz), plan), _VectorKernel(spec, p, plan)
    shares = work(plan.cube, nz)
    return mixed_launch(
        plan.block_dim,
        lambda _: bindings,
        lambda group: cube.program(shares[group]),
        lambda group, half: vector.program(2 * group + half),
    )


class _CubeKernel:
    """What a cube core does: its blocks, when both operands are there."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: TurningPlan) -> None:
        self._p, self._kernel = p, CubeMatmul(spec, p, plan)

    def program(self, share: tuple[Piece, ...]) -> Program:
        kernel, p = self._kernel, self._p
        builder = kernel.core
        repeat(builder, builder.cross_core_wait_flag, "group", "mte2", TURNED)

        def arguments(_: int, piece: Piece) -> tuple[GmView | None, ...]:
            bias = None if p.bias is None else columns_of(p.product, piece, p.bias)
            return output_of(p.product, piece, p.output.element), bias

        write_pieces(builder, kernel.cube, p.product, share, kernel.block, arguments)
        return builder.build()


class _VectorKernel:
    """What a vector core does: its tiles of the operands that are turned."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: TurningPlan) -> None:
        self._p, self._plan = p, plan
        # No messages go to the cube core, only a flag: the whole buffer, in two halves.
        self._builder = Builder(plan.template, spec.cores["aiv"], spec.sync, alone=True)
        half_bytes = self._builder.room_bytes("ub") // 2
        self._rows = self._builder.queue("ub", half_bytes, "mte2", "vector")
        self._nz = self._builder.queue("ub", half_bytes, "vector", "mte3")

    def program(self, core: int) -> Program:
        builder = self._builder
        for side, size in self._plan.turned.items():
            matrix = _matrix(self._p, side)
            for nd, nz in _tiles(matrix, size, core, 2 * self._plan.block_dim):
                repeat(builder, self._turn, nd, nz)
        repeat(builder, sync_all, builder, "mte3", "mte3", ALL_VECTOR_CORES, TURNED)
        return builder.build()

    def _turn(self, nd: GmView, nz: GmView) -> None:
        """*nd* `(rows, columns)` to *nz* `(blocks, rows_padded x 32)` bytes."""
        builder, blocks = self._builder, nz.rows
        rows_padded, pitch = align_up(nd.rows, FRACTAL_ROWS), blocks
        slot = load(builder, self._rows, nd, pitch=pitch * c0(nd.dtype))
        if rows_padded > nd.rows:
            # Rows that fill the last fractal are zero.
            count = (rows_padded - nd.rows) * pitch * BLOCK_BYTES // 2
            below = slot.of(FLOAT16, count, nd.rows * pitch * BLOCK_BYTES)
            step(builder, Duplicate(below, 0.0))
        out = self._nz.alloc()
        # (rows_padded, blocks) blocks of 32 bytes -> (blocks, rows_padded), a column a Copy
        for block in range(blocks):
            count = rows_padded * BLOCK_BYTES // 2
            offset = slot.offset_bytes + block * BLOCK_BYTES
            column = Local("ub", offset, FLOAT16, count, pitch, 8 * pitch)
            builder.emit(Copy(out.of(FLOAT16, count, block * rows_padded * BLOCK_BYTES), column))
        self._rows.free(slot)
        store(builder, self._nz, out, nz)


def _tiles(
    matrix: GmMatrix, size: RowTile, core: int, cores: int
) -> Iterator[tuple[GmView, GmView]]:
    """The tiles of *matrix* that *core* of *cores* turns, as rows and as NZ.

    They are dealt out in turn, those of the first rows first.
    """
    fractals = replace(matrix, layout="FRACTAL_NZ")
    nd = GmView.of(f"{matrix.name}_nd", matrix.dtype, matrix.rows, matrix.columns)
    column_bytes = fractals.nz_stride_bytes
    blocks = ceil_div(matrix.columns, c0(matrix.dtype))
    nz = GmView.of(matrix.name, UINT8, blocks, column_bytes)
    tiles_down, tiles_across = (
        tuple(pieces(extent, step))
        for extent, step in ((matrix.rows, size.rows), (matrix.columns, size.columns))
    )
    for index in range(core, len(tiles_down) * len(tiles_across), cores):
        row, rows = tiles_down[index // len(tiles_across)]
        column, columns = tiles_across[index % len(tiles_across)]
        down = slice(row * BLOCK_BYTES, (row + align_up(rows, FRACTAL_ROWS)) * BLOCK_BYTES)
        first, last = column // c0(matrix.dtype), ceil_div(column + columns, c0(matrix.dtype))
        yield nd[row : row + rows, column : column + columns], nz[first:last, down]
