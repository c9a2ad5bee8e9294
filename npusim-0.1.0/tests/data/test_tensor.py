"""Tensors: their specs, how they lie in memory, and how wrong ones are refused."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from npusim import Tensor, TensorSpec
from npusim.data.tensor import Operand

SHAPES = [(3, 5), (17, 40), (2, 3, 20, 33)]


def refused(message: str, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        TensorSpec(*args, **kwargs)


def test_a_layout_must_be_known() -> None:
    refused(
        "TensorSpec: layout must be one of ND, FRACTAL_NZ, not 'NZ'; use one of these",
        (4, 4), "int8", "NZ",
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(), (4,)])
def test_only_matrices_lie_in_fractals_or_are_transposed(shape: tuple[int, ...]) -> None:
    message = (
        "TensorSpec: shape must have at least two dimensions for a transposed or FRACTAL_NZ "
        f"tensor, not {shape!r}; pass a matrix"
    )
    refused(message, shape, "int8", "FRACTAL_NZ")
    refused(message, shape, "int8", transposed=True)


@pytest.mark.parametrize(
    ("dtype", "storage", "nbytes"),
    [
        ("float32", (2, 5, 7, 16, 8), 35840),
        ("int32", (2, 5, 7, 16, 8), 35840),
        ("float16", (2, 3, 7, 16, 16), 21504),
        ("bfloat16", (2, 3, 7, 16, 16), 21504),
        ("int8", (2, 2, 7, 16, 32), 14336),
        ("int4", (2, 1, 7, 16, 64), 7168),
    ],
)
def test_fractals_of_each_type(dtype: str, storage: tuple[int, ...], nbytes: int) -> None:
    spec = TensorSpec((2, 100, 40), dtype, "FRACTAL_NZ")
    assert (spec.storage_shape, spec.nbytes) == (storage, nbytes)
    turned = TensorSpec((2, 40, 100), dtype, "FRACTAL_NZ", True)
    assert (turned.storage_shape, turned.nbytes) == (storage, nbytes)


def test_the_transpose_of_a_spec_is_the_same_memory() -> None:
    for layout in ("ND", "FRACTAL_NZ"):
        spec = TensorSpec((2, 100, 40), "int8", layout)
        turned, back = spec.T, spec.T.T
        assert turned == TensorSpec((2, 40, 100), "int8", layout, True)
        assert turned.storage_shape == spec.storage_shape
        assert back == spec


@pytest.mark.parametrize("layout", ["ND", "FRACTAL_NZ"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_tensor_holds_its_array(shape: tuple[int, ...], transposed: bool, layout: str) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    tensor = Tensor.of(array, layout, transposed)
    assert tensor.spec == TensorSpec(shape, "float32", layout, transposed)
    assert (tensor.shape, tensor.dtype, tensor.layout) == (shape, "float32", layout)
    for found in (tensor.numpy(), np.asarray(tensor), np.array(tensor)):
        np.testing.assert_array_equal(found, array)
    np.testing.assert_array_equal(tensor.T.numpy(), array.swapaxes(-1, -2))
    assert tensor.T.storage is tensor.storage
    assert np.asarray(tensor, np.float64).dtype == np.float64


def test_a_scalar_can_be_a_tensor() -> None:
    assert Tensor.of(np.array(3, np.int8)).numpy().shape == ()


def test_fractals_typed_by_hand() -> None:
    """1 2 / 3 4 / 5 6 of int64 would be four to a row; int32 is eight."""
    storage = np.zeros((1, 1, 16, 8), np.int32)
    storage[0, 0, :3, :2] = [[1, 2], [3, 4], [5, 6]]
    tensor = Tensor(TensorSpec((3, 2), "int32", "FRACTAL_NZ"), storage)
    assert tensor.numpy().tolist() == [[1, 2], [3, 4], [5, 6]]
    assert tensor.T.numpy().tolist() == [[1, 3, 5], [2, 4, 6]]
    np.testing.assert_array_equal(Tensor.of(tensor.numpy(), "FRACTAL_NZ").storage, storage)


def test_a_storage_must_fit_its_spec() -> None:
    spec = TensorSpec((3, 2), "int32", "FRACTAL_NZ")
    for storage in (np.zeros((3, 2), np.int32), np.zeros((1, 1, 16, 8), np.int64)):
        message = (
            f"Tensor: storage must be int32 of shape (1, 1, 16, 8) for {spec}, not "
            f"{storage.dtype} of shape {storage.shape}; see npu_format_cast"
        )
        with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
            Tensor(spec, storage)


def test_repr_says_how_it_lies() -> None:
    tensor = Tensor.of(np.zeros((3, 2), ml_dtypes.bfloat16), "FRACTAL_NZ")
    assert repr(tensor) == "<Tensor bfloat16 (3, 2) FRACTAL_NZ>"
    assert repr(tensor.T) == "<Tensor bfloat16 (2, 3) FRACTAL_NZ, transposed>"


def test_an_operand_is_placed_as_it_lies() -> None:
    array = np.arange(6, dtype=np.int8).reshape(2, 3)
    turned = Operand("x", TensorSpec((3, 2), "int8", transposed=True), array.T).place()
    assert turned.data is not None
    assert turned.data.tolist() == [0, 1, 2, 3, 4, 5]
    tensor = Tensor.of(array, "FRACTAL_NZ")
    placed = Operand("x", tensor.spec.T, tensor.storage).place()
    assert placed.data is not None
    np.testing.assert_array_equal(placed.data, tensor.storage.reshape(-1).view(np.uint8))
