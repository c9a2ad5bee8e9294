"""ADAPTER, to be deleted when no operator needs it: functions with parameter lists of their own.

An operator's check used to be `check(spec, x, dim=-1)`, and its oracle `reference(x, dim=-1, *,
spec=None)`. Both still work where `Operator` is given such functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from npusim.ops._contract import Contract
from npusim.ops._oracle import Given

__all__ = ["adapted_contract", "adapted_oracle", "has_own", "own_signature"]

ORACLE_ONLY = ("spec", "cube_order")
"""Parameters of a reference that the torch_npu function does not have."""


def _names(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


@lru_cache(maxsize=512)
def has_own(function: Callable[..., Any], single: str) -> bool:
    """Whether *function* has parameters of its own, not the *single* one of today."""
    return _names(function) != [single]


@lru_cache(maxsize=256)
def own_signature(reference: Callable[..., Any]) -> inspect.Signature:
    """The parameters of *reference* that a call has."""
    whole = inspect.signature(reference)
    kept = [p for p in whole.parameters.values() if p.name not in ORACLE_ONLY]
    return whole.replace(parameters=kept)


def adapted_contract(check: Callable[..., Any]) -> Callable[[Contract], Any]:
    """*check*, which takes a chip and the arguments, as a function of a contract."""
    if not has_own(check, "contract"):
        return check

    def checked(contract: Contract) -> Any:
        return check(contract.spec, **contract.arguments)

    return checked


def adapted_oracle(reference: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """*reference*, which takes the arguments *names*, as a function of what is given."""
    if not has_own(reference, "given"):
        return reference
    extra = [name for name in ORACLE_ONLY if name in _names(reference)]

    def computed(given: Given) -> Any:
        return reference(**{name: getattr(given, name) for name in (*names, *extra)})

    return computed
