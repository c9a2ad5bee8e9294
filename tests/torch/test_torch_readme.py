"""The script of the README prints what the README shows; its times may change."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from simulated_card import torch  # noqa: F401

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def without_times(text: str) -> str:
    return re.sub(r"\d+\.\d\d us|\d+ host", "#", text)


def test_the_script_runs_as_shown(tmp_path: Path) -> None:
    script, shown = re.findall(
        r"^```python\n(import torch\n.*?)^```\n\n```console\n\$ (.*?)^```",
        README,
        re.DOTALL | re.MULTILINE,
    )[0]
    command, _, wanted = shown.partition("\n")
    (tmp_path / "layer.py").write_text(script, encoding="utf-8")
    ran = subprocess.run(
        ["bash", "-c", command.replace("python", sys.executable, 1) + " 2>&1"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert without_times(ran.stdout) == without_times(wanted)
    assert (tmp_path / "out" / "trace_view.json").stat().st_size > 1000
    eager, graph = (float(us) for us in re.findall(r"^\w+ (\S+) us$", ran.stdout, re.MULTILINE))
    assert graph < eager
