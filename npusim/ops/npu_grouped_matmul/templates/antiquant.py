"""The templates antiquant and antiquant_performance: a weight of int8 or int4 by float rows.

Vector cores dequantise the weight into a workspace, and cube cores multiply by what they find
there. Both templates give the same numbers (ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel,
grouped_matmul_antiquant*.h; op_host/op_tiling/grouped_matmul_tiling.cpp).

In antiquant each cube core has one vector core, which makes all of k of the columns of a block,
again for each block of rows; of two places in the workspace one is filled while the cube core
multiplies by the other.

In antiquant_performance all vector cores make the columns of a round together: as many blocks of
256 columns as there are cores, or as a part of the workspace holds. They share its k, two of a
group taking turns with the chunks of their share, and wait for each other; then the cube cores
share its blocks. Of two parts of the workspace one is filled while the other is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, DType
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    BaseTile,
    Binding,
    Block,
    Choices,
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
from npusim.kernel.steps import Integers, spread
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

__all__ = ["AntiquantPlan", "build", "tile"]

FILLED, READ, ALL_VECTORS, ALL_CUBES = range(4)
"""Flags between a cube core and its vector cores: columns are in the workspace; they were read. All
cores of a kind wait for each other."""
WORKSPACE = "dequantised"
PLACES = 2
"""Parts of the workspace, of a core or of all."""
BYTES_EACH: dict[tuple[DType, bool], int] = {
    (FLOAT16, False): 6,
    (BFLOAT16, False): 8,
    (FLOAT16, True): 5,
    (BFLOAT16, True): 7,
}
"""Type of x, whether the weight is int4 -> bytes of the unified buffer that the vendor counts for
an element."""
CHUNK = 4096
"""Elements of a chunk are a multiple of it."""
UB_COLUMNS, UB_COLUMNS_OF_K = 512, 256
"""Of a chunk, and where k lies inside."""
LEAST_K_OF_CORES = 5 * 2**20
"""k times 256 columns of all cores, from which all vector cores work together."""
LEAST_USE = 0.4
"""The share of cores that have a block, from which they do."""
ROUND, ROUND_OF_WIDE = 16 * 2**20, 10 * 2**20
"""Elements of a round, and where there are many columns."""
WIDE = 5120
LEAST_ROWS = 8
"""k of a vector core's share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AntiquantPlan(Plan):
    """Base tiles, and what a vector core dequantises at a time."""

    ub_rows: int
    """Rows of a chunk of the weight as it lies."""
    ub_columns: int
    round_n: int
    """Columns that are in the workspace together."""


def tile(spec: DeviceSpec, p: Problem) -> AntiquantPlan:
    """Base tiles; rounds of as many blocks of columns as cores take, or a block a core."""
    base, cores = _cube_tile(spec, p), cores_of(spec)
    k, n = int(p.groups.k.max()), int(p.groups.n.max())
    is_shared = _is_performance(spec, p)
    round_n, places = base.n, PLACES * cores
    if is_shared:
        elements = ROUND if n <= WIDE else ROUND_OF_WIDE
        used = min(ceil_div(elements, k * base.n), cores, ceil_div(n, base.n))
        round_n, places = used * base.n, PLACES
    # k lies inside a transposed weight; else the chunk of a core is as wide as the tile.
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
    """Whether there are so many blocks and so much k that all vector cores work together."""
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
    """The base tile; the end of L1, where messages of vector cores come, is not for operands."""
    core = spec.cores["aic"]
    messages_bytes = (core.l1_bytes or 0) - core.usable_bytes("l1")
    return base_tile(spec, p.types.x, rows_of(p), table_bytes=table_bytes(p) + messages_bytes)


def _ub_rows(spec: DeviceSpec, p: Problem, columns: int) -> int:
    """Rows of a chunk of so many columns."""
    each_bytes = BYTES_EACH[p.types.x, p.types.weight is INT4]
    elements = align_down((spec.cores["aiv"].ub_bytes or 0) // each_bytes, CHUNK)
    return max(8, align_down(elements // columns, 8))


# ---- programs ----


def build(spec: DeviceSpec, p: Problem, plan: AntiquantPlan) -> tuple[Block, ...]:
    """A cube core and one or two vector cores a group."""
    cube, vector = CubeCore("npu_grouped_matmul", spec), VectorCore("npu_grouped_matmul", spec)
    names = bound(p)
    if plan.template == "antiquant_performance":
        names[WORKSPACE] = Binding(WORKSPACE)
        rounds = _Rounds.of(p, plan)
        steps = _shared_cube_steps(cube, p, plan, rounds)
        of_vectors = _shared_vector_steps(vector, p, plan, rounds)
        return launch_mixed(
            plan.block_dim, CoreSteps(cube, steps), CoreSteps(vector, of_vectors), lambda _: names
        )
    parts = Parts.dealt(p, plan.tile.m, plan.single_n, plan.block_dim)
    each_bytes = PLACES * _place_bytes(p, plan)
    return launch_mixed(
        plan.block_dim,
        CoreSteps(cube, _cube_steps(cube, p, plan, parts)),
        CoreSteps(vector, _vector_steps(vector, p, plan, parts)),
        lambda core: names | {WORKSPACE: Binding(WORKSPACE, core * each_bytes)},
        vector_cores=1,
    )


def _place_bytes(p: Problem, plan: AntiquantPlan) -> int:
    """A part of the workspace."""
    return p.types.x.nbytes(int(p.groups.k.max()) * plan.round_n)


def _cube_steps(core: CubeCore, p: Problem, plan: AntiquantPlan, parts: Parts) -> tuple[Step, ...]:
    """antiquant: each block when its columns are there."""
    products, place_bytes = _Products(core, p, plan), _place_bytes(p, plan)

    def block(*arguments: Any) -> None:
        core.cross_core_wait_flag("group", "mte2", FILLED)
        products.block(*arguments)
        core.cross_core_set_flag("group", "fixpipe", READ)

    def arguments(own: Parts) -> tuple[Any, ...]:
        return products.arguments(own, own.turn % PLACES * place_bytes)

    return read_list(p, core, plan.block_dim, parts), *parts.steps(block, arguments)


def _vector_steps(
    core: VectorCore, p: Problem, plan: AntiquantPlan, parts: Parts
) -> tuple[Step, ...]:
    """antiquant: the columns of each block, as soon as a part of the workspace is free."""

    def wait() -> None:
        core.cross_core_wait_flag("group", "mte3", READ)

    def set_filled() -> None:
        core.cross_core_set_flag("group", "mte3", FILLED)

    none, k = np.zeros_like(parts.core), p.groups.k[parts.group]
    reused = parts.select(parts.turn >= PLACES)
    start_bytes = parts.turn % PLACES * _place_bytes(p, plan)
    return (
        read_list(p, core, plan.block_dim, parts),
        Step(wait, (), reused.core, reused.order),
        *_dequantised(core, p, plan, parts, none, k, start_bytes),
        Step(set_filled, (), parts.core, parts.order),
    )


@dataclass(frozen=True, eq=False)
class _Rounds:
    """Columns of groups that are in the workspace together, `(rounds,)` each, in order."""

    group: Integers
    column: Integers
    columns: Integers

    @staticmethod
    def of(p: Problem, plan: AntiquantPlan) -> _Rounds:
        """Those of all groups with rows."""
        groups = p.groups
        every = np.flatnonzero((groups.m > 0) & (groups.k > 0))
        which, number = spread(-(-groups.n[every] // plan.round_n))
        group, column = every[which], number * plan.round_n
        return _Rounds(group, column, np.minimum(plan.round_n, groups.n[group] - column))

    def start_bytes(self, p: Problem, plan: AntiquantPlan) -> Integers:
        """Where in the workspace each begins."""
        return np.arange(self.group.size) % PLACES * _place_bytes(p, plan)

    def step(
        self, stage: Callable[[], None], cores: int, first: int = 0, last: int | None = None
    ) -> Step:
        """*stage* on all cores, for each of rounds [*first*, *last*), whose number is the order."""
        end = self.group.size if last is None else last
        order, core = np.mgrid[first : max(first, end), :cores]
        return Step(stage, (), core.reshape(-1), order.reshape(-1))


def _shared_cube_steps(
    core: CubeCore, p: Problem, plan: AntiquantPlan, rounds: _Rounds
) -> tuple[Step, ...]:
    """antiquant_performance: the blocks of each round, row after row, when it is filled."""
    products, base, cores = _Products(core, p, plan), plan.tile, plan.block_dim
    start_bytes = rounds.start_bytes(p, plan)
    m = p.groups.m[rounds.group]
    across = -(-rounds.columns // base.n)
    order, number = spread(-(-m // base.m) * across)
    row, column = (number // across[order] * base.m, number % across[order] * base.n)
    parts = Parts(
        p,
        core=number % cores,
        order=order,
        turn=np.zeros_like(order),
        group=rounds.group[order],
        row=row,
        column=rounds.column[order] + column,
        rows=np.minimum(base.m, m[order] - row),
        columns=np.minimum(base.n, rounds.columns[order] - column),
    )

    def arguments(own: Parts) -> tuple[Any, ...]:
        inside = own.column - rounds.column[own.order]
        return products.arguments(own, start_bytes[own.order] + p.types.x.nbytes(1) * inside)

    def wait() -> None:
        core.cross_core_wait_flag("group", "mte2", FILLED)

    def free() -> None:
        sync_all(core, "fixpipe", "fixpipe", ALL_CUBES, READ)

    return (
        read_list(p, core, cores),
        rounds.step(wait, cores),
        *parts.steps(products.block, arguments),
        rounds.step(free, cores, last=rounds.group.size - PLACES),
    )


def _shared_vector_steps(
    core: VectorCore, p: Problem, plan: AntiquantPlan, rounds: _Rounds
) -> tuple[Step, ...]:
    """antiquant_performance: a share of k of each round, then all wait for each other."""
    cores, groups = 2 * plan.block_dim, p.groups

    def wait() -> None:
        core.cross_core_wait_flag("group", "mte3", READ)

    def all_filled() -> None:
        sync_all(core, "mte3", "mte3", ALL_VECTORS, FILLED)

    chunks = {k: _chunks_of_k(k, plan) for k in set(groups.k[rounds.group].tolist())}
    own = [chunks[k] for k in groups.k[rounds.group].tolist()]
    order = np.repeat(np.arange(rounds.group.size), [each.shape[1] for each in own])
    owner, first, stop = np.concatenate([np.zeros((3, 0), np.int64), *own], axis=1)
    group = rounds.group[order]
    parts = Parts(
        *(p, owner, order, np.zeros_like(order), group, np.zeros_like(order)),
        column=rounds.column[order],
        rows=groups.m[group],
        columns=rounds.columns[order],
    )
    start_bytes = rounds.start_bytes(p, plan)[order]
    return (
        read_list(p, core, cores),
        rounds.step(wait, cores, first=PLACES),
        *_dequantised(core, p, plan, parts, first, stop, start_bytes),
        rounds.step(all_filled, cores),
    )


def _chunks_of_k(k: int, plan: AntiquantPlan) -> Integers:
    """The chunks of all vector cores, `(3, chunks)`: core, first position of k, and the end."""
    cores, found = plan.block_dim, []
    share = max(LEAST_ROWS, align_up(ceil_div(k, cores), LEAST_ROWS))
    for core in range(cores):
        own = range(min(core * share, k), min((core + 1) * share, k))
        for index, (first, rows) in enumerate(pieces(len(own), plan.ub_rows)):
            start = own.start + first
            found.append((2 * core + index % 2, start, start + rows))
    return np.array(found, np.int64).T


# ---- the dequantised weight ----


def _dequantised(
    core: VectorCore,
    p: Problem,
    plan: AntiquantPlan,
    parts: Parts,
    first: Integers,
    stop: Integers,
    start_bytes: Integers,
) -> tuple[Step, ...]:
    """Write positions [*first*, *stop*) of k of the weight, for the columns of *parts*.

    They go to the part of the workspace that begins *start_bytes* into it.
    """
    dequantiser = _dequantiser(core, p, plan)

    def chunk(
        weight: GmView, output: GmView, ends: tuple[int, ...], offset: GmView, scale: GmView
    ) -> None:
        dequantiser.write_views(weight, output, ends, offset, scale)

    k_step, n_step = plan.ub_rows, plan.ub_columns
    if p.trans_weight:
        k_step, n_step = n_step, k_step
    # Pieces begin at multiples of the step but for the first.
    part, number = spread(-(-stop // k_step) - first // k_step)
    edge = (first[part] // k_step + number) * k_step
    k, end = np.maximum(first[part], edge), np.minimum(stop[part], edge + k_step)
    piece, number = spread(-(-parts.columns[part] // n_step))
    part, k, k_count, column = part[piece], k[piece], (end - k)[piece], number * n_step
    chunks = _Chunks(
        parts.select(part),
        k,
        k_count,
        column,
        np.minimum(n_step, parts.columns[part] - column),
        start_bytes[part],
    )
    steps = []
    for own in map(chunks.select, chunks.of_weights()):
        steps.append(Step(chunk, own.arguments(plan), own.parts.core, own.parts.order))
    return tuple(steps)


def _dequantiser(core: VectorCore, p: Problem, plan: AntiquantPlan) -> Dequantiser:
    """The buffers of a vector core."""
    groups = p.groups
    longest = int(groups.k.argmax())
    place, k, n = (int(each[longest]) for each in (groups.weight, groups.k, groups.n))
    size = group_k(p, place)
    shape = (n, 1) if p.trans_weight else (k // size, n)
    offset, scale = (
        GmView.of(name, p.types.x, *shape) for name in ("antiquant_offset", "antiquant_scale")
    )
    weight = QuantisedWeight(matrices_of(p, 0, place)[1], k, n, size, offset, scale)
    dtype = FLOAT16 if p.types.x is FLOAT16 else FLOAT32
    precision = Precision(dtype, dtype, p.types.x)
    return Dequantiser(core, weight, precision, plan.ub_rows, plan.ub_columns, depth=1)


@dataclass(frozen=True, eq=False)
class _Chunks:
    """What is dequantised at a time, `(chunks,)` each: some k of some columns of a part."""

    parts: Parts
    k: Integers
    k_count: Integers
    column: Integers
    columns: Integers
    start_bytes: Integers

    def select(self, chosen: Any) -> _Chunks:
        """Some of them."""
        others = self.k, self.k_count, self.column, self.columns, self.start_bytes
        return _Chunks(self.parts.select(chosen), *(each[chosen] for each in others))

    def of_weights(self) -> Iterator[Any]:
        """The chunks of each tensor of weight, as a mask."""
        weight = self.parts.p.groups.weight[self.parts.group]
        for number in np.unique(weight).tolist():
            yield weight == number

    def arguments(self, plan: AntiquantPlan) -> tuple[Any, ...]:
        """The weight, where it goes, ends of groups of k, offsets, scales: of one tensor."""
        p, parts = self.parts.p, self.parts
        place = int(p.groups.weight[parts.group[0]])
        size, (k, n) = group_k(p, place), p.weight_shape(place)
        # Where groups of k end within a chunk, the last one with it.
        shapes, index = np.unique(
            np.stack([self.k % size, self.k_count]), axis=1, return_inverse=True
        )
        ends = tuple((*range(size - at, count, size), count) for at, count in shapes.T.tolist())
        index = index.reshape(-1)
        groups = np.array([len(each) for each in ends], np.int64)[index]
        of = p.antiquant_offset, p.antiquant_scale
        vectors = [found for found in map(parts.of_columns, of) if found is not None]
        if p.trans_weight:
            parameters = [
                self._views(each, self.columns, np.ones_like(groups), 1, self.column)
                for each in vectors
            ]
        else:
            first = self.k // size * n + self.column
            parameters = [self._views(each, groups, self.columns, n, first) for each in vectors]
        weight = parts.weight_called("weight")
        output = GmTiles(WORKSPACE, self.start_bytes, weight.extent, weight.k)
        matrices = (
            self._matrix(weight, p.types.weight, k if p.trans_weight else n),
            self._matrix(output, p.types.x, k if p.trans_weight else plan.round_n),
        )
        return *matrices, Choices(ends, index), *parameters

    def _matrix(self, tiles: GmTiles, dtype: DType, pitch: int) -> GmViews:
        """The chunks of a matrix, whose parts begin where *tiles* do."""
        if self.parts.p.trans_weight:
            rows, columns, first = self.columns, self.k_count, self.column * pitch + self.k
        else:
            rows, columns, first = self.k_count, self.columns, self.k * pitch + self.column
        offset = tiles.offset_bytes + first * dtype.bits // 8
        return GmViews(tiles.name, dtype, rows, columns, pitch, offset)

    def _views(
        self, vectors: GmViews, rows: Integers, columns: Integers, pitch: int, first: Integers
    ) -> GmViews:
        """*rows* x *columns* of a list of parameters, from element *first* of its part on."""
        offset = vectors.offset_bytes + first * vectors.dtype.bits // 8
        return GmViews(vectors.name, vectors.dtype, rows, columns, pitch, offset)


# ---- products ----


class _Products:
    """The products of a cube core: rows of x by dequantised columns."""

    def __init__(self, core: CubeCore, p: Problem, plan: AntiquantPlan) -> None:
        self.p, self.plan = p, plan
        longest = int(p.groups.k.argmax())
        k, bias = int(p.groups.k[longest]), p.bias[0].element if p.bias else None
        x, _ = matrices_of(p, int(p.groups.x[longest]), int(p.groups.weight[longest]))
        of_k = self._dequantised(k)
        self._cube = Matmul(core, plan.tile, x, of_k, k, bias=bias, unit_flag=True)

    def _dequantised(self, k: int) -> GmMatrix:
        """The columns in the workspace, of a weight of *k*."""
        p, width = self.p, self.plan.round_n
        sizes = (width, k) if p.trans_weight else (k, width)
        return GmMatrix(WORKSPACE, p.types.x, *sizes, not p.trans_weight)

    def arguments(self, own: Parts, start_bytes: Integers) -> tuple[Any, ...]:
        """What `block` gets: the columns of parts begin *start_bytes* into the workspace."""
        x, found = own.x, own.matrices
        weight = GmTiles(WORKSPACE, start_bytes, own.columns, x.k)
        options: list[Matrices] = []
        for of_x, of_weight in cast(tuple[Matrices, ...], found.options):
            k = of_weight.rows if of_weight.k_is_first else of_weight.columns
            options.append((of_x, self._dequantised(k)))
        matrices = Choices(tuple(options), found.index)
        return x, weight, matrices, own.output, own.of_columns(self.p.bias)

    def block(
        self, x: GmTile, weight: GmTile, matrices: Matrices, output: GmView, bias: GmView | None
    ) -> None:
        """`output (rows, columns) = x (rows, k) @ weight (k, columns) + bias (columns,)`."""
        self._cube.use(*matrices)
        sums = self._cube.multiply(x.extent, weight.extent, x.k, bias=bias)
        # L0C (columns / 16, rows_padded, 16) fp32 -> (rows, columns) of the output's type
        self._cube.fixpipe(output, sums)
