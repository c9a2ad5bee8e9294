"""What npu_add_rms_norm accepts, per product line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.ops._contract import Contract
from npusim.ops._protocol import present
from npusim.ops._rms_norm import contract as shared
from npusim.ops._rms_norm.contract import check_gamma, check_pair, check_template, epsilon_of
from npusim.ops._rms_norm.rows import Machine
from npusim.ops.npu_add_rms_norm.choice import NAMED, unmet

__all__ = ["Problem", "check"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(shared.Problem):
    """A checked call; `x` is the first of the two that are added."""

    x2: Operand


def check(
    spec: DeviceSpec,
    x1: Any,
    x2: Any,
    gamma: Any,
    epsilon: Any = 1e-6,
    *,
    template: Any = None,
) -> Problem:
    """Hold a call against the contract of this product line; raises OpError."""
    contract, is_310p = Contract("npu_add_rms_norm", spec), spec.series == "Atlas inference"
    kinds = (FLOAT16, FLOAT32) if is_310p else (FLOAT16, BFLOAT16, FLOAT32)
    first = contract.operand("x1", x1, kinds)
    second = contract.operand("x2", x2, (first.element,), " like x1")
    weights = contract.operand("gamma", gamma, (first.element,), " like x1")
    check_pair(contract, first, second)
    check_gamma(contract, first, weights, name="x1")
    outer = first.shape[: len(first.shape) - len(weights.shape)]
    shape = (*outer, *(1,) * len(weights.shape))
    like = TensorSpec(first.shape, first.spec.dtype)
    columns = weights.spec.size
    rows = first.spec.size // columns if columns else 0
    needs = unmet(rows, columns, first.element, Machine.of(spec))
    return Problem(
        inputs=present(first, second, weights),
        outputs={"output": like, "rstd": TensorSpec(shape, "float32"), "x": like},
        x=first,
        x2=second,
        gamma=weights,
        epsilon=epsilon_of(contract, epsilon),
        asked=check_template(contract, template, NAMED, needs),
    )
