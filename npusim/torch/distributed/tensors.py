"""Convert tensors of a collective to bytes and arrays, and check that they can take part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.distributed as dist

from npusim import collectives
from npusim.collectives import Operation
from npusim.data.dtypes import Array
from npusim.torch import card
from npusim.torch.distributed.transport import NOTHING
from npusim.torch.relabel import overwrite, to_host

__all__ = [
    "array_of",
    "bytes_of",
    "check",
    "described",
    "fill",
    "fill_bytes",
    "operation_of",
]

OPERATIONS: dict[Any, Operation] = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "sum",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.MIN: "min",
}
"""Operation of torch -> operation of HCCL, which has no mean: torch_npu divides a sum (assumed)."""


def check(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise an error for host tensors and views with gaps, as torch_npu does."""
    for tensor in tensors:
        if not tensor.is_npu:
            raise RuntimeError(
                f"No backend type associated with device type {tensor.device.type}\n"
                f"{name}: its tensors must lie on the npu, not on the {tensor.device.type}; move "
                f"them with .npu()"
            )
        if not tensor.is_contiguous():
            raise ValueError(
                f"Tensors must be contiguous\n{name}: its tensors must lie row after row, not with "
                f"strides {tensor.stride()}; call .contiguous() on them"
            )


def operation_of(name: str, opts: Any, tensor: torch.Tensor) -> tuple[Operation, bool]:
    """The reduction, and whether its result is divided by the number of ranks.

    Raises RuntimeError if HCCL does not support it, or not for the type of *tensor*.
    """
    asked = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    found = next((own for op, own in OPERATIONS.items() if asked == op), None)
    if found is None:
        raise RuntimeError(
            f"Cannot use this ReduceOp with HCCL\n{name}: the operation must be SUM, AVG, PRODUCT, "
            f"MAX or MIN, not {_named(asked)}; use one of these"
        )
    if _type(tensor) not in collectives.REDUCED:
        raise RuntimeError(
            f"{name}: the type must be one that HCCL reduces, of {', '.join(collectives.REDUCED)}, "
            f"not {_type(tensor)}; convert the tensor"
        )
    divides = asked == dist.ReduceOp.AVG
    if divides and not tensor.is_floating_point():
        raise RuntimeError(
            f"{name}: AVG must be of floating numbers, which a card divides, not of "
            f"{_type(tensor)}; take SUM, and divide yourself"
        )
    return found, divides


def _named(operation: Any) -> str:
    named = {getattr(dist.ReduceOp, name): name for name in ("BAND", "BOR", "BXOR")}
    return next((name for op, name in named.items() if operation == op), "another")


def _type(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def described(tensor: torch.Tensor) -> str:
    """Type and shape, which must be equal on all ranks."""
    return f"{_type(tensor)} {tuple(tensor.shape)}"


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous *tensor* in host memory; none where shapes alone are simulated."""
    if not card.computes_values():
        return NOTHING
    return to_host(tensor.detach()).reshape(-1).view(torch.uint8)


def array_of(given: torch.Tensor, like: torch.Tensor) -> Array:
    """The bytes *given* as a flat array of the type of *like*."""
    array: Array = given.numpy()
    if like.dtype == torch.bfloat16:
        return array.view(ml_dtypes.bfloat16)
    return array.view(np.dtype(_type(like)))


def fill(tensor: torch.Tensor, array: Array) -> None:
    """Copy the elements of *array* into *tensor*."""
    fill_bytes(tensor, torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))


def fill_bytes(tensor: torch.Tensor, given: torch.Tensor) -> None:
    """Copy the bytes *given* into *tensor*."""
    if tensor.numel():
        found = given.contiguous().clone().view(tensor.dtype).reshape(tensor.shape)
        overwrite(tensor, found)
