"""npu_dynamic_block_quant: values, who works on what, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from op_calls import rows_of_floats

from npusim import OpError, ops, run

BF16 = ml_dtypes.bfloat16
SHAPES = [(4, 3), (100, 512), (3, 7, 130), (50, 7168), (1, 40000), (2, 20), (49, 64), (200, 300)]


@pytest.mark.parametrize("dtype", [np.float16, BF16])
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_are_scaled_by_their_largest(shape: tuple[int, ...], dtype: Any) -> None:
    x = np.random.default_rng(len(shape)).normal(0, 3, shape).astype(dtype)
    made = run("npu_dynamic_block_quant", x, device="Atlas A2")
    y, scale = made.outputs["output"], made.outputs["scale"]

    padded = np.pad(x.astype(np.float64), [(0, 0)] * (x.ndim - 1) + [(0, -shape[-1] % 128)])
    blocks = padded.reshape(*shape[:-1], -1, 128)
    largest = np.abs(blocks).max(-1)
    np.testing.assert_allclose(scale, largest / 127, rtol=1e-6)
    exact = (blocks / largest[..., None] * 127).reshape(padded.shape)[..., : shape[-1]]
    assert np.abs(y - exact).max() <= 0.5 + 1e-4


@pytest.mark.parametrize("least", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [np.float16, BF16])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_tiled_run_gives_the_bits_of_the_whole(
    shape: tuple[int, ...], dtype: Any, least: float
) -> None:
    x = rows_of_floats(np.random.default_rng(3), shape, dtype)
    made = run("npu_dynamic_block_quant", x, min_scale=least, device="Atlas A3")
    whole = ops.load("npu_dynamic_block_quant").reference(x, min_scale=least)
    pairs = zip(made.outputs.values(), whole, strict=True)
    for found, expected in pairs:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("rows", "columns", "cores"), [
    (100, 256, 48), (3, 256, 6), (3, 128 * 40, 48), (48, 128, 48), (47, 128, 47),
])  # fmt: skip
def test_what_no_core_has_is_cut_into_blocks(rows: int, columns: int, cores: int) -> None:
    x = np.ones((rows, columns), np.float16)
    assert run("npu_dynamic_block_quant", x, device="ascend910b2").plan.block_dim == cores


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"dst_type": 2}, "dst_type must be 1, not 2: int8; others are of later chips; leave it out"),
    ({"row_block_size": 128}, "row_block_size must be 1, not 128: larger blocks are of later "
     "chips; leave it out"),
    ({"col_block_size": 64}, "col_block_size must be 128, not 64: other blocks are of later chips; "
     "leave it out"),
    ({"round_mode": "round"}, "round_mode must be 'rint', not 'round': the kernel rounds ties to "
     "even; leave it out"),
    ({"min_scale": -1.0}, "min_scale must be at least 0, not -1.0; leave it out"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text"), REFUSED)
def test_what_later_chips_take_is_refused(given: dict[str, Any], text: str) -> None:
    message = f"^npu_dynamic_block_quant: {re.escape(text)} \\[161002\\]$"
    with pytest.raises(OpError, match=message):
        run("npu_dynamic_block_quant", np.ones((2, 4), np.float16), device="Atlas A2", **given)
