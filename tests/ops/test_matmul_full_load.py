"""bl1_full_load and bl1_aligned_output of matmul: x2 stays in L1, the products are base's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_calls import BF16
from test_matmul_split_k import HALF, SMALL, assert_as_the_reference, operands

from npusim import TensorSpec, devices, ops
from npusim.ops.matmul.templates.whole_k import WholeKPlan

MATMUL = ops.load("matmul")
BOTH = ("bl1_full_load", "bl1_aligned_output")


@pytest.mark.sample(4)
@pytest.mark.parametrize("template", BOTH)
@pytest.mark.parametrize(
    ("m", "k", "n", "kind", "words"),
    [
        (3, 7, 5, HALF, ""),
        (1, 64, 48, HALF, "bias"),
        (1500, 100, 96, HALF, "tB special"),
        (1001, 40, 200, BF16, "bias"),
        (700, 33, 80, HALF, "tA nz"),
        (1300, 256, 17, HALF, ""),
    ],
)
def test_values(
    rng: np.random.Generator, template: str, m: int, k: int, n: int, kind: Any, words: str
) -> None:
    args = operands(rng, m, k, n, kind, words)
    assert_as_the_reference(*args, template=template, timing=False)


def test_columns_that_are_several_blocks(rng: np.random.Generator) -> None:
    args = operands(rng, 700, 50, 384, HALF, "")
    assert_as_the_reference(*args, template="bl1_full_load", timing=False)


@pytest.mark.parametrize("template", BOTH)
def test_every_mode(rng: np.random.Generator, template: str) -> None:
    # Several blocks a core: slots are filled again.
    args = operands(rng, 4000, 32, 48, HALF, "")
    whole = assert_as_the_reference(*args, template=template)
    exact = assert_as_the_reference(*args, template=template, byte_exact=True, every_core=True)
    assert whole.plan is not None
    assert (whole.plan.block_dim, whole.time_us) == (SMALL.cores["aic"].count, exact.time_us)


@pytest.mark.parametrize(
    ("template", "shape", "tile"),
    [
        # As base: 128 x 96; all of k is four steps of 64, two of x1 and one of x2 in L1.
        ("bl1_full_load", (8192, 256, 96), (128, 96, 64, 8, 4)),
        # 32768 / 48 rows, of which a quarter of the unified buffer takes 511, in whole 128.
        ("bl1_aligned_output", (20000, 128, 48), (384, 48, 32, 8, 4)),
        # 256 k of 128 rows, twice, and of 208 columns.
        ("bl1_aligned_output", (20000, 256, 200), (128, 208, 64, 8, 4)),
    ],
)
def test_tiles(template: str, shape: tuple[int, int, int], tile: Any) -> None:
    spec, (m, k, n) = devices.load("ascend910b2"), shape
    call = TensorSpec((m, k), "float16"), TensorSpec((k, n), "float16")
    plan = MATMUL.tile(spec, MATMUL.check(spec, *call, template=template))
    assert isinstance(plan, WholeKPlan)
    cube = plan.cube
    assert (cube.base_m, cube.base_n, cube.base_k, cube.depth_a, cube.depth_b) == tile
