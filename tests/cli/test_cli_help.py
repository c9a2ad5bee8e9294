"""What `npusim` alone and its help print fits a terminal of 80 columns, and can be copied."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import typer
from commands import npusim_says, refused

from npusim.cli import FIRST_STEPS, app

COLUMNS = 80
GROUP = typer.main.get_command(app)
COMMANDS = sorted(GROUP.list_commands(typer.Context(GROUP)))  # type: ignore[attr-defined]


def commands_in(text: str) -> list[list[str]]:
    """The words of each command of npusim in *text*, whose lines may end in a backslash."""
    lines = text.replace("\\\n", "").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("    npusim ")]


def test_npusim_alone_prints_five_things_to_try() -> None:
    assert npusim_says() == (0, FIRST_STEPS, "")
    assert max(map(len, FIRST_STEPS.splitlines())) <= COLUMNS
    assert len(commands_in(FIRST_STEPS)) == 5


def test_each_thing_to_try_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in commands_in(FIRST_STEPS):
        answer = npusim_says(*words)
        assert answer.code == 0, answer.err
    assert (tmp_path / "out/quantize.html").is_file()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_terminal_and_breaks_no_example(command: str) -> None:
    shown = npusim_says(command, "--help").out
    assert max(map(len, shown.splitlines())) <= COLUMNS
    assert all(words[0] == command for words in commands_in(shown.partition("For example:")[2]))


def test_a_run_and_a_report_open_their_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(typer, "launch", opened.append)
    call = "run", "npu_dynamic_quant", "-d", "A2", "-i", "x=spec:16x4096:float16", "--open"
    folder, page = tmp_path / "out", tmp_path / "page.html"

    alone = npusim_says(*call)
    into_folder = npusim_says(*call, "-o", folder)
    report = npusim_says("report", folder, "-o", page, "--open")

    assert [alone.code, into_folder.code, report.code] == [0, 0, 0]
    assert opened[1:] == [(tmp_path / "out.html").as_uri(), page.as_uri()]
    assert report.err == f"npusim: opens {page}\n"
    assert Path(opened[0].removeprefix("file://")).is_file()
    assert (tmp_path / "out.html").is_file()
    refused(
        *(2, "report: --open must come with a page, which it opens; leave --format png out"),
        *("report", folder, "--format", "png", "-o", tmp_path / "pictures", "--open"),
    )
    refused(
        *(2, "run: --open must come with times, which it is about; leave --no-timing out"),
        *(*call, "--no-timing"),
    )


def test_a_sweep_opens_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(typer, "launch", opened.append)
    call = "sweep", "npu_dynamic_quant", "-d", "A2", "-i", "x=spec:{1,2}x4096:float16", "--open"
    out = tmp_path / "out"
    done = npusim_says(*call, "-o", out)
    assert done.code == 0
    assert done.err.endswith(f"npusim: opens {out / 'sweep.html'}\n")
    assert opened == [(out / "sweep.html").as_uri()]
    refused(
        2,
        "sweep: --open must come with -o, whose page it opens; name a folder, or leave --open out",
        *call,
    )


def test_the_list_of_commands_cuts_no_summary() -> None:
    commands = npusim_says("--help").out.partition("Commands:")[2]
    assert commands
    assert "..." not in commands
