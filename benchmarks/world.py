"""Code that nobody here wrote, on a simulated card: what passes, what is refused, what has changed.

::

    python benchmarks/world.py --results DIR --opinfo
    python benchmarks/world.py --results DIR --op-plugin PATH --transformers PATH
    python benchmarks/world.py --results DIR --vllm-ascend PATH --vllm 0.27.1

Four suites, each with what it needs:

* `--opinfo`: PyTorch's samples of its own operations, for those that npusim times;
* `--op-plugin PATH`: the vendor's tests of its operators, from a checkout of op-plugin;
* `--transformers PATH`: transformers' own tests of ten models, from a checkout of the version that
  is installed here;
* `--vllm-ascend PATH`: the unit tests of vllm-ascend, from a checkout, on the vllm of the package
  index that pip is set up for. An environment with it is made in the folder of the results once;
  torch and npusim are those that run this.

Each test is a case: it passed, was refused by npusim in words, gave a wrong value, failed otherwise
(which is also what has not come to an end), or was skipped, as a card would skip it: it is for
others, for several, or for a later CANN. Shares are of those that were not skipped. Launches are
those that ran on the card with a time, and operations that had none. The cases of each suite are
written to DIR as JSON, and what differs from the file before is printed. Nothing is fetched but
packages by pip, and nothing of others is written outside of DIR.
Configurations of models that tests of vllm-ascend ask for are those in the cache of huggingface.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from closeness import difference, in_float32, rounded
from vllm_environment import made_environment

__all__ = ["Case", "changes", "main", "outcome_of", "summary"]

PASSED, REFUSED, WRONG, FAILED, SKIPPED = "passed", "refused", "wrong", "failed", "skipped"
OUTCOMES = (PASSED, REFUSED, WRONG, FAILED, SKIPPED)
REFUSALS = (
    *("must be simulated to be called", "npusim", "is not modelled", "must not need a value"),
    *("NPU function error", "Could not run 'npu::"),
)
"""What the words of npusim have, by which it refuses a call."""
WRONG_VALUES = ("Tensor-likes are not close", "not equal", "AssertionError: False is not true")
"""The same of comparisons of values."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test of others, or one sample of an operation."""

    outcome: str
    timed: int = 0
    """Launches that ran on the card with a time."""
    untimed: int = 0
    """Operations that a card would launch and that had none."""
    words: str = ""
    """What it said, unless it passed."""


def outcome_of(error: BaseException | str) -> str:
    """Whether *error*, or its text, refuses, or says of a wrong value, or is another failure."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    if any(words in text for words in REFUSALS):
        return REFUSED
    return WRONG if any(words in text for words in WRONG_VALUES) else FAILED


def summary(suite: str, cases: Mapping[str, Case]) -> str:
    """One line of what the cases of *suite* came to."""
    counts = Counter(case.outcome for case in cases.values())
    run = len(cases) - counts[SKIPPED]
    share = f"{100 * counts[PASSED] / run:.1f} %" if run else "none"
    each = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
    timed, untimed = (
        sum(getattr(case, of) for case in cases.values()) for of in ("timed", "untimed")
    )
    launches = f"{timed} launches timed, {untimed} operations not"
    return f"{suite}: {share} of {run} cases passed ({each or 'nothing'}); {launches}"


def changes(before: Mapping[str, Case], after: Mapping[str, Case]) -> list[str]:
    """A line for each case whose outcome differs, worse ones first."""
    lines = []
    for name in sorted(before.keys() | after.keys()):
        was = before[name].outcome if name in before else "absent"
        now = after[name].outcome if name in after else "absent"
        if was != now:
            words = after[name].words if name in after else ""
            lines.append((was != PASSED, f"{name}: {was} -> {now}{f': {words}' if words else ''}"))
    return [line for _, line in sorted(lines)]


# ---- files of results ----


def load(file: Path) -> dict[str, Case]:
    """The cases that *file* has; none where there is no file."""
    if not file.is_file():
        return {}
    return {name: Case(**each) for name, each in json.loads(file.read_text("utf-8")).items()}


def report(suite: str, cases: Mapping[str, Case], results: Path) -> None:
    """Print what *cases* came to and what has changed, and write them."""
    file = results / f"{suite}.json"
    before = load(file)
    print(summary(suite, cases), flush=True)
    for line in changes(before, cases) if before else ():
        print(f"  {line}", flush=True)
    text = json.dumps({name: asdict(case) for name, case in cases.items()}, indent=1)
    # Whole or not at all: the next comparison rests on it.
    fresh = file.with_suffix(".fresh")
    fresh.write_text(text + "\n", encoding="utf-8")
    fresh.replace(file)


# ---- PyTorch's samples ----

DTYPES = ("float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")
MOST_SAMPLES = 8
"""Of an operation in a type: they begin with the plainest."""
NOT_COMPARED = {
    "as_strided": "its samples look at memory next to the tensor, which is not copied along",
    "tensor_split": "it wants its indices on the CPU, on every device",
    "nn.functional.gelu": "the card's kernel is the tanh form, whatever it is asked for",
    **dict.fromkeys(
        (
            "empty",
            "empty_like",
            "empty_permuted",
            "empty_strided",
            "new_empty",
            "new_empty_strided",
        ),
        "its result is memory that nobody has written",
    ),
}
"""Operation -> why its values are not held against the CPU's."""
WITH_STATISTICS = ("native_batch_norm", "native_layer_norm")
"""Operations that give mean and deviation in float32 on a card, also of half types."""


def opinfo(names: Iterable[str] = ()) -> dict[str, Case]:
    """A case for each sample whose call launched something with a time; of all or those *names*."""
    import npusim.torch

    npusim.torch.install()
    # Torch's samples come with a profile of hypothesis.
    os.environ.setdefault("PYTORCH_HYPOTHESIS_PROFILE", "default")
    from torch.testing._internal.common_methods_invocations import op_db

    wanted, found = set(names), {}
    for op in op_db:
        if op.name in NOT_COMPARED or (wanted and op.name not in wanted):
            continue
        for name, case in _samples(op):
            if case.timed or case.outcome not in (PASSED, SKIPPED):
                found[name] = case
    return found


def _samples(op: Any) -> Iterator[tuple[str, Case]]:
    """The samples of an operation of torch, by name."""
    import warnings

    import torch

    for dtype in DTYPES:
        of_torch = getattr(torch, dtype)
        if of_torch not in op.supported_dtypes("cpu"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            samples = list(op.sample_inputs("cpu", of_torch))[:MOST_SAMPLES]
            for number, sample in enumerate(samples):
                case = _sample(op, sample)
                if case is not None:
                    yield f"{op.formatted_name}[{dtype}-{number}]", case


def _sample(op: Any, sample: Any) -> Case | None:
    """What the card makes of *sample*; None where the CPU refuses it, and of sparse tensors."""
    import torch
    from torch.utils._pytree import tree_map

    from npusim.torch.clock import clock

    def on_npu(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().npu()
        return torch.device("npu") if isinstance(value, torch.device) else value

    try:
        given = tree_map(on_npu, (sample.input, sample.args, sample.kwargs))
        torch.manual_seed(0)
        want = op(sample.input, *sample.args, **sample.kwargs)
    except Exception:
        return None
    kernels, untimed = clock.kernels, clock.not_timed.total()
    try:
        torch.manual_seed(0)
        got = op(given[0], *given[1], **given[2])
        words = difference(rounded(got, want) if op.name in WITH_STATISTICS else got, want)
        if words.startswith("values"):
            # A card computes half types in float32, and rounds once; the CPU may round each step.
            words = difference(got, rounded(in_float32(op, sample), got)) and words
        outcome = WRONG if words else PASSED
    except Exception as error:
        outcome, words = outcome_of(error), str(error).splitlines()[-1][:200] if str(error) else ""
    launches = clock.kernels - kernels, clock.not_timed.total() - untimed
    return Case(outcome, *launches, words)


# ---- tests of others, by pytest ----

RECORD = "NPUSIM_WORLD_RECORD"
"""Variable of the environment: the file that the plugin below writes cases to, a line each."""
FILE_SECONDS = 900
"""After so long a file of tests is ended, and what has not come to an end counts as failed."""
UNENDED = "it did not come to an end"


def pytest_collection_finish(session: Any) -> None:
    """As a plugin of pytest: write the tests that there are, and set up what their scripts do."""
    for item in session.items:
        _write(item.nodeid, Case(FAILED, words=UNENDED))
    for file in {item.path for item in session.items}:
        _set_up(file)


def _set_up(file: Path) -> None:
    """Run what *file* does as a script before its tests: settings of the card, above all."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for block in tree.body:
        if not isinstance(block, ast.If) or "__main__" not in ast.unparse(block.test):
            continue
        calls = [each for each in block.body if "torch_npu.npu." in ast.unparse(each)]
        names = {"torch_npu": importlib.import_module("torch_npu")}
        exec(compile(ast.Module(calls, []), str(file), "exec"), names)


def _write(name: str, case: Case) -> None:
    with open(os.environ[RECORD], "a", encoding="utf-8") as file:
        file.write(json.dumps([name, asdict(case)]) + "\n")


def pytest_runtest_setup() -> None:
    """As a plugin of pytest: a test begins."""
    _counts["before"] = _launches()


def pytest_runtest_logreport(report: Any) -> None:
    """As a plugin of pytest: write the case of a test that has come to an end."""
    if report.when != "call" and report.outcome == "passed":
        return
    words = _words(str(report.longrepr or ""))
    outcome = report.outcome
    if outcome == "failed":
        # The lines of a traceback name files of npusim, whatever the error is.
        outcome = outcome_of(words)
    timed, untimed = (now - then for now, then in zip(_launches(), _counts["before"], strict=True))
    _write(report.nodeid, Case(outcome, timed, untimed, "" if outcome == PASSED else words))


def _words(text: str) -> str:
    """What pytest marks as the error in *text*, else its last line."""
    lines = text.strip().splitlines()
    errors = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
    return " ".join(errors or lines[-1:])[:400]


_counts = {"before": (0, 0)}


def _launches() -> tuple[int, int]:
    from npusim.torch.clock import clock

    return clock.kernels, clock.not_timed.total()


def run_tests(
    files: Iterable[Path],
    root: Path,
    results: Path,
    python: Path = Path(sys.executable),
    environment: Mapping[str, str] | None = None,
) -> dict[str, Case]:
    """The cases of the *files* of tests below *root*, each file in a process of its own."""
    record = results / "cases.jsonl"
    here = str(Path(__file__).parent)
    found: dict[str, Case] = {}
    for file in files:
        record.write_text("")
        variables = os.environ | {RECORD: str(record), "OPENBLAS_NUM_THREADS": "1"}
        variables |= dict(environment or {})
        variables["PYTHONPATH"] = os.pathsep.join((here, variables.get("PYTHONPATH", "")))
        name = str(file.relative_to(root))
        plugins = ("-p", "npusim.torch.pytest_plugin", "-p", "world")
        words = [str(python), "-m", "pytest", "-q", *plugins]
        with (results / "pytest.log").open("a") as log, suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [*words, "-p", "no:cacheprovider", "-o", "addopts=", name],
                cwd=root, env=variables, stdout=log, stderr=log, timeout=FILE_SECONDS, check=False,
            )  # fmt: skip
        cases = [json.loads(line) for line in record.read_text("utf-8").splitlines()]
        found |= {each: Case(**case) for each, case in cases}
        if not cases:
            found[name] = Case(FAILED, words="no test of this file came to an end: see pytest.log")
    record.unlink(missing_ok=True)
    return found


def op_plugin(checkout: Path, results: Path) -> dict[str, Case]:
    """The vendor's tests of base operators and of custom ones."""
    root = checkout / "test"
    files = [*root.glob("test_base_ops/test_*.py"), *root.glob("test_custom_ops/test_*.py")]
    return run_tests(sorted(files), root, results)


MODELS = (
    *("llama", "mistral", "qwen2", "qwen3", "qwen3_moe"),
    *("mixtral", "gemma3", "phi3", "bert", "deepseek_v3"),
)
"""Models of transformers whose tests are run."""


def transformers(checkout: Path, results: Path) -> dict[str, Case]:
    """transformers' own tests of ten models on npu."""
    files = [checkout / "tests" / "models" / name / f"test_modeling_{name}.py" for name in MODELS]
    variables = {
        "TRANSFORMERS_TEST_DEVICE": "npu",
        "TRANSFORMERS_TEST_BACKEND": "torch_npu",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(checkout),
    }
    return run_tests(files, checkout, results, environment=variables)


# ---- vllm-ascend ----


def vllm_ascend(checkout: Path, results: Path, vllm: str) -> dict[str, Case]:
    """The unit tests of vllm-ascend, as on a machine that has a card."""
    python = made_environment(RECORD, results / "environment", vllm)
    root = results / "vllm_ascend"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(checkout, root, ignore=shutil.ignore_patterns(".git"))
    # Its tests ask npu-smi for a card, its build says which one, and vllm asks what is installed.
    (root / "npu-smi").write_text("#!/bin/sh\nexit 0\n")
    (root / "npu-smi").chmod(0o755)
    (root / "vllm_ascend" / "_build_info.py").write_text("__device_type__ = 'A2'\n")
    made = root / "vllm_ascend-0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-ascend\nVersion: 0\n")
    plugin = "[vllm.platform_plugins]\nascend = vllm_ascend:register\n"
    (made / "entry_points.txt").write_text(plugin)
    tests = sorted((root / "tests" / "ut").rglob("test_*.py"))
    variables = {
        "PATH": os.pathsep.join((str(root), os.environ["PATH"])),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": str(results / "cache"),
        "PYTHONPATH": str(root),
    }
    return run_tests(tests, root, results, python, variables)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, required=True, help="the folder of all results")
    parser.add_argument("--opinfo", nargs="*", metavar="NAME", help="all operations, or these")
    parser.add_argument("--op-plugin", type=Path, metavar="PATH", help="a checkout of op-plugin")
    parser.add_argument("--transformers", type=Path, metavar="PATH", help="one of transformers")
    parser.add_argument("--vllm-ascend", type=Path, metavar="PATH", help="one of vllm-ascend")
    parser.add_argument("--vllm", default="0.27.1", help="the vllm for it (%(default)s)")
    asked = parser.parse_args()
    results = asked.results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    if asked.opinfo is not None:
        report("opinfo", opinfo(asked.opinfo), results)
    if asked.op_plugin:
        report("op_plugin", op_plugin(asked.op_plugin.resolve(), results), results)
    if asked.transformers:
        report("transformers", transformers(asked.transformers.resolve(), results), results)
    if asked.vllm_ascend:
        cases = vllm_ascend(asked.vllm_ascend.resolve(), results, asked.vllm)
        report("vllm_ascend", cases, results)


if __name__ == "__main__":
    main()
