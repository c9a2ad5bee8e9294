"""What torch_npu has and npusim does not simulate: there by name, refused when called.

Models import functions that they may never call, and choose what to call by what is there. So a
name that torch_npu has exists here, too; calling it raises NotImplementedError, which says what can
be used instead.
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
    "npu_conv2d": "torch.nn.functional.conv2d",
    "npu_conv3d": "torch.nn.functional.conv3d",
    "npu_conv_transpose2d": "torch.nn.functional.conv_transpose2d",
    "npu_convolution": "torch.nn.functional.conv2d or conv3d",
    "npu_cross_entropy_loss": "torch.nn.functional.cross_entropy",
    "npu_dropout_with_add_softmax": "torch's own operations",
    "npu_geglu": "torch.nn.functional.gelu and a product",
}
"""Operator -> what computes the same, in part or in several steps."""

OF_ATB = {
    "_npu_paged_attention_splitfuse_v2": "npu_fused_infer_attention_score on Atlas A2 or A3, with "
    "block_table and a mask",
}
"""Operator that torch_npu takes from ATB, and not from aclnn -> what computes the same (op-plugin,
atb_ops.yaml; vllm-ascend calls them). The namespace `npu` has none of them."""

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
}
"""Operator of float8 and float4, which no chip here has -> the nearest one of int8 (op-plugin's
tests name Ascend950 alone for each)."""

BETWEEN_CARDS = (
    *("all_reduce", "allgather", "all_gather", "alltoall", "reduce_scatter", "distribute"),
    *("broadcast_", "send", "recv", "hccl", "hcom", "ring_", "_combine"),
)
"""Parts of names of operators that speak to other cards."""

_libraries: list[torch.library.Library] = []
"""Registrations live as long as their library."""


def register(simulated: frozenset[str]) -> None:
    """Define torch_npu's operators in the namespace `npu` but for those *simulated*."""
    library = torch.library.Library("npu", "FRAGMENT")
    _libraries.append(library)
    for schema in schemas():
        name = schema.partition("(")[0]
        packet = name.partition(".")[0]
        if packet not in simulated:
            library.define(schema)
            library.impl(name, operator(packet), "CompositeExplicitAutograd")


def operator(name: str) -> Callable[..., NoReturn]:
    """The function of torch_npu called *name*, which is no operator of npusim."""
    if name in OF_LATER_CHIPS:
        return _of_later_chips(name)
    return _function(f"torch_npu.{name}", _why(name))


def refusal(module: str, name: str) -> object:
    """*name* of *module*: a class where torch_npu has one, which refuses to be made."""
    full = f"{module}.{name}"
    if not name.lstrip("_")[:1].isupper():
        return _function(full, _why(name))

    def __init__(self: object, *_: object, **__: object) -> None:  # noqa: N807, ARG001
        raise _refused(full, _why(name))

    return type(name, (), {"__init__": __init__, "__module__": module})


def others_of(module: str, *parts: ModuleType) -> Callable[[str], object]:
    """`__getattr__` of a module of ours that answers for *module*: what *parts* list in `__all__`
    is its own, and what else torch_npu has there refuses when called."""

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
    """As a card of today refuses it: its CANN finds no kernel (of which the code is assumed)."""
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
