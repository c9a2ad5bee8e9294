"""The operators, one module each, named after the torch_npu function.

An operator's module has four functions: `check` holds a call against the contract of a product line
and returns the problem, `tile` splits the problem over cores and buffers as the vendor's kernel
does, `build` writes the programs, and `reference` computes the result on whole arrays in plain
numpy. The parameters of `reference` are those of the torch_npu function, in its order, with its
defaults; those called `spec` and `cube_order` are the oracle's own. To add an operator, add its
module: nothing else lists it.

An operator that the chip has no kernel for says `on_host = True`: it needs only `check` and
`reference`, whose result is the result, and takes no time, since a Task Duration leaves the host
out. So does a call for which `tile` returns None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, cast

from npusim.data.dtypes import Array
from npusim.data.tensor import Operand, Tensor, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block

__all__ = [
    "Operator",
    "Plan",
    "Problem",
    "is_on_host",
    "load",
    "names",
    "outputs",
    "signature",
    "workspaces",
]


class Problem(Protocol):
    """A checked call."""

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The tensors that the kernel gets, each by the name that programs use.

        A kernel's own constants are among them.
        """

    @property
    def output(self) -> TensorSpec:
        """What comes out, or the first of it; programs call it `output`."""


class Plan(Protocol):
    """A problem split over cores and buffers."""

    @property
    def block_dim(self) -> int:
        """Cores that are started, idle ones included."""


class Operator(Protocol):
    """What an operator's module offers."""

    check: Callable[..., Problem]
    tile: Callable[[DeviceSpec, Any], Plan | None]
    build: Callable[[DeviceSpec, Any, Any], tuple[Block, ...]]
    reference: Callable[..., Array | Tensor | tuple[Array, ...]]


@cache
def names() -> tuple[str, ...]:
    """The names of all operators, sorted."""
    found = (module.name for module in iter_modules(__path__))
    return tuple(sorted(name for name in found if not name.startswith("_")))


def load(name: str) -> Operator:
    """The module of the operator called *name*; raises ValueError if there is none."""
    if name not in names():
        near = get_close_matches(str(name), names(), n=1)
        hint = f"; did you mean {near[0]}?" if near else "; use one of these"
        raise ValueError(
            f"ops: an operator must be one of {', '.join(names())}, not {name!r}{hint}"
        )
    return cast(Operator, import_module(f"{__name__}.{name}"))


def signature(operator: Operator) -> inspect.Signature:
    """The parameters of the torch_npu function."""
    whole = inspect.signature(operator.reference)
    own = [p for p in whole.parameters.values() if p.name not in ("spec", "cube_order")]
    return whole.replace(parameters=own)


def outputs(problem: Problem) -> dict[str, TensorSpec]:
    """All that comes out, by the names that programs use: `output` alone unless it says more."""
    found: dict[str, TensorSpec] = getattr(problem, "outputs", {"output": problem.output})
    return found


def workspaces(plan: Plan) -> dict[str, int]:
    """Tensors that a kernel keeps between its cores, and their bytes: none unless it says so."""
    found: dict[str, int] = getattr(plan, "workspaces", {})
    return found


def is_on_host(operator: Operator) -> bool:
    """Whether *operator* runs on the host and not on the chip."""
    return bool(getattr(operator, "on_host", False))
