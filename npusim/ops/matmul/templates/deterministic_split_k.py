"""deterministic_split_k: the cores share k, and vector cores add their sums in the cores' order.

The chunks of k go to the cores in runs. All cores make the same 384 rows (or columns) of the output
at a time, each with its own chunks, into a slice of memory of its own: the first chunk's sums are
stored, the others added. When all cores are there, every vector core adds up some rows of all
slices, core after core, and rounds them. Slices are double buffered, so that the cube cores work on
the next rows meanwhile (ops-nn@e5c3fa9 matmul/mat_mul_v3, matmul_v3_base_tiling.cpp and
mat_mul_deterministic_splitk_kernel.h).

Left out: slices that hold part of the columns, for which the L2 tiles are cut; operands that are
turned into NZ first; partial sums kept in NZ, where n is no multiple of 16.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import FLOAT32, DType
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, Cast
from npusim.kernel.blocks import columns_of, gm_matrix_a, gm_matrix_b
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.cross_core import sync_all
from npusim.kernel.launch import mixed_launch, share
from npusim.kernel.plane import REPEAT
from npusim.kernel.product import Product
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.tiles import Piece
from npusim.kernel.views import GmView, load, repeat, store
from npusim.ops.matmul import k_split
from npusim.ops.matmul.contract import Problem
from npusim.ops.matmul.k_split import BASE, STRIP
from npusim.ops.matmul.templates.plan import Plan
from npusim.ops.matmul.templates.strips import StripTiles, StripWriter
from npusim.ops.matmul.traits import Chip

__all__ = ["SharedKPlan", "build", "tile"]

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
    chunks, cores = ceil_div(f.k, STRIP), k_split.cores_along_k(f, chip)
    is_wide = k_split.holds_columns(f)
    rows, columns = (f.m, STRIP) if is_wide else (STRIP, f.n)
    slice_bytes = FLOAT32.nbytes(min(rows, f.m) * min(columns, f.n))
    return SharedKPlan(
        template=p.choice.template,
        reason=p.choice.reason,
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
        chunks=chunks,
    )


def build(spec: DeviceSpec, p: Problem, plan: SharedKPlan) -> tuple[Block, ...]:
    """Three blocks a group: a cube core and its two vector cores."""
    names = (*(operand.name for operand in p.inputs), "output", "sums")
    bindings = {name: Binding(name) for name in names}
    strips = _strips(p.product, plan)
    cube, vector = _CubeKernel(spec, p, plan), _VectorKernel(spec, p, plan)
    return mixed_launch(
        plan.block_dim,
        lambda _: bindings,
        lambda group: cube.program(strips, group),
        lambda group, half: vector.program(strips, 2 * group + half),
    )


def _strips(pr: Product, plan: SharedKPlan) -> tuple[Piece, ...]:
    """The parts of the output in the order in which all cores make them."""
    if plan.tiles.held == "b":
        return tuple(Piece(0, 0, n, pr.m, columns) for n, columns in pieces(pr.n, STRIP))
    return tuple(Piece(0, m, 0, rows, pr.n) for m, rows in pieces(pr.m, STRIP))


class _Slices:
    """The sums of the cores in global memory: `(2, cores, rows, columns)` in fp32."""

    def __init__(self, strips: tuple[Piece, ...], cores: int) -> None:
        self._cores = cores
        # The first strip is the largest.
        self._rows, self._columns = strips[0].rows, strips[0].columns

    def of(self, core: int, index: int, strip: Piece) -> GmView:
        """What *core* sums up of *strip*, number *index*."""
        first = (index % SLOTS * self._cores + core) * self._rows
        sums = GmView.of("sums", FLOAT32, SLOTS * self._cores * self._rows, self._columns)
        return sums[first : first + strip.rows, : strip.columns]


class _CubeKernel:
    """What a cube core does: all strips, with its own chunks of k."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: SharedKPlan) -> None:
        self._p, self._plan = p, plan
        # No messages go to the vector cores, only flags: all of L1 is free.
        self._builder = Builder(plan.template, spec.cores["aic"], spec.sync, alone=True)
        self._writer = StripWriter(self._builder, p, plan.tiles, p.product.k)

    def program(self, strips: tuple[Piece, ...], core: int) -> Program:
        builder, slices = self._builder, _Slices(strips, self._plan.block_dim)
        chunks = share(self._plan.chunks, self._plan.block_dim, core)
        for index, strip in enumerate(strips):
            if index >= SLOTS:
                # Whoever reads this core's slice is a vector core of any group.
                repeat(builder, builder.cross_core_wait_flag, "group", "fixpipe", READ)
                repeat(builder, sync_all, builder, "fixpipe", "fixpipe", ALL_CORES)
            for chunk in chunks:
                out = slices.of(core, index, strip)
                self._write(strip, chunk * STRIP, out, is_added=chunk > chunks.start)
            repeat(builder, builder.cross_core_set_flag, "group", "fixpipe", SUMMED)
        return builder.build()

    def _write(self, strip: Piece, k: int, out: GmView, is_added: bool) -> None:
        """The chunk that begins at *k*, of *strip*."""
        pr, bias = self._p.product, self._p.bias
        count = min(STRIP, pr.k - k)
        x1 = gm_matrix_a(pr).tile(strip.row, strip.rows, k, count)
        x2 = gm_matrix_b(pr).tile(strip.column, strip.columns, k, count)
        start = None if bias is None or k else columns_of(pr, strip, bias)
        held, passing = (x1, x2) if self._plan.tiles.held == "a" else (x2, x1)
        self._writer.write(held, passing, out, start, is_added)


class _VectorKernel:
    """What a vector core does: its rows of every strip, summed over the cores and rounded."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: SharedKPlan) -> None:
        self._p, self._cores = p, plan.block_dim
        self._builder = Builder(plan.template, spec.cores["aiv"], spec.sync)
        self._adder = _Adder(self._builder, p.output.element)

    def program(self, strips: tuple[Piece, ...], core: int) -> Program:
        builder, pr, slices = self._builder, self._p.product, _Slices(strips, self._cores)
        output = GmView.of("output", self._p.output.element, pr.m, pr.n)
        for index, strip in enumerate(strips):
            repeat(builder, builder.cross_core_wait_flag, "group", "mte2", SUMMED)
            repeat(builder, sync_all, builder, "mte2", "mte2", ALL_CORES)
            # An even share of the rows a vector core.
            each = ceil_div(strip.rows, 2 * self._cores)
            rows = slice(core * each, (core + 1) * each)
            down = slice(strip.row, strip.row + strip.rows)
            own = output[down, strip.column : strip.column + strip.columns][rows, :]
            if own.rows:
                sums = slices.of(0, index, strip)[rows, :]
                slice_bytes = slices.of(1, index, strip).offset_bytes
                slice_bytes -= slices.of(0, index, strip).offset_bytes
                self._adder.write(sums, slice_bytes, self._cores, own)
            if index + SLOTS < len(strips):
                repeat(builder, builder.cross_core_set_flag, "group", "mte2", READ)
        return builder.build()


class _Adder:
    """Adds up tiles of all slices; a quarter of the unified buffer each is for the sums so far,
    for the results, and for either of the tiles that are loaded in turn."""

    def __init__(self, builder: Builder, element: DType) -> None:
        self._builder, quarter = builder, builder.room_bytes("ub") // 4
        self._count = align_down(quarter // FLOAT32.nbytes(1), REPEAT)
        nbytes = FLOAT32.nbytes(self._count)
        self._tiles = builder.queue("ub", nbytes, "mte2", "vector", 2)
        self._sums = builder.claim("ub", nbytes)
        self._results = builder.queue("ub", element.nbytes(self._count), "vector", "mte3", 2)

    def write(self, sums: GmView, slice_bytes: int, cores: int, output: GmView) -> None:
        """Round the sum of *cores* slices, *slice_bytes* apart, to *output* `(rows, columns)`."""
        slices = [sums.shifted_to(sums.offset_bytes + core * slice_bytes) for core in range(cores)]
        for column, columns in pieces(output.columns, self._count):
            rows_each = self._count // align_up(columns, REPEAT)
            for row, rows in pieces(output.rows, rows_each):
                here = slice(row, row + rows), slice(column, column + columns)
                parts = (part[here] for part in slices)
                repeat(self._builder, self._add, output[here], *parts)

    def _add(self, output: GmView, *slices: GmView) -> None:
        builder, columns = self._builder, align_up(output.columns, REPEAT)
        count = output.rows * columns
        # (rows, columns) fp32 of each core, rows filled up to whole repeats
        first = load(builder, self._tiles, slices[0], pitch=columns)
        total = first.of(FLOAT32, count)
        for part in slices[1:]:
            slot = load(builder, self._tiles, part, pitch=columns)
            so_far, total = total, self._sums.of(FLOAT32, count)
            step(builder, Binary("add", total, so_far, slot.of(FLOAT32, count)))
            if part is slices[1]:
                self._tiles.free(first)
            self._tiles.free(slot)
        # fp32 -> the type of the output
        result = self._results.alloc()
        step(builder, Cast(result.of(output.dtype, count), total, "rint"))
        if len(slices) == 1:
            self._tiles.free(first)
        store(builder, self._results, result, output, pitch=columns)
