"""What npu_moe_gating_top_k_softmax accepts: Atlas A2 and A3 only."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from npusim.data.dtypes import UINT8, DType
from npusim.data.tensor import TensorSpec
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops._moe.contract import FLOATS
from npusim.ops._protocol import present
from npusim.ops._support import A2_A3, Row

__all__ = ["SUPPORT", "Problem", "check"]

MOST_CHOSEN = 1024
"""moe_gating_top_k_softmax, op_host."""
MOST_EXPERTS = 4096
"""What the unified buffer holds of a row that is loaded whole; longer ones are not simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: of each row of x `(rows, experts)` the *k* best."""

    element: DType
    rows: int
    experts: int
    k: int
    has_finished: bool


SUPPORT = (Row(on=A2_A3, x=FLOATS, finished=UINT8),)


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    scores = contract.operand("x")
    contract.require(
        len(scores.shape) in (2, 3),
        f"x must have two or three dimensions, not {len(scores.shape)}; reshape it",
    )
    *leading, experts = scores.shape
    contract.require(
        1 <= experts <= MOST_EXPERTS,
        f"x must have 1 to {MOST_EXPERTS} columns, not {experts}; longer rows are not simulated: "
        f"split them",
    )
    done = contract.optional("finished")
    contract.require(
        done is None or done.shape == tuple(leading),
        f"finished must have the shape {tuple(leading)} of the rows of x, not "
        f"{done.shape if done else None}; pass 1 or 0 for each row",
    )
    best, most = contract.integer("k"), min(experts, MOST_CHOSEN)
    contract.require(
        1 <= best <= most, f"k must be from 1 to {most}, not {best}; choose fewer of the experts"
    )
    shape = (*leading, best)
    return Problem(
        inputs=present(scores, done),
        outputs={
            "output": TensorSpec(shape, scores.spec.dtype),
            "expert_idx": TensorSpec(shape, "int32"),
            "row_idx": TensorSpec(shape, "int32"),
        },
        element=scores.element,
        rows=prod(leading),
        experts=experts,
        k=best,
        has_finished=done is not None,
    )
