"""A run of a model on disk: what is written is read back, and what is damaged is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_runs import small

from npusim.trace import model
from npusim.trace.checksums import RecordError
from npusim.trace.facts import own_digest

Facts = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.html").write_text("page")
    assert model.seal(out, small()) == "model.json"
    return out


def changed(folder: Path, change: Callable[[Facts], object]) -> None:
    """Let *change* loose on what `model.json` says, and seal it again."""
    facts = json.loads((folder / "model.json").read_text())
    change(facts)
    facts["sha256"] = {"model.json": own_digest(facts)}
    (folder / "model.json").write_text(json.dumps(facts))


def test_what_was_written_is_read_back(folder: Path) -> None:
    written, found = small(), model.read(folder)
    assert [*found.launches] == [*written.launches]
    assert found.launches[-1] == written.launches[-1]
    assert found.not_timed == written.not_timed
    assert found.to_json() == written.to_json()
    assert (found.kernels, found.time_us) == (written.kernels, 37.5)
    assert model.made(folder) == {"model.json", "report.html"}


def test_the_same_run_has_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    (again / "report.html").write_text("page")
    model.seal(again, small())
    assert (again / "model.json").read_bytes() == (folder / "model.json").read_bytes()


def test_a_launch_knows_its_kernel_and_its_end() -> None:
    launch = small().launches[1]
    assert (launch.start_us, launch.time_us, launch.end_us) == (2.5, 10.0, 12.5)
    assert launch.kernel.bound == "the bandwidth of global memory"


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    message = (
        f"report: the folder {tmp_path} must hold a model.json, but holds none; "
        f"name one that python -m npusim.torch --report has written"
    )
    with pytest.raises(RecordError, match=f"^{re.escape(message)}$"):
        model.read(tmp_path)


def test_another_version_is_refused(folder: Path) -> None:
    changed(folder, lambda facts: facts.update(version=9))
    message = (
        f"compare: the run in {folder} must be of version 2, not 9; "
        f"write it again with python -m npusim.torch --report"
    )
    with pytest.raises(RecordError, match=f"^{re.escape(message)}$"):
        model.read(folder, "compare")


def _cut(facts: Facts) -> None:
    facts["launches"]["stream"].pop()


def _foreign_kernel(facts: Facts) -> None:
    facts["launches"]["kernel"][0] = 7


def _unsorted(facts: Facts) -> None:
    facts["launches"]["start_us"].reverse()


def _escape(facts: Facts) -> None:
    facts["operators"][0] = "\x1b[2J"


def _no_time(facts: Facts) -> None:
    facts["kernels"][0]["time_us"] = -1.0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_cut, ": Value error, columns of launches must have one length"),
        (_foreign_kernel, ": Value error, the kernel of a launch must be one that is there"),
        (_unsorted, ": Value error, launches must be in the order of their starts"),
        (_escape, "operators.0: Value error, record: a name must be at most 1000 printable "
                  "characters, not '\\x1b[2J'; rename it"),
        (_no_time, "kernels.0.time_us: Input should be greater than or equal to 0"),
        (lambda facts: facts.pop("title"), "title: Field required"),
        (lambda facts: facts.update(version="1"), "version must be a small number"),
    ],
)  # fmt: skip
def test_damage_is_reported(folder: Path, change: Callable[[Facts], object], why: str) -> None:
    changed(folder, change)
    message = (
        f"report: the folder {folder} must hold a whole run, but model.json is damaged: {why}; "
        f"write it again with python -m npusim.torch --report"
    )
    with pytest.raises(RecordError, match=f"^{re.escape(message)}$"):
        model.read(folder)


@pytest.mark.parametrize(
    ("text", "why"),
    [("{", "it is no JSON"), ("[]", "it holds no table"), ('{"version": NaN}', "it is no JSON")],
)
def test_what_is_no_record_is_reported(folder: Path, text: str, why: str) -> None:
    (folder / "model.json").write_text(text)
    with pytest.raises(RecordError, match=f" model.json is damaged: {why}; write it again with "):
        model.read(folder)


def test_what_was_changed_by_hand_is_reported(folder: Path) -> None:
    facts = json.loads((folder / "model.json").read_text())
    facts["kernels"][0]["time_us"] = 1.0
    (folder / "model.json").write_text(json.dumps(facts))
    with pytest.raises(RecordError, match=r" model\.json is damaged: it is not what was written; "):
        model.read(folder)


def test_a_record_that_cannot_be_read_is_reported(folder: Path) -> None:
    (folder / "model.json").unlink()
    (folder / "model.json").mkdir()
    with pytest.raises(RecordError, match=r" model\.json cannot be read: Is a directory; "):
        model.read(folder)
