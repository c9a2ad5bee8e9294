"""Quantised products, norms and caches whose fused kernels are not simulated.

Sources: op-plugin@517f2e7, the documents torch_npu-npu_quant_matmul_gelu.md,
torch_npu-npu_quant_matmul_reduce_sum.md, torch_npu-npu_grouped_matmul_swiglu_quant_v2.md,
torch_npu-npu_rms_norm_quant.md, torch_npu-npu_quant_scatter.md and torch_npu-npu_rotate_quant.md;
ops-nn@e5c3fa932 quant/dequant_bias/README.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from npusim.torch import formats
from npusim.torch.composed.activations import gelu
from npusim.torch.composed.caches import scatter_update_
from npusim.torch.errors import require_option
from npusim.torch.schemas import dtype_name

__all__ = [
    "dequant_bias",
    "grouped_matmul_swiglu_quant_v2",
    "kronecker_quant",
    "quant_matmul_gelu",
    "quant_matmul_reduce_sum",
    "quant_scatter",
    "quant_scatter_",
    "rms_norm_quant",
    "rotate_quant",
]

INT8 = -128, 127
FRACTAL_DIMENSIONS = 5
"""Dimensions of a weight whose shape spells out the order of its fractals."""
INT4, INT4_LARGEST = (-8, 7), 7


def quant_matmul_gelu(
    x1: torch.Tensor,
    x2: torch.Tensor,
    x1_scale: torch.Tensor,
    x2_scale: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    approximate: str | None = "gelu_erf",
) -> torch.Tensor:
    """npu_quant_matmul, then gelu."""
    is_wide = torch.bfloat16 in (x2_scale.dtype, None if bias is None else bias.dtype)
    found = torch.ops.npu.npu_quant_matmul(
        x1,
        x2,
        x2_scale,
        pertoken_scale=x1_scale,
        bias=bias,
        output_dtype=torch.bfloat16 if is_wide else torch.float16,
    )
    form = "tanh" if approximate == "gelu_tanh" else "none"
    return gelu(found.float(), form).to(found.dtype)


def quant_matmul_reduce_sum(
    x1: torch.Tensor,
    x2: torch.Tensor,
    *,
    x1_scale: torch.Tensor,
    x2_scale: torch.Tensor,
) -> torch.Tensor:
    """npu_quant_matmul of each batch in bfloat16, then the sum over all batches."""
    products = [
        torch.ops.npu.npu_quant_matmul(
            rows, columns, x2_scale, pertoken_scale=scale, output_dtype=torch.bfloat16
        )
        for rows, columns, scale in zip(x1, x2, x1_scale, strict=True)
    ]
    return torch.stack(products).float().sum(0).to(torch.bfloat16)


def grouped_matmul_swiglu_quant_v2(
    x: torch.Tensor,
    weight: Sequence[torch.Tensor],
    weight_scale: Sequence[torch.Tensor],
    x_scale: torch.Tensor,
    group_list: torch.Tensor,
    *,
    smooth_scale: torch.Tensor | None = None,
    weight_assist_matrix: Sequence[torch.Tensor] | None = None,
    group_list_type: int | None = 0,
    **given: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_grouped_matmul_swiglu_quant with one weight; *group_list* may hold counts.

    If x is int4 as well, products, activation and quantisation are torch operations.
    """
    if len(weight) != 1 or given.get("bias") is not None:
        raise NotImplementedError(
            "npu_grouped_matmul_swiglu_quant_v2: it must have one weight and no bias, for "
            "npu_grouped_matmul_swiglu_quant stands for it; call npu_grouped_matmul, npu_swiglu "
            "and npu_dynamic_quant"
        )
    ends = group_list.cumsum(0) if group_list_type == 1 else group_list
    whole, scales = formats.as_cast(weight[0]), weight_scale[0]
    if whole.dim() == FRACTAL_DIMENSIONS and formats.get(whole) == formats.ND:
        # The axes of the weight are (e, n / c0, k / 16, 16, c0).
        whole = whole.permute(0, 2, 3, 1, 4).flatten(1, 2).flatten(2)
    if x.dtype == torch.int32:
        return _of_int4(x, whole, scales, x_scale, ends, smooth_scale)
    if formats.get(whole) != formats.NZ:
        whole = torch.ops.npu.npu_format_cast(whole.contiguous(), formats.NZ)
    assist = None if weight_assist_matrix is None else weight_assist_matrix[0]
    output, scale, _ = torch.ops.npu.npu_grouped_matmul_swiglu_quant(
        x, whole, ends, scales, x_scale, bias=assist
    )
    return output, scale


def _of_int4(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    x_scale: torch.Tensor,
    ends: torch.Tensor,
    smooth_scale: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and weights with eight int4 in an int32; rows outside all groups are zero."""
    rows, columns, factors = _levels(x), _levels(weight), weight_scale
    if factors.dtype == torch.int64:
        # Results of npu_trans_quant_param are 64-bit words with float32 in the lower half.
        factors = factors.contiguous().view(torch.float32)[..., ::2]
    output = x.new_zeros((x.shape[0], columns.shape[-1] // 2), dtype=torch.int8)
    scale = x_scale.new_zeros(x.shape[0])
    first = 0
    for expert, last in enumerate(ends.tolist()):
        here = slice(first, last)
        values = rows[here] @ columns[expert] * factors[expert] * x_scale[here, None]
        a, b = values.chunk(2, -1)
        gated = torch.nn.functional.silu(a) * b
        if smooth_scale is not None:
            gated = gated * smooth_scale[expert]
        scale[here] = gated.abs().amax(-1) / INT8[1]
        output[here] = (gated / scale[here, None]).round().clamp(*INT8).to(torch.int8)
        first = last
    return output, scale


def _levels(packed: torch.Tensor) -> torch.Tensor:
    """Unpack int32 `(..., n)` to `(..., 8 n)` int4 levels as float32, lowest bits first."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    digits = (packed[..., None] >> shifts) & 15
    return (((digits + 8) & 15) - 8).flatten(-2).float()


def rms_norm_quant(
    x: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor,
    epsilon: float = 1e-6,
    *,
    dst_dtype: int | None = None,
) -> torch.Tensor:
    """npu_rms_norm with a bias, divided by a scale and quantised to int8, or to packed int4."""
    kind = dtype_name(dst_dtype)
    require_option("npu_rms_norm_quant", "dst_dtype", kind, "quint4x2", "int8", None)
    normed = torch.ops.npu.npu_rms_norm(x, gamma, epsilon)[0].float()
    levels = ((normed + beta.float()) / scale.float() + offset.float()).round()
    return _packed(levels) if kind == "quint4x2" else levels.clamp(*INT8).to(torch.int8)


def _packed(levels: torch.Tensor) -> torch.Tensor:
    """*levels* as int4, eight of a row in an int32."""
    rows = levels.clamp(*INT4).to(torch.int32).reshape(-1, levels.shape[-1])
    packed = torch.ops.npu.npu_convert_weight_to_int4pack(rows)
    return packed.reshape(*levels.shape[:-1], -1)


def quant_scatter(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """:func:`quant_scatter_` into a copy of *input*."""
    return quant_scatter_(input.clone(), *args, **kwargs)


def quant_scatter_(
    input: torch.Tensor,
    indices: torch.Tensor,
    updates: torch.Tensor,
    quant_scales: torch.Tensor,
    quant_zero_points: torch.Tensor | None = None,
    axis: int = -2,
    quant_axis: int = -1,
    reduce: str = "update",
    dst_type: int | None = None,
    round_mode: str | None = "rint",
) -> torch.Tensor:
    """scatter_update_ of *updates* quantised to int8 by npu_quantize."""
    function = "npu_quant_scatter"
    require_option(function, "reduce", reduce, "update")
    require_option(function, "dst_type", dtype_name(dst_type), "int8", None)
    require_option(function, "round_mode", round_mode, None, "rint")
    offsets = None if quant_zero_points is None else quant_zero_points.reshape(-1)
    scales = quant_scales.reshape(-1)
    levels = torch.ops.npu.npu_quantize(updates, scales, offsets, torch.qint8, quant_axis, True)
    return scatter_update_(input, indices, levels, axis)


def kronecker_quant(
    x: torch.Tensor,
    kronecker_p1: torch.Tensor,
    kronecker_p2: torch.Tensor,
    clip_ratio: float | None = None,
    dst_dtype: int | None = None,
    dst_type_max: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`p1 @ x @ p2` of each token as int4, eight packed in an int32, and the scale of each token.

    Products are rounded to the type of x (ops-nn@e5c3fa9 quant/flat_quant).
    """
    require_option("npu_kronecker_quant", "dst_dtype", dtype_name(dst_dtype), "int32", None)
    require_option("npu_kronecker_quant", "dst_type_max", dst_type_max, 0, None)
    turned = torch.matmul(kronecker_p1, torch.matmul(x, kronecker_p2))
    largest = turned.flatten(1).abs().amax(-1).float()
    scale = largest / (INT4_LARGEST * (1.0 if clip_ratio is None else clip_ratio))
    return _packed((turned.float() / scale[:, None, None]).round()), scale


def dequant_bias(
    x: torch.Tensor,
    weight_scale: torch.Tensor,
    activation_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    output_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """int32 products `(rows, columns)` times the scales of columns and of rows, in float32. A bias
    of int32 is added before the scales, one of another type after them."""
    if x.dtype != torch.int32:
        raise RuntimeError(
            f"npu_dequant_bias: x must be torch.int32, not {x.dtype}; pass an integer product"
        )
    is_before = bias is not None and bias.dtype == torch.int32
    levels = x + bias if is_before else x
    found = levels.float() * weight_scale.float()
    if activation_scale is not None:
        found = found * activation_scale.float()[:, None]
    if bias is not None and not is_before:
        found = found + bias.float()
    return found.to(output_dtype or torch.float16)


def rotate_quant(
    x: torch.Tensor,
    rotation: torch.Tensor,
    *,
    dst_dtype: int | torch.dtype | None = None,
    axis: int = -1,
    round_mode: str = "rint",
    **options: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each part of a row of *x*, as long as *rotation*, times it, and then npu_dynamic_quant."""
    function = "npu_rotate_quant"
    require_option(function, "axis", axis, 1, -1)
    require_option(function, "round_mode", round_mode, "rint")
    for name, given in options.items():
        simulated = {"scale_alg": 0, "dst_type_max": 0.0, "transpose_y": False}.get(name)
        require_option(function, name, given, simulated)
    turned = torch.matmul(x.reshape(-1, rotation.shape[0]), rotation).reshape(x.shape)
    given = {} if dst_dtype is None else {"dst_type": dst_dtype}
    found: tuple[torch.Tensor, torch.Tensor] = torch.ops.npu.npu_dynamic_quant(turned, **given)
    return found
