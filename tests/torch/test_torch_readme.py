"""Scripts of PyTorch in README and docs print what stands next to them, to the last figure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from consoles import ROOT, Console, consoles, held, needs_torch
from simulated_card import torch  # noqa: F401

SHOWN = [console for console in consoles() if needs_torch(console)]


@pytest.mark.parametrize("console", SHOWN, ids=lambda console: console.page)
def test_scripts_run_as_shown(
    console: Console, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    assert console.script is not None
    (name,) = re.findall(r"\w+\.py$", console.command)
    (tmp_path / name).write_text(console.script, encoding="utf-8")
    ran = subprocess.run(
        ["bash", "-c", console.command.replace("python", sys.executable, 1) + " 2>&1"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    held(console, ran.stdout, update=pytestconfig.getoption("--update-golden"))
    if "--trace out" not in console.command:
        return
    assert (tmp_path / "out" / "trace_view.json").stat().st_size > 1000
    eager, graph = (float(us) for us in re.findall(r"^\w+ (\S+) us$", ran.stdout, re.MULTILINE))
    assert graph < eager


def test_readme_and_page_show_one_each() -> None:
    assert [console.page for console in SHOWN] == ["README.md", "docs/torch.md"]
