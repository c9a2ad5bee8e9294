"""`scaled_dot_product_attention` of npu tensors: one kernel where there is one, else its parts.

torch_npu has its own implementation, which makes a mask and calls npu_fusion_attention_v3
(torch_npu 2.14.0, csrc/aten/npu_native_functions_by_codegen.yaml, and what
distributed/tensor/experimental/_context_parallel/_npu_attention.py says of it). That kernel,
FlashAttentionScore, also serves training and is not simulated. The kernel for inference that
computes the same, npu_fused_infer_attention_score in layout BNSD, stands in for it: that both take
the same time and round alike is assumed, and that the mask costs a kernel only where the caller's
must be turned round.

It takes float16 and bfloat16, without dropout and gradients, with no mask, one of bool, or a causal
one. All else, and all on Atlas inference, is the products and the softmax that torch makes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from npusim.torch import card, shapes
from npusim.torch.fallback import is_on_host
from npusim.torch.kernels import Given, launch, takes, tensors_of
from npusim.torch.relabel import to_npu
from npusim.torch.views import contiguous, is_plain

__all__ = ["AUTOGRAD", "KERNELS"]

OP = torch.ops.aten.scaled_dot_product_attention.default
NAME = "npu_fused_infer_attention_score"
STENCIL = 2048
"""Rows and columns of the mask that stands for any causal one (the operator's document)."""
LEFT_UP = 2
"""The sparse_mode of a diagonal that begins at the first token and the first key, as torch's."""


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    tensors = query, key, value
    if not is_on_host() and dropout_p == 0 and all(x.dim() == 4 and is_plain(x) for x in tensors):
        is_one_each = key.shape[1] == query.shape[1]
        if (enable_gqa or is_one_each) and not (is_causal and attn_mask is not None):
            given: Given = {
                **dict(zip(("query", "key", "value"), tensors, strict=True)),
                "num_heads": query.shape[1],
                "num_key_value_heads": key.shape[1],
                "scale": query.shape[3] ** -0.5 if scale is None else float(scale),
                "input_layout": "BNSD",
            }
            found = _launched(given, attn_mask, is_causal)
            if found is not None:
                return found
    parts: torch.Tensor = OP.decompose(
        *tensors, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return parts


def _launched(given: Given, attn_mask: torch.Tensor | None, is_causal: bool) -> torch.Tensor | None:
    """What the kernel makes of *given*, views copied first; None where it does not take it."""
    tokens, keys = given["query"].shape[2], given["key"].shape[2]
    if is_causal and tokens == 1 < keys:
        # Torch lets it see the first key alone; to the kernel no mode of a mask counts.
        return None
    if is_causal and tokens > 1:
        given |= {"atten_mask": _stencil(), "sparse_mode": LEFT_UP}
    if attn_mask is not None:
        fitting = (given | {"atten_mask": mask} for mask in _masks(given, attn_mask))
        found = next((each for each in fitting if takes(NAME, each)), None)
        if found is None:
            return None
        # torch's mask says what is seen, the kernel's what is hidden.
        given = found | {"atten_mask": torch.logical_not(found["atten_mask"])}
    elif not takes(NAME, given):
        return None
    return launch(NAME, {name: _in_rows(x) for name, x in given.items()})


def _masks(given: Given, mask: torch.Tensor) -> list[torch.Tensor]:
    """*mask* in the shapes in which the kernel may take it: for all requests, and for each."""
    batch, _, tokens, _ = given["query"].shape
    keys = given["key"].shape[2]
    if mask.dtype != torch.bool or not mask.is_npu or not 2 <= mask.dim() <= 4:
        return []
    mask = mask[(None,) * (4 - mask.dim())]
    if mask.shape[1] != 1 or mask.shape[0] not in (1, batch):
        return []
    each = mask.expand(batch, 1, tokens, keys)
    return [mask.expand(1, 1, tokens, keys)[0, 0], each] if mask.shape[0] == 1 else [each]


def _in_rows(value: object) -> object:
    return contiguous(value) if isinstance(value, torch.Tensor) else value


def _stencil() -> torch.Tensor:
    """The mask of all causal calls, as the card keeps it."""
    if not card.computes_values():
        meta = torch.empty((STENCIL, STENCIL), dtype=torch.bool, device="meta")
        return shapes.like(meta)
    return to_npu(_above_diagonal())


@cache
def _above_diagonal() -> torch.Tensor:
    return torch.ones((STENCIL, STENCIL), dtype=torch.bool).triu(1)


def _above(*args: object, **kwargs: object) -> torch.Tensor:
    """Gradients are those of the parts."""
    tensors = tensors_of({str(place): value for place, value in enumerate(args)} | kwargs)
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        parts: torch.Tensor = OP.decompose(*args, **kwargs)
        return parts
    with torch._C._AutoDispatchBelowAutograd():
        found: torch.Tensor = OP(*args, **kwargs)
    return found


KERNELS: dict[str, Callable[..., torch.Tensor]] = {"scaled_dot_product_attention": _attention}
"""Operation of aten -> its kernel for the card."""
AUTOGRAD: dict[str, Callable[..., torch.Tensor]] = {"scaled_dot_product_attention": _above}
"""The same before gradients are dealt with."""
