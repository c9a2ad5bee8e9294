"""The table of mutants fits the tree, and the job says what survives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from npusim.timing.compiled import is_built

MUTANTS = Path(__file__).parent.parent / "benchmarks" / "mutants"
CHANGED = "def width() -> int:\n    return 16\n"


def ended(*words: str, first: str = "") -> tuple[int, str]:
    """Exit code and output of the job, after the statements *first*."""
    run = (
        f"import runpy, sys; sys.path.insert(0, {str(MUTANTS)!r}); sys.argv = ['mutants', "
        f"*{words!r}]\n{first}\nrunpy.run_path({str(MUTANTS)!r}, run_name='__main__')"
    )
    ran = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def misfits(rows: str, root: str = "copies.HERE") -> str:
    """What `require_fitting` says of *rows*; nothing if all of them fit."""
    said = (
        f"import sys; sys.path.insert(0, {str(MUTANTS)!r})\n"
        f"import copies\nfrom mutant import TableError, of, require_fitting\n"
        f"from pathlib import Path\nfrom table import MUTANTS\n"
        f"try: require_fitting({rows}, {root})\nexcept TableError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", said], check=True, capture_output=True, text=True)
    return ran.stdout


def test_every_row_of_the_table_fits_the_tree() -> None:
    assert misfits("MUTANTS") == ""


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "of('a.py', 'a.py', wide=('15', '16'))",
            "a.py must have the text of wide once, not 0 times: '15'; change the row, or put "
            "another one in its place",
        ),
        (
            "of('a.py', 'a.py', wide=('t', 's'))",
            "a.py must have the text of wide once, not 3 times: 't'; change the row, or put "
            "another one in its place",
        ),
        (
            "of('a.py', 'a.py', wide=('16', '(16'))",
            "wide must leave a.py Python, but it does not: '(' was never closed; change what the "
            "text becomes",
        ),
        (
            "of('a.py', 'a.py::test_width', wide=('16', '15'))",
            "wide must name tests that there are, not a.py::test_width; name those that took its "
            "place",
        ),
        (
            "2 * of('a.py', 'a.py::width', wide=('16', '15'))",
            "a name must be that of one row, not of 2, as wide; rename one",
        ),
    ],
)
def test_a_row_that_does_not_fit_is_reported(row: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(CHANGED)
    assert misfits(row, f"Path({str(tmp_path)!r})") == f"mutants: {message}\n"


def test_a_name_that_no_mutant_has_is_refused() -> None:
    code, said = ended("--only", "nobody")
    assert code == 1
    assert said.startswith("mutants: --only must name a mutant, not nobody; the names are those ")


@pytest.mark.nightly
@pytest.mark.skipif(not is_built(), reason="the engine is not compiled here")
@pytest.mark.parametrize("name", ["last_period_left_out", "c_flag_before_results"])
def test_a_mutant_is_caught(name: str) -> None:
    code, said = ended("--only", name)
    assert code == 0, said
    assert said.startswith(f"{name}: caught by tests/timing/")
    assert said.endswith("1 mutants, 0 survived\n")


@pytest.mark.nightly
@pytest.mark.skipif(not is_built(), reason="the engine is not compiled here")
def test_more_survivors_than_are_allowed_are_a_failure() -> None:
    path, text = "npusim/timing/banks.py", "Bank conflicts of the unified buffer"
    rows = f"of({path!r}, 'tests/timing/test_banks.py', **{{f'row_{{n}}': ({text!r}, f'{{n}}')"
    planted = f"import table; from mutant import of\ntable.MUTANTS = {rows} for n in range(6)}})"
    code, said = ended("--jobs", "2", first=planted)
    assert code == 1, said
    assert said.endswith("6 mutants, 6 survived\n")
    survivor = f"  {path}:1\n  - {text}\n  + 5\n  tests/timing/test_banks.py\n"
    assert survivor in said
