"""Packed int4 in a single row or column: the strides say which dimension it is packed along."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim import Tensor, ops, run
from npusim.data.tensor import is_transposed
from npusim.ops._torch import TorchTensor, columns_of

A2 = "ascend910b2"
RNG = np.random.default_rng(5)
K, N = 8, 16


def packed(numbers: Any) -> Any:
    """`(rows, columns)` of int4 numbers, eight along the columns an int32."""
    nibbles = (numbers.astype(np.int64) & 0xF).reshape(*numbers.shape[:-1], -1, 8)
    return (nibbles << np.arange(0, 32, 4)).sum(-1).astype(np.uint32).view(np.int32)


WEIGHT = RNG.integers(-8, 8, (K, N))
TURNED = packed(np.ascontiguousarray(WEIGHT.T)).T
"""(1, n), the transposed view of (n, 1): eight along k an int32."""


def forms(array: Any, transposed: bool) -> list[Any]:
    return [array, Tensor.of(array, transposed=transposed)]


def test_the_two_ways_are_distinguished() -> None:
    assert TURNED.shape == (1, N)
    assert TURNED.flags.c_contiguous
    assert is_transposed(TURNED)
    assert not is_transposed(np.ascontiguousarray(packed(WEIGHT)))
    assert not is_transposed(np.zeros((1, N), np.int32))
    assert not is_transposed(np.zeros((N, 1), np.int32))
    assert is_transposed(np.zeros((1, N), np.int32).T)
    assert not is_transposed(np.zeros((1, 1), np.int32).T)
    # Whole numbers lie both ways in a row.
    assert not is_transposed(np.zeros((N, 1), np.int8).T)


@pytest.mark.parametrize("form", [0, 1])
def test_a_product_unpacks_a_column_of_int32_along_k(form: int) -> None:
    x = RNG.integers(-8, 8, (3, K))
    scale = np.full(1, 0.5, np.float32)
    kwargs = {"output_dtype": "bfloat16"}
    weight = forms(TURNED, True)[form]
    found = run("npu_quant_matmul", packed(x), weight, scale, device=A2, **kwargs).output
    np.testing.assert_array_equal(np.asarray(found, np.float32), x @ WEIGHT * 0.5)
    by_oracle = ops.load("npu_quant_matmul").reference(packed(x), weight, scale, **kwargs)
    np.testing.assert_array_equal(found, by_oracle)


@pytest.mark.parametrize("form", [0, 1])
def test_a_row_of_x1_may_come_as_a_turned_column(form: int) -> None:
    """A row of int32 is packed along k however it came: x1 cannot be packed along m."""
    x = RNG.integers(-8, 8, (1, 2 * K))
    weight = np.vstack([WEIGHT, WEIGHT])
    turned = packed(x).reshape(-1, 1).T
    assert is_transposed(turned)
    x1, scale = forms(turned, True)[form], np.ones(1, np.float32)
    kwargs = {"output_dtype": "bfloat16", "device": A2}
    found = run("npu_quant_matmul", x1, packed(weight), scale, **kwargs).output
    np.testing.assert_array_equal(np.asarray(found, np.float32), x @ weight)


@pytest.mark.parametrize("form", [0, 1])
def test_a_column_of_int32_is_unpacked_along_k(form: int) -> None:
    x, scale = RNG.integers(-4, 4, (3, K)).astype(np.float16), np.ones(N, np.float16)
    weight = forms(TURNED, True)[form]
    found = run("npu_weight_quant_batchmatmul", x, weight, scale, device=A2).output
    np.testing.assert_array_equal(found, (x @ WEIGHT).astype(np.float16))


@pytest.mark.parametrize(
    ("shape", "strides", "columns"),
    [((1, N), (1, 1), N), ((K, 2), (2, 1), N), ((K, 1), (1, 1), 8), ((K, 2), (1, K), 2)],
)
def test_torch_expects_as_many_columns(shape: Any, strides: Any, columns: int) -> None:
    assert columns_of(TorchTensor(shape, strides, "int32", "ND")) == columns
