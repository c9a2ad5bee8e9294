"""Several pieces of advice at once: what both change is merged, and the whole is tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import npusim
from npusim import Run, TensorSpec
from npusim.run.advice import MIN_GAIN, Advice
from npusim.run.advice.together import merged, together

F16, A2 = "float16", "ascend910b2"


def ragged() -> Run:
    x1, x2 = TensorSpec((100, 1000), "int8"), TensorSpec((1000, 2050), "int8")
    scale = TensorSpec((2050,), "float32")
    return npusim.run("npu_quant_matmul", x1, x2, scale, output_dtype=F16, device=A2)


def one(before: Run, after_us: float = 1.0, **arguments: Any) -> Advice:
    assert before.time_us is not None
    return Advice("a", "b", before.time_us, after_us, "change", arguments=arguments)


def test_changes_that_gain_together_are_listed_together() -> None:
    run = ragged()
    told = run.advice()
    (both,) = (each for each in told if each.change.startswith("all 3 together: "))
    alone = [each for each in told[: told.index(both)] if "template" not in each.arguments]
    scale, cast, filled = alone
    assert both.change == (
        f"all 3 together: (1) {scale.change}; (2) {cast.change}; (3) {filled.change}"
    )
    assert both.text == "all 3 changes add up"
    assert both.arguments == {
        "x2": TensorSpec((1000, 2112), "int8", "FRACTAL_NZ"),
        "scale": TensorSpec((2112,), "int64"),
    }
    assert run.call is not None
    again = npusim.run("npu_quant_matmul", **run.call.arguments | both.arguments, device=A2)
    assert both.after_us == pytest.approx(again.time_us)
    assert both.before_us == run.time_us
    assert both.gain >= scale.gain + MIN_GAIN
    assert scale.once_us is not None
    assert cast.once_us is not None
    assert both.once_us == pytest.approx(scale.once_us + cast.once_us)
    # It comes after what it consists of; with other rows it would be other work.
    rest = told[told.index(both) + 1 :]
    assert all(each.rows is not None or each.kind == "what if" for each in rest)


def test_what_gains_nothing_more_or_is_refused_is_left_out() -> None:
    run = ragged()
    assert run.call is not None
    packed = one(run, scale=TensorSpec((2050,), "int64"))
    same = one(run, scale=TensorSpec((2050,), "int64"))
    refused = one(run, x1=TensorSpec((100, 1001), "int8"))
    excluded = one(run, scale=TensorSpec((2050,), "bfloat16"))
    assert together(run.call, [packed, same, refused, excluded]) is None
    cast = one(run, 2.0, x2=TensorSpec((1000, 2050), "int8", "FRACTAL_NZ"))
    # The second begins where the first one leaves off.
    alone = run.call.timed(packed.arguments)
    assert alone is not None
    assert alone.time_us is not None
    found = together(run.call, [replace(packed, after_us=alone.time_us), refused, cast])
    assert found is not None
    assert found.text == "both changes add up"
    assert found.change == "both together: (1) b; (2) b"
    assert found.once_us is None
    assert together(run.call, []) is None


WEIGHT = TensorSpec((1000, 50), "int8")


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (replace(WEIGHT, shape=(1024, 50)), replace(WEIGHT, shape=(1000, 64)),
         TensorSpec((1024, 64), "int8")),
        (replace(WEIGHT, layout="FRACTAL_NZ"), replace(WEIGHT, transposed=True, shape=(1024, 50)),
         TensorSpec((1024, 50), "int8", "FRACTAL_NZ", True)),
        (replace(WEIGHT, dtype="int4"), replace(WEIGHT, dtype="int4"),
         TensorSpec((1000, 50), "int4")),
        (WEIGHT, replace(WEIGHT, layout="FRACTAL_NZ"), replace(WEIGHT, layout="FRACTAL_NZ")),
    ],
)  # fmt: skip
def test_changes_are_merged(one: TensorSpec, other: TensorSpec, wanted: TensorSpec) -> None:
    assert merged(WEIGHT, one, other) == merged(WEIGHT, other, one) == wanted
    assert merged([WEIGHT, WEIGHT], [one, WEIGHT], [other, WEIGHT]) == [wanted, WEIGHT]


def test_changes_that_exclude_each_other_are_not_merged() -> None:
    with pytest.raises(ValueError) as raised:
        merged(WEIGHT, replace(WEIGHT, dtype="int4"), replace(WEIGHT, dtype="float16"))
    assert str(raised.value) == (
        "advice: one change must leave what another one sets, not int4 and float16"
    )
    with pytest.raises(ValueError):
        merged(WEIGHT, replace(WEIGHT, shape=(1000, 2, 25)), replace(WEIGHT, shape=(1024, 50)))
