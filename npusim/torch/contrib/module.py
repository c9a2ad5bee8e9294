"""Layers whose weights are integers: `torch_npu.contrib.module`.

Parameters are created empty, with the shapes and types of torch_npu, so that `load_state_dict`
accepts the same data as on a card (Ascend/pytorch 2.14.0, torch_npu/contrib/module). Most of them
are float32, even if the operator requires integers: loading converts the data to float32, so users
assign their own through `.data =`. The layouts of parameters are from the document,
LinearWeightQuant.md.
"""

from __future__ import annotations

from typing import NoReturn
from warnings import warn

import torch
from torch.nn.modules.utils import _pair

from npusim.data.errors import Code, OpError, callers_level
from npusim.torch.contrib.layers import (
    ChannelShuffle,
    LabelSmoothingCrossEntropy,
    Mish,
    SiLU,
    Swish,
)
from npusim.torch.errors import as_on_card
from npusim.torch.refusals import others_of

__all__ = [
    "ChannelShuffle",
    "DropoutWithByteMask",
    "LabelSmoothingCrossEntropy",
    "LinearA8W8Quant",
    "LinearQuant",
    "LinearWeightQuant",
    "Mish",
    "NpuDropPath",
    "QuantConv2d",
    "SiLU",
    "Swish",
]


def _parameter(*shape: int, **options: object) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty(shape, **options), requires_grad=False)


def _turned(parameter: torch.Tensor | None) -> torch.Tensor | None:
    """A view `(k, n)` of `(n, k)`; a parameter with one dimension is unchanged."""
    if parameter is None or parameter.dim() < 2:
        return parameter
    return parameter.transpose(-1, -2)


# ---- float times integers ----


class LinearWeightQuant(torch.nn.Module):
    """x `(m, in_features)` times a weight of int8 or packed int4, `(out_features, in_features)`.

    Parameters that are not requested are None; scales, offsets and bias are `(out_features,)` for
    any *antiquant_group_size*. For any *dtype*, all are float32 until something else is assigned:
    `layer.weight.data = ...`.

    The document allows weights in FRACTAL_NZ only in graph mode, after
    `torchair.experimental.inference.use_internal_format_weight`. Outside of a graph they are
    accepted with a :class:`npusim.DocumentWarning`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        antiquant_offset: bool = False,
        quant_scale: bool = False,
        quant_offset: bool = False,
        antiquant_group_size: int = 0,
        inner_precise: int = 0,
        weight_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.dtype = in_features, out_features, dtype
        self.weight = _parameter(out_features, in_features, device=device)
        self.antiquant_scale = _parameter(out_features, device=device)
        for name, is_wanted in (
            ("antiquant_offset", antiquant_offset),
            ("quant_scale", quant_scale),
            ("quant_offset", quant_offset),
            ("bias", bias),
        ):
            made = _parameter(out_features, device=device) if is_wanted else None
            self.register_parameter(name, made)
        self.antiquant_group_size = antiquant_group_size
        self.inner_precise = inner_precise
        self.weight_dtype = weight_dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(m, out_features)`: int8 with a quant_scale, else in the type of x."""
        self._require_assigned(x)
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

    def _require_assigned(self, x: torch.Tensor) -> None:
        """Raise an error for parameters that are still float32 if the operator rejects float32."""
        wanted = {"weight": "torch.int8 or torch.int32"}
        if x.dtype in (torch.float16, torch.bfloat16):
            wanted |= dict.fromkeys(("antiquant_scale", "antiquant_offset"), f"{x.dtype} like x")
        if x.dtype == torch.float16:
            wanted["bias"] = f"{x.dtype} like x"
        for name, kinds in wanted.items():
            parameter = self._parameters[name]
            if parameter is not None and parameter.dtype == torch.float32:
                self._refuse(name, kinds)

    def _refuse(self, name: str, kinds: str) -> NoReturn:
        version = 3 if self.inner_precise == 1 else 2
        raise as_on_card(
            OpError(
                Code.INVALID_PARAMETER,
                f"LinearWeightQuant: {name} must be {kinds}, not torch.float32, in which it is "
                f"made and in which load_state_dict leaves it; assign layer.{name}.data = ...",
            ),
            "npu_weight_quant_batchmatmul",
            f"aclnnWeightQuantBatchMatmulV{version}",
        )


# ---- integers times integers ----


def _make_parameters(
    layer: torch.nn.Module, bias: bool, offset: bool, pertoken_scale: bool
) -> None:
    """Create those of LinearQuant and LinearA8W8Quant, on the host for any requested device."""
    n, k = layer.out_features, layer.in_features
    layer.weight, layer.scale = _parameter(n, k), _parameter(n)
    layer.register_parameter("offset", _parameter(n) if offset else None)
    layer.register_parameter("pertoken_scale", _parameter(n) if pertoken_scale else None)
    layer.register_parameter("bias", _parameter(n, dtype=torch.int32) if bias else None)


def _product(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """*x* times the layer's weight. A separate launch first packs float32 scales for the fixpipe.

    Raises ValueError unless both are int8, or both int4 packed in int32.
    """
    kinds = x.dtype, layer.weight.dtype
    if kinds not in ((torch.int8, torch.int8), (torch.int32, torch.int32)):
        raise ValueError(
            f"{type(layer).__name__}: x and weight must both be torch.int8 or both torch.int32, "
            f"not {kinds[0]} and {kinds[1]}; assign layer.weight.data, which is made float32 and "
            f"which load_state_dict leaves so"
            if kinds[1] == torch.float32
            else f"{type(layer).__name__}: x and weight must both be torch.int8 or both "
            f"torch.int32, not {kinds[0]} and {kinds[1]}; quantise x like the weight"
        )
    scale, target = layer.scale, layer.output_dtype
    by_vector = layer.pertoken_scale is not None or target in (torch.bfloat16, torch.int32)
    if scale.dtype == torch.float32 and not by_vector:
        scale = torch.ops.npu.npu_trans_quant_param(scale, layer.offset)
    return torch.ops.npu.npu_quant_matmul(
        x,
        _turned(layer.weight),
        scale,
        offset=layer.offset,
        pertoken_scale=layer.pertoken_scale,
        bias=layer.bias,
        output_dtype=target,
    )


class LinearQuant(torch.nn.Module):
    """x `(..., in_features)` times a weight `(out_features, in_features)`, both int8.

    Both may also be int32 that packs eight int4 along in_features. Parameters are made on the host,
    weight, scale, offset and pertoken_scale as float32, bias as int32.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        offset: bool = False,
        pertoken_scale: bool = False,
        device: torch.device | str | None = None,  # noqa: ARG002
        dtype: torch.dtype | None = None,
        output_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.dtype = in_features, out_features, dtype
        self.output_dtype = output_dtype
        _make_parameters(self, bias, offset, pertoken_scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(..., out_features)` of *output_dtype*, int8 by default."""
        return _product(self, x)


class LinearA8W8Quant(torch.nn.Module):
    """LinearQuant under its older name, which torch_npu will remove and which warns with a
    FutureWarning. output_dtype is None, int8, float16 or bfloat16.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        offset: bool = False,
        pertoken_scale: bool = False,
        device: torch.device | str | None = None,  # noqa: ARG002
        dtype: torch.dtype | None = None,
        output_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        warn(
            "LinearA8W8Quant: torch_npu is going to drop this name; use LinearQuant",
            FutureWarning,
            stacklevel=callers_level(),
        )
        self.in_features, self.out_features, self.dtype = in_features, out_features, dtype
        self.output_dtype = output_dtype
        _make_parameters(self, bias, offset, pertoken_scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`(..., out_features)` of *output_dtype*, int8 by default."""
        if self.output_dtype not in (None, torch.int8, torch.float16, torch.bfloat16):
            raise ValueError(
                f"LinearA8W8Quant: output_dtype must be torch.int8, torch.float16 or "
                f"torch.bfloat16, not {self.output_dtype}; use LinearQuant for others"
            )
        return _product(self, x)


# ---- convolution ----


class QuantConv2d(torch.nn.Module):
    """A convolution of int8 whose operator, npu_quant_conv2d, is not simulated: forward raises.

    Parameters are created as in torch_npu, so that models that contain it can be built and
    loaded: weight `(out_channels, in_channels / groups, *kernel_size)` and bias `(out_channels,)`
    float32, scale `(out_channels,)` int64.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        output_dtype: torch.dtype,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        offset: bool = False,
        offset_x: int = 0,
        round_mode: str = "rint",
        input_dtype: torch.dtype | None = None,
        weight_dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,  # noqa: ARG002
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if offset:
            raise ValueError("QuantConv2d: offset must be False, not True; leave it out")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = _pair(kernel_size), _pair(stride)
        self.padding, self.dilation = _pair(padding), _pair(dilation)
        self.offset_x, self.round_mode, self.dtype = offset_x, round_mode, dtype
        self.input_dtype, self.weight_dtype = input_dtype, weight_dtype
        self.output_dtype = output_dtype
        self.weight = _parameter(out_channels, in_channels // groups, *self.kernel_size)
        self.scale = _parameter(out_channels, dtype=torch.int64)
        self.register_parameter("bias", _parameter(out_channels) if bias else None)
        self.register_parameter("offset", None)

    def forward(self, _: torch.Tensor) -> NoReturn:
        """Raises NotImplementedError."""
        raise NotImplementedError(
            "QuantConv2d: its operator, npu_quant_conv2d, must be modelled to run it, but is not; "
            "use torch.nn.functional.conv2d with the weight turned back into floats"
        )


__getattr__ = others_of("torch_npu.contrib.module")


class DropoutWithByteMask(torch.nn.Module):
    """Dropout; on a card its mask is stored as bytes."""

    def __init__(self, p: float = 0.5, inplace: bool = False, max_seed: int = 2**10 - 1) -> None:
        super().__init__()
        self.p, self.inplace, self.max_seed = p, inplace, max_seed

    def forward(self, input1: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.ops.npu.dropout_with_byte_mask(input1, self.p, self.training)
        return found


class NpuDropPath(torch.nn.Module):
    """In training, drops whole rows of the first axis with probability *drop_prob*, and scales up
    the others to compensate."""

    def __init__(self, drop_prob: float | None = None) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.drop_prob or not self.training:
            return x
        share = 1 - self.drop_prob
        drawn = torch.rand((x.shape[0], *(1,) * (x.dim() - 1)), dtype=x.dtype, device=x.device)
        return x / share * (drawn + share).floor()
