"""`npusim run --export`: what lands in the folder, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import entries, npusim_says, refused

from npusim import exports
from npusim.trace.summary import WORDS

CALL = (
    *("run", "npu_quantize", "-d", "Atlas A2", "-i", "input=spec:64x64:float16"),
    *("-i", "scales=spec:1:float32", "-a", "dtype=qint8"),
)


def test_exports_stand_beside_the_numbers(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, err = npusim_says(*CALL, "-o", str(out), "--export", "perfetto,msprof")

    assert (code, err) == (0, "")
    assert said.endswith(
        "\nwrote run.json, device.json, trace.npz, timeline.png, pipes.png, msprof, "
        f"perfetto.json to {out}\n"
    )
    assert (out / "msprof" / "simulator" / "core0.veccore0" / "trace.json").exists()
    assert entries(tmp_path) == ["out"]


def test_force_replaces_them(tmp_path: Path) -> None:
    npusim_says(*CALL, "-o", str(tmp_path / "out"), "--export", "perfetto,msprof")
    words = "--force", "--export", "perfetto", "--trace-time", "cycles"
    assert npusim_says(*CALL, "-o", str(tmp_path / "out"), *words)[0] == 0

    head = json.loads((tmp_path / "out" / "perfetto.json").read_text())
    assert head["otherData"] == {"time_unit": "1ns=1cycle"}
    assert not (tmp_path / "out" / "msprof").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("-o", "out", "--export", "msprof,konata"),
            "--export must be out of msprof, perfetto, not 'konata'; separate several by commas",
        ),
        (("--export", "msprof"), "--export must have a folder to go to; add -o DIR"),
        (
            ("-o", "out", "--export", "msprof", "--no-timing"),
            "--export must have times to write; leave --no-timing out",
        ),
        (
            ("-o", "out", "--export", "msprof", "--trace-time", "cycles"),
            "--trace-time cycles must come with a trace for Perfetto; add --export perfetto",
        ),
        (
            ("-o", "out", "--level", "full"),
            "--level full must come with timelines of other tools; add --export perfetto",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(2, f"run: {message}", *CALL, *words)
    assert entries(tmp_path) == []


def test_what_was_too_large_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports.binary, "MAX_BYTES", 1)
    code, said, err = npusim_says(
        *CALL, "-o", str(tmp_path / "out"), "--export", "msprof", "--json"
    )

    assert code == 0
    assert json.loads(said)["op"] == "npu_quantize"
    assert err == (
        "npusim: left out of visualize_data.bin, as too large: timeline, lines, instructions, "
        "basic information, loads, table of loads, memories, rooflines\n"
    )


def test_a_summary_is_told(tmp_path: Path) -> None:
    words = "-o", str(tmp_path / "out"), "--export", "perfetto", "--level", "summary"
    code, _, err = npusim_says(*CALL, *words)

    assert code == 0
    assert err == f"npusim: exported timelines are {WORDS}; --level full writes all\n"
