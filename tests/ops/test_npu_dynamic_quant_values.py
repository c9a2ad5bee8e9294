"""npu_dynamic_quant: the kernels against numpy, numpy against exact fractions and the vendor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chips import every
from hypothesis import given, settings
from op_calls import (
    A2,
    A3,
    BF16,
    Array,
    DynamicCall,
    assert_all_same,
    assert_same,
    dynamic_calls,
    rows_of_floats,
)
from scalar_oracle import divide, fit, multiply

from npusim import TensorSpec, ops, run

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


@settings(max_examples=40)
@given(dynamic_calls())
def test_a_tiled_run_equals_the_reference(call: DynamicCall) -> None:
    before = call.x.tobytes()
    output = run(OP, call.x, device=call.device, timing=False, **call.kwargs).output
    assert_all_same(output, reference(call.x, **call.kwargs))
    assert call.x.tobytes() == before


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


def test_views_give_what_their_copies_give() -> None:
    rng = np.random.default_rng(2)
    x, smooth = rows_of_floats(rng, (20, 12), BF16).T, rng.normal(0, 1, 40).astype(BF16)[::-2]
    copies = np.ascontiguousarray(x), np.ascontiguousarray(smooth)
    output = dynamic_quant(x, smooth_scales=smooth)
    assert_all_same(output, dynamic_quant(copies[0], smooth_scales=copies[1]))
    assert_all_same(output, reference(x, smooth_scales=smooth))


@settings(max_examples=8)
@given(dynamic_calls())
def test_time_does_not_depend_on_values(call: DynamicCall) -> None:
    whole = run(OP, call.x, device=call.device, **call.kwargs)
    spec = TensorSpec(call.x.shape, call.x.dtype.name)
    half = run(OP, spec, device=call.device, **call.kwargs)
    assert half.output == (TensorSpec(spec.shape, "int8"), TensorSpec(spec.shape[:-1], "float32"))
    assert half.cycles == whole.cycles


@pytest.mark.parametrize("shape", [(0, 4), (0, 0), (2, 0, 3), (3, 0, 0)])
def test_an_empty_input_gives_empty_outputs(shape: tuple[int, ...]) -> None:
    result = run(OP, np.empty(shape, np.float16), device="ascend910b2")
    assert_all_same(result.output, (np.empty(shape, np.int8), np.empty(shape[:-1], np.float32)))
    assert (result.plan, result.cycles) == (None, 0)


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


@pytest.mark.parametrize("template", COLUMNS)
def test_special_numbers(template: str) -> None:
    x = np.zeros((len(SPECIAL_ROWS), COLUMNS[template]), np.float64)
    expected = np.zeros(x.shape, np.int8)
    for row, (numbers, becomes, _) in enumerate(SPECIAL_ROWS):
        x[row, : len(numbers)], expected[row, : len(becomes)] = numbers, becomes
    result = run(OP, x.astype(BF16), device="ascend910b2", timing=False)
    assert result.template == template
    divides_twice = template in ("base", "large")
    scales = [
        divide(1, divide(127, largest)) if divides_twice else multiply(largest, ONE_127TH)
        for *_, largest in SPECIAL_ROWS
    ]
    assert_all_same(result.output, (expected, np.array(scales, np.float32)))


@pytest.mark.parametrize("template", COLUMNS)
def test_the_last_bit_of_a_scale_tells_how_it_was_divided(template: str) -> None:
    largest = np.arange(1, 301).astype(np.float16)
    x = np.zeros((300, COLUMNS[template]), np.float16)
    x[np.arange(300), np.arange(300) % x.shape[1]] = largest
    once, twice = largest * np.float32(1 / 127), 1 / (np.float32(127) / largest)
    assert 60 < np.count_nonzero(once != twice) < 100
    _, scale = dynamic_quant(x)
    assert_same(scale, twice if template in ("base", "large") else once)


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
