"""Linear layers whose weights are integers: `torch_npu.contrib.module`.

Parameters are made empty and of the type that torch_npu makes them; users assign their own through
`.data =`. What LinearWeightQuant takes, and how its parameters lie, is from its document,
LinearWeightQuant.md; shapes of empty parameters, and LinearQuant, are
assumed by analogy: neither was compared with Ascend/pytorch.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from npusim.torch.functions import npu_quant_matmul

__all__ = ["LinearQuant", "LinearWeightQuant"]


def _parameter(*shape: int, **options: Any) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty(shape, **options), requires_grad=False)


def _turned(parameter: torch.Tensor | None) -> torch.Tensor | None:
    """`(n, k)` seen as `(k, n)`; what has one dimension stays."""
    if parameter is None or parameter.dim() < 2:
        return parameter
    return parameter.transpose(-1, -2)


class LinearWeightQuant(torch.nn.Module):
    """x `(m, in_features)` times a weight of int8 or packed int4, `(out_features, in_features)`.

    Parameters that are not asked for are None. Whatever *dtype* says, they are float32 until
    something else is assigned.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        antiquant_offset: bool = False,
        quant_scale: bool = False,
        quant_offset: bool = False,
        antiquant_group_size: int = 0,
        inner_precise: int = 0,
        weight_dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.dtype = in_features, out_features, dtype
        groups = math.ceil(in_features / antiquant_group_size) if antiquant_group_size else 1
        scales = (out_features, groups) if antiquant_group_size else (out_features,)
        self.weight = _parameter(out_features, in_features, device=device)
        self.antiquant_scale = _parameter(*scales, device=device)
        self.antiquant_offset = _parameter(*scales, device=device) if antiquant_offset else None
        self.quant_scale = _parameter(out_features, device=device) if quant_scale else None
        self.quant_offset = _parameter(out_features, device=device) if quant_offset else None
        self.bias = _parameter(out_features, device=device) if bias else None
        self.antiquant_group_size = antiquant_group_size
        self.inner_precise = inner_precise
        self.weight_dtype = weight_dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(m, out_features)`: int8 with a quant_scale, else of x's type."""
        return torch.ops.npu.npu_weight_quant_batchmatmul(
            x,
            _turned(self.weight),
            _turned(self.antiquant_scale),
            _turned(self.antiquant_offset),
            self.quant_scale,
            self.quant_offset,
            self.bias,
            self.antiquant_group_size,
            self.inner_precise,
            self.weight_dtype,
        )


class LinearQuant(torch.nn.Module):
    """int8 x `(..., in_features)` times an int8 weight `(out_features, in_features)`."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        offset: bool = False,
        pertoken_scale: bool = False,
        device: Any = None,
        dtype: Any = None,
        output_dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.dtype = in_features, out_features, dtype
        self.output_dtype = output_dtype
        self.weight = _parameter(out_features, in_features, dtype=torch.int8, device=device)
        self.scale = _parameter(out_features, device=device)
        self.offset = _parameter(out_features, device=device) if offset else None
        self.pertoken_scale = _parameter(out_features, device=device) if pertoken_scale else None
        self.bias = _parameter(out_features, dtype=torch.int32, device=device) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(..., out_features)` of *output_dtype*, int8 by default."""
        return npu_quant_matmul(
            x,
            _turned(self.weight),
            self.scale,
            self.offset,
            self.bias,
            pertoken_scale=self.pertoken_scale,
            output_dtype=self.output_dtype,
        )
