"""Rows are timed in any number of processes, and their errors summed up."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

import npusim
from npusim import OpError, TensorSpec
from npusim.data.errors import Code
from npusim.validation import Family, Result, Row, calls, families, measure
from npusim.validation.errors import Errors, spearman

ROW = Row(
    *("r1", "static", "npu_quantize", "ascend910_9391", 10.0),
    m=3, n=64, x_dtype="bfloat16", l2="warm", source="made up",
)  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """Takes *us*, or goes wrong with *error*."""

    us: float = 0.0
    error: Exception | None = None

    def time_us(self) -> float:
        if self.error is not None:
            raise self.error
        return self.us


def result(name: str, measured: float, simulated: float | None, family: str = "f") -> Result:
    row = Row(name, family, "matmul", "ascend910b2", measured)
    return Result(row, simulated, None if simulated is not None else "not yet")


# ---- timing ----


def test_a_row_gets_the_time_of_its_run() -> None:
    x, channel = TensorSpec((3, 64), "bfloat16"), TensorSpec((64,), "bfloat16")
    args = x, channel, channel, "qint8", -1, False
    run = npusim.run("npu_quantize", *args, device="ascend910_9391", l2="repeat")
    (found,) = measure([ROW], jobs=1)

    assert found == Result(ROW, run.time_us)
    assert run.time_us is not None
    assert found.off_us == run.time_us - 10.0
    assert found.error == (run.time_us - 10.0) / 10.0


def test_results_do_not_depend_on_the_number_of_processes() -> None:
    rows = [
        replace(ROW, id=f"r{m}", m=m, latency_us=latency)
        for m, latency in ((3, 9.0), (640, 30.0), (128, 10.0), (48, 20.0))
    ]
    rows.insert(2, replace(ROW, id="none", op="cumsum"))
    alone, together = measure(rows, jobs=1), measure(rows, jobs=2)

    assert together == alone
    assert [found.row for found in alone] == rows
    assert [found.reason for found in alone] == [None, None, "npusim has no cumsum", None, None]
    assert len({found.time_us for found in alone}) == 5


def test_progress_is_the_share_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(calls.KERNELS, "cumsum", lambda row: (Kernel(row.latency_us),))
    rows = [replace(ROW, op="cumsum"), replace(ROW, op="cumprod"), replace(ROW, op="cumsum")]
    told: list[tuple[str, float]] = []
    measure(rows, jobs=1, progress=lambda stage, share: told.append((stage, share)))

    assert told == [("rows", 0.0), ("rows", 1 / 3), ("rows", 2 / 3), ("rows", 1.0)]


def test_long_kernels_are_begun_first(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[float] = []

    @dataclass(frozen=True)
    class Noted(Kernel):
        def time_us(self) -> float:
            begun.append(self.us)
            return self.us

    monkeypatch.setitem(calls.KERNELS, "cumsum", lambda row: (Noted(row.latency_us),))
    rows = [replace(ROW, op="cumsum", latency_us=us) for us in (5.0, 500.0, 50.0)]

    assert [found.time_us for found in measure(rows, jobs=1)] == [5.0, 500.0, 50.0]
    assert begun == [500.0, 50.0, 5.0]


def test_the_times_of_kernels_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(calls.KERNELS, "cumsum", lambda _: (Kernel(1.5), Kernel(2.25)))
    assert measure([replace(ROW, op="cumsum")], jobs=1)[0].time_us == 3.75


def test_what_an_operator_refuses_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = OpError(Code.UNSUPPORTED, "cast: no; go")
    monkeypatch.setitem(calls.KERNELS, "cumsum", lambda _: (Kernel(error=refusal),))
    row = replace(ROW, op="cumsum")

    assert measure([row], jobs=1) == (Result(row, None, "cast: no; go [361001]"),)


def test_a_result_is_printed_in_plain_words() -> None:
    assert Result(ROW, 12.5).to_json() == {
        "id": "r1",
        "family": "static",
        "op": "npu_quantize",
        "device": "ascend910_9391",
        "m": 3,
        "n": 64,
        "measured_us": 10.0,
        "measured_min_us": None,
        "simulated_us": 12.5,
        "around_us": 0.0,
        "host_us": 0.0,
        "error": 0.25,
        "not_modelled": None,
        "source": "made up",
    }
    bare = Result(replace(ROW, m=None, n=None, shape="3x64"), None, "no").to_json()
    assert "m" not in bare
    assert (bare["shape"], bare["error"], bare["not_modelled"]) == ("3x64", None, "no")


def test_between_the_least_and_the_median_a_time_is_right() -> None:
    row = replace(ROW, latency_us=10.0, latency_min_us=8.0)

    assert [(Result(row, us).off_us, Result(row, us).error) for us in (6.0, 9.0, 11.0)] == [
        (-2.0, -0.25), (0.0, 0.0), (1.0, 0.1),
    ]  # fmt: skip


# ---- errors ----


def test_long_and_short_rows_are_distinguished() -> None:
    (found,) = families(
        [
            result("a", 100.0, 110.0),
            result("b", 10.0, 6.0),
            result("c", 20.0, 21.0),
            result("d", 8.0, 9.0),
            result("e", 2.0, 1.75),
            result("f", 30.0, None),
        ]
    )

    assert (found.name, found.rows, found.modelled) == ("f", 6, 5)
    assert found.not_modelled == {"not yet": 1}
    # 0.05, 0.1 and 0.4 without sign: 0.8 of the way from the second to the third.
    assert found.long == Errors(3, 0.1, pytest.approx(0.34), pytest.approx(0.05), -0.4, "b")
    assert found.short == Errors(2, 0.625, pytest.approx(0.925), 0.375, 1.0, "d")


def test_a_family_without_times_has_no_errors() -> None:
    (found,) = families([result("a", 100.0, None), result("b", 1.0, None)])
    assert found == Family("f", 2, {"not yet": 2}, Errors(0), Errors(0), None)


def test_families_come_in_the_order_of_their_first_rows() -> None:
    rows = [
        *(result("a", 10.0, 10.0, "z"), result("b", 10.0, 12.0, "y")),
        *(result("c", 10.0, 13.0, "z"), result("d", 10.0, None, "x")),
    ]
    assert [(found.name, found.rows) for found in families(rows)] == [("z", 2), ("y", 1), ("x", 1)]


def test_a_family_is_plain_json() -> None:
    (found,) = families([result(name, us, us) for name, us in (("a", 1.0), ("b", 20.0))])
    assert json.loads(json.dumps(found.to_json())) == {
        "name": "f",
        "rows": 2,
        "not_modelled": {},
        "long": {
            "rows": 1, "median": 0.0, "p90": 0.0, "bias": 0.0, "worst": 0.0, "worst_id": "b",
        },
        "short": {
            "rows": 1, "median": 0.0, "p90": 0.0, "bias": 0.0, "worst": 0.0, "worst_id": "a",
        },
        "rank": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("a", "b", "rank"),
    [
        ([1, 2, 3], [10, 20, 400], 1.0),
        ([1, 2, 3], [9, 4, 1], -1.0),
        ([1, 2, 3, 4], [1, 3, 2, 4], 0.8),
        # Ranks 1.5, 1.5, 3 and 1, 2, 3.
        ([5, 5, 6], [1, 2, 3], 0.8660254037844387),
        ([1, 2], [1, 2], None),
        ([1, 1, 1], [1, 2, 3], None),
        ([1, 2, 3], [7, 7, 7], None),
    ],
)
def test_rank(a: list[float], b: list[float], rank: float | None) -> None:
    found = spearman(np.array(a, np.float64), np.array(b, np.float64))
    assert found == (None if rank is None else pytest.approx(rank))
