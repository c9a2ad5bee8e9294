"""No number of a chip that changes a little moves a time against its direction."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DIRECTIONS = Path(__file__).parent.parent / "benchmarks" / "directions.py"


def tried(*words: str, first: str = "") -> tuple[int, str]:
    """Exit code and output of the benchmark in one process, after the statements *first*."""
    code = (
        f"import sys; sys.path.insert(0, {str(DIRECTIONS.parent)!r}); import directions\n"
        f"{first}\nsys.exit(bool(directions.main([*{words!r}, '-j', '1'])))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.nightly
def test_times_move_with_the_numbers_of_the_chip() -> None:
    code, said = tried("--calls", "24", "--seed", "1", "--longest-us", "100")
    assert code == 0, said
    assert "seed 1: 24 calls, 0 against their direction by more than 1%" in said


def test_what_moves_against_its_direction_is_found() -> None:
    first = "directions.TOLERANCE, directions._shortens = 0.0, lambda key: key.endswith('_us')"
    code, said = tried("--calls", "8", "--longest-us", "6", first=first)
    assert code == 1, said
    assert ", launch." in said
    assert " against its direction\n" in said
