"""Kernels whose cube cores share k: what the templates split_k and nz_splitk have in common.

.. code-block:: text

    vector cores   sums = 0
                   weight tiles int8 or int4 -> 16-bit, into the ring of their group
    cube cores     x (m, its k) @ weight (its k, n), strip by strip, added to sums
    vector cores   output = sums x scale + bias

Sums of several cores, or such that a vector core must finish, are added up in float32 in global
memory, first k first; else a cube core stores its part of the output. The zeros must be there
before any cube core adds to them, and every sum complete before one is read: all cores of a kind
wait for each other, then set a flag for the other kind.

The ring is in global memory, and its blocks are read before they leave the L2. Each of the two
vector cores of a group writes half of a block's columns (ops-nn@e5c3fa9 matmul/
weight_quant_batch_matmul_v2/op_kernel, *_custom_nz_splitk.h, *_custom_mix_splitk.h).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube_core import CubeCore
from npusim.kernel.launch import mixed_blocks
from npusim.kernel.matrices import GmMatrix, GmTile
from npusim.kernel.plane import REPEAT, Plane, by_row
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, repeat
from npusim.ops._dequantised_weight import Dequantiser, MatrixTile, Precision
from npusim.ops.npu_weight_quant_batchmatmul.problem import Plan, Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates import Zeros
from npusim.ops.npu_weight_quant_batchmatmul.templates.strips import (
    FILLED,
    READ,
    Ring,
    StripTiles,
    StripWriter,
    WeightBlock,
)

ZEROED, DONE = 2, 3
"""Flags between a cube core and its vector cores: sums may be added, and all have been."""
ALL_CORES = 4
"""Flag among the vector cores, and among the cube cores."""
MAX_ZEROS_BYTES = 65536
"""Size of a store of zeros; assumed."""
MAX_COLUMNS = 2048
MAX_ROWS = 128
"""Rows and columns of the output that are computed at a time; assumed."""


@dataclass(frozen=True, slots=True)
class SharedKPlan(Plan):
    """How k and n are split over cube cores, and the sizes of what each works on."""

    cores_k: int
    cores_n: int
    core_k: int
    core_n: int
    """A core's share of k and n."""
    strip_k: int
    """k after which a core stores its sums."""
    ring_slots: int
    block_n: int
    block_k: int
    """k of the weight in a slot of the ring."""
    vector_n: int
    vector_k: int
    """k of a block that is dequantised at a time."""
    tiles: StripTiles
    is_added: bool
    """Whether sums are added in global memory, and finished by vector cores."""


class _Strip(NamedTuple):
    """Rows of x, and the part of the weight that they are multiplied by."""

    row: int
    rows: int
    weight: WeightBlock


def build_shared_k(
    spec: DeviceSpec,
    p: Problem,
    plan: SharedKPlan,
    precision: Precision,
    rounding: Literal["rint", "round"],
) -> tuple[Block, ...]:
    """Three blocks a group: a cube core and its two vector cores.

    *rounding* is how vector cores round the output: ties to even, or away from zero.
    """
    layout: Literal["ND", "FRACTAL_NZ"] = "FRACTAL_NZ" if p.traits.is_nz else "ND"
    ring = Ring(plan.ring_slots, plan.block_n, plan.block_k, precision.out, layout)
    names = [*(operand.name for operand in p.inputs), "output", *["sums"] * plan.is_added]
    plain = {name: Binding(name) for name in names}
    strips = [tuple(_strips(p, plan, group)) for group in range(plan.block_dim)]
    cube = _cube(spec, p, plan, ring)
    vector = _vector(spec, p, plan, ring, precision, rounding)
    return mixed_blocks(
        plan.block_dim,
        lambda group: plain | (ring.bindings(group) if strips[group] else {}),
        lambda group: cube(strips[group]),
        lambda group, half: vector(strips[group], group, half),
    )


def _strips(p: Problem, plan: SharedKPlan, group: int) -> Iterator[_Strip]:
    """The work of a group; those with less k come first, so that they add first."""
    index_k, index_n = divmod(group, plan.cores_n)
    if index_k >= plan.cores_k:
        return
    start_k, start_n = index_k * plan.core_k, index_n * plan.core_n
    own_k, own_n = min(plan.core_k, p.traits.k - start_k), min(plan.core_n, p.traits.n - start_n)
    # Rows outermost: cube and vector cores go through the ring in this same order.
    for row, rows in pieces(p.traits.m, plan.tiles.rows):
        for n, columns in pieces(own_n, plan.block_n):
            for k, depth in pieces(own_k, plan.strip_k):
                yield _Strip(row, rows, WeightBlock(start_n + n, columns, start_k + k, depth))


# ---- cube cores ----


def _cube(
    spec: DeviceSpec, p: Problem, plan: SharedKPlan, ring: Ring
) -> Callable[[tuple[_Strip, ...]], Program]:
    """What a cube core does: its strips, one after the other."""
    core, f = CubeCore(plan.template, spec), p.traits
    x = GmMatrix("x", p.x.element, f.m, f.k, k_is_first=False)
    out = GmView.of("sums", FLOAT32, f.m, f.n) if plan.is_added else p.output_view
    writer = StripWriter(core, plan.tiles, x, ring, min(plan.core_k, f.k))

    def program(strips: tuple[_Strip, ...]) -> Program:
        if plan.is_added:
            # The fixpipe adds to global memory: zeros must be there first.
            repeat(core, core.cross_core_wait_flag, "group", "fixpipe", ZEROED)
        resident: GmTile | None = None
        if plan.tiles.is_resident and strips:
            # (rows, k of this core) of x stays in L1.
            first, last = strips[0], strips[-1].weight
            depth = last.k + last.depth - first.weight.k
            resident = x.tile(0, first.rows, first.weight.k, depth)
            repeat(core, writer.fetch, resident)
        index = 0
        for row, rows, block in strips:
            # Not resident: x is loaded with each block, only the k of the strip.
            a = resident or x.tile(row, rows, block.k, block.depth)
            first_k = block.k - strips[0].weight.k if resident else 0
            # (rows, depth) @ (depth, columns) -> (rows, columns)
            dst = out[row : row + rows, block.n : block.n + block.columns]
            repeat(core, writer.write, a, dst, first_k, block.depth, index % ring.slots)
            # Slots of the ring are used in turn, across strips.
            index += ceil_div(block.depth, ring.depth)
        if plan.is_added:
            repeat(core, sync_all, core, "fixpipe", "fixpipe", ALL_CORES, DONE)
        return core.build()

    return program


# ---- vector cores ----


def _vector(
    spec: DeviceSpec,
    p: Problem,
    plan: SharedKPlan,
    ring: Ring,
    precision: Precision,
    rounding: Literal["rint", "round"],
) -> Callable[[tuple[_Strip, ...], int, int], Program]:
    """What a vector core does: zeros, the weight, the output, each with the whole UB."""
    core, f, cores = VectorCore(plan.template, spec), p.traits, 2 * plan.block_dim
    sizes = (plan.vector_n, plan.vector_k) if f.trans_weight else (plan.vector_k, plan.vector_n)
    dequantiser = Dequantiser(core, p.quantised_weight, precision, *sizes)
    if plan.is_added:
        core.reset_buffers()
        zeros = Zeros(core, "sums", f.m * f.n, cores, MAX_ZEROS_BYTES)
        core.reset_buffers()
        epilogue = _Epilogue(core, p, cores, precision.scale is None, rounding)

    def dequantise(strips: tuple[_Strip, ...], half: int) -> None:
        # (k, n) of a strip in blocks of the ring, numbered as the cube core reads them
        blocks = [
            strip.weight._replace(k=strip.weight.k + k, depth=depth)
            for strip in strips
            for k, depth in pieces(strip.weight.depth, ring.depth)
        ]
        if blocks:
            dequantiser.load_registers()
        for index, block in enumerate(blocks):
            _write_block(dequantiser, plan, ring, block, index, half)

    def program(strips: tuple[_Strip, ...], group: int, half: int) -> Program:
        index = 2 * group + half
        if not plan.is_added:
            dequantise(strips, half)
            return core.build()
        # Three stages, each with all of the unified buffer: zeros, the weight, the output.
        zeros.write(index)
        repeat(core, sync_all, core, "mte3", "mte2", ALL_CORES, ZEROED)
        repeat(core, core.end_stage)
        dequantise(strips, half)
        repeat(core, core.end_stage)
        epilogue.write(index)
        return core.build()

    return program


def _write_block(
    dequantiser: Dequantiser,
    plan: SharedKPlan,
    ring: Ring,
    block: WeightBlock,
    index: int,
    half: int,
) -> None:
    """Write the first or second *half* of the columns of *block*, the core's number *index*."""
    core, matrix = dequantiser.core, ring.gm_matrix("ring")
    # The slot was filled before: the cube core must have read it.
    if index >= ring.slots:
        repeat(core, core.cross_core_wait_flag, "group", "mte3", READ)
    # Halves in whole fractals; the second may be smaller, or empty.
    upper = min(block.columns, align_up(ceil_div(block.columns, 2), FRACTAL_ROWS))
    first, last = (0, upper) if half == 0 else (upper, block.columns)
    offset_bytes = index % ring.slots * ring.slot_bytes
    # (depth, columns) of this half in tiles (k, n) that the unified buffer holds
    for start, columns in pieces(last - first, plan.vector_n):
        n = first + start
        for k, depth in pieces(block.depth, plan.vector_k):
            # (k, n) as stored, or (n, k) of a transposed weight: source tile, and where in the slot
            if dequantiser.weight.matrix.k_is_first:
                tile, at = MatrixTile(block.k + k, block.n + n, depth, columns), (k, n)
            else:
                tile, at = MatrixTile(block.n + n, block.k + k, columns, depth), (n, k)
            dequantiser.write(tile, matrix, *at, offset_bytes)
    repeat(core, core.cross_core_set_flag, "group", "mte3", FILLED)


class _Epilogue:
    """Computes the output from the sums: *cores* vector cores share the columns evenly."""

    def __init__(
        self,
        core: VectorCore,
        p: Problem,
        cores: int,
        scaled: bool,
        rounding: Literal["rint", "round"],
    ) -> None:
        """*scaled* says that the scale is applied only now."""
        self.core, self.rounding, f, out = core, rounding, p.traits, p.output.element
        self.sums, self.output = GmView.of("sums", FLOAT32, f.m, f.n), p.output_view
        # (m, n): all rows of an equal part of the columns for each core
        self.part = align_up(ceil_div(f.n, cores), REPEAT)
        columns = min(self.part, MAX_COLUMNS)
        scale = p.column_view(p.antiquant_scale if scaled else None)
        bias = p.column_view(p.bias)
        self.vectors = [
            *([] if scale is None else [_RowVector(core, "mul", scale, columns)]),
            *([] if bias is None else [_RowVector(core, "add", bias, columns)]),
        ]
        # Sums and results are double buffered.
        row_bytes = 2 * FLOAT32.nbytes(columns) + 2 * out.nbytes(columns)
        self.rows = min(f.m, MAX_ROWS, core.room_bytes("ub") // row_bytes)
        self.sums_in = core.vecin(FLOAT32, self.rows * columns, depth=2)
        self.out = core.vecout(out, self.rows * columns, depth=2)

    def write(self, index: int) -> None:
        """Make the part of vector core number *index*, when all cube cores have added theirs."""
        core, start = self.core, index * self.part
        repeat(core, core.cross_core_wait_flag, "group", "mte2", DONE)
        part = self.output[:, start : start + self.part]
        for first, count in pieces(part.columns, MAX_COLUMNS):
            columns = slice(start + first, start + first + count)
            # Scale and bias of these columns serve all rows.
            if self.vectors:
                repeat(core, self._load, *(each.view[:, columns] for each in self.vectors))
            for row, rows in pieces(part.rows, self.rows):
                here = slice(row, row + rows), columns
                repeat(core, self._finish, self.sums[here], self.output[here])

    def _load(self, *views: GmView) -> None:
        """Scale and bias of some columns, each (1, columns)."""
        self.core.sync("vector", "mte2")
        for vector, view in zip(self.vectors, views, strict=True):
            self.core.data_copy(vector.raw[: view.columns], view.operand)
        self.core.sync("mte2", "vector")
        for vector, view in zip(self.vectors, views, strict=True):
            if vector.raw is not vector.wide:
                self.core.cast(vector.wide[: view.columns], vector.raw[: view.columns])

    def _finish(self, sums: GmView, output: GmView) -> None:
        """`output = sums x scale + bias`, both (rows, columns)."""
        core, columns = self.core, align_up(sums.columns, REPEAT)
        # (rows, columns) fp32, rows filled up to whole repeats
        loaded = core.load_rows(self.sums_in, sums, pitch=columns)
        tile = Plane(loaded, sums.rows, columns)
        for vector in self.vectors:
            # (rows, columns) op (columns,)
            by_row(core, vector.op, tile, vector.wide[:columns])
        # (rows, columns) fp32 -> the type of the output
        result = self.out.alloc()
        core.cast(result[: sums.rows * columns], tile.whole(), self.rounding)
        self.sums_in.free(loaded)
        core.store_rows(self.out, result, output, columns)


class _RowVector:
    """A value a column, as float32 in the unified buffer, and what it does to each row."""

    def __init__(
        self, core: VectorCore, op: Literal["mul", "add"], view: GmView, columns: int
    ) -> None:
        self.op, self.view, self.wide = op, view, core.tile(FLOAT32, columns)
        self.raw = self.wide if view.dtype is FLOAT32 else core.tile(view.dtype, columns)
