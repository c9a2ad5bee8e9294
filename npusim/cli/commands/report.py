"""`npusim report`, as it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npusim.cli.commands.formats import PageFormat
from npusim.cli.commands.level import LevelOption

__all__ = ["write_report"]


Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN_DIR",
        help="Folders that `npusim run -o` or `python -m npusim.torch --report` wrote. "
        "Several runs are compared with the first.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="The page or the PDF; for png and svg the folder. Default: report.html and so on.",
    ),
]
FormatOption = Annotated[
    PageFormat, typer.Option("--format", "-f", help="A page, or its pictures alone.")
]
Force = Annotated[bool, typer.Option("--force", help="Let -o replace an earlier report.")]
Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


Advice = Annotated[
    bool | None,
    typer.Option(
        "--advice/--no-advice",
        help="Simulate changes that could help and show those that gain first. Default: "
        "for all but long runs.",
    ),
]


def write_report(
    runs: Runs,
    output: Output = None,
    kind: FormatOption = PageFormat.HTML,
    force: Force = False,
    level: LevelOption = None,
    advice: Advice = None,
    is_opened: Open = False,
) -> None:
    """Write a page of a run, or of several to compare.

    \b
    For example:
      npusim report quantize_run -o report.html
    """
    from npusim.cli.report import write_report

    write_report(
        *(runs, output, kind, force),
        None if level is None else level.value,
        *(advice, is_opened),
    )
