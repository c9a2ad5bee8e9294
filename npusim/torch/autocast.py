"""`torch.autocast("npu")`: which operations run in which precision.

The lists are those of torch for accelerators (pytorch, aten/src/ATen/autocast_mode.h); it is
inferred that torch_npu uses the same. Operations that only promote are left to torch's promotion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["KERNELS"]

_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

LOWER = """
    _convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum
    mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot lstm_cell gru_cell
    rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention
"""
"""Operations that run in the type of the autocast, float16 or bfloat16."""

SINGLE = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm
    group_norm cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
    hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
    multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
    binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
"""
"""Operations that run in float32."""

SINGLE_RESULT = """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum sum sum.dim_IntList
"""
"""Operations that return float32, unless the caller gives a type."""


def _cast(value: object, dtype: torch.dtype) -> Any:
    """*value* with floating-point npu tensors, other than float64, cast to *dtype*."""
    if isinstance(value, torch.Tensor):
        eligible = value.is_npu and value.is_floating_point() and value.dtype != torch.float64
        return value.to(dtype) if eligible else value
    if isinstance(value, list | tuple):
        return type(value)(_cast(part, dtype) for part in value)
    return value


def _in_precision(
    op: torch._ops.OpOverload, precision: Callable[[], torch.dtype]
) -> Callable[..., object]:
    def kernel(*args: object, **kwargs: object) -> object:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            dtype = precision()
            named = {key: _cast(value, dtype) for key, value in kwargs.items()}
            return op(*_cast(args, dtype), **named)

    return kernel


def _with_result(op: torch._ops.OpOverload) -> Callable[..., object]:
    place = [argument.name for argument in op._schema.arguments].index("dtype")

    def kernel(*args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> object:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            # The dispatcher passes defaults by position if the schema allows it.
            dtype = args[place] if len(args) > place else dtype
            if args[0].is_floating_point() and dtype is None:
                dtype = torch.float32
            return op(*args[:place], dtype=dtype, **kwargs)

    return kernel


def _of_autocast() -> torch.dtype:
    found: torch.dtype = torch.get_autocast_dtype("npu")
    return found


def _single() -> torch.dtype:
    return torch.float32


def _named(name: str) -> torch._ops.OpOverload:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


KERNELS: dict[str, Callable[..., object]] = {
    **{name: _in_precision(_named(name), _of_autocast) for name in LOWER.split()},
    **{name: _in_precision(_named(name), _single) for name in SINGLE.split()},
    **{name: _with_result(_named(name)) for name in SINGLE_RESULT.split()},
}
"""Operation of aten -> its kernel while autocast is on."""
