"""The command line as a test calls it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from npusim.cli import app


class Answer(NamedTuple):
    code: int
    out: str
    err: str


def npusim_says(*words: object) -> Answer:
    result = CliRunner().invoke(app, [str(word) for word in words], prog_name="npusim")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


def refused(code: int, message: str, *words: object) -> None:
    assert npusim_says(*words) == (code, "", f"npusim: {message}\n")


def entries(where: Path) -> list[str]:
    return sorted(path.name for path in where.iterdir())
