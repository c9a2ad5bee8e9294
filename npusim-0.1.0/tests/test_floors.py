"""The floors hold what the README says of values and times: a planted import is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLANTS = {
    "npusim/values/planted.py": "import npusim.timing.cost\n",
    "npusim/timing/planted.py": "import npusim.values.play\n",
}


def test_values_that_import_times_and_times_that_import_values_are_refused(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "npusim", tmp_path / "npusim", ignore=shutil.ignore_patterns("__pyc*"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, line in PLANTS.items():
        (tmp_path / name).write_text(line, encoding="utf-8")
    command = Path(sys.executable).with_name("lint-imports")
    ran = subprocess.run(
        [command, "--no-cache"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stderr
    _, _, broken = ran.stdout.partition("Broken contracts")
    # The linter names the two in any order.
    assert {line for line in broken.splitlines() if "npusim" in line} == {
        "npusim.timing is not allowed to import npusim.values:",
        "- npusim.timing.planted -> npusim.values.play (l.1)",
        "npusim.values is not allowed to import npusim.timing:",
        "- npusim.values.planted -> npusim.timing.cost (l.1)",
    }
