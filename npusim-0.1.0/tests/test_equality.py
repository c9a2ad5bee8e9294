"""The comparison of two checkouts itself: it finds what is planted, and nothing in the same one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from npusim import ops
from npusim.timing.compiled import is_built

ROOT = Path(__file__).parent.parent
EQUALITY = ROOT / "benchmarks" / "equality"
STUB = """
import os

class Tensor: ...
class TensorSpec:
    def __init__(self, *_): self.T = self

def run(*_, **__):
    {planted}
"""
needs_engine = pytest.mark.skipif(not is_built(), reason="the engine is not compiled here")


def compared(*words: str) -> tuple[int, str]:
    """Exit code and output of the comparison."""
    command = [sys.executable, str(EQUALITY), *words]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def test_every_operator_has_a_recipe_and_calls_come_back_from_their_text() -> None:
    said = (
        f"import sys; sys.path.insert(0, {str(EQUALITY)!r})\n"
        "from calls import calls_of; from described import read, written\n"
        "from drawing import RECIPES\n"
        f"assert sorted(RECIPES) == {sorted(ops.names())!r}, sorted(RECIPES)\n"
        "for call in calls_of(sorted(RECIPES), 300, 3):\n"
        "    assert written(read(written(call))) == written(call), call\n"
    )
    subprocess.run([sys.executable, "-c", said], check=True)


@needs_engine
def test_a_checkout_equals_itself_and_outcomes_are_stored(tmp_path: Path) -> None:
    words = ("--operators", "npu_swiglu,abs", "--calls", "6", "--seed", "2", "--against", str(ROOT))
    code, said = compared(*words, "--baseline-cache", str(tmp_path / "cache"))
    assert code == 0, said
    assert "seed 2: 6 calls" in said
    assert "; 0 differences" in said


@needs_engine
@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("raise RuntimeError('planted')", 'error: baseline "RuntimeError", here null'),
        ("os.kill(os.getpid(), 11)", "the process ended with -11"),
    ],
)
def test_what_is_planted_is_found(planted: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "npusim").mkdir()
    (tmp_path / "npusim" / "__init__.py").write_text(STUB.format(planted=planted))
    code, said = compared("--only", "abs:1", "--against", str(tmp_path))
    assert code == 1, said
    assert found in said
    assert "--seed 0 --only abs:1\n  npusim.run('abs', x=" in said
