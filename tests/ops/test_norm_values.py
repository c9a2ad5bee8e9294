"""The RMS norms: every template against numpy, special numbers, and the vendor's own tolerances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import A2, A3, BF16, INFERENCE, Array, assert_as_reference, rows_of_floats

from npusim import TensorSpec, devices, ops, run
from npusim.isa import Store

NORM, ADD = "npu_rms_norm", "npu_add_rms_norm"
QUANT, DYNAMIC = "npu_add_rms_norm_quant", "npu_add_rms_norm_dynamic_quant"


def outputs(op: str, *args: Any, device: str = "ascend910b2", **kwargs: Any) -> Any:
    """All that a call gives."""
    return run(op, *args, device=device, timing=False, **kwargs).output


def near_one(rng: np.random.Generator, columns: int, dtype: Any) -> Array:
    return rng.normal(1, 0.3, columns).astype(dtype)


# ---- every template, at the edges of what it takes ----

A2_NORMS = [
    # rows, columns, dtype of x and of gamma, template
    (600, 373, np.float16, None, "merge_n"), (100, 2000, BF16, None, "merge_n"),
    (49, 65, np.float32, None, "merge_n"), (100, 200, BF16, np.float32, "merge_n"),
    (100, 2001, BF16, None, "normal"), (3, 12288, np.float16, None, "normal"),
    (2, 10240, np.float32, None, "normal"), (3, 12160, np.float16, np.float32, "normal"),
    (3, 12161, np.float16, np.float32, "single_row"), (50, 13904, BF16, np.float32, "single_row"),
    (2, 12289, BF16, None, "split_d"), (70, 10241, np.float32, None, "split_d"),
    (3, 13905, BF16, np.float32, "split_d"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "columns", "dtype", "gamma_dtype", "template"), A2_NORMS)
def test_npu_rms_norm(rows: int, columns: int, dtype: Any, gamma_dtype: Any, template: str) -> None:
    rng = np.random.default_rng(columns)
    x = rng.normal(0, 3, (rows, columns)).astype(dtype)
    found = assert_as_reference(
        NORM, x, near_one(rng, columns, gamma_dtype or dtype), device="ascend910b2"
    )
    assert found.template == template


def test_a_row_shorter_than_a_block_is_a_piece() -> None:
    x, gamma = np.arange(12, dtype=np.float16).reshape(2, 6), np.ones(6, np.float16)
    assert_as_reference(NORM, x, gamma, template="split_d", device="ascend910b2")


def test_roots_of_64_rows_are_stored_together() -> None:
    spec, operator = devices.load("ascend910b2"), ops.load(NORM)
    args = TensorSpec((48 * 130, 4096), "bfloat16"), TensorSpec((4096,), "bfloat16")
    problem = operator.check(spec, *args)
    found = operator.build(spec, problem, operator.tile(spec, problem))[0].program.ops
    stores = [op.dst.nbytes for op in found if isinstance(op, Store) and op.dst.name == "rstd"]
    assert stores == [4 * 64, 4 * 64, 4 * 2]


A2_SUMS = [
    (48, 200, np.float16, "single_n"), (48, 12288, BF16, "single_n"),
    (20, 10240, np.float32, "single_n"), (49, 200, np.float16, "merge_n"),
    (600, 373, BF16, "merge_n"), (100, 2000, np.float32, "merge_n"),
    (300, 2016, np.float16, "multi_n"), (50, 10848, np.float16, "normal"),
    (130, 4096, BF16, "normal"), (60, 4000, np.float32, "normal"),
    (3, 12289, np.float16, "split_d"), (50, 25600, BF16, "split_d"),
    (3, 10241, np.float32, "split_d"),
]  # fmt: skip


@pytest.mark.sample(8)
@pytest.mark.parametrize(("rows", "columns", "dtype", "template"), A2_SUMS)
def test_npu_add_rms_norm(rows: int, columns: int, dtype: Any, template: str) -> None:
    rng = np.random.default_rng(columns)
    x1, x2 = (rng.normal(0, 3, (rows, columns)).astype(dtype) for _ in range(2))
    found = assert_as_reference(ADD, x1, x2, near_one(rng, columns, dtype), device="ascend910b2")
    assert found.template == template


# Templates that the vendor's tests name, for 40 cores: keys 13, 11 and 23; ops-nn@e5c3fa9.
@pytest.mark.parametrize(
    ("shape", "dtype", "template"),
    [
        ((24, 2560), "float16", "single_n"),
        ((24, 25600), "float16", "split_d"),
        ((24, 256), "float32", "single_n"),
    ],
)
def test_the_choice_of_the_vendors_tests(shape: tuple[int, ...], dtype: str, template: str) -> None:
    x, gamma = TensorSpec(shape, dtype), TensorSpec(shape[1:], dtype)
    assert run(ADD, x, x, gamma, device="ascend910b4").template == template


QUANT_EDGES = [
    # rows, columns, beta, second scales and zero points, template
    (48, 12224, False, False, "single_n"), (49, 8192, False, False, "normal"),
    (49, 8193, False, False, "split_d"), (48, 9760, True, False, "single_n"),
    (3, 9761, True, False, "split_d"), (48, 6976, False, True, "single_n"),
    (49, 4864, True, True, "normal"), (49, 4865, True, True, "split_d"),
]  # fmt: skip


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", [np.float16, BF16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "columns", "beta", "second", "template"), QUANT_EDGES)
def test_npu_add_rms_norm_quant(
    rows: int, columns: int, beta: bool, second: bool, template: str, dtype: Any
) -> None:
    rng = np.random.default_rng(columns)
    x1, x2 = (rng.normal(0, 3, (rows, columns)).astype(dtype) for _ in range(2))
    scale_dtype, point_dtype = (np.float32, np.int32) if dtype is np.float16 else (BF16, BF16)
    scales = rng.uniform(0.01, 0.05, (2, columns)).astype(scale_dtype)
    points = rng.integers(-9, 9, (2, columns)).astype(point_dtype)
    more = {"beta": near_one(rng, columns, dtype)} if beta else {}
    if second:
        more |= {"scales2": scales[1], "zero_points2": points[1]}
    args = x1, x2, near_one(rng, columns, dtype), scales[0], points[0]
    for divides in (True, False):
        found = assert_as_reference(QUANT, *args, **more, div_mode=divides, device="ascend910b2")
        assert found.template == template


DYNAMIC_EDGES = [
    (50, 16, "normal"), (100, 1000, "normal"), (3, 8864, "normal"), (50, 8865, "single_row"),
    (49, 12192, "single_row"), (3, 12193, "slice_d"), (49, 17728, "slice_d"),
]  # fmt: skip


@pytest.mark.sample(5)
@pytest.mark.parametrize("dtype", [np.float16, BF16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "columns", "template"), DYNAMIC_EDGES)
def test_npu_add_rms_norm_dynamic_quant(rows: int, columns: int, template: str, dtype: Any) -> None:
    rng = np.random.default_rng(columns)
    x1, x2 = (rng.normal(0, 3, (rows, columns)).astype(dtype) for _ in range(2))
    gamma, first, second = (near_one(rng, columns, dtype) for _ in range(3))
    calls: list[dict[str, Any]] = [
        {},
        {"smooth_scale1": first, "smooth_scale2": second},
        {"smooth_scale2": second, "output_mask": [False, True]},
        {"smooth_scale1": first, "output_mask": [True, True], "beta": gamma - gamma[0]},
    ]
    if columns % 8 == 0:
        calls.append({"y_dtype": "int4", "smooth_scale1": first})
    for call in calls:
        found = assert_as_reference(DYNAMIC, x1, x2, gamma, **call, device="ascend910b2")
        # Beta takes room, and rows of int4 are filled up further.
        if "beta" not in call and "y_dtype" not in call:
            assert found.template == template


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "templates"),
    [
        (32, 128, np.float16, ("merge_n", "multi_n", "normal")),
        (33, 128, np.float16, ("normal", "multi_n", "normal")),
        (70, 40, np.float16, ("normal", "normal", "normal")),
        (20, 4096, np.float16, ("normal", "multi_n", "normal")),
        (3, 14000, np.float16, ("split_d", "split_d", "split_d")),
        (33, 100, np.float32, ("normal", "normal", None)),
        (3, 10248, np.float32, ("split_d", "split_d", None)),
    ],
)
def test_310p(rows: int, columns: int, dtype: Any, templates: tuple[str | None, ...]) -> None:
    rng, device = np.random.default_rng(columns), "ascend310p3"
    x1, x2 = (rng.normal(0, 3, (rows, columns)).astype(dtype) for _ in range(2))
    gamma = near_one(rng, columns, dtype)
    assert assert_as_reference(NORM, x1, gamma, device=device).template == templates[0]
    found = assert_as_reference(ADD, x1, x2, gamma, device=device)
    assert found.template == templates[1]
    # It does not store 1 / root.
    assert not found.output[1].any()
    if templates[2] is not None:
        scales = rng.uniform(0.01, 0.05, columns).astype(np.float32)
        points = rng.integers(-9, 9, columns).astype(np.int32)
        assert (
            assert_as_reference(QUANT, x1, x2, gamma, scales, points, device=device).template
            == templates[2]
        )


# ---- drawn calls ----


@draws(25)
@given(st.data())
def test_a_tiled_run_equals_the_reference(data: st.DataObject) -> None:
    device = data.draw(st.sampled_from(A2 + A3 + INFERENCE))
    is_old = device in INFERENCE
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    kinds = (np.float16, np.float32) if is_old else (np.float16, BF16, np.float32)
    kind = data.draw(st.sampled_from(kinds))
    shape = (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 80)))
    columns = data.draw(st.integers(16 if is_old else 1, 300))
    x1, x2 = (rows_of_floats(rng, (*shape, columns), kind) for _ in range(2))
    gamma = rows_of_floats(rng, (1, columns), kind)[0]
    if data.draw(st.booleans()):
        gamma = np.broadcast_to(gamma, (shape[1], columns)).copy()
    epsilon = data.draw(st.sampled_from((1e-6, 1e-5, 0.5, 0.0)))
    assert_as_reference(NORM, x1, gamma, epsilon, device=device)
    assert_as_reference(ADD, x1, x2, gamma, epsilon, device=device)
    if kind is np.float32 or gamma.ndim > 1:
        return
    if not is_old:
        assert_as_reference(DYNAMIC, x1, x2, gamma, epsilon=epsilon or 1e-6, device=device)
    if not is_old or columns >= 32:
        scale_kind, point_kind = (np.float32, np.int32) if kind is np.float16 else (BF16, BF16)
        scales = rng.normal(0, 1, columns).astype(scale_kind)
        points = rng.integers(-200, 200, columns).astype(point_kind)
        assert_as_reference(QUANT, x1, x2, gamma, scales, points, epsilon=epsilon, device=device)


# ---- special numbers ----


@pytest.mark.parametrize("template", ["merge_n", "normal", "split_d"])
def test_special_rows(template: str) -> None:
    x = np.ones((5, 96), np.float32)
    x[0, 3], x[1, 4], x[2], x[4] = np.inf, np.nan, 0, 2e19
    gamma = np.ones(96, np.float32)
    output, rstd = outputs(NORM, x, gamma, 0.0, template=template)
    assert np.isnan(output[0, 3])
    assert not np.delete(output[0], 3).any()
    assert rstd[0, 0] == 0
    assert np.isnan(output[1]).all()
    assert np.isnan(rstd[1, 0])
    # 1 / sqrt(0), and nothing times infinity.
    assert np.isinf(rstd[2, 0])
    assert np.isnan(output[2]).all()
    assert (output[3] == 1).all()
    # Squares overflow.
    assert not output[4].any()
    assert outputs(NORM, x, gamma, 0.25)[1][2, 0] == 2


def test_sums_of_fp16_overflow_as_the_product_line_does() -> None:
    x, gamma = np.full((2, 64), 6e4, np.float16), np.ones(64, np.float16)
    assert np.isinf(outputs(ADD, x, x, gamma)[2]).all()
    assert (outputs(ADD, x, x, gamma, device="ascend310p3")[2] == 65504).all()


def test_slices_whose_largest_is_nan_are_left_out() -> None:
    """A NaN is not larger than what was found before; without slices it is the row's largest."""
    x = np.random.default_rng(17).normal(0, 3, (4, 12800)).astype(np.float16)
    smooth = np.ones(x.shape[1], np.float16)
    x[1, 3], smooth[77] = np.inf, np.nan
    call = {"smooth_scale1": np.ones_like(smooth), "smooth_scale2": smooth}
    found = assert_as_reference(DYNAMIC, x, x, np.ones_like(smooth), **call, device="ascend910b2")
    y1, y2, _, scale1, scale2 = found.output
    assert (found.template, scale1[1], y1[1].any()) == ("slice_d", 0, False)
    assert scale2[0] > 0
    assert not y2[:, 77].any()
    narrow = np.ascontiguousarray(x[:, :128])
    assert np.isnan(outputs(DYNAMIC, narrow, narrow, np.ones(128, np.float16))[3][1])


def test_a_row_of_zeros_has_scale_0() -> None:
    x, gamma = np.zeros((2, 64), np.float16), np.ones(64, np.float16)
    y1, y2, _, scale, other = outputs(DYNAMIC, x, x, gamma)
    assert not y1.any()
    assert scale.tolist() == [0, 0]
    assert (y2.shape, other.shape) == ((), ())


# ---- the vendor's tests: shapes, values and tolerances ----


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(np.float32, 1e-4), (np.float16, 1e-3)], ids=["float32", "float16"]
)
def test_within_the_vendors_tolerances_of_float64(dtype: Any, tolerance: float) -> None:
    """op-plugin, test_npu_rms_norm.py and test_npu_add_rms_norm.py: rows of 12288, 0 to 100."""
    rng = np.random.default_rng(0)
    x1, x2 = (rng.uniform(0, 100, (96, 12288)).astype(dtype) for _ in range(2))
    gamma = rng.uniform(0, 100, 12288).astype(np.float32)
    found = outputs(NORM, x1, gamma)
    for one, other in zip(found, exactly(x1.astype(float), gamma), strict=True):
        np.testing.assert_allclose(one.astype(float), other, rtol=tolerance)
    weights = gamma.astype(dtype)
    y, rstd, x = outputs(ADD, x1, x2, weights)
    total = x1.astype(float) + x2.astype(float)
    for one, other in zip((y, rstd, x), (*exactly(total, weights), total), strict=True):
        np.testing.assert_allclose(one.astype(float), other, rtol=2 * tolerance)


def exactly(x: Array, gamma: Array) -> tuple[Array, Array]:
    """Output and 1 / root in float64."""
    root = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    return x * root * gamma.astype(float), root


def test_quantised_rows_are_within_one_of_float64() -> None:
    """The vendor's tests let y1 of the dynamic quantisation be off by one."""
    rng = np.random.default_rng(1)
    x1, x2 = (rng.normal(0, 1, (60, 4096)).astype(BF16) for _ in range(2))
    gamma = near_one(rng, 4096, BF16)
    total = x1.astype(float) + x2.astype(float)
    exact, _ = exactly(total, gamma)
    largest = np.abs(exact).max(-1)
    y1, _, x, scale, _ = outputs(DYNAMIC, x1, x2, gamma)
    assert np.abs(y1 - np.rint(exact * (127 / largest)[:, None])).max() <= 1
    np.testing.assert_allclose(scale, largest / 127, rtol=2**-7)
    np.testing.assert_allclose(x.astype(float), total, rtol=2**-7, atol=2**-7)


# ---- time ----


def test_what_is_not_asked_for_takes_time_without_a_mask() -> None:
    """The template normal computes the second output in any case, and drops it."""
    x, gamma = TensorSpec((480, 4096), "bfloat16"), TensorSpec((4096,), "bfloat16")
    bare = run(DYNAMIC, x, x, gamma, device="ascend910b2").cycles
    masked = run(DYNAMIC, x, x, gamma, output_mask=[True, False], device="ascend910b2").cycles
    assert masked is not None
    assert bare is not None
    assert masked < 0.85 * bare
