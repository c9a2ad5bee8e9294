"""npu_moe_compute_expert_tokens: where the rows of each expert end in a sorted list.

.. code-block:: text

    output[e] = how many of sorted_expert_for_source_row are at most e

Each core processes a share of the list. For each expert from its first entry to its last it finds
the place of the first row of that expert and the row count, and writes their sum; experts without
rows, and those after the last, get the value of the one before. Cores are combined by maximum
(atomic stores), after core 0 has cleared the output.

Sources: ops-transformer@c29bc10 moe/moe_compute_expert_tokens, op_kernel (int32_ss) and op_host;
the operator's document. Atlas A2 and A3. Up to 12000 rows of up to 256 experts, and 65536 rows of 8
experts; for others the kernels are not simulated, and :mod:`npusim.torch` searches the list.
Without values the rows are those of all experts in equal parts. Entries that are not sorted, or are
no expert, would write other memory on a card, and are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32, UINT8, Array
from npusim.data.errors import Code
from npusim.data.integers import align_up, ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import Reduce, ScalarLoad, ScalarLoop, ScalarStore, Store
from npusim.kernel import Block, GmView, Step, VectorCore, sync_all
from npusim.ops import _vocabulary as ops

NAME = "sorted_expert_for_source_row"
MOST_ROWS, MOST_EXPERTS = 12000, 256
"""Limits of the kernel that is simulated (BSK_BOUND_NUM, E_BOUND_NUM)."""
NET = (65536, 8)
"""Rows and experts that it accepts as well (NET_BSK_BOUND_NUM, NET_E_BOUND_NUM)."""
SUPPORT = (
    ops.Row(on=ops.A2_A3, sorted_expert_for_source_row=ops.Operands((INT32,), ranks=(1, 1))),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call."""

    experts: int
    rows: tuple[int, ...]
    """The expert of each row."""


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    given, experts = contract.operand(NAME), contract.integer("num_expert")
    contract.require_filled(given)
    contract.require(
        experts >= 1, f"num_expert must be at least 1, not {experts}; pass how many there are"
    )
    (count,) = given.shape
    contract.require(
        (count <= MOST_ROWS and experts <= MOST_EXPERTS) or (count, experts) == NET,
        f"{NAME} must have up to {MOST_ROWS} rows of up to {MOST_EXPERTS} experts, not {count} of "
        f"{experts}: kernels of more are not simulated; count them by themselves",
        Code.UNSUPPORTED,
    )
    return Problem(
        inputs=(given,),
        outputs={"output": TensorSpec((experts,), "int32")},
        experts=experts,
        rows=_rows(contract, given, experts),
    )


def _rows(contract: ops.Contract, given: Operand, experts: int) -> tuple[int, ...]:
    """The expert of each row, which must be sorted."""
    (count,) = given.shape
    if given.array is None:
        return tuple((np.arange(count) * experts // count).tolist())
    rows = given.array
    contract.require(
        bool((np.diff(rows) >= 0).all() and rows[0] >= 0 and rows[-1] < experts),
        f"{NAME} must rise from 0 to {experts - 1} at most, not go from {rows.min()} to "
        f"{rows.max()}{' unsorted' if (np.diff(rows) < 0).any() else ''}; sort the experts of rows",
    )
    return tuple(rows.tolist())


# ---- tiling: op_host/moe_compute_expert_tokens_tiling.cpp ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Shares of the list."""

    each: int
    """Rows of a core; the last takes the rest."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Equal shares; all cores start."""
    cores = len(spec.vector_cores)
    return Plan(block_dim=cores, each=ceil_div(len(p.rows), cores))


# ---- kernel: op_kernel/moe_compute_expert_tokens_int32_ss.h ----

READY = 0
"""The flag by which all cores wait until core 0 has cleared the output."""
INDEX, COUNT, LAST = "index", "count", "last"
"""Registers."""
LANES, BLOCK = 64, 8
"""float32 in a repeat, and in a block."""
Experts = tuple[tuple[int, bool], ...]
"""Experts from a core's first to its last, and whether it has rows of them."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Core 0 clears the output, all wait, and each core with rows processes them."""
    core = VectorCore("npu_moe_compute_expert_tokens", spec)
    kernel = Shares(core, p, plan)
    starts = np.arange(0, len(p.rows), plan.each, dtype=np.int64)
    whole = GmView.vector(NAME, INT32, len(p.rows))
    views = [whole[:, start : start + plan.each] for start in starts.tolist()]
    of_core = []
    for start in starts.tolist():
        own = p.rows[start : start + plan.each]
        present = {*own}
        of_core.append(tuple((x, x in present) for x in range(own[0], own[-1] + 1)))
    cores = np.arange(plan.block_dim, dtype=np.int64)
    output = GmView.vector("output", INT32, p.experts)
    return core.launch(
        Step(kernel.clear, (output,), cores[:1]),
        Step(kernel.meet, (), cores),
        Step(kernel.share, (views, starts, of_core, output), cores[: starts.size]),
        block_dim=plan.block_dim,
    )


class Shares:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.experts = core, p.experts
        size = align_up(plan.each, LANES)
        self.listed = core.vecin(INT32, align_up(plan.each, BLOCK))
        self.found = core.vecout(INT32, align_up(p.experts, BLOCK))
        self.mask = core.tile(UINT8, align_up(size // 8, 32))
        self.wide, self.hits = core.tile(FLOAT32, size), core.tile(FLOAT32, size)
        self.target, self.one, self.largest, self.total = (
            core.tile(FLOAT32, BLOCK) for _ in range(4)
        )

    def clear(self, output: GmView) -> None:
        """Zero the whole output."""
        zeros = self.found.alloc()
        self.core.duplicate(zeros[: self.experts], 0)
        self.core.store_rows(self.found, zeros, output)

    def meet(self) -> None:
        """Wait until the output is clear."""
        self.core.end_stage()
        sync_all(self.core, "mte3", "mte2", READY)

    def share(self, rows: GmView, start: int, experts: Experts, output: GmView) -> None:
        """Store the ends of *experts*, and of all after them, from *rows* from *start* on."""
        core, count = self.core, rows.columns
        listed, found = core.load(self.listed, rows), self.found.alloc()
        core.duplicate(self.one, 1.0)
        last = count // LANES * LANES
        if last < count:
            core.duplicate(self.wide[last : last + LANES], 0.0)
        core.cast(self.wide[:count], listed[:count], "none")
        core.duplicate(found[: self.experts], 0)
        core.sync("vector", "scalar")
        for expert, is_found in experts:
            if is_found:
                self._end_of(expert, count, start)
            else:
                self._hits(expert, count)
            core.set_value(found[expert : expert + 1], LAST)
        last, _ = experts[-1]
        if last + 1 < self.experts:
            take = ScalarLoad(LAST, found[last : last + 1])
            put = ScalarStore(found[last + 1 : last + 2], LAST, INT32.nbytes(1))
            core.emit(ScalarLoop(self.experts - last - 1, (take, put)))
        core.sync("scalar", "mte3")
        self.listed.free(listed)
        self.found.enque(found)
        found = self.found.deque()
        src = found[: self.experts]
        core.emit(Store(output.operand, src, atomic=INT32, atomic_op="max"))
        self.found.free(found)

    def _hits(self, expert: int, count: int) -> None:
        """Set 1 where rows are those of *expert*, and find the largest of these with its place."""
        core, padded = self.core, align_up(count, LANES)
        core.duplicate(self.target, float(expert))
        block = replace(self.target, count=padded, block_stride=0, repeat_stride=0)
        one = replace(self.one, count=padded, block_stride=0, repeat_stride=0)
        core.compare("eq", self.mask[: padded // 8], self.wide[:padded], block)
        core.select(self.hits[:padded], self.mask[: padded // 8], one, 0.0)
        core.step(Reduce("max", self.largest[:2], self.hits[:count], "value_index"))
        core.sync("vector", "scalar")
        core.get_value(INDEX, self.largest[:1])

    def _end_of(self, expert: int, count: int, start: int) -> None:
        """Write the end of the rows of *expert* to a register."""
        core = self.core
        self._hits(expert, count)
        core.step(Reduce("sum", self.total[:1], self.hits[:count]))
        core.sync("vector", "scalar")
        core.get_value(INDEX, self.largest[1:2].as_dtype(INT32))
        core.get_value(COUNT, self.total[:1])
        core.alu("f32_to_i32", COUNT, COUNT)
        core.alu("add", LAST, INDEX, COUNT)
        core.alu("add", LAST, LAST, start)


# ---- oracle ----


def oracle(given: ops.Given) -> Array:
    """The number of rows of each expert and all before it."""
    rows = given.sorted_expert_for_source_row
    return np.cumsum(np.bincount(rows, minlength=given.num_expert)).astype(np.int32)


OPERATOR = ops.Operator(
    kernel_type="MoeComputeExpertTokens",
    document=__doc__,
    support=SUPPORT,
    elsewhere="run it on Atlas A2 or A3",
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    value_dependent_inputs=(NAME,),
    torch=(
        ops.TorchFunction(
            schema="npu_moe_compute_expert_tokens(Tensor sorted_expert_for_source_row, "
            "int num_expert) -> Tensor",
            aclnn=lambda _: "aclnnMoeComputeExpertTokens",
            outputs=lambda given, _: (((given["num_expert"],), "int32"),),
        ),
    ),
)
