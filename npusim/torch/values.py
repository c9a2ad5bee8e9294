"""Tensors of torch as arguments of npusim, and what npusim gives as tensors of torch.

Neither way copies: both sides see the same host memory. A tensor in FRACTAL_NZ keeps its elements
in the order in which they are numbered, so that torch can print and copy them; how the chip would
have them lie in memory is worked out when an operator asks.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from npusim.data.dtypes import BFLOAT16, Array
from npusim.data.errors import Code, OpError
from npusim.data.tensor import Tensor, TensorSpec
from npusim.run.result import Output
from npusim.torch import card, shapes
from npusim.torch.formats import ND, NZ, Format
from npusim.torch.memory import memory

__all__ = ["argument", "array_of", "result"]


def argument(
    op: str, name: str, tensor: torch.Tensor, acl_format: int
) -> Array | Tensor | TensorSpec:
    """*tensor*, in host memory, as an argument of npusim; raises OpError if it cannot be one."""
    if acl_format not in (ND, NZ):
        raise OpError(
            Code.INVALID_PARAMETER,
            f"{op}: {name} must be in ND or FRACTAL_NZ, not {Format(acl_format)}; cast it with "
            f"npu_format_cast(..., 2)",
        )
    found = _argument(op, name, tensor, acl_format)
    memory.lie(found, tensor)
    return found


def _argument(
    op: str, name: str, tensor: torch.Tensor, acl_format: int
) -> Array | Tensor | TensorSpec:
    if not card.computes_values():
        return shapes.spec_of(tensor, acl_format)
    if tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
        tensor = tensor.detach().resolve_conj().resolve_neg()
    try:
        array = array_of(tensor)
    except (TypeError, RuntimeError):
        raise OpError(
            Code.INVALID_PARAMETER,
            f"{op}: {name} must be of a type that the operator knows, not {tensor.dtype}; "
            f"convert it",
        ) from None
    if acl_format == ND:
        return array
    is_turned = not array.flags.c_contiguous
    gm_matrix = array.swapaxes(-1, -2) if is_turned else array
    if not gm_matrix.flags.c_contiguous:
        raise OpError(
            Code.INVALID_PARAMETER,
            f"{op}: {name} must be a whole tensor in FRACTAL_NZ or its transpose, not a view of "
            f"shape {tuple(tensor.shape)} with strides {tensor.stride()}; cast the whole tensor "
            f"back with npu_format_cast(..., 2), and take the view of that",
        )
    return Tensor.of(array, "FRACTAL_NZ", transposed=is_turned)


def array_of(tensor: torch.Tensor) -> Array:
    """The memory of *tensor*, on the host, as an array."""
    if tensor.dtype == torch.bfloat16:
        found: Array = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return found
    if tensor.dtype == torch.bool:
        # A byte each, 0 or 1, which is how aclnn's BOOL lies in memory.
        tensor = tensor.view(torch.uint8)
    return np.asarray(tensor.numpy())


def result(output: Output) -> torch.Tensor:
    """*output* as a contiguous tensor in host memory."""
    found = _result(output)
    memory.write(found, output)
    return found


def _result(output: Output) -> torch.Tensor:
    if isinstance(output, TensorSpec):
        return shapes.contiguous(output)
    array = np.ascontiguousarray(output.numpy() if isinstance(output, Tensor) else output)
    array = array.reshape(output.shape)
    if array.dtype == BFLOAT16.numpy:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
