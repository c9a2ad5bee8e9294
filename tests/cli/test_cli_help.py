"""What `npusim` alone and its help print fits a terminal of 80 columns, and can be copied."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import typer
from commands import npusim_says

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


def test_the_list_of_commands_cuts_no_summary() -> None:
    commands = npusim_says("--help").out.partition("Commands:")[2]
    assert commands
    assert "..." not in commands
