"""The reference of matmul: exact products, where it rounds, and what becomes of large ones."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from npusim import ops, run

BF16 = ml_dtypes.bfloat16
KINDS = (np.float16, BF16)
Array = NDArray[Any]
reference = ops.load("matmul").reference


def whole(rng: np.random.Generator, *shape: int, kind: Any = np.float16) -> Array:
    """Small whole numbers, whose sums are exact in any order."""
    return rng.integers(-4, 5, shape).astype(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_numbers_give_whole_numbers(rng: np.random.Generator, kind: Any) -> None:
    a, b = whole(rng, 3, 1, 5, 40, kind=kind), whole(rng, 2, 40, 7, kind=kind)
    bias = rng.integers(-4, 5, 7).astype(np.float32)
    y = reference(a, b, bias)
    exact = np.einsum("iamk,jkn->ijmn", a.astype(int), b.astype(int)) + bias
    assert (y.shape, y.dtype) == ((3, 2, 5, 7), kind)
    np.testing.assert_array_equal(y, exact.astype(kind))


@pytest.mark.parametrize(
    ("kind", "last", "expected"),
    [
        # The product is 1 + last: ties of the type's last bit go to even.
        (np.float16, 2.0**-11, 1.0),
        (np.float16, 2.0**-11 + 2.0**-20, 1 + 2.0**-10),
        (np.float16, 3 * 2.0**-11, 1 + 2.0**-9),
        (BF16, 2.0**-8, 1.0),
        (BF16, 2.0**-8 + 2.0**-15, 1 + 2.0**-7),
        (BF16, 3 * 2.0**-8, 1 + 2.0**-6),
    ],
)
def test_the_sum_is_rounded_once_on_its_way_out(kind: Any, last: float, expected: float) -> None:
    high = float(np.array(last).astype(kind))
    a = np.array([[1, 1, 1]], kind)
    b = np.array([[1], [high], [last - high]], kind)
    assert (b.astype(float).sum(), reference(a, b).tolist()) == (1 + last, [[expected]])


def test_the_accumulator_starts_from_the_bias() -> None:
    # 2^25 swallows each block's 1 of sixteen 2^-4; only a sum that starts elsewhere keeps them.
    ones = np.ones((1, 64), np.float16)
    parts = np.full((64, 1), 2.0**-4, np.float16)
    start, back = np.float32([2.0**25]), np.full((1, 1), -(2.0**15), np.float16)
    a = np.concatenate([ones, np.full((1, 1), 2.0**10, np.float16)], axis=1)
    b = np.concatenate([parts, back])
    assert reference(a, b, start).tolist() == [[0.0]]
    assert reference(ones, parts).tolist() == [[4.0]]


@pytest.mark.sample(4)
@pytest.mark.parametrize("device", ["ascend910b2", "ascend910_9391"])
@pytest.mark.parametrize(("transposed_a", "transposed_b"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("shape", [(5, 7, 3), (100, 33, 77), (130, 600, 270)])
def test_float32_is_multiplied_as_it_is(
    shape: tuple[int, int, int],
    transposed_a: int,
    transposed_b: int,
    device: str,
    rng: np.random.Generator,
) -> None:
    m, k, n = shape
    a, b = rng.normal(size=(m, k)).astype(np.float32), rng.normal(size=(k, n)).astype(np.float32)
    bias = rng.normal(size=n).astype(np.float32)
    x1 = np.asfortranarray(a) if transposed_a else a
    x2 = np.asfortranarray(b) if transposed_b else b
    done = run("matmul", x1, x2, bias, device=device)
    assert done.plan is not None
    assert done.plan.template == "base"
    found = np.asarray(done.output)
    exact = a.astype(np.float64) @ b.astype(np.float64) + bias
    sizes = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)) + np.abs(bias)
    # An addition for each 16 of k, each of which rounds by half a unit in the last place at most.
    assert (np.abs(found - exact) <= (k / 16 + 2) * 2.0**-24 * sizes).all()
    np.testing.assert_array_equal(found, reference(x1, x2, bias))


def test_no_bit_of_a_float32_is_lost() -> None:
    odd = np.full((1, 1), 1 + 2.0**-23, np.float32)
    found = run("matmul", odd, np.ones((1, 1), np.float32), device="ascend910b2").output
    assert np.asarray(found).tolist() == [[1 + 2.0**-23]]
