"""The program that each core runs for npu_moe_gating_top_k: one row at a time.

A row is normalised, its keys are sorted in lists, one of each group, the groups are sorted by their
scores, the lists of those that are kept are merged in rising order of the groups, and the numbers
of the best are looked up. A row is stored before the next one is loaded.

ops-transformer@c29bc10 moe/moe_gating_top_k/op_kernel. Assumed: that groups which are no multiples
of 32 are filled up by Gather, and which barriers stand between; tables that all rows share are
written first.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    Binary,
    BinaryScalar,
    Cast,
    Copy,
    Duplicate,
    Gather,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.sequences import count_up
from npusim.kernel.views import GmView, bindings, fill, load, repeat, store
from npusim.ops._moe.scores import Scores
from npusim.ops._moe.sorting import Sorter, padded
from npusim.ops.npu_moe_gating_top_k.contract import Problem
from npusim.ops.npu_moe_gating_top_k.groups import BLOCK, NOTHING, GroupChoice
from npusim.ops.npu_moe_gating_top_k.tiling import Plan

__all__ = ["build"]


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with as many rows share their program."""
    programs: dict[int, Program] = {}
    blocks: list[Block] = []
    views = _views(p)
    bias = [GmView.vector("bias", p.element, p.experts)] if p.has_bias else []
    for first, rows in pieces(p.rows, plan.rows_per_core):
        if rows not in programs:
            programs[rows] = GatingTopK(spec, p).program(rows)
        core = len(blocks)
        bound = bindings(*(view[first:, :] for view in views), *bias)
        blocks.append(Block(core, spec.vector_cores[core], programs[rows], bound))
    return tuple(blocks)


def _views(p: Problem) -> list[GmView]:
    """x and the outputs that are written."""
    views = [
        GmView.of("x", p.element, p.rows, p.experts),
        GmView.of("output", p.element, p.rows, p.k),
        GmView.of("expert_idx", INT32, p.rows, p.k),
    ]
    return [*views, GmView.of("out", FLOAT32, p.rows, p.experts)] if p.writes_all else views


class GatingTopK:
    """The kernel of one core, while it is written."""

    def __init__(self, spec: DeviceSpec, p: Problem) -> None:
        self.p = p
        self.builder = builder = Builder(
            "gating_top_k", spec.cores[spec.vector_kinds[0]], spec.sync
        )
        self.x = builder.queue("ub", p.element.nbytes(p.experts), "mte2", "vector")
        self.y = builder.queue("ub", p.element.nbytes(p.k), "vector", "mte3")
        self.chosen = builder.queue("ub", INT32.nbytes(p.k), "vector", "mte3")
        # One number more than experts is what fills groups up.
        lanes = align_up(p.experts + 1, BLOCK)
        self.wide, self.scores, self.keys = (
            builder.claim("ub", FLOAT32.nbytes(lanes)) for _ in range(3)
        )
        self.bias = builder.claim("ub", FLOAT32.nbytes(p.experts)) if p.has_bias else None
        self.steps = Scores(builder, p.experts)
        self.lanes = p.sorted_lanes
        self.sorter = Sorter(builder, self.lanes)
        self.indices = builder.claim("ub", INT32.nbytes(self.lanes))
        """The expert of each lane that is sorted."""
        self.best = builder.claim("ub", FLOAT32.nbytes(p.k))
        self.places = builder.claim("ub", INT32.nbytes(p.k))
        self.spread: Slot | None = None
        """Where the key of each lane is, if lists are filled up."""
        self.filled = self.keys
        if p.list_experts % BLOCK or padded(p.list_experts) != p.list_experts:
            self.spread = builder.claim("ub", INT32.nbytes(self.lanes))
            self.filled = builder.claim("ub", FLOAT32.nbytes(self.lanes))
        self.groups = GroupChoice(builder, p, self.sorter) if p.is_grouped else None

    def program(self, rows: int) -> Program:
        """The first *rows* of what the block is bound to."""
        p = self.p
        self._write_tables()
        views = _views(p)
        for row in range(rows):
            repeat(self.builder, self.row, *(view[row : row + 1, :] for view in views))
        return self.builder.build()

    # ---- what all rows share ----

    def _write_tables(self) -> None:
        p, builder = self.p, self.builder
        if self.bias is not None:
            self._load_bias(self.bias)
        step(builder, Duplicate(self.keys.of(FLOAT32, align_up(p.experts + 1, BLOCK)), NOTHING))
        indices, each = self.indices.of(INT32, self.lanes), padded(p.list_experts)
        if self.spread is None:
            count_up(builder, indices)
        else:
            spread = self.spread.of(INT32, self.lanes)
            step(builder, Duplicate(indices, 0))
            step(builder, Duplicate(spread, FLOAT32.nbytes(p.experts)))
            for group in range(p.lists):
                first, start = group * p.list_experts, group * each
                count_up(builder, indices.at(start, p.list_experts), first)
                experts = indices.at(start, p.list_experts)
                places = spread.at(start, p.list_experts)
                step(builder, BinaryScalar("mul", places, experts, FLOAT32.nbytes(1)))
        if self.groups is not None:
            self.groups.write_tables()

    def _load_bias(self, bias: Slot) -> None:
        """*bias* `(experts,)` as float32."""
        p, builder = self.p, self.builder
        view, wide = GmView.vector("bias", p.element, p.experts), bias.of(FLOAT32, p.experts)
        if p.element is FLOAT32:
            fill(builder, bias, view)
            builder.sync("mte2", "vector")
            return
        slot = load(builder, self.x, view)
        step(builder, Cast(wide, slot.of(p.element, p.experts), "none"))
        self.x.free(slot)

    # ---- one row ----

    def row(self, x: GmView, y: GmView, chosen: GmView, *every: GmView) -> None:
        """*x* `(1, experts)` to the *k* best, *y* and *chosen*, each `(1, k)`."""
        p, builder = self.p, self.builder
        slot = load(builder, self.x, x)
        wide, scores = (part.of(FLOAT32, p.experts) for part in (self.wide, self.scores))
        own = slot.of(p.element, p.experts)
        step(builder, Copy(wide, own) if p.element is FLOAT32 else Cast(wide, own, "none"))
        self.x.free(slot)
        normalise = self.steps.sigmoid if p.is_sigmoid else self.steps.softmax
        normalise(scores, wide)
        for view in every:
            builder.sync("vector", "mte3")
            builder.data_copy(view.operand, scores)
        keys = self.keys.of(FLOAT32, p.experts)
        if self.bias is None:
            step(builder, Copy(keys, scores))
        else:
            step(builder, Binary("add", keys, scores, self.bias.of(FLOAT32, p.experts)))
        self._sort()
        self._look_up(y, chosen)
        if every:
            # The next row may come only when the scores have left.
            builder.sync("mte3", "vector")

    def _sort(self) -> None:
        """The keys in descending order, as one list that begins the sorter's pairs."""
        p, builder, filled = self.p, self.builder, self.filled.of(FLOAT32, self.lanes)
        if self.spread is not None:
            keys = self.keys.of(FLOAT32, align_up(p.experts + 1, BLOCK))
            step(builder, Gather(filled, keys, self.spread.of(INT32, self.lanes)))
        each = padded(p.list_experts)
        lists = self.sorter.sort(filled, self.indices.of(INT32, self.lanes), each)
        if self.groups is not None:
            self.groups.keep_best(lists)

    def _look_up(self, y: GmView, chosen: GmView) -> None:
        """The scores of the first *k* of the list, and which experts they are of."""
        p, builder = self.p, self.builder
        experts = self.chosen.alloc()
        best, places = self.best.of(FLOAT32, p.k), self.places.of(INT32, p.k)
        self.sorter.take_indices(experts.of(INT32, p.k))
        step(builder, BinaryScalar("mul", places, experts.of(INT32, p.k), FLOAT32.nbytes(1)))
        step(builder, Gather(best, self.scores.of(FLOAT32, p.experts), places))
        store(builder, self.chosen, experts, chosen)
        if p.is_sigmoid:
            self.steps.divide_by_total(best, p.epsilon)
        step(builder, BinaryScalar("mul", best, best, p.factor))
        out = self.y.alloc()
        own = out.of(p.element, p.k)
        step(builder, Copy(own, best) if p.element is FLOAT32 else Cast(own, best, "rint"))
        store(builder, self.y, out, y)
