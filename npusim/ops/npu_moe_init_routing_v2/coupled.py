"""The kernel MoeInitRoutingV2 of 310P: each AI core sorts all choices and copies some rows.

ops-transformer@3a280bc moe/moe_init_routing_v2, op_kernel/moe_v2_init_routing_fullload.h: sorting
by expert gives the order of the choices, and sorting that order gives the place of each. The first
core stores the index, the last one the counts, and no core waits for another.

Assumed: the padding of the list is written in two steps if it begins within a block, and has
indices of choices that do not exist; the scalar unit reads each expert in the list and writes the
count of each expert once; and it reads the place of each row.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    FLOATS_PER_BLOCK,
    PROPOSALS_AT_ONCE,
    Global,
    Local,
    ScalarLoad,
    ScalarLoop,
)
from npusim.kernel import Block, GmView, GmViews, Step, VectorCore, bindings
from npusim.kernel.sequences import count_up
from npusim.ops._proposals import ProposalSorter, numbers_of
from npusim.ops.npu_moe_init_routing_v2.check import CoupledPlan, Problem

NOTHING = -3.4e38
"""The key of padding in the list (moe_v2_common.h)."""
EXPERT, PLACE, TOTAL = "expert", "place", "total"
"""Registers."""
FIRST, ROWS, LAST = range(3)
"""Phases of a core: sort, copy; one core counts before it copies."""


def build(spec: DeviceSpec, p: Problem, plan: CoupledPlan) -> tuple[Block, ...]:
    """Each core has a run of choices, whose rows it copies to their places."""
    core = VectorCore("init_routing_v2", spec)
    routing = CoupledRouting(core, p, plan)
    choices = np.arange(p.rows)
    of_choice = choices // plan.rows_of_core
    # Later cores have nothing to do.
    cores = np.unique(of_choice)
    begin = cores * plan.rows_of_core
    end = np.minimum(begin + plan.rows_of_core, p.rows)
    tokens = -(-end // p.k) - begin // p.k
    x = GmView.of("x", p.element, p.tokens, p.width)
    output = GmView.of("output", p.element, p.rows, p.width)
    first, last = np.zeros(1, np.int64), cores[-1:]
    places = np.empty(p.rows, np.int64)
    places[np.argsort(p.expert_keys(), kind="stable")] = choices
    copied = choices // p.k - begin[of_choice] // p.k
    steps = (
        Step(routing.sort, (), cores, 0 * cores + FIRST),
        Step(routing.store_index, (), first, first + FIRST),
        Step(routing.count, (), last, 0 * last + FIRST),
        Step(
            routing.load,
            (GmViews.of(x, begin // p.k, 0, tokens, p.width),),
            cores,
            0 * cores + FIRST,
        ),
        Step(
            routing.copy,
            (copied, GmViews.row(output, places)),
            of_choice,
            0 * of_choice + ROWS,
        ),
    )
    names = ("x", "expert_idx", "output", "expanded_row_idx", "expert_token_cumsum_or_count")
    views = [GmView.vector(name, INT32, 1) for name in names]
    return core.launch(*steps, bound=lambda _: bindings(*views), block_dim=plan.block_dim)


class CoupledRouting:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: CoupledPlan) -> None:
        self.core, self.p = core, p
        lanes = align_up(p.rows, PROPOSALS_AT_ONCE)
        self.x = core.tile(p.element, plan.tokens_of_core * p.width)
        self.index, self.experts = core.tile(INT32, lanes), core.tile(INT32, lanes)
        self.counts = core.tile(INT32, align_up(p.experts, FLOATS_PER_BLOCK))
        self.order = core.tile(INT32, lanes)
        self.keys, self.numbers = core.tile(INT32, lanes), core.tile(INT32, lanes)
        self.sorter = ProposalSorter(core, lanes)

    def sort(self) -> None:
        """Sort the choices by expert, and then their order."""
        core, rows = self.core, self.p.rows
        choices = GmView.vector("expert_idx", INT32, rows)
        core.data_copy(blocks(self.keys, rows), whole(choices))
        core.sync("mte2", "vector")
        count_up(core, self.numbers)
        keys = self._keys(numbers_of(core, self.keys, rows))
        self.sorter.sort(keys, self.numbers)
        experts = self.experts.as_dtype(FLOAT32)
        self.sorter.take(experts, self.order)
        order = numbers_of(core, self.order, rows)
        experts = experts[:rows]
        core.mul(experts, experts, -1.0)
        core.cast(self.experts[:rows], experts, "round")
        count_up(core, self.numbers)
        self.sorter.sort(self._keys(order), self.numbers)
        self.sorter.take(self.keys.as_dtype(FLOAT32), self.index)

    def _keys(self, values: Local) -> Local:
        """Write the negated *values* `(n,)`, and the padding of the list."""
        core, count = self.core, values.count
        lanes = align_up(count, PROPOSALS_AT_ONCE)
        keys = Local(values.buffer, values.offset_bytes, FLOAT32, lanes)
        core.mul(values, values, -1.0)
        block = min(align_up(count, FLOATS_PER_BLOCK), lanes)
        with core.independent():
            if block > count:
                core.min(keys[count:block], keys[count:block], NOTHING)
            if lanes > block:
                core.duplicate(keys[block:lanes], NOTHING)
        return keys

    def store_index(self) -> None:
        """Store the place of each choice."""
        index = GmView.vector("expanded_row_idx", INT32, self.p.rows)
        self.core.sync("vector", "mte3")
        self.core.data_copy(whole(index), blocks(self.index, self.p.rows))

    def count(self) -> None:
        """Compute and store the ends of the rows of all experts."""
        core, p = self.core, self.p
        core.duplicate(self.counts, 0)
        core.sync("vector", "scalar")
        look = ScalarLoad(EXPERT, self.experts[:1], INT32.nbytes(1))
        core.emit(ScalarLoop(p.rows, (look,)))
        ends = np.cumsum(np.bincount(p.expert_keys(), minlength=p.experts))
        for expert, end in enumerate(ends.tolist()):
            core.alu("add", TOTAL, end)
            core.set_value(self.counts[expert : expert + 1], TOTAL)
        core.sync("scalar", "mte3")
        counts = GmView.vector("expert_token_cumsum_or_count", INT32, p.experts)
        core.data_copy(whole(counts), blocks(self.counts, p.experts))

    def load(self, x: GmView) -> None:
        """Load all rows of *x* that this core copies."""
        core = self.core
        core.fill(self.x[: x.rows * x.columns], x.flat)
        core.sync("mte2", "mte3")
        core.sync("vector", "scalar")

    def copy(self, token: int, output: GmView) -> None:
        """Copy row *token* of those that were loaded to its place."""
        # The time of the read does not depend on the index.
        self.core.get_value(PLACE, self.index[:1])
        self.core.data_copy(output.operand, self.x.at(token * self.p.width, self.p.width))


def blocks(tile: Local, count: int) -> Local:
    """The first *count* elements of *tile* of int32, padded to whole blocks."""
    return tile[: align_up(count, FLOATS_PER_BLOCK)]


def whole(view: GmView) -> Global:
    """*view*, a vector, padded to whole blocks: the last one may end after the tensor."""
    return Global(view.name, view.offset_bytes, align_up(view.nbytes, BLOCK_BYTES))
