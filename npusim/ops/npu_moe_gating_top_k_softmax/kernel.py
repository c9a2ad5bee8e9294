"""The program that each core runs for npu_moe_gating_top_k_softmax: one row at a time.

A row is normalised, sorted whole with the numbers of its columns, and the first of the sorted pairs
are what comes out. Where the rows of the experts are to be is counted up from row to row.

ops-transformer@c29bc10 moe/moe_gating_top_k_softmax/op_kernel. Assumed: that float16 is sorted as
float32, that whether a row is finished is read by the scalar unit from global memory and multiplied
in, and which barriers stand between.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, UINT8
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BinaryScalar,
    Cast,
    Copy,
    Duplicate,
    Local,
    ScalarAlu,
    ScalarLoadGlobal,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.program import Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.sequences import count_up
from npusim.kernel.views import GmView, bindings, load, repeat, store
from npusim.ops._moe.scores import Scores
from npusim.ops._moe.sorting import Sorter, padded
from npusim.ops.npu_moe_gating_top_k_softmax.contract import Problem
from npusim.ops.npu_moe_gating_top_k_softmax.tiling import Plan

__all__ = ["build"]

NOTHING = float("-inf")
"""The key of what fills a row up."""
DONE, GOES_ON = "done", "goes_on"
"""Registers."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core, each with a program of its own: rows are counted."""
    kernel = GatingSoftmax(spec, p)
    blocks: list[Block] = []
    for first, rows in pieces(p.rows, plan.rows_per_core):
        core, bound = len(blocks), bindings(*kernel.views)
        program = kernel.program(range(first, first + rows))
        blocks.append(Block(core, spec.vector_cores[core], program, bound))
    return tuple(blocks)


class GatingSoftmax:
    """The kernel, while it is written: its programs share one builder and its bodies."""

    def __init__(self, spec: DeviceSpec, p: Problem) -> None:
        self.p = p
        self.work = FLOAT16 if p.element is FLOAT16 else FLOAT32
        self.views = [
            GmView.of("x", p.element, p.rows, p.experts),
            GmView.of("output", p.element, p.rows, p.k),
            *(GmView.of(name, INT32, p.rows, p.k) for name in ("expert_idx", "row_idx")),
        ]
        if p.has_finished:
            self.views.append(GmView.of("finished", UINT8, p.rows, 1))
        core = spec.cores[spec.vector_kinds[0]]
        self.builder = builder = Builder("gating_top_k_softmax", core, spec.sync)
        self.x = builder.queue("ub", p.element.nbytes(p.experts), "mte2", "vector")
        self.y = builder.queue("ub", p.element.nbytes(p.k), "vector", "mte3")
        self.chosen, self.rows = (
            builder.queue("ub", INT32.nbytes(p.k), "vector", "mte3") for _ in range(2)
        )
        self.lanes = padded(p.experts)
        self.keys = builder.claim("ub", FLOAT32.nbytes(self.lanes))
        self.own = self.keys
        """The row in the type that is calculated in."""
        if self.work is FLOAT16:
            self.own = builder.claim("ub", FLOAT16.nbytes(p.experts))
        self.steps = Scores(builder, p.experts, self.work)
        self.sorter = Sorter(builder, self.lanes)
        self.columns = builder.claim("ub", INT32.nbytes(self.lanes))
        self.best = builder.claim("ub", FLOAT32.nbytes(p.k))
        self.places = builder.claim("ub", INT32.nbytes(p.k))
        """Where the row of each choice is to be."""

    def program(self, rows: range) -> Program:
        """The rows of one core."""
        builder = self.builder
        step(builder, Duplicate(self.keys.of(FLOAT32, self.lanes), NOTHING))
        count_up(builder, self.columns.of(INT32, self.lanes))
        count_up(builder, self.places.of(INT32, self.p.k), rows.start, self.p.rows)
        for row in rows:
            repeat(builder, self.row, *(view[row : row + 1, :] for view in self.views))
        return builder.build()

    def row(
        self, x: GmView, y: GmView, chosen: GmView, rows: GmView, finished: GmView | None = None
    ) -> None:
        """*x* `(1, experts)` to the best *k* of it."""
        p, builder = self.p, self.builder
        slot = load(builder, self.x, x)
        own, loaded = self.own.of(self.work, p.experts), slot.of(p.element, p.experts)
        keys = self.keys.of(FLOAT32, p.experts)
        step(builder, Copy(own, loaded) if own.dtype is loaded.dtype else Cast(own, loaded, "none"))
        if own != keys:
            step(builder, Cast(keys, own, "none"))
        self.x.free(slot)
        self.steps.exponential(own, keys)
        self.steps.divide_by_total(own)
        if own != keys:
            step(builder, Cast(keys, own, "none"))
        self.sorter.sort(self.keys.of(FLOAT32, self.lanes), self.columns.of(INT32, self.lanes))
        self._store_best(y)
        self._store_experts(chosen, finished)
        self._store_places(rows)

    def _store_best(self, y: GmView) -> None:
        best = self.best.of(FLOAT32, self.p.k)
        self.sorter.take_keys(best)
        out = self.y.alloc()
        own = out.of(y.dtype, self.p.k)
        if y.dtype is FLOAT32:
            step(self.builder, Copy(own, best))
        else:
            step(self.builder, Cast(own, best, "rint" if y.dtype is FLOAT16 else "round"))
        store(self.builder, self.y, out, y)

    def _store_experts(self, chosen: GmView, finished: GmView | None) -> None:
        """The columns of the best; their number instead where the row is finished."""
        builder = self.builder
        out = self.chosen.alloc()
        experts = out.of(INT32, self.p.k)
        self.sorter.take_indices(experts)
        if finished is not None:
            builder.emit(
                ScalarLoadGlobal(DONE, finished.operand, UINT8),
                ScalarAlu("eq", GOES_ON, DONE, 0),
                ScalarAlu("sub", DONE, 1, GOES_ON),
                ScalarAlu("mul", DONE, DONE, self.p.experts),
            )
            step(builder, BinaryScalar("mul", experts, experts, GOES_ON))
            step(builder, BinaryScalar("add", experts, experts, DONE))
        store(builder, self.chosen, out, chosen)

    def _store_places(self, rows: GmView) -> None:
        """The places of this row, which are then those of the next one."""
        places = self.places.of(INT32, self.p.k)
        out = self.rows.alloc()
        step(self.builder, Copy(out.of(INT32, self.p.k), places))
        self._next(places)
        store(self.builder, self.rows, out, rows)

    def _next(self, places: Local) -> None:
        step(self.builder, BinaryScalar("add", places, places, 1))
