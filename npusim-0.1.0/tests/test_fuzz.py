"""The fuzzer itself: it finds what is planted, and nothing in npusim."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parent.parent / "benchmarks" / "fuzz"
AREAS = ("calls", "device_files", "run_folders", "programs")


def fuzzed(*words: str, first: str = "") -> tuple[int, str]:
    """Exit code and output of the fuzzer, after the statements *first*."""
    run = (
        f"import runpy, sys; sys.path.insert(0, {str(FUZZ)!r}); sys.argv = ['fuzz', *{words!r}]; "
        f"\n{first}\nrunpy.run_path({str(FUZZ)!r}, run_name='__main__')"
    )
    ran = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.nightly
def test_nothing_ends_but_in_a_result_or_a_refusal() -> None:
    code, said = fuzzed("--cases", "400", "--seed", "7")
    assert code == 0, said
    lines = said.splitlines()
    assert [line.split()[:3] for line in lines[:-1]] == [[area, "400", "cases:"] for area in AREAS]
    assert all(re.search(r" \d+ results, [1-9]\d* refusals, 0 findings$", line)
               for line in lines[:-1])  # fmt: skip
    assert lines[-1] == "seed 7: 0 findings"


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("raise ValueError('planted')", "ValueError: planted"),
        ("import os; os.kill(os.getpid(), 11)", "the process ended with exit code -11"),
    ],
)
def test_what_is_planted_is_found(planted: str, found: str) -> None:
    code, said = fuzzed(
        *("--cases", "1", "--only", "calls"),
        first=f"import npusim\ndef run(*_, **__):\n    {planted}\nnpusim.run = run\n",
    )
    assert code == 1, said
    assert found in said
    assert said.endswith("seed 0: 1 findings\n")


@pytest.mark.nightly
def test_a_case_is_drawn_again_by_its_number() -> None:
    words = ("--only", "programs", "--seed", "5", "--case", "11")
    assert fuzzed(*words) == fuzzed(*words)
    assert fuzzed(*words)[0] == 0
