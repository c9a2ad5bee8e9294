"""Functions that are older than aclnn, composed of torch operations.

Sources: op-plugin@517f2e7, the documents and C++ of these functions, and apply_adam_v2.py of CANN
8.1.RC1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from npusim.ops import A2_A3
from npusim.torch import card
from npusim.torch.errors import not_modelled, require_option
from npusim.torch.relabel import overwrite

__all__ = [
    "alloc_float_status",
    "bert_apply_adam",
    "clear_float_status",
    "copy_memory_",
    "dropout_with_byte_mask",
    "get_float_status",
    "indexing",
    "max_dim",
    "min_dim",
    "one_",
    "scatter_list",
    "scatter_list_",
    "silu_",
    "stride_add",
    "stride_copy",
    "view_copy",
]

Moments = Sequence[torch.Tensor]
FLOAT_STATUS_ELEMENTS = 8
"""Elements of a tensor of overflow flags (FloatStatusKernelNpu.cpp)."""
C0 = 16
"""Channels of a block of the layout NC1HWC0."""


def silu_(input: torch.Tensor) -> torch.Tensor:
    """silu in place."""
    overwrite(input, torch.nn.functional.silu(input))
    return input


def copy_memory_(
    input: torch.Tensor, src: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """Copy *src* into *input*."""
    return input.copy_(src, non_blocking)


def max_dim(
    input: torch.Tensor, dim: int, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The maxima along an axis, and their indices as int32."""
    values, indices = torch.max(input, dim, keepdim)
    return values, indices.int()


def min_dim(
    input: torch.Tensor, dim: int, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The minima along an axis, and their indices as int32."""
    values, indices = torch.min(input, dim, keepdim)
    return values, indices.int()


def dropout_with_byte_mask(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """torch's dropout, since the mask is not returned."""
    return torch.nn.functional.dropout(input, p, train)


def alloc_float_status(input: torch.Tensor) -> torch.Tensor:
    """A tensor of overflow flags, none of which is set."""
    return torch.zeros(FLOAT_STATUS_ELEMENTS, device=input.device)


def get_float_status(input: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """Flags of int32, none of which is set: overflows are not recorded.

    An Atlas A2 or A3 computes infinities and sets none (assumed); an Atlas inference product
    saturates and would, so that the call is refused there.
    """
    require_option("npu_get_float_status", "mode", mode, 0, 1)
    if card.spec().series not in A2_A3:
        raise not_modelled(
            "npu_get_float_status", "be called on Atlas inference", "look for the largest value"
        )
    return torch.zeros(FLOAT_STATUS_ELEMENTS, dtype=torch.int32, device=input.device)


def clear_float_status(input: torch.Tensor, mode: int = 0) -> torch.Tensor:
    """Clear the flags, none of which is set; they are returned in the type of *input*."""
    require_option("npu_clear_float_status", "mode", mode, 0, 1)
    return torch.zeros(FLOAT_STATUS_ELEMENTS, dtype=input.dtype, device=input.device)


def one_(input: torch.Tensor) -> torch.Tensor:
    """Fill *input* with ones."""
    return input.fill_(1)


def view_copy(input: torch.Tensor, other: torch.Tensor, non_blocking: bool) -> torch.Tensor:
    """Copy *other* into *input*."""
    return input.copy_(other, non_blocking)


def stride_copy(
    input: torch.Tensor, shape: Sequence[int], stride: Sequence[int], storage_offset: float
) -> torch.Tensor:
    """A copy of a view with these strides."""
    return torch.as_strided(input, shape, stride, int(storage_offset)).contiguous()


def scatter_list(input: Sequence[torch.Tensor], *given: Any, **options: Any) -> list[torch.Tensor]:
    """:func:`scatter_list_` into copies of the tensors of *input*, which are returned."""
    found = [each.clone() for each in input]
    scatter_list_(found, *given, **options)
    return found


def scatter_list_(
    input: Sequence[torch.Tensor],
    indices: torch.Tensor,
    updates: torch.Tensor,
    mask: torch.Tensor | None = None,
    reduce: str = "update",
    axis: int = -2,
) -> None:
    """Write to each tensor of *input* its part of *updates*, at its index along *axis*: with
    *indices* `(tensors, 2)` as many places as the second column has. Tensors that *mask* marks with
    zero are left as they are."""
    require_option("npu_scatter_list", "reduce", reduce, "update")
    used = [True] * len(input) if mask is None else mask.bool().tolist()
    for place, target in enumerate(input):
        if used[place]:
            first, count = _written(indices[place], updates.shape[axis])
            new = updates[place].narrow(axis, 0, count)
            target.narrow(axis, first, count).copy_(new)


def _written(index: torch.Tensor, most: int) -> tuple[int, int]:
    """The first place and the number of places that *index*, one or two elements, asks for."""
    given = index.reshape(-1).tolist()
    return (given[0], given[1]) if len(given) > 1 else (given[0], most)


def indexing(
    input: torch.Tensor,
    begin: list[int],
    end: list[int],
    strides: list[int],
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> torch.Tensor:
    """A copy of a slice along each axis. The bits of the masks mark axes whose slice has no begin
    or no end, and axes from which a single index is taken."""
    if ellipsis_mask or new_axis_mask or any(step < 1 for step in strides):
        raise NotImplementedError(
            "npu_indexing: it must be simulated to be called, but with ellipsis_mask, "
            "new_axis_mask or steps backwards is not; use torch's own indices"
        )
    parts: list[slice | int] = []
    for axis, (first, last, step) in enumerate(zip(begin, end, strides, strict=True)):
        bit = 1 << axis
        whole = slice(None if begin_mask & bit else first, None if end_mask & bit else last, step)
        parts.append(first if shrink_axis_mask & bit else whole)
    return input[tuple(parts)].clone()


def stride_add(
    input: torch.Tensor, other: torch.Tensor, offset1: float, offset2: float, c1_len: float
) -> torch.Tensor:
    """The sum of *c1_len* blocks of channels of both, starting at a block of each; missing channels
    are zero."""
    count = int(c1_len) * C0

    def blocks(x: torch.Tensor, offset: float) -> torch.Tensor:
        part = x[:, int(offset) * C0 :][:, :count]
        missing = part.new_zeros((x.shape[0], count - part.shape[1], *x.shape[2:]))
        return torch.cat([part, missing], 1)

    return blocks(input, offset1) + blocks(other, offset2)


def bert_apply_adam(
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    grad: torch.Tensor,
    max_grad_norm: float,
    global_grad_norm: float,
    weight_decay: float,
    step_size: float | None = None,
    adam_mode: int = 0,
    *,
    out: Moments,
) -> Moments:
    """Adam without bias correction, with the given *step_size* if *adam_mode* is not 0."""
    variable, mean, variance = out
    if max_grad_norm > 0 and global_grad_norm > 1:
        grad = grad / global_grad_norm
    overwrite(mean, mean * beta1 + grad * (1 - beta1))
    overwrite(variance, variance * beta2 + grad * grad * (1 - beta2))
    update = mean / (variance.sqrt() + epsilon)
    if adam_mode == 0:
        update = (update + variable * weight_decay if weight_decay > 0 else update) * lr
    else:
        update = update * (step_size or 0.0)
        update = update + variable * (weight_decay * lr) if weight_decay > 0 else update
    overwrite(variable, variable - update)
    return variable, mean, variance
