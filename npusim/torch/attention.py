"""`scaled_dot_product_attention` of npu tensors: one fused kernel if possible, else its parts.

torch_npu calls npu_fusion_attention in layout BNSD, with and without gradients. A causal call first
makes a mask of 2048 x 2048 with two kernels. A mask of the caller is inverted, because it marks the
keys that are visible; rows in which it hides all keys give zeros (op-plugin@517f2e7
ScaledDotProductAttentionKernelNpuOpApi.cpp).

The kernel here accepts float16 and bfloat16, with dropout or without, and with no mask, a bool mask
that is the same for all heads, or a causal one. All other calls, those with dropout while a graph
is captured, and all calls on Atlas inference, run as the products and the softmax into which torch
decomposes them. Assumed: a mask that is broadcast over tokens or requests is inverted at its
expanded size, but not once for each head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake

from npusim.torch import card, generator, shapes
from npusim.torch.fallback import is_on_host
from npusim.torch.kernels import Given, launch, takes, takes_traced, tensors_of
from npusim.torch.relabel import to_npu
from npusim.torch.timed import ran
from npusim.torch.views import contiguous, is_plain

__all__ = ["AUTOGRAD", "KERNELS"]

OP = torch.ops.aten.scaled_dot_product_attention.default
NAME = "npu_fusion_attention"
STENCIL = 2048
"""Rows and columns of the compressed mask for causal calls of any size (the operator's document).
"""
LEFT_UP = 2
"""The sparse_mode of a diagonal that begins at the first token and the first key, as in torch."""
CORRECTS_HIDDEN = 2
"""The inner_precise with which rows whose keys are all hidden give zeros."""


def _attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    given = _fused(*args, **kwargs)
    if given is not None and "keep_prob" in given:
        return _called(given)
    if given is not None:
        return launch(NAME, {name: _in_rows(x) for name, x in given.items()})
    parts: torch.Tensor = OP.decompose(*args, **kwargs)
    return parts


def _above(*args: Any, **kwargs: Any) -> torch.Tensor:
    """The autograd kernel: the gradients are those of the fused kernel, or those of the parts.

    What a compiler traces is the fused kernel as well.
    """
    tensors = tensors_of({str(place): value for place, value in enumerate(args)} | kwargs)
    is_recorded = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if not is_recorded and not any(map(is_fake, tensors)):
        with torch._C._AutoDispatchBelowAutograd():
            found: torch.Tensor = OP(*args, **kwargs)
        return found
    given = _fused(*args, **kwargs)
    if given is None:
        parts: torch.Tensor = OP.decompose(*args, **kwargs)
        return parts
    return _called(given)


def _called(given: Given) -> torch.Tensor:
    """The output of npu_fusion_attention, which draws a mask where there is dropout."""
    rows = {x: y.contiguous() if isinstance(y, torch.Tensor) else y for x, y in given.items()}
    output, *_ = torch.ops.npu.npu_fusion_attention(**rows)
    found: torch.Tensor = output
    return found


def _fused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Given | None:
    """The arguments of the kernel; None if it does not accept the call."""
    tensors = query, key, value
    is_plainly_given = all(x.dim() == 4 and is_plain(x) for x in tensors)
    if is_on_host() or not 0 <= dropout_p < 1 or not is_plainly_given:
        return None
    if dropout_p and generator.is_captured():
        return None
    is_one_each = key.shape[1] == query.shape[1]
    if not (enable_gqa or is_one_each) or (is_causal and attn_mask is not None):
        return None
    given: Given = {
        **dict(zip(("query", "key", "value"), tensors, strict=True)),
        "head_num": int(query.shape[1]),
        "scale": int(query.shape[3]) ** -0.5 if scale is None else float(scale),
        "input_layout": "BNSD",
    }
    accepts = takes_traced if is_fake(query) else takes
    if attn_mask is not None:
        given["inner_precise"] = CORRECTS_HIDDEN if query.shape[2] > 1 else 0
        fitting = (given | {"atten_mask": mask} for mask in _masks(given, attn_mask))
        found = next((each for each in fitting if accepts(NAME, each)), None)
        if found is None:
            return None
        # torch's mask marks visible keys, the kernel's mask marks hidden ones.
        given = found | {"atten_mask": torch.logical_not(found["atten_mask"])}
    elif not accepts(NAME, given):
        return None
    elif is_causal:
        stencil = _traced_stencil() if is_fake(query) else _stencil()
        given |= {"atten_mask": stencil, "sparse_mode": LEFT_UP}
    return given | {"keep_prob": 1 - dropout_p} if dropout_p else given


def _masks(given: Given, mask: torch.Tensor) -> list[torch.Tensor]:
    """*mask* in the shapes that the kernel may accept: shared by all requests, or one for each."""
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
    """The mask of all causal calls; each call takes the time of the kernels that make it."""
    if card.computes_values():
        mask = to_npu(_above_diagonal())
    else:
        mask = shapes.like(torch.empty((STENCIL, STENCIL), dtype=torch.bool, device="meta"))
    ran(torch.ops.aten.fill_.Scalar._schema, (mask, True), {}, mask)
    ran(torch.ops.aten.triu.default._schema, (mask, 1), {}, mask)
    return mask


def _traced_stencil() -> torch.Tensor:
    """The same as operations of torch, for a compiler to trace."""
    return torch.ones((STENCIL, STENCIL), dtype=torch.bool, device="npu").triu(1)


@cache
def _above_diagonal() -> torch.Tensor:
    return torch.ones((STENCIL, STENCIL), dtype=torch.bool).triu(1)


KERNELS: dict[str, Callable[..., torch.Tensor]] = {"scaled_dot_product_attention": _attention}
"""Operation of aten -> its kernel for the card."""
AUTOGRAD: dict[str, Callable[..., torch.Tensor]] = {"scaled_dot_product_attention": _above}
"""Operation of aten -> its autograd kernel."""
