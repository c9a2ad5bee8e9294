"""Small calls of the quantising operators whose bits were worked out apart from npusim.

Each was computed by hand-written numpy in the order of the vendor's kernels (ops-nn@e5c3fa9, quant
and activation): one IEEE operation at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chips import every
from op_calls import A2, A3, INFERENCE, Array

from npusim import run

ROWS, COLUMNS = np.arange(3)[:, None], np.arange(16)[None, :]
X = (((37 * COLUMNS + 11 * ROWS) % 101 - 50) / 16).astype(np.float16)
SMOOTH = ((np.arange(16) % 5 + 1) / 4).astype(np.float16)


def outputs(op: str, device: str, *args: Any, **kwargs: Any) -> tuple[Array, ...]:
    found = run(op, *args, device=device, timing=False, **kwargs).output
    return found if isinstance(found, tuple) else (found,)


def bits(numbers: Array) -> list[str]:
    words = numbers.view(f"u{numbers.itemsize}").ravel()
    return [f"{word:0{2 * numbers.itemsize}X}" for word in words]


@pytest.mark.parametrize("device", every(A2 + A3))
def test_dynamic_quant_with_smooth_scales(device: str) -> None:
    values, scale = outputs("npu_dynamic_quant", device, X, smooth_scales=SMOOTH)
    assert values[0].tolist() == [
        *(-34, -18, 49, -110, -10, 23, -41, 14, 121, -69, 12, -65, -21, 74, -127, 0),
    ]
    assert bits(scale) == ["3CBA74EA", "3CB972E6", "3CC58B16"]


@pytest.mark.parametrize("device", every(A2 + A3))
def test_dynamic_quant_to_int4(device: str) -> None:
    values, scale = outputs("npu_dynamic_quant", device, X, dst_type="quint4x2")
    # -7 -2 3 -6 0 5 -4 1 | 6 -3 2 -7 -1 4 -5 0, the first in the lowest bits.
    assert bits(values[0]) == ["1C50A3E9", "0B4F92D6"]
    assert bits(scale)[0] == "3EE4924A"


@pytest.mark.parametrize("device", every(INFERENCE))
def test_dynamic_quant_of_310p(device: str) -> None:
    # Its rows are whole blocks of int8: zeros fill them up, and change nothing else.
    x = np.concatenate([X, np.zeros_like(X)], axis=1)
    values, scale = outputs("npu_dynamic_quant", device, x)
    assert values[0].tolist() == [
        *(-127, -33, 61, -102, -8, 86, -76, 18, 112, -51, 43, -119, -25, 69, -94, 0),
        *(0,) * 16,
    ]
    assert bits(scale)[0] == "3CC99326"


@pytest.mark.parametrize("device", every(A2 + A3 + INFERENCE))
def test_anti_quant_to_float16(device: str) -> None:
    x = np.array([-128, -7, 0, 127], np.int8)
    scale, offset = np.array([0.0123], np.float32), np.array([0.3], np.float32)
    (values,) = outputs("npu_anti_quant", device, x, scale, offset=offset)
    assert bits(values) == ["BE48", "AD46", "1B8F", "3E43"]
