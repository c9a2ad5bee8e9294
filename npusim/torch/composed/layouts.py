"""Casts, reshapes, transposes and the like, composed of torch operations.

Sources: op-plugin@517f2e7 op_plugin_functions.yaml, derivatives.yaml, and the documents of these
functions.
"""

from __future__ import annotations

import torch

from npusim.torch.schemas import dtype_name

__all__ = [
    "broadcast",
    "confusion_transpose",
    "confusion_transpose_backward",
    "dtype_cast",
    "dtype_cast_backward",
    "gather_sparse_index",
    "one_hot",
    "pad",
    "reshape",
    "sliced",
    "sort_v2",
    "transpose",
]


def _dtype(number: int) -> torch.dtype:
    found: torch.dtype = getattr(torch, dtype_name(number) or "float32")
    return found


def dtype_cast(
    self: torch.Tensor,
    dtype: int,
    input_dtype: int | None = None,  # noqa: ARG001
) -> torch.Tensor:
    """Cast self to *dtype*."""
    return self.to(_dtype(dtype))


def dtype_cast_backward(
    grad: torch.Tensor,
    dtype: int,
    grad_dtype: int | None = None,  # noqa: ARG001
    input_dtype: int | None = None,  # noqa: ARG001
) -> torch.Tensor:
    """Cast the gradient to the type of the input of the cast."""
    return grad.to(dtype if isinstance(dtype, torch.dtype) else _dtype(dtype))


def confusion_transpose(
    self: torch.Tensor, perm: list[int], shape: list[int], transpose_first: bool
) -> torch.Tensor:
    """Permute and reshape, or reshape and permute."""
    if transpose_first:
        return self.permute(perm).reshape(shape)
    return self.reshape(shape).permute(perm).contiguous()


def confusion_transpose_backward(
    grad: torch.Tensor, perm: list[int], shape: list[int], transpose_first: bool
) -> torch.Tensor:
    """*grad* with the order of axes and the *shape* of the input."""
    back = sorted(range(len(perm)), key=lambda place: perm[place])
    if transpose_first:
        return grad.permute(back).reshape(shape)
    return grad.reshape([shape[axis] for axis in perm]).permute(back).contiguous()


def transpose(self: torch.Tensor, perm: list[int], require_contiguous: bool = True) -> torch.Tensor:
    """Permute the axes."""
    found = self.permute(perm)
    return found.contiguous() if require_contiguous else found.clone()


def broadcast(self: torch.Tensor, size: list[int]) -> torch.Tensor:
    """Repeat self along its axes of size 1."""
    return self.expand(size).clone(memory_format=torch.contiguous_format)


def reshape(
    self: torch.Tensor,
    shape: list[int],
    can_refresh: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    """A copy with another shape."""
    return self.reshape(shape).clone()


def sliced(self: torch.Tensor, offsets: list[int], size: list[int]) -> torch.Tensor:
    """A copy of the part of *size* that starts at *offsets*."""
    found = self
    for axis, (start, length) in enumerate(zip(offsets, size, strict=True)):
        found = found.narrow(axis, start, length)
    return found.clone(memory_format=torch.contiguous_format)


def pad(input: torch.Tensor, paddings: list[int]) -> torch.Tensor:
    """Pad input with zeros; *paddings* has a width before and one after, for each axis."""
    pairs = [paddings[start : start + 2] for start in range(0, len(paddings), 2)]
    widths = [width for pair in reversed(pairs) for width in pair]
    return torch.constant_pad_nd(input, widths)


def one_hot(
    self: torch.Tensor,
    num_classes: int = -1,  # noqa: ARG001
    depth: int = 1,
    on_value: float = 1,
    off_value: float = 0,
) -> torch.Tensor:
    """*depth* values for each element: *on_value* at the index that it gives, else *off_value*."""
    places = torch.arange(depth, dtype=self.dtype, device=self.device)
    is_on = self.unsqueeze(-1) == places
    values = (torch.tensor(float(x), device=self.device) for x in (on_value, off_value))
    return torch.where(is_on, *values)


def sort_v2(self: torch.Tensor, dim: int = -1, descending: bool = False) -> torch.Tensor:
    """self sorted, without the indices."""
    return torch.sort(self, dim=dim, descending=descending).values


def gather_sparse_index(input: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The rows of input at *index*."""
    rows = input.index_select(0, index.flatten())
    return rows.reshape(*index.shape, *input.shape[1:])
