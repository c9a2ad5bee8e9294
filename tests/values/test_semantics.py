"""What each micro-op computes, against plain numpy on the same numbers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from npusim import devices, isa
from npusim.data.dtypes import (
    BFLOAT16,
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
    cast,
    pack_int4,
    unpack_int4,
)
from npusim.data.errors import TrapError
from npusim.devices.schema import DeviceSpec
from npusim.values.buffers import Buffers, OutOfBufferError
from npusim.values.semantics import Memory, State, run

ARITHMETIC: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
}


class Bench:
    """One core's state, with its unified buffer in sight."""

    def __init__(self, spec: DeviceSpec, **tensors: np.ndarray) -> None:
        memories = {name: Memory(data.reshape(-1).view(np.uint8)) for name, data in tensors.items()}
        self.state = State(Buffers(spec.cores["aiv"]), memories)
        self.ub = self.state.buffers.raw("ub")

    def put(self, offset_bytes: int, values: np.ndarray) -> None:
        data = values.reshape(-1).view(np.uint8)
        self.ub[offset_bytes : offset_bytes + data.size] = data

    def get(self, offset_bytes: int, dtype: DType, count: int) -> np.ndarray:
        ub = self.state.buffers.raw("ub")
        return ub[offset_bytes : offset_bytes + dtype.nbytes(count)].view(dtype.numpy)

    def run(self, *ops: isa.MicroOp) -> None:
        run(ops, self.state)

    def register(self, name: str) -> int:
        return int(self.state.registers[name].item())


@pytest.fixture
def bench(tiny: DeviceSpec) -> Bench:
    return Bench(tiny)


def ub(offset_bytes: int, dtype: DType, count: int, *strides: int) -> isa.Local:
    return isa.Local("ub", offset_bytes, dtype, count, *strides)


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    """Bit for bit, any NaN being as good as any other."""
    assert found.dtype == expected.dtype
    nan = np.isnan(found)
    np.testing.assert_array_equal(nan, np.isnan(expected))
    bits = f"u{found.itemsize}"
    np.testing.assert_array_equal(found.view(bits)[~nan], expected.view(bits)[~nan])


# ---- loads and stores ----


def test_a_load_fills_its_last_block_with_zeros(tiny: DeviceSpec) -> None:
    bench = Bench(tiny, x=np.arange(100, dtype=np.uint8))
    bench.run(isa.Load(ub(32, UINT8, 40), isa.Global("x", 5, 40)))
    assert bench.ub[:32].tolist() == [0x7B] * 32
    assert bench.ub[32:72].tolist() == list(range(5, 45))
    assert bench.ub[72:96].tolist() == [0] * 24
    assert bench.ub[96:128].tolist() == [0x7B] * 32


def test_a_load_of_rows_keeps_their_stride_and_their_pitch(tiny: DeviceSpec) -> None:
    table = np.arange(200, dtype=np.uint8).reshape(4, 50)
    bench = Bench(tiny, x=table)
    bench.run(isa.Load(ub(0, UINT8, 33), isa.Global("x", 10, 33, 3, 50), 96))
    rows = bench.ub[: 3 * 96].reshape(3, 96)
    np.testing.assert_array_equal(rows[:, :33], table[:3, 10:43])
    assert (rows[:, 33:64] == 0).all()
    assert (rows[:2, 64:] == 0x7B).all()


def test_a_load_may_run_over_the_end_by_one_block_and_finds_zeros(tiny: DeviceSpec) -> None:
    bench = Bench(tiny, x=np.full(40, 7, np.uint8))
    bench.run(isa.Load(ub(0, UINT8, 64), isa.Global("x", 8, 64)))
    assert bench.ub[:64].tolist() == [7] * 32 + [0] * 32


def test_rows_may_run_over_the_end_by_one_block_together(tiny: DeviceSpec) -> None:
    bench = Bench(tiny, x=np.arange(70, dtype=np.uint8))
    bench.run(isa.Load(ub(0, UINT8, 32), isa.Global("x", 4, 32, 3, 33), 32))
    expected = [*range(4, 36), *range(37, 69), 70, *[0] * 31]
    expected[64] = 0
    assert bench.ub[:96].tolist() == expected


BEYOND = (
    "semantics: {} must lie within the 40 bytes of its tensor, not reach {}; "
    "fix the kernel's tiling"
)
OUTSIDE = "buffers: {} must lie within 16384 bytes of ub; claim it with the builder"


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (isa.Load(ub(0, UINT8, 65), isa.Global("x", 8, 65)), BEYOND.format("x+8 65 B", "[8, 73)")),
        (isa.Load(ub(0, UINT8, 8), isa.Global("x", -1, 8)), BEYOND.format("x+-1 8 B", "[-1, 7)")),
        (
            isa.Store(isa.Global("x", 31, 10), ub(0, UINT8, 10)),
            BEYOND.format("x+31 10 B", "[31, 41)"),
        ),
        (
            isa.Load(ub(16352, UINT8, 10), isa.Global("x", 0, 10, 2, 20), 32),
            OUTSIDE.format("ub[16352:16416] uint8"),
        ),
        (isa.Duplicate(ub(16256, FLOAT32, 64), 0.0), OUTSIDE.format("ub[16256:16512] float32")),
    ],
    ids=str,
)
def test_what_lies_outside_is_refused(tiny: DeviceSpec, op: isa.MicroOp, message: str) -> None:
    bench = Bench(tiny, x=np.zeros(40, np.uint8))
    with pytest.raises(OutOfBufferError, match=f"^{re.escape(message)}$"):
        bench.run(op)


def test_a_store_writes_its_bytes_and_no_other(tiny: DeviceSpec) -> None:
    out = np.full(20, 9, np.uint8)
    bench = Bench(tiny, y=out)
    bench.put(64, np.arange(10, dtype=np.uint8))
    bench.run(isa.Store(isa.Global("y", 3, 10), ub(64, UINT8, 10)))
    assert out.tolist() == [9] * 3 + list(range(10)) + [9] * 7


def test_a_store_of_rows_keeps_their_pitch_and_their_stride(tiny: DeviceSpec) -> None:
    out = np.full((3, 20), 9, np.uint8)
    bench = Bench(tiny, y=out)
    rows = np.arange(96, dtype=np.uint8).reshape(3, 32)
    bench.put(0, rows)
    bench.run(isa.Store(isa.Global("y", 1, 7, 3, 20), ub(0, UINT8, 7), 32))
    np.testing.assert_array_equal(out[:, 1:8], rows[:, :7])
    assert (out[:, :1] == 9).all()
    assert (out[:, 8:] == 9).all()


def test_a_name_means_its_tensor_from_the_binding_on(tiny: DeviceSpec) -> None:
    bench = Bench(tiny)
    data = np.arange(64, dtype=np.uint8)
    bench.state.memories["x"] = Memory(data, 16)
    bench.run(isa.Load(ub(0, UINT8, 8), isa.Global("x", 4, 8)))
    assert bench.ub[:8].tolist() == list(range(20, 28))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16, INT32, INT8], ids=str)
def test_an_atomic_store_adds_to_what_is_there(tiny: DeviceSpec, dtype: DType) -> None:
    out = (np.arange(40) - 20).reshape(2, 20).astype(dtype.numpy)
    size = out.itemsize
    bench = Bench(tiny, y=out)
    added = np.arange(64).astype(dtype.numpy)
    bench.put(64, added)
    before = out.copy()
    place = isa.Global("y", 3 * size, 7 * size, 2, 20 * size)
    bench.run(isa.Store(place, ub(64, dtype, 7), 32 * size, atomic=dtype))
    expected = before.copy()
    expected[:, 3:10] = (before[:, 3:10] + added.reshape(2, 32)[:, :7]).astype(dtype.numpy)
    np.testing.assert_array_equal(out, expected)


def test_an_atomic_addition_rounds_once_to_even(tiny: DeviceSpec) -> None:
    out = np.float16([2048, 2048, 60000, -60000])
    bench = Bench(tiny, y=out)
    bench.put(0, np.float16([1, 3, 60000, -60000]))
    store = isa.Store(isa.Global("y", 0, 8), ub(0, FLOAT16, 4), atomic=FLOAT16)
    bench.run(store)
    assert out.tolist() == [2048, 2052, np.inf, -np.inf]
    out[2:] = 60000, -60000
    bench.state.overflow = "saturate"
    bench.run(store)
    assert out[2:].tolist() == [65504, -65504]


def test_atomic_integers_wrap_and_need_not_be_aligned(tiny: DeviceSpec) -> None:
    raw = np.zeros(13, np.uint8)
    raw[5:9] = np.int32([2**31 - 1]).view(np.uint8)
    bench = Bench(tiny, y=raw)
    bench.put(0, np.int32([1]))
    bench.run(isa.Store(isa.Global("y", 5, 4), ub(0, INT32, 1), atomic=INT32))
    assert raw[5:9].view(np.int32).tolist() == [-(2**31)]
    assert not raw[:5].any()
    assert not raw[9:].any()


# ---- buffers ----


def test_a_view_is_the_same_bytes_each_time(bench: Bench) -> None:
    view = bench.state.buffers.view(ub(32, FLOAT32, 8))
    assert view is bench.state.buffers.view(ub(32, FLOAT32, 8))
    view[...] = 1.5
    assert bench.get(32, FLOAT32, 8).tolist() == [1.5] * 8


def test_a_buffer_that_the_core_lacks_is_refused(bench: Bench) -> None:
    message = "buffers: 'l1' must be a buffer of the core, one of ub"
    with pytest.raises(OutOfBufferError, match=f"^{re.escape(message)}$"):
        bench.state.buffers.raw("l1")


# ---- vector arithmetic ----

HALF_SPECIALS = np.uint16(
    [0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00]
).view(np.float16)
WORD_SPECIALS = np.uint32(
    [
        *(0, 0x80000000, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x3F800000, 0xBF800000),
        *(0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000),
    ]
).view(np.float32)


def pairs(specials: np.ndarray, patterns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every special with every other, and random patterns among themselves."""
    a, b = np.repeat(specials, specials.size), np.tile(specials, specials.size)
    half = patterns.size // 2
    a, b = np.append(a, patterns[:half]), np.append(b, patterns[half:])
    whole = a.size // 64 * 64
    return a[:whole], b[:whole]


def without_zero_ties(op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where numpy defines the result; min and max of +0 and -0 may be either."""
    return np.ones(a.shape, bool) if op not in ("min", "max") else ~((a == 0) & (b == 0))


@pytest.mark.parametrize(
    ("dtype", "specials"), [(FLOAT16, HALF_SPECIALS), (FLOAT32, WORD_SPECIALS)], ids=str
)
@pytest.mark.parametrize("op", ARITHMETIC)
def test_arithmetic_is_that_of_ieee(
    bench: Bench, op: Any, dtype: DType, specials: np.ndarray, rng: np.random.Generator
) -> None:
    patterns = rng.integers(0, 256, 2000 * specials.itemsize, np.uint8).view(dtype.numpy)
    a, b = pairs(specials, patterns)
    count = a.size
    bench.put(0, a)
    bench.put(4992, b)
    bench.run(isa.Binary(op, ub(9984, dtype, count), ub(0, dtype, count), ub(4992, dtype, count)))
    with np.errstate(all="ignore"):
        expected = ARITHMETIC[op](a, b)
    sure = without_zero_ties(op, a, b)
    assert_same(bench.get(9984, dtype, count)[sure], expected[sure])


@pytest.mark.parametrize("op", ["add", "sub", "mul", "min", "max"])
def test_integer_arithmetic_wraps(bench: Bench, op: Any, rng: np.random.Generator) -> None:
    a, b = rng.integers(-(2**31), 2**31, (2, 64)).astype(np.int32)
    bench.put(0, a)
    bench.put(256, b)
    bench.run(isa.Binary(op, ub(512, INT32, 64), ub(0, INT32, 64), ub(256, INT32, 64)))
    np.testing.assert_array_equal(bench.get(512, INT32, 64), ARITHMETIC[op](a, b))


def test_half_results_beyond_the_range_follow_the_overflow_mode(bench: Bench) -> None:
    bench.put(0, np.full(16, 60000, np.float16))
    add = isa.Binary("add", ub(32, FLOAT16, 16), ub(0, FLOAT16, 16), ub(0, FLOAT16, 16))
    bench.run(add)
    assert np.isinf(bench.get(32, FLOAT16, 16)).all()
    bench.state.overflow = "saturate"
    bench.run(add)
    assert (bench.get(32, FLOAT16, 16) == 65504).all()


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, INT32], ids=str)
def test_a_result_may_replace_its_operand(bench: Bench, dtype: DType) -> None:
    count = 256 // dtype.numpy.itemsize
    values = np.arange(count).astype(dtype.numpy)
    bench.put(0, values)
    x = ub(0, dtype, count)
    bench.run(isa.Binary("add", x, x, x))
    np.testing.assert_array_equal(bench.get(0, dtype, count), values + values)


# Block stride, repeat stride: (dst), (a), (b), in blocks of 32 bytes.
STRIDES = [
    ((1, 8), (2, 16), (1, 8)),
    ((2, 17), (1, 8), (1, 8)),
    ((1, 8), (1, 8), (1, 0)),
    ((1, 9), (3, 24), (2, 1)),
]


def gathered(raw: np.ndarray, offset: int, stride: tuple[int, int], repeats: int) -> np.ndarray:
    """The bytes of *repeats* repeats of eight blocks, picked one block at a time."""
    starts = [
        offset + 32 * (repeat * stride[1] + block * stride[0])
        for repeat in range(repeats)
        for block in range(8)
    ]
    return np.concatenate([raw[start : start + 32] for start in starts])


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, INT32], ids=str)
@pytest.mark.parametrize(("dst", "a", "b"), STRIDES)
def test_strided_operands_pick_blocks(
    bench: Bench,
    dtype: DType,
    dst: tuple[int, int],
    a: tuple[int, int],
    b: tuple[int, int],
    rng: np.random.Generator,
) -> None:
    bench.put(0, rng.integers(-100, 100, 16384 // dtype.numpy.itemsize).astype(dtype.numpy))
    before = bench.ub.copy()
    count = 3 * 256 // dtype.numpy.itemsize
    bench.run(
        isa.Binary(
            "mul", ub(8192, dtype, count, *dst), ub(0, dtype, count, *a), ub(64, dtype, count, *b)
        )
    )
    left, right = (
        gathered(before, offset, stride, 3).view(dtype.numpy)
        for offset, stride in ((0, a), (64, b))
    )
    found = gathered(bench.ub, 8192, dst, 3).view(dtype.numpy)
    np.testing.assert_array_equal(found, left * right)
    written = gathered(np.arange(bench.ub.size // 32).repeat(32), 8192, dst, 3)
    rest = np.setdiff1d(np.arange(bench.ub.size // 32), written)
    np.testing.assert_array_equal(
        bench.ub.reshape(-1, 32)[rest], before.reshape(-1, 32)[rest], "blocks between"
    )


def test_a_strided_source_can_be_cast_and_reduced(bench: Bench) -> None:
    bench.put(0, np.arange(128, dtype=np.float32))
    every_other = ub(0, FLOAT32, 64, 2, 16)
    bench.run(
        isa.Cast(ub(1024, INT32, 64), every_other, "rint"),
        isa.Reduce("max", ub(2048, FLOAT32, 1), every_other),
    )
    expected = np.arange(128).reshape(-1, 2, 8)[:, 0].ravel()
    np.testing.assert_array_equal(bench.get(1024, INT32, 64), expected)
    assert bench.get(2048, FLOAT32, 1).tolist() == [119]


def test_narrow_sources_take_fewer_blocks(bench: Bench, rng: np.random.Generator) -> None:
    # (4 columns of fractals, 3 rows, 32) int8 -> (8 columns, 3 rows, 16) fp16, a row a repeat
    fractals = rng.integers(-128, 128, (4, 3, 32), dtype=np.int8)
    bench.put(0, fractals.ravel())
    src, dst = ub(0, INT8, 384, 3, 1, 4), ub(1024, FLOAT16, 384, 3, 1)
    bench.run(isa.Cast(dst, src))
    expected = fractals.reshape(4, 3, 2, 16).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(bench.get(1024, FLOAT16, 384), expected.ravel())


def test_a_reduction_into_a_strided_range_writes_its_first_element(bench: Bench) -> None:
    bench.put(0, np.arange(64, dtype=np.float32))
    bench.run(isa.Reduce("max", ub(1024, FLOAT32, 16, 2, 16), ub(0, FLOAT32, 64)))
    assert bench.get(1024, FLOAT32, 1).tolist() == [63]
    assert (bench.ub[1028:1120] == 0x7B).all()


def product_and_sum(a: np.ndarray, b: np.ndarray, before: np.ndarray) -> np.ndarray:
    """`a x b + before` with two roundings in the type of the operands."""
    with np.errstate(all="ignore"):
        return (a * b).astype(before.dtype) + before


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_products_are_rounded_first(bench: Bench, dtype: DType, rng: np.random.Generator) -> None:
    a, b, before = rng.normal(size=(3, 512)).astype(dtype.numpy)
    bench.put(0, a)
    bench.put(2048, b)
    bench.put(4096, before)
    dst = ub(4096, dtype, 512)
    bench.run(isa.MulAddDst(dst, ub(0, dtype, 512), ub(2048, dtype, 512)))
    expected = product_and_sum(a, b, before)
    assert_same(bench.get(4096, dtype, 512), expected)
    fused = (a.astype(np.float64) * b + before).astype(dtype.numpy)
    assert (expected != fused).any()


@pytest.mark.parametrize("scalar", ["number", "register"])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_axpy_is_too(bench: Bench, dtype: DType, scalar: str, rng: np.random.Generator) -> None:
    a, before = rng.normal(size=(2, 256)).astype(dtype.numpy)
    bench.put(0, a)
    bench.put(2048, before)
    bench.put(4096, np.array([0.1], dtype.numpy))
    bench.run(
        isa.ScalarLoad("r", ub(4096, dtype, 1)),
        isa.Axpy(ub(2048, dtype, 256), ub(0, dtype, 256), "r" if scalar == "register" else 0.1),
    )
    expected = product_and_sum(a, dtype.numpy.type(0.1), before)
    assert_same(bench.get(2048, dtype, 256), expected)


def test_a_product_of_halves_overflows_before_it_is_added(bench: Bench) -> None:
    bench.put(0, np.full(16, 300, np.float16))
    bench.put(32, np.full(16, -60000, np.float16))
    x, dst = ub(0, FLOAT16, 16), ub(32, FLOAT16, 16)
    bench.state.overflow = "saturate"
    bench.run(isa.MulAddDst(dst, x, x))
    assert bench.get(32, FLOAT16, 16).tolist() == [65504 - 60000] * 16
    bench.state.overflow = "inf_nan"
    bench.run(isa.MulAddDst(dst, x, x))
    assert np.isinf(bench.get(32, FLOAT16, 16)).all()


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_abs_clears_the_sign_of_every_number(bench: Bench, dtype: DType) -> None:
    values = WORD_SPECIALS if dtype is FLOAT32 else HALF_SPECIALS
    bench.put(0, values)
    bench.run(isa.Unary("abs", ub(1024, dtype, values.size), ub(0, dtype, values.size)))
    bits = f"u{values.itemsize}"
    found = bench.get(1024, dtype, values.size).view(bits)
    sign = 1 << (8 * values.itemsize - 1)
    np.testing.assert_array_equal(found, values.view(bits) & (sign - 1))


def test_a_chip_without_infinities_has_none_in_a_magnitude_or_a_register(bench: Bench) -> None:
    """asc-devkit, Memory矢量计算接口边界值汇总.md: 65504 of an infinity, 0 of NaN."""
    bench.state.overflow = "saturate"
    bench.put(0, np.array([-np.inf, np.inf, np.nan, -2.5] * 4, np.float16))
    bench.run(isa.Unary("abs", ub(32, FLOAT16, 16), ub(0, FLOAT16, 16)))
    assert bench.get(32, FLOAT16, 16).tolist() == [65504, 65504, 0, 2.5] * 4
    # 2**16
    bench.run(isa.ScalarAlu("f32_to_f16", "a", 0x47800000))
    assert bench.register("a") == 0x7BFF


def test_a_copy_with_strides_lets_blocks_change_places(bench: Bench) -> None:
    bench.put(0, np.arange(16 * 16, dtype=np.float16))
    # Blocks 0, 2, 4, ... 14 become neighbours.
    bench.run(isa.Copy(ub(1024, FLOAT16, 128), ub(0, FLOAT16, 128, 2, 16)))
    blocks = np.arange(16 * 16).reshape(16, 16)
    np.testing.assert_array_equal(bench.get(1024, FLOAT16, 128), blocks[::2].reshape(-1))
    bench.run(isa.Copy(ub(2048, FLOAT16, 128, 2, 16), ub(1024, FLOAT16, 128)))
    spread = bench.get(2048, FLOAT16, 256).reshape(16, 16)
    np.testing.assert_array_equal(spread[::2], blocks[::2])
    assert (spread[1::2].view(np.uint8) == 0x7B).all()


# ---- scalars, broadcasts, reductions ----


@pytest.mark.parametrize("op", ARITHMETIC)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_numbers_may_operate(bench: Bench, op: Any, dtype: DType, rng: np.random.Generator) -> None:
    values = rng.normal(size=64).astype(dtype.numpy)
    bench.put(0, values)
    bench.run(isa.BinaryScalar(op, ub(256, dtype, 64), ub(0, dtype, 64), 0.1))
    expected = ARITHMETIC[op](values, dtype.numpy.type(0.1))
    assert_same(bench.get(256, dtype, 64), expected)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, INT32], ids=str)
def test_one_operand_may_be_the_bits_in_a_register(bench: Bench, dtype: DType) -> None:
    values = np.arange(-8, 8).astype(dtype.numpy)
    bench.put(0, values)
    bench.run(
        isa.ScalarLoad("r", ub(dtype.numpy.itemsize, dtype, 1)),
        isa.BinaryScalar("mul", ub(256, dtype, 16), ub(0, dtype, 16), "r"),
    )
    np.testing.assert_array_equal(bench.get(256, dtype, 16), values * dtype.numpy.type(-7))


def test_duplicate_fills_with_a_number_or_a_register(bench: Bench) -> None:
    bench.put(0, np.float32([-2.5]))
    bench.run(
        isa.Duplicate(ub(32, FLOAT16, 16), 0.1),
        isa.Duplicate(ub(64, INT32, 8), 7),
        isa.ScalarLoad("r", ub(0, FLOAT32, 1)),
        isa.Duplicate(ub(96, FLOAT32, 8), "r"),
        isa.Duplicate(ub(128, FLOAT32, 64, 2, 16), 1.0),
    )
    assert bench.get(32, FLOAT16, 16).tolist() == [float(np.float16(0.1))] * 16
    assert bench.get(64, INT32, 8).tolist() == [7] * 8
    assert bench.get(96, FLOAT32, 8).tolist() == [-2.5] * 8
    blocks = bench.get(128, FLOAT32, 128).reshape(-1, 2, 8)
    assert (blocks[:, 0] == 1).all()
    assert (blocks[:, 1].view(np.uint8) == 0x7B).all()


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, INT32], ids=str)
def test_broadcast_fills_a_block_with_each_element(bench: Bench, dtype: DType) -> None:
    per_block = 32 // dtype.numpy.itemsize
    values = np.arange(8).astype(dtype.numpy)
    bench.put(0, values)
    bench.run(isa.Broadcast(ub(64, dtype, 8 * per_block), ub(0, dtype, 8)))
    np.testing.assert_array_equal(bench.get(64, dtype, 8 * per_block), values.repeat(per_block))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, INT32], ids=str)
def test_reduce_writes_one_element(bench: Bench, dtype: DType, rng: np.random.Generator) -> None:
    values = rng.integers(-1000, 1000, 100).astype(dtype.numpy)
    bench.put(0, values)
    bench.run(
        isa.Reduce("min", ub(1024, dtype, 1), ub(0, dtype, 100)),
        isa.Reduce("max", ub(1056, dtype, 1), ub(0, dtype, 100)),
    )
    size = dtype.numpy.itemsize
    assert bench.get(1024, dtype, 1).tolist() == [values.min()]
    assert bench.get(1056, dtype, 1).tolist() == [values.max()]
    assert (bench.ub[1024 + size : 1056] == 0x7B).all()


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_a_block_is_added_up_in_pairs(bench: Bench, dtype: DType, rng: np.random.Generator) -> None:
    per_block = 32 // dtype.numpy.itemsize
    values = rng.normal(size=(64, per_block)).astype(dtype.numpy)
    bench.put(0, values)
    bench.run(
        isa.BlockReduce("sum", ub(4096, dtype, 64), ub(0, dtype, values.size)),
        isa.BlockReduce("max", ub(8192, dtype, 64), ub(0, dtype, values.size)),
    )
    expected = values
    while expected.shape[1] > 1:
        expected = expected[:, 0::2] + expected[:, 1::2]
    assert_same(bench.get(4096, dtype, 64), expected[:, 0])
    in_order = values[:, 0]
    for column in range(1, per_block):
        in_order = in_order + values[:, column]
    assert (expected[:, 0] != in_order).any()
    assert_same(bench.get(8192, dtype, 64), values.max(axis=1))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_repeats_are_reduced(bench: Bench, dtype: DType, rng: np.random.Generator) -> None:
    lanes = 256 // dtype.numpy.itemsize
    values = rng.normal(size=(6, lanes)).astype(dtype.numpy)
    values[3, 5] = np.nan
    bench.put(0, values)
    bench.run(
        isa.WholeReduce("max", ub(4096, dtype, 6), ub(0, dtype, 6 * lanes)),
        # Every other repeat.
        isa.WholeReduce("min", ub(4128, dtype, 3), ub(0, dtype, 3 * lanes, 1, 16)),
        isa.WholeReduce("max", ub(4160, dtype, 1), ub(0, dtype, 9)),
        isa.Fold("max", ub(0, dtype, lanes), ub(256, dtype, 5 * lanes)),
    )
    assert_same(bench.get(4096, dtype, 6), values.max(axis=1))
    assert_same(bench.get(4128, dtype, 3), values[::2].min(axis=1))
    assert_same(bench.get(4160, dtype, 1), values[0, :9].max(keepdims=True))
    assert_same(bench.get(0, dtype, lanes), values.max(axis=0))
    assert_same(bench.get(256, dtype, 5 * lanes), values[1:].ravel())


def tree(values: np.ndarray) -> np.ndarray:
    """Neighbours first, in the type of *values*."""
    while values.shape[-1] > 1:
        values = values[..., 0::2] + values[..., 1::2]
    return values[..., 0]


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_repeats_add_up_in_pairs(bench: Bench, dtype: DType, rng: np.random.Generator) -> None:
    lanes = 256 // dtype.numpy.itemsize
    values = rng.normal(size=(6, lanes)).astype(dtype.numpy)
    bench.put(0, values)
    half = ub(0, dtype, 3 * lanes, 1, 8, 4)
    bench.run(
        isa.WholeReduce("sum", ub(4096, dtype, 6), ub(0, dtype, 6 * lanes)),
        isa.WholeReduce("sum", ub(4128, dtype, 1), ub(0, dtype, 9)),
        # The first four blocks of each repeat, and all but the last three lanes of these.
        isa.WholeReduce("sum", ub(4160, dtype, 6), half),
        isa.WholeReduce("sum", ub(4192, dtype, 6), half, lanes // 2 - 3),
        isa.WholeReduce("min", ub(4224, dtype, 6), half, lanes // 2 - 3),
    )
    zeros = np.zeros_like(values)
    zeros[:, : lanes // 2 - 3] = values[:, : lanes // 2 - 3]
    assert_same(bench.get(4096, dtype, 6), tree(values))
    nine = np.zeros(16, dtype.numpy)
    nine[:9] = values[0, :9]
    assert_same(bench.get(4128, dtype, 1), tree(nine[None]))
    assert_same(bench.get(4160, dtype, 6), tree(values[:, : lanes // 2]))
    assert_same(bench.get(4192, dtype, 6), tree(zeros))
    assert_same(bench.get(4224, dtype, 6), values[:, : lanes // 2 - 3].min(axis=1))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_repeats_are_added_in_turn(bench: Bench, dtype: DType, rng: np.random.Generator) -> None:
    lanes = 256 // dtype.numpy.itemsize
    values = rng.normal(size=(12, lanes)).astype(dtype.numpy)
    bench.put(0, values)
    bench.run(isa.Fold("add", ub(0, dtype, lanes), ub(256, dtype, 11 * lanes)))
    expected = values[0]
    for repeat in values[1:]:
        expected = expected + repeat
    assert_same(bench.get(0, dtype, lanes), expected)
    assert (expected != tree(values[:8].T) + tree(values[8:].T)).any()


# ---- functions of one vector ----

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 6e-8, 70000.0, -88.0, 0.5]


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
@pytest.mark.parametrize(
    ("op", "exact"),
    [
        ("exp", np.exp),
        ("ln", np.log),
        ("sqrt", np.sqrt),
        ("rsqrt", lambda x: 1 / np.sqrt(x)),
        ("reciprocal", lambda x: 1 / x),
        ("relu", lambda x: np.where(x > 0, x, np.where(np.isnan(x), x, 0))),
    ],
)
def test_a_function_gives_the_nearest_number(
    bench: Bench, op: Any, exact: Any, dtype: DType, rng: np.random.Generator
) -> None:
    values = np.concatenate([SPECIAL, rng.normal(scale=9, size=245)])
    with np.errstate(all="ignore"):
        values = values.astype(dtype.numpy)
        # float128 where there is one: then no step of the test rounds as the chip's result does.
        expected = exact(values.astype(np.longdouble)).astype(dtype.numpy)
    bench.put(0, values)
    bench.run(
        isa.Unary(op, ub(1024, dtype, 256), ub(0, dtype, 256)),
        # Every other block, to every other block.
        isa.Unary(op, ub(4096, dtype, 64, 2, 16), ub(0, dtype, 64, 2, 16)),
    )
    assert_same(bench.get(1024, dtype, 256), expected)
    per_block = 32 // dtype.numpy.itemsize
    blocks = bench.get(4096, dtype, 128).reshape(-1, per_block)[::2]
    assert_same(blocks, expected[:128].reshape(-1, per_block)[::2])


def test_functions_of_half_saturate_where_the_chip_does(bench: Bench) -> None:
    bench.put(0, np.float16([12, -np.inf, np.inf, np.nan, 0, -1, 65504, 1]))
    bench.state.overflow = "saturate"
    for offset, op in enumerate(("exp", "ln", "reciprocal"), 1):
        bench.run(isa.Unary(op, ub(32 * offset, FLOAT16, 8), ub(0, FLOAT16, 8)))
    assert bench.get(32, FLOAT16, 8).tolist() == [65504, 0, 65504, 0, 1, 0.367919921875, 65504,
                                                   2.71875]  # fmt: skip
    assert bench.get(64, FLOAT16, 8)[1:6].tolist() == [0, 65504, 0, -65504, 0]
    assert bench.get(96, FLOAT16, 8)[1:5].tolist() == [0, 0, 0, 65504]


def test_bits_are_combined(bench: Bench, rng: np.random.Generator) -> None:
    a, b = rng.integers(-(2**15), 2**15, (2, 64)).astype(np.int16)
    bench.put(0, a)
    bench.put(128, b)
    x, y = ub(0, INT16, 64), ub(128, INT16, 64)
    bench.run(
        isa.Binary("and", ub(256, INT16, 64), x, y),
        isa.Binary("or", ub(384, INT16, 64), x, y),
        isa.Unary("not", ub(512, INT16, 64), x),
        isa.Unary("relu", ub(640, INT32, 32), x.as_dtype(INT32)),
    )
    np.testing.assert_array_equal(bench.get(256, INT16, 64), a & b)
    np.testing.assert_array_equal(bench.get(384, INT16, 64), a | b)
    np.testing.assert_array_equal(bench.get(512, INT16, 64), ~a)
    np.testing.assert_array_equal(bench.get(640, INT32, 32), np.maximum(a.view(np.int32), 0))


# ---- masks and offsets ----

COMPARED: dict[Any, Any] = {
    "lt": np.less,
    "gt": np.greater,
    "eq": np.equal,
    "le": np.less_equal,
    "ge": np.greater_equal,
    "ne": np.not_equal,
}


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("what", ["finite", "zeros of both signs", "infinite", "NaN"])
def test_extremes_of_halves(op: Any, what: str, rng: np.random.Generator) -> None:
    bench = Bench(devices.load("ascend910b2"))
    a = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    if what != "NaN":
        a = a[~np.isnan(a)]
    if what in ("finite", "zeros of both signs"):
        a = a[np.isfinite(a)]
    if what != "zeros of both signs":
        a = a[(a != 0) | ~np.signbit(a)]
    a = rng.permutation(a)[:6000]
    a[:3] = a.max(), a.min(), 0
    b = rng.permutation(a)
    bench.put(0, a)
    bench.put(12288, b)
    bench.run(isa.Binary(op, *(ub(x, FLOAT16, 6000) for x in (24576, 0, 12288))))
    wide = (np.minimum if op == "min" else np.maximum)(*(x.astype(np.float32) for x in (a, b)))
    assert_same(bench.get(24576, FLOAT16, 6000).copy(), wide.astype(np.float16))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
@pytest.mark.parametrize("other", [0.0, -0.0, 2.0])
def test_a_choice_of_1_or_another_number(bench: Bench, dtype: DType, other: float) -> None:
    values = np.arange(64).astype(dtype.numpy)
    bench.put(0, values)
    bench.put(1024, np.ones(64, dtype.numpy))
    mask, chosen = ub(2048, UINT8, 8), ub(2080, dtype, 64)
    bench.run(
        isa.CompareScalar("gt", mask, ub(0, dtype, 64), 40.0),
        isa.Select(chosen, mask, ub(1024, dtype, 64), other),
    )
    expected = np.where(values > 40, 1, other).astype(dtype.numpy)
    assert bench.get(2080, dtype, 64).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
@pytest.mark.parametrize("op", COMPARED)
def test_comparisons_set_bits(
    bench: Bench, op: Any, dtype: DType, rng: np.random.Generator
) -> None:
    a, b = rng.integers(-2, 3, (2, 256)).astype(dtype.numpy)
    a[:4], b[:4] = [np.nan, np.inf, -0.0, np.nan], [1, np.inf, 0, np.nan]
    bench.put(0, a)
    bench.put(2048, b)
    x, y = ub(0, dtype, 256), ub(2048, dtype, 256)
    bench.run(
        isa.Compare(op, ub(4096, UINT8, 32), x, y),
        isa.CompareScalar(op, ub(4160, UINT8, 32), x, 1.0),
        isa.Select(ub(5120, dtype, 200), ub(4096, UINT8, 25), x.at(0, 200), y.at(0, 200)),
        isa.Select(ub(6144, dtype, 256), ub(4160, UINT8, 32), x, -0.5),
    )
    holds, holds_of_one = COMPARED[op](a, b), COMPARED[op](a, dtype.numpy.type(1))
    for offset, expected in ((4096, holds), (4160, holds_of_one)):
        bits = [int(byte) >> bit & 1 for byte in bench.get(offset, UINT8, 32) for bit in range(8)]
        assert bits == expected.tolist()
    assert_same(bench.get(5120, dtype, 200), np.where(holds, a, b)[:200])
    assert_same(bench.get(6144, dtype, 256), np.where(holds_of_one, a, dtype.numpy.type(-0.5)))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, INT32], ids=str)
def test_elements_are_looked_up(bench: Bench, dtype: DType, rng: np.random.Generator) -> None:
    table, places = rng.normal(size=100).astype(dtype.numpy), rng.integers(0, 100, 70)
    bench.put(0, table)
    bench.put(1024, (places * table.itemsize).astype(np.int32))
    bench.run(isa.Gather(ub(2048, dtype, 70), ub(0, dtype, 100), ub(1024, INT32, 70)))
    np.testing.assert_array_equal(bench.get(2048, dtype, 70), table[places])


def test_squares_are_turned(bench: Bench, rng: np.random.Generator) -> None:
    squares = rng.integers(0, 1000, (3, 16, 16)).astype(np.int16)
    bench.put(0, squares)
    bench.run(isa.Transpose(ub(2048, INT16, 768), ub(0, INT16, 768)))
    turned = bench.get(2048, INT16, 768).reshape(3, 16, 16)
    np.testing.assert_array_equal(turned, squares.swapaxes(1, 2))


def test_rows_of_eight_words_become_eight_columns(bench: Bench, rng: np.random.Generator) -> None:
    matrices = rng.standard_normal((2, 16, 8)).astype(np.float32)
    bench.put(0, matrices)
    bench.run(isa.Transpose(ub(2048, FLOAT32, 256), ub(0, FLOAT32, 256)))
    turned = bench.get(2048, FLOAT32, 256).reshape(2, 8, 16)
    np.testing.assert_array_equal(turned, matrices.swapaxes(1, 2))


def test_products_of_halves_are_added_to_floats(bench: Bench, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal(64).astype(np.float16) for _ in range(2))
    before = rng.standard_normal(64).astype(np.float32)
    for offset, values in ((0, before), (512, a), (1024, b)):
        bench.put(offset, values)
    bench.run(isa.MulAddDst(ub(0, FLOAT32, 64), ub(512, FLOAT16, 64), ub(1024, FLOAT16, 64)))
    wanted = a.astype(np.float32) * b.astype(np.float32) + before
    np.testing.assert_array_equal(bench.get(0, FLOAT32, 64), wanted)


# ---- sorting ----

NANS = (np.nan, np.uint32(0xFFC00000).view(np.float32))
HARD_KEYS = (*NANS, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1.0, 1e-40, -3e38)
"""Keys whose order has to be stated: NaN of both signs, both zeros, infinities, equal ones."""


def descending(keys: np.ndarray) -> list[int]:
    """The places of *keys* as they are sorted: NaN first, equal ones in their order."""
    return sorted(
        range(keys.size),
        key=lambda i: (
            (not np.isnan(keys[i]), -keys[i], i) if not np.isnan(keys[i]) else (False, 0, i)
        ),
    )


def pairs_of(keys: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """uint64 pairs, as the micro-ops lay them out."""
    low = keys.view(f"u{keys.itemsize}").astype(np.uint64)
    return low | indices.astype(np.uint32).astype(np.uint64) << np.uint64(32)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_each_32_elements_are_sorted(bench: Bench, dtype: DType, rng: np.random.Generator) -> None:
    with np.errstate(over="ignore"):
        keys = rng.choice(np.float32(HARD_KEYS), 96).astype(dtype.numpy)
    indices = rng.integers(-(2**31), 2**31, 96).astype(np.int32)
    bench.put(0, keys)
    bench.put(512, indices)
    bench.run(isa.Sort32(ub(1024, UINT64, 96), ub(0, dtype, 96), ub(512, INT32, 96)))
    order = [32 * n + i for n in range(3) for i in descending(keys[32 * n : 32 * n + 32])]
    np.testing.assert_array_equal(bench.get(1024, UINT64, 96), pairs_of(keys, indices)[order])


def proposals_of(keys: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`(n, 8)`: *keys*, and anything else around them."""
    found = rng.integers(0, 1000, (keys.size, 8)).astype(keys.dtype)
    found[:, 4] = keys
    return found


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_proposals_are_put_together_and_taken_apart(
    bench: Bench, dtype: DType, rng: np.random.Generator
) -> None:
    proposals, column = proposals_of(np.zeros(32, dtype.numpy), rng), np.arange(32)
    bench.put(0, proposals)
    bench.put(2048, column.astype(dtype.numpy))
    bench.run(isa.ProposalConcat(3, ub(0, dtype, 256), ub(2048, dtype, 32)))
    wanted = proposals.copy()
    wanted[:, 3] = column
    np.testing.assert_array_equal(bench.get(0, dtype, 256).reshape(32, 8), wanted)
    bench.run(isa.ProposalExtract(5, ub(2048, dtype, 32), ub(0, dtype, 256)))
    np.testing.assert_array_equal(bench.get(2048, dtype, 32), proposals[:, 5])


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_each_16_proposals_are_sorted_and_lists_of_each_repeat_merged(
    bench: Bench, dtype: DType, rng: np.random.Generator
) -> None:
    with np.errstate(over="ignore"):
        keys = rng.choice(np.float32(HARD_KEYS), 64).astype(dtype.numpy)
    proposals = proposals_of(keys, rng)
    bench.put(0, proposals)
    bench.run(isa.RpSort16(ub(2048, dtype, 512), ub(0, dtype, 512)))
    order = [16 * n + i for n in range(4) for i in descending(keys[16 * n : 16 * n + 16])]
    found = bench.get(2048, dtype, 512).reshape(64, 8).copy()
    np.testing.assert_array_equal(found, proposals[order])
    bench.run(isa.MrgSort4(ub(0, dtype, 512), ub(2048, dtype, 512), (16, 16)))
    halves = [32 * n + i for n in range(2) for i in descending(keys[32 * n : 32 * n + 32])]
    np.testing.assert_array_equal(bench.get(0, dtype, 512).reshape(64, 8), proposals[halves])


def taken(lists: list[list[float]]) -> list[tuple[int, int]]:
    """List and place of what is taken, one after the other: the largest that leads, the first."""
    heads, found = [0] * len(lists), []
    while any(head < len(each) for head, each in zip(heads, lists, strict=True)):
        ranks = [
            (np.isnan(each[head]), each[head]) if head < len(each) else (False, -np.inf, "gone")
            for head, each in zip(heads, lists, strict=True)
        ]
        alive = [i for i, rank in enumerate(ranks) if len(rank) == 2]
        nans = [i for i in alive if ranks[i][0]]
        best = nans[0] if nans else max(alive, key=lambda i: (ranks[i][1], -i))
        found.append((best, heads[best]))
        heads[best] += 1
    return found


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("counts", [(32, 32), (5, 40, 1), (32, 7, 32, 20)])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_lists_are_merged(
    bench: Bench, dtype: DType, counts: tuple[int, ...], is_sorted: bool, rng: np.random.Generator
) -> None:
    with np.errstate(over="ignore"):
        keys = rng.choice(np.float32(HARD_KEYS), 200).astype(dtype.numpy)
    starts = [100, 3, 50, 150][: len(counts)]
    if is_sorted:
        for start, count in zip(starts, counts, strict=True):
            part = keys[start : start + count]
            part[...] = part[descending(part)]
    pairs = pairs_of(keys, np.arange(200))
    bench.put(0, pairs)
    bench.put(4096, np.int32([3]))
    total = sum(counts)
    merge = isa.MrgSort(
        ub(2048, UINT64, total), ub(0, UINT64, 200), counts, dtype, 100, "r", *starts[2:]
    )
    bench.run(isa.ScalarLoad("r", ub(4096, INT32, 1)), merge)
    lists = [[float(x) for x in keys[s : s + n]] for s, n in zip(starts, counts, strict=True)]
    wanted = pairs[[starts[which] + place for which, place in taken(lists)]]
    np.testing.assert_array_equal(bench.get(2048, UINT64, total), wanted)


@pytest.mark.parametrize("start", [-1, 3])
def test_a_list_beyond_its_source_is_refused(bench: Bench, start: int) -> None:
    bench.put(4096, np.int32([start]))
    op = isa.MrgSort(ub(2048, UINT64, 8), ub(0, UINT64, 8), (6, 2), FLOAT32, "r", 0)
    message = (
        f"semantics: mrg_sort ub[2048:2112] uint64 <- ub[0:64] uint64: 6 at r, 2 at 0 by float32: "
        f"a list must lie within the 8 pairs of src, not begin at {start} with 6; fix what fills "
        f"the register"
    )
    with pytest.raises(OutOfBufferError, match=f"^{re.escape(message)}$"):
        bench.run(isa.ScalarLoad("r", ub(4096, INT32, 1)), op)


@pytest.mark.parametrize(("places", "first"), [("even", 0), ("odd", 1)])
def test_every_other_element_is_taken(bench: Bench, places: Any, first: int) -> None:
    values = np.arange(70, dtype=np.float32)
    bench.put(0, values)
    bench.run(isa.GatherMask(places, ub(1024, FLOAT32, 35), ub(0, FLOAT32, 70)))
    np.testing.assert_array_equal(bench.get(1024, FLOAT32, 35), values[first::2])


@pytest.mark.parametrize("offset", [-4, 2, 256])
def test_an_offset_of_no_element_is_refused(bench: Bench, offset: int) -> None:
    bench.put(1024, np.int32([0, offset]))
    op = isa.Gather(ub(2048, FLOAT32, 2), ub(0, FLOAT32, 64), ub(1024, INT32, 2))
    message = (
        f"semantics: gather ub[2048:2056] float32 <- ub[0:256] float32 at ub[1024:1032] int32: "
        f"offsets must be those of elements of src, multiples of 4 in [0, 256), not {offset}; fix "
        f"what fills them"
    )
    with pytest.raises(OutOfBufferError, match=f"^{re.escape(message)}$"):
        bench.run(op)


# ---- casts in the buffer ----


@pytest.mark.parametrize(
    ("src", "dst", "mode"),
    [
        (FLOAT32, FLOAT16, "odd"),
        (FLOAT32, BFLOAT16, "rint"),
        (FLOAT32, INT32, "round"),
        (FLOAT32, INT16, "rint"),
        (INT16, FLOAT16, "round"),
        (FLOAT16, INT8, "floor"),
        (FLOAT16, UINT8, "rint"),
        (BFLOAT16, FLOAT32, "none"),
        (INT8, FLOAT16, "none"),
        (INT32, FLOAT16, "none"),
    ],
    ids=str,
)
def test_a_cast_converts_element_by_element(
    bench: Bench, src: DType, dst: DType, mode: Any, rng: np.random.Generator
) -> None:
    values = rng.uniform(-120, 120, 128).astype(src.numpy)
    bench.put(0, values)
    bench.run(isa.Cast(ub(1024, dst, 128), ub(0, src, 128), mode))
    assert_same(bench.get(1024, dst, 128), cast(values, dst, mode))


def test_a_cast_to_int4_packs_and_a_cast_from_it_unpacks(bench: Bench) -> None:
    values = np.arange(-16, 16).astype(np.float16) / 2
    bench.put(0, values)
    bench.run(
        isa.Cast(ub(1024, INT4, 32), ub(0, FLOAT16, 32), "rint"),
        isa.Cast(ub(2048, FLOAT16, 32), ub(1024, INT4, 32), "none"),
    )
    rounded = np.clip(np.rint(values), -8, 7).astype(np.int8)
    np.testing.assert_array_equal(bench.ub[1024:1040], pack_int4(rounded))
    assert (bench.ub[1040:1056] == 0x7B).all()
    np.testing.assert_array_equal(bench.get(2048, FLOAT16, 32), rounded)
    np.testing.assert_array_equal(unpack_int4(bench.ub[1024:1040]), rounded)


def test_a_cast_follows_the_overflow_mode_of_the_chip(bench: Bench) -> None:
    bench.put(0, np.float32([1e30, np.nan, 1, -1e30] * 2))
    bench.state.overflow = "saturate"
    bench.run(isa.Cast(ub(32, FLOAT16, 8), ub(0, FLOAT32, 8), "none"))
    assert bench.get(32, FLOAT16, 8).tolist() == [65504, 0, 1, -65504] * 2


SOURCE_BYTES = 2048
"""Where numbers lie that these casts read and nobody writes."""


@pytest.mark.parametrize("lanes", [None, 3])
@pytest.mark.parametrize("seed", range(20))
def test_casts_may_wait(tiny: DeviceSpec, seed: int, lanes: int | None) -> None:
    """Chains of casts, ranges that overlap, and others that read or write some of these bytes."""
    rng = np.random.default_rng(seed)
    ops: list[isa.MicroOp] = []
    while len(ops) < 30:
        x, y, z = (int(start) * 96 for start in rng.integers(0, 6, 3))
        count, fewer = (int(size) for size in rng.choice([32, 64], 2))
        source = SOURCE_BYTES + 256 * int(rng.integers(4))
        last = rng.choice([INT8, UINT8, FLOAT32])
        ops += [
            isa.Cast(ub(x, INT32, count), ub(source, FLOAT32, count), "rint"),
            isa.Cast(ub(y, FLOAT16, fewer), ub(x, INT32, fewer), "none"),
            isa.Cast(ub(z, last, fewer), ub(y, FLOAT16, fewer), "rint"),
            isa.Binary("add", ub(x, INT16, 16), ub(y, INT16, 16), ub(z, INT16, 16)),
            isa.Duplicate(ub(y, FLOAT32, 8), -0.0),
        ][: rng.integers(1, 6)]
    # Two of four sources stay whole in fp16; the last one has numbers that no integer holds.
    values = rng.choice(np.float32([0.5, -0.0, 1.5, -2, 2047, 1e-30]), (3, 256))
    values[:, 128:192] += rng.choice(np.float32([2048, -3e4, 7e4]), (3, 64))
    values[:, 192:] = rng.choice(np.float32([1, np.inf, np.nan, 3e9]), (3, 64))
    found = []
    for byte_exact in (False, True):
        buffers = Buffers(tiny.cores["aiv"], byte_exact=byte_exact, lanes=lanes)
        raw = buffers.raw("ub")[..., SOURCE_BYTES : SOURCE_BYTES + values[0].nbytes]
        raw[...] = (values if lanes else values[0]).view(np.uint8)
        run(ops, State(buffers, {}))
        found.append(buffers.raw("ub").copy())
    np.testing.assert_array_equal(*found)


# ---- scalar ----


@pytest.mark.parametrize(
    ("dtype", "value", "register"),
    [
        (INT8, -1, -1),
        (UINT8, 255, 255),
        (INT32, -(2**31), -(2**31)),
        (INT64, -(2**63), -(2**63)),
        (UINT64, 2**64 - 1, -1),
        (FLOAT32, 1.0, 0x3F800000),
        (FLOAT32, -0.0, 0x80000000),
        (FLOAT16, -2.0, 0xC000),
        (BFLOAT16, 1.0, 0x3F80),
    ],
    ids=str,
)
def test_registers_hold_bits(bench: Bench, dtype: DType, value: float, register: int) -> None:
    bench.put(
        8,
        np.array([value]).astype(dtype.numpy) if dtype.is_float else np.array([value], dtype.numpy),
    )
    bench.run(isa.ScalarLoad("r", ub(8, dtype, 1)), isa.ScalarStore(ub(24, dtype, 1), "r"))
    assert bench.register("r") == register
    size = dtype.numpy.itemsize
    np.testing.assert_array_equal(bench.ub[24 : 24 + size], bench.ub[8 : 8 + size])


def test_an_element_of_global_memory_is_read(tiny: DeviceSpec) -> None:
    bench = Bench(tiny, x=np.int32([5, -7, 9]), y=np.float16([1, -2]))
    bench.run(
        isa.ScalarLoadGlobal("r", isa.Global("x", 4, 4), INT32),
        isa.ScalarLoadGlobal("s", isa.Global("y", 2, 2), FLOAT16),
    )
    assert (bench.register("r"), bench.register("s")) == (-7, 0xC000)


def test_each_scalar_operation(bench: Bench, subtests: pytest.Subtests) -> None:
    for op, operands, expected in [
        ("add", (3, -5), -2),
        ("add", (2**63 - 1, 1), -(2**63)),
        ("sub", (3, -5), 8),
        ("mul", (-3, 5), -15),
        ("and", (0b1100, 0b1010), 0b1000),
        ("or", (0b1100, 0b1010), 0b1110),
        ("shl", (3, 4), 48),
        ("shr", (48, 4), 3),
        ("shr", (-1, 60), 15),
        ("min", (-3, 2), -3),
        ("max", (-3, 2), 2),
        ("eq", (4, 4), 1),
        ("eq", (4, 5), 0),
        ("lt", (-1, 0), 1),
        ("lt", (0, 0), 0),
        ("select", (1, 10, 20), 10),
        ("select", (-8, 10, 20), 10),
        ("select", (0, 10, 20), 20),
        ("f32_to_i32", (0x40200000,), 2),
        ("f32_to_i32", (0x40600000,), 4),
        ("f32_to_i32", (0xBF000000,), 0),
        ("f32_to_i32", (0x7FC00000,), 0),
        ("f32_to_i32", (0xFF800000,), -(2**31)),
        # 1 + 2**-11 is a tie, and goes to 1; 1.5 + 1 is 2.5; twice the largest is infinite.
        ("f16_add", (0x3C00, 0x1000), 0x3C00),
        ("f16_add", (0x3E00, 0x3C00), 0x4100),
        ("f16_add", (0x7BFF, 0x7BFF), 0x7C00),
        ("f32_div", (0x3F800000, 0x40400000), 0x3EAAAAAB),
        ("f32_div", (0xBF800000, 0x40400000), 0xBEAAAAAB),
        ("f32_div", (0x40C00000, 0x40000000), 0x40400000),
        ("f32_div", (0x3F800000, 0x00000000), 0x7F800000),
        ("f32_div", (0x00000001, 0x40000000), 0x00000000),
        # 3 + -0.5, 2**24 + 1 (a tie), 1.5 x -2, the root of 2, less, the larger one of NaN.
        ("f32_add", (0x40400000, 0xBF000000), 0x40200000),
        ("f32_add", (0x4B800000, 0x3F800000), 0x4B800000),
        ("f32_sub", (0x40400000, 0xBF000000), 0x40600000),
        ("f32_mul", (0x3FC00000, 0xC0000000), 0xC0400000),
        ("f32_sqrt", (0x40000000,), 0x3FB504F3),
        ("f32_max", (0xBF800000, 0xC0000000), 0xBF800000),
        ("f32_min", (0xBF800000, 0xC0000000), 0xC0000000),
        ("f32_max", (0x7FC00000, 0xC0000000), 0x7FC00000),
        ("f32_lt", (0xC0000000, 0xBF800000), 1),
        ("f32_lt", (0x3F800000, 0x3F800000), 0),
        ("f32_lt", (0x7FC00000, 0x3F800000), 0),
        ("i32_to_f32", (-3,), 0xC0400000),
        ("i32_to_f32", (2**24 + 1,), 0x4B800000),
        # 1, the largest and the smallest fp16; and back, ties to even: 1 + 2**-11 goes to 1.
        ("f16_to_f32", (0x3C00,), 0x3F800000),
        ("f16_to_f32", (0x7BFF,), 0x477FE000),
        ("f16_to_f32", (0x0001,), 0x33800000),
        ("f32_to_f16", (0x3F801000,), 0x3C00),
        ("f32_to_f16", (0x3F803000,), 0x3C02),
        ("f32_to_f16", (0x47800000,), 0x7C00),
    ]:
        with subtests.test(op=op, operands=operands):
            bench.run(isa.ScalarAlu(op, "a", *operands))
            assert bench.register("a") == expected
            # The same with registers in place of numbers.
            names = ("p", "q", "s")[: len(operands)]
            loads = (
                isa.ScalarAlu("add", name, x, 0) for name, x in zip(names, operands, strict=True)
            )
            bench.run(*loads, isa.ScalarAlu(op, "b", *names))
            assert bench.register("b") == expected


def test_a_loop_does_its_body_for_each_element(bench: Bench) -> None:
    values = np.arange(16, dtype=np.int32) * 3 - 20
    bench.put(0, values)
    bench.run(
        isa.ScalarLoop(
            16,
            (
                isa.ScalarLoad("v", ub(0, INT32, 1), 4),
                isa.ScalarAlu("mul", "v", "v", "v"),
                isa.ScalarAlu("min", "v", "v", 300),
                isa.ScalarStore(ub(256, INT64, 1), "v", 8),
            ),
        )
    )
    assert bench.get(256, INT64, 16).tolist() == [min(v * v, 300) for v in values.tolist()]


def test_a_loop_with_a_step_of_zero_stays_where_it_is(bench: Bench) -> None:
    bench.put(0, np.arange(4, dtype=np.uint8))
    bench.put(32, np.uint8([100]))
    bench.run(
        isa.ScalarLoop(
            4,
            (
                isa.ScalarLoad("v", ub(0, UINT8, 1), 1),
                isa.ScalarLoad("base", ub(32, UINT8, 1)),
                isa.ScalarAlu("add", "v", "v", "base"),
                isa.ScalarStore(ub(64, UINT8, 1), "v", 1),
                isa.ScalarStore(ub(96, UINT8, 1), "v"),
            ),
        )
    )
    assert bench.ub[64:68].tolist() == [100, 101, 102, 103]
    assert bench.ub[96] == 103


def test_a_loop_may_step_by_less_than_an_element(bench: Bench) -> None:
    bench.put(0, np.arange(16, dtype=np.uint16))
    bench.run(
        isa.ScalarLoop(
            3, (isa.ScalarLoad("v", ub(0, INT32, 1), 2), isa.ScalarStore(ub(64, INT32, 1), "v", 4))
        )
    )
    assert bench.get(64, INT32, 3).tolist() == [0x10000, 0x20001, 0x30002]


def test_after_a_loop_a_register_holds_what_the_last_round_left(bench: Bench) -> None:
    bench.put(0, np.float32([1, 2, 3, 4] * 2))
    bench.run(
        isa.ScalarLoop(4, (isa.ScalarLoad("v", ub(0, FLOAT32, 1), 4),)),
        isa.ScalarStore(ub(32, FLOAT32, 1), "v"),
        isa.BinaryScalar("mul", ub(64, FLOAT32, 8), ub(0, FLOAT32, 8), "v"),
    )
    assert bench.get(32, FLOAT32, 1).tolist() == [4]
    assert bench.get(64, FLOAT32, 8).tolist() == [4, 8, 12, 16] * 2


def test_a_trap_stops_the_core_when_its_register_is_not_zero(bench: Bench) -> None:
    bench.run(isa.ScalarAlu("eq", "bad", 1, 2), isa.Trap("bad", "never"))
    bench.run(isa.ScalarAlu("lt", "bad", 1, 2))
    with pytest.raises(TrapError, match=r"^group_index must ascend$"):
        bench.run(isa.Trap("bad", "group_index must ascend"), isa.Duplicate(ub(0, INT32, 8), 1))
    assert bench.ub[0] == 0x7B


def test_a_trap_in_a_loop_sees_every_round(bench: Bench) -> None:
    bench.put(0, np.int32([0, 0, 1, 0, 0, 0, 0, 0]))
    load = isa.ScalarLoad("bad", ub(0, INT32, 1), 4)
    bench.run(isa.ScalarLoop(2, (load, isa.Trap("bad", "third"))))
    with pytest.raises(TrapError, match=r"^third$"):
        bench.run(isa.ScalarLoop(3, (load, isa.Trap("bad", "third"))))
