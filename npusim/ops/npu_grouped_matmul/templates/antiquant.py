"""The templates antiquant and antiquant_performance: an int8 or int4 weight with float rows.

Vector cores dequantise the weight into a workspace, from which cube cores load it as an operand.
Both templates give the same bits (ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel,
grouped_matmul_antiquant*.h; op_host/op_tiling/grouped_matmul_tiling.cpp).

In antiquant each cube core has one vector core, which dequantises the columns of a block over all
of k, again for each row of blocks; the workspace has two slots, one of which is filled while the
cube core multiplies by the other.

In antiquant_performance all vector cores dequantise the columns of a round together: as many blocks
of 256 columns as there are cores, or as a part of the workspace holds. They split its k, the two of
a group alternating over the chunks of their share, and wait for each other; then the cube cores
split its blocks. One of two parts of the workspace is filled while the other is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, DType
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    BaseTile,
    Binding,
    Block,
    CubeCore,
    GmMatrix,
    GmTile,
    GmTiles,
    GmView,
    GmViews,
    Matmul,
    Step,
    VectorCore,
    pieces,
    sync_all,
)
from npusim.kernel.launch import CoreSteps, launch_mixed
from npusim.kernel.steps import Integers
from npusim.kernel.table import spread
from npusim.ops._dequantised_weight import Dequantiser, Precision, QuantisedWeight
from npusim.ops.npu_grouped_matmul.choice import group_k
from npusim.ops.npu_grouped_matmul.parts import (
    Matrices,
    Parts,
    bound,
    matrices_of,
    read_list,
)
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.tiling import (
    Plan,
    base_tile,
    cores_of,
    reason,
    rows_of,
    table_bytes,
)

FILLED, READ, ALL_VECTORS, ALL_CUBES = range(4)
"""Flags between a cube core and its vector cores: columns are in the workspace; they were read. All
cores of a kind wait for each other."""
WORKSPACE = "dequantised"
PLACES = 2
"""Parts of the workspace, of each core or of all together."""
BYTES_EACH: dict[tuple[DType, bool], int] = {
    (FLOAT16, False): 6,
    (BFLOAT16, False): 8,
    (FLOAT16, True): 5,
    (BFLOAT16, True): 7,
}
"""Type of x, whether the weight is int4 -> bytes of the unified buffer that the vendor counts for
an element."""
CHUNK = 4096
"""Elements of a chunk are a multiple of this."""
UB_COLUMNS, UB_COLUMNS_OF_K = 512, 256
"""Columns of a chunk, and those if k is the inner dimension."""
LEAST_K_OF_CORES = 5 * 2**20
"""k times 256 columns of all cores, from which on all vector cores work together."""
LEAST_USE = 0.4
"""The share of cores with a block, from which on they do."""
ROUND, ROUND_OF_WIDE = 16 * 2**20, 10 * 2**20
"""Elements of a round, and if there are many columns."""
WIDE = 5120
LEAST_ROWS = 8
"""k of a vector core's share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AntiquantPlan(Plan):
    """Base tiles, and what a vector core dequantises at a time."""

    ub_rows: int
    """Rows of a chunk of the weight in its memory layout."""
    ub_columns: int
    round_n: int
    """Columns that are in the workspace together."""


def tile(spec: DeviceSpec, p: Problem) -> AntiquantPlan:
    """Base tiles; rounds of as many blocks of columns as cores take, or a block for each core."""
    base, cores = _cube_tile(spec, p), cores_of(spec)
    k, n = int(p.groups.k.max()), int(p.groups.n.max())
    is_shared = _is_performance(spec, p)
    round_n, places = base.n, PLACES * cores
    if is_shared:
        elements = ROUND if n <= WIDE else ROUND_OF_WIDE
        used = min(ceil_div(elements, k * base.n), cores, ceil_div(n, base.n))
        round_n, places = used * base.n, PLACES
    # k is the inner dimension of a transposed weight; otherwise a chunk is as wide as the tile.
    columns = UB_COLUMNS_OF_K if p.trans_weight else base.n
    columns = UB_COLUMNS if is_shared else columns
    return AntiquantPlan(
        block_dim=cores,
        template="antiquant_performance" if is_shared else "antiquant",
        reason=reason(p),
        is_mix=True,
        workspaces={WORKSPACE: places * p.types.x.nbytes(k * round_n)},
        tile=base,
        single_n=base.n,
        ub_rows=_ub_rows(spec, p, columns),
        ub_columns=columns,
        round_n=round_n,
    )


def _is_performance(spec: DeviceSpec, p: Problem) -> bool:
    """Whether there are enough blocks and enough k for all vector cores to work together."""
    if p.asked is not None:
        return p.asked == "antiquant_performance"
    cores = spec.cores["aic"].count
    k, n = (min(p.weight_shape(place)[axis] for place in range(len(p.weight))) for axis in (0, 1))
    base = _cube_tile(spec, p)
    each = ceil_div(p.rows, p.experts)
    blocks = ceil_div(each, base.m) * ceil_div(n, base.n) * (2 if p.types.x is BFLOAT16 else 1)
    is_much = k * base.n * cores >= LEAST_K_OF_CORES
    return blocks >= int(LEAST_USE * cores) and is_much and not p.trans_weight


def _cube_tile(spec: DeviceSpec, p: Problem) -> BaseTile:
    """The base tile; operands leave out the end of L1, where messages of vector cores arrive."""
    core = spec.cores["aic"]
    messages_bytes = (core.l1_bytes or 0) - core.usable_bytes("l1")
    return base_tile(spec, p.types.x, rows_of(p), table_bytes=table_bytes(p) + messages_bytes)


def _ub_rows(spec: DeviceSpec, p: Problem, columns: int) -> int:
    """Rows of a chunk with this many columns."""
    each_bytes = BYTES_EACH[p.types.x, p.types.weight is INT4]
    elements = align_down((spec.cores["aiv"].ub_bytes or 0) // each_bytes, CHUNK)
    return max(8, align_down(elements // columns, 8))


# ---- programs ----


def build(spec: DeviceSpec, p: Problem, plan: AntiquantPlan) -> tuple[Block, ...]:
    """Build a cube core and one or two vector cores in each group."""
    is_shared, cores = plan.template == "antiquant_performance", plan.block_dim
    place_bytes = p.types.x.nbytes(int(p.groups.k.max()) * plan.round_n)
    products: Callable[..., tuple[Step, ...]]
    if is_shared:
        parts, vector_cores, of_core = _rounds(p, plan), 2, 0
        of_vectors, products = parts.repeated(vector_cores * cores), _shared_products
    else:
        parts = Parts.dealt(p, plan.tile.m, plan.single_n, cores)
        vector_cores, of_core = 1, PLACES * place_bytes
        of_vectors, products = parts, _products
    cube, vector = CubeCore("npu_grouped_matmul", spec), VectorCore("npu_grouped_matmul", spec)
    # If cores work together they have read the whole list before.
    read = None if is_shared else parts
    cube_steps = products(cube, p, plan, parts, place_bytes)
    vector_steps = _dequantised(vector, p, plan, of_vectors, place_bytes)
    names = bound(p)
    return launch_mixed(
        cores,
        CoreSteps(cube, (read_list(p, cube, cores, read), *cube_steps)),
        CoreSteps(vector, (read_list(p, vector, vector_cores * cores, read), *vector_steps)),
        lambda core: names | {WORKSPACE: Binding(WORKSPACE, core * of_core)},
        vector_cores,
    )


def _rounds(p: Problem, plan: AntiquantPlan) -> Parts:
    """Columns of all groups with rows that are in the workspace together, in order."""
    groups = p.groups
    every = np.flatnonzero((groups.m > 0) & (groups.k > 0))
    which, number = spread(-(-groups.n[every] // plan.round_n))
    group, column, order = every[which], number * plan.round_n, np.arange(which.size)
    columns, none = np.minimum(plan.round_n, groups.n[group] - column), np.zeros_like(order)
    return Parts(p, none, order, order, group, none, column, groups.m[group], columns)


# ---- cube cores ----


def _products(
    core: CubeCore, p: Problem, plan: AntiquantPlan, parts: Parts, place_bytes: int
) -> tuple[Step, ...]:
    """antiquant: compute each block when its columns are ready."""
    product = _product(core, p, plan)

    def block(*arguments: Any) -> None:
        core.cross_core_wait_flag("group", "mte2", FILLED)
        product(*arguments)
        core.cross_core_set_flag("group", "fixpipe", READ)

    def arguments(own: Parts) -> tuple[Any, ...]:
        return _arguments(own, own.turn % PLACES * place_bytes)

    return parts.steps(block, arguments)


def _shared_products(
    core: CubeCore, p: Problem, plan: AntiquantPlan, rounds: Parts, place_bytes: int
) -> tuple[Step, ...]:
    """antiquant_performance: compute the blocks of each round, row by row, once it is filled."""
    base, cores = plan.tile, plan.block_dim
    across = -(-rounds.columns // base.n)
    order, number = spread(-(-rounds.rows // base.m) * across)
    of_round = rounds.select(order)
    row, column = number // across[order] * base.m, number % across[order] * base.n
    parts = replace(
        of_round,
        core=number % cores,
        row=row,
        column=of_round.column + column,
        rows=np.minimum(base.m, of_round.rows - row),
        columns=np.minimum(base.n, of_round.columns - column),
    )

    def arguments(own: Parts) -> tuple[Any, ...]:
        inside = own.column - rounds.column[own.turn]
        return _arguments(own, own.turn % PLACES * place_bytes + p.types.x.nbytes(1) * inside)

    every = rounds.repeated(cores)
    reused = every.select(every.turn < rounds.core.size - PLACES)
    wait = partial(core.cross_core_wait_flag, "group", "mte2", FILLED)
    free = partial(sync_all, core, "fixpipe", "fixpipe", ALL_CUBES, READ)
    return (
        Step(wait, (), every.core, every.order),
        *parts.steps(_product(core, p, plan), arguments),
        Step(free, (), reused.core, reused.order),
    )


def _arguments(own: Parts, start_bytes: Integers) -> tuple[Any, ...]:
    """The arguments of blocks' products, whose columns begin *start_bytes* into the workspace."""
    x = own.x
    weight = GmTiles(WORKSPACE, start_bytes, own.columns, x.k)
    return x, weight, own.matrices, own.output, own.of_columns(own.p.bias)


def _product(core: CubeCore, p: Problem, plan: AntiquantPlan) -> Callable[..., None]:
    """The stage for a block: rows of x by dequantised columns."""

    def dequantised(k: int) -> GmMatrix:
        """The columns in the workspace, of a weight with this *k*."""
        sizes = (plan.round_n, k) if p.trans_weight else (k, plan.round_n)
        return GmMatrix(WORKSPACE, p.types.x, *sizes, not p.trans_weight)

    longest = int(p.groups.k.argmax())
    k, bias_type = int(p.groups.k[longest]), p.bias[0].element if p.bias else None
    of_x, _ = matrices_of(p, int(p.groups.x[longest]), int(p.groups.weight[longest]))
    cube = Matmul(core, plan.tile, of_x, dequantised(k), k, bias=bias_type, unit_flag=True)

    def product(
        x: GmTile, weight: GmTile, matrices: Matrices, output: GmView, bias: GmView | None
    ) -> None:
        # (rows, k) @ (k, columns), fp32 sums that start from the bias or from zero
        cube.use(matrices[0], dequantised(x.k))
        cube.fixpipe(output, cube.multiply(x.extent, weight.extent, x.k, bias=bias))

    return product


# ---- vector cores ----


def _dequantised(
    core: VectorCore, p: Problem, plan: AntiquantPlan, parts: Parts, place_bytes: int
) -> list[Step]:
    """Dequantise the columns of *parts* when their part of the workspace is free."""
    stage, found = _writer(core, p, plan), []
    of_weight = p.groups.weight[parts.group]
    for place in np.unique(of_weight).tolist():
        # Rows of a single weight tensor are equally far apart.
        own, (k, n) = parts.select(of_weight == place), p.weight_shape(place)
        size, weight = group_k(p, place), own.weight_called("weight")
        start_bytes = own.turn % PLACES * place_bytes
        parameters = own.of_columns(p.antiquant_offset), own.of_columns(p.antiquant_scale)
        views = [
            ("weight", p.types.weight, weight.offset_bytes, k, n),
            (WORKSPACE, p.types.x, start_bytes, k, plan.round_n),
            *((x.name, x.dtype, x.offset_bytes, k // size, n) for x in parameters if x is not None),
        ]
        given: list[Any] = []
        for name, dtype, offset, rows, pitch in views:
            shape = np.full_like(own.columns, rows), own.columns
            if p.trans_weight:
                given.append(GmViews(name, dtype, *shape[::-1], rows, offset))
            else:
                given.append(GmViews(name, dtype, *shape, pitch, offset))
        number = 0 if plan.template == "antiquant" else own.core
        given += [size, number, own.turn >= PLACES]
        found.append(Step(stage, tuple(given), own.core, own.order))
    return found


def _writer(core: VectorCore, p: Problem, plan: AntiquantPlan) -> Callable[..., None]:
    """The stage of a vector core for the columns of a block or round."""
    groups, steps = p.groups, (plan.ub_rows, plan.ub_columns)
    k_step, n_step = steps[::-1] if p.trans_weight else steps
    longest = int(groups.k.argmax())
    place, k, n = (int(each[longest]) for each in (groups.weight, groups.k, groups.n))
    shape = (n, 1) if p.trans_weight else (k // group_k(p, place), n)
    names = "antiquant_offset", "antiquant_scale"
    offset, scale = (GmView.of(name, p.types.x, *shape) for name in names)
    matrix, dtype = matrices_of(p, 0, place)[1], FLOAT16 if p.types.x is FLOAT16 else FLOAT32
    weight = QuantisedWeight(matrix, k, n, group_k(p, place), offset, scale)
    precision = Precision(dtype, dtype, p.types.x)
    dequantiser = Dequantiser(core, weight, precision, *steps, depth=1)

    def part(view: GmView, of_k: slice, of_n: slice) -> GmView:
        return view[of_n, of_k] if p.trans_weight else view[of_k, of_n]

    def write(views: tuple[GmView, ...], size: int, first: int, stop: int) -> None:
        """Write positions [first, stop) of k for all columns, in pieces that fit the buffers."""
        weight, output, offset, scale = views
        for start in range(first // k_step * k_step, stop, k_step):
            of_k = slice(max(start, first), min(start + k_step, stop))
            # The ends of groups of k within this piece, including the last one.
            count, group = of_k.stop - of_k.start, of_k.start // size
            ends = *range(size - of_k.start % size, count, size), count
            of_groups = slice(group, group + len(ends))
            for column, width in pieces(weight.rows if p.trans_weight else weight.columns, n_step):
                of_n = slice(column, column + width)
                areas = part(weight, of_k, of_n), part(output, of_k, of_n)
                parameters = (part(each, of_groups, of_n) for each in (offset, scale))
                dequantiser.write_views(*areas, ends, *parameters)

    def stage(
        weight: GmView,
        output: GmView,
        offset: GmView,
        scale: GmView,
        size: int,
        number: int,
        is_reused: bool,
    ) -> None:
        """*size* is that of a group of k with its own offset and scale."""
        if is_reused:
            core.cross_core_wait_flag("group", "mte3", READ)
        k = weight.columns if p.trans_weight else weight.rows
        for first, stop in _own_k(k, plan, number):
            write((weight, output, offset, scale), size, first, stop)
        if plan.template == "antiquant":
            core.cross_core_set_flag("group", "mte3", FILLED)
        else:
            sync_all(core, "mte3", "mte3", ALL_VECTORS, FILLED)

    return stage


def _own_k(k: int, plan: AntiquantPlan, number: int) -> Iterator[tuple[int, int]]:
    """The positions of k for vector core *number*: all, or alternate chunks of a share."""
    if plan.template == "antiquant":
        yield 0, k
        return
    core, half = divmod(number, 2)
    share = max(LEAST_ROWS, align_up(ceil_div(k, plan.block_dim), LEAST_ROWS))
    begin, end = min(core * share, k), min((core + 1) * share, k)
    for index, (first, rows) in enumerate(pieces(end - begin, plan.ub_rows)):
        if index % 2 == half:
            yield begin + first, begin + first + rows
