"""Several runs on one page: their letters, what distinguishes them, and how long each takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import npusim
from npusim.devices import changed, load
from npusim.reports import overview
from npusim.reports.answer import Part
from npusim.reports.html import report
from npusim.reports.run_labels import Head, argument, heads, letters, listed, titled
from npusim.run import Run
from npusim.run.page import recorded
from npusim.trace.record import Record

SPEC = npusim.TensorSpec


def records(above: Path, *runs: Run) -> list[Record]:
    return [recorded(run, above / str(number)) for number, run in enumerate(runs)]


def product(m: int, k: int = 64, **options: object) -> Run:
    x1, x2 = SPEC((m, k), "float16"), SPEC((k, 64), "float16")
    return npusim.run("matmul", x1, x2, device=options.pop("device", "Atlas A2"), **options)


def told(above: Path, *runs: Run) -> list[str]:
    return [str(head) for head in heads(records(above, *runs))]


# ---- letters and titles ----


def test_letters_go_on_after_z() -> None:
    found = letters(26 + 26**2 + 1)
    assert found[:3] == ["A", "B", "C"]
    assert found[24:29] == ["Y", "Z", "AA", "AB", "AC"]
    assert found[-2:] == ["ZZ", "AAA"]
    assert len(set(found)) == len(found)
    assert letters(0) == []


def test_a_title_says_what_is_compared() -> None:
    a2, a3 = product(16), product(16, device="Atlas A3")
    cast = npusim.run("npu_swiglu", SPEC((16, 64), "float16"), device="Atlas A2")
    kernel = "matmul (base)"
    assert titled([a2]) == f"{kernel} on ascend910b2"
    assert titled([a2, a3]) == f"{kernel} on ascend910b2 against {kernel} on ascend910_9391"
    assert titled([a2, a2]) == f"2 runs of {kernel} on ascend910b2"
    assert titled([a2, a3, a2]) == f"3 runs of {kernel} on ascend910b2 and ascend910_9391"
    assert titled([a2, cast, a2]) == f"3 runs of {kernel} and npu_swiglu on ascend910b2"
    assert titled([a2, cast, a3]) == (
        f"3 runs: {kernel} on ascend910b2, npu_swiglu on ascend910b2 and {kernel} on ascend910_9391"
    )


# ---- what distinguishes runs ----


def test_one_run_needs_no_letter(tmp_path: Path) -> None:
    (head,) = heads(records(tmp_path, product(16)))
    assert (head, str(head)) == (Head("", ""), "")


def test_runs_are_distinguished_by_what_is_not_alike(tmp_path: Path) -> None:
    assert told(tmp_path / "shapes", product(16), product(32), product(32, k=128)) == [
        *("A, x1 16x64, x2 64x64", "B, x1 32x64, x2 64x64", "C, x1 32x128, x2 128x64")
    ]
    assert told(tmp_path / "chips", product(16), product(16, device="Atlas A3")) == [
        *("A, ascend910b2", "B, ascend910_9391")
    ]
    assert told(
        tmp_path / "l2", product(16), product(16, l2="warm"), product(16, icache="warm")
    ) == [
        "A, L2 cold, instructions cold",
        "B, L2 warm, instructions warm",
        "C, L2 cold, instructions warm",
    ]


def test_the_same_call_is_said_to_be_the_same(tmp_path: Path) -> None:
    assert told(tmp_path, product(16), product(32), product(16), product(32)) == [
        *("A, x1 16x64", "B, x1 32x64", "C, the same call as A", "D, the same call as B")
    ]
    assert told(tmp_path / "all", product(16), product(16)) == ["A", "B, the same call as A"]


def test_changed_numbers_of_a_chip_are_reported(tmp_path: Path) -> None:
    a2 = load("Atlas A2")
    wide = changed(a2, {"gm.read_bytes_per_s": "x2"})
    wider = changed(a2, {"gm.read_bytes_per_s": "x4"})
    runs = [product(16, device=device) for device in (a2, wide, wider, "Atlas A3")]
    rate = a2.gm.read_bytes_per_s
    assert told(tmp_path, *runs) == [
        f"A, ascend910b2, gm.read_bytes_per_s {rate:.0f}",
        f"B, ascend910b2 (changed), gm.read_bytes_per_s {2 * rate:.0f}",
        f"C, ascend910b2 (changed), gm.read_bytes_per_s {4 * rate:.0f}",
        "D, ascend910_9391",
    ]


def test_of_many_changed_numbers_some_are_reported(tmp_path: Path) -> None:
    a2 = load("Atlas A2")
    keys = [f"scalar.{name}_cycles" for name in ("load", "store", "alu", "dispatch")]
    keys += [f"sync.{name}_cycles" for name in ("set_flag", "wait_flag", "barrier", "cross_core")]
    some = dict.fromkeys(keys, "x2")
    others = [some, some | {"gm.read_latency_ns": "x2"}, some | {"gm.read_latency_ns": "x3"}]
    found = told(tmp_path, *(product(16, device=changed(a2, own)) for own in ({}, *others)))
    assert [head.split(", ")[-1] for head in found] == ["2 more", "2 more", "2 more", "2 more"]
    assert len({head.partition(", ")[2] for head in found}) == 4


def test_layouts_order_and_what_is_not_there_are_reported(tmp_path: Path) -> None:
    x = SPEC((16, 64), "float16")
    weights = [SPEC((64, 64), "float16"), SPEC((64, 64), "float16", "FRACTAL_NZ"),
               SPEC((64, 64), "float16", transposed=True)]  # fmt: skip
    runs = [npusim.run("matmul", x, weight, device="Atlas A2") for weight in weights]
    with_bias = npusim.run("matmul", x, weights[0], SPEC((64,), "float16"), device="Atlas A2")
    found = [head.who for head in heads(records(tmp_path, *runs, with_bias))]
    assert found[0].endswith("x2 ND as it stands, bias none")
    assert found[1].endswith("x2 FRACTAL_NZ as it stands, bias none")
    assert found[2].endswith("x2 ND transposed, bias none")
    assert found[3].endswith("x2 ND as it stands, bias float16 64")


def test_other_operators_are_distinguished_by_name(tmp_path: Path) -> None:
    gate = npusim.run("npu_swiglu", SPEC((16, 64), "float16"), device="Atlas A2")
    assert told(tmp_path / "two", product(16), gate) == ["A, matmul, base", "B, npu_swiglu"]
    assert told(tmp_path / "three", product(16), gate, product(32)) == [
        *("A, matmul, base, x1 16x64", "B, npu_swiglu", "C, matmul, base, x1 32x64")
    ]


def test_an_argument_is_written_as_people_read_it() -> None:
    tensor = {"dtype": "int8", "shape": [2, 3], "layout": "FRACTAL_NZ", "transposed": True}
    scalar = {"dtype": "float32", "shape": [], "layout": "ND"}
    assert argument(tensor) == "int8 2x3 FRACTAL_NZ transposed"
    assert argument([scalar, scalar, tensor]) == (
        "2 x float32 scalar, int8 2x3 FRACTAL_NZ transposed"
    )
    assert (argument([1, 2]), argument(None), argument(True)) == ("[1, 2]", "none", "True")


def test_many_names_are_counted() -> None:
    assert listed(["a", "b", "c", "d"]) == "a, b, c and d"
    assert listed(["a", "b", "c", "d", "e"]) == "a, b, c, d and 1 more"


# ---- how long each takes ----


@pytest.mark.parametrize(
    ("first", "us", "words"),
    [
        (1.0, 3308.0, "3,308 times as long as A"),
        (1.0, 3.3, "3.3 times as long as A"),
        (1.0, 1.5, "50 % more than A"),
        (100.0, 100.5, "0.5 % more than A"),
        (100.0, 100.001, "a little more than A"),
        (100.0, 99.999, "a little less than A"),
        (100.0, 88.0, "12 % less than A"),
        (100.0, 12.0, "88 % less than A"),
        (100.0, 10.0, "10 times as fast as A"),
        (5.0, 5.0, "as long as A"),
        (0.0, 0.0, "as long as A"),
        (0.0, 5.0, "more than A"),
        (5.0, 0.0, "less than A"),
    ],
)
def test_a_time_is_compared_with_the_first(first: float, us: float, words: str) -> None:
    assert overview.than(first, us) == words


def test_the_quickest_and_the_slowest_are_named_with_what_bounds_them() -> None:
    small, large = product(16), product(4096, k=4096)
    assert overview.finding([small, large, small]) == (
        f"A is the quickest: {small.time_us:.2f} us. B is the slowest: {large.time_us:.1f} us, "
        f"{large.time_us / small.time_us:.0f} times as long. A and C are bound by launch and "
        f"completion; B by the bandwidth of global memory."
    )
    assert overview.finding([small, small]) == (
        f"Both take {small.time_us:.2f} us. Both are bound by launch and completion."
    )
    assert overview.finding([small] * 3) == (
        f"All 3 take {small.time_us:.2f} us. All are bound by launch and completion."
    )


def test_two_runs_begin_with_their_times_and_what_differs(tmp_path: Path) -> None:
    x, scale = SPEC((16, 1024), "int8"), SPEC((1024,), "float32")
    weights = SPEC((1024, 1024), "int8"), SPEC((1024, 1024), "int8", "FRACTAL_NZ")
    runs = [npusim.run("npu_quant_matmul", x, weight, scale, output_dtype="bfloat16",
                       device="Atlas A2") for weight in weights]  # fmt: skip
    both = records(tmp_path, *runs)
    text = overview.of_runs(both, heads(both))
    a, b = (run.time_us or 0.0 for run in runs)
    first, second, speedup, error = re.findall(r"<div><b>(.*?)</b>(.*?)</div>", text)
    assert first == (f"{a:.1f} us", "A, x2 ND")
    assert second[1] == "B, x2 FRACTAL_NZ"
    assert speedup == (f"{a / b:.2f}x", f"speedup of B over A: {a - b:.1f} us less")
    assert error[0].count("±") in (1, 2)
    assert f"<p>B takes {a - b:.1f} us less than A: " in text
    bars = re.findall(r'<div class="stack">(.*?)</div>', text)
    shares = [sum(map(float, re.findall(r"width:([\d.]+)%", own))) for own in bars]
    assert shares == pytest.approx([100, 100 * b / a], abs=0.01)


def test_what_differs_adds_up_to_the_difference() -> None:
    parts = [Part("a", 4.0, ""), Part("b", 1.0, "")], [Part("b", 1.0, ""), Part("c", 1.0, "")]
    first, last = (overview.Entry(Head(letter, ""), sum(part.us for part in own), tuple(own), "")
                   for letter, own in zip("AB", parts, strict=True))  # fmt: skip
    assert overview.differing(first, last) == (
        "B takes 3.00 us less than A: a 4.00 us less and c 1.00 us more."
    )
    assert overview.differing(first, first) == "A and A take equally long."


def test_a_page_needs_a_run() -> None:
    with pytest.raises(ValueError) as raised:
        report([])
    assert str(raised.value) == (
        "reports: one run at least must be given, not none; run the operator"
    )
