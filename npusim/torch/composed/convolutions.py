"""Convolutions of torch_npu, composed of torch's.

The kernel of npu_deformable_conv2d is not simulated: the shifted elements are gathered by torch
operations, and a convolution follows. Sources: op-plugin@517f2e7, op_plugin_functions.yaml, the
document of npu_deformable_conv2d and test_deformable_conv2d.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from npusim.torch.errors import require_option
from npusim.torch.relabel import overwrite

__all__ = [
    "convolution",
    "convolution_backward",
    "convolution_out",
    "convolution_transpose",
    "deformable_conv2d",
    "deformable_conv2d_backward",
]


def convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """torch's convolution over two or three axes; padding may be given for both ends of each."""
    padded, padding = _padded(input, padding, len(stride))
    none = [0] * len(stride)
    return torch.convolution(padded, weight, bias, stride, padding, dilation, False, none, groups)


def _padded(
    input: torch.Tensor, padding: Sequence[int], axes: int
) -> tuple[torch.Tensor, Sequence[int]]:
    """*input* and the padding that is left: none if both ends of the last *axes* are given."""
    if len(padding) < 2 * axes:
        return input, padding
    return torch.nn.functional.pad(input, _ends(padding)), [0] * axes


def _ends(padding: Sequence[int]) -> list[int]:
    """*padding* of both ends of each axis, the last one first, as torch has it."""
    return [x for axis in reversed(range(0, len(padding), 2)) for x in padding[axis : axis + 2]]


def convolution_backward(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of input, weight and bias; None where *output_mask* is not set."""
    padded, rest = _padded(input, padding, len(stride))
    none, outputs = [0] * len(stride), [weight.shape[0]]
    of_input, *others = torch.ops.aten.convolution_backward(
        *(grad_output, padded, weight, outputs, stride, rest, dilation, False, none, groups),
        output_mask,
    )
    if of_input is not None and padded is not input:
        of_input = torch.nn.functional.pad(of_input, [-end for end in _ends(padding)])
    return of_input, *others


def convolution_out(*given: Any, out: torch.Tensor) -> torch.Tensor:
    """:func:`convolution` into *out*."""
    overwrite(out, convolution(*given))
    return out


def convolution_transpose(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """torch's transposed convolution, with the parameters in another order."""
    return torch.convolution(
        input, weight, bias, stride, padding, dilation, True, output_padding, groups
    )


def deformable_conv2d(
    input: torch.Tensor,
    weight: torch.Tensor,
    offset: torch.Tensor,
    bias: torch.Tensor | None,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1, 1, 1, 1),
    groups: int = 1,
    deformable_groups: int = 1,
    modulated: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A convolution of elements at shifted places, and those elements.

    *offset* is `(images, 3 deformable_groups kernel, height, width)`: shifts to the right, shifts
    down, and factors. Places between elements are interpolated in float32.
    """
    require_option("npu_deformable_conv2d", "modulated", modulated, True)
    images, channels, high, wide = input.shape
    kernel, (_, _, rows, columns) = tuple(kernel_size), offset.shape
    shape = images, 3, deformable_groups, *kernel, rows, columns
    right, down, factor = offset.float().reshape(shape).unbind(1)
    device = input.device
    y = down + _places(0, kernel[0], rows, padding[0], stride[2], dilation[2], device)
    x = right + _places(1, kernel[1], columns, padding[2], stride[3], dilation[3], device)
    whole = input.float().reshape(images, deformable_groups, -1, high * wide)
    top, left = torch.floor(y), torch.floor(x)
    found = torch.zeros((), device=device)
    for at_y, share_y in ((top, top + 1 - y), (top + 1, y - top)):
        for at_x, share_x in ((left, left + 1 - x), (left + 1, x - left)):
            is_inside = (at_y >= 0) & (at_y < high) & (at_x >= 0) & (at_x < wide)
            place = at_y.clamp(0, high - 1) * wide + at_x.clamp(0, wide - 1)
            index = place.long().flatten(2)[:, :, None].expand(-1, -1, whole.shape[2], -1)
            share = (share_y * share_x * factor * is_inside).flatten(2)[:, :, None]
            found = found + whole.gather(3, index) * share
    taken = found.reshape(images, channels, *kernel, rows, columns).permute(0, 1, 4, 2, 5, 3)
    taken = taken.reshape(images, channels, rows * kernel[0], columns * kernel[1]).to(input.dtype)
    return torch.nn.functional.conv2d(taken, weight, bias, kernel, groups=groups), taken


def deformable_conv2d_backward(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    offset_out: torch.Tensor,  # noqa: ARG001
    weight: torch.Tensor,
    offset: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    *others: Any,
) -> tuple[torch.Tensor, ...]:
    """The gradients of input, weight, offset and bias; the shifted elements are taken again."""
    with torch.enable_grad():
        x, kernel, shifts = (x.detach().requires_grad_() for x in (input, weight, offset))
        found, _ = deformable_conv2d(x, kernel, shifts, None, kernel_size, stride, padding, *others)
        gradients = torch.autograd.grad(found, (x, kernel, shifts), grad_output)
    return *gradients, grad_output.sum((0, 2, 3))


def _places(
    axis: int,
    taps: int,
    outputs: int,
    padding: int,
    stride: int,
    dilation: int,
    device: torch.device,
) -> torch.Tensor:
    """Where the taps of each output lie along *axis*, to be added to `(..., kernel, outputs)`."""
    tap, output = (torch.arange(count, device=device) for count in (taps, outputs))
    found = output * stride - padding + tap[:, None] * dilation
    return found[:, None, :, None] if axis == 0 else found[:, None, :]
