"""The elementwise family: values, shapes that are broadcast, tiles, and what is refused."""

from __future__ import annotations

import re
from math import erf, exp
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from draws import draws
from hypothesis import given as drawn
from hypothesis import strategies as st
from op_calls import assert_as_reference, assert_same

from npusim import OpError, TensorSpec, devices, ops, run
from npusim.data.dtypes import dtype_named
from npusim.isa import Duplicate, Unary
from npusim.ops.families.elementwise.expressions import EXPRESSIONS
from npusim.ops.families.elementwise.pieces import LEAST_FOR_TABLE, PIECE
from npusim.ops.families.elementwise.reference import oracle_of
from npusim.run.prepared import prepared

CHIPS = ("ascend310p3", "ascend910b2", "ascend910_9391")
HALF, FULL, BF16 = np.float16, np.float32, ml_dtypes.bfloat16
SPECIAL = [np.inf, -np.inf, np.nan, -0.0]
SHAPES = [
    ((5,), (5,)),
    ((3, 100), (3, 100)),
    ((70000,), ()),
    ((7, 33), (33,)),
    ((2, 7, 33), (7, 1)),
    ((4, 1), (1, 9)),
    ((3, 1, 65), (4, 65)),
]


def call(name: str, dtype: Any, shape: Any, other: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Arguments of operator *name*, special numbers among them."""
    given: dict[str, Any] = {"x": (5 * rng.normal(size=shape)).astype(dtype)}
    if np.dtype(dtype).kind not in "iu" and given["x"].size > len(SPECIAL):
        given["x"].reshape(-1)[: len(SPECIAL)] = SPECIAL
    parameters = EXPRESSIONS[name].parameters
    if "logical" in name:
        given["x"] &= 1
    if "logical" in name and "other" in parameters:
        given["other"] = rng.integers(0, 2, other or ()).astype(dtype)
    elif "other" in parameters:
        given["other"] = (5 * rng.normal(size=other)).astype(dtype) if other else 2
    if "grad_output" in parameters:
        given["grad_output"] = (5 * rng.normal(size=shape)).astype(dtype)
    if "alpha" in parameters:
        given["alpha"] = 3
    if "condition" in parameters:
        given["condition"] = rng.integers(0, 2, shape).astype(np.uint8)
    if "low" in parameters:
        given |= {"low": -1, "high": 2}
    if "shape" in parameters:
        given |= {"x": given["x"][..., :1], "shape": (2, *shape)}
    if "value" in parameters:
        given["value"] = -3
    if "exponent" in parameters:
        given["exponent"] = rng.choice([2, 3, 0.5, -0.5, -1, -2]).item()
    if "dtype" in parameters:
        given["dtype"] = "float16" if given["x"].dtype == FULL else "float32"
    return given


@pytest.mark.sample(35)
@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "int8", "uint8"])
def test_any_type_is_cast_to_any_other_or_refused(dtype: str, device: str) -> None:
    values = np.array([[-128, -3, 0, 1, 2, 5, 99, 127]])
    x = np.abs(values).astype(dtype_named(dtype).numpy)
    for target in ("float32", "float16", "bfloat16", "int32", "int8", "uint8"):
        try:
            found = run("cast", x, target, device=device, timing=False).output
        except OpError:
            continue
        # int8 has no 128.
        same = x.astype(int) < (128 if target == "int8" else 256)
        np.testing.assert_array_equal(np.asarray(found)[same].astype(int), x[same].astype(int))


def test_int32_becomes_bfloat16_by_way_of_float32() -> None:
    x = np.array([2**24 - 1, 2**24 + 2**16 + 1, 257, -3], np.int32)
    found = run("cast", x, "bfloat16", device="ascend910b2", timing=False).output
    # 257 lies between 256 and 258, of which 256 is even.
    wanted = [2.0**24, 2.0**24, 256, -3]
    assert np.asarray(found).astype(float).tolist() == wanted


@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_the_kernel_gives_the_bits_of_the_reference(
    name: str, device: str, rng: np.random.Generator
) -> None:
    computed = [x for x in EXPRESSIONS[name].computed_in if x.name != "bfloat16" or "910" in device]
    for index, dtype in enumerate(computed):
        # Each shape with some type; all of them with the first one.
        for shape, other in SHAPES if index == 0 else SHAPES[index::3]:
            given = call(name, dtype.numpy, shape, other, rng)
            assert_as_reference(name, device=device, **given)


@pytest.mark.parametrize("device", CHIPS)
def test_a_selection_takes_numbers_and_what_is_broadcast(
    device: str, rng: np.random.Generator
) -> None:
    x = rng.normal(size=(5, 40)).astype(HALF)
    flags = rng.integers(0, 2, (5, 40)).astype(np.uint8)
    for condition, a, b in (
        (np.array(1, np.uint8), x[:, :1], x[:1]),
        (flags[:, :1], x[:1], HALF(0.5).reshape(1)),
        (flags[:1], x, x[:, :1]),
        (flags, x[:1, :1], x[1:2, 1:2]),
    ):
        found = run("where", condition, a, b, device=device, timing=False).output
        assert_same(found, np.where(condition == 1, a, b))


@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize(
    ("name", "exactly"), [("add", np.add), ("mul", np.multiply), ("div", np.divide)]
)
def test_float32_goes_with_a_type_of_sixteen_bits(
    name: str, exactly: Any, device: str, rng: np.random.Generator
) -> None:
    for dtype in (HALF,) if device == "ascend310p3" else (HALF, BF16):
        x, other = rng.normal(size=(7, 40)).astype(dtype), rng.normal(size=40).astype(FULL)
        if name == "div" and device == "ascend310p3":
            message = "^div: other must be float16 with x of float16 on Atlas inference, not "
            with pytest.raises(OpError, match=message):
                run(name, x, other, device=device)
            continue
        for a, b in ((x, other), (np.broadcast_to(other, x.shape), x)):
            exact = exactly(a.astype(FULL), b.astype(FULL))
            found = run(name, a, b, device=device, timing=False).output
            assert_same(found, exact)
            assert_same(np.asarray(ops.load(name).reference(a, b)), exact)


VECTORS = [
    # Worked out apart, in the steps of the vendor's description.
    ("silu", BF16, [0xC100, 0xBF80, 0x0000, 0x3F00, 0x4040, 0x41A0],
     [0xBB30, 0xBE8A, 0x0000, 0x3E9F, 0x4037, 0x41A0]),
    ("gelu", BF16, [0xC040, 0xBF00, 0x3E80, 0x4000, 0x40C0],
     [0xBB6E, 0xBE1E, 0x3E19, 0x3FFA, 0x40C0]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "given", "expected"), VECTORS, ids=str)
def test_vectors(name: str, dtype: Any, given: list[int], expected: list[int]) -> None:
    x = np.array(given, np.uint16).view(dtype)
    found = run(name, x, device="ascend910b2", timing=False).output
    assert np.asarray(found).view(np.uint16).tolist() == expected


@pytest.mark.parametrize(
    ("name", "exact", "scale"),
    [
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), 4),
        ("silu", lambda x: x / (1 + np.exp(-x)), 4),
        ("tanh", np.tanh, 2),
        ("exp", np.exp, 3),
        ("rsqrt", lambda x: 1 / np.sqrt(np.abs(x)), 3),
    ],
)
def test_float32_is_near_the_exact_function(
    name: str, exact: Any, scale: float, rng: np.random.Generator
) -> None:
    x = (rng.normal(size=4000) * scale).astype(FULL)
    x = np.abs(x) if name == "rsqrt" else x
    found = run(name, x, device="ascend910b2", timing=False).output
    np.testing.assert_allclose(found, exact(x.astype(np.float64)), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("others", [(), ("other",)], ids=["one tensor", "two"])
@pytest.mark.parametrize("dtype", [HALF, BF16, FULL])
def test_large_tensors_have_the_values_of_micro_ops(
    dtype: Any, others: tuple[str, ...], rng: np.random.Generator
) -> None:
    """Prepared calls compute them in pieces, or look them up."""
    shape, name = (3, LEAST_FOR_TABLE // 2 + 1), "sub" if others else "tanh"
    assert np.prod(shape) % PIECE
    given = {each: (5 * rng.normal(size=shape)).astype(dtype) for each in ("x", *others)}
    given["x"][1, : len(SPECIAL)] = SPECIAL
    call = prepared(name, devices.load("ascend910b2"), dict(given))
    assert call is not None
    found = call.outputs(given)["output"]
    assert_same(found, run(name, *given.values(), device="ascend910b2", timing=False).output)


def test_float16_is_added_in_one_rounding_and_saturates_on_inference() -> None:
    x = HALF([60000, 1, -60000, 2048])
    found = [run("add", x, x, device=d, timing=False).output.tolist() for d in CHIPS[:2]]
    assert found == [[65504, 2, -65504, 4096], [np.inf, 2, -np.inf, 4096]]


def test_tiles_of_a_constant_are_filled_once() -> None:
    done = run("sigmoid", TensorSpec((2**24,), "float16"), device="ascend910b2", values=False)
    assert done.trace is not None
    ops_of_core = [span.op for span in done.trace.spans() if span.core == 0]
    tiles = sum(isinstance(op, Unary) for op in ops_of_core)
    assert tiles > 1
    assert sum(isinstance(op, Duplicate) for op in ops_of_core) == 1


def test_the_polynomial_is_near_the_error_function(rng: np.random.Generator) -> None:
    x = (rng.normal(size=4000) * 3).astype(FULL)
    found = run("npu_gelu", x, device="ascend910b2", timing=False).output
    exact = [v * (1 + erf(v / 2**0.5)) / 2 for v in x.astype(np.float64)]
    np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-6)
    by_tanh = run("npu_gelu", x, approximate="tanh", device="ascend910b2", timing=False).output
    assert_same(by_tanh, run("gelu", x, device="ascend910b2").output)


def test_a_multiple_is_rounded_before_it_is_added() -> None:
    # 3 x (1 + 2**-23) rounds to 3 + 2**-21, not to 3 + 3 x 2**-23.
    x, other = FULL([-3]), FULL([1 + 2.0**-23])
    found = run("axpy", x, other, 3.0, device="ascend910b2", timing=False).output
    assert np.asarray(found).tolist() == [2.0**-21]
    # int32 goes by way of float32.
    x = np.array([2**24 + 1, 5], np.int32)
    found = run("axpy", x, 1, 2, device="ascend910b2", timing=False).output
    assert np.asarray(found).tolist() == [2**24 + 2, 7]


@pytest.mark.parametrize("dtype", [HALF, FULL])
def test_inference_compares_by_differences(dtype: Any) -> None:
    least, tiny = np.nextafter(dtype(0), dtype(1)), np.finfo(dtype).tiny
    x = np.array([1, 1, 2, -3, 0, -0.0, least, tiny, 1 + np.finfo(dtype).eps], dtype)
    y = np.array([1, 2, 1, -2, -0.0, 0, 0, 0, 1], dtype)
    found = {d: np.asarray(run("gt", x, y, device=d).output).tolist() for d in CHIPS[:2]}
    assert found["ascend910b2"] == [0, 0, 1, 0, 0, 0, 1, 1, 1]
    # In float32 a difference below 2**-126 counts in part, and that is cut off.
    assert found["ascend310p3"] == [0, 0, 1, 0, 0, 0, int(dtype is HALF), 1, 1]
    turned = run("lt", y, x, device="ascend310p3", timing=False).output
    assert np.asarray(turned).tolist() == found["ascend310p3"]


def test_silu_of_inference_has_no_infinite_power() -> None:
    x = FULL([-90, -80, 3])
    found = {d: np.asarray(run("silu", x, device=d, timing=False).output) for d in CHIPS[:2]}
    assert found["ascend910b2"][0] == 0
    np.testing.assert_allclose(found["ascend310p3"][0], -90 * exp(-90), rtol=1e-6)
    np.testing.assert_allclose(found["ascend310p3"][1:], found["ascend910b2"][1:], rtol=1e-6)


def test_a_number_is_rounded_to_the_type_of_the_tensor() -> None:
    x = HALF([1, 2])
    found = run("mul", x, 0.1, device="ascend910b2", timing=False).output
    assert_same(found, x * HALF(0.1))


@pytest.mark.parametrize("number", [0.1, 3.3, 257])
def test_bfloat16_meets_a_factor_in_float32(number: float, rng: np.random.Generator) -> None:
    x = rng.normal(size=500).astype(BF16)
    found = run("mul", x, number, device="ascend910b2", timing=False).output
    assert_same(found, (x.astype(np.float64) * FULL(number)).astype(FULL).astype(BF16))
    # A whole divisor is rounded to bfloat16 before it divides, a float is not.
    divisor = FULL(number) if isinstance(number, float) else FULL(256)
    found = run("div", x, number, device="ascend910b2", timing=False).output
    assert_same(found, (x.astype(FULL) / divisor).astype(BF16))


def test_a_quotient_of_two_halves_is_float32() -> None:
    x, other = HALF([1, 2048]), np.array([3, 7], BF16)
    found = run("div", x, other, device="ascend910b2", timing=False).output
    assert_same(found, np.divide([1, 2048], [3, 7], dtype=FULL))


@pytest.mark.parametrize("device", CHIPS)
def test_of_two_bounds_that_cross_the_upper_one_holds(device: str) -> None:
    x = FULL([-5, 0, 5])
    found = run("clamp", x, 3.0, -2.0, device=device, timing=False).output
    assert_same(found, FULL([-2, -2, -2]))


def test_tanh_of_small_elements_has_all_digits() -> None:
    x = FULL([1e-7, -1e-4, 3e-3, -0.5, 0.56, 30, np.inf, -np.inf])
    found = run("tanh", x, device="ascend910b2", timing=False).output
    np.testing.assert_allclose(found, np.tanh(x.astype(np.float64)), rtol=3e-7)


@draws(15)
@drawn(data=st.data(), device=st.sampled_from(CHIPS), seed=st.integers(0, 9))
def test_any_shape_is_broadcast(data: st.DataObject, device: str, seed: int) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4)))
    kept = [size if data.draw(st.booleans()) else 1 for size in shape]
    kept = kept[data.draw(st.integers(0, len(shape))) :]
    dtype = data.draw(st.sampled_from([HALF, FULL, np.int32]))
    x = np.random.default_rng(seed).integers(-99, 99, kept).astype(dtype)
    found = np.asarray(run("broadcast_to", x, shape, device=device, timing=False).output)
    np.testing.assert_array_equal(found, np.broadcast_to(x, shape))


@pytest.mark.parametrize("device", ["Atlas 300I Pro", "Atlas A2"])
def test_rows_that_fill_the_buffer_leave_room_for_a_tail(device: str) -> None:
    x = (np.arange(131_072) % 999).astype(np.float16)[None]
    found = run("broadcast_to", x, (2, 131_072), device=device)
    np.testing.assert_array_equal(np.asarray(found.output), np.broadcast_to(x, (2, 131_072)))


@draws(25)
@drawn(data=st.data(), device=st.sampled_from(CHIPS), seed=st.integers(0, 9))
def test_any_expression_of_any_shape_and_stride(
    data: st.DataObject, device: str, seed: int
) -> None:
    name = data.draw(st.sampled_from(sorted(EXPRESSIONS)))
    shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
    known = [dtype.numpy for dtype in EXPRESSIONS[name].computed_in if dtype.numpy in (HALF, FULL)]
    dtype = data.draw(st.sampled_from(known or [np.uint8]))
    given = call(name, dtype, shape, shape, np.random.default_rng(seed))
    if device == CHIPS[0]:
        # Documents forbid NaN and infinities on Atlas inference.
        given["x"] = np.nan_to_num(given["x"], posinf=1, neginf=-1).astype(dtype)
    if data.draw(st.booleans()):
        given["x"] = np.repeat(given["x"], 2, axis=-1)[..., ::2]
    assert_as_reference(name, device=device, **given)


REFUSED = [
    ("broadcast_to", {"x": np.ones((2, 3), HALF), "shape": (3, 3)},
     "broadcast_to: shape must end in the sizes of x, (2, 3), any 1 of which may be another size, "
     "not be (3, 3); reshape x"),
    ("broadcast_to", {"x": np.ones((2, 3), HALF), "shape": 3},
     "broadcast_to: shape must be a list of integers, not 3; pass a list of them"),
    ("fill", {"x": np.ones((2, 3), np.int32), "value": 0.5},
     "fill: value must be a whole number that int32 has, not 0.5; round or clip it"),
    ("pow", {"x": np.ones(4, HALF), "exponent": 4},
     "pow: exponent must be 2, 3, 0.5, -0.5, -1 or -2, not 4: others are not simulated; choose one "
     "of these"),
    ("add", {"x": np.ones(4, HALF), "other": np.ones(3, HALF)},
     "add: shapes must be equal or 1 along each axis, counted from the last one, not x (4,) and "
     "other (3,); reshape one of them"),
    ("where", {"condition": np.ones((2, 1, 1), np.uint8), "x": np.ones((3, 1), HALF),
               "other": np.ones((2, 3, 4), HALF)},
     "where: condition must have one of the last two axes along which others are broadcast, not "
     "(2, 1, 1); expand it first"),
    ("add", {"x": np.ones(4, np.int32), "other": 0.5},
     "add: other must be a whole number that int32 has, not 0.5; round or clip it"),
    ("axpy", {"x": np.ones(4, np.int32), "other": 1, "alpha": 0.5},
     "axpy: alpha must be a whole number that int32 has, not 0.5; round or clip it"),
    ("clamp", {"x": np.ones(4, HALF)},
     "clamp: low or high must be given, not neither; pass one of them"),
    ("clamp", {"x": np.ones(4, HALF), "low": "a"},
     "clamp: low must be a number, not 'a'; pass one without quotes"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "message"), REFUSED)
def test_what_is_refused(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(OpError, match=rf"^{re.escape(message)} \[161002\]$"):
        run(name, device="ascend910b2", timing=False, **given)


def test_a_row_without_an_oracle_is_refused() -> None:
    said = (
        "sinh: an elementwise operator must have an oracle; write what it computes in plain "
        "numpy as a row of ORACLES in families/elementwise/reference.py"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
        oracle_of("sinh")
