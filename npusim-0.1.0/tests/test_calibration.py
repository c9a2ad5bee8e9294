"""The calibration script: what a scaled number of a chip does to errors."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from npusim import devices
from npusim.validation import measure, read

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "calibration.py"
ROWS = """id,family,op,device,shape,x_dtype,l2,latency_us
c1,casts,cast,ascend910_9391,8,bf16,warm,9
c2,casts,cast,ascend910_9391,256,bf16,warm,10
"""


def says(*words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    return capsys.readouterr().out


def test_a_scaled_number_moves_errors_by_what_it_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    csv = tmp_path / "rows.csv"
    csv.write_text(ROWS)
    short, long = (one.time_us or 0.0 for one in measure(read(csv), jobs=1))
    base_us = devices.load("ascend910_9391").launch.base_us
    words = "launch.base_us", "--scale", "6", "--csv", str(csv), "-j", "1"
    lines = says(*words, monkeypatch=monkeypatch, capsys=capsys).splitlines()

    # Five times as much more, of every launch.
    shares = [10 * (long + more - 10) for more in (0, 5 * base_us)]
    off_us = [short + more - 9 for more in (0, 5 * base_us)]
    table = [line.split() for line in lines if line]
    assert lines[0] == f"launch.base_us: ascend910_9391 {base_us:g}"
    assert [row[1:] for row in table if row[0] == "casts"] == [
        [word for share in shares for word in (f"{abs(share):.1f}", "%", f"({share:+.1f})")],
        [word for off in off_us for word in (f"{abs(off):.1f}", "us", f"({off:+.1f})")],
    ]
    assert [row[1:] for row in table if row[0] == "best:"] == [["x", "6"], ["x", "6"]]


def test_a_number_that_no_chip_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    csv = tmp_path / "rows.csv"
    csv.write_text(ROWS)
    with pytest.raises(SystemExit) as caught:
        says("gm.rows", "--csv", str(csv), monkeypatch=monkeypatch, capsys=capsys)
    assert str(caught.value) == (
        "calibration: a number must be one that `npusim devices show NAME --sources` lists, "
        "not gm.rows; use one of these"
    )
