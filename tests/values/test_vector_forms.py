"""Forms of the vector pipe beyond the plain ones, against the documents, number by number.

asc-devkit: LeakyRelu.md, ShiftLeft.md, ShiftRight.md, AddRelu.md, AddReluCast.md, MulCast.md,
FusedMulAdd.md, MulAddRelu.md, Axpy.md, CastDequant.md, SetDeqScale.md, and the tables of
Memory矢量计算接口边界值汇总.md.
"""

from __future__ import annotations

from math import copysign, isnan
from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_spec

from npusim import isa
from npusim.check.rules import Place, check
from npusim.data.dtypes import (
    FLOAT16,
    FLOAT32,
    INT8,
    INT16,
    INT32,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)
from npusim.kernel.program import Program
from npusim.values.buffers import Buffers
from npusim.values.semantics import State, run

SPECS = {"inf_nan": (tiny_spec(), "aiv"), "saturate": (tiny_spec("2002"), "ai_core")}
INF, NAN = float("inf"), float("nan")
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.1, -2.5, 65504.0, -65504.0, 3e38, -3e38, INF, -INF, NAN, 1e-7)


def ub(offset_bytes: int, dtype: DType, count: int, mask: int | None = None) -> isa.Local:
    return isa.Local("ub", offset_bytes, dtype, count, mask=mask)


def computed(op: isa.MicroOp, overflow: Any = "inf_nan", **operands: np.ndarray) -> np.ndarray:
    """What *op* leaves in its dst, which a chip with *overflow* accepts."""
    spec, kind = SPECS[overflow]
    check(Program("form", (op,)), Place(spec, kind))
    buffers = Buffers(spec.cores[kind], byte_exact=True)
    for name, values in operands.items():
        buffers.write(getattr(op, name), values)
    run([op], State(buffers, {}, overflow))
    (dst,) = isa.writes(op)
    return buffers.read(dst).copy()


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    """Bit for bit, any NaN being as good as any other."""
    assert found.dtype == expected.dtype
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    bits = f"u{found.itemsize}"
    np.testing.assert_array_equal(found.view(bits)[~nan], expected.view(bits)[~nan])


def numbers(dtype: DType, seed: int, count: int = 64) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if not dtype.is_float:
        limits = np.iinfo(dtype.numpy)
        found = rng.integers(limits.min, limits.max, count, dtype.numpy, endpoint=True)
        found[:4] = limits.min, limits.max, 0, 1
        return found
    found = rng.normal(0, 50, count)
    found[::3] = np.resize(rng.permutation(FLOATS), found[::3].size)
    with np.errstate(over="ignore"):
        return found.astype(dtype.numpy)


def rounded(value: float, dtype: DType, overflow: str = "inf_nan") -> Any:
    """*value*, exact in float64, as *dtype*."""
    with np.errstate(over="ignore"):
        found = dtype.numpy.type(value)
    if overflow == "saturate" and dtype is FLOAT16:
        return (
            np.float16(0) if isnan(found) else np.clip(found, np.float16(-65504), np.float16(65504))
        )
    return found


# ---- scalars ----


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32])
@pytest.mark.parametrize("slope", [0.1, -2.0, 0.0, -0.0, INF, -INF, NAN])
def test_a_leaky_relu_multiplies_what_has_a_sign(dtype: DType, slope: float) -> None:
    values = numbers(dtype, 1)
    scalar = dtype.numpy.type(slope)
    op = isa.BinaryScalar("leaky_relu", ub(512, dtype, 64), ub(0, dtype, 64), slope)
    with np.errstate(all="ignore"):
        expected = [
            rounded(float(x) * float(scalar), dtype) if copysign(1, x) < 0 else x for x in values
        ]
    assert_same(computed(op, a=values), np.array(expected, dtype.numpy))


def test_a_leaky_relu_saturates_on_310p() -> None:
    values = np.array([-65504, INF, -INF, NAN, 2, -2], np.float16)
    op = isa.BinaryScalar("leaky_relu", ub(512, FLOAT16, 6), ub(0, FLOAT16, 6), 3.0)
    expected = np.array([-65504, 65504, -65504, 0, 2, -6], np.float16)
    assert_same(computed(op, "saturate", a=values), expected)


@draws(150)
@given(
    dtype=st.sampled_from((INT16, UINT16, INT32, UINT32)),
    op=st.sampled_from(("shift_left", "shift_right", "shift_right_round")),
    seed=st.integers(0, 50),
    data=st.data(),
)
def test_bits_are_shifted(dtype: DType, op: Any, seed: int, data: st.DataObject) -> None:
    if op == "shift_right_round":
        dtype = INT16 if dtype.bits == 16 else INT32
    places = data.draw(st.integers(0, dtype.bits))
    values = numbers(dtype, seed)
    expected = [shifted(op, int(x), places, dtype) for x in values]
    shift = isa.BinaryScalar(op, ub(512, dtype, 64), ub(0, dtype, 64), places)
    assert computed(shift, a=values).tolist() == expected


def shifted(op: str, value: int, places: int, dtype: DType) -> int:
    """The documents' words on strings of bits."""
    is_signed = dtype in (INT16, INT32)
    bits = f"{value % 2**dtype.bits:0{dtype.bits}b}"
    if op == "shift_left":
        kept = 1 if is_signed else 0
        found = bits[:kept] + (bits[kept:] + "0" * places)[places:]
    else:
        found = (places * (bits[0] if is_signed else "0") + bits)[: dtype.bits]
    number = int(found, 2) - (2**dtype.bits if is_signed and found[0] == "1" else 0)
    is_rounded = op == "shift_right_round" and places and bits[-places] == "1"
    return number + bool(is_rounded)


# ---- sums and products ----


@pytest.mark.parametrize("overflow", ["inf_nan", "saturate"])
@pytest.mark.parametrize("op", ["add_relu", "sub_relu"])
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32, INT16])
def test_what_is_below_zero_is_cut_off(op: Any, dtype: DType, overflow: Any) -> None:
    a, b = numbers(dtype, 2), numbers(dtype, 3)
    form = isa.Binary(op, ub(1024, dtype, 64), ub(0, dtype, 64), ub(512, dtype, 64))
    expected = []
    with np.errstate(all="ignore"):
        for x, y in zip(a, b, strict=True):
            if dtype is INT16:
                exact = int(x) + int(y) if op == "add_relu" else int(x) - int(y)
                total: Any = min(max(exact, -(2**15)), 2**15 - 1)
            else:
                total = x + y if op == "add_relu" else x - y
                total = rounded(total, dtype, overflow)
            expected.append(total if total > 0 or total != total else 0)
    assert_same(computed(form, overflow, a=a, b=b), np.array(expected, dtype.numpy))


@pytest.mark.parametrize(
    ("op", "src", "dst"),
    [
        ("add_relu", FLOAT16, INT8),
        ("sub_relu", INT16, INT8),
        ("add_relu", FLOAT32, FLOAT16),
        ("mul", FLOAT16, INT8),
        ("mul", FLOAT16, UINT8),
    ],
)
def test_a_result_may_be_narrower(op: Any, src: DType, dst: DType) -> None:
    a, b = numbers(src, 4), numbers(src, 5)
    form = isa.Binary(op, ub(1024, dst, 64), ub(0, src, 64), ub(512, src, 64))
    expected = []
    with np.errstate(all="ignore"):
        for x, y in zip(a, b, strict=True):
            exact = {"add_relu": x + y, "sub_relu": int(x) - int(y) if src is INT16 else 0}
            value: Any = x * y if op == "mul" else exact[op]
            value = value if op == "mul" or value > 0 or value != value else 0
            if value != value:
                expected.append(0)
            elif dst is FLOAT16:
                expected.append(np.float16(value))
            else:
                limits = np.iinfo(dst.numpy)
                whole = value if abs(value) == INF else round(float(value))
                expected.append(int(min(max(whole, limits.min), limits.max)))
    assert_same(computed(form, a=a, b=b), np.array(expected, dst.numpy))


@pytest.mark.parametrize("form", ["mul_add_dst", "fused_mul_add", "mul_add_relu"])
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32])
def test_a_product_is_rounded_before_it_is_added(form: Any, dtype: DType) -> None:
    a, b, dst = (numbers(dtype, seed) for seed in (6, 7, 8))
    op = isa.MulAddDst(ub(1024, dtype, 64), ub(0, dtype, 64), ub(512, dtype, 64), form)
    expected = []
    with np.errstate(all="ignore"):
        for x, y, z in zip(a, b, dst, strict=True):
            total = x * y + z if form == "mul_add_dst" else x * z + y
            is_cut = form == "mul_add_relu" and total <= 0
            expected.append(dtype.numpy.type(0) if is_cut else total)
    assert_same(computed(op, a=a, b=b, dst=dst), np.array(expected, dtype.numpy))


def test_a_product_of_halves_by_a_scalar_is_added_to_floats() -> None:
    src, dst = numbers(FLOAT16, 9), numbers(FLOAT32, 10)
    scalar = float(np.float16(0.1))
    with np.errstate(all="ignore"):
        expected = np.array(
            [np.float32(float(x) * scalar) + y for x, y in zip(src, dst, strict=True)]
        )
    op = isa.Axpy(ub(1024, FLOAT32, 64), ub(0, FLOAT16, 64), 0.1)
    assert_same(computed(op, src=src, dst=dst), expected)


def test_sums_of_int16_wrap_or_saturate() -> None:
    a, b = np.array([32767, -32768, 5], np.int16), np.array([2, -1, 6], np.int16)
    op = isa.Binary("add", ub(1024, INT16, 3), ub(0, INT16, 3), ub(512, INT16, 3))
    assert computed(op, a=a, b=b).tolist() == [-32767, 32767, 11]
    assert computed(op, "saturate", a=a, b=b).tolist() == [32767, -32768, 11]


# ---- scaled casts ----


@pytest.mark.parametrize("scale", [1.0, 0.1, -3.0, 1e-6])
def test_an_int32_is_scaled_to_a_half(scale: float) -> None:
    values = numbers(INT32, 11)
    values[4:40] //= 2**20
    half = float(np.float16(scale))
    expected = np.array([rounded(np.float32(np.float32(x) * half), FLOAT16) for x in values])
    op = isa.CastDequant(ub(1024, FLOAT16, 64), ub(0, INT32, 64), scale)
    assert_same(computed(op, src=values), expected)


def scaled(value: int, scale: float, offset: int, dtype: DType) -> int:
    """CastDequant.md's formula; of the scale 1 + 8 + 10 bits count."""
    bits = int(np.float32(scale).view(np.uint32)) >> 13 << 13
    factor = np.uint32(bits).view(np.float32)
    limits = np.iinfo(dtype.numpy)
    whole = round(float(np.float32(value) * factor)) + offset
    return min(max(whole, limits.min), limits.max)


@pytest.mark.parametrize("dtype", [INT8, UINT8])
@pytest.mark.parametrize("half", [0, 16])
def test_an_int16_is_scaled_into_half_blocks(dtype: DType, half: int) -> None:
    values = numbers(INT16, 12)
    values[4:] //= 200
    mask = sum(0xFFFF << half + 32 * block for block in range(4))
    op = isa.CastDequant(ub(1024, dtype, 64, mask), ub(0, INT16, 64), 0.7312, -30)
    assert computed(op, src=values).tolist() == [scaled(int(x), 0.7312, -30, dtype) for x in values]
    assert {place % 32 // 16 * 16 for place in isa.places(op.dst).tolist()} == {half}


def test_each_element_of_a_block_may_have_its_own_scale() -> None:
    values = numbers(INT16, 13)
    values[4:] //= 100
    scales, offsets = np.linspace(-2, 2, 16).astype(np.float32), np.arange(-8, 8) * 20
    words = scales.view(np.uint32).astype(np.uint64)
    words |= (offsets % 512).astype(np.uint64) << np.uint64(37)
    mask = sum(0xFFFF << 32 * block for block in range(4))
    op = isa.CastDequant(ub(1024, INT8, 64, mask), ub(0, INT16, 64), ub(2048, UINT64, 16))
    expected = [
        scaled(int(x), float(scales[i % 16]), int(offsets[i % 16]), INT8)
        for i, x in enumerate(values)
    ]
    assert computed(op, src=values, scale=words).tolist() == expected
