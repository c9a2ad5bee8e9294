"""Functions of the advanced API against numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sources import CHIPS, kernels, probe

from npusim.data.dtypes import Array

DRAWS = np.random.default_rng(29)
ROWS, COLUMNS = 24, 144
SOURCE = "advanced.cpp"
SPLIT_CHIPS = CHIPS[:2]


def matrix(dtype: Any = np.float32) -> Array:
    return DRAWS.standard_normal((ROWS, COLUMNS)).astype(dtype)


def wide(x: Array) -> Array:
    return x.astype(np.float64)


def gelu(x: Array) -> Array:
    bent: Array = np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))
    return x * (1 + bent) / 2


def softmax(x: Array) -> tuple[Array, Array, Array]:
    most = x.max(1, keepdims=True)
    powers = np.exp(x - most)
    sums = powers.sum(1, keepdims=True)
    return powers / sums, sums, most


ELEMENTS: dict[str, Callable[[Array, Array], Array]] = {
    "Erf": lambda x, _: np.vectorize(math.erf)(x),
    "Acosh": lambda _, y: np.arccosh(y),
    "Cosh": lambda x, _: np.cosh(x),
    "Fmod": np.fmod,
    "Power": lambda x, y: y**x,
    "Power by a number": lambda x, _: x**3,
    "GeGLU": lambda x, y: x * gelu(y),
    "ReGlu": lambda x, y: x * np.maximum(y, 0),
    "SwiGLU": lambda x, y: x * y / (1 + np.exp(-1.5 * y)),
    "Exp": lambda x, _: np.exp(x),
}
"""In the order of the kernel, of x and of y, which is above 1."""


ANGLES: dict[str, Callable[[Array], Array]] = {
    "Sin": np.sin,
    "Cos": np.cos,
    "Tan": np.tan,
    "Asin": lambda x: np.arcsin(np.sin(x)),
    "Acos": lambda x: np.arccos(np.sin(x)),
    "Atan": np.arctan,
    "Asinh": np.arcsinh,
    "Atanh": lambda x: np.arctanh(np.sin(x)),
    "Erfc": lambda x: np.vectorize(math.erfc)(x),
    "Sign": np.sign,
    "Log2": lambda x: np.log2(np.abs(x)),
    "Log10": lambda x: np.log10(np.abs(x)),
}
"""In the order of the kernel; what has bounds is of the sine of x, or of its size."""


@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize(("name", "dtype", "bound"), [("float", "f4", 3e-6), ("half", "f2", 2e-3)])
def test_functions_of_angles_and_their_inverses(
    device: str, name: str, dtype: str, bound: float
) -> None:
    x = (4 * DRAWS.standard_normal(1040)).astype(dtype)
    x = x[np.abs(np.cos(x.astype("f8"))) > 0.05]
    x[:3] = 0.25, -0.25, 1e-4
    count = x.size // 16 * 16
    z = np.zeros((len(ANGLES), count), dtype)
    source = kernels(SOURCE)
    source[f"angles<{name}>"][1](x[:count], np.sin(x[:count]), z, count, device=device)
    for row, (called, function) in zip(z, ANGLES.items(), strict=True):
        of = x[:count].astype("f8")
        if called in ("Asin", "Acos", "Atanh"):
            of = np.arcsin(np.sin(x[:count]).astype("f8"))
        np.testing.assert_allclose(row, function(of), bound, bound, err_msg=called)


def test_the_sign_of_the_smallest_numbers(tmp_path: Path) -> None:
    x, z = np.zeros((2, 1024), np.float32)
    x[:4] = 1e-45, -1e-45, np.inf, -0.0
    probe(tmp_path, "    Sign(b, a, N);")[1](x, z, device="Atlas A2")
    assert z[:5].tolist() == [1, -1, 1, 0, 0]


@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize(("name", "dtype", "bound"), [("float", "f4", 2e-6), ("half", "f2", 2e-3)])
def test_functions_of_each_element(device: str, name: str, dtype: str, bound: float) -> None:
    x = DRAWS.standard_normal(1040).astype(dtype)
    y = (1.5 + DRAWS.random(1040)).astype(dtype)
    z = np.zeros((len(ELEMENTS), 1040), dtype)
    kernels(SOURCE)[f"elements<{name}>"][1](x, y, z, 1040, device=device)
    for row, (called, function) in zip(z, ELEMENTS.items(), strict=True):
        np.testing.assert_allclose(
            wide(row), function(wide(x), wide(y)), bound, bound, True, called
        )


@pytest.mark.parametrize("device", CHIPS)
def test_softmax_and_its_gradient(device: str) -> None:
    x, counted = matrix(), 139
    y, slope = np.zeros_like(x), np.zeros_like(x)
    sums, most = np.zeros((2, ROWS, 8), np.float32)
    kernels(SOURCE).softmaxes[1](x, y, sums, most, slope, counted, device=device)
    found, total, greatest = softmax(wide(x[:, :counted]))
    np.testing.assert_allclose(y[:, :counted], found, 1e-5)
    np.testing.assert_allclose(sums, np.repeat(total, 8, 1), 1e-5)
    np.testing.assert_array_equal(most, np.repeat(greatest, 8, 1))
    front = (x[:, :counted] * found).sum(1, keepdims=True)
    np.testing.assert_allclose(slope[:, :counted], (x[:, :counted] - front) * found, 0, 1e-6)


@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize(("name", "dtype", "bound"), [("float", "f4", 1e-5), ("half", "f2", 4e-3)])
def test_a_softmax_of_parts(device: str, name: str, dtype: str, bound: float) -> None:
    first, second = matrix(dtype), matrix(dtype)
    y = np.zeros_like(first)
    own = 32 // first.itemsize
    factors, sums, most = np.zeros((3, ROWS, own), dtype)
    kernels(SOURCE)[f"flash<{name}>"][1](first, second, y, factors, sums, most, device=device)
    whole = wide(np.concatenate([first, second], 1))
    _, total, greatest = softmax(whole)
    before = wide(first).max(1, keepdims=True)
    np.testing.assert_allclose(wide(y), np.exp(wide(second) - greatest), bound, bound)
    np.testing.assert_allclose(wide(factors), np.repeat(np.exp(before - greatest), own, 1), bound)
    np.testing.assert_allclose(wide(sums), np.repeat(total, own, 1), bound)
    np.testing.assert_array_equal(wide(most), np.repeat(greatest, own, 1))


def normalised(x: Array, gamma: Array, beta: Array) -> tuple[Array, Array, Array]:
    mean, variance = x.mean(1, keepdims=True), x.var(1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta, mean, variance


@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize(("name", "dtype", "bound"), [("float", "f4", 1e-5), ("half", "f2", 1e-2)])
def test_norms(device: str, name: str, dtype: str, bound: float) -> None:
    x, gamma, beta = matrix(dtype), matrix(dtype)[0], matrix(dtype)[0]
    y, rms, deep = np.zeros((3, *x.shape), dtype)
    means, variances = np.zeros((2, 2 * ROWS), dtype)
    launch = kernels(SOURCE)[f"norms<{name}>"][1]
    launch(x, gamma, beta, y, means, variances, rms, deep, device=device)
    of = wide(x)
    expected, mean, variance = normalised(of, wide(gamma), wide(beta))
    np.testing.assert_allclose(wide(y), expected, 0, bound)
    np.testing.assert_allclose(wide(means[:ROWS]), mean[:, 0], 0, bound)
    np.testing.assert_allclose(wide(variances[:ROWS]), variance[:, 0], bound, bound)
    root = np.sqrt((of**2).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(wide(rms), of / root * wide(gamma), 0, bound)
    np.testing.assert_allclose(
        wide(deep), normalised(1.5 * of, wide(gamma), wide(beta))[0], 0, bound
    )


@pytest.mark.parametrize("device", CHIPS)
def test_gradients_of_a_layer_norm(device: str) -> None:
    x, dy, gamma = matrix(), matrix(), matrix()[0]
    dx = np.zeros_like(x)
    dgamma, dbeta = np.zeros((2, COLUMNS), np.float32)
    kernels(SOURCE).norm_gradients[1](x, dy, gamma, dx, dgamma, dbeta, device=device)
    of = wide(x)
    root = 1 / np.sqrt(of.var(1, keepdims=True) + 1e-5)
    unit = (of - of.mean(1, keepdims=True)) * root
    slope = wide(dy) * gamma
    means = slope.mean(1, keepdims=True), (slope * unit).mean(1, keepdims=True)
    np.testing.assert_allclose(dx, root * (slope - means[0] - unit * means[1]), 0, 1e-5)
    np.testing.assert_allclose(dgamma, (wide(dy) * unit).sum(0), 0, 1e-4)
    np.testing.assert_allclose(dbeta, wide(dy).sum(0), 0, 1e-5)


@pytest.mark.parametrize("device", CHIPS)
def test_quantisation_and_back(device: str) -> None:
    x = matrix()
    sums = DRAWS.integers(-1000, 1000, x.shape, np.int32)
    scales = DRAWS.random(COLUMNS, np.float32)
    q, found = np.zeros(x.shape, np.int8), np.zeros_like(x)
    again = np.zeros(x.shape, np.float16)
    kernels(SOURCE).quants[1](x, q, sums, scales, found, again, device=device)
    halves = x.astype(np.float16) * np.float16(8) + np.float16(0.5)
    np.testing.assert_array_equal(q, np.rint(halves).astype(np.int8))
    np.testing.assert_array_equal(found, sums.astype(np.float32) * scales)
    np.testing.assert_array_equal(
        again, (q.astype(np.float16) - np.float16(0.5)) * np.float16(0.125)
    )


@pytest.mark.parametrize("device", CHIPS)
def test_shapes(device: str) -> None:
    x = matrix()
    spread, turned, so_far = (
        np.zeros_like(x),
        np.zeros((COLUMNS, ROWS), np.float32),
        np.zeros_like(x),
    )
    padded, cut = np.zeros((16, 8), np.float32), np.zeros(ROWS * (COLUMNS - 3) // 8 * 8, np.float32)
    sums, most = np.zeros(ROWS, np.float32), np.zeros(COLUMNS, np.float32)
    outputs = spread, padded, cut, turned, sums, most, so_far
    kernels(SOURCE).shapes[1](x, *outputs, device=device)
    np.testing.assert_array_equal(spread, np.repeat(x.reshape(-1)[:ROWS, None], COLUMNS, 1))
    rows = x.reshape(-1)[:80].reshape(16, 5)
    np.testing.assert_array_equal(padded[:, :7], np.pad(rows, ((0, 0), (1, 1)), constant_values=7))
    np.testing.assert_array_equal(cut, x[:, :-3].reshape(-1)[: cut.size])
    np.testing.assert_array_equal(turned, x.T)
    np.testing.assert_allclose(sums, wide(x)[:, :-1].sum(1), 0, 1e-5)
    np.testing.assert_array_equal(most, x.max(0))
    np.testing.assert_allclose(so_far, wide(x).cumsum(1), 0, 1e-4)


@pytest.mark.parametrize("device", CHIPS)
def test_masks_of_bytes_and_bits(device: str) -> None:
    x = matrix()
    masks = DRAWS.integers(0, 2, (ROWS, 160), np.uint8)
    bits = np.packbits(masks, 1, "little")
    packed = np.zeros((ROWS, 32), np.uint8)
    packed[:, : bits.shape[1]] = bits
    y, kept, dropped = np.zeros((3, *x.shape), np.float32)
    kernels(SOURCE).filters[1](x, masks, packed, y, kept, dropped, device=device)
    is_set = masks[:, :COLUMNS] != 0
    np.testing.assert_array_equal(y, np.where(is_set, -1, x))
    np.testing.assert_array_equal(kept, np.where(is_set, 2 * x, 0))
    np.testing.assert_array_equal(dropped, np.where(is_set, 4 * x, 0))


@pytest.mark.parametrize("device", SPLIT_CHIPS)
@pytest.mark.parametrize(("name", "dtype"), [("float", "f4"), ("half", "f2")])
@pytest.mark.parametrize("count", [64, 1024 + 64])
def test_sorting(device: str, name: str, dtype: str, count: int) -> None:
    x = DRAWS.standard_normal(count).astype(dtype)
    values, indices = np.zeros_like(x), np.zeros(count, np.uint32)
    top, places = np.zeros((2, 16), dtype), np.zeros((2, 16), np.int32)
    launch = kernels(SOURCE)[f"sorted<{name}>"][1]
    launch(x, values, indices, top, places, count, device=device)
    np.testing.assert_array_equal(values, -np.sort(-x))
    np.testing.assert_array_equal(x[indices], values)
    rows = x.reshape(2, -1)
    np.testing.assert_array_equal(top, np.sort(rows, 1)[:, :16])
    np.testing.assert_array_equal(np.take_along_axis(rows, places, 1), top)


@pytest.mark.parametrize("device", CHIPS)
def test_slices_and_fills(device: str) -> None:
    x = matrix()
    y, same = np.zeros((2, 16), np.float32), np.zeros(1000, np.float32)
    kernels(SOURCE).slices[1](x, y, same, device=device)
    np.testing.assert_array_equal(y, x[1:3, 8:24])
    np.testing.assert_array_equal(same, np.full(1000, 2.5, np.float32))
