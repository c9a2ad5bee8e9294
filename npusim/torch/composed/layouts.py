"""Casts, and tensors in another shape or order, of torch's own.

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
    """self as *dtype*."""
    return self.to(_dtype(dtype))


def dtype_cast_backward(
    grad: torch.Tensor,
    dtype: int,
    grad_dtype: int | None = None,  # noqa: ARG001
    input_dtype: int | None = None,  # noqa: ARG001
) -> torch.Tensor:
    """The gradient as the type that was cast."""
    return grad.to(dtype if isinstance(dtype, torch.dtype) else _dtype(dtype))


def confusion_transpose(
    self: torch.Tensor, perm: list[int], shape: list[int], transpose_first: bool
) -> torch.Tensor:
    """Axes in another order, and another shape, or the other way round."""
    if transpose_first:
        return self.permute(perm).reshape(shape)
    return self.reshape(shape).permute(perm).contiguous()


def confusion_transpose_backward(
    grad: torch.Tensor, perm: list[int], shape: list[int], transpose_first: bool
) -> torch.Tensor:
    """*grad* in the order and in the *shape* of what came in."""
    back = sorted(range(len(perm)), key=lambda place: perm[place])
    if transpose_first:
        return grad.permute(back).reshape(shape)
    return grad.reshape([shape[axis] for axis in perm]).permute(back).contiguous()


def transpose(self: torch.Tensor, perm: list[int], require_contiguous: bool = True) -> torch.Tensor:
    """Axes in another order."""
    found = self.permute(perm)
    return found.contiguous() if require_contiguous else found.clone()


def broadcast(self: torch.Tensor, size: list[int]) -> torch.Tensor:
    """self repeated along axes of size 1."""
    return self.expand(size).clone(memory_format=torch.contiguous_format)


def reshape(
    self: torch.Tensor,
    shape: list[int],
    can_refresh: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    """A copy of another shape."""
    return self.reshape(shape).clone()


def sliced(self: torch.Tensor, offsets: list[int], size: list[int]) -> torch.Tensor:
    """A part of *size* from *offsets* on."""
    found = self
    for axis, (start, length) in enumerate(zip(offsets, size, strict=True)):
        found = found.narrow(axis, start, length)
    return found.clone(memory_format=torch.contiguous_format)


def pad(input: torch.Tensor, paddings: list[int]) -> torch.Tensor:
    """input between zeros, so many before and behind each axis."""
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
    """*on_value* in the place that each element names, of *depth*."""
    places = torch.arange(depth, dtype=self.dtype, device=self.device)
    is_on = self.unsqueeze(-1) == places
    values = (torch.tensor(float(x), device=self.device) for x in (on_value, off_value))
    return torch.where(is_on, *values)


def sort_v2(self: torch.Tensor, dim: int = -1, descending: bool = False) -> torch.Tensor:
    """self in order, without the places."""
    return torch.sort(self, dim=dim, descending=descending).values


def gather_sparse_index(input: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The rows of input that *index* names."""
    rows = input.index_select(0, index.flatten())
    return rows.reshape(*index.shape, *input.shape[1:])
