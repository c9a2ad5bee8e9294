"""What all operators of the family ask of a call."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from npusim.data.errors import Code, shown
from npusim.data.tensor import Operand
from npusim.ops import _protocol
from npusim.ops._contract import Contract, listed

__all__ = ["Problem", "check_gamma", "check_pair", "check_template", "epsilon_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: the rows of x are `(rows, columns)` to the kernel, gamma is `(columns,)`."""

    x: Operand
    """x, or the first of the two that are added."""
    gamma: Operand
    epsilon: float
    """An fp32 number."""
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

    @property
    def is_mixed(self) -> bool:
        """Whether gamma is fp32 beside an x of 16 bits."""
        return self.gamma.element is not self.x.element


def epsilon_of(
    contract: Contract, epsilon: Any, *, least: str = ">= 0", code: Code = Code.TILING_ERROR
) -> float:
    """*epsilon* as the kernel gets it, in fp32; *least* is `>= 0`, `> 0`, or empty for any."""
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
    contract: Contract,
    x: Operand,
    gamma: Operand,
    *,
    name: str = "x",
    code: Code = Code.TILING_ERROR,
) -> None:
    """The shape of gamma is that of the last dimensions of *x*."""
    rank = len(gamma.shape)
    contract.require(
        1 <= rank <= len(x.shape),
        f"gamma must have 1 to {len(x.shape)} dimensions like {name}, not shape {gamma.shape}; "
        f"reshape it",
    )
    wanted = x.shape[len(x.shape) - rank :]
    contract.require(
        gamma.shape == wanted,
        f"gamma must have the shape of the last dimensions of {name}, {wanted}, not "
        f"{gamma.shape}; pass a number for each of their elements",
        code,
    )


def check_pair(contract: Contract, x1: Operand, x2: Operand) -> None:
    """x1 and x2 have one shape, of at least one dimension."""
    contract.require(
        len(x1.shape) >= 1, f"x1 must have at least one dimension, not shape {x1.shape}; reshape it"
    )
    contract.require(
        x1.shape == x2.shape,
        f"x2 must have the shape of x1, {x1.shape}, not {x2.shape}; pass tensors of one shape",
    )


def check_template(
    contract: Contract, template: Any, named: tuple[str, ...], unmet: dict[str, str | None]
) -> str | None:
    """*template*, one of *named* or None, if it can run; raises OpError.

    *unmet* says of a template what it would need and does not have, or None.
    """
    if template is None:
        return None
    spec = contract.spec
    if spec.arch == "2002":
        contract.fail(
            f"template must be None on {spec.series}, where rows and types decide, not "
            f"{shown(template)}; leave it out"
        )
    if not isinstance(template, str) or template not in named:
        contract.fail(
            f"template must be {listed(named)} on Atlas A2 and Atlas A3, not {shown(template)}; "
            f"leave it out to get the vendor's choice"
        )
    need = unmet.get(template)
    contract.require(
        need is None,
        f"template {template!r} can run only if {need}; leave it out to get the vendor's choice",
    )
    return template
