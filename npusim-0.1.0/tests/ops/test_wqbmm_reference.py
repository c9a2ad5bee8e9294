"""The numerics of npu_weight_quant_batchmatmul, kernel by kernel, against numbers and plain loops.

The vector set (m=2, k=160, n=32) was computed once by another program from the kernels' formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matrix_calls import fractals, packed
from op_calls import BF16, Array
from weight_calls import F32, HALF, inputs_of, reference

from npusim import devices, ops
from npusim.ops.npu_weight_quant_batchmatmul.choice import block_k, scheme_of
from npusim.ops.npu_weight_quant_batchmatmul.oracle import (
    FIRST,
    SECOND,
    Inputs,
    absmax,
    away,
    halving_sum,
    lanes_sum,
    msd_group,
    msd_per_group,
    msd_split_k,
    multicore,
)

A2, B4, ONLY_310P = (devices.load(name) for name in ("ascend910b2", "ascend910b4", "ascend310p3"))


def words(values: Array, count: int) -> list[str]:
    """The first numbers of row 0 as hexadecimal words."""
    raw = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")[0, :count]
    return [f"{word:0{2 * values.dtype.itemsize}X}" for word in raw]


# ---- the vector set ----

K, N = np.arange(160)[:, None], np.arange(32)
X = ((((37 * K.T + 11 * np.arange(2)[:, None]) % 101) - 50) / 16).astype(HALF)
WEIGHT = (((31 * K + 17 * N) % 256) - 128).astype(np.int8)
NIBBLES = (((5 * K + 3 * N) % 16) - 8).astype(np.int8)
SCALE, OFFSET = ((N % 7 + 1) / 512).astype(HALF), (N % 5 - 2).astype(HALF)
BIAS = (0.5 * (N % 3)).astype(HALF)
VECTORS = {"x": X, "antiquant_scale": SCALE, "antiquant_offset": OFFSET, "bias": BIAS}


def test_constants() -> None:
    one = F32(1)
    numbers = [FIRST, SECOND, one / FIRST, one / SECOND]
    assert words(np.array([numbers]), 4) == ["42FEFF7D", "46FDFFFB", "3C0080C3", "38010207"]
    traits = inputs_of(weight=WEIGHT, **VECTORS).traits
    assert words(np.array([scheme_of(traits).weights], F32), 2) == ["3C010204", "38020610"]
    weights = scheme_of(replace(traits, weight="int4")).weights
    assert words(np.array([weights], F32), 3) == ["3E08B733", "3C120653", "3A1BF7B7"]
    assert words(np.array([[1 / 14.98, 1 / 14.98**2]], HALF), 2) == ["2C46", "1C90"]


def test_multicore() -> None:
    call = inputs_of(weight=WEIGHT, **VECTORS)
    assert absmax(X.astype(F32))[0] == 3.125
    assert lanes_sum(X.astype(F32)).tolist() == [[-2.5625], [0.125]]
    q = X.astype(F32) * (F32(1) / F32(3.125))
    first = away(q * FIRST)
    second = away((q - first * (F32(1) / FIRST)) * SECOND)
    assert first[0, :8].tolist() == [-127, -33, 61, -102, -8, 87, -76, 18]
    assert second[0, :8].tolist() == [-127, -38, 51, 0, 89, -77, -127, -38]
    total = multicore(call)
    assert words(total, 4) == ["3F258F83", "4112D016", "413964EA", "C19AF419"]
    # A weight of (k, n) and 2 rows: the vendor takes this template by itself.
    y = reference(X, WEIGHT, SCALE, OFFSET, bias=BIAS)
    assert words(y, 8) == ["392C", "4897", "49CB", "CCD8", "D00E", "C8EE", "4882", "4005"]


def test_split_k_of_int8() -> None:
    call = inputs_of(weight=WEIGHT.T.copy().T, **VECTORS)
    assert block_k(call.traits) == 512
    total = msd_split_k(call)
    assert words(total, 4) == ["3F2591FA", "4112D07D", "413964EF", "C19AF3E6"]
    y = call.round_to_x(msd_split_k(call))
    assert words(y, 8) == ["392D", "4897", "49CB", "CCD8", "D00E", "C8EE", "4882", "4005"]


def test_split_k_of_int4() -> None:
    weight = packed(NIBBLES.T).T
    call = inputs_of(weight=weight, **VECTORS)
    np.testing.assert_array_equal(call.weight, NIBBLES)
    total = msd_split_k(call)
    assert words(total, 4) == ["BB2C74B0", "3F3359D1", "3FB79ABD", "BF123028"]
    # n is less than 2 m or not, k and n are multiples of 32: chosen by the vendor, too.
    y = reference(X, weight, SCALE, OFFSET, bias=BIAS)
    assert words(y, 8) == ["9964", "399B", "3DBD", "B892", "3910", "3A55", "BB8E", "396B"]


def test_custom() -> None:
    y = reference(X, WEIGHT, SCALE, OFFSET, bias=BIAS, template="custom")
    assert words(y, 8) == ["392C", "4896", "49CB", "CCD8", "D00E", "C8EE", "4882", "4005"]


def test_the_vendors_example() -> None:
    x, weight, scale = np.ones((16, 32), HALF), np.ones((32, 16), np.int8), np.ones(16, HALF)
    assert np.all(reference(x, weight, scale) == 32)


# ---- blocks of k, and sums of rows ----


@pytest.mark.parametrize(
    ("k", "n", "trans", "kind", "depth"),
    [
        (20480, 5120, True, "int8", 10240), (12288, 64, True, "int8", 12288),
        (12800, 5120, True, "int8", 6656), (13760, 5120, False, "int8", 6912),
        (3840, 128, False, "int8", 960), (3840, 160, False, "int8", 3840),
        (8192, 3072, True, "int4", 8192), (65504, 40000, True, "int4", 11264),
    ],
)  # fmt: skip
def test_blocks_of_k(k: int, n: int, trans: bool, kind: Any, depth: int) -> None:
    call = inputs_of(weight=WEIGHT, **VECTORS)
    traits = replace(call.traits, k=k, n=n, trans_weight=trans, weight=kind)
    assert block_k(traits) == depth


def loop_sum(row: Array, halving: bool) -> Any:
    """A row sum, one addition after the other."""
    vectors = [list(row[start : start + 64]) for start in range(0, len(row), 64)]
    tail = vectors.pop() if len(row) % 64 and len(vectors) > 1 else []
    while len(vectors) > 1:
        half = len(vectors) // 2 if halving else 1
        for index in range(half):
            pairs = zip(vectors[index], vectors[half + index], strict=True)
            vectors[index] = [a + b for a, b in pairs]
        del vectors[half : 2 * half]
    lanes = vectors[0]
    lanes[: len(tail)] = [a + b for a, b in zip(lanes, tail, strict=False)]
    while len(lanes) > 1:
        lanes = [lanes[index] + lanes[index + 1] for index in range(0, len(lanes), 2)]
    return lanes[0]


@pytest.mark.parametrize("halving", [True, False])
def test_row_sums(rng: np.random.Generator, halving: bool, subtests: pytest.Subtests) -> None:
    for k in [32, 64, 96, 128, 160, 192, 224, 2048, 4064, 4096, 4128, 4544]:
        with subtests.test(k=k):
            row = (rng.normal(size=k) * 10.0 ** rng.integers(-4, 4, k)).astype(F32)
            total = halving_sum(row) if halving and k >= 64 else lanes_sum(row)
            assert total.item() == loop_sum(row, halving).item()


def test_halves_go_away_from_zero() -> None:
    values = np.array([0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 8388607.5], F32)
    assert away(values).tolist() == [1, -1, 2, 3, -3, 0, 8388608]


# ---- groups, in plain loops ----


def group_call(rng: np.random.Generator, size: int, k: int, kind: Any = HALF) -> dict[str, Any]:
    """m = 2, n = 64, int4 weights."""
    count = k // size
    return {
        "x": rng.normal(size=(2, k)).astype(kind),
        "weight": packed(rng.integers(-8, 8, (k, 64))),
        "antiquant_scale": rng.uniform(0.01, 0.02, (count, 64)).astype(kind),
        "antiquant_offset": rng.integers(-3, 4, (count, 64)).astype(kind),
        "antiquant_group_size": size,
    }


def loop_group(call: Inputs, group: int, row: int, column: int) -> tuple[Any, Any, Any]:
    """Of one group: the offset's share, the scaled product, and the largest magnitude."""
    size = call.traits.group_size
    span = slice(group * size, (group + 1) * size)
    x = call.x[row, span].astype(F32)
    w = [int(value) for value in call.weight[span, column]]
    most = max(abs(value) for value in x)
    rest, products = [value / most * F32(7.49) for value in x], []
    for _ in range(3):
        rounded = [F32(np.trunc(float(p) + np.copysign(0.5, p))) for p in rest]
        products.append(sum(int(r) * v for r, v in zip(rounded, w, strict=True)))
        rest = [(p - r) * F32(14.98) for p, r in zip(rest, rounded, strict=True)]
    undo = [F32(1) / F32(7.49), F32(1) / (F32(7.49) * F32(14.98))]
    undo.append(F32(1) / (F32(7.49) * F32(14.98) * F32(14.98)))
    if call.given.inner_precise:
        h1, h2, h3 = (HALF(product) for product in products)
        half = HALF(HALF(h3 * HALF(1 / 14.98**2)) + HALF(HALF(h2 * HALF(1 / 14.98)) + h1))
        u = F32(half) * undo[0]
    else:
        u = F32(products[0]) * undo[0]
        u = F32(products[1]) * undo[1] + u
        u = F32(products[2]) * undo[2] + u
    scale = F32(call.scale[group, column])
    assert call.offset is not None
    share = loop_sum(x, False) * (scale * F32(call.offset[group, column]))
    return share, u * scale, most


def loop_packs(call: Inputs, row: int, column: int) -> Any:
    found = [loop_group(call, g, row, column) for g in range(call.scale.shape[0])]
    step, y = 1024 // call.traits.group_size, F32(0)
    for first in range(0, len(found), step):
        for share, _, _ in found[first : first + step]:
            y = share + y
        for _, u, most in found[first : first + step]:
            y = u * most + y
    return y


def loop_cores(call: Inputs, row: int, column: int) -> Any:
    found = [loop_group(call, g, row, column) for g in range(call.scale.shape[0])]
    # One part of n, so that all cores share k.
    step, y = -(-call.traits.k // call.cube_cores // call.traits.group_size), F32(0)
    for first in range(0, len(found), step):
        total = None
        for share, u, most in found[first : first + step]:
            total = share if total is None else share + total
            total = total + u * most
        y = y + total
    return y


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", [HALF, BF16])
@pytest.mark.parametrize("inner_precise", [0, 1])
@pytest.mark.parametrize(("size", "k"), [(64, 2176), (128, 3584)])
@pytest.mark.parametrize(("whole", "loop"), [(msd_per_group, loop_packs), (msd_group, loop_cores)])
def test_groups(
    rng: np.random.Generator, whole: Callable[[Inputs], Array], loop: Any,
    size: int, k: int,
    inner_precise: int, kind: Any,
) -> None:  # fmt: skip
    call = inputs_of(inner_precise=inner_precise, **group_call(rng, size, k, kind))
    expected = [loop(call, row, column) for row in (0, 1) for column in (0, 5, 63)]
    assert whole(call)[:, [0, 5, 63]].tolist() == np.array(expected, F32).reshape(2, 3).tolist()


def cancelling(rng: np.random.Generator) -> tuple[Any, ...]:
    """A call whose true result is 0, so that what comes out is the rounding errors."""
    call = group_call(rng, 64, 4096)
    x, nibbles = call["x"], call["weight"]
    parameters = (
        np.vstack([values, values])
        for values in (call["antiquant_scale"], call["antiquant_offset"])
    )
    return np.hstack([x, -x]), np.vstack([nibbles, nibbles]), *parameters


def test_deterministic_calls_take_another_kernel(rng: np.random.Generator) -> None:
    x, weight, scale, offset = cancelling(rng)
    for inner in (0, 1):
        call = inputs_of(
            x=x, weight=weight, antiquant_scale=scale, antiquant_offset=offset,
            antiquant_group_size=64, inner_precise=inner,
        )  # fmt: skip
        loose, fixed = (
            reference(
                x, weight, scale, offset, antiquant_group_size=64, inner_precise=inner,
                deterministic=deterministic,
            )
            for deterministic in (False, True)
        )  # fmt: skip
        np.testing.assert_array_equal(loose, call.round_to_x(msd_group(call)))
        np.testing.assert_array_equal(fixed, call.round_to_x(msd_per_group(call)))
        assert not np.array_equal(loose, fixed)


def test_inner_precise_1_is_near_0(rng: np.random.Generator) -> None:
    call = group_call(rng, 128, 2048)
    args = (call["x"], call["weight"], call["antiquant_scale"], call["antiquant_offset"])
    for deterministic in (False, True):
        precise, fast = (
            reference(
                *args, antiquant_group_size=128, inner_precise=inner, deterministic=deterministic
            ).astype(F32)
            for inner in (0, 1)
        )
        assert 0 < np.abs(precise - fast).max() < 1e-3 * np.abs(precise).max()


# ---- every kernel is near the formula, and each is itself ----


def exact(x: Any, weight: Any, scale: Any, offset: Any, size: int = 0) -> Array:
    """The formula in float64."""
    wide_scale, wide_offset = np.asarray(scale, np.float64), np.asarray(offset, np.float64)
    if size:
        wide_scale, wide_offset = (np.repeat(v, size, 0) for v in (wide_scale, wide_offset))
    return x.astype(np.float64) @ ((weight.astype(np.float64) + wide_offset) * wide_scale)


def near(y: Array, wanted: Array, share: float) -> None:
    assert np.abs(y.astype(np.float64) - wanted).max() <= share * np.abs(wanted).max()


def numbers(rng: np.random.Generator, m: int, k: int, n: int, kind: Any = HALF) -> tuple[Any, ...]:
    return (
        rng.normal(size=(m, k)).astype(kind),
        rng.integers(-128, 128, (k, n), np.int8),
        rng.uniform(0.001, 0.002, n).astype(kind),
        rng.integers(-20, 20, n).astype(kind),
    )


@pytest.mark.parametrize("k", [32, 96, 128, 512, 4128])
@pytest.mark.parametrize(("kind", "share"), [(HALF, 5e-4), (BF16, 4e-3)])
def test_msd_is_near_custom(rng: np.random.Generator, k: int, kind: Any, share: float) -> None:
    call = numbers(rng, 8, k, 64, kind)
    msd, custom = reference(*call), reference(*call, template="custom")
    near(msd, exact(*call), share)
    near(custom, exact(*call), 2 * share)
    assert msd.dtype == custom.dtype == np.dtype(kind)
    assert not np.array_equal(msd, custom)


def test_high_precision_differs_in_the_row_sum_alone(rng: np.random.Generator) -> None:
    x, weight, scale, offset = numbers(rng, 3, 8192, 32)
    call = inputs_of(x=x, weight=weight, antiquant_scale=scale, antiquant_offset=offset)
    precise, plain = (multicore(call, precise=precise) for precise in (True, False))
    assert not np.array_equal(precise, plain)
    # The digits miss up to 2^-15 of the largest number of each row, and the sum of x does not.
    near(precise, exact(x, weight, scale, offset), 1e-4)
    without = replace(call, offset=None)
    np.testing.assert_array_equal(multicore(without, precise=True), multicore(without))


def test_long_k_is_split(rng: np.random.Generator) -> None:
    x, weight, scale, offset = numbers(rng, 2, 13728, 64)
    near(reference(x, weight, scale, offset), exact(x, weight, scale, offset), 5e-4)


def bits16(values: Any) -> Any:
    """bf16 nearest to float32 *values*, as float32."""
    return np.asarray(values, F32).astype(BF16).astype(F32)


def test_custom_rounds_bf16_once_and_fp16_twice() -> None:
    weight, x = np.array([[127]], np.int8), np.ones((65, 1))
    scale, offset = np.array([1.5]).astype(BF16), np.array([0.25]).astype(BF16)
    y = reference(x.astype(BF16), weight, scale, offset)
    assert float(y[0, 0]) == bits16(127.25 * 1.5)
    assert float(y[0, 0]) != bits16(bits16(127.25) * F32(1.5))
    weight, scale, offset = np.array([[64]], np.int8), np.array([1.002], HALF), HALF([0.0312])
    y = reference(x.astype(HALF), weight, scale, offset)
    assert y[0, 0] == HALF(HALF(64) + offset[0]) * scale[0]
    assert y[0, 0] != HALF((64 + float(offset[0])) * float(scale[0]))


def test_split_k_rounds_as_its_kernel_does(rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 192)).astype(BF16)
    weight = rng.integers(-128, 128, (192, 64), np.int8)
    scale = rng.uniform(0.001, 0.002, (3, 64)).astype(BF16)
    offset = (rng.normal(size=(3, 64)) / 7).astype(BF16)
    y = reference(x, weight, scale, offset, antiquant_group_size=64, template="split_k")
    group = np.repeat(np.arange(3), 64)
    w16 = (weight.astype(HALF) + offset.astype(F32).astype(HALF)[group]).astype(F32)
    dequantised = bits16(w16 * scale.astype(F32)[group]).astype(np.float64)
    total = np.zeros((2, 64), F32)
    for start in range(0, 192, 64):
        part, span = np.zeros((2, 64), F32), x[:, start : start + 64].astype(np.float64)
        for k in range(0, 64, 16):
            piece = span[:, k : k + 16] @ dequantised[start + k : start + k + 16]
            part = (part + piece).astype(F32)
        total = total + part
    np.testing.assert_array_equal(y, total.astype(BF16))
    with_custom = reference(x, weight, scale, offset, antiquant_group_size=64)
    assert not np.array_equal(y, with_custom)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", [HALF, BF16])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("k", [512, 2112])
def test_nz_splitk(rng: np.random.Generator, kind: Any, has_bias: bool, k: int) -> None:
    x, weight, scale, offset = numbers(rng, 65, k, 64, kind)
    bias = rng.normal(size=64).astype(HALF if kind is HALF else F32) if has_bias else None
    y = reference(x, fractals(weight.T.copy()).T, scale, offset, bias=bias)
    wanted = exact(x, weight, scale, offset) + (0 if bias is None else bias.astype(np.float64))
    near(y, wanted, 1e-3 if kind is HALF else 8e-3)
    same = reference(x, fractals(weight.T.copy()).T, scale, offset, bias=bias, template="custom")
    # One core along k, fp16 and no bias: nothing but custom's own sum.
    assert np.array_equal(y, same) == (kind is HALF and k == 512 and not has_bias)


def test_nz_splitk_rounds_ties_away_after_its_epilogue() -> None:
    # 1 + 2^-11 lies between two fp16 numbers; custom rounds it to the even one.
    x, weight = np.zeros((65, 64), HALF), np.zeros((64, 64), np.int8)
    x[:, 0], weight[0] = 2.0**-11, 1
    call = (x, fractals(weight.T.copy()).T, np.ones(64, HALF))
    bias = np.ones(64, HALF)
    assert np.all(reference(*call, bias=bias) == HALF(1 + 2.0**-10))
    assert np.all(reference(*call, bias=bias, deterministic=True) == HALF(1))


def test_cores_that_share_k_follow_the_chip(rng: np.random.Generator) -> None:
    args = cancelling(rng)
    by_chip = [reference(*args, antiquant_group_size=64, spec=spec) for spec in (A2, B4, None)]
    assert not np.array_equal(by_chip[0], by_chip[1])
    np.testing.assert_array_equal(by_chip[0], by_chip[2])


def test_fixpipe_rounds_the_weight_once(rng: np.random.Generator) -> None:
    pack_words = ops.load("npu_trans_quant_param").reference
    scale = rng.uniform(0.001, 0.002, 64).astype(F32)
    x, weight, _, _ = numbers(rng, 4, 64, 64)
    offset = rng.integers(-128, 128, 64).astype(np.int32)
    y = reference(x, np.asfortranarray(weight), pack_words(scale), offset)
    cut = (scale.view(np.uint32) & 0xFFFFE000).view(F32).astype(np.float64)
    dequantised = ((weight.astype(np.float64) + offset) * cut).astype(HALF).astype(np.float64)
    total = np.zeros((4, 64), F32)
    for k in range(0, 64, 16):
        total = (total + x[:, k : k + 16].astype(np.float64) @ dequantised[k : k + 16]).astype(F32)
    np.testing.assert_array_equal(y, total.astype(HALF))


# ---- int8 output ----


def test_int8_output_saturates_twice() -> None:
    x, weight = np.ones((1, 32), HALF), np.ones((32, 4), np.int8)
    weight[:, 1], weight[:, 2] = -1, 0
    scales = np.array([10, 10, 10, 0.078125], F32)
    offsets = np.array([-200, 200, 3, 0], F32)
    one = np.ones(4, HALF)
    # 320 is cut to 255, -320 to -256, before the offset comes; 2.5 rounds to the even 2.
    y = reference(x, weight, one, quant_scale=scales, quant_offset=offsets)
    assert (y.dtype, y.tolist()) == (np.int8, [[55, -56, 3, 2]])
    words64 = ops.load("npu_trans_quant_param").reference(scales, offsets)
    for ignored in (None, np.zeros(4, F32)):
        again = reference(x, weight, one, quant_scale=words64, quant_offset=ignored)
        np.testing.assert_array_equal(again, y)
    # One scale for all columns.
    y = reference(x, weight, one, quant_scale=np.array([0.5], F32))
    assert y.tolist() == [[16, -16, 0, 16]]


# ---- Atlas inference ----


def test_310p_saturates() -> None:
    x, weight = np.full((1, 32), 600, HALF), np.full((32, 32), 120, np.int8)
    scale = np.full(32, 600, HALF)
    assert np.all(reference(x, weight, scale, spec=ONLY_310P) == 65504)
    assert np.all(np.isinf(reference(x, weight, scale, spec=A2, template="custom")))


def test_310p_is_custom_whatever_the_layout(rng: np.random.Generator) -> None:
    x, weight, scale, offset = numbers(rng, 4, 96, 48)
    bias = rng.normal(size=48).astype(HALF)
    custom = reference(x, weight, scale, offset, bias=bias, template="custom")
    for given_as in (weight, np.asfortranarray(weight), fractals(weight.T.copy()).T):
        y = reference(x, given_as, scale, offset, bias=bias, spec=ONLY_310P)
        np.testing.assert_array_equal(y, custom)


# ---- views, layouts and corners ----


def test_layouts_do_not_change_values(rng: np.random.Generator) -> None:
    x, weight, scale, offset = numbers(rng, 65, 80, 64)
    y = reference(x, weight, scale, offset)
    turned = np.asfortranarray(x)
    for other in (
        reference(turned, weight, scale, offset),
        reference(x, np.asfortranarray(weight), scale[None], offset[None]),
        reference(x, fractals(weight), scale, offset),
        reference(x, fractals(weight.T.copy()).T, scale, offset, deterministic=True),
    ):
        np.testing.assert_array_equal(other, y)


def test_int4_layouts_do_not_change_values(rng: np.random.Generator) -> None:
    nibbles = rng.integers(-8, 8, (64, 128)).astype(np.int8)
    x = rng.normal(size=(65, 64)).astype(HALF)
    scale = rng.uniform(0.01, 0.02, 128).astype(HALF)
    wide = reference(x, nibbles, scale, template="custom")
    down = packed(nibbles.T)
    for given_as in (packed(nibbles), down.T, fractals(down).T):
        np.testing.assert_array_equal(reference(x, given_as, scale), wide)


def test_one_scale_for_all(rng: np.random.Generator) -> None:
    x, weight, scale, offset = numbers(rng, 4, 64, 64)
    everywhere = np.full(64, scale[0]), np.full(64, offset[0])
    wide = reference(x, weight, *everywhere, template="custom")
    for shape in ((1,), (1, 1)):
        y = reference(x, weight, scale[:1].reshape(shape), offset[:1].reshape(shape))
        np.testing.assert_array_equal(y, wide)


@pytest.mark.parametrize("k", [64, 128])
def test_a_row_of_zeros_gives_the_bias(k: int) -> None:
    x = np.zeros((1, k), HALF)
    weight, scale = np.ones((k, 32), np.int8), np.ones(32, HALF)
    bias = np.full(32, 3, HALF)
    assert np.all(reference(x, weight, scale, scale, bias=bias) == 3)
    nibbles = packed(np.ones((32, k), np.int8)).T
    assert np.all(reference(x, nibbles, scale, scale, bias=bias) == 3)


def test_tiny_rows_saturate_in_their_digits() -> None:
    # The reciprocal of 2^-130 is infinite in fp32: the first digit is 127, the second 0.
    x = np.full((1, 128), 2.0**-130).astype(BF16)
    y = reference(x, np.ones((128, 32), np.int8), np.ones(32, BF16))
    first = F32(127 * 128) * (F32(1) / FIRST) * F32(2.0**-130)
    assert float(y[0, 0]) == bits16(first)


def test_the_order_inside_the_cube_can_be_chosen(rng: np.random.Generator) -> None:
    x, weight, scale, _ = numbers(rng, 65, 256, 64)
    # The true result is 0, so that what comes out is the rounding errors.
    call = np.hstack([x, -x]), np.vstack([weight, weight]), scale
    by_order = [reference(*call, cube_order=order) for order in ("k16", "k8", "k4", "k1")]
    for index, one in enumerate(by_order):
        assert np.abs(one).max() < 1e-5
        for other in by_order[:index]:
            assert not np.array_equal(one, other)
