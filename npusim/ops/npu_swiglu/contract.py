"""What npu_swiglu accepts, per product line."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from npusim.data.tensor import TensorSpec
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops._support import A2_A3, ATLAS_INFERENCE, Row

__all__ = ["SUPPORT", "Problem", "check"]

HALF_ROW_BYTES_310P = 64
"""Half rows of Atlas inference are multiples of this (aclnn_swi_glu.cpp and its document)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: x is `(rows, 2, columns)` to the kernel, y `(rows, columns)`."""

    element: DType
    rows: int
    """Product of the dimensions before *dim*."""
    columns: int
    """Half the product of *dim* and those behind it."""


SUPPORT = (
    Row(on=A2_A3, x=(FLOAT16, BFLOAT16, FLOAT32)),
    Row(on=ATLAS_INFERENCE, x=(FLOAT16, FLOAT32)),
)


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    x = contract.operand("x")
    shape, rank = x.shape, len(x.shape)
    contract.require(rank > 0, "x must have at least one dimension, not none; reshape it to (2,)")
    axis = contract.integer("dim")
    contract.require(
        -rank <= axis < rank,
        f"dim must lie in [{-rank}, {rank - 1}] for x of shape {shape}, not {axis}; pass -1 for "
        f"the last dimension",
    )
    axis %= rank
    contract.require(
        shape[axis] % 2 == 0,
        f"dimension {axis} of x must be even, to be cut in half, not {shape[axis]}; pad both "
        f"halves",
    )
    columns = prod(shape[axis:]) // 2
    if contract.spec.series in ATLAS_INFERENCE:
        _check_310p(contract, x.element, shape, columns)
    halved = (*shape[:axis], shape[axis] // 2, *shape[axis + 1 :])
    return Problem(
        inputs=(x,),
        outputs={"output": TensorSpec(halved, x.spec.dtype)},
        element=x.element,
        rows=prod(shape[:axis]),
        columns=columns,
    )


def _check_310p(contract: Contract, element: DType, shape: tuple[int, ...], columns: int) -> None:
    contract.require(
        prod(shape) > 0,
        f"x must not be empty on {contract.spec.series}, not of shape {shape}; leave the call out",
    )
    half_bytes = element.nbytes(columns)
    contract.require(
        half_bytes % HALF_ROW_BYTES_310P == 0,
        f"half of x from dim on must be a multiple of {HALF_ROW_BYTES_310P} bytes on "
        f"{contract.spec.series}, not {half_bytes} bytes; pad both halves",
    )
