"""What npu_dynamic_quant accepts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from npusim.data.dtypes import BFLOAT16, FLOAT16
from npusim.data.errors import Code
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops._protocol import present

__all__ = ["Problem", "check"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call: `x` is `(rows, columns)` to the kernel, `smooth_scales` `(columns,)`."""

    x: Operand
    smooth_scales: Operand | None

    @property
    def rows(self) -> int:
        return prod(self.x.shape[:-1])

    @property
    def columns(self) -> int:
        return self.x.shape[-1]


def check(
    spec: DeviceSpec,
    x: Any,
    *,
    smooth_scales: Any = None,
    group_index: Any = None,
    dst_type: Any = None,
) -> Problem:
    """Hold a call against the contract of this product line; raises OpError."""
    contract = Contract("npu_dynamic_quant", spec)
    contract.require(
        spec.series != "Atlas inference",
        f"the chip must be of Atlas A2 or Atlas A3, not {spec.name} of {spec.series}, for which "
        f"torch_npu does not offer it; use npu_quantize with scales of your own",
        Code.UNSUPPORTED,
    )
    tokens = contract.operand("x", x, (FLOAT16, BFLOAT16))
    smooth = contract.optional("smooth_scales", smooth_scales, (tokens.element,), " like x")
    contract.require(
        len(tokens.shape) >= 2,
        f"x must have at least two dimensions, not shape {tokens.shape}; reshape it",
    )
    columns = tokens.shape[-1]
    contract.require(
        columns > 0 or prod(tokens.shape[:-1]) == 0,
        f"the last dimension of x must not be empty where x has rows, not shape {tokens.shape}; "
        f"drop the rows",
    )
    contract.require(
        group_index is None,
        "group_index must be None, not given; the kernels with smooth scales for each expert are "
        "not simulated",
        Code.UNSUPPORTED,
    )
    if smooth is not None:
        contract.require(
            smooth.shape == (columns,),
            f"smooth_scales must have shape ({columns},) like the last dimension of x, not "
            f"{smooth.shape}; pass a scale for each column",
        )
    if dst_type is not None:
        contract.choice("dst_type", dst_type, ("int8", "quint4x2"))
        contract.require(
            dst_type == "int8",
            "dst_type must be int8, not 'quint4x2'; the kernels that pack int4 are not simulated",
            Code.UNSUPPORTED,
        )
    outputs = {
        "output": TensorSpec(tokens.shape, "int8"),
        "scale": TensorSpec(tokens.shape[:-1], "float32"),
    }
    return Problem(inputs=present(tokens, smooth), outputs=outputs, x=tokens, smooth_scales=smooth)
