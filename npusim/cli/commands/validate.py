"""`npusim validate`, as it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["validate"]

Csv = Annotated[
    Path | None,
    typer.Argument(
        metavar="CSV",
        help="Measured kernels, a row each; those that ship with npusim unless given.",
    ),
]
FamilyOption = Annotated[
    list[str] | None,
    typer.Option("--family", "-f", metavar="F", help="Only rows of this family; may come often."),
]
All = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Simulate every row of the file that ships with npusim now: minutes of work.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Write numbers and pictures here."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Let -o replace the folder of an earlier run.")
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", "-j", metavar="N", min=1, help="Processes; one a processor unless given."
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON instead: rows and families, or rows and pipes.")
]
Pipes = Annotated[
    bool,
    typer.Option(
        "--pipes", help="How long each pipe works, of the rows whose pipes a profiler counted."
    ),
]


def validate(
    csv: Csv = None,
    family: FamilyOption = None,
    every_row: All = False,
    output: Output = None,
    force: Force = False,
    jobs: Jobs = None,
    as_json: Json = False,
    pipes: Pipes = False,
) -> None:
    """Compare simulated times with measured ones.

    Errors are simulated less measured time: as a share of the measured one for kernels of 10 us
    and more, in microseconds for shorter ones. They are of every row. Of the file that ships with
    npusim a sample of each family is simulated now, under a minute of work, and the others were
    when npusim was made; of a file of your own every row is simulated.

    With --pipes the times of pipes are held against what profilers counted for the same launches:
    errors are shares of the duration of the kernel, whatever the share of the pipe in it.
    """
    from npusim.cli.validate import validate

    validate(csv, family or (), every_row, output, force, jobs, as_json, pipes)
