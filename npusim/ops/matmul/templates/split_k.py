"""single_core_split_k and al1_split_k: every core sums up chunks of k in global memory, in fp32.

The chunks of a core's part of the output come in ascending order: the first one's sums are stored,
the others are added to them. When a part has all its chunks, the two vector cores of the group
round half of its rows each to the type of the output, while the cube goes on with the next part
(ops-nn@e5c3fa9 matmul/mat_mul_v3).

single_core_split_k: the output is cut into as many rectangles as there are cores, and a core takes
a strip of rows of its rectangle at a time, with all of the rectangle's columns
(matmul_v3_base_tiling.cpp, mat_mul_sc_splitk_kernel.h).

al1_split_k: few rows of x1, of which L1 holds as much of k as fits, times a run of tiles of columns
on each core. For a chunk of k it loads all rows of x1 once, then x2 of one tile after the other, in
pieces. Where one chunk is all of k, the cube core stores the output itself. Neither operand stays
in the L2 (matmul_v3_sc_splitk_al1_fullload_tiling.cpp, mat_mul_sc_splitk_al1_fullload_kernel.h).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    Binding,
    Block,
    CubeCore,
    GmView,
    Piece,
    Program,
    VectorCore,
    mixed_launch,
    pieces,
    repeat,
    share,
)
from npusim.kernel.plane import REPEAT
from npusim.ops.matmul import k_split
from npusim.ops.matmul.check import Plan, Problem
from npusim.ops.matmul.k_split import BASE
from npusim.ops.matmul.templates.strips import StripTiles, StripWriter, output_of, part_of
from npusim.ops.matmul.traits import Chip

SUMMED = 0
"""Flag from a cube core to its vector cores: a part of the output is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitKPlan(Plan):
    """Rectangles of *rows* x *columns*, which cores take strip after strip."""

    tiles: StripTiles
    rows: int
    columns: int
    past_l2: tuple[str, ...]
    """The operands that the L2 does not keep."""
    sums_columns: int
    """Columns of the workspace of sums."""


def tile_single_core(spec: DeviceSpec, p: Problem) -> SplitKPlan:
    """Rectangles dealt to the cores in turn; which core gets which rectangle is assumed."""
    f, chip = p.traits, Chip.of(spec)
    cut, chunk = k_split.rectangles(f, chip), k_split.single_core_chunk_k(f, chip)
    strip = k_split.STRIP
    if k_split.is_flat(f, chip):
        strip = BASE if min(f.m, f.n) < strip else 2 * BASE
    # Rows of the workspace are whole tiles.
    columns = align_up(f.n, BASE)
    return SplitKPlan(
        **asdict(p.choice),
        block_dim=min(cut.blocks, chip.aic),
        is_mix=True,
        workspaces={"sums": FLOAT32.nbytes(f.m * columns)},
        tiles=StripTiles(m=BASE, n=BASE, k=BASE, strip=strip, chunk_k=chunk, piece_k=chunk),
        rows=cut.rows,
        columns=cut.columns,
        # One strip of all rows reads each element of x2 once.
        past_l2=() if strip < f.m else ("x2",),
        sums_columns=columns,
    )


def tile_al1(spec: DeviceSpec, p: Problem) -> SplitKPlan:
    """All rows in a tile, and a run of tiles of columns for each core; L0C holds one tile."""
    f, chip = p.traits, Chip.of(spec)
    sizes = k_split.resident_tiles(f, chip)
    rows, blocks = align_up(f.m, FRACTAL_ROWS), ceil_div(f.n, sizes.n)
    is_cut = sizes.chunk_k < f.k
    return SplitKPlan(
        **asdict(p.choice),
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
        rows=rows,
        columns=sizes.n,
        past_l2=("x1", "x2"),
        sums_columns=f.n,
    )


# ---- programs ----


def build(spec: DeviceSpec, p: Problem, plan: SplitKPlan) -> tuple[Block, ...]:
    """A cube core and, where sums meet in memory, its two vector cores a group."""
    names = (*p.names, *plan.workspaces)
    bound = {name: Binding(name, is_cached=name not in plan.past_l2) for name in names}
    strips = [_strips(p, plan, core) for core in range(plan.block_dim)]
    # No messages go to the vector cores, only flags: all of L1 is free.
    cube = CubeCore(plan.template, spec, alone=True)
    writer = StripWriter(cube, p, plan.tiles)
    programs = [_cube_program(cube, writer, p, plan, own) for own in strips]
    if not plan.is_mix:
        return tuple(Block(core, "aic", own, bound) for core, own in enumerate(programs))
    vector = VectorCore(plan.template, spec)
    rounder = Rounder(vector, p)
    return mixed_launch(
        plan.block_dim,
        lambda _: bound,
        lambda group: programs[group],
        lambda group, half: _vector_program(vector, rounder, p, plan, strips[group], half),
    )


def _strips(p: Problem, plan: SplitKPlan, core: int) -> list[Piece]:
    """The strips of *core*, in order."""
    pr, across = p.product, ceil_div(p.product.n, plan.columns)
    if plan.template == "al1_split_k":
        run = share(across, plan.block_dim, core)
        first, last = (index * plan.columns for index in (run.start, run.stop))
        return [Piece(0, 0, first, pr.m, min(last, pr.n) - first)]
    strips = []
    for block in range(core, across * ceil_div(pr.m, plan.rows), plan.block_dim):
        row, column = block // across * plan.rows, block % across * plan.columns
        rows, columns = min(plan.rows, pr.m - row), min(plan.columns, pr.n - column)
        for start, count in pieces(rows, plan.tiles.strip):
            strips.append(Piece(0, row + start, column, count, columns))
    return strips


def _sums(p: Problem, plan: SplitKPlan) -> GmView:
    """The fp32 sums in global memory."""
    return GmView.of("sums", FLOAT32, p.product.m, plan.sums_columns)


def _cube_program(
    core: CubeCore, writer: StripWriter, p: Problem, plan: SplitKPlan, strips: list[Piece]
) -> Program:
    """What a cube core does: its strips, chunk after chunk."""
    whole = _sums(p, plan) if plan.is_mix else output_of(p)
    for piece in strips:
        for k, count in pieces(p.product.k, plan.tiles.chunk_k):
            writer.write(piece, k, count, part_of(whole, piece), is_added=k > 0)
        if plan.is_mix:
            repeat(core, core.cross_core_set_flag, "group", "fixpipe", SUMMED)
    return core.build()


def _vector_program(
    core: VectorCore,
    rounder: Rounder,
    p: Problem,
    plan: SplitKPlan,
    strips: list[Piece],
    half: int,
) -> Program:
    """What a vector core does: half of the rows of every strip."""
    for piece in strips:
        repeat(core, core.cross_core_wait_flag, "group", "mte2", SUMMED)
        upper = ceil_div(piece.rows, 2)
        rows = slice(0, upper) if half == 0 else slice(upper, piece.rows)
        sums = part_of(_sums(p, plan), piece)[rows, :]
        if sums.rows:
            rounder.write(sums, part_of(output_of(p), piece)[rows, :])
    return core.build()


class Rounder:
    """Rounds the rows of one vector core to nearest even; sums and results are double buffered."""

    def __init__(self, core: VectorCore, p: Problem) -> None:
        """Claim all of the unified buffer."""
        self._core, element = core, p.output.element
        # Two halves, each with some sums and what becomes of them.
        bytes_each = FLOAT32.nbytes(1) + element.nbytes(1)
        self._count = align_down(core.room_bytes("ub") // 2 // bytes_each, REPEAT)
        self._sums = core.vecin(FLOAT32, self._count, depth=2)
        self._results = core.vecout(element, self._count, depth=2)

    def write(self, sums: GmView, output: GmView) -> None:
        """`output = sums`, both (rows, columns), as many whole rows at a time as fit."""
        for column, columns in pieces(sums.columns, self._count):
            rows_each = self._count // align_up(columns, REPEAT)
            across = slice(column, column + columns)
            for row, rows in pieces(sums.rows, rows_each):
                here = slice(row, row + rows), across
                repeat(self._core, self._round, sums[here], output[here])

    def _round(self, sums: GmView, output: GmView) -> None:
        columns = align_up(sums.columns, REPEAT)
        # (rows, columns) fp32, rows filled up to whole repeats -> the type of the output
        loaded = self._core.load_rows(self._sums, sums, pitch=columns)
        result, count = self._results.alloc(), sums.rows * columns
        self._core.cast(result[:count], loaded[:count], "rint")
        self._sums.free(loaded)
        self._core.store_rows(self._results, result, output, pitch=columns)
