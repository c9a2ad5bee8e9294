"""docs/models.md and benchmarks/model_steps.py: numbers, words and steps are what they say."""

from __future__ import annotations

import re
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from consoles import ROOT

from npusim import engines
from npusim.engines.words import WORDS

PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    sys.modules.pop("model_steps", None)
    import model_steps

    return model_steps


def test_the_table_of_numbers_is_that_of_the_engines() -> None:
    row = r"^\| `([a-z_.]+)` \| ([a-z-]+) \| ([0-9.]+) \| .* \| (\w[\w ]*) \|$"
    rows = re.findall(row, PAGE, re.MULTILINE)
    assert len(rows) > 10
    for key, name, value, confidence in rows:
        engine = engines.load(name)
        assert (attrgetter(key)(engine), engine.sources[key].confidence) == (
            float(value),
            confidence,
        )


def test_the_table_of_words_is_that_of_the_engines() -> None:
    words = PAGE.partition("## The names of kernels in engine files")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", words, re.MULTILINE)
    assert dict(rows) == WORDS


def test_an_engine_of_ones_own_loads_as_shown(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "our.toml").write_text(text)
    engine = engines.load(tmp_path / "our.toml")
    assert (engine.name, engine.host.before_us) == ("our_engine", 900)


def test_every_published_step_has_its_model_and_its_engine(script: Any) -> None:
    rows = script.rows()
    assert len(rows) == len({row["id"] for row in rows}) == 15
    for row in rows:
        assert (script.FOLDER / f"{row['model']}.json").is_file()
        name = row["engine"]
        where = script.FOLDER / name if name.endswith(".toml") else name
        assert engines.load(where).host.before_us > 0


def test_a_published_step_comes_out_about_as_shown(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["model_steps.py", "--id", "tp8_8b"])
    script.main()
    _, line, summary = capsys.readouterr().out.splitlines()
    (shown,) = (each for each in PAGE.splitlines() if each.startswith("tp8_8b "))

    # Times of kernels move with the simulator; the nightly test holds every digit.
    assert line.split()[:9] == shown.split()[:9]
    assert float(line.split()[10]) == pytest.approx(float(shown.split()[10]), abs=0.1)
    assert summary.startswith("full graphs and C++ hosts: 1 rows, ")


@pytest.mark.nightly
def test_all_published_steps_come_out_as_shown(
    script: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pytestconfig: pytest.Config,
) -> None:
    monkeypatch.setattr(sys, "argv", ["model_steps.py"])
    script.main()
    printed = capsys.readouterr().out
    (shown,) = re.findall(r"^```text\n(row .*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    if pytestconfig.getoption("--update-golden"):
        where = ROOT / "docs" / "models.md"
        where.write_text(PAGE.replace(shown, printed), encoding="utf-8")
        return
    assert printed == shown
    assert "beyond" not in printed
