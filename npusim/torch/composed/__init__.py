"""Operators of torch_npu that are made of others: torch's own, and those that npusim simulates.

Their own kernels are not simulated, since they are not public or not yet written. What runs in
place of one is said where its function stands, with what is assumed of values and time: each of the
parts is a launch of its own, with its own time, and goes by its own name in profiles. Gradients are
those of the parts.

A function has the parameters of the operator's schema, which torch_npu publishes.
"""

from __future__ import annotations

from collections.abc import Callable

from npusim.ops import TorchFunction
from npusim.published import schemas
from npusim.torch.composed import dropout, fusion_attention

__all__ = ["COMPOSED", "PARTS", "declared"]

Composed = Callable[..., object]

COMPOSED: dict[str, Composed] = {
    "_npu_dropout_gen_mask.Tensor": dropout.npu_dropout_gen_mask,
}
"""Name in the namespace `npu`, with its overload -> what runs."""
PARTS: dict[str, Composed] = {
    "npu_fusion_attention": fusion_attention.npu_fusion_attention,
    "npu_fusion_attention_v2": fusion_attention.npu_fusion_attention,
}
"""Operator of npusim -> what runs where its kernel does not take a call that a card takes."""


def declared() -> dict[str, TorchFunction]:
    """The functions of torch_npu that these are, by their full names."""
    found = {}
    for schema in schemas():
        name = schema.partition("(")[0]
        if name in COMPOSED:
            found[name] = TorchFunction(schema=schema, aclnn=lambda _: "", outputs=lambda *_: ())
    return found
