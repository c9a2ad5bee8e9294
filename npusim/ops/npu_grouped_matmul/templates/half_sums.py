"""The templates a4w4 and a8w4: sums of int4 products as float16, with int8 split into two int4.

Cube cores scale and sum groups of k: each base tile has a slot in a ring of four, to which the
fixpipe stores its first group of k, scaled and rounded to float16, and adds the others. Then the
two vector cores of the group compute its output, in alternate chunks, the second one first
(ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel, grouped_matmul_a4w4.h,
grouped_matmul_antiquant_a8w4_msd*.h).

In a8w4 vector cores first write every row of x as two rows of int4 digits, one row at a time each,
and the row sums if weights have an offset, and all wait for each other. Tiles have 128 rows of
digits, or 64 and twice the columns if experts have few rows. Row sums are integers below 2 ** 24,
so their order does not matter. Assumed: that a row is read once more for its sum, and that repeats
are summed in as many levels as needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, INT8, UINT64
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    FLOATS_PER_BLOCK,
    FLOATS_PER_REPEAT,
    BaseTile,
    Block,
    CubeCore,
    GmMatrix,
    GmTile,
    GmView,
    GmViews,
    Step,
    VectorCore,
)
from npusim.kernel.launch import CoreSteps, launch_mixed
from npusim.kernel.views import repeat
from npusim.ops._int4_matmul import DigitSplitter, Epilogue, ScaledGroups
from npusim.ops.npu_grouped_matmul import tiling
from npusim.ops.npu_grouped_matmul.choice import groups_of_k, is_vector
from npusim.ops.npu_grouped_matmul.parts import Matrices, Parts, bound, matrices_of, read_list
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates import a8w4_vector
from npusim.ops.npu_grouped_matmul.tiling import RING, MixedPlan

VECTOR_CORES = 2
"""Vector cores of a group."""
CHUNK = 8192
"""Elements of the output that a vector core computes at a time."""
WIDTH, WIDTH_OF_MANY = 512, 256
MANY_ROWS = 64
"""Rows for each expert, by tuning_config, beyond which tiles of a4w4 are narrower."""
ROWS, COLUMNS = 128, 256
ROWS_OF_FEW, COLUMNS_OF_FEW = 64, 512
"""Rows and columns of digits, in a tile of a8w4 with few rows."""
FEW_ROWS = 32
"""Average rows for each expert below which these wide tiles are used."""
PIECE_K, STEPS = 256, 4
SPLIT, ALL_VECTORS = 2, 3
"""Flags: the digits are in global memory; all vector cores wait for each other."""
ROW_SUMS = "row_sums"
"""The workspace of row sums, `(rows,)`."""


def tile(spec: DeviceSpec, p: Problem) -> MixedPlan:
    """Tiles of x, or of its digits: then x has half as many rows."""
    base = _tile_of_digits(p) if p.types.x is INT8 else _tile_of_int4(spec, p)
    plan = MixedPlan(
        block_dim=tiling.cores_of(spec),
        template="a8w4_vector" if p.types.x is INT8 and is_vector(p) else p.types.template,
        reason=tiling.reason(p),
        is_mix=True,
        tile=base,
        single_n=base.n,
        chunk_rows=CHUNK // base.n,
    )
    workspaces = {"workspace": tiling.ring_bytes(plan, FLOAT16)}
    if p.types.x is INT8:
        workspaces["digits"] = INT4.nbytes(2 * p.rows * p.x_shape(0)[1])
    if p.offset:
        workspaces[ROW_SUMS] = FLOAT32.nbytes(p.rows)
    return replace(plan, workspaces=workspaces)


def _tile_of_int4(spec: DeviceSpec, p: Problem) -> BaseTile:
    """Wide tiles, or narrower ones if experts have many rows."""
    width = WIDTH_OF_MANY if p.tuning and p.tuning[0] > MANY_ROWS else WIDTH
    words = tiling.table_bytes(p, words=True) * width // WIDTH_OF_MANY
    return tiling.base_tile(spec, INT4, tiling.rows_of(p), width=width, table_bytes=words)


def _tile_of_digits(p: Problem) -> BaseTile:
    is_few = p.rows < FEW_ROWS * p.experts
    rows, columns = (ROWS_OF_FEW, COLUMNS_OF_FEW) if is_few else (ROWS, COLUMNS)
    rows = min(rows, align_up(2 * p.rows, FRACTAL_ROWS))
    return BaseTile(rows, columns, PIECE_K * COLUMNS // columns, STEPS, STEPS)


def build(spec: DeviceSpec, p: Problem, plan: MixedPlan) -> tuple[Block, ...]:
    """Build a cube core and two vector cores in each group."""
    core, each = VectorCore("npu_grouped_matmul", spec), 2 if p.types.x is INT8 else 1
    cube_core = CubeCore("npu_grouped_matmul", spec)
    parts = Parts.dealt(p, plan.tile.m // each, plan.single_n, plan.block_dim)
    begin: Callable[[], None] | None = None
    splits: tuple[Step, ...] = ()
    if p.types.x is INT8:
        # The digits come first; then the vector cores' buffers are allocated anew.
        begin = partial(cube_core.cross_core_wait_flag, "group", "mte2", SPLIT)
        splits = (_split(core, p, plan),)
        core.reset_buffers()
    if plan.template == "a8w4_vector":
        cube_steps = a8w4_vector.cube_steps(cube_core, p, plan, parts)
        vector_steps = a8w4_vector.vector_steps(core, p, plan, parts)
    else:
        cube_steps = _cube_steps(cube_core, p, plan, parts)
        vector_steps = _vector_steps(core, p, plan, parts)
    cube = read_list(p, cube_core, plan.block_dim, parts), *cube_steps
    read = read_list(p, core, VECTOR_CORES * plan.block_dim, parts)
    names = bound(p, *(name for name in plan.workspaces if name != "workspace"))
    return launch_mixed(
        plan.block_dim,
        CoreSteps(cube_core, cube, begin),
        CoreSteps(core, (*splits, read, *vector_steps)),
        lambda group: names | tiling.bound_ring(plan, group, FLOAT16),
    )


def _cube_steps(core: CubeCore, p: Problem, plan: MixedPlan, parts: Parts) -> tuple[Step, ...]:
    """Let cube cores write half sums to the ring; with digits each row of x is two of them."""
    groups, each = groups_of_k(p), 2 if p.types.x is INT8 else 1
    digits = GmMatrix("digits", INT4, 2 * p.rows, p.x_shape(0)[1], k_is_first=False)
    largest = int(p.groups.m.argmax())
    x, weight = matrices_of(p, int(p.groups.x[largest]), int(p.groups.weight[largest]))
    group_k = p.x_shape(0)[1] // groups
    half = ScaledGroups(core, plan.tile, digits if each == 2 else x, weight, group_k)
    words = GmView.of("scale", UINT64, p.experts * groups, p.weight_shape(0)[1])

    def tile(
        a: GmTile, b: GmTile, scale: GmView, place: GmView, is_reused: bool, matrices: Matrices
    ) -> None:
        both = (digits, matrices[1]) if each == 2 else matrices
        half.block(a, b, scale, tiling.laid_out(place, a.extent, b.extent), is_reused, both)

    def arguments(own: Parts) -> tuple[Any, ...]:
        first = p.groups.matrix[own.group] * groups
        scale = GmViews.of(words, first, own.column, groups, own.columns)
        places = tiling.places_of(plan, own.turn, FLOAT16), own.turn >= RING
        return own.digits(digits) if each == 2 else own.x, own.weight, scale, *places, own.matrices

    return parts.steps(tile, arguments)


def _vector_steps(core: VectorCore, p: Problem, plan: MixedPlan, parts: Parts) -> tuple[Step, ...]:
    """Let vector cores finish alternate chunks of each tile."""
    each, block = 2 if p.types.x is INT8 else 1, (plan.chunk_rows, plan.tile.n)
    digits = each == 2
    finish = Epilogue(core, block, p.output.element, digits=digits, offset=bool(p.bias))

    def tile(
        place: GmView,
        output: GmView,
        bias: GmView | None,
        token: GmView,
        turn: int,
        row_sums: GmView | None,
        offset: GmView | None,
    ) -> None:
        sums = tiling.laid_out(place, each * output.rows, output.columns)
        product = None if row_sums is None or offset is None else (row_sums, offset)
        finish.block(sums, output, bias, token, turn, product)

    def arguments(own: Parts) -> tuple[Any, ...]:
        of_rows = own.of_rows(p.per_token_scale)
        row_sums = replace(of_rows, name=ROW_SUMS) if p.offset and of_rows else None
        return (
            *(tiling.places_of(plan, own.turn, FLOAT16), own.output, own.of_columns(p.bias)),
            # The second of the two vector cores takes the first chunk.
            *(of_rows, 1 - own.core % VECTOR_CORES, row_sums, own.of_columns(p.offset)),
        )

    return parts.repeated(VECTOR_CORES).steps(tile, arguments)


def _split(core: VectorCore, p: Problem, plan: MixedPlan) -> Step:
    """Let vector cores write the digits and sums of rows of x; then all wait for each other."""
    (rows, k), cores = p.x_shape(0), VECTOR_CORES * plan.block_dim
    x, splitter = GmView.of("x", INT8, rows, k), DigitSplitter(core, k)
    add_up = _row_sums(core, x, cores) if p.offset else None
    return splitter.step(x, cores, -1, (ALL_VECTORS, SPLIT), add_up)


def _row_sums(core: VectorCore, x: GmView, cores: int) -> Callable[[int], None]:
    """The stage that writes the sums of every *cores*-th row of *x*, in single buffers."""
    k = x.columns
    # Elements of each level, whole repeats, until one repeat is left.
    levels = [align_up(k, FLOATS_PER_REPEAT)]
    while levels[-1] > FLOATS_PER_REPEAT:
        levels.append(align_up(levels[-1] // FLOATS_PER_REPEAT, FLOATS_PER_REPEAT))
    x_in, half = core.vecin(INT8, k), core.tile(FLOAT16, k)
    values = [core.tile(FLOAT32, count) for count in levels]
    out = core.vecout(FLOAT32, FLOATS_PER_BLOCK)

    def row(x: GmView, total: GmView) -> None:
        loaded = core.load_rows(x_in, x)
        core.cast(half, loaded, "none")
        x_in.free(loaded)
        core.cast(values[0][:k], half)
        result = out.alloc()
        for level, following in zip(values, [*values[1:], result], strict=True):
            # (count,) -> (count / 64,)
            core.whole_reduce("sum", following[: level.count // FLOATS_PER_REPEAT], level)
        core.store_rows(out, result, total)

    def write(index: int) -> None:
        for level in values:
            # Elements without a sum are zero.
            core.duplicate(level, 0.0)
        sums = GmView.vector(ROW_SUMS, FLOAT32, x.rows)
        for number in range(index, x.rows, cores):
            repeat(core, row, x[number : number + 1, :], sums[:, number : number + 1])

    return write
