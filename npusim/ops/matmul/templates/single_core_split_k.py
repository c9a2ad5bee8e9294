"""single_core_split_k: every core sums up k in chunks, which meet in global memory in fp32.

The output is cut into as many rectangles as there are cores. A core takes a strip of rows of its
rectangle at a time, and for each chunk of k, in ascending order, all of the rectangle's columns:
the first chunk's sums are stored, the others are added. When a strip has all its chunks, the two
vector cores of the group round half of its rows each to the type of the output, while the cube
goes on with the next strip (ops-nn@e5c3fa9 matmul/mat_mul_v3, matmul_v3_base_tiling.cpp and
mat_mul_sc_splitk_kernel.h).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.blocks import columns_of, gm_matrix_a, gm_matrix_b
from npusim.kernel.builder import Builder
from npusim.kernel.launch import mixed_launch
from npusim.kernel.product import Product
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.tiles import Piece
from npusim.kernel.views import GmView, repeat
from npusim.ops.matmul import k_split
from npusim.ops.matmul.contract import Problem
from npusim.ops.matmul.k_split import BASE
from npusim.ops.matmul.templates.plan import Plan
from npusim.ops.matmul.templates.rounding import Rounder
from npusim.ops.matmul.templates.strips import StripTiles, StripWriter
from npusim.ops.matmul.traits import Chip

__all__ = ["SplitKPlan", "build", "tile"]

DONE = 0
"""Flag from a cube core to its vector cores: a strip is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitKPlan(Plan):
    """Rectangles of *rows* x *columns*, dealt to the cores in turn, columns first."""

    tiles: StripTiles
    rows: int
    columns: int


def tile(spec: DeviceSpec, p: Problem) -> SplitKPlan:
    """Split as the vendor's tiling does; which core gets which rectangle is assumed."""
    f, chip = p.traits, Chip.of(spec)
    cut, chunk = k_split.rectangles(f, chip), k_split.single_core_chunk_k(f, chip)
    strip = k_split.STRIP
    if k_split.is_flat(f, chip):
        strip = BASE if min(f.m, f.n) < strip else 2 * BASE
    return SplitKPlan(
        template=p.choice.template,
        reason=p.choice.reason,
        block_dim=min(cut.blocks, chip.aic),
        is_mix=True,
        workspaces={"sums": FLOAT32.nbytes(f.m * align_up(f.n, BASE))},
        tiles=StripTiles(m=BASE, n=BASE, k=BASE, strip=strip, chunk_k=chunk, piece_k=chunk),
        rows=cut.rows,
        columns=cut.columns,
    )


# ---- programs ----


def build(spec: DeviceSpec, p: Problem, plan: SplitKPlan) -> tuple[Block, ...]:
    """Three blocks a group: a cube core and its two vector cores."""
    pr = p.product
    names = (*(operand.name for operand in p.inputs), "output", "sums")
    bindings = {name: Binding(name) for name in names}
    # One strip of all rows reads each number of x2 once.
    bindings["x2"] = Binding("x2", is_cached=plan.tiles.strip < pr.m)
    cube, vector = _CubeKernel(spec, p, plan), _VectorKernel(spec, p)
    strips = [tuple(_strips(pr, plan, group)) for group in range(plan.block_dim)]
    return mixed_launch(
        plan.block_dim,
        lambda _: bindings,
        lambda group: cube.program(strips[group]),
        lambda group, half: vector.program(strips[group], half),
    )


def _strips(pr: Product, plan: SplitKPlan, core: int) -> Iterator[Piece]:
    """The strips of *core*, in order."""
    across = ceil_div(pr.n, plan.columns)
    for block in range(core, across * ceil_div(pr.m, plan.rows), plan.block_dim):
        row, column = block // across * plan.rows, block % across * plan.columns
        rows, columns = min(plan.rows, pr.m - row), min(plan.columns, pr.n - column)
        for start, count in pieces(rows, plan.tiles.strip):
            yield Piece(0, row + start, column, count, columns)


def _sums_of(pr: Product, piece: Piece) -> GmView:
    """The fp32 sums of *piece*; rows of the workspace are whole tiles."""
    sums = GmView.of("sums", FLOAT32, pr.m, align_up(pr.n, BASE))
    return sums[piece.row : piece.row + piece.rows, piece.column : piece.column + piece.columns]


class _CubeKernel:
    """What a cube core does: its strips, chunk after chunk."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: SplitKPlan) -> None:
        self._p, self._tiles = p, plan.tiles
        # No messages go to the vector cores, only flags: all of L1 is free.
        self._builder = Builder("single_core_split_k", spec.cores["aic"], spec.sync, alone=True)
        self._writer = StripWriter(self._builder, p, plan.tiles, p.product.k)

    def program(self, strips: tuple[Piece, ...]) -> Program:
        builder, pr = self._builder, self._p.product
        a, b = gm_matrix_a(pr), gm_matrix_b(pr)
        for piece in strips:
            sums = _sums_of(pr, piece)
            bias = None if self._p.bias is None else columns_of(pr, piece, self._p.bias)
            for k, count in pieces(pr.k, self._tiles.chunk_k):
                x1 = a.tile(piece.row, piece.rows, k, count)
                x2 = b.tile(piece.column, piece.columns, k, count)
                self._writer.write(x1, x2, sums, None if k else bias, is_added=k > 0)
            repeat(builder, builder.cross_core_set_flag, "group", "fixpipe", DONE)
        return builder.build()


class _VectorKernel:
    """What a vector core does: half of the rows of every strip."""

    def __init__(self, spec: DeviceSpec, p: Problem) -> None:
        self._p = p
        self._builder = Builder("single_core_split_k", spec.cores["aiv"], spec.sync)
        self._rounder = Rounder(self._builder, p.output.element)

    def program(self, strips: tuple[Piece, ...], half: int) -> Program:
        builder, pr = self._builder, self._p.product
        output = GmView.of("output", self._p.output.element, pr.m, pr.n)
        for piece in strips:
            repeat(builder, builder.cross_core_wait_flag, "group", "mte2", DONE)
            upper = ceil_div(piece.rows, 2)
            rows = slice(0, upper) if half == 0 else slice(upper, piece.rows)
            whole = output[piece.row : piece.row + piece.rows, piece.column :]
            sums = _sums_of(pr, piece)[rows, :]
            if sums.rows:
                self._rounder.write(sums, whole[rows, : piece.columns])
        return builder.build()
