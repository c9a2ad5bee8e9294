"""npu_rotary_mul: rotary position embedding of one tensor.

.. code-block:: text

    rotary_mode half
    y[j]         = x[j] * r1[j] + x[j + half] * -r2[j]               j < half = width / 2
    y[j + half]  = x[j + half] * r1[j + half] + x[j] * r2[j + half]

    rotary_mode interleave
    y[2 * j]     = x[2 * j] * r1[2 * j] - x[2 * j + 1] * r2[2 * j]
    y[2 * j + 1] = x[2 * j + 1] * r1[2 * j + 1] + x[2 * j] * r2[2 * j + 1]

*r1* holds cosines and *r2* sines. All is float32, rounded after each product and each sum, and
finally to the type of x, to nearest, ties to even. The halves of r1 and r2 need not be equal. r1
and r2 of float32 are cast to a 16-bit type of x first, by separate kernels.

On Atlas inference torch_npu runs another kernel, RotaryMul, for halves of four-dimensional tensors
whose width is a multiple of 64: float16 is calculated in float16 there, rounded for the negative
sine, each product and the sum, and a step with a NaN operand gives 0 (assumed).

Sources: ops-transformer@c29bc10 posembedding/rotary_position_embedding, op_kernel and op_host, and
the operator's document (torch_npu-npu_rotary_mul.md). For Atlas inference: op-plugin@517f2e7
op_plugin/ops/aclops/RotaryMulKernelNpu.cpp, and the kernel of CANN 8.1.RC1 as published in
leideng/CANN-8.1.RC1@551ed27 (tbe/impl/dynamic/rotary_mul.py), whose tiling is closed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.data.dtypes import Array
from npusim.devices.schema import DeviceSpec
from npusim.ops import _vocabulary as ops
from npusim.ops.npu_rotary_mul.check import SUPPORT, Problem, check, tile
from npusim.ops.npu_rotary_mul.kernel import build


def oracle(given: ops.Given) -> Array:
    """self `(..., width)` rotated by the cosines r1 and the sines r2, which broadcast to it.

    The latter are cast to the dtype of self first. Products and sum are rounded to float32, the
    sum then to the dtype of self; on Atlas inference each of them to that.
    """
    vectors = given.self
    tensors = vectors, given.r1, given.r2
    with np.errstate(all="ignore"):
        x, cos, sin = (array.astype(vectors.dtype).astype(np.float32) for array in tensors)
        if given.spec is not None and given.spec.series in ops.ATLAS_INFERENCE:
            return _in_its_type(given, x, cos, sin)
        if given.rotary_mode == "interleave":
            turned = np.empty(x.shape, np.float32)
            turned[..., 0::2] = x[..., 1::2] * sin[..., 0::2] * np.float32(-1)
            turned[..., 1::2] = x[..., 0::2] * sin[..., 1::2]
        else:
            left, right = np.split(x, 2, axis=-1)
            sin_left, sin_right = np.split(sin, 2, axis=-1)
            turned = np.concatenate((right * -sin_left, left * sin_right), axis=-1)
        return np.asarray((turned + x * cos).astype(vectors.dtype))


def _in_its_type(given: ops.Given, x: Array, cos: Array, sin: Array) -> Array:
    """Rotate halves, rounding each step to the type of self."""

    def rounded(values: Array) -> Array:
        return given.rounded(values, given.self.dtype).astype(np.float32)

    half = x.shape[-1] // 2
    signed = np.concatenate((rounded(-sin[..., :half]), sin[..., half:]), axis=-1)
    total = rounded(np.roll(x, half, axis=-1) * signed) + rounded(x * cos)
    return given.rounded(total, given.self.dtype)


def _prologue(p: Problem, arguments: dict[str, Any]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Let torch_npu cast r1 and r2 to the type of x (op-plugin@517f2e7,
    RotaryMulKernelNpuOpApi.cpp)."""
    if not p.casts:
        return ()
    dtype = p.x.spec.dtype
    return tuple(("cast", {"x": arguments[name], "dtype": dtype}) for name in ("r1", "r2"))


TORCH = ops.TorchFunction(
    schema="npu_rotary_mul(Tensor self, Tensor r1, Tensor r2, str rotary_mode='half', "
    "Tensor? rotate=None) -> Tensor",
    aclnn=lambda _: "aclnnRotaryPositionEmbedding",
    outputs=lambda given, _: ((given["self"].shape, given["self"].dtype),),
    absent=("rotate",),
    gradient=ops.Gradient("self, r1, r2: npu_rotary_mul_backward(grad, self, r1, r2, rotary_mode)"),
)


def _kernel_type(spec: DeviceSpec, _: Problem, __: object) -> str:
    is_coupled = spec.series in ops.ATLAS_INFERENCE
    return "RotaryMul" if is_coupled else "RotaryPositionEmbedding"


OPERATOR = ops.Operator(
    kernel_type=_kernel_type,
    document=__doc__,
    support=SUPPORT,
    contract=check,
    prologue=_prologue,
    tile=tile,
    build=build,
    oracle=oracle,
    at_once=ops.at_once_by(oracle),
    torch=(TORCH,),
)
