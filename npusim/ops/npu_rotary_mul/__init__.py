"""npu_rotary_mul: rotary position embedding, pairs of elements turned by an angle.

.. code-block:: text

    rotary_mode half
    y[j]         = x[j] * r1[j] + x[j + half] * -r2[j]               j < half = width / 2
    y[j + half]  = x[j + half] * r1[j + half] + x[j] * r2[j + half]

    rotary_mode interleave
    y[2 * j]     = x[2 * j] * r1[2 * j] - x[2 * j + 1] * r2[2 * j]
    y[2 * j + 1] = x[2 * j + 1] * r1[2 * j + 1] + x[2 * j] * r2[2 * j + 1]

*r1* holds cosines and *r2* sines. All is float32, each product and each sum rounded by itself, then
one rounding to the type of x, to nearest, ties to even. The halves of r1 and r2 need not be equal.

Sources: ops-transformer@c29bc10 posembedding/rotary_position_embedding, op_kernel and op_host, and
the operator's document (torch_npu-npu_rotary_mul.md). Atlas A2 and A3; on Atlas inference torch_npu
runs other kernels, and npusim refuses. r1 and r2 of float32 are cast to a 16-bit type of x
first, by separate kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops import _vocabulary as ops
from npusim.ops.npu_rotary_mul.check import SUPPORT, Problem, check, tile
from npusim.ops.npu_rotary_mul.kernel import build


def oracle(given: ops.Given) -> Array:
    """self `(..., width)` turned by the cosines r1 and the sines r2, which broadcast to it.

    Those come to the dtype of self first. Products and sum are rounded to float32 one by one, the
    sum then to the dtype of self.
    """
    vectors = given.self
    tensors = vectors, given.r1, given.r2
    with np.errstate(all="ignore"):
        x, cos, sin = (array.astype(vectors.dtype).astype(np.float32) for array in tensors)
        if given.rotary_mode == "interleave":
            turned = np.empty(x.shape, np.float32)
            turned[..., 0::2] = x[..., 1::2] * sin[..., 0::2] * np.float32(-1)
            turned[..., 1::2] = x[..., 0::2] * sin[..., 1::2]
        else:
            left, right = np.split(x, 2, axis=-1)
            sin_left, sin_right = np.split(sin, 2, axis=-1)
            turned = np.concatenate((right * -sin_left, left * sin_right), axis=-1)
        return np.asarray((turned + x * cos).astype(vectors.dtype))


def _prologue(p: Problem, arguments: dict[str, Any]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """torch_npu casts r1 and r2 to the type of x (op-plugin@517f2e7,
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
)

OPERATOR = ops.Operator(
    kernel_type="RotaryPositionEmbedding",
    document=__doc__,
    support=SUPPORT,
    elsewhere="run npu_apply_rotary_pos_emb, or on Atlas A2 or A3",
    unsimulated=ops.ATLAS_INFERENCE,
    contract=check,
    prologue=_prologue,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(TORCH,),
)
