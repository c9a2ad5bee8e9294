"""npu_rotary_mul_backward: its tiles, values, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from op_calls import BF16, assert_as_reference

from npusim import OpError, devices, ops, run
from npusim.data.tensor import TensorSpec

OP, A2 = "npu_rotary_mul_backward", "ascend910b2"
BOTH = [
    ((2, 9, 5, 128), (1, 9, 1, 128)),
    ((2, 5, 70, 64), (1, 1, 70, 64)),
    ((30, 2, 5, 20), (30, 1, 1, 20)),
    ((9, 4, 36), (9, 1, 36)),
    ((2, 700, 3, 256), (1, 700, 1, 256)),
]
HALVES = [
    ((2, 5, 70, 64), (2, 1, 70, 64)),
    ((3, 7, 4, 60), (3, 7, 1, 60)),
    ((2, 3, 4, 16), (2, 3, 4, 16)),
]
CASES = [*((*each, "half") for each in BOTH + HALVES), *((*each, "interleave") for each in BOTH)]


def call(shape: Any, lines: Any, kind: Any) -> list[Any]:
    rng = np.random.default_rng(7)
    return [rng.normal(0, 1, each).astype(kind) for each in (shape, shape, lines, lines)]


@pytest.mark.parametrize("kind", [np.float32, np.float16, BF16])
@pytest.mark.parametrize(("shape", "lines", "mode"), CASES, ids=str)
def test_a_tiled_run_equals_the_reference(shape: Any, lines: Any, mode: str, kind: Any) -> None:
    for needs_angles in (True, False):
        given = call(shape, lines, kind)
        assert_as_reference(OP, *given, mode, needs_angles=needs_angles, device="ascend910_9391")


@pytest.mark.parametrize(("shape", "lines", "mode"), CASES, ids=str)
def test_it_is_near_the_exact_gradients(shape: Any, lines: Any, mode: str) -> None:
    grad, x, cos, sin = call(shape, lines, np.float32)
    outputs = run(OP, grad, x, cos, sin, mode, device=A2, timing=False).outputs
    g, v, c, s = (each.astype(np.float64) for each in (grad, x, cos, sin))
    width = shape[-1]
    # Which element each one turns with, and the sign of that part.
    other = (
        np.arange(width) ^ 1 if mode == "interleave" else (np.arange(width) + width // 2) % width
    )
    sign = np.where(other > np.arange(width), -1.0, 1.0)
    axes = tuple(place for place, size in enumerate(lines) if size != shape[place])
    wanted = [
        c * g + (s * g * sign)[..., other],
        (v * g).sum(axis=axes, keepdims=True),
        (v[..., other] * sign * g).sum(axis=axes, keepdims=True),
    ]
    for found, exact in zip(outputs.values(), wanted, strict=True):
        np.testing.assert_allclose(np.asarray(found), exact, rtol=0, atol=2e-5)


# Lines that come together: (196352 - 20480) bytes over 50 an element of 16 bits, or 36 without
# angles, 48 and 28 of float32 (rope_half_grad_tiling.cpp).
@pytest.mark.parametrize(
    ("dtype", "needs_angles", "step"),
    [
        ("bfloat16", True, 27),
        ("bfloat16", False, 38),
        ("float32", True, 28),
        ("float32", False, 49),
    ],
)
def test_tiles(dtype: str, needs_angles: bool, step: int) -> None:
    spec, operator = devices.load(A2), ops.load(OP)
    x, angles = (TensorSpec((2, size, n, 128), dtype) for size, n in ((8192, 5), (8192, 1)))
    p = operator.check(spec, x, x, angles, angles, needs_angles=needs_angles)
    plan: Any = operator.tile(spec, p)
    assert (plan.block_dim, plan.lines_of_core, plan.line_step) == (48, 342, step)


def test_angles_of_float32_are_cast_first() -> None:
    grad, x, *_ = call(*BOTH[0], np.float16)
    _, _, cos, sin = call(*BOTH[0], np.float32)
    done = run(OP, grad, x, cos, sin, device=A2)
    assert [earlier.op for earlier in done.earlier] == ["cast", "cast"]
    assert_as_reference(OP, grad, x, cos, sin, device=A2)


BASE = dict(zip(("grad", "self", "r1", "r2"), call(*BOTH[0], np.float16), strict=True))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"grad": BASE["r1"]},
         "grad must have the shape of self, (2, 9, 5, 128), not (1, 9, 1, 128); pass the gradient "
         "of npu_rotary_mul's output"),
        ({"r1": BASE["r1"][:, :1], "r2": BASE["r2"][:, :1]},
         "r1 must have the last dimension of self and, of the others, 1 in place of those that "
         "turn alike, in a layout of npu_rotary_mul, not shape (1, 1, 1, 128) for "
         "(2, 9, 5, 128); reshape it"),
        ({name: value[..., :-1] for name, value in BASE.items()},
         "self must have an even last dimension of at most 896, not 127; cut vectors into parts "
         "that turn by themselves"),
        ({name: value[0, 0] for name, value in BASE.items()},
         "self must have three or four dimensions, not 2; reshape it"),
    ],
)  # fmt: skip
def test_what_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(OpError, match=f"^{re.escape(f'{OP}: {message}')} \\[161002\\]$"):
        run(OP, **BASE | changed, device=A2)
