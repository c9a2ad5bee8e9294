"""npu_rotary_mul_backward: the gradients of npu_rotary_mul.

.. code-block:: text

    g: the gradient of npu_rotary_mul's output      s = g * r2
    rotary_mode half                                half = width / 2
    output = turned + g * r1,  turned[j] = s[j + half],  turned[j + half] = s[j] * -1
    r1_grad = sum(x * g)                            over all vectors that the line rotates
    r2_grad = sum(turned * g), turned[j] = x[j + half] * -1, turned[j + half] = x[j]

    rotary_mode interleave: the same with neighbours, 2 * j and 2 * j + 1, instead of halves

All is float32, rounded after each product and each sum, and finally to the type of self, to
nearest, ties to even. Sums add one vector after the other, from zero. r1 and r2 of float32 are cast
to a 16-bit type of self first, by separate kernels.

torch_npu requests the gradients of r1 and r2 if either is needed; without *needs_angles* the kernel
computes only that of self, and the others are not written.

Sources: ops-transformer@3a280bc posembedding/rotary_position_embedding_grad, op_kernel
rotate_half_grad.h and op_host rope_half_grad_tiling.cpp; op-plugin@517f2e7
RotaryMulBackwardKernelNpuOpApi.cpp. The kernel for interleave, rope_interleaved_grad_splits.h, was
not read: that it works like the other one, and exchanges neighbours by Gather, is assumed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops import _vocabulary as ops
from npusim.ops._torch import Result
from npusim.ops.npu_rotary_mul.check import INTERLEAVE, axes_of
from npusim.ops.npu_rotary_mul_backward.check import SUPPORT, Problem, check, tile
from npusim.ops.npu_rotary_mul_backward.kernel import build

# ---- oracle ----


def oracle(given: ops.Given) -> tuple[Array, Array, Array]:
    """The gradients of self, r1 and r2, all in the type of self."""
    dtype, width = given.self.dtype, given.self.shape[-1]
    tensors = (given.self, given.grad, given.r1, given.r2)
    x, g, cos, sin = (each.astype(dtype).astype(np.float32).reshape(-1, width) for each in tensors)
    is_interleaved = given.rotary_mode == INTERLEAVE
    axes = axes_of(given.self.shape, given.r1.shape, is_interleaved=is_interleaved)
    assert axes is not None
    of_cos, of_sin, found = np.zeros_like(cos), np.zeros_like(sin), np.empty_like(x)
    lines = np.arange(axes.lines)
    with np.errstate(all="ignore"):
        for group, outer, inner in np.ndindex(axes.groups, axes.outer.count, axes.inner.count):
            own = group * axes.lines + lines
            first = group * axes.group_step + outer * axes.outer.step + inner * axes.inner.step
            at = first + lines * axes.line_step
            found[at] = _turned(sin[own] * g[at], is_interleaved) + cos[own] * g[at]
            of_cos[own] += x[at] * g[at]
            of_sin[own] += -_turned(x[at], is_interleaved) * g[at]
    if not given.needs_angles:
        of_cos, of_sin = np.zeros_like(of_cos), np.zeros_like(of_sin)
    outputs = ((found, given.self), (of_cos, given.r1), (of_sin, given.r2))
    dx, r1, r2 = (given.rounded(each, dtype).reshape(like.shape) for each, like in outputs)
    return dx, r1, r2


def _turned(x: Array, is_interleaved: bool) -> Array:
    """The second half in place of the first one, and the negated first one in its place."""
    found = np.empty_like(x)
    half = x.shape[-1] // 2
    left, right = (
        (slice(0, None, 2), slice(1, None, 2))
        if is_interleaved
        else (slice(half), slice(half, None))
    )
    found[:, left], found[:, right] = x[:, right], -x[:, left]
    return found


# ---- torch ----


def _prologue(p: Problem, arguments: dict[str, Any]) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Let torch_npu cast r1 and r2 to the type of self."""
    dtype = p.output.dtype
    return tuple(("cast", {"x": arguments[name], "dtype": dtype}) for name in p.casts)


def _outputs(given: ops.TorchArguments, _: object) -> tuple[Result, ...]:
    return tuple((given[name].shape, given["self"].dtype) for name in ("self", "r1", "r2"))


OPERATOR = ops.Operator(
    kernel_type="RotaryPositionEmbeddingGrad",
    document=__doc__,
    support=SUPPORT,
    extras="bool needs_angles=True",
    unsimulated=ops.ATLAS_INFERENCE,
    contract=check,
    prologue=_prologue,
    tile=tile,
    build=build,
    oracle=oracle,
    torch=(
        ops.TorchFunction(
            schema="npu_rotary_mul_backward(Tensor grad, Tensor self, Tensor r1, Tensor r2, "
            "str rotary_mode='half') -> (Tensor, Tensor, Tensor)",
            aclnn=lambda _: "aclnnRotaryPositionEmbeddingGrad",
            outputs=_outputs,
            wanted={"needs_angles": ("r1", "r2")},
        ),
    ),
)
