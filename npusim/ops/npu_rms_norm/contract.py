"""What npu_rms_norm accepts, per product line."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32
from npusim.data.errors import Code
from npusim.data.tensor import Operand, TensorSpec
from npusim.isa import BLOCK_BYTES
from npusim.ops._contract import Contract
from npusim.ops._protocol import present
from npusim.ops._rms_norm import contract as shared
from npusim.ops._rms_norm.contract import check_gamma, check_template, epsilon_of
from npusim.ops._rms_norm.rows import Machine
from npusim.ops._support import A2_A3, ATLAS_INFERENCE, Row, alike
from npusim.ops.npu_rms_norm.choice import NAMED, unmet

__all__ = ["SUPPORT", "Problem", "check"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(shared.Problem):
    """A checked call."""

    is_small: bool
    """Whether merge_n spreads its numbers by block strides: few rows, gamma of one dimension."""


SUPPORT = (
    *alike((FLOAT16, BFLOAT16, FLOAT32), "x", "gamma", on=A2_A3),
    Row(on=A2_A3, x=(FLOAT16, BFLOAT16), gamma=FLOAT32),
    *alike((FLOAT16, FLOAT32), "x", "gamma", on=ATLAS_INFERENCE),
)


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    spec, is_310p = contract.spec, contract.spec.series in ATLAS_INFERENCE
    rows, weights = contract.operand("x"), contract.operand("gamma")
    check_gamma(contract, rows, weights)
    for operand in (rows, weights):
        contract.require(
            operand.spec.size > 0,
            f"{operand.name} must have elements, not shape {operand.shape}; leave the call out",
            Code.TILING_ERROR,
        )
    if is_310p:
        _check_blocks(contract, rows)
    is_mixed = weights.element is not rows.element
    needs = unmet(weights.spec.size, rows.element, Machine.of(spec), is_mixed=is_mixed)
    outer = rows.shape[: len(rows.shape) - len(weights.shape)]
    shape = (*outer, *(1,) * len(weights.shape))
    return Problem(
        inputs=present(rows, weights),
        outputs={
            "output": TensorSpec(rows.shape, rows.spec.dtype),
            "rstd": TensorSpec(shape, "float32"),
        },
        x=rows,
        gamma=weights,
        epsilon=epsilon_of(contract, contract.value("epsilon")),
        asked=check_template(contract, contract.value("template"), NAMED, needs),
        is_small=is_310p or _is_small(rows, weights),
    )


def _check_blocks(contract: Contract, x: Operand) -> None:
    """310P moves whole blocks of 32 bytes."""
    least = BLOCK_BYTES * 8 // x.element.bits
    contract.require(
        x.shape[-1] >= least,
        f"the last dimension of x and gamma must have at least {least} elements of "
        f"{x.spec.dtype} on {contract.spec.series}, not {x.shape[-1]}; pad it",
        Code.TILING_ERROR,
    )


SMALL_ROWS, SMALL_INNER_ROWS = 512, 8


def _is_small(x: Operand, gamma: Operand) -> bool:
    """All of 16 bits, `(rows <= 512, n)` or `(m <= 512, k <= 8, n)` (rms_norm_tiling.cpp)."""
    *outer, _ = x.shape
    is_few = len(outer) in (1, 2) and outer[0] <= SMALL_ROWS and prod(outer[1:]) <= SMALL_INNER_ROWS
    is_mixed = gamma.element is not x.element
    return not is_mixed and x.element is not FLOAT32 and len(gamma.shape) == 1 and is_few
