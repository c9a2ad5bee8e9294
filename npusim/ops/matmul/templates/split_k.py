"""single_core_split_k and al1_split_k: every core sums chunks of k in global memory, in fp32.

The chunks of a core's part of the output are in ascending order: the first one's sums are stored,
the others added to them. When a part has all its chunks, the two vector cores of the group round
half of its rows each to the type of the output, while the cube continues with the next part
(ops-nn@e5c3fa9 matmul/mat_mul_v3).

single_core_split_k: the output is divided into as many rectangles as there are cores, and a core
processes a strip of rows of its rectangle at a time, with all of the rectangle's columns
(matmul_v3_base_tiling.cpp, mat_mul_sc_splitk_kernel.h).

al1_split_k: few rows of x1, of which L1 holds as much of k as fits, times a run of column tiles on
each core. For a chunk of k it loads all rows of x1 once, then x2 of one tile after the other, in
pieces. If one chunk is all of k, the cube core stores the output itself. Both operands bypass the
L2 (matmul_v3_sc_splitk_al1_fullload_tiling.cpp, mat_mul_sc_splitk_al1_fullload_kernel.h).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    Binding,
    Block,
    CoreSteps,
    CubeCore,
    GmView,
    Piece,
    Pieces,
    Step,
    VectorCore,
    launch_mixed,
    pieces,
    share,
)
from npusim.kernel.launch import launch
from npusim.kernel.plane import REPEAT
from npusim.ops.matmul import k_split
from npusim.ops.matmul.check import Plan, Problem
from npusim.ops.matmul.k_split import BASE
from npusim.ops.matmul.templates.strips import (
    Chunks,
    StripTiles,
    StripWriter,
    output_of,
    views_of,
)
from npusim.ops.matmul.traits import Chip

SUMMED = 0
"""Flag from a cube core to its vector cores: a part of the output is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitKPlan(Plan):
    """Rectangles of *rows* x *columns*, which cores process strip by strip."""

    tiles: StripTiles
    rows: int
    columns: int
    past_l2: tuple[str, ...]
    """The operands that bypass the L2."""
    sums_columns: int
    """Columns of the workspace of sums."""


def tile_single_core(spec: DeviceSpec, p: Problem) -> SplitKPlan:
    """Rectangles assigned to the cores in turn; which core gets which is assumed."""
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
        # A strip of all rows reads each element of x2 once.
        past_l2=() if strip < f.m else ("x2",),
        sums_columns=columns,
    )


def tile_al1(spec: DeviceSpec, p: Problem) -> SplitKPlan:
    """All rows in a tile, and a run of column tiles for each core; L0C holds one tile."""
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
    """A cube core per group and, if sums are in memory, its two vector cores."""
    names = (*p.names, *plan.workspaces)
    bound = {name: Binding(name, is_cached=name not in plan.past_l2) for name in names}
    strips = Pieces.dealt([_strips(p, plan, core) for core in range(plan.block_dim)])
    # Only flags, not messages, go to the vector cores, so all of L1 is available.
    core = CubeCore(plan.template, spec, alone=True)
    writer = StripWriter(core, p, plan.tiles)
    chunks = _chunks(p, plan, strips)
    steps = writer.steps(chunks)
    if not plan.is_mix:
        return launch(core, "aic", *steps, bound=lambda _: bound)
    # The last chunk of each strip completes it.
    is_last = chunks.k + chunks.count == p.product.k
    set_flag = partial(core.cross_core_set_flag, "group", "fixpipe", SUMMED)
    done = Step(set_flag, (), chunks.pieces.core[is_last], chunks.after[is_last])
    vector = _vector_core(spec, p, plan, strips)
    return launch_mixed(plan.block_dim, CoreSteps(core, (*steps, done)), vector, lambda _: bound)


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


def _chunks(p: Problem, plan: SplitKPlan, strips: Pieces) -> Chunks:
    """All chunks of k of each strip, the first one stored, the others added."""
    k, count = np.array(list(pieces(p.product.k, plan.tiles.chunk_k))).T
    each = strips.select(np.repeat(np.arange(strips.core.size), k.size))
    k, count = np.tile(k, strips.core.size), np.tile(count, strips.core.size)
    whole = _sums(p, plan) if plan.is_mix else output_of(p)
    return Chunks(each, k, count, views_of(whole, each), k > 0)


def _vector_core(spec: DeviceSpec, p: Problem, plan: SplitKPlan, strips: Pieces) -> CoreSteps:
    """The steps of a vector core: it rounds half of the rows of every strip, to nearest even.

    It processes as many whole rows as fit at a time; sums and results are double buffered.
    """
    core, element = VectorCore(plan.template, spec), p.output.element
    # Two halves of the unified buffer, each with some sums and their results.
    bytes_each = FLOAT32.nbytes(1) + element.nbytes(1)
    most = align_down(core.room_bytes("ub") // 2 // bytes_each, REPEAT)
    sums_in = core.vecin(FLOAT32, most, depth=2)
    results = core.vecout(element, most, depth=2)

    def round_rows(sums: GmView, output: GmView) -> None:
        columns = align_up(sums.columns, REPEAT)
        # (rows, columns) fp32, rows padded to full repeats -> the type of the output
        loaded = core.load_rows(sums_in, sums, pitch=columns)
        result, count = results.alloc(), sums.rows * columns
        core.cast(result[:count], loaded[:count], "rint")
        sums_in.free(loaded)
        core.store_rows(results, result, output, pitch=columns)

    halves = strips.halved((strips.rows + 1) // 2)
    tiles, of = halves.cut(most, REPEAT)
    arguments = views_of(_sums(p, plan), tiles), views_of(output_of(p), tiles)
    wait = partial(core.cross_core_wait_flag, "group", "mte2", SUMMED)
    number = np.arange(halves.core.size)
    awaited = Step(wait, (), halves.core, 2 * number)
    return CoreSteps(core, (awaited, Step(round_rows, arguments, tiles.core, 2 * of + 1)))
