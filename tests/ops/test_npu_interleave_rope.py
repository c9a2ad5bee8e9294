"""npu_interleave_rope: values, templates, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from npusim import OpError, ops, run

BF16 = ml_dtypes.bfloat16
SHAPES = [
    # Batches, heads, tokens, lines of a batch, and the template that takes them.
    (32, 32, 1, 1, "FIXED_B11D"), (3, 4, 5, 1, "B11D"), (60, 2, 1, 1, "B11D"),
    (1, 40, 70, 1, "B11D"), (2, 3, 700, 1, "B11D"), (3, 4, 5, 5, "B1SD"), (50, 2, 3, 3, "B1SD"),
    (7, 30, 45, 45, "B1SD"), (1, 3, 600, 600, "BN1D"), (2, 1, 2600, 2600, "BN1D"),
]  # fmt: skip


def drawn(b: int, n: int, s: int, lines: int, dtype: Any, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    shapes = (b, n, s, 64), (b, 1, lines, 64), (b, 1, lines, 64)
    x, cos, sin = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return x, cos, sin


@pytest.mark.parametrize("dtype", [np.float16, BF16])
@pytest.mark.parametrize(("b", "n", "s", "lines", "template"), SHAPES)
def test_pairs_are_turned(b: int, n: int, s: int, lines: int, template: str, dtype: Any) -> None:
    x, cos, sin = drawn(b, n, s, lines, dtype)
    made = run("npu_interleave_rope", x, cos, sin, device="Atlas A2")
    even, odd, c, d = (y.astype(np.float64) for y in (x[..., 0::2], x[..., 1::2], cos, sin))
    low = even * c[..., :32] - odd * d[..., :32]
    high = odd * c[..., 32:] + even * d[..., 32:]
    expected = np.concatenate((low, high), axis=-1)

    assert made.plan.template == template
    step = 2.0 ** -(10 if dtype is np.float16 else 7)
    error = np.abs(made.output.astype(np.float64) - expected)
    assert (error <= step * np.maximum(np.abs(expected), 0.25)).all()
    tiled = ops.load("npu_interleave_rope").reference(x, cos, sin)
    assert made.output.tobytes() == tiled.tobytes()


REFUSED = [
    ((1, 2, 3, 128), (1, 1, 3, 128), "x must have 64 columns, not 128; rotate them with "
     "npu_rotary_mul"),
    ((2, 2, 3, 64), (2, 1, 2, 64), "cos must have shape (2, 1, 3, 64) or (2, 1, 1, 64), not "
     "(2, 1, 2, 64); pass one of a batch or a token"),
    ((2, 2, 3), (2, 1, 3), "x must have four dimensions, not shape (2, 2, 3); reshape it"),
    ((0, 2, 3, 64), (0, 1, 3, 64), "x must not be empty, not of shape (0, 2, 3, 64); leave the "
     "call out"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "line", "text"), REFUSED)
def test_shapes_that_do_not_fit_are_refused(shape: Any, line: Any, text: str) -> None:
    x, cos = np.ones(shape, np.float16), np.ones(line, np.float16)
    with pytest.raises(OpError, match=f"^npu_interleave_rope: {re.escape(text)}.* \\[161002\\]$"):
        run("npu_interleave_rope", x, cos, cos, device="Atlas A2")
