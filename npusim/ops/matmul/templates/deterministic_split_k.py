"""deterministic_split_k: the cores share k, and vector cores add their sums in core order.

The chunks of k are distributed in consecutive runs. All cores compute the same 384 rows (or
columns) of the output at a time, each with its own chunks, into a slice of memory that no other
core writes: the first chunk's sums are stored, the others added. After all cores have synchronised,
every vector core adds some rows of all slices, core after core, and rounds them. Slices are double
buffered, so that the cube cores work on the next rows meanwhile (ops-nn@e5c3fa9 matmul/mat_mul_v3,
matmul_v3_base_tiling.cpp and mat_mul_deterministic_splitk_kernel.h).

Left out: slices with part of the columns, for which the L2 tiles are cut; operands that are first
converted to NZ; partial sums stored in NZ, if n is no multiple of 16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    Binding,
    Block,
    CoreSteps,
    CubeCore,
    GmView,
    GmViews,
    Piece,
    Pieces,
    Step,
    VectorCore,
    launch_mixed,
    pieces,
    share,
    sync_all,
)
from npusim.kernel.plane import REPEAT
from npusim.kernel.steps import Integers
from npusim.ops.matmul import k_split
from npusim.ops.matmul.check import Plan, Problem
from npusim.ops.matmul.k_split import BASE, STRIP
from npusim.ops.matmul.templates.strips import (
    Chunks,
    StripTiles,
    StripWriter,
    output_of,
    views_of,
)
from npusim.ops.matmul.traits import Chip

SUMMED, READ = 0, 1
"""Flags between a cube core and its vector cores: its slice is complete; slices were read."""
ALL_CORES = 2
"""Flag among the vector cores, and among the cube cores."""
SLOTS = 2
"""Slices per core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKPlan(Plan):
    """Strips of the output, for which every core computes its part of the sums."""

    tiles: StripTiles
    chunks: int
    """Chunks of k, which the cores share in consecutive runs."""


def tile(spec: DeviceSpec, p: Problem) -> SharedKPlan:
    """Consecutive chunks for as many cores as there are chunks."""
    f, chip = p.traits, Chip.of(spec)
    cores = k_split.cores_along_k(f, chip)
    is_wide = k_split.holds_columns(f)
    rows, columns = (f.m, STRIP) if is_wide else (STRIP, f.n)
    slice_bytes = FLOAT32.nbytes(min(rows, f.m) * min(columns, f.n))
    return SharedKPlan(
        **asdict(p.choice),
        block_dim=cores,
        is_mix=True,
        workspaces={"sums": SLOTS * cores * slice_bytes},
        tiles=StripTiles(
            m=BASE,
            n=BASE,
            k=BASE,
            held="b" if is_wide else "a",
            strip=STRIP,
            chunk_k=STRIP,
            piece_k=STRIP,
        ),
        chunks=ceil_div(f.k, STRIP),
    )


def build(spec: DeviceSpec, p: Problem, plan: SharedKPlan) -> tuple[Block, ...]:
    """Three blocks per group: a cube core and its two vector cores."""
    bound = {name: Binding(name) for name in (*p.names, "sums")}
    pr = p.product
    # The parts of the output in the order in which all cores compute them.
    if plan.tiles.held == "b":
        strips = [Piece(0, 0, n, pr.m, columns) for n, columns in pieces(pr.n, STRIP)]
    else:
        strips = [Piece(0, m, 0, rows, pr.n) for m, rows in pieces(pr.m, STRIP)]
    cube, vector = _cube_core(spec, p, plan, strips), _vector_core(spec, p, plan, strips)
    return launch_mixed(plan.block_dim, cube, vector, lambda _: bound)


def _slices(
    plan: SharedKPlan, strips: list[Piece], core: Integers | int, index: Integers, inside: Pieces
) -> GmViews:
    """The part *inside* of the sums of *core* for strip *index*, in fp32.

    Slices are `(2, cores, rows, columns)`, with the size of the first strip, which is the largest.
    """
    rows, columns = strips[0].rows, strips[0].columns
    sums = GmView.of("sums", FLOAT32, SLOTS * plan.block_dim * rows, columns)
    first = (index % SLOTS * plan.block_dim + core) * rows
    return GmViews.of(sums, first + inside.row, inside.column, inside.rows, inside.columns)


def _cube_core(spec: DeviceSpec, p: Problem, plan: SharedKPlan, strips: list[Piece]) -> CoreSteps:
    """The steps of a cube core: all strips, each core with its chunks of k."""
    # Only flags, not messages, go to the vector cores, so all of L1 is available.
    core = CubeCore(plan.template, spec, alone=True)
    writer = StripWriter(core, p, plan.tiles)
    runs = [share(plan.chunks, plan.block_dim, number) for number in range(plan.block_dim)]
    each = Pieces.dealt([[strip for strip in strips for _ in run] for run in runs])
    table = [(i, x, x == run.start) for run in runs for i in range(len(strips)) for x in run]
    index, chunk, is_first = np.array(table).T
    k = chunk * STRIP
    whole = replace(each, row=0 * each.row, column=0 * each.column)
    out = _slices(plan, strips, each.core, index, whole)
    chunks = Chunks(each, k, np.minimum(STRIP, p.product.k - k), out, is_first == 0)
    # A core's slice is read by vector cores of any group.
    waits = (is_first == 1) & (index >= SLOTS)
    ends = np.append(is_first[1:], 1) == 1
    wait = partial(core.cross_core_wait_flag, "group", "fixpipe", READ)
    meet = partial(sync_all, core, "fixpipe", "fixpipe", ALL_CORES)
    done = partial(core.cross_core_set_flag, "group", "fixpipe", SUMMED)
    steps = (
        Step(wait, (), each.core[waits], chunks.before[waits]),
        Step(meet, (), each.core[waits], chunks.before[waits]),
        *writer.steps(chunks),
        Step(done, (), each.core[ends], chunks.after[ends]),
    )
    return CoreSteps(core, steps)


def _vector_core(spec: DeviceSpec, p: Problem, plan: SharedKPlan, strips: list[Piece]) -> CoreSteps:
    """The steps of a vector core: its rows of every strip, summed over the cores and rounded."""
    core, cores = VectorCore(plan.template, spec), 2 * plan.block_dim
    # A quarter of the unified buffer each for the sums so far, for the results, and for either of
    # the two tiles that are loaded alternately.
    most = align_down(core.room_bytes("ub") // 4 // FLOAT32.nbytes(1), REPEAT)
    add = _adder(core, p, most)
    every = Pieces.dealt([strips] * cores)
    # An equal share of the rows for each vector core.
    each = -(-every.rows // cores)
    inside = np.minimum(every.core * each, every.rows)
    rows = np.minimum(each, every.rows - inside)
    own = replace(every, row=every.row + inside, rows=rows, inside=inside)
    tiles, of = own.cut(most, REPEAT)
    # The rows and columns of the tiles, relative to their strips.
    strip, index = every.select(of), own.index[of]
    place = replace(tiles, row=tiles.row - strip.row, column=tiles.column - strip.column)
    slices = [_slices(plan, strips, other, index, place) for other in range(plan.block_dim)]
    wait = partial(core.cross_core_wait_flag, "group", "mte2", SUMMED)
    meet = partial(sync_all, core, "mte2", "mte2", ALL_CORES)
    release = partial(core.cross_core_set_flag, "group", "mte2", READ)
    order, reads = 3 * np.arange(own.core.size), own.index + SLOTS < len(strips)
    steps = (
        Step(wait, (), own.core, order),
        Step(meet, (), own.core, order),
        Step(add, (views_of(output_of(p), tiles), *slices), tiles.core, 3 * of + 1),
        Step(release, (), own.core[reads], order[reads] + 2),
    )
    return CoreSteps(core, steps)


def _adder(core: VectorCore, p: Problem, most: int) -> Callable[..., None]:
    """The stage that adds tiles of at most *most* elements of all slices, and rounds them."""
    tiles_in, sums = core.vecin(FLOAT32, most, depth=2), core.tile(FLOAT32, most)
    results = core.vecout(p.output.element, most, depth=2)

    def add(output: GmView, *slices: GmView) -> None:
        """Write the rounded sum of *slices* to *output*, all of them `(rows, columns)`."""
        columns = align_up(output.columns, REPEAT)
        count = output.rows * columns
        # (rows, columns) fp32 of each core, rows padded to full repeats
        first = core.load_rows(tiles_in, slices[0], pitch=columns)
        total = first[:count]
        for part in slices[1:]:
            loaded = core.load_rows(tiles_in, part, pitch=columns)
            so_far, total = total, sums[:count]
            core.add(total, so_far, loaded[:count])
            if part is slices[1]:
                tiles_in.free(first)
            tiles_in.free(loaded)
        # fp32 -> the type of the output
        result = results.alloc()
        core.cast(result[:count], total, "rint")
        if len(slices) == 1:
            tiles_in.free(first)
        core.store_rows(results, result, output, pitch=columns)

    return add
