"""Convert torch tensors to arguments of npusim, and outputs of npusim to torch tensors.

Neither direction copies: both sides see the same host memory. A tensor in FRACTAL_NZ holds its
elements in logical order, so that torch can print and copy them. Their order in the chip's memory
is computed when an operator needs it.
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
    """Convert *tensor*, in host memory, to an argument of npusim. Raises OpError if it cannot."""
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
    """A numpy array over the memory of *tensor*, which is on the host."""
    if tensor.dtype == torch.bfloat16:
        found: Array = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return found
    if tensor.dtype == torch.bool:
        # One byte each, 0 or 1, as aclnn stores BOOL.
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
