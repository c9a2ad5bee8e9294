"""The program that each core runs for npu_moe_gating_top_k: one row at a time.

A row is normalised, its keys are sorted in lists, one of each group, the groups are sorted by their
scores, the lists of those that are kept are merged in rising order of the groups, and the scores of
the best are looked up. A row is stored before the next one is loaded.

ops-transformer@c29bc10 moe/moe_gating_top_k/op_kernel. Assumed: that groups which are no multiples
of 32 are filled up by Gather, and which barriers stand between; that tables that all rows share are
written first; that the groups kept are put into rising order by sorting them once more, and that
the list of an only group is looked up word by word.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import FLOATS_PER_BLOCK, Local
from npusim.kernel import Block, GmView, Step, VectorCore
from npusim.kernel.sequences import count_up
from npusim.kernel.steps import tiles
from npusim.ops._gates import NOTHING, Scores
from npusim.ops._sorting import WORDS_OF_A_PAIR, List, Sorter, padded
from npusim.ops.npu_moe_gating_top_k.check import Plan, Problem

__all__ = ["build"]

START = "start"
"""A register, and with a number behind it further ones."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """A run of rows for each core; cores with as many rows share their program."""
    core = VectorCore("gating_top_k", spec)
    gate = GatingTopK(core, p)
    views = [
        GmView.of("x", p.element, p.rows, p.experts),
        GmView.of("output", p.element, p.rows, p.k),
        GmView.of("expert_idx", INT32, p.rows, p.k),
    ]
    if p.writes_all:
        views.append(GmView.of("out", FLOAT32, p.rows, p.experts))
    rows = tuple(tiles(view, 1, view.columns) for view in views)
    step = Step(gate.row, rows, np.arange(p.rows) // plan.rows_per_core)
    return core.launch(step, begin=gate.write_tables)


class GatingTopK:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem) -> None:
        self.core, self.p = core, p
        self.x = core.vecin(p.element, p.experts)
        self.y, self.chosen = core.vecout(p.element, p.k), core.vecout(INT32, p.k)
        # One more than the experts is what fills groups up.
        most = align_up(p.experts + 1, FLOATS_PER_BLOCK)
        self.wide, self.scores, self.keys = (core.tile(FLOAT32, most) for _ in range(3))
        self.bias = core.tile(FLOAT32, p.experts) if p.has_bias else None
        self.steps = Scores(core, p.experts)
        self.sorter = Sorter(core, p.sorted_lanes)
        self.indices = core.tile(INT32, p.sorted_lanes)
        """The expert of each lane that is sorted."""
        self.best, self.places = core.tile(FLOAT32, p.k), core.tile(INT32, p.k)
        self.spread: Local | None = None
        """Where the key of each lane is, if lists are filled up."""
        if p.list_experts % FLOATS_PER_BLOCK or padded(p.list_experts) != p.list_experts:
            self.spread = core.tile(INT32, p.sorted_lanes)
            self.filled = core.tile(FLOAT32, p.sorted_lanes)
        else:
            self.filled = self.keys[: p.sorted_lanes]
        self.groups = GroupChoice(core, p, self.sorter) if p.is_grouped else None

    def write_tables(self) -> None:
        """What all rows share."""
        p, core = self.p, self.core
        if self.bias is not None:
            self._load_bias(self.bias)
        core.duplicate(self.keys, NOTHING)
        each = padded(p.list_experts)
        if self.spread is None:
            count_up(core, self.indices)
        else:
            core.duplicate(self.indices, 0)
            core.duplicate(self.spread, FLOAT32.nbytes(p.experts))
            for group in range(p.lists):
                lanes = slice(group * each, group * each + p.list_experts)
                count_up(core, self.indices[lanes], group * p.list_experts)
                core.mul(self.spread[lanes], self.indices[lanes], FLOAT32.nbytes(1))
        if self.groups is not None:
            self.groups.write_tables()

    def _load_bias(self, bias: Local) -> None:
        """*bias* `(experts,)` as float32."""
        p, core = self.p, self.core
        view = GmView.vector("bias", p.element, p.experts)
        if p.element is FLOAT32:
            core.data_copy(bias, view.operand)
            core.sync("mte2", "vector")
            return
        tile = core.load_rows(self.x, view)
        core.cast(bias, tile)
        self.x.free(tile)

    def row(self, x: GmView, y: GmView, chosen: GmView, *every: GmView) -> None:
        """*x* `(1, experts)` to the *k* best, *y* and *chosen*, each `(1, k)`."""
        p, core = self.p, self.core
        tile = core.load_rows(self.x, x)
        wide, scores, keys = (part[: p.experts] for part in (self.wide, self.scores, self.keys))
        if p.element is FLOAT32:
            core.copy(wide, tile)
        else:
            core.cast(wide, tile)
        self.x.free(tile)
        normalise = self.steps.sigmoid if p.is_sigmoid else self.steps.softmax
        normalise(scores, wide)
        for view in every:
            core.sync("vector", "mte3")
            core.data_copy(view.operand, scores)
        if self.bias is None:
            core.copy(keys, scores)
        else:
            core.add(keys, scores, self.bias)
        self._sort()
        self._look_up(y, chosen)
        if every:
            # The next row may come only when the scores have left.
            core.sync("mte3", "vector")

    def _sort(self) -> None:
        """The keys in descending order, as one list that begins the sorter's pairs."""
        if self.spread is not None:
            self.core.gather(self.filled, self.keys, self.spread)
        lists = self.sorter.sort(self.filled, self.indices, padded(self.p.list_experts))
        if self.groups is not None:
            self.groups.keep_best(lists)

    def _look_up(self, y: GmView, chosen: GmView) -> None:
        """The scores of the first *k* of the list, and which experts they are of."""
        p, core, best = self.p, self.core, self.best
        experts = self.chosen.alloc()
        self.sorter.take_indices(experts)
        core.mul(self.places, experts, FLOAT32.nbytes(1))
        core.gather(best, self.scores[: p.experts], self.places)
        core.store_rows(self.chosen, experts, chosen)
        if p.is_sigmoid:
            self.steps.divide_by_total(best, p.epsilon)
        core.mul(best, best, p.factor)
        out = self.y.alloc()
        if p.element is FLOAT32:
            core.copy(out, best)
        else:
            core.cast(out, best)
        core.store_rows(self.y, out, y)


class GroupChoice:
    """The best groups of a row, whose lists are merged in rising order of the groups."""

    def __init__(self, core: VectorCore, p: Problem, sorter: Sorter) -> None:
        self.core, self.p, self.sorter = core, p, sorter
        lanes, kept = padded(p.groups), padded(p.kept_groups)
        self.own = Sorter(core, lanes)
        self.words = core.tile(FLOAT32, p.sorted_lanes)
        self.scores, self.numbers = core.tile(FLOAT32, lanes), core.tile(INT32, lanes)
        self.order, self.found = core.tile(FLOAT32, kept), core.tile(INT32, kept)
        self.only: tuple[Local, Local] | None = None
        """Where the words of a list are, and of that of the only group that is kept."""
        if p.kept_groups == 1:
            words = WORDS_OF_A_PAIR * p.list_experts
            self.only = core.tile(INT32, words), core.tile(INT32, words)

    def write_tables(self) -> None:
        """The numbers of the groups, and what fills lists up."""
        count_up(self.core, self.numbers)
        self.core.duplicate(self.scores, NOTHING)
        self.core.duplicate(self.order, NOTHING)
        self.core.duplicate(self.found, 0)
        if self.only is not None:
            count_up(self.core, self.only[0], 0, INT32.nbytes(1))

    def keep_best(self, lists: list[List]) -> None:
        """Merge those of *lists*, one of each group, whose groups are kept."""
        p, core, each = self.p, self.core, padded(self.p.list_experts)
        assert [start for start, _ in lists] == [*range(0, each * p.groups, each)]
        self._score()
        self.own.sort(self.scores, self.numbers)
        # (kept,) of int32, the best group first -> in rising order
        found, order = self.found[: p.kept_groups], self.order[: p.kept_groups]
        self.own.take_indices(found)
        core.cast(order, found)
        core.mul(order, order, -1.0)
        self.own.sort(self.order, self.found)
        self.own.take_indices(found)
        core.sync("vector", "scalar")
        if self.only is not None:
            self._take_only(*self.only)
            return
        starts: list[List] = []
        for index in range(p.kept_groups):
            name = f"{START}{index}"
            core.get_value(name, found[index : index + 1])
            core.alu("mul", name, name, each)
            starts.append((name, p.list_experts))
        core.sync("scalar", "vector")
        self.sorter.merge([starts])

    def _take_only(self, places: Local, moved: Local) -> None:
        """The list of the only group that is kept; MrgSort takes no list alone."""
        p, core = self.p, self.core
        pair_bytes = INT32.nbytes(WORDS_OF_A_PAIR)
        core.get_value(START, self.found[:1])
        core.alu("mul", START, START, padded(p.list_experts) * pair_bytes)
        core.sync("scalar", "vector")
        core.add(moved, places, START)
        self.sorter.take_words(moved, p.sorted_lanes)

    def _score(self) -> None:
        """The largest key of each group, or the sum of its two largest ones."""
        p, words = self.p, self.words
        self.sorter.take_keys(words)
        # The first block of each list is a repeat.
        gap, lanes = padded(p.list_experts) // FLOATS_PER_BLOCK, p.groups * FLOATS_PER_BLOCK
        heads = Local("ub", words.offset_bytes, FLOAT32, lanes, 1, gap, 1)
        mask = 2 if p.sums_two else 1
        self.core.whole_reduce("sum" if p.sums_two else "max", self.scores[: p.groups], heads, mask)
