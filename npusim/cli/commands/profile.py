"""`npusim profile`, as it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npusim.cli.commands.opening import Open, page_of
from npusim.cli.commands.run import Device

__all__ = ["profile"]

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="What torch_npu's profiler or msprof wrote: a folder with kernel_details.csv,"
        " op_summary_*.csv or a database in it or below it, or one of these files.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Write a page, CSV and JSON here."),
]
Rows = Annotated[
    Path | None,
    typer.Option(
        "--rows",
        metavar="CSV",
        help="Append the measured kernels to this file, which `npusim validate` reads.",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Let -o replace the folder of an earlier comparison.")
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", "-j", metavar="N", min=1, help="Processes. Default: one for each processor."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead, with every kernel.")]


def profile(
    folder: Folder,
    device: Device,
    output: Output = None,
    rows: Rows = None,
    force: Force = False,
    jobs: Jobs = None,
    as_json: Json = False,
    is_opened: Open = False,
) -> None:
    """Compare a profile of a real card with simulated times.

    Kernels that are slower than they should be come first, with the likely cause. A ratio is the
    measured time over the simulated one, and 1 wherever it lies between a warm and a cold L2.

    \b
    For example:
      npusim profile prof_ascend_pt -d 910B3 -o out/normal
    """
    from npusim.cli.profile import profile
    from npusim.cli.screen import open_page

    page = page_of(output, "profile.html", is_opened, "profile")
    profile(folder, device, output, rows, force, jobs, as_json)
    if page is not None:
        open_page(page)
