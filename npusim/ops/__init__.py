"""The operators, one module or folder each, named after the torch_npu function.

An operator's module declares it: `OPERATOR = Operator(name=..., check=..., tile=..., build=...,
reference=...)`, see :class:`Operator`. `check` holds a call against the contract of a product line
and returns a :class:`Problem`, `tile` splits it over cores and buffers as the vendor's kernel does
and returns a :class:`Plan`, `build` writes the programs, and `reference` computes the result on
whole arrays in plain numpy; `torch` says how torch calls it. To add an
operator, add its module: nothing else lists it.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from npusim.data.errors import shown
from npusim.ops._protocol import Operator, Plan, Problem, in_own_terms, signature
from npusim.ops._torch import TorchFunction, TorchTensor

__all__ = [
    "Operator",
    "Plan",
    "Problem",
    "TorchFunction",
    "TorchTensor",
    "in_own_terms",
    "load",
    "names",
    "signature",
]


@cache
def names() -> tuple[str, ...]:
    """The names of all operators, sorted."""
    found = (module.name for module in iter_modules(__path__))
    return tuple(sorted(name for name in found if not name.startswith("_")))


def load(name: str) -> Operator:
    """The operator called *name*; raises ValueError if there is none."""
    if not isinstance(name, str) or name not in names():
        near = get_close_matches(name, names(), n=1) if isinstance(name, str) else []
        hint = f"; did you mean {near[0]}?" if near else "; use one of these"
        raise ValueError(
            f"ops: an operator must be one of {', '.join(names())}, not {shown(name)}{hint}"
        )
    found: Operator = import_module(f"{__name__}.{name}").OPERATOR
    return found
