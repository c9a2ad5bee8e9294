"""The program that each core runs for npu_moe_init_routing_v2.

The choices are sorted by their experts. When all cores are there, each takes a share of the sorted
list: it counts how many there are of each expert, says where rows are, and copies the rows. In the
end the first core turns the counts into what comes out. Where experts have a capacity, each core
also fills a share of the places that nothing goes to.

ops-transformer@c29bc10 moe/moe_init_routing_v3/op_kernel. Assumed: that a core looks at its share a
tile at a time, that the place of each row is stored by itself, from a block of the buffer of its
own, that rows of experts that are not active are not copied, and of capacities all: that the scalar
unit writes places, and that zeros are stored just where no row comes.
"""

from __future__ import annotations

from npusim.data.dtypes import INT32
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    BinaryScalar,
    Broadcast,
    Duplicate,
    Local,
    ScalarAlu,
    ScalarLoad,
    ScalarStore,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.launch import share
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.sequences import count_up
from npusim.kernel.views import GmView, load, repeat
from npusim.ops.npu_moe_init_routing_v2.contract import NOWHERE, Problem
from npusim.ops.npu_moe_init_routing_v2.copies import ROW, Padding, QuantisedRows, Rows
from npusim.ops.npu_moe_init_routing_v2.counts import Counts, Histogram
from npusim.ops.npu_moe_init_routing_v2.sorting import Order, SortStage, meet
from npusim.ops.npu_moe_init_routing_v2.tiling import Plan

__all__ = ["build"]

TILE = 256
"""Rows whose numbers are loaded at a time."""
PLACES = 32
"""Places of rows that are made ready at a time."""
PLACE = "place"
"""A register."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core, each with a program of its own: rows differ."""
    names = [operand.name for operand in p.inputs] + [*p.outputs, *plan.workspaces]
    bound = {name: Binding(name) for name in names}
    kernel = InitRouting(spec, p, plan, Order.of(p, plan))
    return tuple(
        Block(core, spec.vector_cores[core], kernel.program(core), bound)
        for core in range(plan.block_dim)
    )


class InitRouting:
    """The kernel, while it is written: its programs share one builder and its bodies."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan, order: Order) -> None:
        self.p, self.plan, self.order = p, plan, order
        core = spec.cores[spec.vector_kinds[0]]
        self.builder = builder = Builder("init_routing", core, spec.sync)
        # The buffers of each stage begin anew.
        self.sorting = SortStage(builder, p, plan, order)
        builder.reset_buffers()
        self.share = ShareStage(builder, p, order)
        builder.reset_buffers()
        self.counts = Counts(builder, p) if p.has_counts else None
        builder.reset_buffers()

    def program(self, core: int) -> Program:
        """What *core* sorts, then its share of the rows, and at last the counts."""
        builder = self.builder
        if self.counts is not None and core == 0:
            self.counts.clear()
        self.sorting.write(core)
        meet(builder)
        if self.share.padding is not None:
            self.share.padding.write(share(self.p.rows_out, self.plan.block_dim, core))
        self.share.write(share(self.p.rows, self.plan.block_dim, core))
        if self.counts is not None:
            meet(builder)
            if core == 0:
                self.counts.write(sorted({int(x) for x in self.order.keys if x in self.p.active}))
        return builder.build()


class ShareStage:
    """What each core does of the sorted list, and the buffers for it."""

    def __init__(self, builder: Builder, p: Problem, order: Order) -> None:
        self.builder, self.p, self.order = builder, p, order
        self.lists = [
            GmView.vector(f"sorted_{name}", INT32, p.rows) for name in ("rows", "experts")
        ]
        self.listed = builder.queue("ub", 2 * INT32.nbytes(TILE), "mte2", "scalar")
        self.numbers = builder.claim("ub", INT32.nbytes(PLACES)).of(INT32, PLACES)
        self.blocks = builder.claim("ub", PLACES * BLOCK_BYTES)
        self.has_nowhere = p.by_source and NOWHERE in order.places
        if self.has_nowhere:
            self.nowhere = builder.claim("ub", BLOCK_BYTES).of(INT32, 1)
        self.padding = Padding(builder, p, order.places) if p.capacity is not None else None
        self.index = GmView.vector("expanded_row_idx", INT32, p.rows)
        self.histogram = Histogram(builder, p) if p.has_counts else None
        self.rows = QuantisedRows(builder, p) if p.quantises else Rows(builder, p)

    def write(self, own: range) -> None:
        """The rows *own* of the sorted list."""
        p, builder, order = self.p, self.builder, self.order
        if not own:
            return
        if self.histogram is not None:
            self.histogram.begin()
        if self.has_nowhere:
            step(builder, Duplicate(self.nowhere, NOWHERE))
            builder.sync("vector", "mte3")
        if p.by_source:
            count_up(builder, self.numbers, own.start - PLACES)
        for start, count in pieces(len(own), TILE):
            here = own[start : start + count]
            choices = order.choices[here.start : here.stop].tolist()
            experts = order.keys[choices].tolist()
            places = order.places[here.start : here.stop].tolist()
            slot = load(
                builder, self.listed, *(view[:, here.start : here.stop] for view in self.lists)
            )
            if self.histogram is not None:
                second = align_up(INT32.nbytes(count), BLOCK_BYTES)
                self.histogram.count(slot.of(INT32, count, second), experts)
            place = slot.of(INT32, 1)
            if p.by_source:
                self._say_where(place, choices, places)
            else:
                builder.sync("mte2", "mte3")
                builder.data_copy(
                    self.index[:, here.start : here.stop].operand, slot.of(INT32, count)
                )
                builder.sync("mte3", "scalar")
            for row, choice, expert in zip(places, choices, experts, strict=True):
                if row != NOWHERE:
                    self.rows.copy(place, choice, row, expert - p.active.start)
            self.listed.free(slot)
        if self.histogram is not None:
            self.histogram.add()

    def _say_where(self, listed: Local, choices: list[int], places: list[int]) -> None:
        """That *choices* have gone to *places*."""
        for start, count in pieces(len(choices), PLACES):
            here = places[start : start + count]
            if self.p.capacity is None:
                # Places follow each other.
                repeat(self.builder, self._count_on)
            else:
                self._write(here)
            for number, choice in enumerate(choices[start : start + count]):
                place = self._block(number) if here[number] != NOWHERE else self.nowhere
                repeat(self.builder, self._put, listed, place, self.index[:, choice : choice + 1])

    def _block(self, number: int) -> Local:
        """Where place number *number* is made ready."""
        return self.blocks.of(INT32, 1, number * BLOCK_BYTES)

    def _write(self, places: list[int]) -> None:
        """Make *places* ready, a block each."""
        builder = self.builder
        # Those before have left.
        builder.sync("mte3", "scalar")
        for number, place in enumerate(places):
            if place != NOWHERE:
                builder.emit(ScalarAlu("add", PLACE, place, 0))
                builder.emit(ScalarStore(self._block(number), PLACE))
        builder.sync("scalar", "mte3")

    def _count_on(self) -> None:
        """The next numbers, a block each."""
        builder = self.builder
        # Those before have left.
        builder.sync("mte3", "vector")
        step(builder, BinaryScalar("add", self.numbers, self.numbers, PLACES))
        blocks = self.blocks.of(INT32, PLACES * BLOCK_BYTES // INT32.nbytes(1))
        step(builder, Broadcast(blocks, self.numbers))
        builder.sync("vector", "mte3")

    def _put(self, listed: Local, number: Local, index: GmView) -> None:
        """*number* to where the choice at *listed* asks for it."""
        # Where in the list it is does not change its time.
        self.builder.emit(ScalarLoad(ROW, listed))
        self.builder.data_copy(index.operand, number)
