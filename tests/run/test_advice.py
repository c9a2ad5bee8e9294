"""Advice: what is listed was tried, and gives the same time when tried once more."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chips import THREE

import npusim
from npusim import Run, TensorSpec
from npusim.devices.settings import changed
from npusim.reports.advice import NOTHING, section
from npusim.reports.causes import causes
from npusim.run.advice import MIN_GAIN, Advice, advise
from npusim.run.advice.what_if import TIMES, settings
from npusim.run.call import Options, play
from npusim.run.page import NO_KERNEL, NO_VALUES, OTHER_TIMES, TOO_LONG, advice_for, recorded

COURSE = Path(__file__).parents[2] / "docs" / "course" / "vector_add.py"
F16, A2 = "float16", "ascend910b2"


def run(op: Any, *args: Any, device: str = A2, **attributes: Any) -> Run:
    return npusim.run(op, *args, device=device, **attributes)


def matmul(device: str = A2, n: int = 1025) -> Run:
    return run("matmul", TensorSpec((16, 1024), F16), TensorSpec((1024, n), F16), device=device)


def packs_its_scale() -> Run:
    x1, x2 = TensorSpec((16, 512), "int8"), TensorSpec((512, 1024), "int8")
    scale = TensorSpec((1024,), "float32")
    return run("npu_quant_matmul", x1, x2, scale, output_dtype=F16)


def weight_quant() -> Run:
    x, weight = TensorSpec((16, 1024), F16), TensorSpec((1024, 2048), "int8")
    return run("npu_weight_quant_batchmatmul", x, weight, TensorSpec((2048,), F16))


def rotary() -> Run:
    x, table = TensorSpec((2, 8, 4, 64), F16), TensorSpec((1, 8, 1, 64), "float32")
    return run("npu_rotary_mul", x, table, table)


def grouped() -> Run:
    x, weight = TensorSpec((64, 256), F16), TensorSpec((4, 256, 512), F16)
    rows = np.array([16, 32, 48, 64])
    return run(
        "npu_grouped_matmul", [x], [weight], group_list=rows, split_item=3, group_type=0
    )  # fmt: skip


def one_token() -> Run:
    return run("matmul", TensorSpec((1, 2048), F16), TensorSpec((2048, 4096), F16))


def over_the_edge(device: str = A2) -> Run:
    x, gamma = TensorSpec((50, 8192), F16), TensorSpec((8192,), F16)
    return run("npu_rms_norm", x, gamma, device=device)


def one_deep() -> Run:
    x = TensorSpec((100_000,), "float32")
    return run(f"{COURSE}:add", x, x)


CALLS: dict[str, Callable[[], Run]] = {
    "packs its scale": packs_its_scale,
    "ragged": matmul,
    "ragged, 310P": lambda: matmul("ascend310p3"),
    "weight of int8": weight_quant,
    "casts its tables": rotary,
    "groups": grouped,
    "a row over the cores": over_the_edge,
    "rows over the cores": lambda: over_the_edge("ascend310p3"),
    "one token": one_token,
    "its own queues": one_deep,
}
ADVISED: dict[str, tuple[Run, list[Advice]]] = {}


def advised(name: str) -> tuple[Run, list[Advice]]:
    """A run and its advice, made once for all tests."""
    if name not in ADVISED:
        made = CALLS[name]()
        ADVISED[name] = made, made.advice()
    return ADVISED[name]


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CALLS)
def test_every_piece_of_advice_comes_true(name: str) -> None:
    made, told = advised(name)
    assert told
    assert made.call is not None
    for each in told:
        assert each.before_us == made.time_us
        assert each.gain >= MIN_GAIN
        if each.kind == "change":
            assert each.arguments
            again = npusim.run(
                made.call.op, **made.call.arguments | each.arguments, device=made.device
            )
        elif each.queues:
            asked = Options(values=False, deeper=each.queues)
            again = play(made.call.op, (), made.call.arguments, made.device, asked)
        else:
            (cause,) = (it.cause for it in causes(made) if each.text.startswith(it.words))
            assert each.settings == settings(made.device, cause, TIMES)
            chip = changed(made.device, each.settings)
            again = npusim.run(made.call.op, **made.call.arguments, device=chip)
        assert again.time_us == pytest.approx(each.after_us)


def changes(name: str) -> list[tuple[str, str]]:
    return [(each.text, each.change) for each in advised(name)[1] if each.kind == "change"]


def test_an_extra_launch_is_made_once() -> None:
    made, told = advised("packs its scale")
    first = told[0]
    assert made.earlier[0].time_us is not None
    assert first.once_us == pytest.approx(made.earlier[0].time_us, rel=0.2)
    assert changes("packs its scale")[0] == (
        f"an extra launch of npu_trans_quant_param before each call, for scale in float32, takes "
        f"{made.earlier[0].time_us:.1f} us",
        "scale = npu_trans_quant_param(scale) once, when the model is loaded, and pass that",
    )
    assert first.arguments == {"scale": TensorSpec((1024,), "int64")}
    assert made.time_us is not None
    assert first.after_us < made.time_us - made.earlier[0].time_us + 1


def test_what_comes_first_of_a_cast_is_cast_once() -> None:
    made, told = advised("casts its tables")
    assert [launch.op for launch in made.launches] == ["cast", "cast", "npu_rotary_mul"]
    first = told[0]
    half = TensorSpec((1, 8, 1, 64), F16)
    assert first.arguments == {"r1": half, "r2": half}
    took_us = sum(launch.time_us or 0.0 for launch in made.launches[:2])
    assert first.text == (
        f"2 extra launches of cast before each call, for r1 in float32 and r2 in float32, take "
        f"{took_us:.2f} us"
    )
    assert first.change == (
        "r1 = cast(r1, dtype='float16'); r2 = cast(r2, dtype='float16') once, when the model is "
        "loaded, and pass that"
    )


def test_a_weight_that_is_turned_is_cast_to_fractals() -> None:
    _, told = advised("ragged")
    cast = next(each for each in told if "x2" in each.arguments and "npu_format" in each.change)
    assert cast.arguments == {"x2": TensorSpec((1024, 1025), F16, "FRACTAL_NZ")}
    assert cast.change == "cast x2 by npu_format_cast(x2, 29), once, when the model is loaded"
    assert cast.text.startswith(
        "the weight, x2, lies in ND: vector cores turn matrices into fractals first, which takes "
    )
    alone = npusim.run("npu_format_cast", TensorSpec((1024, 1025), F16), 29, device=A2)
    assert cast.once_us == pytest.approx(alone.time_us)
    assert cast.times == (
        f"{cast.before_us:.2f} us becomes {cast.after_us:.2f} us, {100 * cast.gain:.0f} % less; "
        f"one-time cost: {alone.time_us:.2f} us"
    )
    assert str(cast) == f"{cast.change}: {cast.times}"


def test_a_ragged_size_is_filled_up() -> None:
    _, told = advised("ragged")
    (padded,) = (each for each in told if each.change.startswith("fill n up to "))
    size = padded.arguments["x2"].shape[1]
    assert padded.arguments == {"x2": TensorSpec((1024, size), F16)}
    assert padded.change == (
        f"fill n up to {size}: x2, and leave the last {size - 1025} columns out of the result"
    )
    assert padded.text.startswith("n = 1025 is no multiple of ")


def test_the_depth_of_custom_queues_is_tried() -> None:
    found = [change for _, change in changes("its own queues")]
    assert "depth=2 in place of 1" in found
    text, _ = changes("its own queues")[0]
    assert text.startswith("vector of aiv waits for data in ub ")
    assert text.endswith(" of the time, which mte2 has to give")


def test_more_rows_are_advised_by_the_row() -> None:
    _, told = advised("one token")
    more = next(each for each in told if each.rows is not None)
    assert more.rows is not None
    before, after = more.rows
    assert (before, more.arguments) == (1, {"x1": TensorSpec((after, 2048), F16)})
    assert more.change == f"batch {after} rows in one call"
    assert more.after_us <= 1.1 * more.before_us
    assert more.gain == pytest.approx(1 - more.after_us * before / after / more.before_us)
    assert more.times == (
        f"{more.after_us:.2f} us instead of {after} x {more.before_us:.2f} us, "
        f"{100 * more.gain:.0f} % less"
    )
    launch = next(each for each in causes(advised("one token")[0]) if each.cause == "launch")
    assert more.text == (
        f"launch and completion take {100 * launch.share:.0f} % of the time, 8 of 24 aic cores get "
        f"no work, and all rows of a call share one read of the weight"
    )


def test_more_rows_hardly_take_longer_than_the_kernel_alone() -> None:
    """What is launched before takes as long whatever the rows, which says nothing of them."""
    x1, x2 = TensorSpec((16, 4096), "int8"), TensorSpec((4096, 11008), "int8")
    made = run("npu_quant_matmul", x1, x2, TensorSpec((11008,), "float32"), output_dtype=F16)
    (more,) = (each for each in made.advice() if each.rows is not None)
    own_us = made.launches[-1].time_us
    assert own_us is not None
    assert more.after_us - more.before_us <= 0.1 * own_us
    assert made.call is not None
    twice = made.call.timed({"x1": TensorSpec((2 * more.arguments["x1"].shape[0], 4096), "int8")})
    assert twice is not None
    assert twice.time_us is not None
    assert 0.1 * own_us < twice.time_us - more.before_us < 0.1 * more.before_us


def test_fewer_rows_are_advised_where_a_few_go_over_the_edge() -> None:
    (fewer,) = (each for each in advised("rows over the cores")[1] if each.rows is not None)
    assert fewer.text == "50 rows do not divide evenly among 8 cores"
    assert fewer.change == "pass 48 rows in one call, and the 2 left over with those of another"
    assert fewer.arguments == {"x": TensorSpec((48, 8192), F16)}
    assert fewer.rows == (50, 48)


def test_rows_are_advised_more_or_fewer_but_not_both() -> None:
    x, scales = TensorSpec((16, 4096), F16), TensorSpec((4096,), F16)
    made = run("npu_quantize", x, scales, None, "qint8", -1, False, device="ascend310p3")
    (more,) = (each for each in made.advice() if each.rows is not None)
    assert more.rows == (16, 32)


def test_several_things_take_and_one_thing_takes() -> None:
    told = [each.text for each in run("sum", TensorSpec((1024, 1024), F16), dim=0).advice()]
    assert any(text.startswith("the latency of cube and vector unit takes ") for text in told)
    told = [each.text for each in advised("a row over the cores")[1]]
    assert any(text.startswith("launch and completion take ") for text in told)


def test_advice_that_does_not_gain_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    made = over_the_edge()
    monkeypatch.setattr(sys.modules["npusim.run.advice"], "MIN_GAIN", 1.0)
    assert advise(made) == []


@pytest.mark.parametrize("device", THREE)
def test_advice_is_the_same_whatever_was_run_before(device: str) -> None:
    assert matmul(device, 512).advice() == matmul(device, 512).advice()


def test_a_run_without_times_has_no_advice() -> None:
    x = TensorSpec((8, 64), F16), TensorSpec((64, 64), F16)
    made = npusim.run("matmul", *x, device=A2, timing=False)
    with pytest.raises(ValueError) as raised:
        made.advice()
    assert str(raised.value) == (
        "advice: a run must have been timed and have had work to do, not <matmul on ascend910b2: "
        "float16 (8, 64), not timed>; run it with timing=True on tensors that are not empty"
    )


@pytest.mark.usefixtures("nothing_kept")
def test_progress_is_reported() -> None:
    heard: list[tuple[str, float]] = []
    over_the_edge().advice(lambda stage, share: heard.append((stage, share)))
    assert {stage for stage, _ in heard} == {"advice"}
    shares = [share for _, share in heard]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] < 1


# ---- on pages ----


def test_a_folder_has_the_advice_of_its_run(tmp_path: Path) -> None:
    made, told = advised("ragged")
    assert advice_for(recorded(made, tmp_path / "a"), None) == told


def test_lost_values_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert advice_for(recorded(advised("groups")[0], tmp_path / "a"), None) == NO_VALUES
    assert advice_for(recorded(advised("its own queues")[0], tmp_path / "b"), None) == NO_KERNEL
    plain = recorded(advised("weight of int8")[0], tmp_path / "c")
    other = replace(plain, facts=plain.facts | {"time_us": 1.0})
    assert advice_for(other, None) == OTHER_TIMES
    refused = plain.facts | {"arguments": plain.facts["arguments"] | {"template": "none"}}
    assert advice_for(replace(plain, facts=refused), None) == OTHER_TIMES
    assert advice_for(replace(plain, facts=plain.facts | {"op": "<b>"}), None) == NO_KERNEL
    monkeypatch.setattr(sys.modules["npusim.run.page"], "MOST_MICRO_OPS", 10)
    assert advice_for(plain, None) == TOO_LONG
    assert isinstance(advice_for(plain, True), list)


def test_a_section_is_escaped_and_says_when_nothing_gains() -> None:
    piece = Advice("<b> is slow", "no <i>", 2.0, 1.0, "change")
    assert section([piece]) == (
        '<ol class="advice"><li>&lt;b&gt; is slow. <b>No &lt;i&gt;:</b> 2.00 us becomes 1.00 us, '
        "50 % less.</li></ol>"
    )
    named = Advice("n = 9 is odd", "scale = made(scale) once", 2.0, 1.0, "change")
    assert section([named]) == (
        '<ol class="advice"><li>n = 9 is odd. <b>scale = made(scale) once:</b> 2.00 us becomes '
        "1.00 us, 50 % less.</li></ol>"
    )
    supposed = Advice("the cube takes all", "on a chip", 2.0, 1.0, "what if")
    assert section([supposed]) == (
        f'<p>{NOTHING}</p><p class="note">What another chip or another kernel would change:</p>'
        "<ul><li>The cube takes all. <b>On a chip:</b> 2.00 us becomes 1.00 us, 50 % less."
        "</li></ul>"
    )
    assert section("No <advice>.") == '<p class="note">No &lt;advice&gt;.</p>'
