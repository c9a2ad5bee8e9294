"""The page of the run that the landing page shows, written anew by its own command."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PAGE = "index"
NAME = "run.html"


def write(app: Any, exception: Exception | None) -> None:
    """Run the command that the landing page shows, and write the page of the run."""
    if exception is not None:
        return
    words = command(Path(app.env.doc2path(PAGE)))
    page = Path(app.outdir, "_static", NAME).resolve()
    with tempfile.TemporaryDirectory() as folder:
        for each in [*words, "-o", "run"], ["report", "run", "-o", str(page), "--force"]:
            called = [sys.executable, "-m", "npusim", *each]
            subprocess.run(called, cwd=folder, stdout=subprocess.DEVNULL, check=True)


def command(page: Path) -> list[str]:
    """The words of the one call of npusim that *page* shows."""
    block = page.read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0]
    program, *words = shlex.split(block.splitlines()[-1])
    assert program == ".venv/bin/npusim"
    return words
