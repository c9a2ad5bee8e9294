"""Functions of each element against numpy."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from pathlib import Path

import numpy as np
import pytest
from sources import CHIPS, probe

from npusim.data.dtypes import Array

DRAWS = np.random.default_rng(13)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


FUNCTIONS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "Sigmoid(b, a, N);": (sigmoid, 1e-6),
    "Tanh(b, a);": (np.tanh, 1e-6),
    "Silu(b, a, N);": (lambda x: x * sigmoid(x), 1e-6),
    "Swish(b, a, N, 1.5f);": (lambda x: x * sigmoid(1.5 * x), 1e-6),
    "Gelu(b, a, N);": (lambda x: x * (1 + np.vectorize(erf)(x / 2**0.5)) / 2, 1e-3),
    "Ceil(b, a, N);": (np.ceil, 0),
    "Floor(b, a, N);": (np.floor, 0),
    "Frac(b, a);": (lambda x: x - np.trunc(x), 0),
    "ClampMax(b, a, 0.5f, N);": (lambda x: np.minimum(x, 0.5), 0),
}


def test_each_function(tmp_path: Path) -> None:
    x = DRAWS.standard_normal(1024).astype(np.float32)
    for lines, (function, bound) in FUNCTIONS.items():
        z = np.zeros_like(x)
        probe(tmp_path, f"    {lines}")[1](x, z, device="Atlas A2")
        np.testing.assert_allclose(z, function(x.astype(np.float64)), 0, bound, err_msg=lines)


@pytest.mark.parametrize("device", CHIPS)
def test_a_function_on_each_chip(tmp_path: Path, device: str) -> None:
    x = DRAWS.standard_normal(1024).astype(np.float32)
    z = np.zeros_like(x)
    probe(tmp_path, "    Sigmoid(b, a, N);")[1](x, z, device=device)
    np.testing.assert_allclose(z, sigmoid(x.astype(np.float64)), 0, 1e-6)
