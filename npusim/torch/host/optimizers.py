"""Optimizers on the host in the steps of a card's kernels.

ApplyAdamWV2 computes 16-bit floats in float32 and rounds them at the end: float16 to nearest even,
bfloat16 to nearest, ties away from zero. Assumed: a power of a factor is the nearest float32.

Sources: ops-nn@e5c3fa9 optim/apply_adam_w_v2/op_kernel, op-plugin@517f2e7
FusedAdamWKernelNpuOpApi.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from npusim.data.dtypes import BFLOAT16, cast

__all__ = ["fused_adamw"]

Tensors = Sequence[torch.Tensor]
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def fused_adamw(*lists: Tensors, amsgrad: bool, maximize: bool, **named: Any) -> None:
    """`_fused_adamw_`: parameters, gradients, averages, averages of squares, their largest values
    and the steps."""
    parameters, grads, averages, squares, largest, steps = lists
    factors = {name: np.float32(named[name]) for name in FACTORS}
    is_scaled = any(named.get(name) is not None for name in ("grad_scale", "found_inf"))
    for i, parameter in enumerate(parameters):
        most = largest[i : i + 1] if amsgrad else ()
        own = (parameter, grads[i], averages[i], squares[i], *most)
        types = {x.dtype for x in own}
        if is_scaled or len(types) > 1 or parameter.dtype not in FLOATS:
            one = ([x[i]] if len(x) else [] for x in lists)
            torch.ops.aten._fused_adamw_(*one, amsgrad=amsgrad, maximize=maximize, **named)
            continue
        found = _stepped(own, maximize, float(steps[i]), **factors)
        for x, y in zip((parameter, averages[i], squares[i], *most), found, strict=False):
            x.copy_(_rounded(y, x.dtype))


FACTORS = ("lr", "beta1", "beta2", "weight_decay", "eps")


def _stepped(
    own: Tensors,
    maximize: bool,
    step: float,
    *,
    lr: np.float32,
    beta1: np.float32,
    beta2: np.float32,
    weight_decay: np.float32,
    eps: np.float32,
) -> Tensors:
    """The new parameter, average, average of squares, and its largest value, in float32."""
    parameter, grad, average, square, *largest = (x.float() for x in own)
    one = np.float32(1)
    first, second = (one - np.float32(float(beta) ** step) for beta in (beta1, beta2))
    grad = -grad if maximize else grad
    average = (grad - average) * float(one - beta1) + average
    square = square * float(beta2) + grad * grad * float(one - beta2)
    most = torch.maximum(largest[0], square) if largest else square
    divisor = most.sqrt() * float(one / np.sqrt(second)) + float(eps)
    kept = parameter * float(one - lr * weight_decay)
    return kept - average / divisor * float(lr / first), average, square, most


def _rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype != torch.bfloat16:
        return x.to(dtype)
    bits = cast(x.numpy(), BFLOAT16, "round").view(np.int16)
    return torch.from_numpy(bits).view(torch.bfloat16)
