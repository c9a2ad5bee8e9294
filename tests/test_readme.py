"""Everything that the README shows is run as it stands."""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import npusim_says
from consoles import PAGES, ROOT, Console, consoles, held, needs_torch

README = (ROOT / "README.md").read_text(encoding="utf-8")
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
ACCURACY = ROOT / "docs" / "accuracy.md"
SPEED = ROOT / "docs" / "speed.md"
MOST_BYTES = 12 * 1024
"""A README is read at one sitting."""


def blocks(text: str) -> list[str]:
    """The blocks of shell commands of a page."""
    found = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [block.strip() for block in found]


MAIN, TESTS = blocks(README)
(CLI,) = blocks(TOUR)
LANDING = ROOT / "docs" / "index.md"


def shell(command: str, folder: Path) -> str:
    """What *command* prints, run in *folder* with this environment's npusim first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_a_readme_is_short(name: str) -> None:
    assert (ROOT / name).stat().st_size <= MOST_BYTES


def test_the_site_begins_with_the_commands_of_the_readme() -> None:
    """It shows the page of the second one."""
    assert blocks(LANDING.read_text(encoding="utf-8")) == [MAIN]


PAGES_IN_PYTHON = [
    "README.md",
    *(f"docs/{page}.md" for page in ("models", "profile", "questions", "sweeps")),
]


@pytest.mark.parametrize("name", [*PAGES_IN_PYTHON, "docs/tour.md"])
def test_a_page_in_python_gives_what_it_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / name).read_text(encoding="utf-8")
    tour = doctest.DocTestParser().get_doctest(page, {}, name, None, 0)
    answers: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(tour, out=answers.append)
    assert len(tour.examples) > 3
    assert "".join(answers) == ""


def test_the_chip_of_the_tour_loads(tmp_path: Path) -> None:
    (chip,) = re.findall(r"^```toml\n(.*?)^```", TOUR, re.DOTALL | re.MULTILINE)
    (tmp_path / "chip.toml").write_text(chip, encoding="utf-8")
    command = "npusim devices show chip.toml --sources"
    assert re.search(r"read_bytes_per_s +3\.1 TB/s +assumed +what if", shell(command, tmp_path))


def test_the_command_lines_run_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """One after the other in one folder; in this process, which has all of npusim loaded."""
    monkeypatch.chdir(tmp_path)
    assert CLI.splitlines()
    for command in CLI.splitlines():
        with subtests.test(command):
            program, *words = shlex.split(command)
            assert program == ".venv/bin/npusim"
            answer = npusim_says(*words)
            assert (answer.code, bool(answer.out)) == (0, True)


def is_slow(console: Console) -> bool:
    """Whether it times several steps of a model, or measured kernels."""
    slow = "sweep benchmarks/published_steps/", "validate"
    return console.page == "docs/questions.md" and console.command.startswith(
        tuple(f".venv/bin/npusim {words}" for words in slow)
    )


@pytest.mark.parametrize(
    "slow", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["quick", "slow"]
)
def test_every_console_answers_as_shown(
    slow: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
    pytestconfig: pytest.Config,
) -> None:
    """Those of PyTorch scripts are run by tests/torch/test_torch_readme.py."""
    # A busy machine takes long enough for lines of progress, which pages do not show.
    monkeypatch.setattr("npusim.cli.progress.LINE_EVERY_S", 3600.0)
    monkeypatch.chdir(tmp_path)
    for folder in ("benchmarks", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    shown = [console for console in consoles() if not needs_torch(console)]
    pages = [
        "README.md",
        *(f"docs/{page}.md" for page in ("profile", "questions", "sweeps", "tour")),
    ]
    assert list(dict.fromkeys(console.page for console in shown)) == pages
    for console in shown:
        if is_slow(console) != slow:
            continue
        with subtests.test(console.command):
            program, *words = shlex.split(console.command)
            assert program == ".venv/bin/npusim"
            answer = npusim_says(*words)
            assert (answer.code, answer.err) == (0, "")
            held(console, answer.out, update=pytestconfig.getoption("--update-golden"))


def test_no_console_is_overlooked() -> None:
    """A block in a list or with another prompt would be run by nobody."""
    fences = sum(page.read_text(encoding="utf-8").count("```console") for page in PAGES)
    prompts = sum(
        len(re.findall(r"^ *\$ ", page.read_text(encoding="utf-8"), re.MULTILINE)) for page in PAGES
    )
    assert len(consoles()) == fences == prompts


COUNTS = {0: "{} kernels measured on cards", 1: "measured times of {} kernels"}
"""How many rows there are, and how many are timed."""


def test_the_table_of_errors_is_that_of_the_calibration(pytestconfig: pytest.Config) -> None:
    """Its times ship; tests/validation/test_simulated.py holds them against the simulator."""
    numbers = shell(f"python {ROOT / 'benchmarks' / 'calibration.py'}", ROOT).rstrip("\n")
    page = ACCURACY.read_text(encoding="utf-8")
    shown = re.search(r"^```text\n(family .*?)\n```", page, re.DOTALL | re.MULTILINE)
    assert shown is not None
    rows = [line.split() for line in numbers.splitlines()[2:] if not line.startswith(" ")]
    counts = [sum(int(row[place]) for row in rows) for place in (1, 2)]
    if pytestconfig.getoption("--update-golden"):
        text = page.replace(shown[1], numbers)
        for counted, words in COUNTS.items():
            text = re.sub(words.format(r"\d+"), words.format(counts[counted]), text)
        ACCURACY.write_text(text, encoding="utf-8")
        return
    assert shown[1] == numbers
    for counted, words in COUNTS.items():
        assert words.format(counts[counted]) in page


def test_the_errors_of_the_readme_are_those_of_the_calibration(
    pytestconfig: pytest.Config,
) -> None:
    table = shell(f"python {ROOT / 'benchmarks' / 'calibration.py'} --summary", ROOT)
    path = ROOT / "README.md"
    # Consoles of the page may just have been renewed, so it is read again.
    before, begin, rest = path.read_text(encoding="utf-8").partition("<!-- accuracy -->\n\n")
    shown, end, after = rest.partition("\n<!-- end of accuracy -->\n")
    if pytestconfig.getoption("--update-golden"):
        path.write_text(before + begin + table + end + after, encoding="utf-8")
        return
    assert shown == table


def test_the_example_prints_what_the_document_prints(tmp_path: Path) -> None:
    printed = shell(f"python {ROOT / 'examples' / 'quantize.py'} pictures", tmp_path)
    assert "72 of 72 values are those that the document prints" in printed
    assert "12 of 12 values are those that the document prints" in printed
    assert (tmp_path / "pictures" / "timeline.png").stat().st_size > 10_000


def test_the_kernels_of_a_weight_run_side_by_side(tmp_path: Path) -> None:
    printed = shell(f"python {ROOT / 'examples' / 'weight_quant.py'} pictures", tmp_path)
    assert "custom: per-channel int8 with m = 8192 that no other kernel takes" in printed
    assert re.findall(r"^(\S.*?) +\d+\.\d+ us  \d\.\de-04$", printed, re.MULTILINE) == [
        "msd", "custom", "nz_splitk", "matmul, fp16",
    ]  # fmt: skip
    assert (tmp_path / "pictures" / "weight_quant.png").stat().st_size > 10_000


def test_a_layer_of_experts_begins_with_what_the_document_prints(tmp_path: Path) -> None:
    printed = shell(f"python {ROOT / 'examples' / 'grouped_products.py'}", tmp_path)
    assert "24 of 24 values are those that the document prints" in printed
    assert re.findall(r"^(npu_\w+): (\w+) (\(.*\)), \d+\.\d+ us$", printed, re.MULTILINE) == [
        ("npu_group_quant", "int8", "(6, 4)"),
        ("npu_trans_quant_param", "int64", "(4, 16)"),
        ("npu_grouped_matmul", "int8", "(6, 16)"),
    ]


def test_a_layer_of_experts_runs_from_gate_to_answers(tmp_path: Path) -> None:
    printed = shell(f"python {ROOT / 'examples' / 'mixture_of_experts.py'} pictures", tmp_path)
    assert re.findall(r"^(npu_\w+) +\d+\.\d+ us", printed, re.MULTILINE) == [
        "npu_moe_gating_top_k", "npu_moe_init_routing_v2", "npu_grouped_matmul", "npu_swiglu",
        "npu_dynamic_quant", "npu_grouped_matmul", "npu_moe_finalize_routing",
    ]  # fmt: skip
    assert re.search(r"largest error / largest value: \d\.\de-02$", printed, re.MULTILINE)
    assert (tmp_path / "pictures" / "mixture_of_experts.png").stat().st_size > 10_000


def tracked_copy(folder: Path) -> Path:
    """A clone of the project as it stands, links included."""
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    subprocess.run(
        ["tar", "--null", "-cf", folder / "all.tar", "-T", "-"], cwd=ROOT, input=files, check=True
    )
    copy = folder / "npusim"
    copy.mkdir()
    subprocess.run(["tar", "-xf", folder / "all.tar", "-C", copy], check=True)
    return copy


@pytest.mark.nightly
def test_the_first_commands_run_on_a_fresh_clone(tmp_path: Path) -> None:
    install, _ = MAIN.splitlines()
    assert install.endswith(".venv/bin/pip install -q .")
    printed = shell(MAIN, tracked_copy(tmp_path))
    assert re.search(r"^time +\d+\.\d+ us in 2 launches", printed, re.MULTILINE)
    assert "advice  scale = npu_trans_quant_param(scale) once" in printed


def rows_of(printed: str) -> list[str]:
    """The lines of a benchmark without its numbers, which are this machine's."""
    return [" ".join(re.sub(r"\d+(\.\d+)?", "#", line).split()) for line in printed.splitlines()]


def stored(benchmark: str) -> Path:
    """What *benchmark* printed when it ran alone on a machine."""
    return ROOT / "benchmarks" / f"{benchmark}.txt"


@pytest.mark.parametrize("benchmark", ["speed", "sweeps"])
def test_the_tables_of_speed_are_those_that_benchmarks_printed(
    benchmark: str, pytestconfig: pytest.Config
) -> None:
    page, printed = SPEED.read_text(encoding="utf-8"), stored(benchmark).read_text(encoding="utf-8")
    begins = re.escape(printed[:3])
    shown = re.search(rf"^```text\n({begins}.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert shown is not None
    if pytestconfig.getoption("--update-golden"):
        SPEED.write_text(page.replace(shown[1], printed), encoding="utf-8")
        return
    assert shown[1] == printed


@pytest.mark.nightly
@pytest.mark.parametrize("words", ["speed.py", "sweeps.py --cells 80"], ids=["speed", "sweeps"])
def test_a_benchmark_prints_its_ratios(words: str) -> None:
    printed = shell(f"python benchmarks/{words}", ROOT)
    expected = stored(words.partition(".")[0]).read_text(encoding="utf-8")
    assert rows_of(printed) == rows_of(expected)


def test_the_ratios_are_those_of_the_benchmark() -> None:
    short = README.partition("## How fast\n")[2].partition("\n## ")[0]
    assert "(docs/speed.md)" in short
    ratios = re.findall(r"\b\d+\.\d+\b", short)
    assert len(ratios) > 4
    printed = "".join(stored(each).read_text(encoding="utf-8") for each in ("speed", "sweeps"))
    assert [ratio for ratio in ratios if not re.search(rf" {re.escape(ratio)} x ", printed)] == []


def test_the_test_command_is_what_ci_runs() -> None:
    assert TESTS.endswith(".venv/bin/pytest -q -n 2")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    found = subprocess.run(
        ["bash", "-c", script.split("\n\n")[1].splitlines()[0] + '\nprintf %s "$tests"'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == TESTS
