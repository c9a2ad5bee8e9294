"""npu_rms_norm_backward: its templates, values, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from op_calls import BF16, assert_as_reference

from npusim import OpError, devices, ops, run
from npusim.data.tensor import TensorSpec

OP, A2 = "npu_rms_norm_backward", "ascend910b2"
ROWS = [
    ((10, 128), (128,)),
    ((3, 5, 100), (100,)),
    ((700, 512), (512,)),
    ((100, 4, 33), (4, 33)),
    ((60, 1000), (1000,)),
    ((5, 7000), (7000,)),
    ((1650, 6400), (6400,)),
    ((40,), (40,)),
]


def call(shape: Any, own: Any, kind: Any, wide: bool = False) -> tuple[Any, ...]:
    rng = np.random.default_rng(3)
    dy, x = (rng.normal(0, 2, shape).astype(kind) for _ in range(2))
    gamma = rng.normal(1, 0.2, own).astype(np.float32 if wide else kind)
    rows = x.reshape(-1, gamma.size).astype(np.float64)
    rstd = (1 / np.sqrt((rows**2).mean(axis=1) + 1e-6)).astype(np.float32)
    return dy, x, gamma, rstd.reshape(*shape[: len(shape) - len(own)], *[1] * len(own))


@pytest.mark.parametrize("kind", [np.float32, np.float16, BF16])
@pytest.mark.parametrize(("shape", "own"), ROWS, ids=str)
def test_a_tiled_run_equals_the_reference(shape: Any, own: Any, kind: Any) -> None:
    assert_as_reference(OP, *call(shape, own, kind), device=A2)


@pytest.mark.parametrize("device", ["ascend910b3", "ascend910_9391"])
@pytest.mark.parametrize("kind", [np.float16, BF16])
def test_gamma_may_be_of_float32(kind: Any, device: str) -> None:
    assert_as_reference(OP, *call((60, 200), (200,), kind, wide=True), device=device)


@pytest.mark.parametrize(("shape", "own"), ROWS, ids=str)
def test_it_is_near_the_exact_gradients(shape: Any, own: Any) -> None:
    dy, x, gamma, rstd = call(shape, own, np.float32)
    outputs = run(OP, dy, x, gamma, rstd, device=A2, timing=False).outputs
    g, v = (each.reshape(-1, gamma.size).astype(np.float64) for each in (dy, x))
    root, weight = rstd.reshape(-1, 1).astype(np.float64), gamma.reshape(-1)
    normed, scaled = v * root, g * weight
    dx = (scaled - normed * (scaled * normed).mean(axis=1, keepdims=True)) * root
    np.testing.assert_allclose(np.asarray(outputs["output"]), dx.reshape(shape), rtol=0, atol=2e-5)
    dgamma = (g * normed).sum(axis=0).reshape(own)
    size = np.abs(g * normed).sum(axis=0).max()
    np.testing.assert_allclose(np.asarray(outputs["dgamma"]), dgamma, rtol=0, atol=size * 2.0**-20)


# Rows that merge_n loads together: (195584 - 10 n) / (24 n + 268) (rms_norm_grad_tiling.cpp).
@pytest.mark.parametrize(
    ("shape", "template", "step"),
    [
        ((4096, 128), "merge_n", 58),
        ((4096, 640), "merge_n", 12),
        ((4096, 656), "normal", 1),
        ((4096, 6080), "normal", 1),
        ((4096, 6096), "split_d", 32),
    ],
)
def test_templates(shape: tuple[int, int], template: str, step: int) -> None:
    spec, operator, half = devices.load(A2), ops.load(OP), "float16"
    x, gamma = TensorSpec(shape, half), TensorSpec(shape[1:], half)
    rstd = TensorSpec((shape[0], 1), "float32")
    plan: Any = operator.tile(spec, operator.check(spec, x, x, gamma, rstd))
    assert (plan.template, plan.row_step, plan.block_dim) == (template, step, 48)
    assert plan.rows_of_core[:2] == (86, 86)


BASE = call((2, 8), (8,), np.float16)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, np.ones((2, 4), np.float16),
         "dy must have the shape of x, (2, 8), not (2, 4); pass the gradient of npu_rms_norm's "
         "output [561002]"),
        (3, np.ones(3, np.float32),
         "rstd must have a number for each of 2 rows of x, not shape (3,); pass what npu_rms_norm "
         "gave [561002]"),
        (2, np.ones(4, np.float16),
         "gamma must have the shape of the last dimensions of x, (8,), not (4,); pass a number "
         "for each of their elements [561002]"),
    ],
)  # fmt: skip
def test_what_is_refused(place: int, value: Any, message: str) -> None:
    given = list(BASE)
    given[place] = value
    with pytest.raises(OpError, match=f"^{re.escape(f'{OP}: {message}')}$"):
        run(OP, *given, device=A2)
