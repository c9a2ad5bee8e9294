"""docs/adding.md: its sessions run, and what it shows of a module stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "adding.md"


def test_the_sessions_run_as_shown() -> None:
    """In a process of their own, since they add a micro-op."""
    command = [sys.executable, "-W", "error", "-m", "doctest", str(PAGE)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stdout + ran.stderr


def test_the_operator_is_shown_whole() -> None:
    text = PAGE.read_text(encoding="utf-8")
    module = (ROOT / "npusim" / "ops" / "npu_swiglu.py").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    shown = "".join(block for block in blocks if not block.startswith(">>>"))

    assert shown.split() == module.split()


def test_its_links_lead_somewhere() -> None:
    prose = re.sub(r"^```.*?^```", "", PAGE.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)]+)\)", prose)
    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
