"""npu_swiglu_backward: tiles, values, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from op_calls import BF16, assert_as_reference

from npusim import OpError, devices, ops, run
from npusim.data.tensor import TensorSpec

OP, A2 = "npu_swiglu_backward", "ascend910b2"


@pytest.mark.parametrize("kind", [np.float32, np.float16, BF16])
@pytest.mark.parametrize(
    ("shape", "dim"), [((41, 4000), -1), ((7, 130), 1), ((3, 2, 6), 1), ((96, 5), 0)]
)
def test_a_tiled_run_equals_the_reference(shape: tuple[int, ...], dim: int, kind: Any) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(0, 3, shape).astype(kind)
    grad = np.split(rng.normal(0, 3, shape), 2, axis=dim)[0].astype(kind)
    assert_as_reference(OP, grad, x, dim, device=A2)


def test_atlas_inference(rng: np.random.Generator) -> None:
    x, grad = (rng.normal(size=(4, width)).astype(np.float16) for width in (20_480, 10_240))
    assert_as_reference(OP, grad, x, device="ascend310p3")


@pytest.mark.parametrize("kind", [np.float32, np.float16, BF16])
def test_it_is_near_the_exact_gradient(kind: Any) -> None:
    rng = np.random.default_rng(5)
    x, grad = (rng.normal(0, 3, (20, width)).astype(kind) for width in (300, 150))
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    g, sigmoid = grad.astype(np.float64), 1 / (1 + np.exp(-a))
    exact = np.concatenate([g * b * sigmoid * (1 + a * (1 - sigmoid)), g * a * sigmoid], axis=-1)
    last = {2: 2.0**-8 if kind is BF16 else 2.0**-11, 4: 0.0}[np.dtype(kind).itemsize]
    found = np.asarray(run(OP, grad, x, device=A2).output).astype(np.float64)
    np.testing.assert_allclose(found, exact, rtol=2.0**-20 + last, atol=4e-6)


def test_where_the_sigmoid_is_zero() -> None:
    x = np.array([[-200, 200, 3, 3]], np.float32)
    found = np.asarray(run(OP, np.ones((1, 2), np.float32), x, device=A2).output)
    assert found.tolist() == [[0, 3, 0, 200]]


# What the vendor's tiling gives for 48 cores and 196352 bytes: 40 bytes an element where five
# queues of 16 bits have two buffers and there are five tiles of fp32, and 48 for fp32 itself, so
# that 4896 and 4088 elements fit (swi_glu_tiling.cpp).
@pytest.mark.parametrize(
    ("dtype", "size"), [("float16", (19, 256)), ("bfloat16", (19, 256)), ("float32", (31, 128))]
)
def test_tiles(dtype: str, size: tuple[int, int]) -> None:
    spec, operator = devices.load(A2), ops.load(OP)
    grad, x = TensorSpec((4096, 4096), dtype), TensorSpec((4096, 8192), dtype)
    plan: Any = operator.tile(spec, operator.check(spec, grad, x))
    assert (plan.row_step, plan.column_step, plan.block_dim) == (*size, 48)


def test_a_gradient_of_another_shape_is_refused() -> None:
    x, grad = np.ones((2, 8), np.float16), np.ones((2, 8), np.float16)
    message = (
        "npu_swiglu_backward: grad_output must be of shape (2, 4), half of x along dim, not "
        "(2, 8); pass the gradient of npu_swiglu's output [161002]"
    )
    with pytest.raises(OpError, match=f"^{re.escape(message)}$"):
        run(OP, grad, x, device=A2)
