"""What npu_add_rms_norm_dynamic_quant accepts: Atlas A2 and A3 only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npusim.data.dtypes import BFLOAT16, FLOAT16, INT4, INT8, DType
from npusim.data.errors import Code, shown
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.ops._contract import Contract
from npusim.ops._protocol import present
from npusim.ops._rms_norm import contract as shared
from npusim.ops._rms_norm.contract import check_pair, check_template, epsilon_of
from npusim.ops._rms_norm.rows import Machine
from npusim.ops.npu_add_rms_norm_dynamic_quant.choice import NAMED, unmet

__all__ = ["Problem", "check", "taken_outputs"]

TARGETS = {"int8": INT8, "int4": INT4, "quint4x2": INT4}
LARGEST = {INT8: 127, INT4: 7}
"""What the largest number of a row becomes."""
INT4_PER_INT32 = 8
MAX_RANK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(shared.Problem):
    """A checked call; `x` is the first of the two that are added."""

    x2: Operand
    beta: Operand | None
    smooth: tuple[Operand | None, Operand | None]
    taken: tuple[bool, bool]
    """Which of the two quantised outputs are asked for."""
    is_masked: bool
    """Whether an output_mask says so: without one the second is computed all the same."""
    target: DType
    """int8 or int4."""

    @property
    def is_int4(self) -> bool:
        return self.target is INT4

    @property
    def largest(self) -> int:
        """What the largest number of a row becomes."""
        return LARGEST[self.target]


def check(
    spec: DeviceSpec,
    x1: Any,
    x2: Any,
    gamma: Any,
    *,
    smooth_scale1: Any = None,
    smooth_scale2: Any = None,
    beta: Any = None,
    epsilon: Any = 1e-6,
    output_mask: Any = None,
    y_dtype: Any = None,
    template: Any = None,
) -> Problem:
    """Hold a call against the contract of this product line; raises OpError."""
    contract = Contract("npu_add_rms_norm_dynamic_quant", spec)
    contract.require(
        spec.series != "Atlas inference",
        f"the chip must be of Atlas A2 or Atlas A3, not {spec.name} of {spec.series}; choose "
        f"another device",
        Code.UNSUPPORTED,
    )
    first = contract.operand("x1", x1, (FLOAT16, BFLOAT16))
    like = (first.element,), " like x1"
    second, weights = contract.operand("x2", x2, *like), contract.operand("gamma", gamma, *like)
    smooth = (
        contract.optional("smooth_scale1", smooth_scale1, *like),
        contract.optional("smooth_scale2", smooth_scale2, *like),
    )
    offset = contract.optional("beta", beta, *like)
    contract.require(
        2 <= len(first.shape) <= MAX_RANK,
        f"x1 must have 2 to {MAX_RANK} dimensions, not shape {first.shape}; reshape it",
    )
    check_pair(contract, first, second)
    _check_vectors(contract, first, weights, present(*smooth, offset))
    taken = taken_outputs(contract, output_mask, smooth)
    target = _target(contract, first, y_dtype)
    traits = {"is_int4": target is INT4, "has_beta": offset is not None}
    needs = unmet(weights.spec.size, Machine.of(spec), **traits)
    return Problem(
        inputs=present(first, second, weights, *smooth, offset),
        outputs=_outputs(first, taken, target),
        x=first,
        x2=second,
        gamma=weights,
        beta=offset,
        smooth=smooth,
        taken=taken,
        is_masked=output_mask is not None,
        target=target,
        epsilon=epsilon_of(contract, epsilon, least="> 0"),
        asked=check_template(contract, template, NAMED, needs),
    )


def _check_vectors(
    contract: Contract, x1: Operand, gamma: Operand, others: tuple[Operand, ...]
) -> None:
    wanted = x1.shape[-1:]
    contract.require(
        x1.spec.size > 0,
        f"x1 must have elements, not shape {x1.shape}; leave the call out",
        Code.TILING_ERROR,
    )
    for operand in (gamma, *others):
        contract.require(
            operand.shape == wanted,
            f"{operand.name} must have shape {wanted} like the last dimension of x1, not "
            f"{operand.shape}; pass a number for each column",
            Code.TILING_ERROR,
        )


def taken_outputs(
    contract: Contract, output_mask: Any, smooth: tuple[Operand | None, Operand | None]
) -> tuple[bool, bool]:
    """Whether y1 and y2 are asked for: by *output_mask*, or by which scales there are."""
    if output_mask is None:
        contract.require(
            smooth[0] is not None or smooth[1] is None,
            "smooth_scale1 must be given with a smooth_scale2 unless an output_mask says which "
            "outputs there are, not None; pass it, or an output_mask",
        )
        return True, smooth[1] is not None
    is_pair = isinstance(output_mask, list | tuple) and len(output_mask) == 2
    if not is_pair or not all(isinstance(each, bool) for each in output_mask):
        contract.fail(
            f"output_mask must be two of True and False, or None, not {shown(output_mask)}; pass "
            f"for example [True, False]"
        )
    first, second = output_mask
    contract.require(
        first or second,
        "output_mask must ask for an output at least, not [False, False]; set one to True",
    )
    for number, (is_taken, operand) in enumerate(zip(output_mask, smooth, strict=True), 1):
        contract.require(
            is_taken or operand is None,
            f"smooth_scale{number} must be None where output_mask leaves y{number} out, not a "
            f"tensor; leave it out",
        )
    return first, second


def _target(contract: Contract, x1: Operand, y_dtype: Any) -> DType:
    if y_dtype is None:
        return INT8
    target = TARGETS[contract.choice("y_dtype", y_dtype, tuple(TARGETS))]
    contract.require(
        target is INT8 or x1.shape[-1] % INT4_PER_INT32 == 0,
        f"the last dimension of x1 must be a multiple of {INT4_PER_INT32} for "
        f"y_dtype={y_dtype!r}, not {x1.shape[-1]}; pad it",
    )
    return target


def _outputs(x1: Operand, taken: tuple[bool, bool], target: DType) -> dict[str, TensorSpec]:
    """What comes out; of what is not asked for a single number, which nobody writes."""
    shape, dtype = x1.shape, "int8"
    if target is INT4:
        shape, dtype = (*shape[:-1], shape[-1] // INT4_PER_INT32), "int32"
    quantised = [TensorSpec(shape if each else (), dtype) for each in taken]
    scales = [TensorSpec(x1.shape[:-1] if each else (), "float32") for each in taken]
    return {
        "output": quantised[0],
        "y2": quantised[1],
        "x": TensorSpec(x1.shape, x1.spec.dtype),
        "scale1": scales[0],
        "scale2": scales[1],
    }
