"""What lies between two events besides a kernel, and what is left for the kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from npusim.cli.validate import validate
from npusim.validation import Result, Row, events, measure, read
from npusim.validation.events import Events, events_of
from npusim.validation.timed import Call

ROW = Row("q1", "static", "npu_quantize", "ascend910b2", 80.0, m=30, n=4096, x_dtype="bfloat16")
MINE = Events("mine.csv", around_us=40.0, host_us=60.0, source="by hand", confidence="assumed")


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> Row:
    """One of a table of such times."""
    monkeypatch.setattr(events, "TABLES", (MINE,))
    return replace(ROW, source="someone@1 data/mine.csv")


@pytest.mark.parametrize(("kernel_us", "interval_us"), [(5.0, 60.0), (20.0, 60.0), (25.0, 65.0)])
def test_the_host_issues_no_faster(kernel_us: float, interval_us: float) -> None:
    assert MINE.interval_us(kernel_us) == interval_us


def test_an_interval_of_the_host_says_nothing_of_the_kernel() -> None:
    assert [MINE.kernel_us(us) for us in (30.0, 60.0, 61.0)] == [None, None, 21.0]
    assert replace(MINE, host_us=0.0).kernel_us(40.0) is None


def test_a_task_duration_is_the_kernel() -> None:
    (found,) = {events_of(row) for row in read() if row.family == "quant_a3"}
    assert (found.interval_us(3.5), found.kernel_us(3.5)) == (3.5, 3.5)


def test_intervals_are_held_against_intervals(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Call, "time_us", lambda _: 30.0)
    (found,) = measure([row], jobs=1)
    assert found == Result(row, 70.0)
    assert (found.error, found.kernel_error) == (-0.125, -0.25)
    assert (found.to_json()["around_us"], found.to_json()["host_us"]) == (40.0, 60.0)


def test_an_interval_of_the_host_has_no_error_of_the_kernel(row: Row) -> None:
    assert Result(row, 60.0).kernel_error is None
    assert Result(replace(row, latency_us=55.0), 70.0).kernel_error is None
    assert Result(row, None, "no").kernel_error is None


def test_what_was_measured_is_said(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Call, "time_us", lambda _: 30.0)
    monkeypatch.setattr("npusim.validation.read", lambda _: (row,))
    validate(tmp_path / "mine.csv", (), False, None, False, 1, False, False)
    assert capsys.readouterr().out.endswith(
        "\nmeasured from event to event\n"
        "static  40 us around the kernel, and 60 us at least (assumed)\n"
    )


def test_each_table_has_a_source_and_is_there() -> None:
    sources = {row.source for row in read()}
    for table in events.TABLES:
        assert table.source
        assert table.confidence == "calibrated"
        assert any(source.endswith(table.table) for source in sources)
