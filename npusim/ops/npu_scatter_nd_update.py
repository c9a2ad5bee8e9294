"""npu_scatter_nd_update: rows of a tensor replaced, at given indices.

.. code-block:: text

    self[indices[i, 0], ..., indices[i, a - 1], ...] = updates[i, ...]

*indices* is `(..., a)`, with a index values for the first a dimensions of *self*; the remaining
dimensions form a row. The bits are copied unchanged. npu_scatter_nd_update_ writes in place, like
the kernel; npu_scatter_nd_update returns a new tensor, and its time does not include the kernel
that copies *self* first. `npusim.run` returns a new array.

Sources: ops-nn@e5c3fa9 index/scatter_nd_update, op_host/arch22 and op_kernel/arch22, in its default
mode, and the operator's document (op-plugin@517f2e7). Atlas A2 and A3. Not simulated:

* On Atlas inference another kernel runs, which was not read; npusim refuses.
* An index that is out of range or repeated is undefined on a card (of equal ones the last seems to
  win) and refused here.
* The hardware's sort of the indices takes no time: its cycles are not public.

Without values of *indices* they are assumed to be spread evenly over the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT8,
    INT32,
    INT64,
    UINT8,
    Array,
    DType,
)
from npusim.data.integers import align_down, align_up
from npusim.data.tensor import Operand
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, FLOATS_PER_BLOCK, Local, ScalarLoad, ScalarLoop
from npusim.kernel import (
    Binding,
    Block,
    GmView,
    GmViews,
    Step,
    VectorCore,
    pieces,
    share,
    sync_all,
)
from npusim.kernel.sequences import count_up
from npusim.kernel.steps import Integers
from npusim.ops import _vocabulary as ops
from npusim.ops._vocabulary import A2_A3, alike

TYPES = (FLOAT32, FLOAT16, BFLOAT16, INT64, INT8)
"""The document has bool, too, which npusim has no name for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: self is `(rows, row_bytes)` bytes, updates `(count, row_bytes)`."""

    rows: int
    row_bytes: int
    count: int
    """Index tuples."""
    strides: tuple[int, ...]
    """Rows per unit of each index in a tuple."""
    index_type: DType
    places: tuple[int, ...] | None
    """The row that each update replaces; None without values."""


SUPPORT = alike(TYPES, "self", "updates", on=A2_A3, indices=(INT32, INT64))


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    x, where = contract.operand("self"), contract.operand("indices")
    contract.require(
        len(where.shape) >= 2,
        f"indices must have at least two dimensions, not {len(where.shape)}; reshape it",
    )
    depth = where.shape[-1]
    contract.require(
        1 <= depth <= len(x.shape),
        f"indices must have a last dimension in [1, {len(x.shape)}], the dimensions of self, not "
        f"{depth}; index no more than there are",
    )
    y = contract.operand("updates")
    wanted = (*where.shape[:-1], *x.shape[depth:])
    contract.require(
        y.shape == wanted,
        f"updates must have shape {wanted} for indices of shape {where.shape} and self of shape "
        f"{x.shape}, not {y.shape}; pass a row for each index",
    )
    leading = x.shape[:depth]
    count = prod(where.shape[:-1])
    return Problem(
        inputs=(x, where, y),
        outputs={"self": x.spec},
        rows=prod(leading),
        row_bytes=x.element.nbytes(prod(x.shape[depth:])),
        count=count,
        strides=tuple(prod(leading[axis + 1 :]) for axis in range(depth)),
        index_type=where.element,
        places=_places(contract, where, leading, count),
    )


def _places(
    contract: ops.Contract, where: Operand, leading: tuple[int, ...], count: int
) -> tuple[int, ...] | None:
    """The row of each tuple of *where* in the dimensions *leading*, each at most once."""
    rows = prod(leading)
    contract.require(
        count <= rows,
        f"indices must name each of the {rows} rows of self once at most, not {count} rows; "
        f"leave out what others replace",
    )
    if where.array is None:
        return None
    numbers = where.array.reshape(count, len(leading))
    remedy = "a card would write elsewhere: correct them"
    for axis, size in enumerate(leading):
        of = f"dimension {axis} of self"
        contract.indices("indices", numbers[:, axis], range(size), "places", of, remedy)
    if not count:
        return ()
    places: Array = np.array(np.ravel_multi_index(tuple(numbers.T), leading))
    _, first, counts = np.unique(places, return_index=True, return_counts=True)
    for tuple_number in first[counts > 1][:1]:
        contract.fail(
            f"indices must name each place once, not {tuple(map(int, numbers[tuple_number]))} "
            f"twice: which update is kept is open on a card; leave one of them out"
        )
    return tuple(places.tolist())


# ---- tiling ----

MOST_TUPLES, TUPLE_UNIT = 4096, 32
"""The most tuples of a tile, and their unit (scatter_nd_update_tiling, arch22)."""
SORTED_ROWS = 2**24
"""With fewer rows indices are sorted, as float32 holds them (the same file)."""
MORE_WORDS = 3
"""Words of the buffer for a tuple in addition to its indices (the same file)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Each core prepares tiles of tuples, then replaces the rows of its own range."""

    template: Literal["sorted", "scanned"]
    tile_tuples: int
    rows_of_core: tuple[range, ...]


def tile(spec: DeviceSpec, p: Problem) -> Plan | None:
    """Take as many cores as there are rows and tuples for; None without tuples.

    ops-nn@e5c3fa9 index/scatter_nd_update/op_host/arch22. Assumed: rows are split evenly.
    """
    if not p.count:
        return None
    cores = min(len(spec.vector_cores), p.rows, p.count)
    words = len(p.strides) * (2 if p.index_type is INT64 else 1) + MORE_WORDS
    ub_bytes = spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    most = align_down(ub_bytes // INT32.nbytes(words), TUPLE_UNIT)
    is_sorted = p.rows < SORTED_ROWS
    return Plan(
        block_dim=cores,
        template="sorted" if is_sorted else "scanned",
        reason=f"{'fewer than' if is_sorted else 'at least'} {SORTED_ROWS} rows",
        tile_tuples=min(MOST_TUPLES, most),
        rows_of_core=tuple(share(p.rows, cores, core) for core in range(cores)),
        workspaces={"rows": INT32.nbytes(p.count), "positions": INT32.nbytes(p.count)},
    )


# ---- kernel: op_kernel/arch22 ----

READY = 0
"""The flag of all cores: every tile is in the workspace."""
ROW, POSITION = "row", "position"
"""Registers."""
BEFORE = -1
"""The order of each core's work before it replaces rows."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Convert the index tuples to row indices first, tiles assigned to cores round-robin.

    They go to a workspace with their positions, sorted if float32 holds them. When all cores are
    done, each searches every tile for the rows of its range, in ascending order, and replaces them:
    the scalar unit reads the position, and the update passes through the buffer, several together.
    Assumed: as many pass together as the buffer has space for, long ones pass in pieces, and Gather
    extracts the indices of one dimension from the tuples.
    """
    tiles = [*pieces(p.count, plan.tile_tuples)]
    found = _found(p, plan)
    blocks: list[Block] = []
    # Cores allocate space for their own tuples and rows: those with equal sizes are alike.
    sizes = [
        (tiles[core][1] if core < len(tiles) else 0, len(plan.rows_of_core[core]))
        for core in range(plan.block_dim)
    ]
    for size in dict.fromkeys(sizes):
        cores = np.array([core for core, own in enumerate(sizes) if own == size])
        core = VectorCore("npu_scatter_nd_update", spec)
        kernel = ScatterNdUpdate(core, p, plan, *size)
        steps = kernel.steps(cores, tiles, found.select(np.isin(found.core, cores)))
        blocks += core.launch(*steps, bound=partial(_bound, p))
    return tuple(sorted(blocks, key=lambda block: block.core))


class Found(NamedTuple):
    """The updates in the order in which cores find them, an entry for each."""

    core: Integers
    tile: Integers
    rank: Integers
    """Its index among those that its core finds in the tile."""
    update: Integers
    row: Integers

    def select(self, chosen: NDArray[np.bool_]) -> Found:
        """Select some of them."""
        return Found(*(each[chosen] for each in self))


def _found(p: Problem, plan: Plan) -> Found:
    """The updates tile by tile; in sorted tiles by ascending row."""
    update = np.arange(p.count)
    row = update * p.rows // p.count if p.places is None else np.array(p.places, np.int64)
    starts = [own.start for own in plan.rows_of_core]
    core, tile = np.searchsorted(starts, row, "right") - 1, update // plan.tile_tuples
    order = np.lexsort((row if plan.template == "sorted" else update, tile, core))
    both = (core * p.count + tile)[order]
    rank = update - np.searchsorted(both, both)
    return Found(core[order], tile[order], rank, update[order], row[order])


def _bound(p: Problem, _: int) -> dict[str, Binding]:
    """Bind all names to whole tensors on each core."""
    return {name: Binding(name) for name in (*(x.name for x in p.inputs), "rows", "positions")}


class ScatterNdUpdate:
    """The buffers of a core with tiles of up to *most* tuples and a range of *rows*."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan, most: int, rows: int) -> None:
        self.core, self.p, self.plan = core, p, plan
        x, indices, updates = p.inputs
        self.x = GmView.of(x.name, UINT8, p.rows, p.row_bytes)
        self.updates = GmView.of(updates.name, UINT8, p.count, p.row_bytes)
        self.indices = GmView.vector(indices.name, p.index_type, p.count * len(p.strides))
        self.rows = GmView.vector("rows", INT32, p.count)
        self.positions = GmView.vector("positions", INT32, p.count)
        if most:
            self.tuples = core.tile(p.index_type, most * len(p.strides))
            self.places, self.numbers, self.linear = (core.tile(INT32, most) for _ in range(3))
        # The buffers of each stage are allocated anew.
        core.reset_buffers()
        self.list_count = align_up(min(plan.tile_tuples, p.count), FLOATS_PER_BLOCK)
        self.listed = core.tiles(INT32, 2 * self.list_count, "mte2", "scalar")
        pitch_bytes = align_up(p.row_bytes, BLOCK_BYTES)
        room_bytes = align_down(core.room_bytes("ub"), BLOCK_BYTES)
        self.together = max(1, min(room_bytes // pitch_bytes, rows))
        self.piece_bytes = min(pitch_bytes, room_bytes)
        self.passing = core.tiles(UINT8, self.together * self.piece_bytes, "mte2", "mte3")

    def steps(self, cores: Integers, tiles: list[tuple[int, int]], found: Found) -> list[Step]:
        """The steps of *cores*: their tiles of tuples, then their range's rows in every tile."""
        number = np.arange(len(tiles))
        own = np.isin(number % self.plan.block_dim, cores)
        write = [tiles[each] for each in number[own]], number[own] % self.plan.block_dim
        core, tile = np.repeat(cores, number.size), np.tile(number, cores.size)
        first, count = np.array(tiles).T[:, tile]
        lists = [GmViews.of(view, 0, first, 1, count) for view in (self.rows, self.positions)]
        # By tile, then by group of rows that pass together, then by piece of them.
        left, width = np.array([*pieces(self.p.row_bytes, self.piece_bytes)]).reshape(-1, 2).T
        group, place = np.divmod(found.rank, self.together)
        is_last = np.append(place[1:] == 0, True)[: place.size]
        item, piece = (x.ravel() for x in np.mgrid[: place.size, : left.size])
        groups = self.plan.tile_tuples // self.together + 1
        turn = (found.tile[item] * groups + group[item]) * left.size + piece
        # The loads of a group, then its stores.
        order = 2 * turn * self.together + place[item]
        of_tile = 2 * groups * max(1, left.size) * self.together
        columns = left[piece], 1, width[piece]
        update, row = (
            replace(GmViews.of(view, index[item], *columns), pitch=0)
            for view, index in ((self.updates, found.update), (self.x, found.row))
        )
        take = Step(self.take, (place[item], update), found.core[item], order, True)
        arguments, order = (place[item], is_last[item], row), order + self.together
        return [
            Step(self.write, write[:1], write[1], np.full(write[1].size, BEFORE)),
            Step(self.meet, (), cores, np.full(cores.size, BEFORE)),
            Step(self.look, tuple(lists), core, tile * of_tile, keeps_slots=True),
            take,
            Step(self.put, arguments, found.core[item], order, keeps_slots=True),
            Step(self.forget, (), core, (tile + 1) * of_tile - 1, keeps_slots=True),
        ]

    # ---- tuples ----

    def write(self, tile: tuple[int, int]) -> None:
        """Write the rows that a *tile* of tuples selects, and their positions."""
        core, depth, (first, count) = self.core, len(self.p.strides), tile
        here = self.indices[:, first * depth : (first + count) * depth]
        tuples = self.tuples[: here.columns]
        core.data_copy(tuples, here.operand)
        core.sync("mte2", "vector")
        if self.p.index_type is not INT32:
            narrow = tuples.as_dtype(INT32, here.columns)
            core.cast(narrow, tuples, "none")
            tuples = narrow
        rows = self._linear(tuples, count)
        if self.plan.template == "sorted":
            keys = self.numbers[:count].as_dtype(FLOAT32)
            core.cast(keys, rows)
            core.cast(rows, keys)
        places = self.places[:count]
        count_up(core, places, first)
        core.sync("vector", "mte3")
        there = slice(first, first + count)
        core.data_copy(self.rows[:, there].operand, rows)
        core.data_copy(self.positions[:, there].operand, places)
        # Before the next tile is loaded.
        core.barrier()

    def _linear(self, tuples: Local, count: int) -> Local:
        """The row index for each of *tuples* `(count, a)`."""
        core, strides = self.core, self.p.strides
        if len(strides) == 1:
            return tuples
        rows, numbers, places = (x[:count] for x in (self.linear, self.numbers, self.places))
        core.duplicate(rows, 0)
        count_up(core, places, 0, INT32.nbytes(len(strides)))
        for axis, stride in enumerate(strides):
            if axis:
                core.add(places, places, INT32.nbytes(1))
            core.gather(numbers, tuples, places)
            core.mul(numbers, numbers, stride)
            core.add(rows, rows, numbers)
        return rows

    def meet(self) -> None:
        """Wait until all cores are done with their tiles."""
        self.core.end_stage()
        sync_all(self.core, "mte3", "mte2", READY)

    # ---- rows ----

    def look(self, rows: GmView, positions: GmView) -> None:
        """Load a tile, and search it for the rows of the core's range."""
        listed, count = self.core.load_rows(self.listed, rows, positions), rows.columns
        # Binary search for both ends of the range, one entry a step.
        looks = 2 * count.bit_length() if self.plan.template == "sorted" else count
        self.core.emit(ScalarLoop(looks, (ScalarLoad(ROW, listed[:1]),)))

    def forget(self) -> None:
        """Signal that the tile has been read."""
        self.listed.free(self.listed.only)

    def take(self, place: int, update: GmView) -> None:
        """Load an *update* as index *place* of those that pass together."""
        core, listed = self.core, self.listed.only
        if place == 0:
            self.passing.alloc()
        # The list is sorted: the position of an entry does not change its time.
        core.get_value(ROW, listed[place : place + 1])
        core.get_value(POSITION, listed.at(self.list_count + place, 1))
        core.data_copy(self._room(place, update), update.operand)
        core.sync("mte2", "scalar")

    def put(self, place: int, is_last: bool, row: GmView) -> None:
        """Store index *place* to its *row*, when all have been loaded."""
        if place == 0:
            self.passing.enque(self.passing.only)
            self.passing.deque()
        self.core.data_copy(row.operand, self._room(place, row))
        if is_last:
            self.passing.free(self.passing.only)

    def _room(self, place: int, view: GmView) -> Local:
        return self.passing.only.at(place * self.piece_bytes, view.columns)


# ---- oracle ----


def oracle(given: ops.Given) -> Array:
    """self with updates, `(*indices.shape[:-1], *self.shape[a:])`, at indices `(..., a)`."""
    result = np.array(given.self)
    result[tuple(np.moveaxis(given.indices, -1, 0))] = given.updates
    return result


def _outputs(given: ops.TorchArguments, _: object) -> tuple[tuple[tuple[int, ...], str]]:
    return ((given["self"].shape, given["self"].dtype),)


IN_PLACE = ops.TorchFunction(
    schema="npu_scatter_nd_update_(Tensor(a!) self, Tensor indices, Tensor updates) -> Tensor(a!)",
    aclnn=lambda _: "aclnnScatterNdUpdate",
    outputs=_outputs,
    into=("self",),
)
FUNCTIONAL = ops.TorchFunction(
    schema="npu_scatter_nd_update(Tensor self, Tensor indices, Tensor updates) -> Tensor",
    aclnn=lambda _: "aclnnScatterNdUpdate",
    outputs=_outputs,
)

OPERATOR = ops.Operator(
    kernel_type="ScatterNdUpdate",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    value_dependent_inputs=("indices",),
    torch=(FUNCTIONAL, IN_PLACE),
)
