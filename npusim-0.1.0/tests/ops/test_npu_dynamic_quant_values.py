"""npu_dynamic_quant: the kernels against numpy, numpy against exact fractions and the vendor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chips import every
from draws import draws
from hypothesis import given
from op_calls import (
    A2,
    A3,
    BF16,
    INFERENCE,
    Array,
    DrawnCall,
    assert_all_same,
    assert_as_reference,
    assert_same,
    dynamic_calls,
    rows_of_floats,
)
from scalar_oracle import divide, fit, multiply

from npusim import TensorSpec, devices, ops, run

OP = "npu_dynamic_quant"
reference = ops.load(OP).reference

ONE_127TH = float(np.uint32(0x3C010204).view(np.float32))
"""The nearest fp32 number, as ops-nn has it."""


def dynamic_quant(x: Any, device: str = "ascend910b2", **kwargs: Any) -> tuple[Array, Array]:
    values, scale = run(OP, x, device=device, timing=False, **kwargs).output
    return values, scale


# ---- what the document prints (torch_npu-npu_dynamic_quant.md), with four digits ----

PLAIN = [[0.7261, 0.3726, 0.9126], [0.9023, 0.9990, 0.1279], [0.8628, 0.6240, 0.9028]]
SMOOTHED = [[0.6680, 0.9492, 0.0845], [0.1924, 0.5278, 0.1484], [0.6631, 0.9497, 0.0957]]


@pytest.mark.parametrize("device", every(A2 + A3))
def test_the_example_of_the_document(device: str) -> None:
    values, scale = dynamic_quant(np.array(PLAIN, np.float16), device)
    assert values.tolist() == [[101, 52, 127], [115, 127, 16], [121, 88, 127]]
    assert [f"{number:.4f}" for number in scale] == ["0.0072", "0.0079", "0.0071"]


@pytest.mark.parametrize("device", every(A2 + A3))
def test_the_example_with_smooth_scales(device: str) -> None:
    smooth = np.array([0.8042, 0.0884, 0.8901], np.float16)
    values, scale = dynamic_quant(np.array(SMOOTHED, np.float16), device, smooth_scales=smooth)
    assert values.tolist() == [[127, 20, 18], [127, 38, 108], [127, 20, 20]]
    assert [f"{number:.4f}" for number in scale] == ["0.0042", "0.0012", "0.0042"]


# ---- the kernels against numpy ----


@draws(40)
@given(dynamic_calls())
def test_a_tiled_run_equals_the_reference(call: DrawnCall) -> None:
    assert_as_reference(OP, *call.args, device=call.device, **call.kwargs)


EDGES = [
    # rows, columns, and the template without and with smooth scales
    (50, 127, "db", "db"), (50, 128, "multi_row", "multi_row"), (50, 129, "db", "db"),
    (130, 136, "multi_row", "multi_row"), (700, 128, "multi_row", "multi_row"),
    (3, 4096, "multi_row", "multi_row"), (4, 4096, "single_row", "single_row"),
    (384, 4096, "single_row", "single_row"), (385, 4096, "multi_row", "multi_row"),
    (50, 5120, "single_row", "single_row"), (49, 10240, "single_row", "single_row"),
    (2, 10257, "db", "db"), (2, 10273, "db", "base"),
    (3, 11487, "db", "base"), (2, 11489, "db", "large"),
    (3, 12736, "multi_row", "multi_row"), (50, 12744, "multi_row", "large"),
    (3, 15023, "db", "large"), (2, 15025, "base", "large"),
    (2, 16320, "multi_row", "large"), (50, 16328, "base", "large"),
    (2, 17744, "base", "large"), (2, 17745, "large", "large"),
    (3, 40001, "large", "large"), (50, 17760, "large", "large"),
]  # fmt: skip


@pytest.mark.sample(13)
@pytest.mark.parametrize(("rows", "columns", "bare", "smoothed"), EDGES)
def test_every_template_equals_the_reference(
    rows: int, columns: int, bare: str, smoothed: str
) -> None:
    rng = np.random.default_rng(columns)
    for kind in (np.float16, BF16):
        x = rows_of_floats(rng, (rows, columns), kind)
        for smooth, template in ((None, bare), (rng.normal(0, 2, columns).astype(kind), smoothed)):
            result = run(OP, x, smooth_scales=smooth, device="ascend910b2", timing=False)
            assert result.template == template
            assert_all_same(result.output, reference(x, smooth_scales=smooth))


@pytest.mark.parametrize(
    ("template", "columns"),
    [
        *(("single_row", 5120), ("multi_row", 4096), ("multi_row", 128)),
        *(("db", 1), ("db", 4096), ("base", 63), ("base", 10240)),
        *(("large", 24), ("large", 10241), ("moe", 128), ("moe_large", 128), ("moe_large", 10248)),
    ],
)
def test_a_template_that_is_named_has_its_own_bits(template: str, columns: int) -> None:
    """Where the vendor's rules would take another one; 2 rows, and 50 for 48 cores."""
    rng = np.random.default_rng(columns)
    for rows, kind in ((2, np.float16), (50, BF16)):
        x = rows_of_floats(rng, (rows, columns), kind)
        calls = [grouped(x, template)]
        if not template.startswith("moe"):
            calls.append({"smooth_scales": rng.normal(0, 2, columns).astype(kind)})
        if columns % 8 == 0 and template != "single_row":
            calls += [call | {"dst_type": "quint4x2"} for call in calls]
        for call in calls:
            result = run(OP, x, **call, template=template, device="ascend910b2", timing=False)
            assert (result.template, result.reason) == (template, "asked for")
            assert_all_same(result.output, reference(x, **call, template=template))


@pytest.mark.parametrize("shape", [(0, 4), (0, 0), (2, 0, 3), (3, 0, 0)])
def test_an_empty_input_gives_empty_outputs(shape: tuple[int, ...]) -> None:
    result = run(OP, np.empty(shape, np.float16), device="ascend910b2")
    assert_all_same(result.output, (np.empty(shape, np.int8), np.empty(shape[:-1], np.float32)))
    assert (result.plan, result.cycles) == (None, 0)


@pytest.mark.parametrize("device", ["ascend910b2", "ascend310p3"])
def test_an_empty_input_is_taken_in_every_form(device: str) -> None:
    empty = np.empty((2, 0, 32), np.float16)
    values, scale = dynamic_quant(empty, device)
    assert (values.shape, scale.shape) == ((2, 0, 32), (2, 0))
    if device == "ascend910b2":
        index = np.zeros(1, np.int32)
        more = {"smooth_scales": np.ones((1, 32), np.float16), "group_index": index}
        values, scale = dynamic_quant(empty, dst_type="quint4x2", **more)
        assert (values.shape, scale.shape) == ((2, 0, 4), (2, 0))


# ---- special numbers, whatever the template ----

INF, NAN = np.inf, np.nan
SMALL = float(np.array(1, np.uint16).view(BF16))
"""The smallest bfloat16: 127 / SMALL is beyond float32."""
SPECIAL_ROWS = [
    # the first numbers of a row of zeros, what becomes of them, M
    ([0.0, -0.0], [0, 0], 0.0),
    ([-0.0], [0], 0.0),
    ([1.0], [127], 1.0),
    ([-1.0, 0.5], [-127, 64], 1.0),
    ([127.0, 0.5, 1.5, 2.5, -0.5, -1.5], [127, 0, 2, 2, 0, -2], 127.0),
    ([INF, 5.0, -7.0], [0, 0, 0], INF),
    ([-INF, INF, 1.0], [0, 0, 0], INF),
    ([NAN, 5.0, -7.0], [0, 0, 0], NAN),
    ([5.0, INF, NAN], [0, 0, 0], NAN),
    ([SMALL, -SMALL, 2 * SMALL], [127, -128, 127], 2 * SMALL),
]
COLUMNS = {"db": 127, "multi_row": 128, "single_row": 4096, "base": 15025, "large": 17745}
COLUMNS |= {"moe": 100, "moe_large": 11489}


DIVIDES_TWICE = ("base", "large", "moe", "moe_large")


def grouped(x: Array, template: str) -> dict[str, Array]:
    """Smooth scales of one in two groups, for the templates that take groups."""
    if not template.startswith("moe"):
        return {}
    index = np.array([x.shape[0] // 2, x.shape[0]], np.int32)
    return {"smooth_scales": np.ones((2, x.shape[1]), x.dtype), "group_index": index}


@pytest.mark.parametrize("template", COLUMNS)
def test_special_numbers(template: str) -> None:
    x = np.zeros((len(SPECIAL_ROWS), COLUMNS[template]), np.float64)
    expected = np.zeros(x.shape, np.int8)
    for row, (numbers, becomes, _) in enumerate(SPECIAL_ROWS):
        # At the end: what takes a row in parts keeps a NaN of the last one only.
        x[row, -len(numbers) :], expected[row, -len(becomes) :] = numbers, becomes
    x = x.astype(BF16)
    result = run(OP, x, device="ascend910b2", timing=False, **grouped(x, template))
    assert result.template == template
    divides_twice = template in DIVIDES_TWICE
    scales = [
        divide(1, divide(127, largest)) if divides_twice else multiply(largest, ONE_127TH)
        for *_, largest in SPECIAL_ROWS
    ]
    assert_all_same(result.output, (expected, np.array(scales, np.float32)))


@pytest.mark.parametrize("template", ["large", "moe_large"])
def test_a_nan_is_lost_when_a_part_follows(template: str) -> None:
    x = np.zeros((1, COLUMNS[template]), np.float16)
    x[0, [0, 1, 10239, 10240]] = [NAN, 4.0, -8.0, 2.0]
    result = run(OP, x, device="ascend910b2", timing=False, **grouped(x, template))
    expected = np.zeros(x.shape, np.int8)
    # The M of the first 10240 numbers is NaN, and not larger than that of the others, which is 2.
    expected[0, [1, 10239, 10240]] = [127, -128, 127]
    factor = np.float32(127) / np.float32(2)
    assert_all_same(result.output, (expected, np.array([1 / factor], np.float32)))


@pytest.mark.parametrize("template", COLUMNS)
def test_the_last_bit_of_a_scale_shows_how_it_was_divided(template: str) -> None:
    largest = np.arange(1, 301).astype(np.float16)
    x = np.zeros((300, COLUMNS[template]), np.float16)
    x[np.arange(300), np.arange(300) % x.shape[1]] = largest
    once, twice = largest * np.float32(1 / 127), 1 / (np.float32(127) / largest)
    assert 60 < np.count_nonzero(once != twice) < 100
    _, scale = dynamic_quant(x, **grouped(x, template))
    assert_same(scale, twice if template in DIVIDES_TWICE else once)


# ---- numpy against exact fractions, and against the vendor ----


@pytest.mark.parametrize("columns", [16, 15025])
@pytest.mark.parametrize("is_smooth", [False, True])
@pytest.mark.parametrize("kind", [np.float16, BF16], ids=lambda kind: np.dtype(kind).name)
def test_the_reference_equals_exact_fractions(kind: Any, is_smooth: bool, columns: int) -> None:
    rng = np.random.default_rng(3)
    x = np.zeros((12, columns), kind)
    x[:, -16:] = rows_of_floats(rng, (12, 16), kind)
    smooth = rng.normal(0, 3, columns).astype(kind) if is_smooth else np.ones(columns, kind)
    values, scale = reference(x, smooth_scales=smooth if is_smooth else None)
    assert not values[:, :-16].any()
    for row in range(12):
        numbers = [
            multiply(float(a), float(b)) for a, b in zip(x[row, -16:], smooth[-16:], strict=True)
        ]
        largest = float(np.max(np.abs(numbers)))
        factor = divide(127, largest)
        whole = [fit(multiply(number, factor), -128, 127) for number in numbers]
        assert values[row, -16:].tolist() == whole
        expected = multiply(largest, ONE_127TH) if columns == 16 else divide(1, factor)
        np.testing.assert_array_equal(scale[row], np.float32(expected))


@pytest.mark.sample(2)
@pytest.mark.parametrize("columns", [100, 512, 4096, 20000])
def test_the_golden_of_ops_nn_is_off_by_one_at_most(columns: int) -> None:
    """ops-nn, tests/assets/golden.py divides by the scale, which is rounded once more."""
    x = np.random.default_rng(columns).normal(0, 3, (400_000 // columns, columns))
    x = x.astype(np.float16)
    values, scale = dynamic_quant(x)
    wide = x.astype(np.float32)
    golden = np.rint(wide / (np.abs(wide).max(-1, keepdims=True) / np.float32(127)))
    apart = np.abs(values - golden)
    assert apart.max() <= 1
    assert np.count_nonzero(apart) < 3e-4 * x.size
    np.testing.assert_allclose(scale, np.abs(wide).max(-1) / 127, rtol=2e-7)


# ---- what ops-nn computes, by hand from its kernels ----

STEPS = np.array([[(37 * j + 11 * r) % 101 - 50 for j in range(16)] for r in range(3)])
X = (STEPS / 16).astype(np.float16)
SMOOTH = np.array([(j % 5 + 1) / 4 for j in range(16)], np.float16)


def bits(scale: Array) -> list[int]:
    return [int(word) for word in scale.view(np.uint32)]


@pytest.mark.parametrize("device", every(A2 + A3))
def test_int8_with_smooth_scales_by_hand(device: str) -> None:
    values, scale = dynamic_quant(X, device, smooth_scales=SMOOTH)
    row = [-34, -18, 49, -110, -10, 23, -41, 14, 121, -69, 12, -65, -21, 74, -127, 0]
    assert values[0].tolist() == row
    assert bits(scale) == [0x3CBA74EA, 0x3CB972E6, 0x3CC58B16]


@pytest.mark.parametrize("device", every(A2 + A3))
def test_int4_by_hand(device: str) -> None:
    values, scale = dynamic_quant(X, device, dst_type="quint4x2")
    assert values.dtype == np.int32
    assert values[0].view(np.uint32).tolist() == [0x1C50A3E9, 0x0B4F92D6]
    assert bits(scale)[0] == 0x3EE4924A


@pytest.mark.parametrize("device", every(INFERENCE))
def test_310p_by_hand(device: str) -> None:
    values, scale = dynamic_quant(np.hstack([X, X]), device)
    row = [-127, -33, 61, -102, -8, 86, -76, 18, 112, -51, 43, -119, -25, 69, -94, 0]
    assert values[0].tolist() == 2 * row
    assert bits(scale)[0] == 0x3CC99326


# ---- int4 ----


@pytest.mark.parametrize("columns", [16, 15032])
def test_int4_equals_exact_fractions(columns: int) -> None:
    rng = np.random.default_rng(4)
    x = np.zeros((12, columns), BF16)
    x[:, -16:] = rows_of_floats(rng, (12, 16), BF16)
    packed, scale = reference(x, dst_type="quint4x2")
    for row in range(12):
        numbers = [float(number) for number in x[row, -16:]]
        largest = float(np.max(np.abs(numbers)))
        factor = divide(7, largest)
        whole = [fit(multiply(number, factor), -8, 7) for number in numbers]
        words = [
            sum((value & 0xF) << 4 * place for place, value in enumerate(whole[start : start + 8]))
            for start in (0, 8)
        ]
        assert packed[row, -2:].view(np.uint32).tolist() == words
        one_7th = float(np.uint32(0x3E124925).view(np.float32))
        np.testing.assert_array_equal(scale[row], np.float32(multiply(largest, one_7th)))


# ---- groups ----


@pytest.mark.sample(3)
@pytest.mark.parametrize("dst_type", ["int8", "quint4x2"])
@pytest.mark.parametrize(("rows", "columns"), [(60, 104), (200, 104), (49, 11496), (5, 30000)])
def test_each_group_has_its_own_smooth_scales(rows: int, columns: int, dst_type: str) -> None:
    """As if each group were quantised on its own, but for the way its scale is divided."""
    rng = np.random.default_rng(rows)
    x = rng.normal(0, 1, (rows, columns)).astype(np.float16)
    smooth = rng.normal(0, 1, (4, columns)).astype(np.float16)
    ends = np.array([rows // 3, rows // 3, rows // 2, rows], np.int32)
    values, scale = dynamic_quant(x, smooth_scales=smooth, group_index=ends, dst_type=dst_type)
    first = 0
    for group, end in enumerate(ends):
        own, own_scale = reference(x[first:end], smooth_scales=smooth[group], dst_type=dst_type)
        assert_same(values[first:end], own)
        np.testing.assert_allclose(scale[first:end], own_scale, rtol=2e-7)
        first = end


def test_the_order_of_entries_decides_and_cores_agree() -> None:
    """The first group that ends behind a row, wherever a core begins to look."""
    x = np.ones((100, 16), np.float16)
    smooth = np.arange(1, 6, dtype=np.float16)[:, None] * np.ones(16, np.float16)
    index = np.array([10, 5, 60, 60, 107], np.int32)
    _, scale = dynamic_quant(x, smooth_scales=smooth, group_index=index)
    group = np.array([next(g for g, end in enumerate(index) if end > row) for row in range(100)])
    factor = np.float32(127) / (group + 1).astype(np.float32)
    assert_same(scale, np.float32(1) / factor)


def test_time_alone_spreads_rows_evenly() -> None:
    specs = {
        "smooth_scales": TensorSpec((4, 64), "float16"),
        "group_index": TensorSpec((4,), "int32"),
    }
    arrays = {
        "smooth_scales": np.ones((4, 64), np.float16),
        "group_index": np.array([24, 48, 72, 96], np.int32),
    }
    x = TensorSpec((96, 64), "float16")
    timed, known = (run(OP, x, device="ascend910b2", **more) for more in (specs, arrays))
    assert timed.cycles == known.cycles


# ---- 310P ----

PATCHED = [
    (3, 32, "unaligned"), (8, 32, "aligned"), (1543, 32, "unaligned"), (130, 512, "unaligned"),
    (700, 96, "unaligned"), (64, 1024, "aligned"), (20, 4096, "unaligned"),
    (9, 4128, "unaligned_large"), (17, 8192, "unaligned_large"), (16, 9984, "unaligned_large"),
]  # fmt: skip


@pytest.mark.sample(5)
@pytest.mark.parametrize(("rows", "columns", "template"), PATCHED)
def test_every_template_of_310p_equals_the_reference(
    rows: int, columns: int, template: str
) -> None:
    spec = devices.load("ascend310p3")
    x = rows_of_floats(np.random.default_rng(columns), (rows, columns), np.float16)
    result = run(OP, x, device=spec)
    assert result.template == template
    assert_all_same(result.output, reference(x, spec=spec))


def half(number: float) -> float:
    """*number* rounded to fp16, as a chip does that has no infinities."""
    if np.isnan(number):
        return 0.0
    with np.errstate(over="ignore"):
        return float(np.clip(np.float16(number), -65504, 65504))


@pytest.mark.parametrize("columns", [32, 4096, 4128, 8192])
def test_310p_equals_a_scalar_model(columns: int) -> None:
    """A product of two fp16 numbers is exact in float64, and so is half of a number."""
    x = np.zeros((40, columns), np.float16)
    x[:, -32:] = rows_of_floats(np.random.default_rng(8), (40, 32), np.float16)
    values, scale = dynamic_quant(x, "ascend310p3")
    assert not values[:, :-32].any()
    for row in range(40):
        numbers = [float(number) for number in x[row, -32:]]
        largest = max(half(abs(number)) for number in numbers)
        factor = half(float(np.float32(127) / np.float32(largest))) if largest else 0.0
        products = [half(number * factor) for number in numbers]
        whole = [int(np.copysign(np.floor(abs(p) + 0.5), p)) for p in products]
        assert values[row, -32:].tolist() == [min(127, max(-128, number)) for number in whole]
        assert scale[row] == np.float32(multiply(largest, ONE_127TH))


@pytest.mark.parametrize("columns", [32, 4128])
def test_special_numbers_on_310p(columns: int) -> None:
    rows = [
        # the first numbers of a row of zeros, what becomes of them, M
        ([0.0, -0.0], [0, 0], 0.0),
        ([1.0, -1.0, 0.5], [127, -127, 64], 1.0),
        ([127.0, 0.5, 1.5, 2.5, -0.5, -1.5], [127, 1, 2, 3, -1, -2], 127.0),
        # 127 / 65504 is 0.001939 in fp16
        ([INF, 500.0, -INF], [127, 1, -128], 65504.0),
        ([NAN, 1.0, -1.0], [0, 127, -127], 1.0),
        # 127 / M is beyond fp16: 65504 of it is left.
        ([0.001, 0.0005], [66, 33], 0.001),
    ]
    x = np.zeros((len(rows), columns), np.float16)
    expected = np.zeros(x.shape, np.int8)
    for row, (numbers, becomes, _) in enumerate(rows):
        x[row, : len(numbers)], expected[row, : len(becomes)] = numbers, becomes
    scales = [np.float32(np.float16(most)) * np.float32(ONE_127TH) for *_, most in rows]
    assert_all_same(dynamic_quant(x, "ascend310p3"), (expected, np.array(scales, np.float32)))
