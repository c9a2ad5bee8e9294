"""Bits of the RMS norms, worked out apart from npusim in the order of each of the vendor's kernels.

Inputs are arithmetic progressions modulo a number, so that every one of them is distinct.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from op_calls import Array

from npusim import run

BF16 = ml_dtypes.bfloat16
COLUMNS = 200
PLACES = np.arange(COLUMNS)


def drawn(factor: int, start: int, modulus: int) -> Any:
    return (factor * PLACES + start) % modulus


def row(values: Any, dtype: Any) -> Array:
    """One row of 200 numbers, rounded from fp32."""
    found: Array = np.float32(values).astype(dtype)
    return found


class Inputs:
    """x1, x2 `(1, 200)`, gamma, beta, smooth, the scales and zero points `(200,)`."""

    def __init__(self, dtype: Any) -> None:
        self.x1 = row((drawn(7919, 13, 10007) - 5003) / 1024, dtype)[None]
        self.x2 = row((drawn(6151, 29, 9973) - 4986) / 512, dtype)[None]
        self.gamma = row(1 + (drawn(4409, 5, 997) - 498) / 4096, dtype)
        self.beta = row((drawn(3301, 11, 1009) - 504) / 2048, dtype)
        self.smooth = row(0.5 + drawn(2503, 3, 509) / 512, dtype)
        scale_dtype, point_dtype = (np.float32, np.int32) if dtype is np.float16 else (BF16, BF16)
        self.scales = np.float32(0.02 + (PLACES % 5) * 0.005).astype(scale_dtype)
        self.points = (PLACES % 7 - 3).astype(point_dtype)
        self.one_scale = np.array([0.0213], np.float32).astype(scale_dtype)
        self.one_point = np.array([2]).astype(point_dtype)


def first_bits(values: Array, count: int = 8) -> str:
    """The first *count* elements of *values* as hexadecimal numbers."""
    flat = np.ascontiguousarray(values).reshape(-1)[:count]
    digits = 2 * flat.dtype.itemsize
    whole = flat.view(f"u{flat.dtype.itemsize}")
    return " ".join(f"{int(number):0{digits}X}" for number in whole)


def outputs(op: str, *args: Any, **kwargs: Any) -> Any:
    return run(op, *args, device="ascend910b2", timing=False, **kwargs).output


HALF, BRAIN = Inputs(np.float16), Inputs(BF16)


def test_inputs_are_those_of_the_vectors() -> None:
    assert first_bits(HALF.x1, 4) == "C4E0 41B8 3A92 BCDF"
    assert first_bits(HALF.x2, 4) == "C8D7 40AA C522 46E2"
    assert first_bits(HALF.gamma, 4) == "3B0A 3BDC 3C57 3B8E"
    assert first_bits(BRAIN.x1, 4) == "C09C 4037 3F52 BF9C"
    assert first_bits(BRAIN.x2, 4) == "C11B 4015 C0A4 40DC"
    assert first_bits(BRAIN.gamma, 4) == "3F61 3F7C 3F8B 3F72"


@pytest.mark.parametrize(
    ("given", "rstd", "y"),
    [
        (HALF, "3EB5573F", "BE14 3BF6 350D B684 BCD5 3DC0 3AF9 3106"),
        (BRAIN, "3EB558DF", "BFC2 3F7F 3EA2 BED1 BF9A 3FB8 3F5F 3E20"),
    ],
    ids=["float16", "bfloat16"],
)
@pytest.mark.parametrize("template", ["merge_n", "normal"])
def test_npu_rms_norm(given: Inputs, rstd: str, y: str, template: str) -> None:
    """Both orders of the sum agree."""
    found = outputs("npu_rms_norm", given.x1, given.gamma, template=template)
    assert (first_bits(found[1]), first_bits(found[0])) == (rstd, y)


@pytest.mark.parametrize(
    ("given", "template", "rstd", "y"),
    [
        (HALF, "single_n", "3E1FD7F1", "BFFF 3A5F B9D8 3AAE B906 B80B 3C09 B84F"),
        (HALF, "normal", "3E1FD7F1", "BFFF 3A5F B9D8 3AAE B906 B80B 3C09 B84F"),
        (BRAIN, "single_n", "3E1FCE36", "BFFF 3F4C BF3B 3F56 BF21 BF02 3F81 BF09"),
        (BRAIN, "merge_n", "3E1FCE36", "BFFF 3F4C BF3B 3F56 BF21 BF02 3F81 BF09"),
        # The sum is not rounded first: 35 of the 200 differ.
        (BRAIN, "normal", "3E1FD94A", "BFFF 3F4C BF3B 3F56 BF20 BF02 3F81 BF0A"),
    ],
)
def test_npu_add_rms_norm(given: Inputs, template: str, rstd: str, y: str) -> None:
    found = outputs("npu_add_rms_norm", given.x1, given.x2, given.gamma, template=template)
    x = "CB47 4531 C450 45AA C3AF C324 4667 C234"
    if given is BRAIN:
        x = "C169 40A6 C08A 40B5 C076 C066 40CD C046"
    assert (first_bits(found[1]), first_bits(found[0]), first_bits(found[2])) == (rstd, y, x)


def test_the_two_roundings_of_bfloat16_differ_in_35_places() -> None:
    call = BRAIN.x1, BRAIN.x2, BRAIN.gamma
    one, other = (
        outputs("npu_add_rms_norm", *call, template=name)[0] for name in ("single_n", "normal")
    )
    assert np.count_nonzero(one != other) == 35


@pytest.mark.parametrize("given", [HALF, BRAIN], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("template", ["single_n", "normal", "split_d"])
def test_npu_add_rms_norm_quant(given: Inputs, template: str) -> None:
    call = given.x1, given.x2, given.gamma, given.scales, given.points
    y1, y2, _ = outputs("npu_add_rms_norm_quant", *call, template=template)
    assert y1[0, :8].tolist() == [-103, 30, -25, 24, -15, -23, 43, -21]
    assert not y2.any()
    y1, *_ = outputs("npu_add_rms_norm_quant", *call, given.beta, template=template)
    sixth = -26 if given is HALF else -27
    assert y1[0, :8].tolist() == [-115, 26, -24, 28, -20, sixth, 46, -14]


@pytest.mark.parametrize("given", [HALF, BRAIN], ids=["float16", "bfloat16"])
def test_npu_add_rms_norm_quant_with_one_scale(given: Inputs) -> None:
    call = given.x1, given.x2, given.gamma, given.one_scale, given.one_point, given.beta
    y1, *_ = outputs("npu_add_rms_norm_quant", *call)
    assert y1[0, :8].tolist() == [-103, 34, -31, 49, -37, -25, 53, -14]


@pytest.mark.parametrize(
    ("given", "scales", "seventh", "second"),
    [
        (HALF, ("3C8423FC", "3CB865FD", "3E95D685"), 63, 43),
        (BRAIN, ("3C8465EC", "3CB8BB95", "3E962149"), 62, 44),
    ],
    ids=["float16", "bfloat16"],
)
@pytest.mark.parametrize("template", ["normal", "single_row", "slice_d"])
def test_npu_add_rms_norm_dynamic_quant(
    given: Inputs, scales: tuple[str, ...], seventh: int, second: int, template: str
) -> None:
    op, call = "npu_add_rms_norm_dynamic_quant", (given.x1, given.x2, given.gamma)
    y1, _, _, scale, _ = outputs(op, *call, template=template)
    assert y1[0, :8].tolist() == [-124, 49, -45, 52, -39, -31, seventh, -33]
    assert first_bits(scale) == scales[0]
    vectors = {"smooth_scale1": given.smooth, "beta": given.beta}
    y1, _, _, scale, _ = outputs(op, *call, **vectors, template=template)
    assert y1[0, :8].tolist() == [-50, second, -42, 55, -43, -28, 48, -14]
    assert first_bits(scale) == scales[1]
    packed = outputs(op, *call, y_dtype="quint4x2", template=template)
    assert packed[0].shape == (1, COLUMNS // 8)
    assert first_bits(packed[3]) == scales[2]
