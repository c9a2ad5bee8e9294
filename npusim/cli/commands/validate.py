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
        help="Measured kernels, one in each row. Default: those that ship with npusim.",
    ),
]
FamilyOption = Annotated[
    list[str] | None,
    typer.Option("--family", "-f", metavar="F", help="Only rows of this family; can be repeated."),
]
All = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Simulate every row that ships with npusim now, which takes minutes.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Write errors and pictures here."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Let -o replace the folder of an earlier run.")
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", "-j", metavar="N", min=1, help="Processes. Default: one for each processor."
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON instead: rows and families, or rows and pipes.")
]
Pipes = Annotated[
    bool,
    typer.Option(
        "--pipes",
        help="Compare the busy time of each pipe, for rows whose pipes a profiler counted.",
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

    An error is the simulated time less the measured one: a share of the measured time for kernels
    of 10 us and more, microseconds for shorter ones. Of the rows that ship with npusim a sample of
    each family is simulated now, in a minute or two, and the stored times of the others are used;
    of your own file every row is simulated.

    --pipes compares the busy time of each pipe with what profilers counted for the same launch.
    These errors are shares of the duration of the kernel.
    """
    from npusim.cli.validate import validate

    validate(csv, family or (), every_row, output, force, jobs, as_json, pipes)
