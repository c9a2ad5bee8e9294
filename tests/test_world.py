"""What a run over code of others says: outcomes, counts, changes, and cases that pytest reports."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")


def _loaded() -> ModuleType:
    file = Path(__file__).parent.parent / "benchmarks" / "world.py"
    spec = importlib.util.spec_from_file_location("world", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["world"] = module
    sys.path.append(str(file.parent))
    spec.loader.exec_module(module)
    return module


world = _loaded()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (
            NotImplementedError("torch_npu.X: it must be simulated to be called, but is not"),
            "refused",
        ),
        ("RuntimeError: npu_swiglu: NPU function error: call aclnnSwiGlu failed", "refused"),
        (AssertionError("Tensor-likes are not close!"), "wrong"),
        (TypeError("unsupported operand"), "failed"),
    ],
)
def test_an_error_is_a_refusal_a_wrong_value_or_a_failure(
    error: BaseException | str, outcome: str
) -> None:
    assert world.outcome_of(error) == outcome


CASES = {
    "a": world.Case("passed", 3, 1),
    "b": world.Case("refused", 0, 2, "it is not"),
    "c": world.Case("skipped"),
}


def test_a_line_counts_what_ran() -> None:
    assert world.summary("opinfo", CASES) == (
        "opinfo: 50.0 % of 2 cases passed (1 passed, 1 refused, 1 skipped); 3 launches timed, 3 "
        "operations not"
    )
    assert world.summary("none", {}) == (
        "none: none of 0 cases passed (nothing); 0 launches timed, 0 operations not"
    )


def test_changes_name_what_is_worse_first() -> None:
    now = {
        "a": world.Case("wrong", words="2 and not 3"),
        "b": world.Case("passed"),
        "c": CASES["c"],
    }
    assert world.changes(CASES, now) == [
        "a: passed -> wrong: 2 and not 3",
        "b: refused -> passed",
    ]
    assert world.changes(CASES, {}) == [
        "a: passed -> absent", "b: refused -> absent", "c: skipped -> absent",
    ]  # fmt: skip


def test_results_are_compared_with_those_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.report("some", CASES, tmp_path)
    assert world.load(tmp_path / "some.json") == CASES
    world.report("some", {**CASES, "a": world.Case("failed", words="oh")}, tmp_path)
    first, second, change = capsys.readouterr().out.splitlines()
    assert first.startswith("some: 50.0 % of 2 cases passed")
    assert second.startswith("some: 0.0 % of 2 cases passed")
    assert change == "  a: passed -> failed: oh"
    assert [each.name for each in tmp_path.iterdir()] == ["some.json"]


TESTS = """
import pytest, torch, torch_npu

def test_launches():
    assert (torch.ones(64, device="npu") * 2).sum().item() == 128

def test_is_refused():
    torch_npu.matmul_checksum(1)

def test_is_wrong():
    torch.testing.assert_close(torch.ones(2), torch.zeros(2))

@pytest.mark.skip(reason="of no use")
def test_is_left_out():
    pass

def test_has_what_the_script_sets_up():
    assert torch_npu.npu.are_compatible_impl_enabled()

def test_zz_ends_the_process():
    import os
    os._exit(1)

if __name__ == "__main__":
    torch_npu.npu.use_compatible_impl(True)
    main()
"""


TORCHVISION = """
import torch

for name in ("nms", "qnms"):
    torch.library.register_fake(f"torchvision::{name}", lambda dets, scores, iou_threshold: dets)
"""
"""What the package does when its library does not load."""


@pytest.mark.nightly
def test_processes_that_tests_start_have_a_card_and_torchvision(tmp_path: Path) -> None:
    (tmp_path / "torchvision.py").write_text(TORCHVISION)
    code = f"{world.START}; import torchvision, torch_npu; print(torch_npu.npu.is_available())"
    paths = os.pathsep.join((str(Path(world.__file__).parent), str(tmp_path)))
    for variables, words in (({world.RECORD: "cases"}, "True"), ({}, "nms does not exist")):
        ran = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | variables | {"PYTHONPATH": paths},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert words in ran.stdout + ran.stderr


@pytest.mark.nightly
def test_tests_of_others_become_cases(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(TESTS)
    (tmp_path / "test_broken.py").write_text("import nothing_of_that_name\n")
    results = tmp_path / "results"
    results.mkdir()
    files = sorted(tmp_path.glob("test_*.py"))
    found = world.run_tests(files, tmp_path, results, environment={"HOME": os.environ["HOME"]})
    outcomes = {name.partition("::")[2] or name: case.outcome for name, case in found.items()}
    assert outcomes == {
        "test_broken.py": "failed",
        "test_launches": "passed",
        "test_is_refused": "refused",
        "test_is_wrong": "wrong",
        "test_is_left_out": "skipped",
        "test_has_what_the_script_sets_up": "passed",
        "test_zz_ends_the_process": "failed",
    }
    assert found["test_theirs.py::test_zz_ends_the_process"].words == world.UNENDED
    assert found["test_theirs.py::test_launches"].timed >= 2
    assert found["test_theirs.py::test_is_refused"].words.startswith(
        "NotImplementedError: torch_npu.matmul_checksum: it must be simulated to be called"
    )


@pytest.mark.nightly
def test_samples_of_an_operation_are_timed_and_right() -> None:
    found = world.opinfo(["mul"])
    assert {case.outcome for case in found.values()} == {"passed"}
    assert "mul[float32-1]" in found
    assert all(case.timed for case in found.values())
