"""Names of torch_npu that npusim does not simulate: they exist, but calls raise an error.

Models import functions that they may never call, and choose functions by whether they exist. So
each name of torch_npu exists here, too; calling it raises NotImplementedError with an alternative.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import NoReturn

import torch

from npusim import ops
from npusim.data.errors import Code, OpError
from npusim.published import names, schemas
from npusim.torch import card
from npusim.torch.errors import as_on_card

__all__ = ["OF_ATB", "OF_LATER_CHIPS", "operator", "others_of", "refusal", "register"]

INSTEAD = {
    "npu_quant_grouped_matmul_dequant": "npu_quantize and npu_quant_matmul for each group; on a "
    "card it is for Atlas inference alone",
}
"""Operator -> an alternative that computes the same, in part or in several steps."""

OF_ATB = {
    "_npu_paged_attention_splitfuse_v2": "npu_fused_infer_attention_score on Atlas A2 or A3, with "
    "block_table and a mask",
}
"""Operator that torch_npu implements with ATB instead of aclnn -> an alternative that computes the
same (op-plugin, atb_ops.yaml; vllm-ascend calls them). None of them is in the namespace `npu`."""

OF_LATER_CHIPS = {
    "_npu_swiglu_backward_mx_quant_with_dual_axis": "npu_swiglu_quant",
    "npu_add_rms_norm_dynamic_mx_quant": "npu_add_rms_norm_dynamic_quant",
    "npu_anti_mx_quant": "npu_anti_quant",
    "npu_dynamic_block_mx_quant": "npu_dynamic_block_quant",
    "npu_dynamic_dual_level_mx_quant": "npu_dynamic_quant",
    "npu_dynamic_mx_quant": "npu_dynamic_quant",
    "npu_dynamic_mx_quant_with_dual_axis": "npu_dynamic_quant",
    "npu_grouped_dynamic_block_quant": "npu_dynamic_block_quant",
    "npu_grouped_dynamic_mx_quant": "npu_dynamic_quant",
    "npu_rms_norm_dynamic_mx_quant": "npu_rms_norm and npu_dynamic_quant",
    "npu_swiglu_mx_quant": "npu_swiglu_quant",
    "npu_swiglu_mx_quant_with_dual_axis": "npu_swiglu_quant",
    "npu_transpose_quant_batchmatmul": "npu_transpose_batchmatmul",
}
"""Operator on float8 or float4, which no chip here supports -> the closest operator on int8
(op-plugin's tests run each on Ascend950 only)."""

BETWEEN_CARDS = (
    *("all_reduce", "allgather", "all_gather", "alltoall", "reduce_scatter", "distribute"),
    *("broadcast_", "send", "recv", "hccl", "hcom", "ring_", "_combine"),
)
"""Parts of the names of operators that communicate with other cards."""

_libraries: list[torch.library.Library] = []
"""Registrations live as long as their library."""


def register(simulated: frozenset[str]) -> None:
    """Define torch_npu's operators in the namespace `npu`, except those *simulated*."""
    library = torch.library.Library("npu", "FRAGMENT")
    _libraries.append(library)
    for schema in schemas():
        name = schema.partition("(")[0]
        packet = name.partition(".")[0]
        if packet not in simulated:
            library.define(schema)
            library.impl(name, operator(packet), "CompositeExplicitAutograd")


def operator(name: str) -> Callable[..., NoReturn]:
    """The function *name* of torch_npu, which is not an operator of npusim and raises an error."""
    if name in OF_LATER_CHIPS:
        return _of_later_chips(name)
    return _function(f"torch_npu.{name}", _why(name))


def refusal(module: str, name: str) -> object:
    """A stand-in for *name* of *module* that raises an error when called; a class for a class."""
    full = f"{module}.{name}"
    if not name.lstrip("_")[:1].isupper():
        return _function(full, _why(name))

    def __init__(self: object, *_: object, **__: object) -> None:  # noqa: N807, ARG001
        raise _refused(full, _why(name))

    return type(name, (), {"__init__": __init__, "__module__": module})


def others_of(module: str, *parts: ModuleType) -> Callable[[str], object]:
    """`__getattr__` of a module that replaces *module*: it has the names in `__all__` of *parts*;
    the other names of torch_npu raise an error when called."""

    def find(name: str) -> object:
        for part in parts:
            if name in part.__all__:
                return getattr(part, name)
        if name in names()[module]:
            is_module = f"{module}.{name}" in names()
            return import_module(f"{module}.{name}") if is_module else refusal(module, name)
        raise AttributeError(
            f"module {module!r} has no attribute {name!r}\nnpusim.torch: {module}.{name} must be "
            "a name of torch_npu 2.14 or older, but is none; leave it out"
        )

    return find


def _of_later_chips(name: str) -> Callable[..., NoReturn]:
    """Raise the error of a current card, whose CANN finds no kernel (the code is assumed)."""
    words = name.strip("_").removeprefix("npu_").split("_")
    acl = "aclnn" + "".join(word.capitalize() for word in words)

    def refuse(*_: object, **__: object) -> NoReturn:
        chip = card.spec()
        text = (
            f"{name}: the chip must be an Ascend 950, which has float8 and float4, not {chip.name} "
            f"of {chip.series}; use {OF_LATER_CHIPS[name]}"
        )
        raise as_on_card(OpError(Code.INNER_ERROR, text), name, acl)

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = "Refused: no chip here has float8 and float4."
    return refuse


def _function(full: str, why: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise _refused(full, why)

    refuse.__name__ = refuse.__qualname__ = full.rpartition(".")[2]
    refuse.__doc__ = f"Not simulated: {why}."
    return refuse


def _refused(full: str, why: str) -> NotImplementedError:
    return NotImplementedError(f"{full}: it must be simulated to be called, but is not; {why}")


def _why(name: str) -> str:
    if any(part in name for part in BETWEEN_CARDS):
        return "it speaks to other cards: write it with torch.distributed, with backend hccl"
    if name in ops.NOT_BUILT:
        return ops.in_place_of(name)
    if name in INSTEAD | OF_ATB:
        return f"use {(INSTEAD | OF_ATB)[name]}"
    if name.startswith(("npu_", "_npu_")):
        return "it would need its own kernel: write it with torch's own operations"
    return "do without it"
