"""Casts against a second definition that knows only integers, for every pattern where it can."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple, get_args

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.data import dtypes
from npusim.data.dtypes import (
    BFLOAT16,
    DTYPES,
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT64,
    DType,
    Overflow,
    RoundMode,
    Whole,
    cast,
    dtype_named,
    dtype_of,
    pack_int4,
    unpack_int4,
)

MODES: tuple[RoundMode, ...] = get_args(RoundMode)
OVERFLOWS: tuple[Overflow, ...] = get_args(Overflow)

by_mode = pytest.mark.parametrize("mode", MODES)
# ---- the second definition: sign, integer significand, power of two ----


class Format(NamedTuple):
    """Bits of an IEEE number: sign, *exponent* bits, *mantissa* bits."""

    exponent: int
    mantissa: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent - 1) - 1

    @property
    def infinity(self) -> int:
        return (2**self.exponent - 1) << self.mantissa


FORMATS = {FLOAT16: Format(5, 10), BFLOAT16: Format(8, 7), FLOAT32: Format(8, 23)}
RANGES = {INT4: (-8, 7), INT8: (-128, 127), UINT8: (0, 255), INT32: (-(2**31), 2**31 - 1)}


class Number(NamedTuple):
    """`-1 ^ negative x significand x 2 ^ power`; *kind* says when it is none."""

    negative: bool
    significand: int = 0
    power: int = 0
    kind: str = "finite"


def decode(pattern: int, form: Format) -> Number:
    negative = bool(pattern >> (form.bits - 1))
    exponent = (pattern >> form.mantissa) & (2**form.exponent - 1)
    mantissa = pattern & (2**form.mantissa - 1)
    if exponent == 2**form.exponent - 1:
        return Number(negative, kind="nan" if mantissa else "inf")
    if exponent:
        mantissa += 1 << form.mantissa
    return Number(negative, mantissa, max(exponent, 1) - form.bias - form.mantissa)


def shifted(number: Number, power: int, mode: RoundMode) -> int:
    """`|number| / 2 ^ power`, rounded to an integer."""
    places = power - number.power
    if places <= 0:
        return number.significand << -places
    whole, rest = divmod(number.significand, 1 << places)
    half = 1 << (places - 1)
    up = {
        "rint": rest > half or (rest == half and whole & 1),
        "none": rest > half or (rest == half and whole & 1),
        "round": rest >= half,
        "trunc": False,
        "floor": number.negative and rest,
        "ceil": not number.negative and rest,
        "odd": rest and not whole & 1,
    }[mode]
    return whole + 1 if up else whole


def to_integer(number: Number, dst: DType, mode: RoundMode) -> int:
    low, high = RANGES[dst]
    if number.kind == "nan":
        return 0
    if number.kind == "inf":
        return low if number.negative else high
    size = shifted(number, 0, mode)
    return min(max(-size if number.negative else size, low), high)


def to_float(number: Number, form: Format, mode: RoundMode, overflow: Overflow) -> int | None:
    """The pattern; None for a NaN, of which any pattern will do."""
    sign = int(number.negative) << (form.bits - 1)
    over = form.infinity if overflow == "inf_nan" else form.infinity - 1
    if number.kind == "nan":
        return None if overflow == "inf_nan" else 0
    if number.kind == "inf":
        return sign | over
    lowest = 1 - form.bias - form.mantissa
    power = max(number.significand.bit_length() - 1 + number.power - form.mantissa, lowest)
    units = shifted(number, power, mode)
    if units < 1 << form.mantissa:
        return sign | units
    # A carry into the next power of two runs into the exponent by itself.
    pattern = ((power - lowest) << form.mantissa) + units
    return sign | (pattern if pattern < form.infinity else over)


def assert_patterns(found: np.ndarray, expected: list[int | None]) -> None:
    """*found* has the patterns *expected*, and a NaN where that is None."""
    bits = found.view(f"u{found.itemsize}").astype(np.int64)
    assert len(bits) == len(expected)
    nan = np.array([pattern is None for pattern in expected])
    numbers = np.array([pattern or 0 for pattern in expected], np.int64)
    np.testing.assert_array_equal(np.isnan(found.astype(np.float64)), nan)
    np.testing.assert_array_equal(bits[~nan], numbers[~nan])


# ---- sources of 16 bits: every pattern ----


@lru_cache
def all_numbers(src: DType) -> tuple[Number, ...]:
    return tuple(decode(pattern, FORMATS[src]) for pattern in range(1 << 16))


def all_values(src: DType) -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16).view(src.numpy)


by_half = pytest.mark.parametrize("src", [FLOAT16, BFLOAT16], ids=str)


@pytest.mark.sample(5)
@by_half
@by_mode
def test_every_half_becomes_the_same_integers(src: DType, mode: RoundMode) -> None:
    wide = [to_integer(number, INT32, mode) for number in all_numbers(src)]
    for dst, (low, high) in RANGES.items():
        expected = np.clip(wide, low, high)
        np.testing.assert_array_equal(cast(all_values(src), dst, mode), expected, str(dst))


@pytest.mark.sample(5)
@pytest.mark.parametrize(("src", "dst"), [(FLOAT16, BFLOAT16), (BFLOAT16, FLOAT16)], ids=str)
@by_mode
def test_every_half_becomes_the_same_other_half(src: DType, dst: DType, mode: RoundMode) -> None:
    for overflow in OVERFLOWS:
        expected = [to_float(n, FORMATS[dst], mode, overflow) for n in all_numbers(src)]
        assert_patterns(cast(all_values(src), dst, mode, overflow), expected)


@pytest.mark.sample(5)
@by_half
@by_mode
def test_every_half_is_exact_in_float32(src: DType, mode: RoundMode) -> None:
    expected = [to_float(n, FORMATS[FLOAT32], "none", "inf_nan") for n in all_numbers(src)]
    assert_patterns(cast(all_values(src), FLOAT32, mode), expected)


def test_every_finite_half_is_exact_in_float32() -> None:
    """Without infinities and NaN it is the bits that are moved, and never a table."""
    finite = [number.kind not in ("nan", "inf") for number in all_numbers(FLOAT16)]
    values = np.extract(finite, all_values(FLOAT16))
    assert dtypes._widened(values, None) is not None
    expected = [
        to_float(number, FORMATS[FLOAT32], "none", "inf_nan")
        for number, is_finite in zip(all_numbers(FLOAT16), finite, strict=True)
        if is_finite
    ]
    assert_patterns(cast(values, FLOAT32, "none"), expected)


def test_subnormal_halves_are_not_lost_where_the_processor_flushes_them() -> None:
    # Without PyTorch the folder tests/torch would pass for it, but it has no version.
    pytest.importorskip("torch.version")
    import torch

    values = np.arange(1 << 15, dtype=np.uint16).view(np.float16)[: 1 << 10].repeat(64)
    expected = cast(values[::64], FLOAT32, "none")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    try:
        found = cast(values, FLOAT32, "none")
    finally:
        torch.set_flush_denormal(False)
    assert found[::64].tobytes() == expected.tobytes()


# ---- float32: specials, ties, and a dense sample ----


def float32_patterns() -> np.ndarray:
    """Specials, float32 numbers at and next to ties of each target, and a walk over all."""
    special = [0, 1, 2, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7F800001]
    halves = np.arange(0, 1 << 15, 37, dtype=np.uint16)
    near = []
    for form in (np.float16, ml_dtypes.bfloat16):
        with np.errstate(all="ignore"):
            low = halves.view(form).astype(np.float64)
            high = (halves + 1).astype(np.uint16).view(form).astype(np.float64)
            near.append(((low + high) / 2).astype(np.float32).view(np.uint32))
    ties = np.arange(-300, 300, dtype=np.float32) + np.float32(0.5)
    large = np.float32([2.0**22 + 0.5, 2.0**23 - 0.5, 2.0**31 - 128, 2.0**31, 2.0**31 + 256])
    exact = np.concatenate([*near, ties.view(np.uint32), large.view(np.uint32)])
    beside = np.concatenate([exact, exact + 1, exact - 1])
    walk = np.arange(0, 1 << 32, 433_494_437 // 1000, dtype=np.uint64)
    patterns = np.concatenate([np.array(special), beside, walk]).astype(np.uint32)
    return np.unique(np.concatenate([patterns, patterns ^ np.uint32(1 << 31)]))


@lru_cache
def float32_sample() -> tuple[np.ndarray, tuple[Number, ...]]:
    patterns = float32_patterns()
    return patterns.view(np.float32), tuple(decode(int(p), FORMATS[FLOAT32]) for p in patterns)


@pytest.mark.sample(3)
@by_mode
def test_float32_becomes_the_same_integers_as_by_the_second_definition(mode: RoundMode) -> None:
    values, numbers = float32_sample()
    wide = [to_integer(number, INT32, mode) for number in numbers]
    for dst, (low, high) in RANGES.items():
        np.testing.assert_array_equal(cast(values, dst, mode), np.clip(wide, low, high), str(dst))


@pytest.mark.sample(5)
@pytest.mark.parametrize("dst", [FLOAT16, BFLOAT16], ids=str)
@by_mode
def test_float32_becomes_the_same_halves(dst: DType, mode: RoundMode) -> None:
    values, numbers = float32_sample()
    for overflow in OVERFLOWS:
        expected = [to_float(number, FORMATS[dst], mode, overflow) for number in numbers]
        assert_patterns(cast(values, dst, mode, overflow), expected)


@pytest.mark.parametrize("dst", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("mode", ["rint", "none"])
def test_float32_without_a_nan_becomes_the_same_halves(dst: DType, mode: RoundMode) -> None:
    values, numbers = float32_sample()
    kept = [number for number in numbers if number.kind != "nan"]
    for overflow in OVERFLOWS:
        expected = [to_float(number, FORMATS[dst], mode, overflow) for number in kept]
        assert_patterns(cast(values[~np.isnan(values)], dst, mode, overflow), expected)
        # What stays finite in fp16 is rounded by its bits.
        small = np.abs(values) < 65520
        finite = [number for number, is_small in zip(numbers, small, strict=True) if is_small]
        expected = [to_float(number, FORMATS[dst], mode, overflow) for number in finite]
        assert_patterns(cast(values[small], dst, mode, overflow), expected)


def test_int64_comes_to_int32_and_saturates() -> None:
    numbers = np.array([-(2**40), -(2**31), -1, 7, 2**31, 2**62])
    found = cast(numbers, INT32, "none")
    assert found.dtype == np.int32
    assert found.tolist() == [-(2**31), -(2**31), -1, 7, 2**31 - 1, 2**31 - 1]


def test_a_cast_may_be_written_over_its_source() -> None:
    memory = np.zeros((9, 40_000), np.uint8)
    values = memory[:, 4000:14_000].view(np.float16)
    values[...] = np.arange(9 * 5000).reshape(9, 5000) % 2039
    expected = values.astype(np.float32)
    wide = memory[:, 2000:22_000].view(np.float32)
    assert cast(values, FLOAT32, "none", out=wide) is wide
    np.testing.assert_array_equal(wide, expected)
    halves = memory[:, 4000:14_000].view(np.float16)
    np.testing.assert_array_equal(cast(wide, FLOAT16, out=halves), expected)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "none"])
def test_float32_to_float32_rounds_to_integers_without_minus_zero(mode: RoundMode) -> None:
    values, numbers = float32_sample()
    expected: list[int | None] = []
    for number in numbers:
        if number.kind == "finite":
            size = shifted(number, 0, mode)
            number = Number(number.negative and size > 0, size)
        expected.append(to_float(number, FORMATS[FLOAT32], "none", "inf_nan"))
    assert_patterns(cast(values, FLOAT32, mode), expected)


def test_float32_to_float32_without_rounding_keeps_every_bit() -> None:
    values, _ = float32_sample()
    kept = cast(values, FLOAT32, "none")
    quiet = ~np.isnan(values)
    np.testing.assert_array_equal(kept[quiet].view(np.uint32), values[quiet].view(np.uint32))
    assert np.isnan(kept[~quiet]).all()


@given(st.integers(0, 2**32 - 1), st.sampled_from(MODES), st.sampled_from(OVERFLOWS))
def test_any_float32_alone_is_the_same(pattern: int, mode: RoundMode, overflow: Overflow) -> None:
    value, number = np.uint32([pattern]).view(np.float32), decode(pattern, FORMATS[FLOAT32])
    for dst in RANGES:
        assert cast(value, dst, mode, overflow).tolist() == [to_integer(number, dst, mode)]
    for dst in (FLOAT16, BFLOAT16):
        expected = to_float(number, FORMATS[dst], mode, overflow)
        assert_patterns(cast(value, dst, mode, overflow), [expected])


# ---- integers ----


def int32_values() -> np.ndarray:
    powers = 2 ** np.arange(31, dtype=np.int64)
    beside = (powers[:, None] + np.arange(-3, 4)).ravel()
    walk = np.arange(-(2**31), 2**31, 1_000_003)
    values = np.concatenate([beside, -beside, walk, np.arange(-2100, 2100)])
    return np.clip(values, -(2**31), 2**31 - 1).astype(np.int32)


@pytest.mark.sample(8)
@pytest.mark.parametrize("dst", [FLOAT16, BFLOAT16, FLOAT32], ids=str)
@by_mode
def test_integers_become_the_nearest_float_whatever_the_mode(dst: DType, mode: RoundMode) -> None:
    values = int32_values()
    numbers = [Number(value < 0, abs(value)) for value in values.tolist()]
    for overflow in OVERFLOWS:
        expected = [to_float(number, FORMATS[dst], "rint", overflow) for number in numbers]
        assert_patterns(cast(values, dst, mode, overflow), expected)


@pytest.mark.parametrize("src", [INT8, UINT8], ids=str)
@pytest.mark.parametrize("dst", [FLOAT16, BFLOAT16, FLOAT32], ids=str)
def test_bytes_are_exact_in_every_float(src: DType, dst: DType) -> None:
    values = np.arange(256, dtype=np.uint8).view(src.numpy)
    assert cast(values, dst).astype(int).tolist() == values.tolist()


@pytest.mark.parametrize("dst", list(RANGES), ids=str)
def test_integers_saturate_to_narrower_integers(dst: DType) -> None:
    values = int32_values()
    np.testing.assert_array_equal(cast(values, dst), np.clip(values, *RANGES[dst]))


# ---- what the vendor prints ----

INF, NAN = float("inf"), float("nan")
F32_MAX = float(np.finfo(np.float32).max)
# asc-devkit, the appendix of boundary values, and for the last rows precision_conversion.md.
BOUNDARIES = [
    (F32_MAX, FLOAT32, INT32, "rint", 2**31 - 1),
    (-F32_MAX, FLOAT32, INT32, "rint", -(2**31)),
    (INF, FLOAT32, INT32, "rint", 2**31 - 1),
    (-INF, FLOAT32, INT32, "rint", -(2**31)),
    (NAN, FLOAT32, INT32, "rint", 0),
    (65504, FLOAT16, INT8, "rint", 127),
    (-65504, FLOAT16, INT8, "rint", -128),
    (INF, FLOAT16, INT8, "rint", 127),
    (-INF, FLOAT16, INT8, "rint", -128),
    (NAN, FLOAT16, INT8, "rint", 0),
    (INF, FLOAT16, INT4, "rint", 7),
    (-INF, FLOAT16, INT4, "rint", -8),
    (NAN, FLOAT16, INT4, "rint", 0),
    (-65504, FLOAT16, UINT8, "rint", 0),
    (65504, FLOAT16, UINT8, "rint", 255),
    (NAN, BFLOAT16, INT32, "rint", 0),
    (65504, INT32, FLOAT16, "none", 65504),
    (2**31 - 1, INT32, FLOAT16, "none", INF),
    (2**22 + 0.5, FLOAT32, INT32, "rint", 2**22),
    (2**22 + 0.5, FLOAT32, INT32, "round", 2**22 + 1),
    *((2**7 - 0.5, FLOAT16, INT8, mode, 127) for mode in ("rint", "floor", "ceil", "round")),
    (2**7 - 0.5, FLOAT16, INT8, "trunc", 127),
    (1.5, FLOAT16, INT4, "rint", 2),
    (1.5, FLOAT16, INT4, "trunc", 1),
    (0.5 + 2**-12, FLOAT32, FLOAT16, "rint", 0.5),
    (0.5 + 2**-12, FLOAT32, FLOAT16, "round", 0.5 + 2**-11),
    (2**25 + 3, INT32, FLOAT32, "none", 2**25 + 4),
]


def test_boundaries_of_the_vendors_tables(subtests: pytest.Subtests) -> None:
    for value, src, dst, mode, expected in BOUNDARIES:
        with subtests.test(value=value, src=src, dst=dst, mode=mode):
            found = cast(np.array([value]).astype(src.numpy), dst, mode)

            assert found.astype(np.float64).tolist() == [expected]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("rint", [-2, -2, 0, 0, 2, 2, 3]),
        ("round", [-3, -2, -1, 1, 2, 3, 3]),
        ("floor", [-3, -2, -1, 0, 1, 2, 2]),
        ("ceil", [-2, -1, 0, 1, 2, 3, 3]),
        ("trunc", [-2, -1, 0, 0, 1, 2, 2]),
        ("odd", [-3, -1, -1, 1, 1, 3, 3]),
        ("none", [-2, -2, 0, 0, 2, 2, 3]),
    ],
)
def test_ties_by_mode(mode: RoundMode, expected: list[int]) -> None:
    ties = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.75]
    assert cast(np.float16(ties), INT32, mode).tolist() == expected
    assert cast(np.float32(ties), INT32, mode).tolist() == expected


# ---- the fast ways ----


@pytest.mark.parametrize("mode", ["rint", "floor", "ceil", "trunc", "round", "odd", "none"])
def test_fast_float32_to_int32_is_the_definition(
    mode: RoundMode, rng: np.random.Generator, subtests: pytest.Subtests
) -> None:
    for edge in [0.0, 2.0**31 - 128, -(2.0**31), 2.0**31, NAN, INF]:
        with subtests.test(edge=edge):
            values = np.append(rng.uniform(-300, 300, 500) * 10.0 ** rng.integers(0, 7, 500), edge)
            values = values.astype(np.float32)
            expected = dtypes._define(values, INT32, mode, "inf_nan")
            np.testing.assert_array_equal(cast(values, INT32, mode), expected)


@pytest.mark.parametrize("dst", [FLOAT16, FLOAT32], ids=str)
def test_fast_int32_to_float(
    dst: DType, rng: np.random.Generator, subtests: pytest.Subtests
) -> None:
    for edge in [0, 2048, -2048, 2049, -2049, 2**31 - 1, -(2**31)]:
        with subtests.test(edge=edge):
            values = np.append(rng.integers(-2048, 2049, 500), edge).astype(np.int32)
            for overflow in OVERFLOWS:
                found = cast(values, dst, "none", overflow)
                expected = dtypes._define(values, dst, "none", overflow)
                assert found.tobytes() == expected.tobytes()


def test_casts_keep_the_shape_of_views_and_of_nothing() -> None:
    table = np.arange(24, dtype=np.float16).reshape(4, 6)
    assert cast(table[::2, ::3], INT8).tolist() == [[0, 3], [12, 15]]
    for src in (FLOAT32, FLOAT16, INT32):
        assert cast(np.empty((0, 3), src.numpy), FLOAT16).shape == (0, 3)


def test_an_unknown_mode_is_refused() -> None:
    message = (
        "dtypes.cast: mode must be one of rint, floor, ceil, round, trunc, odd, none, not 'up'"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cast(np.float32([1]), INT32, "up")  # type: ignore[arg-type]


# ---- int4 ----


def test_every_byte_of_two_int4_survives_unpacking_and_packing() -> None:
    packed = np.arange(256, dtype=np.uint8)
    numbers = unpack_int4(packed)
    assert numbers.min() == -8
    assert numbers.max() == 7
    np.testing.assert_array_equal(pack_int4(numbers), packed)


def test_int4_low_nibble_comes_first_as_in_the_vendors_words() -> None:
    # op-plugin, test_npu_quantize.py, int4s_to_int32: -8 to 7 as two words.
    words = pack_int4(np.arange(-8, 8, dtype=np.int8).reshape(2, 8)).view("<u4")
    assert [hex(word) for word in words.ravel()] == ["0xfedcba98", "0x76543210"]
    assert pack_int4(np.int8([1, -2])).tolist() == [0xE1]


def test_int4_keeps_leading_axes() -> None:
    numbers = np.arange(-8, 8, dtype=np.int8).reshape(2, 2, 4)
    assert pack_int4(numbers).shape == (2, 2, 2)
    np.testing.assert_array_equal(unpack_int4(pack_int4(numbers)), numbers)


# ---- names and sizes ----


def test_each_type_is_found_by_its_name_and_by_its_numpy_type() -> None:
    for dtype in DTYPES:
        assert dtype_named(dtype.name) is dtype
        assert dtype_of(np.empty(0, dtype.numpy)) is dtype
        assert repr(dtype) == dtype.name
    assert dtype_named("half") is FLOAT16
    assert dtype_named("float") is FLOAT32
    assert dtype_of(np.empty(0, np.complex64)) is None


def test_sizes_are_those_on_the_chip() -> None:
    found = [(dtype.name, dtype.nbytes(3), dtype.is_float) for dtype in DTYPES]
    assert found == [
        ("float32", 12, True),
        ("float16", 6, True),
        ("bfloat16", 6, True),
        ("int4", 2, False),
        ("int8", 3, False),
        ("uint8", 3, False),
        ("int32", 12, False),
        ("int64", 24, False),
        ("uint64", 24, False),
    ]
    assert (INT64.cann, UINT64.cann, BFLOAT16.cann) == ("DT_INT64", "DT_UINT64", "DT_BF16")


def test_an_unknown_name_is_refused_with_all_that_are_known() -> None:
    message = (
        "dtypes: a dtype must be one of float32, float16, bfloat16, int4, int8, uint8, int32, "
        "int64, uint64, int16, uint16, uint32, not 'complex64'; use one of these"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        dtype_named("complex64")


@pytest.mark.parametrize("first", [INT16, INT32], ids=str)
@pytest.mark.parametrize("then", [FLOAT16, INT8, UINT8, INT16], ids=str)
def test_what_a_cast_has_in_hand_is_cast_on_as_what_it_wrote(first: DType, then: DType) -> None:
    # All that fp16 holds without a rounding, and one more; from both sides of zero.
    for largest in (120, 2048, 2049):
        values = np.arange(-largest, largest + 0.5, 0.5).astype(np.float32)
        whole = Whole.rounded(values, first, "rint")
        assert whole is not None
        written = np.empty(values.shape, first.numpy)
        whole.put(first, written)
        assert written.tobytes() == cast(values, first, "rint").tobytes()
        further = whole.cast_to(then)
        if further is None:
            assert (then, largest) == (FLOAT16, 2049)
            continue
        found, expected = np.empty(values.shape, then.numpy), cast(written, then)
        further.put(then, found)
        assert found.tobytes() == expected.tobytes()
        last = further.cast_to(INT8)
        assert last is not None
        narrow = np.empty(values.shape, np.int8)
        last.put(INT8, narrow)
        assert narrow.tobytes() == cast(expected, INT8).tobytes()


def test_nothing_is_in_hand_of_numbers_that_an_integer_does_not_hold() -> None:
    for values in ([np.nan, 1], [1, np.inf], [2.0**31], [-32769.0, 0]):
        assert Whole.rounded(np.float32(values), INT16, "rint") is None
