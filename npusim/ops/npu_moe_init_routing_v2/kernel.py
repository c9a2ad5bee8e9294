"""The program that each core runs for npu_moe_init_routing_v2.

The choices are sorted by expert. After all cores have synchronised, each takes a share of the
sorted list: it counts the rows of each expert, stores the index of rows, and copies the rows,
unchanged or as int8. Finally the first core converts the counts to the output. If experts have a
capacity, each core also zeroes a share of the unused places.

ops-transformer@c29bc10 moe/moe_init_routing_v3/op_kernel, moe_v3_gather_dynamic_quant.h. Assumed:

* a core processes its share in tiles, the place of each row is stored separately, from a separate
  block of the buffer, and rows of experts that are not active are not copied;
* a long row passes through the buffer in pieces, and the buffers of a quantised row are single
  except that the next row is loaded ahead;
* the scalar unit reads each expert of a core's share and writes each count once, each core adds its
  counts of all active experts at once, and the first core converts them to the output, one by one;
* for capacities everything: the scalar unit writes places, and zeros are stored exactly where no
  row is written.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, INT32, INT64, UINT8
from npusim.data.integers import align_down, align_up, distinct
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, FLOATS_PER_BLOCK, Global, Local, ScalarLoad, ScalarLoop, Store
from npusim.kernel import Binding, Block, GmView, GmViews, Step, VectorCore, pieces, share, sync_all
from npusim.kernel.reduction import Reduction
from npusim.kernel.sequences import count_up
from npusim.kernel.steps import Integers
from npusim.kernel.table import spread
from npusim.ops.npu_moe_init_routing_v2.check import CUMULATIVE, NOWHERE, PAIRS, Plan, Problem
from npusim.ops.npu_moe_init_routing_v2.sorting import BEFORE, Order, sorting

READY = 0
"""The flag by which all cores synchronise."""
AFTER = np.iinfo(np.int64).max
"""The order of a core's steps after its share of the rows."""
TILE = 256
"""Rows whose indices are loaded at a time."""
PHASES = 4
"""Phases of a tile: load its lists, store places, copy rows, release the lists."""
PLACES = 32
"""Places of rows that are prepared at a time."""
ZEROS_BYTES = 8192
"""Bytes of the buffer with zeros for unused places: assumed."""
LARGEST = 127.0
"""The quantised value of the largest magnitude of a row."""
PLACE, ROW, SCALE, EXPERT, COUNT, TOTAL = "place", "row", "scale", "expert", "count", "total"
"""Registers."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """The stages, each with its own buffers; all cores synchronise between them."""
    core, order = VectorCore("init_routing", spec), Order.of(p, plan)
    cores = np.arange(plan.block_dim)

    def meet() -> None:
        """Synchronise all cores, with nothing left to do."""
        core.end_stage()
        sync_all(core, "mte3", "mte2", READY)

    meeting = Step(meet, (), cores, np.full(cores.size, BEFORE))
    steps = [*sorting(core, p, plan, order, meeting), meeting, *_rows(core, p, plan, order)]
    core.reset_buffers()
    if p.has_counts:
        filled = [key for key in distinct(order.keys).tolist() if key in p.active]
        clear, write = _counts(core, p, filled)
        first = np.zeros(1, np.int64)
        steps.insert(0, Step(clear, (), first, first + BEFORE))
        steps.append(Step(meet, (), cores, np.full(cores.size, AFTER)))
        steps.append(Step(write, (), first, first + AFTER))
        core.reset_buffers()
    names = [operand.name for operand in p.inputs] + [*p.outputs, *plan.workspaces]
    bound = {name: Binding(name) for name in names}
    return core.launch(*steps, bound=lambda _: bound)


def _shared(count: int, parts: int) -> tuple[Integers, Integers]:
    """The core of each of *count* items, and its index on that core."""
    sizes = np.array([len(share(count, parts, core)) for core in range(parts)])
    return spread(sizes, np.zeros_like(sizes))


# ---- the share of a core ----


def _rows(core: VectorCore, p: Problem, plan: Plan, order: Order) -> list[Step]:
    """The work of each core on the sorted list, tile after tile."""
    work = _Share(core, p, plan, order)
    cores, number = _shared(p.rows, plan.block_dim)
    position, choices, places = np.arange(p.rows), order.choices, order.places

    def when(phase: int, chosen: Integers) -> tuple[Integers, Integers]:
        """The cores of *chosen* rows, and the order of this phase of their tiles."""
        return cores[chosen], (number[chosen] // TILE * PHASES + phase) * p.rows + position[chosen]

    first, starts = np.flatnonzero(number == 0), np.flatnonzero(number % TILE == 0)
    sizes = np.diff([*starts.tolist(), p.rows])
    lists = [
        GmViews.of(GmView.vector(f"sorted_{name}", INT32, p.rows), 0, starts, 1, sizes)
        for name in ("rows", "experts")
    ]
    index = GmView.vector("expanded_row_idx", INT32, p.rows)
    before = np.full(first.size, BEFORE)
    begin_at = first - PLACES if p.by_source else 0 * first
    steps = [*work.padding, Step(work.begin, (begin_at,), cores[first], before)]
    steps.append(Step(work.take, tuple(lists), *when(0, starts), keeps_slots=True))
    if p.by_source:
        slots = number % TILE % PLACES
        groups = np.flatnonzero(slots == 0)
        if p.capacity is None:
            steps.append(Step(work.places.count_on, (), *when(1, groups)))
        else:
            given = [tuple(group.tolist()) for group in np.split(places, groups[1:])]
            steps.append(Step(work.places.write, (given,), *when(1, groups)))
        slots = np.where(places == NOWHERE, NOWHERE, slots)
        there = GmViews.of(index, 0, choices, 1, 1)
        steps.append(Step(work.put, (slots, there), *when(1, position)))
    else:
        there = GmViews.of(index, 0, starts, 1, sizes)
        steps.append(Step(work.put_sources, (there,), *when(1, starts)))
    steps.append(Step(work.copy, work.rows, *when(2, np.flatnonzero(places != NOWHERE))))
    steps.append(Step(work.free, (), *when(3, starts), keeps_slots=True))
    if work.counts is not None:
        found = [_found(p, part) for part in np.split(order.experts, first[1:])]
        steps.append(Step(work.add, (found,), cores[first], np.full(first.size, AFTER)))
    return steps


class _Share:
    """The buffers for a core's share, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan, order: Order) -> None:
        self.core, self.p = core, p
        self.listed = core.tiles(INT32, 2 * TILE, "mte2", "scalar")
        self.places = _Places(core, has_nowhere=p.by_source and NOWHERE in order.places)
        self.padding = _padding(core, p, plan, order) if p.capacity is not None else []
        self.counts = core.tile(INT32, len(p.active)) if p.has_counts else None
        copied = _quantised if p.quantises else _plain
        self.copy_row, self.rows = copied(core, p, order, order.places != NOWHERE)

    def begin(self, first: int) -> None:
        """Prepare to count, and to store the places of rows from *first* on."""
        if self.counts is not None:
            self.core.duplicate(self.counts, 0)
            self.core.sync("vector", "scalar")
        self.places.begin(first if self.p.by_source else None)

    def take(self, rows: GmView, experts: GmView) -> None:
        """Load the lists of *rows* and *experts*, `(n,)` each, and read each expert."""
        listed = self.core.load_rows(self.listed, rows, experts)
        if self.counts is not None:
            second = align_up(experts.columns, FLOATS_PER_BLOCK)
            look = ScalarLoad(EXPERT, listed[second : second + 1], INT32.nbytes(1))
            self.core.emit(ScalarLoop(experts.columns, (look,)))

    def put(self, number: int, there: GmView) -> None:
        """Store prepared place *number* to the index entry of the next choice."""
        self._find_row()
        self.core.data_copy(there.operand, self.places.tile(number))

    def put_sources(self, there: GmView) -> None:
        """Store the choices of the rows of a tile, as in the list."""
        self.core.sync("mte2", "mte3")
        self.core.data_copy(there.operand, self.listed.only[: there.columns])
        self.core.sync("mte3", "scalar")

    def copy(self, *row: GmView) -> None:
        """Copy a row to its place."""
        self._find_row()
        self.copy_row(*row)

    def _find_row(self) -> None:
        # The time of the read does not depend on the position in the list.
        self.core.get_value(ROW, self.listed.only[:1])

    def free(self) -> None:
        """Release the lists, which have been read."""
        self.listed.free(self.listed.only)

    def add(self, found: tuple[tuple[int, int], ...]) -> None:
        """Add the numbers of rows of each expert in *found* to the counts of all cores."""
        core, counts = self.core, self.counts
        assert counts is not None
        for expert, count in found:
            core.alu("add", COUNT, count)
            core.set_value(counts[expert : expert + 1], COUNT)
        core.sync("scalar", "mte3")
        core.emit(Store(_histogram(self.p), counts, atomic=INT32))


def _found(p: Problem, experts: Integers) -> tuple[tuple[int, int], ...]:
    """Active experts in a core's list, relative to the first, with their counts."""
    numbers, counts = np.unique(experts, return_counts=True)
    found = zip(numbers.tolist(), counts.tolist(), strict=True)
    return tuple((x - p.active.start, count) for x, count in found if x in p.active)


class _Places:
    """Places of rows before they are stored to the index, a block each."""

    def __init__(self, core: VectorCore, *, has_nowhere: bool) -> None:
        self.core = core
        self.numbers = core.tile(INT32, PLACES)
        self.blocks = core.tile(INT32, PLACES * FLOATS_PER_BLOCK)
        self.nowhere = core.tile(INT32, 1) if has_nowhere else None

    def begin(self, first: int | None) -> None:
        """Count from *first* on, if rows are placed consecutively."""
        if self.nowhere is not None:
            self.core.duplicate(self.nowhere, NOWHERE)
            self.core.sync("vector", "mte3")
        if first is not None:
            count_up(self.core, self.numbers, first)

    def tile(self, number: int) -> Local:
        """The block of place *number*, or the one that stands for none."""
        if number == NOWHERE:
            assert self.nowhere is not None
            return self.nowhere
        return self.blocks[number * FLOATS_PER_BLOCK : number * FLOATS_PER_BLOCK + 1]

    def count_on(self) -> None:
        """Write the next indices, a block each."""
        core = self.core
        # Wait until the previous ones have been stored.
        core.sync("mte3", "vector")
        core.add(self.numbers, self.numbers, PLACES)
        core.brcb(self.blocks, self.numbers)
        core.sync("vector", "mte3")

    def write(self, places: tuple[int, ...]) -> None:
        """Write *places*, a block each."""
        core = self.core
        # Wait until the previous ones have been stored.
        core.sync("mte3", "scalar")
        for number, place in enumerate(places):
            if place != NOWHERE:
                core.alu("add", PLACE, place)
                core.set_value(self.tile(number), PLACE)
        core.sync("scalar", "mte3")


def _padding(core: VectorCore, p: Problem, plan: Plan, order: Order) -> list[Step]:
    """Fill unused places with zeros, each core a share of all places."""
    row_bytes = (INT8 if p.quantises else p.element).nbytes(p.width)
    zeros = core.tile(INT32, ZEROS_BYTES // INT32.nbytes(1))

    def clear() -> None:
        core.duplicate(zeros, 0)
        core.sync("vector", "mte3")

    def fill(there: GmView) -> None:
        core.data_copy(there.operand, zeros.as_dtype(UINT8)[: there.columns])

    is_empty = np.ones(p.rows_out, np.bool_)
    is_empty[order.places[order.places != NOWHERE]] = False
    empty = np.flatnonzero(is_empty)
    cores = _shared(p.rows_out, plan.block_dim)[0][empty]
    # Runs of adjacent places, (runs,), and the pieces of each of them.
    runs = np.flatnonzero((np.diff(empty, prepend=-2) > 1) | (np.diff(cores, prepend=-1) > 0))
    run_bytes = np.diff([*runs.tolist(), empty.size]) * row_bytes
    run, part = spread(-(-run_bytes // ZEROS_BYTES), 0 * run_bytes)
    output = GmView.vector("output", UINT8, p.rows_out * row_bytes)
    start, width = part * ZEROS_BYTES, np.minimum(ZEROS_BYTES, run_bytes[run] - part * ZEROS_BYTES)
    there = GmViews.of(output, 0, empty[runs][run] * row_bytes + start, 1, width)
    busy, filling = distinct(cores), cores[runs][run]
    return [
        Step(clear, (), busy, np.full(busy.size, BEFORE)),
        Step(fill, (there,), filling, np.full(filling.size, BEFORE)),
    ]


Copying = tuple[Callable[..., None], tuple[GmViews, ...]]
"""The stage of a row, and its arguments for each row of the output."""


def _plain(core: VectorCore, p: Problem, order: Order, coming: NDArray[np.bool_]) -> Copying:
    """Rows unchanged, each with its scale."""
    token, row = order.choices[coming] // p.k, order.places[coming]
    row_bytes = p.element.nbytes(p.width)
    views = [
        GmViews.row(GmView.of("x", UINT8, p.tokens, row_bytes), token),
        GmViews.row(GmView.of("output", UINT8, p.rows_out, row_bytes), row),
    ]
    if p.scale is not None:
        views.append(GmViews.of(GmView.vector("scale", FLOAT32, p.tokens), 0, token, 1, 1))
        scales = GmView.vector("expanded_scale", FLOAT32, p.rows_out)
        views.append(GmViews.of(scales, 0, row, 1, 1))
    factor = core.tiles(FLOAT32, FLOATS_PER_BLOCK, "mte2", "mte3") if p.scale else None
    half = align_down(core.room_bytes("ub") // 2, BLOCK_BYTES)
    piece_bytes = min(align_up(row_bytes, BLOCK_BYTES), half)
    passing = core.tiles(UINT8, piece_bytes, "mte2", "mte3", 2)

    def copy(x: GmView, output: GmView, *scales: GmView) -> None:
        if factor is not None:
            tile = core.load_rows(factor, scales[0])
            core.data_copy(scales[1].operand, tile[:1])
            factor.free(tile)
        for start, width in pieces(x.columns, piece_bytes):
            tile = core.load_rows(passing, x[:, start : start + width])
            core.data_copy(output[:, start : start + width].operand, tile[:width])
            passing.free(tile)

    return copy, tuple(views)


def _quantised(core: VectorCore, p: Problem, order: Order, coming: NDArray[np.bool_]) -> Copying:
    """Rows as int8, each by its largest magnitude; with the factors of their experts, if given."""
    token, row = order.choices[coming] // p.k, order.places[coming]
    views = [
        GmViews.row(GmView.of("x", p.element, p.tokens, p.width), token),
        GmViews.row(GmView.of("output", INT8, p.rows_out, p.width), row),
        GmViews.of(GmView.vector("expanded_scale", FLOAT32, p.rows_out), 0, row, 1, 1),
    ]
    if p.scale is not None:
        factors, expert = GmView.of("scale", FLOAT32, *p.scale.shape), order.experts[coming]
        views.append(GmViews.row(factors, (expert - p.active.start) % factors.rows))
    loaded = core.vecin(p.element, p.width, 2)
    quantised = core.vecout(INT8, p.width)
    found = core.tiles(FLOAT32, FLOATS_PER_BLOCK, "scalar", "mte3")
    smooth = core.vecin(FLOAT32, p.width) if p.scale is not None else None
    values, work = core.tile(FLOAT32, p.width), core.tile(FLOAT32, p.width)
    largest = core.tile(FLOAT32, 2)
    reduction = Reduction(core, p.width)

    def quantise(x: GmView, y: GmView, scale: GmView, *factors: GmView) -> None:
        """Quantise *x* `(1, width)` to int8 in *y*, with the factor that undoes it in *scale*."""
        tile = core.load_rows(loaded, x)
        core.convert(values, tile)
        loaded.free(tile)
        if smooth is not None:
            factor = core.load_rows(smooth, factors[0])
            core.mul(values, values, factor)
            smooth.free(factor)
        core.abs(work, values)
        reduction.find_largest(largest, work)
        out = found.alloc()
        core.get_value(SCALE, largest[:1])
        core.alu("f32_div", SCALE, SCALE, LARGEST)
        core.set_value(out[:1], SCALE)
        core.store_rows(found, out, scale)
        core.duplicate(work, SCALE)
        core.div(values, values, work)
        narrow(y)

    def narrow(y: GmView) -> None:
        """Convert the values to int8: truncated to float16, then rounded, halves away from zero."""
        half = values.as_dtype(FLOAT16, p.width)
        # The kernel for single tokens rounds differently.
        core.cast(half, values, "odd" if p.is_one_token else "trunc")
        out = quantised.alloc()
        core.cast(out, half, "rint" if p.is_one_token else "round")
        core.store_rows(quantised, out, y)

    return quantise, tuple(views)


# ---- the counts of all cores ----


def _histogram(p: Problem) -> Global:
    """Number of rows of each active expert: all cores add to it."""
    return Global("histogram", 0, INT32.nbytes(len(p.active)))


def _counts(
    core: VectorCore, p: Problem, present: list[int]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """The steps that clear the histogram, and that output it; *present* experts have rows."""
    experts = len(p.active)
    count = 2 * p.experts if p.counts == PAIRS else experts
    listed = core.tiles(INT32, experts, "mte2", "scalar")
    results = core.tiles(INT64, count, "scalar", "mte3")
    zeros = core.tile(INT32, experts)

    def clear() -> None:
        core.duplicate(zeros, 0)
        core.sync("vector", "mte3")
        core.data_copy(_histogram(p), zeros)
        # The buffer is reused for other data.
        core.barrier()

    def write() -> None:
        out = results.alloc()
        if p.counts == PAIRS:
            core.duplicate(out.as_dtype(INT32), 0)
            core.sync("vector", "scalar")
        counts = core.load_rows(listed, GmView.vector("histogram", INT32, experts))
        if p.counts == PAIRS:
            write_pairs(counts, out)
        else:
            write_numbers(counts, out)
        listed.free(counts)
        core.store_rows(results, out, GmView.vector("expert_token_cumsum_or_count", INT64, count))

    def write_pairs(counts: Local, out: Local) -> None:
        for index, expert in enumerate(present):
            at = expert - p.active.start
            core.alu("add", EXPERT, expert)
            core.set_value(out[2 * index : 2 * index + 1], EXPERT)
            core.get_value(COUNT, counts[at : at + 1])
            core.set_value(out[2 * index + 1 : 2 * index + 2], COUNT)

    def write_numbers(counts: Local, out: Local) -> None:
        is_sum = p.counts == CUMULATIVE
        core.alu("add", TOTAL, 0)
        for index in range(experts):
            core.get_value(COUNT, counts[index : index + 1])
            if is_sum:
                core.alu("add", TOTAL, TOTAL, COUNT)
            core.set_value(out[index : index + 1], TOTAL if is_sum else COUNT)

    return clear, write
