"""The templates split_k and nz_splitk, whose cube cores share k.

.. code-block:: text

    vector cores   sums = 0
                   weight tiles int8 or int4 -> 16-bit, into the ring of their group
    cube cores     x (m, its k) @ weight (its k, n), strip by strip, added to sums
    vector cores   output = sums x scale + bias

Sums of several cores, or sums that a vector core must finish, are added in float32 in global
memory, first k first; otherwise a cube core stores its part of the output. The zeros must be there
before any cube core adds to them, and every sum must be complete before one is read: all cores of a
kind wait for each other, then set a flag for the other kind.

The ring is in global memory, and its blocks are read before they leave the L2. Each of the two
vector cores of a group writes half of a block's columns (ops-nn@e5c3fa9 matmul/
weight_quant_batch_matmul_v2/op_kernel, *_custom_nz_splitk.h, *_custom_mix_splitk.h).

split_k takes a bf16 x and few rows. n is split by 1024, k over the rest of the cores, and the sums
of every group of 64 are added in global memory. Vector cores dequantise 32 x 512 at a time
(ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel, *_custom_mix_splitk.h). Assumed: x
leaves L1 only if it does not fit, and the parts in which a block is multiplied.

nz_splitk takes a FRACTAL_NZ weight, whose k is split over cores by 1024 or more. A core's columns
are split into tiles of 128; the weight passes through the ring in blocks of 128 x 512, of which
each vector core dequantises 32 x 512 at a time. x stays in L1 if the core's share of it fits into
256 KiB (op_host/op_tiling, *_custom_nz_splitk.cpp). Assumed: a block is loaded into L1 in halves,
and multiplied there by 256 rows of x.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube_core import CubeCore
from npusim.kernel.launch import CoreSteps, launch_mixed
from npusim.kernel.matrices import GmMatrix, GmTile, l1_bytes
from npusim.kernel.plane import REPEAT, Plane, by_row
from npusim.kernel.program import Binding, Block
from npusim.kernel.rows import pieces
from npusim.kernel.steps import StageCall
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.ops._dequantised_weight import Dequantiser, MatrixTile, Precision
from npusim.ops.npu_weight_quant_batchmatmul.choice import k_cores, k_step
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
"""Flags between a cube core and its vector cores: sums may be added; all have been."""
ALL_CORES = 4
"""The flag among the vector cores, and among the cube cores."""
MAX_ZEROS_BYTES = 65536
"""Bytes of a store of zeros; assumed."""
MAX_COLUMNS = 2048
MAX_ROWS = 128
"""Rows and columns of the output that are computed at a time; assumed."""

# ---- how the work is split ----

SLOTS = 4
"""Blocks in the ring of a cube core."""
BLOCK_N, GROUP = 1024, 64
TILE_N, LOAD_N = 256, 512
"""For split_k."""
NZ_BLOCK_K, NZ_LOAD_K = 512, 256
NZ_TILE = 128
"""m, n and k of a tile in nz_splitk."""
RESIDENT_BYTES = 262144


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKPlan(Plan):
    """How k and n are split over cube cores, and the sizes that each processes."""

    cores_k: int
    cores_n: int
    core_k: int
    core_n: int
    """A core's share of k and n."""
    strip_k: int
    """k after which a core stores its sums."""
    block_n: int
    block_k: int
    """k of the weight in a slot of the ring."""
    vector_n: int
    vector_k: int
    """k of a block that is dequantised at a time."""
    tiles: StripTiles
    is_added: bool = True
    """Whether sums are added in global memory, and finished by vector cores."""


def tile(spec: DeviceSpec, p: Problem) -> SharedKPlan:
    """Split like the template that takes the call; all cores start to add sums."""
    f, aic = p.traits, spec.cores["aic"].count
    plan = _split_k(spec, p) if p.choice.template == "split_k" else _nz_splitk(spec, p)
    used = plan.cores_k * plan.cores_n
    workspaces = {"ring": used * SLOTS * p.x.element.nbytes(plan.block_n * plan.block_k)}
    if plan.is_added:
        workspaces["sums"] = FLOAT32.nbytes(f.m * f.n)
    return replace(plan, block_dim=aic if plan.is_added else used, workspaces=workspaces)


def _split_k(spec: DeviceSpec, p: Problem) -> SharedKPlan:
    """Split n into blocks first; the remaining cores share k, in whole groups."""
    f, core = p.traits, spec.cores["aic"]
    blocks_n = ceil_div(f.n, BLOCK_N)
    core_n = BLOCK_N * ceil_div(blocks_n, core.count)
    cores_n = ceil_div(f.n, core_n)
    core_k = align_up(ceil_div(f.k, core.count // cores_n), GROUP)
    x_bytes = l1_bytes(BFLOAT16, f.m, min(core_k, f.k), False)
    return SharedKPlan(
        **p.chosen,
        block_dim=0,
        cores_k=ceil_div(f.k, core_k),
        cores_n=cores_n,
        core_k=core_k,
        core_n=core_n,
        strip_k=GROUP,
        block_n=BLOCK_N,
        block_k=GROUP,
        vector_n=512,
        vector_k=32,
        tiles=StripTiles(
            rows=f.m,
            m=f.m,
            n=TILE_N,
            k=GROUP,
            load_n=LOAD_N,
            load_k=GROUP,
            is_resident=x_bytes + 2 * 2 * LOAD_N * GROUP <= core.usable_bytes("l1"),
            l0c_depth=4,
        ),
    )


def _nz_splitk(spec: DeviceSpec, p: Problem) -> SharedKPlan:
    """Split k, then assign the remaining cores to n."""
    f, aic = p.traits, spec.cores["aic"].count
    cores_k, core_k = k_cores(f, aic), k_step(f, aic)
    core_n = align_up(ceil_div(align_up(f.n, 16), aic // cores_k), 64)
    tile_n = NZ_TILE if core_n >= NZ_TILE else 64
    return SharedKPlan(
        **p.chosen,
        block_dim=0,
        cores_k=cores_k,
        cores_n=ceil_div(f.n, core_n),
        core_k=core_k,
        core_n=core_n,
        strip_k=core_k,
        block_n=tile_n,
        block_k=NZ_BLOCK_K,
        vector_n=32,
        vector_k=NZ_BLOCK_K,
        tiles=StripTiles(
            rows=min(f.m, 2 * NZ_TILE),
            m=min(f.m, NZ_TILE),
            n=tile_n,
            k=NZ_TILE,
            load_n=tile_n,
            load_k=NZ_LOAD_K,
            is_resident=p.x.element.nbytes(f.m * core_k) <= RESIDENT_BYTES,
            l0c_depth=2,
        ),
        is_added=f.x == "bfloat16" or f.has_bias or cores_k > 1,
    )


def _precision(p: Problem) -> Precision:
    """The offset is added in fp16; for a bf16 x nz_splitk applies the scale after the product."""
    if p.x.element is FLOAT16:
        return Precision(offset=FLOAT16, scale=FLOAT16, out=FLOAT16)
    scale = FLOAT32 if p.choice.template == "split_k" else None
    return Precision(offset=FLOAT16, scale=scale, out=BFLOAT16)


# ---- programs ----


class _Strip(NamedTuple):
    """Rows of x, and the part of the weight by which they are multiplied."""

    row: int
    rows: int
    weight: WeightBlock


def build(spec: DeviceSpec, p: Problem, plan: SharedKPlan) -> tuple[Block, ...]:
    """Build three blocks in each group: a cube core and its two vector cores."""
    layout: Literal["ND", "FRACTAL_NZ"] = "FRACTAL_NZ" if p.traits.is_nz else "ND"
    ring = Ring(SLOTS, plan.block_n, plan.block_k, p.x.element, layout)
    names = [*(operand.name for operand in p.inputs), "output", *["sums"] * plan.is_added]
    plain = {name: Binding(name) for name in names}
    strips = [tuple(_strips(p, plan, group)) for group in range(plan.block_dim)]
    return launch_mixed(
        plan.block_dim,
        _cube(spec, p, plan, ring, strips),
        _vector(spec, p, plan, ring, strips),
        lambda group: plain | (ring.bindings(group) if strips[group] else {}),
    )


def _strips(p: Problem, plan: SharedKPlan, group: int) -> Iterator[_Strip]:
    """The strips of a group; those with less k come first, so that they add first."""
    index_k, index_n = divmod(group, plan.cores_n)
    if index_k >= plan.cores_k:
        return
    start_k, start_n = index_k * plan.core_k, index_n * plan.core_n
    own_k, own_n = min(plan.core_k, p.traits.k - start_k), min(plan.core_n, p.traits.n - start_n)
    # Rows outermost: cube and vector cores use the ring in this same order.
    for row, rows in pieces(p.traits.m, plan.tiles.rows):
        for n, columns in pieces(own_n, plan.block_n):
            for k, depth in pieces(own_k, plan.strip_k):
                yield _Strip(row, rows, WeightBlock(start_n + n, columns, start_k + k, depth))


# ---- cube cores ----


def _cube(
    spec: DeviceSpec, p: Problem, plan: SharedKPlan, ring: Ring, strips: list[tuple[_Strip, ...]]
) -> CoreSteps:
    """The program of a cube core: its strips, one after the other."""
    core, f = CubeCore(plan.template, spec), p.traits
    x = GmMatrix("x", p.x.element, f.m, f.k, k_is_first=False)
    out = GmView.of("sums", FLOAT32, f.m, f.n) if plan.is_added else p.output_view
    writer = StripWriter(core, plan.tiles, x, ring, min(plan.core_k, f.k))

    def calls(group: int) -> Iterator[StageCall]:
        own = strips[group]
        if plan.is_added:
            # The fixpipe adds to global memory: zeros must be there first.
            yield core.cross_core_wait_flag, "group", "fixpipe", ZEROED
        resident: GmTile | None = None
        if plan.tiles.is_resident and own:
            # (rows, k of this core) of x stays in L1.
            first, last = own[0], own[-1].weight
            depth = last.k + last.depth - first.weight.k
            resident = x.tile(0, first.rows, first.weight.k, depth)
            yield writer.fetch, resident
        index = 0
        for row, rows, block in own:
            # Not resident: x is loaded with each block, only the k of the strip.
            a = resident or x.tile(row, rows, block.k, block.depth)
            first_k = block.k - own[0].weight.k if resident else 0
            # (rows, depth) @ (depth, columns) -> (rows, columns)
            dst = out[row : row + rows, block.n : block.n + block.columns]
            yield writer.write, a, dst, first_k, block.depth, index % ring.slots
            # Slots of the ring are used in turn, across strips.
            index += ceil_div(block.depth, ring.depth)
        if plan.is_added:
            yield sync_all, core, "fixpipe", "fixpipe", ALL_CORES, DONE

    return CoreSteps.of_calls(core, plan.block_dim, calls)


# ---- vector cores ----


def _vector(
    spec: DeviceSpec, p: Problem, plan: SharedKPlan, ring: Ring, strips: list[tuple[_Strip, ...]]
) -> CoreSteps:
    """The program of a vector core: zeros, the weight, the output, each with the whole UB."""
    core, f, cores = VectorCore(plan.template, spec), p.traits, 2 * plan.block_dim
    sizes = (plan.vector_n, plan.vector_k) if f.trans_weight else (plan.vector_k, plan.vector_n)
    dequantiser = Dequantiser(core, p.quantised_weight, _precision(p), *sizes)
    if plan.is_added:
        core.reset_buffers()
        zeros = Zeros(core, "sums", f.m * f.n, cores, MAX_ZEROS_BYTES)
        core.reset_buffers()
        epilogue = _Epilogue(core, p, cores)

    def dequantise(group: int, half: int) -> Iterator[StageCall]:
        # (k, n) of a strip in blocks of the ring, indexed as the cube core reads them
        blocks = [
            strip.weight._replace(k=strip.weight.k + k, depth=depth)
            for strip in strips[group]
            for k, depth in pieces(strip.weight.depth, ring.depth)
        ]
        if blocks:
            yield (dequantiser.load_registers,)
        for index, block in enumerate(blocks):
            yield from _write_block(dequantiser, plan, ring, block, index, half)

    def calls(index: int) -> Iterator[StageCall]:
        weights = dequantise(*divmod(index, 2))
        if not plan.is_added:
            yield from weights
            return
        # Three stages, each with all of the unified buffer: zeros, the weight, the output.
        yield from zeros.write(index)
        yield sync_all, core, "mte3", "mte2", ALL_CORES, ZEROED
        yield (core.end_stage,)
        yield from weights
        yield (core.end_stage,)
        yield from epilogue.write(index)

    return CoreSteps.of_calls(core, cores, calls)


def _write_block(
    dequantiser: Dequantiser,
    plan: SharedKPlan,
    ring: Ring,
    block: WeightBlock,
    index: int,
    half: int,
) -> Iterator[StageCall]:
    """Write a *half* of the columns of *block*, which has index *index* on the core."""
    core, matrix = dequantiser.core, ring.gm_matrix("ring")
    # The slot was filled before: the cube core must have read it.
    if index >= ring.slots:
        yield core.cross_core_wait_flag, "group", "mte3", READ
    # Halves in whole fractals; the second may be smaller, or empty.
    upper = min(block.columns, align_up(ceil_div(block.columns, 2), FRACTAL_ROWS))
    first, last = (0, upper) if half == 0 else (upper, block.columns)
    offset_bytes = index % ring.slots * ring.slot_bytes
    # (depth, columns) of this half in tiles (k, n) that fit the unified buffer
    for start, columns in pieces(last - first, plan.vector_n):
        n = first + start
        for k, depth in pieces(block.depth, plan.vector_k):
            # (k, n) as stored, or (n, k) of a transposed weight: source tile, and its place in the
            # slot
            if dequantiser.weight.matrix.k_is_first:
                tile, at = MatrixTile(block.k + k, block.n + n, depth, columns), (k, n)
            else:
                tile, at = MatrixTile(block.n + n, block.k + k, columns, depth), (n, k)
            yield dequantiser.call(tile, matrix, *at, offset_bytes)
    yield core.cross_core_set_flag, "group", "mte3", FILLED


class _Epilogue:
    """Computes the output from the sums: *cores* vector cores share the columns evenly."""

    def __init__(self, core: VectorCore, p: Problem, cores: int) -> None:
        self.core, f, out = core, p.traits, p.output.element
        # Ties to even, or away from zero.
        self.rounding: Literal["rint", "round"] = (
            "rint" if p.choice.template == "split_k" else "round"
        )
        scaled = _precision(p).scale is None
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

    def write(self, index: int) -> Iterator[StageCall]:
        """Compute the part of vector core index *index*, when cube cores have added theirs."""
        start = index * self.part
        yield self.core.cross_core_wait_flag, "group", "mte2", DONE
        part = self.output[:, start : start + self.part]
        for first, count in pieces(part.columns, MAX_COLUMNS):
            columns = slice(start + first, start + first + count)
            # Scale and bias of these columns serve all rows.
            if self.vectors:
                yield self._load, *(each.view[:, columns] for each in self.vectors)
            for row, rows in pieces(part.rows, self.rows):
                here = slice(row, row + rows), columns
                yield self._finish, self.sums[here], self.output[here]

    def _load(self, *views: GmView) -> None:
        """Load scale and bias of some columns, each (1, columns)."""
        self.core.sync("vector", "mte2")
        for vector, view in zip(self.vectors, views, strict=True):
            self.core.data_copy(vector.raw[: view.columns], view.operand)
        self.core.sync("mte2", "vector")
        for vector, view in zip(self.vectors, views, strict=True):
            if vector.raw is not vector.wide:
                self.core.cast(vector.wide[: view.columns], vector.raw[: view.columns])

    def _finish(self, sums: GmView, output: GmView) -> None:
        """Compute `output = sums x scale + bias`, both (rows, columns)."""
        core, columns = self.core, align_up(sums.columns, REPEAT)
        # (rows, columns) fp32, rows padded to whole repeats
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
    """A value for each column, as float32 in the unified buffer, and its operation on each row."""

    def __init__(
        self, core: VectorCore, op: Literal["mul", "add"], view: GmView, columns: int
    ) -> None:
        self.op, self.view, self.wide = op, view, core.tile(FLOAT32, columns)
        self.raw = self.wide if view.dtype is FLOAT32 else core.tile(view.dtype, columns)
