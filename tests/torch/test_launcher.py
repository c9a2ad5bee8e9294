"""The launcher, the pytest plugin and install(): who answers for torch_npu, and when."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

import npusim.torch
from npusim.torch import stand_ins
from npusim.torch.__main__ import main, split
from npusim.trace import model

ROOT = Path(npusim.__file__).parent.parent
NEEDS_TORCH = pytest.mark.skipif(
    "torch" not in {found.metadata["Name"] for found in metadata.distributions()},
    reason="PyTorch is not installed: pip install 'npusim[torch]'",
)
REAL = "print('the real torch_npu')\n"


def python(
    *words: str, path: Path | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    folders = [str(ROOT), *([str(path)] if path else [])]
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "own", "theirs"),
    [
        ("-q script.py -q --device x", "-q", "script.py -q --device x"),
        ("--device d --trace t -m pytest -q", "--device d --trace t", "-m pytest -q"),
        ("--device=d -c code a", "--device=d", "-c code a"),
        ("--report r net.py --report s", "--report r", "net.py --report s"),
        ("--help", "--help", ""),
    ],
)
def test_words_after_the_script_are_its_own(words: str, own: str, theirs: str) -> None:
    assert split(words.split()) == (own.split(), theirs.split())


def test_a_script_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["-q", "-m"])
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == (
        "python -m npusim.torch: error: there must be a script, -m module or -c code, "
        "but there is none; name one"
    )


def test_a_script_must_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["missing.py"])
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == (
        "python -m npusim.torch: error: the script must be a file, not missing.py; check the path"
    )


def test_an_unknown_device_ends_the_launcher(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^1$"):
        main(["--device", "ascend42", "-c", "pass"])
    assert capsys.readouterr().err.startswith("npusim: devices: no device 'ascend42'; ")


def test_importing_npusim_imports_no_torch() -> None:
    code = "import sys, npusim, npusim.torch; print({'torch', 'torch_npu'} & set(sys.modules))"
    assert python("-c", code).stdout == "set()\n"


@pytest.mark.parametrize("version", [None, "2.10.1"])
def test_torch_must_be_there_and_new(version: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(_: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError
        return version

    monkeypatch.setattr(metadata, "version", find)
    message = (
        f"npusim.torch: torch must be 2.11 or newer, not {version or 'none'}; "
        "install it with: pip install 'npusim[torch]'"
    )
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        stand_ins.check_torch()


def test_a_real_package_that_is_imported_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModuleType("torch_npu")
    real.__file__ = "/site/torch_npu.py"
    monkeypatch.setitem(sys.modules, "torch_npu", real)
    message = (
        "npusim.torch: torch_npu must not be imported before install(), but is already imported "
        "from /site/torch_npu.py; start a new process and call install() first"
    )
    for shadow in (False, True):
        with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
            stand_ins.check_free(shadow)


@pytest.mark.nightly
@NEEDS_TORCH
def test_only_the_launcher_hides_a_real_package(tmp_path: Path) -> None:
    (tmp_path / "torch_npu.py").write_text(REAL)
    assert python("-c", "import npusim.torch, torch_npu", path=tmp_path).stdout == (
        "the real torch_npu\n"
    )
    refused = python("-c", "import npusim.torch as t; t.install()", path=tmp_path)
    assert refused.stdout == ""
    assert refused.stderr.splitlines()[-1] == (
        "RuntimeError: npusim.torch: a real torch_npu must not be hidden, but there is one at "
        f"{tmp_path}/torch_npu.py; start the script with python -m npusim.torch, "
        "or call install(shadow=True)"
    )
    code = "import torch_npu; print(torch_npu.__version__)"
    ran = python("-m", "npusim.torch", "-q", "-c", code, path=tmp_path)
    assert (ran.stdout, ran.stderr) == ("2.13.0+npusim\n", "")


@NEEDS_TORCH
def test_a_script_runs_as_under_python(tmp_path: Path) -> None:
    script, traces = tmp_path / "script.py", tmp_path / "traces"
    (tmp_path / "beside.py").write_text("NUMBER = 1\n")
    script.write_text(
        "import sys\n"
        "import beside, torch, torch_npu\n"
        "print(__name__, sys.argv, torch.full((2,), beside.NUMBER).npu().lgamma().tolist())\n"
        "sys.exit(5)\n"
    )
    words = ("--device", "Atlas 300I Pro", "--trace", str(traces), str(script), "-q", "more")
    ran = python("-m", "npusim.torch", *words)
    assert ran.stdout == f"__main__ {[str(script), '-q', 'more']} [0.0, 0.0]\n"
    assert ran.returncode == 5
    first, last = ran.stderr.splitlines()
    assert first == "npusim: simulating Ascend310P3"
    assert last == (
        "npusim: 0.00 us simulated in 0 launches; coverage 0 %: 0 of 1 kernel timed; 1 runs on the "
        "host in zero time, so that the total is a lower bound: 1 x aten.lgamma.default"
    )
    trace = json.loads((traces / "trace_view.json").read_text())
    names = [event["name"] for event in trace["traceEvents"]]
    assert "aten.lgamma.default" in names
    again = python("-m", "npusim.torch", *words)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr == (
        f"npusim: npusim.torch: {traces}/trace_view.json must be a new file, but there is one; "
        f"name another, or add --force to replace it\n"
    )


MODEL = """
import os, torch, torch_npu
net = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.ReLU()).half().npu()
os.chdir("/")
with torch.no_grad():
    net(torch.ones(16, 64).half().npu())
"""


@NEEDS_TORCH
def test_a_report_is_left_in_a_new_folder(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    words = ("-m", "npusim.torch", "--shapes", "--report", "out", "net.py")
    ran = python(*words, folder=tmp_path)
    assert ran.returncode == 0
    run = model.read(tmp_path / "out")
    assert (run.title, run.device) == ("net.py", "Ascend910B2")
    assert [(launch.module, launch.kernel.op) for launch in run.launches] == [
        ("Sequential.0", "matmul"),
        ("Sequential.1", "relu"),
    ]
    _, wrote, told, *_ = ran.stderr.splitlines()
    assert wrote == f"npusim: wrote report.html and 10 more to {tmp_path}/out"
    assert told.startswith(f"npusim: {run.time_us:.2f} us simulated in 2 launches; ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.py", "out"]


@pytest.mark.nightly
@NEEDS_TORCH
def test_a_script_that_fails_leaves_what_it_did(tmp_path: Path) -> None:
    code = f"{MODEL}\nraise ValueError('enough')"
    ran = python("-m", "npusim.torch", "-q", "--report", "out", "-c", code, folder=tmp_path)
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (1, "ValueError: enough")
    assert len(model.read(tmp_path / "out").launches) == 2


@pytest.mark.nightly
@NEEDS_TORCH
def test_a_module_of_the_same_packages_that_is_not_modelled_says_so() -> None:
    ran = python("-m", "npusim.torch", "-q", "-c", "import torch_npu.made_up")
    assert ran.stderr.splitlines()[-2:] == [
        "ModuleNotFoundError: No module named 'torch_npu.made_up'",
        "npusim.torch: an import must name a part that is modelled, not torch_npu.made_up; "
        "do without it",
    ]


@pytest.mark.nightly
@NEEDS_TORCH
def test_pytest_runs_on_the_card(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import torch, torch_npu\n"
        "def test_it():\n"
        "    assert torch.npu.get_device_name() == 'Ascend910B4'\n"
    )
    words = ("-p", "npusim.torch.pytest_plugin", "--npu-device", "Atlas 800I A2")
    ran = python("-m", "pytest", *words, "--rootdir", str(tmp_path), str(tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "npusim: simulating Ascend910B4\n" in ran.stdout
    wrong = python(
        "-m", "pytest", *words[:3], "ascend42", "--rootdir", str(tmp_path), str(tmp_path)
    )
    assert wrong.returncode == 4
    assert wrong.stderr.startswith("ERROR: devices: no device 'ascend42'; ")
