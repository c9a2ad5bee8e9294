"""What is built holds what it must, and the links at the root stay links."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import uv

import npusim

ROOT = Path(__file__).parent.parent

WHERE_DEPENDENCIES_SHOW = ["cli", "data", "devices", "exports", "reports", "run", "trace"]
"""Folders of tests of the parts that call matplotlib, pydantic, rich, typer and ml_dtypes."""


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="links are kept by git, not by an sdist")
@pytest.mark.parametrize("part", ["ops", "devices", "reports"])
def test_the_root_shows_the_parts_by_links(part: str) -> None:
    assert (ROOT / part).is_symlink()
    assert (ROOT / part).readlink() == Path("npusim") / part


def test_the_public_names_exist_and_are_sorted() -> None:
    assert npusim.__all__ == sorted(npusim.__all__)
    assert all(hasattr(npusim, name) for name in npusim.__all__)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist, and with the wheel built from it."""
    folder = tmp_path_factory.mktemp("built")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, capture_output=True
    )
    return folder


@pytest.mark.nightly
def test_the_wheel_built_from_the_sdist_holds_every_file(built: Path) -> None:
    """All but the sources of the compiled engine, which are built there, and what comes of them."""
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    left_out = {".c", ".h", ".so", ".pyc"}
    files = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "npusim").rglob("*")
        if path.is_file() and path.suffix not in left_out
    }
    assert {"npusim/py.typed", "npusim/reports/page.js", "npusim/devices/ascend910b2.toml"} <= files
    assert files - set(names) == set()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"npusim"}


@pytest.mark.nightly
def test_the_tests_of_the_sdist_pass_on_the_lowest_versions(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(*words: str) -> None:
        ran = subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]

    python = str(tree / ".venv" / "bin" / "python")
    lowest = ["--resolution", "lowest-direct"]
    call(uv.find_uv_bin(), "venv", "-q", "--python", sys.executable, str(tree / ".venv"))
    call(uv.find_uv_bin(), "pip", "install", "-q", "--python", python, *lowest, "-e", ".[test]")
    folders = [f"tests/{folder}" for folder in WHERE_DEPENDENCIES_SHOW]
    # Old versions of our dependencies use what newer versions of theirs call deprecated.
    call(python, "-m", "pytest", "-q", "-x", "-W", "ignore::DeprecationWarning", *folders)


def test_numpy_has_one_thread_in_tests_and_what_they_start() -> None:
    threads = "import numpy, os; numpy.ones((512, 512)) @ numpy.ones((512, 512)); "
    threads += "print(len(os.listdir('/proc/self/task')))"
    ran = subprocess.run([sys.executable, "-c", threads], check=True, capture_output=True)
    assert ran.stdout.split() == [b"1"]
