"""What the fixpipe makes of the numbers of L0C, at the corners of its rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, Overflow
from npusim.values.semantics.quantise import convert

INF, NAN = float("inf"), float("nan")


def parameter(scale: float, offset: int = 0, is_signed: bool = True, low_bits: int = 0) -> int:
    """Bits 45 to 37 the offset, 46 the sign, 31 to 13 the scale; *low_bits* below it."""
    bits = int(np.float32(scale).view(np.uint32))
    return bits | low_bits | (offset & 0x1FF) << 37 | int(is_signed) << 46


def to_int8(values: Any, mode: Any, *scales: int) -> list[int]:
    array = np.asarray(values, np.int32 if mode == "req8" else np.float32)
    with np.errstate(all="ignore"):
        return convert(array, mode, np.uint64(scales), INT8, "inf_nan").tolist()


EIGHT = pytest.mark.parametrize("mode", ["req8", "qf322b8"])


@EIGHT
@pytest.mark.parametrize(
    ("offset", "large", "small"),
    [(0, 127, -128), (-200, 55, -128), (100, 127, -128), (255, 127, -1), (-256, -1, -128)],
)
def test_nine_bits_saturate(mode: Any, offset: int, large: int, small: int) -> None:
    # 255 - 200 = 55, which a sum that saturates once would never give.
    found = to_int8([10**6, 256, 255, -(10**6), -257, -256], mode, parameter(1, offset))
    assert found == [large] * 3 + [small] * 3


@EIGHT
def test_the_offset_is_nine_bits_in_twos_complement(mode: Any) -> None:
    offsets = [-256, -255, -1, 0, 1, 127, 128, 255]
    for offset in offsets:
        expected = [max(-128, min(127, value + offset)) for value in (-100, 0, 100)]
        assert to_int8([-100, 0, 100], mode, parameter(1, offset)) == expected


@EIGHT
def test_ties_go_to_even_before_the_offset(mode: Any) -> None:
    found = to_int8([-5, -3, -1, 1, 3, 5, 7], mode, parameter(0.5))
    assert found == [-2, -2, 0, 0, 2, 2, 4]
    # After it, 0.5 + 1 would be 1.5 and go to 2.
    assert to_int8([1, 3], mode, parameter(0.5, 1)) == [1, 3]


@EIGHT
def test_without_bit_46_the_result_is_unsigned(mode: Any) -> None:
    values = [-5, 0, 127, 128, 200, 255, 300]
    found = to_int8(values, mode, parameter(1, is_signed=False))
    assert np.int8(found).view(np.uint8).tolist() == [0, 0, 127, 128, 200, 255, 255]
    shifted = to_int8(values, mode, parameter(1, -100, is_signed=False))
    assert np.int8(shifted).view(np.uint8).tolist() == [0, 0, 27, 28, 100, 155, 155]


@EIGHT
def test_a_number_just_beyond_a_tie_is_not_a_tie(mode: Any) -> None:
    above = float(np.nextafter(np.float32(0.5), np.float32(1)))
    # Only the upper 19 bits of a scale count, so the number itself must lie there.
    assert to_int8([1], mode, parameter(above)) == [0]
    assert to_int8([1], mode, parameter(0.5 + 2.0**-11)) == [1]


@pytest.mark.parametrize("mode", ["req8", "qf322b8", "deqf16"])
def test_the_lowest_bits_of_a_scale_are_not_looked_at(mode: Any) -> None:
    dtype = FLOAT16 if mode == "deqf16" else INT8
    values = np.arange(-3000, 3000, 7).astype(np.float32 if mode == "qf322b8" else np.int32)
    clean, dirty = (np.uint64([parameter(0.031, low_bits=x) & ~0x1FFF | x]) for x in (0, 0x1FFF))
    found = [convert(values, mode, scale, dtype, "inf_nan") for scale in (clean, dirty)]
    np.testing.assert_array_equal(*found)
    # Truncated, not rounded: the scale in use is the one below.
    factor = np.uint32([int(np.float32(0.031).view(np.uint32)) & 0xFFFFE000]).view(np.float32)
    assert factor < np.float32(0.031)
    if mode == "deqf16":
        np.testing.assert_array_equal(found[0], (values * factor).astype(np.float16))


@pytest.mark.parametrize("mode", ["req8", "deqf16"])
def test_bit_36_shifts_to_sixteen_bits_before_the_scale(mode: Any) -> None:
    dtype = FLOAT16 if mode == "deqf16" else INT8
    values = np.array([7, -7, 2**21, -(2**21)], np.int32)
    for field, expected in ((0, [3, -4, 32767, -32768]), (4, [0, -1, 32767, -32768])):
        word = parameter(2.0**-9) | field << 32 | 1 << 36
        found = convert(values, mode, np.uint64([word]), dtype, "inf_nan")
        scaled = np.array(expected, np.float32) * np.float32(2.0**-9)
        whole = scaled if dtype is FLOAT16 else np.rint(scaled)
        np.testing.assert_array_equal(found, whole.astype(found.dtype))
    # Without the bit the distance means nothing, nor does it for sums in fp32.
    plain, distant = (np.uint64([parameter(0.5) | field << 32]) for field in (0, 4))
    assert (convert(values, mode, plain, dtype, "inf_nan")
            == convert(values, mode, distant, dtype, "inf_nan")).all()  # fmt: skip
    assert to_int8([9], "qf322b8", parameter(1) | 1 << 36) == [9]


def test_what_is_no_number_becomes_zero_and_then_gets_the_offset() -> None:
    assert to_int8([NAN, 0, INF, -INF], "qf322b8", parameter(1, 5)) == [5, 5, 127, -128]
    assert to_int8([INF, 1], "qf322b8", parameter(0, 5)) == [5, 5]
    assert to_int8([1, -1, 0], "qf322b8", parameter(INF, 5)) == [127, -128, 5]
    assert to_int8([1, -1, 0], "req8", parameter(INF, 5)) == [127, -128, 5]


def test_each_column_has_its_own_offset_and_sign() -> None:
    scales = parameter(1, 1), parameter(2, -1), parameter(1, 0, is_signed=False)
    assert to_int8([[100, 100, 200]] * 2, "req8", *scales) == [[101, 127, -56]] * 2


def test_an_integer_is_rounded_to_fp32_before_it_is_scaled() -> None:
    # 2^24 + 1 is a tie of fp32 and becomes 2^24, and that times 2^-25 a tie of the integers.
    numbers = [2**24 + 1, 2**24 + 2, -(2**24) - 1, 2**31 - 1]
    assert to_int8(numbers, "req8", parameter(2.0**-25)) == [0, 1, 0, 64]


def test_a_product_is_rounded_to_fp32_before_it_becomes_fp16() -> None:
    # 50.046873... becomes 50.046875, a tie of fp16, and that goes to even.
    scale = (1 + 2.0**-10) * 2.0**-9
    assert np.float16(25599 * scale) == 50.03125
    found = convert(np.int32([25599]), "deqf16", np.uint64([parameter(scale)]), FLOAT16, "inf_nan")
    assert found.tolist() == [50.0625]


@pytest.mark.parametrize(
    ("overflow", "expected"),
    [("inf_nan", [INF, -INF, 65504]), ("saturate", [65504, -65504, 65504])],
)
def test_large_halves_follow_the_overflow_mode(overflow: Overflow, expected: list[float]) -> None:
    values = np.int32([70000, -70000, 65504])
    found = convert(values, "deqf16", np.uint64([parameter(1)]), FLOAT16, overflow)
    assert found.tolist() == expected
    cast = convert(values.astype(np.float32), "cast", None, FLOAT16, overflow)
    assert cast.tolist() == expected


def test_deqf16_looks_at_no_offset_and_no_sign() -> None:
    values = np.int32([-100, 0, 100])
    for scale in (parameter(0.5, 77), parameter(0.5, -1, is_signed=False)):
        found = convert(values, "deqf16", np.uint64([scale]), FLOAT16, "inf_nan")
        assert found.tolist() == [-50, 0, 50]


def test_a_cast_rounds_ties_to_even() -> None:
    halves = np.float32([2049, 2051, -2049, 1])
    assert convert(halves, "cast", None, FLOAT16, "inf_nan").tolist() == [2048, 2052, -2048, 1]
    brains = np.float32([257, 259, -257, 1])
    found = convert(brains, "cast", None, BFLOAT16, "inf_nan")
    assert found.astype(np.float32).tolist() == [256, 260, -256, 1]


@pytest.mark.parametrize("dtype", [FLOAT32, INT32], ids=str)
def test_without_a_mode_all_bits_stay(dtype: Any) -> None:
    bits = np.uint32([0, 0x80000000, 0x7FC01234, 0xFF800000, 1])
    found = convert(bits.view(dtype.numpy), "none", None, dtype, "inf_nan")
    assert found.view(np.uint32).tolist() == bits.tolist()
