"""The groups of npu_moe_gating_top_k whose experts may be chosen.

ops-transformer@c29bc10 moe/moe_gating_top_k/op_kernel. Assumed: that the groups kept are put into
rising order by sorting them once more, and that the list of an only group is looked up word by
word.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, INT32
from npusim.isa import BinaryScalar, Cast, Duplicate, Local, ScalarAlu, ScalarLoad, WholeReduce
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot
from npusim.kernel.sequences import count_up
from npusim.ops._moe.sorting import WORDS_OF_A_PAIR, List, Sorter, padded
from npusim.ops.npu_moe_gating_top_k.contract import Problem

__all__ = ["BLOCK", "NOTHING", "GroupChoice"]

BLOCK = 8
"""fp32 numbers in a block of 32 bytes."""
NOTHING = float("-inf")
"""The key of what fills a list up."""


class GroupChoice:
    """The best groups of a row, whose lists are merged in rising order of the groups."""

    def __init__(self, builder: Builder, p: Problem, sorter: Sorter) -> None:
        self.builder, self.p, self.sorter = builder, p, sorter
        self.lanes, self.kept = padded(p.groups), padded(p.kept_groups)
        self.own = Sorter(builder, self.lanes)
        self.words = builder.claim("ub", FLOAT32.nbytes(p.sorted_lanes))
        self.scores = builder.claim("ub", FLOAT32.nbytes(self.lanes))
        self.numbers = builder.claim("ub", INT32.nbytes(self.lanes))
        self.order = builder.claim("ub", FLOAT32.nbytes(self.kept))
        self.found = builder.claim("ub", INT32.nbytes(self.kept))
        self.only: tuple[Slot, Slot] | None = None
        """Where the words of a list are, and of that of the only group that is kept."""
        if p.kept_groups == 1:
            words = INT32.nbytes(WORDS_OF_A_PAIR * p.list_experts)
            self.only = builder.claim("ub", words), builder.claim("ub", words)

    def write_tables(self) -> None:
        """The numbers of the groups, and what fills lists up."""
        count_up(self.builder, self.numbers.of(INT32, self.lanes))
        step(self.builder, Duplicate(self.scores.of(FLOAT32, self.lanes), NOTHING))
        step(self.builder, Duplicate(self.order.of(FLOAT32, self.kept), NOTHING))
        step(self.builder, Duplicate(self.found.of(INT32, self.kept), 0))
        if self.only is not None:
            words = WORDS_OF_A_PAIR * self.p.list_experts
            count_up(self.builder, self.only[0].of(INT32, words), 0, INT32.nbytes(1))

    def keep_best(self, lists: list[List]) -> None:
        """Merge those of *lists*, one of each group, whose groups are kept."""
        p, builder = self.p, self.builder
        each = padded(p.list_experts)
        assert [start for start, _ in lists] == [*range(0, each * p.groups, each)]
        self._score()
        self.own.sort(self.scores.of(FLOAT32, self.lanes), self.numbers.of(INT32, self.lanes))
        # (kept,) of int32, the best group first -> in rising order
        found, order = self.found.of(INT32, p.kept_groups), self.order.of(FLOAT32, p.kept_groups)
        self.own.take_indices(found)
        step(builder, Cast(order, found, "none"))
        step(builder, BinaryScalar("mul", order, order, -1.0))
        self.own.sort(self.order.of(FLOAT32, self.kept), self.found.of(INT32, self.kept))
        self.own.take_indices(found)
        builder.sync("vector", "scalar")
        if self.only is not None:
            self._take_only(*self.only)
            return
        starts: list[List] = []
        for index in range(p.kept_groups):
            name = f"start{index}"
            builder.emit(ScalarLoad(name, found.at(index, 1)))
            builder.emit(ScalarAlu("mul", name, name, each))
            starts.append((name, p.list_experts))
        builder.sync("scalar", "vector")
        self.sorter.merge([starts])

    def _take_only(self, places: Slot, moved: Slot) -> None:
        """The list of the only group that is kept; MrgSort takes no list alone."""
        p, builder = self.p, self.builder
        pair_bytes = INT32.nbytes(WORDS_OF_A_PAIR)
        builder.emit(ScalarLoad("start", self.found.of(INT32, 1)))
        builder.emit(ScalarAlu("mul", "start", "start", padded(p.list_experts) * pair_bytes))
        builder.sync("scalar", "vector")
        words = WORDS_OF_A_PAIR * p.list_experts
        there = moved.of(INT32, words)
        step(builder, BinaryScalar("add", there, places.of(INT32, words), "start"))
        self.sorter.take_words(there, p.sorted_lanes)

    def _score(self) -> None:
        """The largest key of each group, or the sum of its two largest ones."""
        p, builder = self.p, self.builder
        each = padded(p.list_experts)
        words, scores = self.words.of(FLOAT32, p.sorted_lanes), self.scores.of(FLOAT32, p.groups)
        self.sorter.take_keys(words)
        # The first block of each list is a repeat.
        heads = Local("ub", words.offset_bytes, FLOAT32, p.groups * BLOCK, 1, each // BLOCK, 1)
        if p.sums_two:
            step(builder, WholeReduce("sum", scores, heads, 2))
        else:
            step(builder, WholeReduce("max", scores, heads, 1))
