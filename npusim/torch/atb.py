"""`torch_npu.atb`: the operators of ATB, which are registered from the start.

It is also `torch_npu.op_plugin.atb._atb_ops`, and has the names of both.
"""

from __future__ import annotations

from npusim.published import names
from npusim.torch.functions import FUNCTIONS
from npusim.torch.refusals import others_of

__all__ = ["_register_atb_extensions"]


def _register_atb_extensions() -> None:
    """Do nothing: the operators are already registered."""


INTERNALS = "torch_npu.op_plugin.atb._atb_ops"
_others, _internals = others_of("torch_npu.atb"), others_of(INTERNALS)


def __getattr__(name: str) -> object:
    """An operator of ATB; one that is not simulated raises an error when it is called."""
    is_there = name in names()["torch_npu.atb"] and name in FUNCTIONS
    if is_there:
        return FUNCTIONS[name]
    return _internals(name) if name in names()[INTERNALS] else _others(name)
