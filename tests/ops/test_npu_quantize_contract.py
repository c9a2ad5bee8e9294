"""npu_quantize: every rule of its code, with the call that breaks it and the nearest that does not.

Sources: torch_npu-npu_quantize.md; where it is silent, the checks of op-plugin and of aclnn that
the operator's module docstring names.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_calls import NEW, OLD, Row, assert_accepted, assert_refused, on_each_line

from npusim import Code, OpError, TensorSpec, run

OP = "npu_quantize"


def ones(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


MULTIPLY = {
    "input": ones(4, 8), "scales": ones(8), "zero_points": None,
    "dtype": "qint8", "axis": -1, "div_mode": False,
}  # fmt: skip
DIVIDE = {**MULTIPLY, "axis": 1, "div_mode": True}
CUBE = {"input": ones(2, 3, 8), "scales": ones(3), "axis": -2}


# ---- both modes ----


ANY_MODE = [
    Row(
        {"input": np.ma.masked_array(ones(4, 8), ones(4, 8) > 0)},
        "input must be an array without a mask, not a MaskedArray; fill it first",
        {"input": np.ma.masked_array(ones(4, 8), ones(4, 8) > 0).filled(0)},
    ),
    Row(
        {"input": np.array(1, np.float32), "scales": ones(1)},
        "input must have at least one dimension, not none; reshape it to (1,)",
        {"input": ones(1), "scales": ones(1), "axis": 0},
    ),
]  # fmt: skip


@on_each_line(ANY_MODE)
@pytest.mark.parametrize("base", [MULTIPLY, DIVIDE], ids=["multiply", "divide"])
def test_in_both_modes(
    base: dict[str, Any], series: str, rows: list[Row], subtests: pytest.Subtests
) -> None:
    for row in rows:
        with subtests.test(row.message):
            assert_refused(OP, base | row.wrong, row, series)
            assert_accepted(OP, base | row.right, series)


# ---- div_mode=False ----

LAST = "pass -1 for the last dimension"
ONE_EACH = "pass one scale, or one for each position"

MULTIPLYING = [
    # types
    # dtype
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


@on_each_line(MULTIPLYING)
def test_with_div_mode_false(series: str, rows: list[Row], subtests: pytest.Subtests) -> None:
    for row in rows:
        with subtests.test(row.message):
            assert_refused(OP, MULTIPLY | row.wrong, row, series)
            assert_accepted(OP, MULTIPLY | row.right, series)


# ---- div_mode=True ----

CHOICES = "dtype must be qint8, quint8, int32 or qint32"

DIVIDING = [
    # types
    # dtype
    *(
        Row({"dtype": dtype},
            f"{CHOICES}{when} on {{series}}, not {dtype!r}; choose one of these",
            {"dtype": right}, lines)
        # All that Atlas inference has goes with div_mode=True.
        for lines, when in ((NEW, " with div_mode=True"), (OLD, ""))
        for dtype, right in (
            ("quint4x2", "qint8"), ("int16", "quint8"), ("QINT8", "qint8"), ("", "int32"),
            (None, "qint32"), (1, "int32"), (int, "qint8"),
        )
    ),
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
            "flatten them", {})
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


@on_each_line(DIVIDING)
def test_with_div_mode_true(series: str, rows: list[Row], subtests: pytest.Subtests) -> None:
    for row in rows:
        with subtests.test(row.message):
            assert_refused(OP, DIVIDE | row.wrong, row, series)
            assert_accepted(OP, DIVIDE | row.right, series)


def test_the_first_thing_that_is_wrong_is_refused() -> None:
    """Types of attributes, then tensors, in the order of the parameters."""
    with pytest.raises(OpError, match=r"^npu_quantize: axis must be an integer"):
        run(OP, None, None, None, None, None, None, device="ascend910b2")
    with pytest.raises(OpError, match=r"^npu_quantize: input must be given"):
        run(OP, None, None, None, None, device="ascend910b2")


# ---- documented, but not simulated ----


def test_float32_fractals_to_int4_are_not_simulated() -> None:
    call = MULTIPLY | {"input": TensorSpec((16, 16), "float32", "FRACTAL_NZ"), "scales": ones(1)}
    message = (
        "input must have layout ND with dtype='quint4x2', not FRACTAL_NZ, whose kernel is not "
        "simulated; pass it through npu_format_cast(..., 2)"
    )
    row = Row({}, message, {}, code=Code.UNSUPPORTED)
    for series in NEW:
        assert_refused(OP, call | {"dtype": "quint4x2"}, row, series)
    plain = run("npu_format_cast", call["input"], 2, device="ascend910b2").output
    run(OP, **call | {"dtype": "quint4x2", "input": plain}, device="ascend910b2")
