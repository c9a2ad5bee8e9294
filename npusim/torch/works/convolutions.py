"""Rules of convolutions: Conv2D and its gradients, timed as matrix products."""

from __future__ import annotations

from math import prod

import torch

from npusim.data.tensor import TensorSpec
from npusim.torch.works.call import FLOATS, Call, Launch, Works, bits_of
from npusim.torch.works.passes import Pass, RowPasses
from npusim.torch.works.streams import Stream
from npusim.torch.works.work import Work

__all__ = ["backward", "forward"]

CHANNELS = 16
"""Adjacent channels in NC1HWC0, which the cube processes at once."""


def forward(call: Call, kernel: str) -> Works:
    """Conv2D, with a TransData each for x, the weight and the result.

    Conv2D is timed as the matrix product of the patches that load3d reads from the image: its rows
    are positions of the result, its k is channels times positions of the filter. As many groups are
    combined as fill the channels that the cube processes at once.
    """
    x, weight, _, *_ = call.args
    y = call.outputs[0]
    if call.value(6, "transposed", False) or x.dtype not in FLOATS:
        return None
    groups = call.value(8, "groups", 1)
    rows, taken, given = _extents(y, weight, groups)
    product = _product(kernel, x.dtype, rows, taken, given, groups, weight.shape[1])
    return [_turned_to_channels(x), _turned_to_channels(weight), product, _turned_to_channels(y)]


def backward(call: Call, _: str) -> Works:
    """The gradients of x and of the weight: Conv2DBackpropInput and Conv2DBackpropFilter, each
    timed as a product."""
    grad, x, weight = call.args[:3]
    if call.args[6] or x.dtype not in FLOATS:
        return None
    groups = call.args[8]
    rows, taken, given = _extents(grad, weight, groups)
    each = groups, weight.shape[1]
    found: list[Work | Launch] = [_turned_to_channels(tensor) for tensor in (grad, x, weight)]
    mask = call.args[9]
    if mask[0]:
        found.append(_product("Conv2DBackpropInput", x.dtype, rows, given, taken, *each))
    if mask[1]:
        found.append(_product("Conv2DBackpropFilter", x.dtype, given, rows, taken, *each))
    if mask[2]:
        found.append(
            RowPasses(
                kernel="ReduceSum",
                rows=grad.shape[1],
                columns=grad.numel() // grad.shape[1],
                bits=bits_of(grad),
                passes=(Pass(("add",)),),
                numbers=(bits_of(grad),),
            )
        )
    return [*found, *(_turned_to_channels(y) for y in call.outputs if y.dim() > 1)]


def _extents(y: torch.Tensor, weight: torch.Tensor, groups: int) -> tuple[int, int, int]:
    """Rows, k and columns of the product of one group."""
    return y.numel() // y.shape[1], prod(weight.shape[1:]), weight.shape[0] // groups


def _product(
    kernel: str, dtype: torch.dtype, m: int, k: int, n: int, groups: int, channels: int
) -> Launch:
    together = min(groups, max(1, CHANNELS // max(1, channels)))
    batch = -(-groups // together)
    name = str(dtype).removeprefix("torch.")
    outer = (batch,) if batch > 1 else ()
    arguments = {
        "x1": TensorSpec((*outer, m, k * together), name),
        "x2": TensorSpec((*outer, k * together, n * together), name),
    }
    return Launch(kernel, "matmul", arguments)


def _turned_to_channels(x: torch.Tensor) -> Work:
    """TransData: move channels to the end in blocks of sixteen, with two transpositions."""
    return Stream(
        kernel="TransData",
        elements=x.numel(),
        loads=(bits_of(x),),
        stores=(bits_of(x),),
        steps=("max", "max"),
    )
