"""deterministic_split_k: the cores share k, and vector cores add their sums in the cores' order.

The chunks of k go to the cores in runs. All cores make the same 384 rows (or columns) of the output
at a time, each with its own chunks, into a slice of memory that no other core writes: the first
chunk's sums are stored, the others added. When all cores are there, every vector core adds up some
rows of all slices, core after core, and rounds them. Slices are double buffered, so that the cube
cores work on the next rows meanwhile (ops-nn@e5c3fa9 matmul/mat_mul_v3, matmul_v3_base_tiling.cpp
and mat_mul_deterministic_splitk_kernel.h).

Left out: slices that hold part of the columns, for which the L2 tiles are cut; operands that are
turned into NZ first; partial sums kept in NZ, where n is no multiple of 16.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_down, align_up, ceil_div
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
    sync_all,
)
from npusim.kernel.plane import REPEAT
from npusim.ops.matmul import k_split
from npusim.ops.matmul.check import Plan, Problem
from npusim.ops.matmul.k_split import BASE, STRIP
from npusim.ops.matmul.templates.strips import StripTiles, StripWriter, output_of, part_of
from npusim.ops.matmul.traits import Chip

SUMMED, READ = 0, 1
"""Flags between a cube core and its vector cores: its slice is complete; slices were read."""
ALL_CORES = 2
"""Flag among the vector cores, and among the cube cores."""
SLOTS = 2
"""Slices of a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKPlan(Plan):
    """Strips of the output, of which every core makes its part of the sums."""

    tiles: StripTiles
    chunks: int
    """Of k, which the cores share in runs."""


def tile(spec: DeviceSpec, p: Problem) -> SharedKPlan:
    """Runs of chunks for as many cores as there are chunks for."""
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
    """Three blocks a group: a cube core and its two vector cores."""
    bound = {name: Binding(name) for name in (*p.names, "sums")}
    # No messages go to the vector cores, only flags: all of L1 is free.
    cube = CubeCore(plan.template, spec, alone=True)
    writer = StripWriter(cube, p, plan.tiles)
    vector = VectorCore(plan.template, spec)
    adder = _Adder(vector, p)
    return mixed_launch(
        plan.block_dim,
        lambda _: bound,
        lambda group: _cube_program(cube, writer, p, plan, group),
        lambda group, half: _vector_program(vector, adder, p, plan, 2 * group + half),
    )


def _strips(p: Problem, plan: SharedKPlan) -> list[Piece]:
    """The parts of the output in the order in which all cores make them."""
    pr = p.product
    if plan.tiles.held == "b":
        return [Piece(0, 0, n, pr.m, columns) for n, columns in pieces(pr.n, STRIP)]
    return [Piece(0, m, 0, rows, pr.n) for m, rows in pieces(pr.m, STRIP)]


def _slice(p: Problem, plan: SharedKPlan, core: int, index: int) -> GmView:
    """What *core* sums up of strip number *index*: of `(2, cores, rows, columns)` in fp32."""
    strips = _strips(p, plan)
    # The first strip is the largest.
    rows, columns = strips[0].rows, strips[0].columns
    first = (index % SLOTS * plan.block_dim + core) * rows
    sums = GmView.of("sums", FLOAT32, SLOTS * plan.block_dim * rows, columns)
    return sums[first : first + strips[index].rows, : strips[index].columns]


def _cube_program(
    core: CubeCore, writer: StripWriter, p: Problem, plan: SharedKPlan, number: int
) -> Program:
    """What cube core *number* does: all strips, with its own chunks of k."""
    chunks = share(plan.chunks, plan.block_dim, number)
    for index, strip in enumerate(_strips(p, plan)):
        if index >= SLOTS:
            # Whoever reads this core's slice is a vector core of any group.
            repeat(core, core.cross_core_wait_flag, "group", "fixpipe", READ)
            repeat(core, sync_all, core, "fixpipe", "fixpipe", ALL_CORES)
        out = _slice(p, plan, number, index)
        for chunk in chunks:
            k, is_added = chunk * STRIP, chunk > chunks.start
            writer.write(strip, k, min(STRIP, p.product.k - k), out, is_added=is_added)
        repeat(core, core.cross_core_set_flag, "group", "fixpipe", SUMMED)
    return core.build()


def _vector_program(
    core: VectorCore, adder: _Adder, p: Problem, plan: SharedKPlan, number: int
) -> Program:
    """What vector core *number* does: its rows of every strip, summed over the cores, rounded."""
    strips = _strips(p, plan)
    for index, strip in enumerate(strips):
        repeat(core, core.cross_core_wait_flag, "group", "mte2", SUMMED)
        repeat(core, sync_all, core, "mte2", "mte2", ALL_CORES)
        # An even share of the rows a vector core.
        each = ceil_div(strip.rows, 2 * plan.block_dim)
        rows = slice(number * each, (number + 1) * each)
        own = part_of(output_of(p), strip)[rows, :]
        if own.rows:
            slices = [_slice(p, plan, other, index)[rows, :] for other in range(plan.block_dim)]
            adder.write(slices, own)
        if index + SLOTS < len(strips):
            repeat(core, core.cross_core_set_flag, "group", "mte2", READ)
    return core.build()


class _Adder:
    """Adds up tiles of all slices; a quarter of the unified buffer each is for the sums so far,
    for the results, and for either of the tiles that are loaded in turn."""

    def __init__(self, core: VectorCore, p: Problem) -> None:
        self._core = core
        self._count = align_down(core.room_bytes("ub") // 4 // FLOAT32.nbytes(1), REPEAT)
        self._tiles = core.vecin(FLOAT32, self._count, depth=2)
        self._sums = core.tile(FLOAT32, self._count)
        self._results = core.vecout(p.output.element, self._count, depth=2)

    def write(self, slices: list[GmView], output: GmView) -> None:
        """Round the sum of *slices* to *output*, all of them `(rows, columns)`."""
        for column, columns in pieces(output.columns, self._count):
            rows_each = self._count // align_up(columns, REPEAT)
            for row, rows in pieces(output.rows, rows_each):
                here = slice(row, row + rows), slice(column, column + columns)
                parts = (part[here] for part in slices)
                repeat(self._core, self._add, output[here], *parts)

    def _add(self, output: GmView, *slices: GmView) -> None:
        core, columns = self._core, align_up(output.columns, REPEAT)
        count = output.rows * columns
        # (rows, columns) fp32 of each core, rows filled up to whole repeats
        first = core.load_rows(self._tiles, slices[0], pitch=columns)
        total = first[:count]
        for part in slices[1:]:
            loaded = core.load_rows(self._tiles, part, pitch=columns)
            so_far, total = total, self._sums[:count]
            core.add(total, so_far, loaded[:count])
            if part is slices[1]:
                self._tiles.free(first)
            self._tiles.free(loaded)
        # fp32 -> the type of the output
        result = self._results.alloc()
        core.cast(result[:count], total, "rint")
        if len(slices) == 1:
            self._tiles.free(first)
        core.store_rows(self._results, result, output, pitch=columns)
