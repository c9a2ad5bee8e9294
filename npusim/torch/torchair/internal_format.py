"""`torchair.experimental.inference`: weights in the layout that the cube reads."""

from __future__ import annotations

import torch

from npusim.torch import card
from npusim.torch.contrib.module import LinearWeightQuant
from npusim.torch.formats import NZ

__all__ = ["use_internal_format_weight"]

CAST_ON = ("Ascend310P", "Ascend910B")
"""Chips for which it casts weights, by torch_npu's device name (torchair, experimental/inference).
"""


def use_internal_format_weight(model: torch.nn.Module) -> None:
    """Prepare every LinearWeightQuant in *model*, in place.

    A quant_scale with its offset is converted by npu_trans_quant_param on every chip; the weight is
    cast to FRACTAL_NZ on Atlas inference and A2. Raises OpError if one of the operators does.
    """
    for layer in model.modules():
        if not isinstance(layer, LinearWeightQuant):
            continue
        if layer.quant_scale is not None:
            offset = None if layer.quant_offset is None else layer.quant_offset.data
            packed = torch.ops.npu.npu_trans_quant_param(layer.quant_scale.data, offset)
            layer.quant_scale.data = packed
        if card.name().startswith(CAST_ON):
            layer.weight.data = torch.ops.npu.npu_format_cast(layer.weight.data, NZ)
