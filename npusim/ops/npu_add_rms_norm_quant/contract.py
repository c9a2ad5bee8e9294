"""What npu_add_rms_norm_quant accepts, per product line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32, DType
from npusim.data.errors import Code
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.ops._contract import Contract
from npusim.ops._protocol import present
from npusim.ops._rms_norm import contract as shared
from npusim.ops._rms_norm.contract import check_gamma, check_pair, check_template, epsilon_of
from npusim.ops._rms_norm.rows import Machine
from npusim.ops.npu_add_rms_norm_quant.choice import NAMED, Given, unmet

__all__ = ["Problem", "check", "is_per_tensor"]

COLUMNS_310P = 32
"""310P takes rows of a block of int8 at least."""
POINTS = {FLOAT32: INT32, BFLOAT16: BFLOAT16}
"""Type of scales -> type of zero points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(shared.Problem):
    """A checked call; `x` is the first of the two that are added."""

    x2: Operand
    scales: tuple[Operand, Operand | None]
    zero_points: tuple[Operand | None, Operand | None]
    beta: Operand | None
    divides: bool
    """Whether numbers are divided by the scales, not multiplied."""
    per_tensor: bool
    """Whether the kernel for a single scale takes the call."""

    @property
    def given(self) -> Given:
        """Which of the operands there are that need not be."""
        return Given(
            zero_points1=self.zero_points[0] is not None,
            beta=self.beta is not None,
            scales2=self.scales[1] is not None,
            zero_points2=self.zero_points[1] is not None and self.scales[1] is not None,
        )


def check(
    spec: DeviceSpec,
    x1: Any,
    x2: Any,
    gamma: Any,
    scales1: Any,
    zero_points1: Any,
    beta: Any = None,
    scales2: Any = None,
    zero_points2: Any = None,
    *,
    axis: Any = -1,
    epsilon: Any = 1e-6,
    div_mode: Any = True,
    dst_type: Any = None,
    template: Any = None,
) -> Problem:
    """Hold a call against the contract of this product line; raises OpError."""
    contract, is_310p = Contract("npu_add_rms_norm_quant", spec), spec.series == "Atlas inference"
    first = contract.operand("x1", x1, (FLOAT16,) if is_310p else (FLOAT16, BFLOAT16))
    like = (first.element,), " like x1"
    second, weights = contract.operand("x2", x2, *like), contract.operand("gamma", gamma, *like)
    offset = contract.optional("beta", beta, *like)
    scale = contract.operand("scales1", scales1, *_scale_dtypes(first))
    kind = (scale.element,), " like scales1"
    point_kind = (POINTS[scale.element],), f" beside scales of {scale.spec.dtype}"
    scale2 = contract.optional("scales2", scales2, *kind)
    points = (
        contract.optional("zero_points1", zero_points1, *point_kind),
        contract.optional("zero_points2", zero_points2, *point_kind),
    )
    _check_attributes(contract, axis, dst_type)
    divides = contract.boolean("div_mode", div_mode)
    check_pair(contract, first, second)
    check_gamma(contract, first, weights, name="x1", code=_INVALID)
    _check_columns(contract, weights)
    _warn_of_scales(contract, first, scale)
    one = is_per_tensor(first, weights, scale, points, (offset, scale2), divides=divides)
    vectors = (offset, scale2, points[1]) if one else (offset, scale, scale2, *points)
    _check_vectors(contract, weights, present(*vectors))
    scales = scale, scale2
    whole = TensorSpec(first.shape, "int8")
    problem = Problem(
        inputs=present(first, second, weights, *scales, *points, offset),
        outputs={"output": whole, "y2": whole, "x": TensorSpec(first.shape, first.spec.dtype)},
        x=first,
        x2=second,
        gamma=weights,
        scales=scales,
        zero_points=points,
        beta=offset,
        divides=divides,
        per_tensor=one,
        epsilon=epsilon_of(contract, epsilon, least=""),
        asked=None,
    )
    return _with_template(contract, problem, template)


_INVALID = Code.INVALID_PARAMETER


def _scale_dtypes(x: Operand) -> tuple[tuple[DType, ...], str]:
    if x.element is FLOAT16:
        return (FLOAT32,), " beside an x1 of float16"
    return (BFLOAT16, FLOAT32), " beside an x1 of bfloat16"


def _warn_of_scales(contract: Contract, x1: Operand, scale: Operand) -> None:
    if x1.element is BFLOAT16 and scale.element is FLOAT32:
        contract.warn(
            "scales1 should be bfloat16 like x1, not float32, which the kernel takes and the "
            "document does not name; convert it"
        )


def _check_attributes(contract: Contract, axis: Any, dst_type: Any) -> None:
    found = contract.integer("axis", axis)
    contract.require(found == -1, f"axis must be -1, not {found}; leave it out")
    if dst_type is not None:
        contract.choice("dst_type", dst_type, ("int8",))


def _check_columns(contract: Contract, gamma: Operand) -> None:
    contract.require(
        contract.spec.series != "Atlas inference" or gamma.spec.size >= COLUMNS_310P,
        f"gamma must have at least {COLUMNS_310P} elements on {contract.spec.series}, not "
        f"{gamma.spec.size}; pad it",
    )


def is_per_tensor(
    x1: Operand,
    gamma: Operand,
    scale: Operand,
    points: tuple[Operand | None, Operand | None],
    others: tuple[Operand | None, Operand | None],
    *,
    divides: bool,
) -> bool:
    """Whether the kernel for a single scale takes a call; *others* are beta and the second scales.

    ops-nn@e5c3fa9 norm/add_rms_norm_quant_v2/op_host/op_api/aclnn_add_rms_norm_quant_v2.cpp.
    """
    beta, scale2 = others
    columns = x1.shape[-1]
    return (
        scale.shape == (1,)
        and points[0] is not None
        and points[0].shape == (1,)
        and beta is not None
        and scale2 is None
        and points[1] is None
        and divides
        and gamma.shape in ((columns,), (1, columns))
    )


def _check_vectors(contract: Contract, gamma: Operand, vectors: tuple[Operand, ...]) -> None:
    for operand in vectors:
        contract.require(
            operand.shape == gamma.shape,
            f"{operand.name} must have the shape of gamma, {gamma.shape}, not {operand.shape}; "
            f"pass a number for each of its elements",
        )


def _with_template(contract: Contract, p: Problem, template: Any) -> Problem:
    rows = p.rows if p.columns else 0
    needs = unmet(rows, p.columns, p.given, Machine.of(contract.spec))
    asked = check_template(contract, template, NAMED, needs)
    return p if asked is None else replace(p, asked=asked)
