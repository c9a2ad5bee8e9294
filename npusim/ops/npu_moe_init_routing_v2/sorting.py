"""The first stage of npu_moe_init_routing_v2: the choices, sorted by their experts.

Keys are the experts as negative float32, so that a descending sort puts them in rising order; what
is not active gets a key behind all of them. Lists that one core cannot hold are merged four at a
time, a chunk after the other, from one workspace to another.

ops-transformer@c29bc10 moe/moe_init_routing_v3/op_kernel. Assumed: that each chunk takes from every
list just what belongs into it, and that comparisons tell the active experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32, UINT8, UINT64, Array
from npusim.data.integers import align_up
from npusim.isa import (
    BinaryScalar,
    Cast,
    CompareScalar,
    Copy,
    Duplicate,
    GatherMask,
    Local,
    MrgSort,
    Select,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.cross_core import sync_all
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.sequences import count_up
from npusim.kernel.views import GmView
from npusim.ops._moe.sorting import Sorter
from npusim.ops.npu_moe_init_routing_v2.contract import NOWHERE, Problem
from npusim.ops.npu_moe_init_routing_v2.tiling import LANES, LISTS, Plan

__all__ = ["Order", "SortStage", "meet"]

READY = 0
"""The flag by which all cores wait for each other."""
CHUNK = 2048
"""Pairs that are merged at a time: assumed."""
PAIRS_OF_A_BLOCK = 4
NOTHING = float("-inf")
"""The key of what fills a list up."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the sort gives, which decides what is read from where."""

    keys: Array
    """The expert of each choice `(rows,)`; one behind all for those that are not active."""
    rounds: tuple[tuple[Array, ...], ...]
    """The lists of choices after each round of merging, the parts first; one in the end."""
    places: Array
    """The row that comes out of each choice of that list `(rows,)`, or NOWHERE."""

    @staticmethod
    def of(p: Problem, plan: Plan) -> Order:
        """The order of the choices of *p*, in the rounds of *plan*."""
        keys = p.expert_keys()
        starts = range(0, p.rows, plan.part_rows)
        parts = [np.arange(start, min(start + plan.part_rows, p.rows)) for start in starts]
        rounds = [tuple(_sorted(keys, part) for part in parts)]
        while len(rounds[-1]) > 1:
            lists = rounds[-1]
            groups = [lists[first : first + LISTS] for first in range(0, len(lists), LISTS)]
            rounds.append(tuple(_sorted(keys, np.concatenate(group)) for group in groups))
        return Order(keys, tuple(rounds), _places(p, keys[rounds[-1][0]]))

    @property
    def choices(self) -> Array:
        """All choices in order, `(rows,)`."""
        return self.rounds[-1][0]


def _places(p: Problem, experts: Array) -> Array:
    """Where the rows of choices of *experts* `(rows,)`, which rise, come out."""
    places = np.arange(len(experts))
    fits = experts < p.experts
    if p.capacity is not None:
        number = places - np.searchsorted(experts, experts)
        places = experts * p.capacity + number
        fits &= number < p.capacity
    return np.where(fits, places, NOWHERE)


def _sorted(keys: Array, choices: Array) -> Array:
    return np.asarray(choices[np.argsort(keys[choices], kind="stable")])


def meet(builder: Builder) -> None:
    """Wait until all cores are here, with nothing left to do."""
    builder.end_stage()
    sync_all(builder, "mte3", "mte2", READY)


class SortStage:
    """What each core does of it, and the buffers for it."""

    def __init__(self, builder: Builder, p: Problem, plan: Plan, order: Order) -> None:
        self.builder, self.p, self.plan, self.order = builder, p, plan, order
        self.choices = GmView.vector("expert_idx", INT32, p.rows)
        self.experts = GmView.vector("sorted_experts", INT32, p.rows)
        self.rows = GmView.vector("sorted_rows", INT32, p.rows)
        self.part = Part(self, plan.part_rows)
        builder.reset_buffers()
        self.merging = Merge(self) if plan.parts > 1 else None

    def write(self, core: int) -> None:
        """Sort the parts of *core*, then merge its groups of lists, round by round."""
        cores = self.plan.block_dim
        for first, count in list(pieces(self.p.rows, self.plan.part_rows))[core::cores]:
            self.part.sort(first, count)
        for number, lists in enumerate(self.order.rounds[:-1]):
            assert self.merging is not None
            meet(self.builder)
            groups = [lists[first : first + LISTS] for first in range(0, len(lists), LISTS)]
            starts = np.cumsum([0, *(sum(map(len, group)) for group in groups)]).tolist()
            for index in range(core, len(groups), cores):
                self.merging.merge(number, groups[index], starts[index])

    def store_sorted(self, first: int, experts: Local, rows: Local) -> None:
        """*experts* and *rows* `(n,)` to the lists from number *first* on; mte3 can begin."""
        there = slice(first, first + experts.count)
        self.builder.data_copy(self.experts[:, there].operand, experts)
        self.builder.data_copy(self.rows[:, there].operand, rows)

    def pairs(self, number: int) -> GmView:
        """The workspace of the lists after round *number*."""
        return GmView.vector(f"pairs{number % 2}", UINT64, self.p.rows)


class Part:
    """Buffers for a part of the choices, which one core sorts whole."""

    def __init__(self, stage: SortStage, most: int) -> None:
        self.stage, self.builder = stage, stage.builder
        lanes = align_up(most, LANES)
        self.experts, self.keys, self.rows = (
            self.builder.claim("ub", INT32.nbytes(lanes)) for _ in range(3)
        )
        self.mask = self.builder.claim("ub", lanes // 8)
        self.sorter = Sorter(self.builder, lanes)

    def sort(self, first: int, count: int) -> None:
        """*count* choices from number *first* on to a list in global memory."""
        builder, stage = self.builder, self.stage
        lanes = align_up(count, LANES)
        experts, rows = self.experts.of(INT32, count), self.rows.of(INT32, lanes)
        every = self.keys.of(FLOAT32, lanes)
        keys = every.at(0, count)
        builder.data_copy(experts, stage.choices[:, first : first + count].operand)
        builder.sync("mte2", "vector")
        step(builder, Duplicate(every, NOTHING))
        step(builder, Cast(keys, experts, "none"))
        step(builder, BinaryScalar("mul", keys, keys, -1.0))
        self._put_back(every)
        count_up(builder, rows, first)
        self.sorter.sort(every, rows)
        if stage.plan.parts == 1:
            self.sorter.take_keys(keys)
            step(builder, BinaryScalar("mul", keys, keys, -1.0))
            step(builder, Cast(experts, keys, "rint"))
            self.sorter.take_indices(rows.at(0, count))
            builder.sync("vector", "mte3")
            stage.store_sorted(first, experts, rows.at(0, count))
        else:
            builder.sync("vector", "mte3")
            there = stage.pairs(0)[:, first : first + count]
            builder.data_copy(there.operand, self.sorter.here.of(UINT64, count))
        # Another part of this core may come only when this one has left.
        builder.barrier()

    def _put_back(self, keys: Local) -> None:
        """Give those that are not active the key behind all others."""
        p, builder = self.stage.p, self.builder
        mask, behind = self.mask.of(UINT8, keys.count // 8), float(-p.experts)
        if p.active.stop < p.experts:
            step(builder, CompareScalar("gt", mask, keys, float(-p.active.stop)))
            step(builder, Select(keys, mask, keys, behind))
        if p.active.start > 0:
            step(builder, CompareScalar("le", mask, keys, float(-p.active.start)))
            step(builder, Select(keys, mask, keys, behind))


class Merge:
    """Buffers for chunks of lists, which come and go."""

    def __init__(self, stage: SortStage) -> None:
        self.stage, self.builder = stage, stage.builder
        builder = self.builder
        pair_bytes = UINT64.nbytes(CHUNK)
        gaps = UINT64.nbytes(LISTS * PAIRS_OF_A_BLOCK)
        self.lists = builder.queue("ub", pair_bytes + gaps, "mte2", "vector")
        self.merged = builder.queue("ub", pair_bytes, "vector", "mte3")
        self.keys = builder.claim("ub", FLOAT32.nbytes(CHUNK))
        self.experts, self.rows = (builder.claim("ub", INT32.nbytes(CHUNK)) for _ in range(2))

    def merge(self, number: int, lists: tuple[Array, ...], start: int) -> None:
        """In round *number*, *lists*, which begin with pair *start*, to one in their place."""
        keys = self.stage.order.keys
        every = np.concatenate(lists)
        source = np.repeat(np.arange(len(lists)), [len(each) for each in lists])
        source = source[np.argsort(keys[every], kind="stable")]
        places = np.cumsum([start, *(len(each) for each in lists)])[:-1]
        for first, count in pieces(len(every), CHUNK):
            taken = np.bincount(source[first : first + count], minlength=len(lists))
            self._chunk(number, start + first, places.tolist(), taken.tolist())
            places = places + taken

    def _chunk(self, number: int, start: int, places: list[int], taken: list[int]) -> None:
        """*taken* pairs of each list, from *places* on, to those from number *start* on."""
        builder, source = self.builder, self.stage.pairs(number)
        slot = self.lists.alloc()
        starts: list[int] = []
        counts = [count for count in taken if count]
        end = 0
        for place, count in zip(places, taken, strict=True):
            if count:
                there = slot.of(UINT64, count, UINT64.nbytes(end))
                builder.data_copy(there, source[:, place : place + count].operand)
                starts.append(end)
                end = align_up(end + count, PAIRS_OF_A_BLOCK)
        self.lists.enque(slot)
        slot = self.lists.deque()
        out = self.merged.alloc()
        pairs = out.of(UINT64, sum(counts))
        if len(counts) == 1:
            step(builder, Copy(pairs.as_dtype(INT32), slot.of(INT32, 2 * counts[0])))
        else:
            step(builder, MrgSort(pairs, slot.of(UINT64, end), tuple(counts), FLOAT32, *starts))
        self.lists.free(slot)
        self._store(number, out, pairs, start)

    def _store(self, number: int, out: Slot, pairs: Local, start: int) -> None:
        """*pairs*, in *out*, or after the last round what they are made of."""
        is_last = number == len(self.stage.order.rounds) - 2
        if is_last:
            self._take_apart(pairs)
        self.merged.enque(out)
        out = self.merged.deque()
        if is_last:
            parts = (part.of(INT32, pairs.count) for part in (self.experts, self.rows))
            self.stage.store_sorted(start, *parts)
        else:
            there = self.stage.pairs(number + 1)[:, start : start + pairs.count]
            self.builder.data_copy(there.operand, pairs)
        self.merged.free(out)

    def _take_apart(self, pairs: Local) -> None:
        """The experts and the choices of *pairs*."""
        builder, count = self.builder, pairs.count
        keys = self.keys.of(FLOAT32, count)
        step(builder, GatherMask("even", keys, pairs.as_dtype(FLOAT32)))
        step(builder, BinaryScalar("mul", keys, keys, -1.0))
        step(builder, Cast(self.experts.of(INT32, count), keys, "rint"))
        step(builder, GatherMask("odd", self.rows.of(INT32, count), pairs.as_dtype(INT32)))
