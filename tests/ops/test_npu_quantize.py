"""npu_quantize: its rules; kernels against numpy, numpy against exact fractions and the vendor.

Sources: torch_npu-npu_quantize.md; where it is silent, the checks of op-plugin and of aclnn that
the operator's module docstring names.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import ones
from chips import THREE, every
from draws import draws
from hypothesis import given
from op_calls import (
    A2,
    A3,
    BF16,
    FLOATS,
    INFERENCE,
    NEW,
    OLD,
    SPECIAL,
    Array,
    DrawnCall,
    Row,
    assert_as_reference,
    assert_refused,
    assert_same,
    constraints,
    floats,
    points,
    quantize_calls,
)
from scalar_oracle import add, divide, fit, multiply, packed
from tiny import fewer_cores

from npusim import Code, OpError, TensorSpec, devices, ops, run
from npusim.isa import Cast, Load, ScalarLoadGlobal

OP = "npu_quantize"


MULTIPLY = {
    "input": ones(4, 8), "scales": ones(8), "zero_points": None,
    "dtype": "qint8", "axis": -1, "div_mode": False,
}  # fmt: skip
DIVIDE = {**MULTIPLY, "axis": 1, "div_mode": True}
CUBE = {"input": ones(2, 3, 8), "scales": ones(3), "axis": -2}


# ---- div_mode=False ----

LAST = "pass -1 for the last dimension"
ONE_EACH = "pass one scale, or one for each position"

NO_DIMENSION = Row(
    {"input": np.array(1, np.float32), "scales": ones(1)},
    "input must have at least one dimension, not none; reshape it to (1,)",
    {"input": ones(1), "scales": ones(1), "axis": 0},
)
MULTIPLYING = [
    NO_DIMENSION,
    Row({"dtype": "quint4x2", "input": ones(4, 12), "scales": ones(12)},
        "the last dimension of input must be a multiple of 8 with dtype='quint4x2', not 12; "
        "pad it, and scales and zero_points along it",
        {"dtype": "quint4x2", "input": ones(4, 16), "scales": ones(16)}, NEW),
    # axis
    Row({"axis": 3},
        "axis must lie in [-2, 2] with div_mode=False for an input of shape (4, 8), not 3; "
        f"{LAST} or -2 for the one before", {"axis": 2}, NEW),
    Row({"axis": -3},
        "axis must lie in [-2, 2] with div_mode=False for an input of shape (4, 8), not -3; "
        f"{LAST} or -2 for the one before", {"axis": -2, "scales": ones(4)}, NEW),
    Row({"axis": 3},
        "axis must lie in [-1, 2] with div_mode=False for an input of shape (4, 8), not 3; "
        f"{LAST}", {"axis": 2}, OLD),
    Row({"axis": -3},
        "axis must lie in [-1, 2] with div_mode=False for an input of shape (4, 8), not -3; "
        f"{LAST}", {"axis": -1}, OLD),
    Row({"axis": -2, "scales": ones(4)},
        "axis must mean the last dimension on {series}, not -2; swap the last two dimensions of "
        "input and pass -1", {"axis": -1}, OLD),
    Row({"axis": -2, "input": ones(8)},
        "axis must lie in [-1, 1] with div_mode=False for an input of shape (8,), not -2; "
        f"{LAST}", {"axis": 1, "input": ones(8)}, NEW),
    # shapes
    *(
        Row({"scales": ones(*shape)},
            "scales must have shape (1,), (8,), (1, 1) or (1, 8) for an input of shape (4, 8) "
            f"scaled along dimension 1, not {shape}; {ONE_EACH}", {"scales": ones(*right)})
        for shape, right in (
            ((), (1,)), ((0,), (1,)), ((4,), (8,)), ((7,), (8,)), ((8, 1), (1, 8)),
            ((4, 1), (1, 1)), ((4, 8), (1, 8)), ((1, 1, 8), (1, 8)),
        )
    ),
    Row({**CUBE, "scales": ones(8)},
        "scales must have shape (1,), (3,), (1, 1, 1) or (1, 3, 1) for an input of shape "
        f"(2, 3, 8) scaled along dimension 1, not (8,); {ONE_EACH}", CUBE, NEW),
    Row({**CUBE, "scales": ones(1, 1, 3)},
        "scales must have shape (1,), (3,), (1, 1, 1) or (1, 3, 1) for an input of shape "
        f"(2, 3, 8) scaled along dimension 1, not (1, 1, 3); {ONE_EACH}",
        {**CUBE, "scales": ones(1, 3, 1)}, NEW),
    Row({"input": ones(8), "scales": ones(7)},
        "scales must have shape (1,) or (8,) for an input of shape (8,) scaled along dimension 0, "
        f"not (7,); {ONE_EACH}", {"input": ones(8)}),
    Row({"input": ones(1), "scales": ones(7)},
        "scales must have shape (1,) for an input of shape (1,) scaled along dimension 0, "
        f"not (7,); {ONE_EACH}", {"input": ones(1), "scales": ones(1)}),
    Row({"zero_points": ones(1)},
        "zero_points must have the shape of scales, (8,), not (1,); "
        "pass as many elements as scales has",
        {"zero_points": ones(8)}),
    Row({"zero_points": ones(1, 8)},
        "zero_points must have the shape of scales, (8,), not (1, 8); reshape it",
        {"scales": ones(1, 8), "zero_points": ones(1, 8)}),
]  # fmt: skip
test_with_div_mode_false = constraints(OP, MULTIPLY, MULTIPLYING)

# ---- div_mode=True ----


DIVIDING = [
    NO_DIMENSION,
    # axis
    Row({"axis": 2},
        "axis must lie in [-2, 1] for an input of shape (4, 8), not 2; "
        "name one of its dimensions", {"axis": 2, "scales": ones(1)}),
    Row({"axis": -3},
        "axis must lie in [-2, 1] for an input of shape (4, 8), not -3; "
        "name one of its dimensions", {"axis": -2, "scales": ones(4)}),
    Row({"input": ones(8)},
        "axis must lie in [-1, 0] for an input of shape (8,), not 1; "
        "name one of its dimensions", {"input": ones(8), "axis": 0}),
    # shapes
    *(
        Row({"scales": ones(*shape)},
            f"scales must be one-dimensional with div_mode=True, not of shape {shape}; "
            "flatten them")
        for shape in ((), (1, 8), (8, 1), (1, 1))
    ),
    *(
        Row({"scales": ones(*shape)},
            "scales must have shape (1,) or (8,) for an input of shape (4, 8) scaled along "
            f"dimension 1, not {shape}; {ONE_EACH}", {"scales": ones(1)})
        for shape in ((0,), (4,), (7,))
    ),
    Row({"input": ones(4, 1)},
        "scales must have shape (1,) for an input of shape (4, 1) scaled along dimension 1, "
        f"not (8,); {ONE_EACH}", {"input": ones(4, 1), "scales": ones(1)}),
    Row({"zero_points": ones(1, dtype=np.int8)},
        "zero_points must have the shape of scales, (8,), not (1,); "
        "pass as many elements as scales has",
        {"scales": ones(1), "zero_points": ones(1, dtype=np.int8)}),
]  # fmt: skip
test_with_div_mode_true = constraints(OP, DIVIDE, DIVIDING)


def test_the_first_thing_that_is_wrong_is_refused() -> None:
    """Types of attributes, then tensors, in the order of the parameters."""
    with pytest.raises(OpError, match=r"^npu_quantize: axis must be an integer"):
        run(OP, None, None, None, None, None, None, device="ascend910b2")
    with pytest.raises(OpError, match=r"^npu_quantize: input must be given"):
        run(OP, None, None, None, None, device="ascend910b2")


def test_float32_fractals_to_int4_are_not_simulated() -> None:
    call = MULTIPLY | {"input": TensorSpec((16, 16), "float32", "FRACTAL_NZ"), "scales": ones(1)}
    message = (
        "input must have layout ND with dtype='quint4x2', not FRACTAL_NZ, whose kernel is not "
        "simulated; pass it through npu_format_cast(..., 2)"
    )
    row = Row({}, message, code=Code.UNSUPPORTED)
    for series in NEW:
        assert_refused(OP, call | {"dtype": "quint4x2"}, row, series)
    plain = run("npu_format_cast", call["input"], 2, device="ascend910b2").output
    run(OP, **call | {"dtype": "quint4x2", "input": plain}, device="ascend910b2")


RANGES = {
    "qint8": (-128, 127),
    "quint8": (0, 255),
    "int32": (-(2**31), 2**31 - 1),
    "qint32": (-(2**31), 2**31 - 1),
    "quint4x2": (-8, 7),
}
reference = ops.load(OP).reference


def quantize(device: str, *args: Any) -> Array:
    output = run(OP, *args, device=device, timing=False).output
    assert isinstance(output, np.ndarray)
    return output


# ---- kernels against numpy ----


@draws(120)
@given(quantize_calls())
def test_a_tiled_run_equals_the_reference(call: DrawnCall) -> None:
    assert_as_reference(OP, *call.args, device=call.device)


# Several pieces of columns, several pieces of rows, both, tails, and more rows than cores.
LARGE = [(3, 20000), (50, 9000), (101, 1023), (1, 70000), (301, 7), (3, 7, 4097), (4, 33, 65)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("shape", LARGE, ids=str)
@pytest.mark.parametrize("device", THREE)
def test_large_shapes_equal_the_reference(device: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(sum(shape))
    for kind in FLOATS[devices.load(device).series]:
        x, columns = floats(rng, shape, kind), shape[-1]
        if device == "ascend310p3" and columns < 32:
            x = x[:200]
        whole, some = floats(rng, (1,), kind), floats(rng, (columns,), kind)
        for args in (
            (whole, None, "qint8", -1, False),
            (some, floats(rng, (columns,), kind), "qint8", -1, False),
            (floats(rng, (columns,), np.float32), points(rng, columns, np.uint8), "quint8", -1),
            (floats(rng, x.shape[:1], np.float32), points(rng, x.shape[0], np.int32), "int32", 0),
        ):
            assert_same(quantize(device, x, *args), reference(x, *args))


@pytest.mark.parametrize("device", ["ascend310p3", "ascend910b2"])
def test_thousands_of_narrow_rows_equal_the_reference(device: str) -> None:
    rng = np.random.default_rng(6)
    x, s = floats(rng, (2000, 7), np.float16), floats(rng, (7,), np.float16)
    args = (x, s, None, "qint8", -1, False)
    assert_same(quantize(device, *args), reference(*args))


@pytest.mark.parametrize("device", every(A2 + A3))
def test_a_scale_for_each_head_equals_the_reference(device: str) -> None:
    rng = np.random.default_rng(7)
    # More heads than the kernel keeps scales in the buffer, so that they come in several chunks.
    x, s, z = (floats(rng, shape, BF16) for shape in ((3, 150, 40), (1, 150, 1), (1, 150, 1)))
    for dtype in ("qint8", "quint4x2"):
        args = (x, s, z, dtype, -2, False)
        assert_same(quantize(device, *args), reference(*args))


def test_scales_of_rows_come_anew_where_a_piece_begins_with_a_chunk() -> None:
    rng = np.random.default_rng(10)
    # A core has 65 rows in pieces of 32; the buffer has 64 scales at a time.
    x, s = (floats(rng, shape, BF16) for shape in ((130, 1888), (130, 1)))
    args = (x, s, None, "qint8", -2, False)
    found = run(OP, *args, device=fewer_cores("ascend910b2", aiv=2), timing=False)
    assert found.plan is not None
    assert (found.plan.rows_per_core, found.plan.row_step) == (65, 32)  # type: ignore[attr-defined]
    assert_same(found.output, reference(*args))


@pytest.mark.sample(2)
@pytest.mark.parametrize("device", every(devices.names()))
@pytest.mark.parametrize("div_mode", [True, False])
def test_every_row_that_ends_within_a_block_equals_the_reference(
    device: str, div_mode: bool
) -> None:
    rng = np.random.default_rng(8)
    for columns in (*range(1, 68), 127, 129):
        x = floats(rng, (3, columns), np.float16)
        s = floats(rng, (columns,), np.float32 if div_mode else np.float16)
        args = (x, s, None, "qint8", -1, div_mode)
        assert_same(quantize(device, *args), reference(*args))


@pytest.mark.parametrize("div_mode", [True, False])
def test_an_empty_input_runs_no_kernel(div_mode: bool) -> None:
    for shape in ((0,), (0, 8), (4, 0), (2, 0, 3)):
        x, s = np.empty(shape, np.float32), np.ones(1, np.float32)
        result = run(OP, x, s, None, "qint8", -1, div_mode, device="ascend910b2")
        assert_same(result.output, np.empty(shape, np.int8))
        assert (result.plan, result.trace, result.cycles, result.time_us) == (None, None, 0, 0.0)


# ---- numpy against exact fractions ----

AXIS_FREE = [
    ("qint8", True, np.int8),
    ("quint8", True, np.uint8),
    ("int32", True, np.int32),
    ("qint32", True, None),
    ("qint8", False, np.float32),
    ("quint4x2", False, np.float32),
    ("qint8", False, None),
]


def by_fractions(x: Array, s: Array, z: Array | None, dtype: str, div_mode: bool) -> list[int]:
    """Number by number; *x*, *s* and *z* are one-dimensional and as long as each other."""
    results = []
    for index in range(x.size):
        value = (divide if div_mode else multiply)(float(x[index]), float(s[index]))
        if z is not None:
            # fp32 holds no int32 beyond 2**24, and the kernel takes zero points as fp32.
            value = add(value, float(np.float32(z[index])))
        results.append(fit(value, *RANGES[dtype]))
    if dtype == "quint4x2":
        return [packed(results[start : start + 8]) for start in range(0, x.size, 8)]
    return results


@pytest.mark.parametrize("kind", FLOATS["Atlas A2"], ids=lambda kind: np.dtype(kind).name)
def test_the_reference_equals_exact_fractions(kind: Any, subtests: pytest.Subtests) -> None:
    for dtype, div_mode, point in AXIS_FREE:
        with subtests.test(dtype=dtype, div_mode=div_mode, point=point):
            rng = np.random.default_rng(10)
            count = 400
            x = floats(rng, (count,), kind)
            s = floats(rng, (count,), np.float32)
            # Scales that leave the ties of x ties.
            s[:200] = rng.choice(np.float32([1, -1, 2, 0.5, 0.25, -0.125]), 200)
            z = None if point is None else points(rng, count, point)
            expected = by_fractions(x, s, z, dtype, div_mode)
            assert reference(x, s, z, dtype, -1, div_mode).tolist() == expected


@pytest.mark.parametrize("div_mode", [True, False])
def test_pairs_of_special_numbers_in_exact_fractions(
    div_mode: bool,
) -> None:
    with np.errstate(over="ignore"):
        numbers = SPECIAL.astype(np.float32)
    x, s = np.repeat(numbers, numbers.size), np.tile(numbers, numbers.size)
    expected = by_fractions(x, s, None, "qint8", div_mode)
    assert reference(x, s, None, "qint8", 0, div_mode).tolist() == expected


def test_a_product_is_rounded_before_the_offset_is_added() -> None:
    """One rounding less, as in a fused multiply-add, gives 1."""
    x, s = np.float32([1 + 2.0**-23]), np.float32([1 + 2.0**-23])
    z = np.float32([-0.5 - 2.0**-22])
    exact = float(x[0]) * float(s[0]) + float(z[0])
    assert round(exact) == 1
    assert reference(x, s, z, "qint8", -1, False).tolist() == [0]
    for device in ("ascend310p3", "ascend910b2"):
        assert quantize(device, x, s, z, "qint8", -1, False).tolist() == [0]


# ---- the vendor's goldens ----


@pytest.mark.parametrize("device", THREE)
def test_div_mode_false_equals_the_golden_of_op_plugin(device: str) -> None:
    """op-plugin, test_npu_quantize.py: np.round(x * scale + offset), clipped."""
    rng = np.random.default_rng(11)
    x, s, z = (rng.normal(0, 30, size).astype(np.float32) for size in ((8, 100), 100, 100))
    golden = np.clip(np.round(x * s + z), -128, 127).astype(np.int8)
    assert_same(quantize(device, x, s, z, "qint8", 1, False), golden)


@pytest.mark.sample(3)
@pytest.mark.parametrize("device", THREE)
@pytest.mark.parametrize(
    ("dtype", "point"), [("qint8", np.int8), ("quint8", np.uint8), ("int32", np.int32)]
)
def test_div_mode_true_is_near_the_golden_of_op_plugin(device: str, dtype: str, point: Any) -> None:
    """op-plugin, test_npu_quantize.py: torch.quantize_per_channel, here with the vendor's ±1."""
    rng = np.random.default_rng(12)
    x = rng.normal(0, 30, (40, 50)).astype(np.float32)
    s, z = rng.uniform(0.1, 3, 50).astype(np.float32), rng.integers(0, 50, 50).astype(point)
    golden = np.clip(np.rint(x * (1 / s)) + z.astype(np.float64), *RANGES[dtype])
    assert np.abs(quantize(device, x, s, z, dtype, 1, True) - golden).max() <= 1


def test_all_chips_agree() -> None:
    rng = np.random.default_rng(13)
    x, s, z = (floats(rng, shape, np.float16) for shape in ((5, 77), (77,), (77,)))
    expected = reference(x, s, z, "qint8", -1, False)
    for device in (*A2, *A3, *INFERENCE):
        assert_same(quantize(device, x, s, z, "qint8", -1, False), expected)


# ---- a scale for the whole tensor ----


@pytest.mark.parametrize("kind", FLOATS["Atlas A2"], ids=lambda kind: np.dtype(kind).name)
def test_the_scalar_unit_reads_a_scale_for_all(kind: Any) -> None:
    operator, spec = ops.load(OP), devices.load("ascend910b2")
    x, one = np.linspace(-9, 9, 3_000_000).astype(kind), np.array([3], kind)
    problem = operator.check(spec, x, one, one, "qint8", -1, False)
    plan: Any = operator.tile(spec, problem)
    first = operator.build(spec, problem, plan)[0].program
    pieces = -(-plan.columns_per_core // plan.column_step)
    # Those of float32 out of global memory, without a buffer.
    read = ["scales", "zero_points"]
    loads = [op.src.name for op in first.ops if isinstance(op, Load)]
    assert loads == pieces * [*(read if x.itemsize == 2 else []), "input"]
    scalars = [op.src.name for op in first.ops if isinstance(op, ScalarLoadGlobal)]
    assert scalars == (pieces * read if x.itemsize == 4 else [])
    assert pieces > 1
    # None of them passes through the vector pipe.
    casts = sum(isinstance(op, Cast) for op in first.ops)
    assert casts == pieces * (3 + (x.itemsize == 2))
    assert_same(
        run(OP, x, one, one, "qint8", -1, False, device=spec, timing=False).output,
        operator.reference(x, one, one, "qint8", -1, False),
    )
