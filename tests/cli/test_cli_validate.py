"""The command `npusim validate`: its table, its folder, and what it refuses."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import NamedTuple

import pytest
from commands import npusim_says, refused

from npusim.cli import progress
from npusim.validation import Row, calls, families, measure, pipes, read, simulated
from npusim.validation.pipes import PipeTimes

FILE = """id,family,op,device,m,n,x_dtype,l2,latency_us,source
q1,static,npu_quantize,Atlas A3,30,4096,bfloat16,warm,40,by hand
q2,static,npu_quantize,Atlas A3,4,32,bfloat16,warm,2.5,by hand
e1,elementwise,topk,Atlas A3,,,,,7,by hand
"""

TABLE = """\
family        rows   timed   from 10 us   median    P90    bias      worst   rank
─────────────────────────────────────────────────────────────────────────────────
static           2       2            1     25 %   25 %   -25 %   -25 % q1
    below 10 us: 1 row, median 1.5 us, worst +1.5 us q2
elementwise      1       0

not modelled
elementwise  1  npusim has no topk
"""


ROW = Row("a", "", "matmul", "Atlas A2", 100.0)


class Kernel(NamedTuple):
    us: float

    def time_us(self) -> float:
        return self.us


@pytest.fixture
def csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of three rows; quantising takes a microsecond a row of the input."""
    monkeypatch.setitem(calls.KERNELS, "npu_quantize", lambda row: (Kernel(float(row.m or 0)),))
    path = tmp_path / "rows.csv"
    path.write_text(FILE)
    return path


def test_families_are_a_table(csv: Path) -> None:
    assert npusim_says("validate", str(csv), "-j", "1") == (0, TABLE, "")


def test_progress_without_a_terminal(csv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(row: Row) -> tuple[Kernel, ...]:
        sleep(0.2)
        return (Kernel(float(row.m or 0)),)

    monkeypatch.setitem(calls.KERNELS, "npu_quantize", slow)
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.05)
    code, out, err = npusim_says("validate", str(csv), "-j", "1")

    assert (code, out) == (0, TABLE)
    assert re.fullmatch(
        r"(npusim: (working|Simulating rows: \d+ %), \d s elapsed(, about \d s left)?\n)+", err
    )


def test_json_has_rows_and_families(csv: Path) -> None:
    results = measure(read(csv), jobs=1)
    code, out, err = npusim_says("validate", str(csv), "--json", "-j", "1")

    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "timed_now": 3,
        "rows": [result.to_json() for result in results],
        "families": [found.to_json() for found in families(results)],
    }


def test_only_rows_of_the_families_asked_for_are_timed(csv: Path) -> None:
    _, out, _ = npusim_says("validate", str(csv), "--family", "elementwise", "--json")
    assert [row["id"] for row in json.loads(out)["rows"]] == ["e1"]
    _, out, _ = npusim_says(
        "validate", str(csv), "-f", "elementwise", "-f", "static", "--json", "-j", "1"
    )
    assert [row["id"] for row in json.loads(out)["rows"]] == ["q1", "q2", "e1"]


def test_a_sample_is_taken_unless_all_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "validate", "-f", "cast_a3", "-j", "1"
    monkeypatch.setattr("npusim.validation.samples.MOST_ROWS", 2)
    found = json.loads(npusim_says(*words, "--json").out)
    assert (found["timed_now"], len(found["rows"])) == (2, 12)
    assert found["families"][0]["rows"] == 12
    said = "12 rows with stored times; 2 of them simulated again, with the same times"
    assert npusim_says(*words).out.startswith(f"{said}; --all simulates all\n\nfamily ")

    found = json.loads(npusim_says(*words, "--json", "--all").out)
    assert (found["timed_now"], len(found["rows"])) == (12, 12)
    assert npusim_says(*words, "--all").out.startswith("family ")


def test_a_sample_that_takes_another_time_than_before_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("npusim.validation.simulated.times", lambda: {"m0623": 1.0, "m0629": 2.0})
    monkeypatch.setattr("npusim.validation.samples.MOST_ROWS", 2)
    code, out, _ = npusim_says("validate", "-f", "cast_a3", "-j", "1")
    assert code == 0
    assert "; 2 of them simulated again, 2 of them with another time; --all" in out


def test_all_families_fit_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the stored times, so that nothing is simulated."""
    monkeypatch.setattr("npusim.validation.measure", lambda rows, **_: simulated.results(rows))
    code, out, _ = npusim_says("validate")
    assert code == 0
    assert "\nmeasured from event to event\n" in out
    assert "\nnot modelled\n" in out
    assert max(map(len, out.splitlines())) <= 100


def test_of_a_custom_file_every_row_is_taken(csv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npusim.validation.samples.MOST_ROWS", 1)
    assert npusim_says("validate", str(csv), "-j", "1").out == TABLE


def test_a_folder_holds_numbers_and_pictures(csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = "validate", str(csv), "-j", "1", "-o", str(out)
    code, said, err = npusim_says(*words)

    names = ["validation.json", "predicted_against_measured.png", "errors.png"]
    assert (code, err) == (0, "")
    assert said.endswith(f"\n\nwrote {', '.join(names)} to {out}\n")
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    assert npusim_says(*words[:-2], "--json").out == (out / "validation.json").read_text()
    assert npusim_says(*words, "--force").code == 0


def test_without_times_there_are_no_pictures(csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _, said, _ = npusim_says("validate", str(csv), "-f", "elementwise", "-o", str(out))

    assert said.endswith(f"\n\nwrote validation.json to {out}\n")
    assert [path.name for path in out.iterdir()] == ["validation.json"]


PIPES = """\
family                  pipe          rows   median   bias
──────────────────────────────────────────────────────────
training_matmul_910b4   aic_mac          2     15 %   -5 %
                        aic_fixpipe      1      2 %   +2 %
training_cast_910b4     aiv_vec          1      1 %   -1 %
all                     aic_mac          2     15 %   -5 %
                        aic_fixpipe      1      2 %   +2 %
                        aiv_vec          1      1 %   -1 %
"""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows whose pipes take what the table above says."""
    matmul = replace(ROW, family="training_matmul_910b4")
    found = [
        PipeTimes(matmul, {"aic_mac": 50.0, "aic_fixpipe": 5.0}, {"aic_mac": 60, "aic_fixpipe": 7}),
        PipeTimes(matmul, {"aic_mac": 50.0}, {"aic_mac": 30.0}),
        PipeTimes(replace(ROW, family="training_cast_910b4"), {"aiv_vec": 6.0}, {"aiv_vec": 5.0}),
    ]
    monkeypatch.setattr(pipes, "measure", lambda *_, **__: found)


@pytest.mark.usefixtures("counted")
def test_pipes_are_a_table_or_json() -> None:
    assert npusim_says("validate", "--pipes") == (0, PIPES, "")
    facts = json.loads(npusim_says("validate", "--pipes", "--json").out)
    assert [row["simulated_us"] for row in facts["rows"]] == [
        *({"aic_mac": 60, "aic_fixpipe": 7}, {"aic_mac": 30.0}, {"aiv_vec": 5.0}),
    ]
    assert facts["pipes"][1] == {
        "family": "training_matmul_910b4", "pipe": "aic_fixpipe", "rows": 1, "median": 0.02,
        "bias": 0.02,
    }  # fmt: skip


def test_pipes_of_a_family_are_timed() -> None:
    words = "validate", "--pipes", "-f", "training_910b3", "-j", "1"
    found = json.loads(npusim_says(*words, "--json").out)
    assert [row["id"] for row in found["rows"]] == ["rp0957", "rp0958", "rp0961"]


def test_pipes_are_of_the_rows_that_ship(csv: Path, tmp_path: Path) -> None:
    refused(
        2,
        "validate: --pipes must be of the rows that ship with npusim, whose pipes were counted, "
        "not of a file; leave CSV out",
        *("validate", str(csv), "--pipes"),
    )
    refused(
        2,
        "validate: --pipes must go without --output; leave it out",
        *("validate", "--pipes", "-o", str(tmp_path / "out")),
    )


@pytest.mark.parametrize(
    ("name", "remedy"), [("statik", "did you mean static?"), ("x", "use one of these")]
)
def test_a_family_that_is_not_there_is_refused(csv: Path, name: str, remedy: str) -> None:
    refused(
        2,
        f"validate: --family must be one of static, elementwise, not {name!r}; {remedy}",
        *("validate", str(csv), "--family", name),
    )


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(FILE.replace("2.5", "soon"))
    refused(
        1,
        "validate: rows.csv: line 3: latency_us must be a number above 0, not 'soon'; fix the cell",
        *("validate", str(path)),
    )
    path.write_text(FILE.replace("30,4096", "30,"))
    refused(
        1,
        "validate: row q1: n must be given for npu_quantize, not empty; fill the cell",
        *("validate", str(path)),
    )


ENDED = """
import os, signal, threading, time
from multiprocessing import active_children
from npusim import validation
from npusim.cli import main, progress

progress.LINE_EVERY_S = 600.0  # Where much else goes on, workers may take long to start.

def measure(rows, **_):
    # As soon as both workers are there, and while they are at work.
    def end():
        while len(active_children()) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(target=end).start()
    return known(rows, jobs=2)

known, validation.measure = validation.measure, measure
if __name__ == "__main__":
    main()
"""


def test_a_signal_ends_the_workers_too(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ENDED)
    words = ("validate", "--family", "qbmm_910b2_nd", "-o", str(tmp_path / "out"))
    child = subprocess.run(
        [sys.executable, str(script), *words], capture_output=True, text=True, timeout=60
    )

    # Its pipes are closed: nobody is left who holds them.
    assert (child.returncode, child.stdout, child.stderr) == (128 + signal.SIGTERM, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
