"""`torch_npu.X` where it takes more than `torch.ops.npu.X`: what its documents show.

torch_npu's documents call the first parameter of npu_quantize `input`, its schema `self`; the first
edition of npu_trans_quant_param's document passes offset and bias of npu_quant_matmul by position,
where today's schema wants names. Both ways work here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["FUNCTIONS"]


def npu_quantize(
    input: Any,
    scales: Any,
    zero_points: Any,
    dtype: Any,
    axis: int = 1,
    div_mode: bool = True,
) -> Any:
    """See :mod:`npusim.ops.npu_quantize`."""
    return torch.ops.npu.npu_quantize(input, scales, zero_points, dtype, axis, div_mode)


def npu_quant_matmul(
    x1: Any, x2: Any, scale: Any, offset: Any = None, bias: Any = None, **named: Any
) -> Any:
    """See :mod:`npusim.ops.npu_quant_matmul`."""
    return torch.ops.npu.npu_quant_matmul(x1, x2, scale, offset=offset, bias=bias, **named)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "npu_quantize": npu_quantize,
    "npu_quant_matmul": npu_quant_matmul,
}
"""Name in torch_npu -> function; other operators are taken from `torch.ops.npu`."""
