"""The calls of the family that are accepted, and their problems for the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32
from npusim.data.tensor import TensorSpec
from npusim.ops import _protocol
from npusim.ops._contract import MAX_RANK, Contract
from npusim.ops._support import A2_A3, ATLAS_INFERENCE, Operands, Row

KEEPS_SHAPE = ("softmax", "log_softmax")
"""Operators with a result for each element rather than for each row."""

COUNTED = 2**24
"""Largest integer up to which float32 is exact; rows are counted in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: *rows* of *columns* elements each, one after another."""

    name: str
    rows: int
    columns: int
    inner: int = 1
    """Elements after each of these; if there are more than one, rows are added to rows."""

    @property
    def keeps_shape(self) -> bool:
        """Whether the result of a row is a row rather than a number."""
        return self.name in KEEPS_SHAPE


SUPPORT = (
    Row(on=A2_A3, x=Operands((FLOAT32, FLOAT16, BFLOAT16), ranks=(1, MAX_RANK))),
    Row(on=ATLAS_INFERENCE, x=Operands((FLOAT32, FLOAT16), ranks=(1, MAX_RANK))),
)


def check(contract: Contract) -> Problem:
    """Check that the kernel accepts a call; raises OpError."""
    name, operand = contract.op, contract.operand("x")
    axis = contract.axis("dim", operand)
    outer, columns, rest = operand.shape[:axis], operand.shape[axis], operand.shape[axis + 1 :]
    contract.require(columns > 0, f"x must have elements along dim, not {operand.shape}; give some")
    contract.require(
        name != "argmax" or prod(rest) == 1 or columns <= COUNTED,
        f"x must have at most {COUNTED} elements along an axis that others follow, not "
        f"{columns}: more are not simulated; transpose x first",
    )
    shape = operand.shape if name in KEEPS_SHAPE else (*outer, *rest)
    dtype = INT32.name if name == "argmax" else operand.spec.dtype
    return Problem(
        inputs=(operand,),
        outputs={"output": TensorSpec(shape, dtype)},
        name=name,
        rows=prod(outer),
        columns=columns,
        inner=prod(rest),
    )
