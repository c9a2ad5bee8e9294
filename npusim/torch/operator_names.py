"""The names of torch_npu's operators: those that are simulated, and those that raise an error."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any

from npusim.published import names, operators
from npusim.torch import refusals
from npusim.torch.functions import FUNCTIONS
from npusim.torch.refusals import OF_ATB
from npusim.torch.schemas import CARD_TYPES

__all__ = ["REFUSED", "named"]

REFUSED = (operators() | OF_ATB.keys()) - FUNCTIONS.keys()
"""Operators of torch_npu that are not simulated."""


def named(name: str) -> Any:
    """The operator or type *name* of torch_npu. Raises AttributeError if there is none."""
    if name in CARD_TYPES:
        return CARD_TYPES[name]
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if name in REFUSED:
        return refusals.operator(name)
    if f"torch_npu.{name}" in names():
        return import_module(f"torch_npu.{name}")
    if name in names()["torch_npu"]:
        return refusals.refusal("torch_npu", name)
    # npu_dynamic_quant_v9 is not a typo of npu_dynamic_quant.
    others = [other for other in (*FUNCTIONS, *REFUSED) if not name.startswith(other)]
    near = get_close_matches(name, others, n=1, cutoff=0.9)
    advice = f"did you mean {near[0]}?" if near else "leave it out"
    raise AttributeError(
        f"module 'torch_npu' has no attribute {name!r}\nnpusim.torch: torch_npu.{name} must be a "
        f"name of torch_npu 2.14 or older, but is none; {advice}"
    )
