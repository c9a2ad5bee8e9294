"""The example that plans a model: what it prints, what it draws, and what it refuses."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from configs import config
from consoles import ROOT

A2, INFERENCE = "Atlas A2", "Atlas 300I Pro"
LOAD = ["--batch", "2", "--context", "256", "--prompt", "64"]


@pytest.fixture
def example() -> Any:
    where = ROOT / "examples" / "plan_a_model.py"
    found = importlib.util.spec_from_file_location("plan_a_model", where)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_all_plans_are_printed_and_drawn(
    example: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    models = {"dense": (config(), 2), "experts": (config("Qwen3MoeForCausalLM"), 1)}
    monkeypatch.setattr(example, "MODELS", models)
    devices = ["--device", A2, "--device", INFERENCE]
    example.main([*LOAD, *devices, "-o", str(tmp_path / "new")])
    _, *lines = capsys.readouterr().out.splitlines()

    row = r"(\w+) +(ascend\w+) +(\d) +(\w+) +[\d.]+ ms +[\d,]+ /s +.*%.*%.*% +\d+ ms +[\d.]+ MB"
    rows = [found.groups() for line in lines if (found := re.fullmatch(row, line))]
    assert rows == [
        *(("dense", chip, "2", kind) for chip in ("ascend910b2", "ascend310p3")
          for kind in ("float", "w8a8")),
        *(("experts", "ascend910b2", "1", kind) for kind in ("float", "w8a8")),
    ]  # fmt: skip
    refusals = [line for line in lines if line.startswith("experts, ascend310p3, ")]
    assert len(refusals) == 2
    assert "must run on Atlas A2 or A3" in refusals[0]
    assert lines[-1] == f"picture: {tmp_path / 'new' / 'plan_a_model.png'}"
    assert (tmp_path / "new" / "plan_a_model.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch", "many"], "argument --batch: invalid int value: 'many'"),
        (["--device", "Atlas A9"], "devices: no device 'Atlas A9'; "),
    ],
)
def test_what_cannot_be_is_refused(
    example: Any, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        example.main(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1].partition(": error: ")[2]
    assert said.startswith(message)


@pytest.mark.nightly
def test_the_tour_shows_what_it_prints(
    example: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    tour = ROOT / "docs" / "tour.md"
    text = tour.read_text(encoding="utf-8")
    pattern = r"^`python examples/plan_a_model.py (.*?)` draws.*?^```text\n(.*?)^```"
    shown = re.search(pattern, text, re.DOTALL | re.MULTILINE)
    assert shown is not None
    example.main([*shown[1].split(), "-o", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    # Behind the table stands the picture.
    printed = "".join(f"{line}\n" for line in lines if not line.startswith("picture: "))
    if pytestconfig.getoption("--update-golden"):
        tour.write_text(text.replace(shown[2], printed), encoding="utf-8")
        return
    assert printed == shown[2]
