"""npu_moe_gating_top_k: the best experts of each token, and their weights.

.. code-block:: text

    p      = 1 / (exp(x * -1) + 1)                             norm_type 1, sigmoid
    p      = e * (1 / sum(e)), e = exp(x + -max(x))            norm_type 0, softmax
    key    = p + bias
    chosen = the k largest keys, of equal ones the first, in the k_group best of group_count groups
    y      = p[chosen] * routed_scaling_factor                 norm_type 0
    y      = p[chosen] / (sum(p[chosen]) + eps) * routed_scaling_factor       norm_type 1

A group is ranked by its largest key, or in group_select_mode 1 by the sum of its two largest. All
is float32, rounded after each operation, and y is rounded to the type of x, to nearest, ties to
even. Sums are taken over 64 columns at a time, pairwise over neighbours, and these sums are added
one after the other. NaN ranks above all values, see :mod:`npusim.isa.sorting`.

*out* holds p with out_flag. Without it a card does not write *out*; here it is filled with 0.

Sources: ops-transformer@c29bc10 moe/moe_gating_top_k, op_kernel and op_host; asc-devkit, Sort.md
and ReduceSum.md. Assumed: that groups of any size are handled like groups of 32 and are padded by
Gather; where the barriers are; and that tables shared by all rows are written first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32, Array, DType
from npusim.data.errors import shown
from npusim.data.integers import align_up, ceil_div
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import FLOATS_PER_BLOCK, SORTED_AT_ONCE, Local
from npusim.kernel import Block, GmView, Step, VectorCore
from npusim.kernel.sequences import count_up
from npusim.kernel.steps import tiles
from npusim.ops import _vocabulary as ops
from npusim.ops._gates import (
    FLOATS,
    NOTHING,
    GroupChoice,
    Groups,
    Plan,
    Scores,
    descending,
    row_sums,
)
from npusim.ops._sorting import Sorter, padded
from npusim.ops._vocabulary import A2_A3, alike, present

MOST_EXPERTS = 2048
"""Including the padding of groups to multiples of 32 (moe_gating_top_k, op_host)."""
DOCUMENTED_EXPERTS = 2
"""A group has more (torch_npu-npu_moe_gating_top_k.md); the kernel accepts fewer, too."""
LARGEST_FACTOR = 3.4028234663852886e38
"""The largest value of float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: the *k* best of each row of x `(rows, experts)`."""

    element: DType
    rows: int
    experts: int
    k: int
    groups: int
    kept_groups: int
    sums_two: bool
    """Whether a group is ranked by the sum of its two largest keys instead of the largest."""
    is_sigmoid: bool
    """Instead of softmax."""
    has_bias: bool
    writes_all: bool
    """Whether the normalised scores of all experts are stored too."""
    factor: float
    epsilon: float

    @property
    def is_grouped(self) -> bool:
        """Whether some groups are dropped."""
        return self.groups not in (1, self.experts) and self.kept_groups < self.groups

    @property
    def lists(self) -> Groups:
        """The lists that are sorted separately: each group, or all experts."""
        count = self.groups if self.is_grouped else 1
        return Groups(count, self.kept_groups, self.experts // count, self.sums_two)


SUPPORT = alike(
    FLOATS,
    *("x", "bias"),
    on=A2_A3,
    shapes={"x": "rows experts", "bias": "experts"},
    group_select_mode=(0, 1),
    renorm=(0,),
    norm_type=(0, 1),
)


def check(contract: ops.Contract) -> Problem:
    """Check how the arguments of a call must match; raises OpError."""
    scores = contract.operand("x")
    rows, experts = scores.shape
    contract.require(
        1 <= experts <= MOST_EXPERTS,
        f"x must have 1 to {MOST_EXPERTS} experts, not {experts}; choose from fewer",
    )
    added = contract.optional("bias")
    mode = contract.integer("group_select_mode")
    contract.integer("renorm")
    kind = contract.integer("norm_type")
    groups, kept = _groups(contract, experts, mode)
    best = contract.integer("k")
    contract.require(
        1 <= best <= kept * (experts // groups),
        f"k must be from 1 to {kept * (experts // groups)}, the experts of {kept} groups, not "
        f"{best}; choose fewer, or keep more groups",
    )
    return Problem(
        inputs=present(scores, added),
        outputs={
            "output": TensorSpec((rows, best), scores.spec.dtype),
            "expert_idx": TensorSpec((rows, best), "int32"),
            "out": TensorSpec((rows, experts), "float32"),
        },
        element=scores.element,
        rows=rows,
        experts=experts,
        k=best,
        groups=groups,
        kept_groups=kept,
        sums_two=mode == 1,
        is_sigmoid=kind == 1,
        has_bias=added is not None,
        writes_all=contract.boolean("out_flag"),
        factor=_number(contract, "routed_scaling_factor"),
        epsilon=_number(contract, "eps"),
    )


def _groups(contract: ops.Contract, experts: int, mode: int) -> tuple[int, int]:
    """The number of groups, and how many of them are selected."""
    groups, kept = contract.integer("group_count"), contract.integer("k_group")
    contract.require(
        groups > 0 and experts % groups == 0,
        f"group_count must divide the {experts} experts of x, not be {groups}; choose a divisor",
    )
    contract.require(
        1 <= kept <= groups,
        f"k_group must be from 1 to group_count, {groups}, not {kept}; keep no more than there are",
    )
    each = experts // groups
    if 1 < groups < experts and each <= DOCUMENTED_EXPERTS:
        contract.warn(
            f"group_count should leave more than {DOCUMENTED_EXPERTS} experts to a group, as the "
            f"document asks, not {each}; make fewer groups"
        )
    contract.require(
        groups == 1 or groups * padded(each) <= MOST_EXPERTS or groups == experts,
        f"groups must fit into {MOST_EXPERTS} experts when each is filled up to a multiple of "
        f"{SORTED_AT_ONCE}, not need {groups * padded(each)}; make fewer groups",
    )
    contract.require(
        mode == 0 or each > 1,
        f"group_count must leave at least two experts to a group for group_select_mode=1, not "
        f"{each}; make fewer groups, or take mode 0",
    )
    return groups, kept


def _number(contract: ops.Contract, name: str) -> float:
    value = contract.value(name)
    contract.require(
        abs(value) <= LARGEST_FACTOR,
        f"{name} must be a number that float32 has, not {shown(value)}; pass a finite one",
    )
    return float(value)


# ---- tiling: op_host ----

REASONS = {
    "groups_of_32": "256 experts in eight groups of 32, four of which are kept",
    "no_group": "no group is left out",
    "any_groups": "groups are left out",
}
"""Template -> when it runs."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split rows evenly over the vector cores."""
    rows = ceil_div(p.rows, len(spec.vector_cores))
    template = _template(p)
    return Plan(
        block_dim=ceil_div(p.rows, rows),
        template=template,
        reason=REASONS[template],
        rows_per_core=rows,
    )


def _template(p: Problem) -> str:
    """One template is for the gate of a particular model."""
    if not p.is_grouped:
        return "no_group"
    shape = (p.experts, p.groups, p.kept_groups) == (256, 8, 4)
    rest = p.has_bias and p.sums_two and p.is_sigmoid and not p.writes_all
    return "groups_of_32" if shape and rest and p.k <= SORTED_AT_ONCE else "any_groups"


# ---- kernel: op_kernel ----


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """A run of rows for each core; a row is stored before the next one is loaded."""
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
        # The element after the experts pads the groups.
        most = align_up(p.experts + 1, FLOATS_PER_BLOCK)
        self.wide, self.scores, self.keys = (core.tile(FLOAT32, most) for _ in range(3))
        self.bias = core.tile(FLOAT32, p.experts) if p.has_bias else None
        self.steps = Scores(core, p.experts)
        self.sorter = Sorter(core, p.lists.lanes)
        self.indices = core.tile(INT32, p.lists.lanes)
        """The expert of each lane that is sorted."""
        self.best, self.places = core.tile(FLOAT32, p.k), core.tile(INT32, p.k)
        self.spread: Local | None = None
        """The position of each lane's key, if lists are padded."""
        if p.lists.experts % FLOATS_PER_BLOCK or padded(p.lists.experts) != p.lists.experts:
            self.spread = core.tile(INT32, p.lists.lanes)
            self.filled = core.tile(FLOAT32, p.lists.lanes)
        else:
            self.filled = self.keys[: p.lists.lanes]
        self.groups = GroupChoice(core, p.lists, self.sorter) if p.is_grouped else None

    def write_tables(self) -> None:
        """Write the tables that all rows share."""
        p, core = self.p, self.core
        if self.bias is not None:
            self._load_bias(self.bias)
        core.duplicate(self.keys, NOTHING)
        each = padded(p.lists.experts)
        if self.spread is None:
            count_up(core, self.indices)
        else:
            core.duplicate(self.indices, 0)
            core.duplicate(self.spread, FLOAT32.nbytes(p.experts))
            for group in range(p.lists.count):
                lanes = slice(group * each, group * each + p.lists.experts)
                count_up(core, self.indices[lanes], group * p.lists.experts)
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
        """Find the *k* best of *x* `(1, experts)`, *y* and *chosen*, each `(1, k)`."""
        p, core = self.p, self.core
        tile = core.load_rows(self.x, x)
        wide, scores, keys = (part[: p.experts] for part in (self.wide, self.scores, self.keys))
        core.convert(wide, tile)
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
            # The next row may start only when the scores are stored.
            core.sync("mte3", "vector")

    def _sort(self) -> None:
        """Sort the keys in descending order, into one list at the start of the sorter's pairs."""
        if self.spread is not None:
            self.core.gather(self.filled, self.keys, self.spread)
        lists = self.sorter.sort(self.filled, self.indices, padded(self.p.lists.experts))
        if self.groups is not None:
            self.groups.keep_best(lists)

    def _look_up(self, y: GmView, chosen: GmView) -> None:
        """Look up the scores of the first *k* of the list, and their experts."""
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
        core.convert(out, best)
        core.store_rows(self.y, out, y)


# ---- oracle ----


def oracle(given: ops.Given) -> tuple[Array, Array, Array]:
    """Weights `(rows, k)`, their experts, and the scores of all experts."""
    x, bias, is_sigmoid = given.x, given.bias, given.norm_type == 1
    groups = given.k_group, given.group_count, given.group_select_mode
    with np.errstate(all="ignore"):
        wide = x.astype(np.float32)
        scores = _sigmoid(wide) if is_sigmoid else _softmax(wide)
        keys = scores if bias is None else scores + bias.astype(np.float32)
        ranks = _kept(_in_order(keys), keys, *groups)
        chosen = descending(ranks)[:, : given.k]
        weights = np.take_along_axis(scores, chosen, axis=1)
        if is_sigmoid:
            weights = weights / (row_sums(weights) + np.float32(given.eps))[:, None]
        weights = weights * np.float32(given.routed_scaling_factor)
        every = scores if given.out_flag else np.zeros_like(scores)
        return weights.astype(x.dtype), chosen.astype(np.int32), every


def _sigmoid(x: Array) -> Array:
    exponential = np.exp((x * np.float32(-1)).astype(np.float64)).astype(np.float32)
    return np.asarray(np.float32(1) / (exponential + np.float32(1)))


def _softmax(x: Array) -> Array:
    apart = x + np.max(x, axis=1, keepdims=True) * np.float32(-1)
    exponential = np.exp(apart.astype(np.float64)).astype(np.float32)
    return np.asarray(exponential * (np.float32(1) / row_sums(exponential))[:, None])


def _in_order(keys: Array) -> Array:
    """An integer for each of *keys* in their order: -0 is 0, and NaN above infinity."""
    bits = keys.astype(np.float32).view(np.int32).astype(np.int64)
    ranks = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return np.where(np.isnan(keys), 2**31, ranks)


def _kept(ranks: Array, keys: Array, kept: int, groups: int, mode: int) -> Array:
    """*ranks*, with the smallest integer in groups that are dropped."""
    rows, experts = ranks.shape
    if groups in (1, experts) or kept == groups:
        return ranks
    by_group = (rows, groups, experts // groups)
    leading = np.take_along_axis(
        keys.reshape(by_group), descending(ranks.reshape(by_group))[..., :2], axis=-1
    )
    scores = leading[..., 0] + leading[..., 1] if mode == 1 else leading[..., 0]
    best = descending(_in_order(scores))[:, :kept]
    is_kept = np.zeros((rows, groups), bool)
    np.put_along_axis(is_kept, best, True, axis=1)
    return np.where(np.repeat(is_kept, experts // groups, axis=1), ranks, -(2**40))


def _outputs(given: ops.TorchArguments, _: object) -> tuple[tuple[tuple[object, ...], str], ...]:
    x = given["x"]
    rows, chosen = x.shape[0], (x.shape[0], given["k"])
    return (chosen, x.dtype), (chosen, "int32"), ((rows, x.shape[1]), "float32")


TORCH = ops.TorchFunction(
    schema="npu_moe_gating_top_k(Tensor x, int k, *, Tensor? bias=None, Tensor? input_ids=None, "
    "Tensor? tid2eid=None, int k_group=1, int group_count=1, int group_select_mode=0, "
    "int renorm=0, int norm_type=0, bool out_flag=False, float routed_scaling_factor=1.0, "
    "float eps=1e-20) -> (Tensor, Tensor, Tensor)",
    aclnn=lambda _: "aclnnMoeGatingTopK",
    outputs=_outputs,
    absent=("input_ids", "tid2eid"),
)

OPERATOR = ops.Operator(
    kernel_type="MoeGatingTopK",
    document=__doc__,
    support=SUPPORT,
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    at_once=ops.at_once_by(oracle),
    torch=(TORCH,),
)
