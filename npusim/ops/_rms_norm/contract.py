"""What all operators of the family ask of a call."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from npusim.data.errors import Code, shown
from npusim.data.tensor import Operand
from npusim.kernel.views import GmView
from npusim.ops import _vocabulary as ops
from npusim.ops._rms_norm.tiling import Template

__all__ = [
    "Problem",
    "check_gamma",
    "check_pair",
    "epsilon_of",
    "root_shape",
    "template_of",
    "vector_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: the rows of x are `(rows, columns)` to the kernel, gamma is `(columns,)`."""

    x: Operand
    """x, or the first of the two that are added."""
    gamma: Operand
    epsilon: float
    """In fp32."""
    asked: str | None
    """The kernel that the caller named."""

    @property
    def columns(self) -> int:
        return prod(self.gamma.shape)

    @property
    def rows(self) -> int:
        return self.x.spec.size // self.columns

    @property
    def mean(self) -> float:
        """`1 / columns` in fp32, by which the kernels multiply in place of a division."""
        return float(np.float32(1) / np.float32(self.columns))

    def matrix(self, name: str) -> GmView:
        """Tensor *name*, of the type of x, in global memory: `(rows, columns)`."""
        return GmView.of(name, self.x.element, self.rows, self.columns)


def vector_of(operand: Operand) -> GmView:
    """*operand* in global memory, as one row."""
    return GmView.vector(operand.name, operand.element, operand.spec.size)


def root_shape(x: Any, gamma: Any) -> tuple[Any, ...]:
    """The shape of 1 / root: that of *x*, with 1 for each dimension of *gamma*."""
    rank = len(gamma.shape)
    return (*x.shape[: len(x.shape) - rank], *(1,) * rank)


def epsilon_of(
    contract: ops.Contract, *, least: str = ">= 0", code: Code = Code.TILING_ERROR
) -> float:
    """epsilon as the kernel gets it, in fp32; *least* is `>= 0`, `> 0`, or empty for any."""
    epsilon = contract.value("epsilon")
    is_number = isinstance(epsilon, int | float | np.floating | np.integer)
    if not is_number or isinstance(epsilon, bool):
        contract.fail(f"epsilon must be a number, not {shown(epsilon)}; pass one such as 1e-6")
    with np.errstate(over="ignore"):
        try:
            found = float(np.float32(epsilon))
        except OverflowError:
            found = float("inf")
    holds = {">= 0": found >= 0, "> 0": found > 0, "": True}[least]
    contract.require(
        holds, f"epsilon must be {least}, not {shown(epsilon)}; pass one such as 1e-6", code
    )
    return found


def check_gamma(
    contract: ops.Contract, x: Operand, gamma: Operand, *, code: Code = Code.TILING_ERROR
) -> None:
    """The shape of gamma is that of the last dimensions of *x*."""
    rank = len(gamma.shape)
    contract.require(
        1 <= rank <= len(x.shape),
        f"gamma must have 1 to {len(x.shape)} dimensions like {x.name}, not shape {gamma.shape}; "
        f"reshape it",
    )
    wanted = x.shape[len(x.shape) - rank :]
    contract.require(
        gamma.shape == wanted,
        f"gamma must have the shape of the last dimensions of {x.name}, {wanted}, not "
        f"{gamma.shape}; pass a number for each of their elements",
        code,
    )


def check_pair(contract: ops.Contract, x1: Operand, x2: Operand) -> None:
    """x1 and x2 have one shape, of at least one dimension."""
    contract.require(
        len(x1.shape) >= 1, f"x1 must have at least one dimension, not shape {x1.shape}; reshape it"
    )
    contract.require(
        x1.shape == x2.shape,
        f"x2 must have the shape of x1, {x1.shape}, not {x2.shape}; pass tensors of one shape",
    )


def template_of(contract: ops.Contract, templates: tuple[Template, ...]) -> str | None:
    """The template that the caller named, one of *templates* that can run, or None."""
    asked, spec = contract.value("template"), contract.spec
    if asked is None:
        return None
    if spec.arch == "2002":
        contract.fail(
            f"template must be None on {spec.series}, where rows and types decide, not "
            f"{shown(asked)}; leave it out"
        )
    found = [each for each in templates if isinstance(asked, str) and each.name == asked]
    if not found:
        names = ops.listed(tuple(each.name for each in templates))
        contract.fail(
            f"template must be {names} on Atlas A2 and Atlas A3, not {shown(asked)}; leave it out "
            f"to get the vendor's choice"
        )
    contract.require(
        found[0].fits,
        f"template must name a kernel that can take the call, not {asked!r} ({found[0].reason}); "
        f"leave it out to get the vendor's choice",
    )
    return found[0].name
