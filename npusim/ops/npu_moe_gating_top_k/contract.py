"""What npu_moe_gating_top_k accepts: Atlas A2 and A3 only."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import DType
from npusim.data.errors import shown
from npusim.data.tensor import Operand, TensorSpec
from npusim.isa import SORTED_AT_ONCE
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops._moe.contract import FLOATS
from npusim.ops._moe.sorting import padded
from npusim.ops._protocol import present
from npusim.ops._support import A2_A3, alike

__all__ = ["MOST_EXPERTS", "SUPPORT", "Problem", "check"]

MOST_EXPERTS = 2048
"""Groups filled up to multiples of 32 included (moe_gating_top_k, op_host)."""
LARGEST_FACTOR = 3.4028234663852886e38
"""Of float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: of each row of x `(rows, experts)` the *k* best."""

    element: DType
    rows: int
    experts: int
    k: int
    groups: int
    kept_groups: int
    sums_two: bool
    """Whether a group counts by the sum of its two largest keys, in place of the largest."""
    is_sigmoid: bool
    """In place of softmax."""
    has_bias: bool
    writes_all: bool
    """Whether the normalised numbers of all experts come out too."""
    factor: float
    epsilon: float

    @property
    def is_grouped(self) -> bool:
        """Whether some groups are left out."""
        return self.groups not in (1, self.experts) and self.kept_groups < self.groups

    @property
    def lists(self) -> int:
        """Lists that are sorted by themselves: one of each group."""
        return self.groups if self.is_grouped else 1

    @property
    def list_experts(self) -> int:
        """Experts of each."""
        return self.experts // self.lists

    @property
    def sorted_lanes(self) -> int:
        """Numbers that are sorted, with what fills each list up."""
        return self.lists * padded(self.list_experts)


SUPPORT = alike(
    FLOATS,
    *("x", "bias"),
    on=A2_A3,
    group_select_mode=(0, 1),
    renorm=(0,),
    norm_type=(0, 1),
)


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    scores = contract.operand("x")
    contract.require(
        len(scores.shape) == 2 and scores.shape[1] in range(1, MOST_EXPERTS + 1),
        f"x must have shape (rows, experts) with 1 to {MOST_EXPERTS} experts, not "
        f"{scores.shape}; reshape it",
    )
    rows, experts = scores.shape
    added = _bias(contract, scores)
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


def _bias(contract: Contract, scores: Operand) -> Operand | None:
    """What is added to the numbers of each expert before it may be chosen."""
    experts = scores.shape[1]
    added = contract.optional("bias")
    contract.require(
        added is None or added.shape == (experts,),
        f"bias must have shape ({experts},), a number for each expert, not "
        f"{added.shape if added else None}; pass as many numbers as x has columns",
    )
    return added


def _groups(contract: Contract, experts: int, mode: int) -> tuple[int, int]:
    """How many groups there are, and how many are kept."""
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


def _number(contract: Contract, name: str) -> float:
    value = contract.value(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        contract.fail(f"{name} must be a number, not {shown(value)}; pass one without quotes")
    contract.require(
        abs(value) <= LARGEST_FACTOR,
        f"{name} must be a number that float32 has, not {shown(value)}; pass a finite one",
    )
    return float(value)
