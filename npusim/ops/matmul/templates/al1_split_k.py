"""al1_split_k: few rows of x1, of which L1 holds as much of k as fits, times all columns of a core.

Each core owns a run of tiles of columns. For a chunk of k it loads all rows of x1 once, then x2 of
one tile after the other, in pieces; the first chunk's sums are stored as fp32, the others are added
to them. At last the two vector cores of the group round half of the rows each. Where one chunk is
all of k, the cube core stores the output itself. Neither operand stays in the L2 (ops-nn@e5c3fa9
matmul/mat_mul_v3, matmul_v3_sc_splitk_al1_fullload_tiling.cpp and
mat_mul_sc_splitk_al1_fullload_kernel.h).
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.kernel.blocks import columns_of, gm_matrix_a, gm_matrix_b, output_of
from npusim.kernel.builder import Builder
from npusim.kernel.launch import mixed_launch, share
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.tiles import Piece
from npusim.kernel.views import GmView, repeat
from npusim.ops.matmul import k_split
from npusim.ops.matmul.contract import Problem
from npusim.ops.matmul.templates.plan import Plan
from npusim.ops.matmul.templates.rounding import Rounder
from npusim.ops.matmul.templates.strips import StripTiles, StripWriter
from npusim.ops.matmul.traits import Chip

__all__ = ["ResidentPlan", "build", "tile"]

SUMMED = 0
"""Flag from a cube core to its vector cores: its columns are complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentPlan(Plan):
    """Tiles of columns, of which each core gets a run."""

    tiles: StripTiles
    blocks: int
    """Tiles of columns."""


def tile(spec: DeviceSpec, p: Problem) -> ResidentPlan:
    """All rows in a tile; L0C holds one."""
    f, chip = p.traits, Chip.of(spec)
    sizes = k_split.resident_tiles(f, chip)
    rows, blocks = align_up(f.m, FRACTAL_ROWS), ceil_div(f.n, sizes.n)
    is_cut = sizes.chunk_k < f.k
    return ResidentPlan(
        template=p.choice.template,
        reason=p.choice.reason,
        block_dim=min(blocks, chip.aic),
        is_mix=is_cut,
        workspaces={"sums": FLOAT32.nbytes(f.m * f.n)} if is_cut else {},
        tiles=StripTiles(
            m=rows,
            n=sizes.n,
            k=sizes.k,
            strip=rows,
            chunk_k=sizes.chunk_k,
            piece_k=sizes.piece_k,
            l0c_depth=1,
        ),
        blocks=blocks,
    )


def build(spec: DeviceSpec, p: Problem, plan: ResidentPlan) -> tuple[Block, ...]:
    """A cube core and, where sums meet in memory, its two vector cores a group."""
    names = (*(operand.name for operand in p.inputs), "output", *plan.workspaces)
    bindings = {name: Binding(name, is_cached=name not in ("x1", "x2")) for name in names}
    cube = _CubeKernel(spec, p, plan)
    columns = [_columns(p, plan, core) for core in range(plan.block_dim)]
    if not plan.is_mix:
        return tuple(
            Block(core, "aic", cube.program(piece), bindings) for core, piece in enumerate(columns)
        )
    vector = _VectorKernel(spec, p, plan)
    return mixed_launch(
        plan.block_dim,
        lambda _: bindings,
        lambda group: cube.program(columns[group]),
        lambda group, half: vector.program(columns[group], half),
    )


def _columns(p: Problem, plan: ResidentPlan, core: int) -> Piece:
    """The columns of *core*, with all rows."""
    run = share(plan.blocks, plan.block_dim, core)
    first, last = (index * plan.tiles.n for index in (run.start, run.stop))
    return Piece(0, 0, first, p.product.m, min(last, p.product.n) - first)


def _sums_of(p: Problem, piece: Piece) -> GmView:
    """The fp32 sums of *piece*."""
    sums = GmView.of("sums", FLOAT32, p.product.m, p.product.n)
    return sums[:, piece.column : piece.column + piece.columns]


class _CubeKernel:
    """What a cube core does: its columns, chunk after chunk of k."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: ResidentPlan) -> None:
        self._p, self._plan = p, plan
        # No messages go to the vector cores, only flags: all of L1 is free.
        self._builder = Builder(plan.template, spec.cores["aic"], spec.sync, alone=True)
        self._writer = StripWriter(self._builder, p, plan.tiles, p.product.k)

    def program(self, piece: Piece) -> Program:
        builder, p, pr, is_cut = self._builder, self._p, self._p.product, self._plan.is_mix
        out = _sums_of(p, piece) if is_cut else output_of(pr, piece, p.output.element)
        bias = None if p.bias is None else columns_of(pr, piece, p.bias)
        for k, count in pieces(pr.k, self._plan.tiles.chunk_k):
            x1 = gm_matrix_a(pr).tile(0, pr.m, k, count)
            x2 = gm_matrix_b(pr).tile(piece.column, piece.columns, k, count)
            self._writer.write(x1, x2, out, None if k else bias, is_added=k > 0)
        if is_cut:
            repeat(builder, builder.cross_core_set_flag, "group", "fixpipe", SUMMED)
        return builder.build()


class _VectorKernel:
    """What a vector core does: half of the rows of its cube core's columns."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: ResidentPlan) -> None:
        self._p = p
        self._builder = Builder(plan.template, spec.cores["aiv"], spec.sync)
        self._rounder = Rounder(self._builder, p.output.element)

    def program(self, piece: Piece, half: int) -> Program:
        builder, p = self._builder, self._p
        repeat(builder, builder.cross_core_wait_flag, "group", "mte2", SUMMED)
        upper = ceil_div(piece.rows, 2)
        rows = slice(0, upper) if half == 0 else slice(upper, piece.rows)
        output = output_of(p.product, piece, p.output.element)[rows, :]
        if output.rows:
            self._rounder.write(_sums_of(p, piece)[rows, :], output)
        return builder.build()
