"""`npusim layout`, as it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npusim.cli.commands import completion
from npusim.cli.commands.formats import MapFormat

__all__ = ["show_layout"]


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[where] SHAPE DTYPE LAYOUT",
        autocompletion=completion.layouts,
        # Written out, since what knows them would load numpy for every --help.
        help="For example 20x40 int8 FRACTAL_NZ; the layouts are ND, FRACTAL_NZ (also Nz, zN), "
        "Zz (also zZ), Zn (also nZ, FRACTAL_Z), NC1HWC0 (also 5HD), L0C. A capital is for the "
        "order of fractals, a small letter for the inside: Z row by row, N column by column.",
    ),
]
Index = Annotated[
    str | None, typer.Option("--index", metavar="I,J", help="Show where this element lies.")
]
Offset = Annotated[
    str | None, typer.Option("--offset", metavar="BYTE", help="Show what lies at this byte.")
]
Device = Annotated[
    str,
    typer.Option(
        "--device", "-d", help="The chip whose banks and copies are shown: a name or a file."
    ),
]
FormatOption = Annotated[
    MapFormat | None,
    typer.Option(
        "--format", "-f", help="The format of the map. Default: by the ending of -o, else text."
    ),
]
Html = Annotated[
    bool, typer.Option("--html", help="Write a page to explore layouts; same as --format html.")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file.")
]
Force = Annotated[bool, typer.Option("--force", help="Let -o replace a file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead; same as --format json.")]


def show_layout(
    words: Words = None,
    index: Index = None,
    offset: Offset = None,
    device: Device = "Atlas A2",
    form: FormatOption = None,
    html: Html = False,
    output: Output = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Show how a matrix lies in memory, element by element.

    \b
    For example:
      npusim layout 20x40 int8 FRACTAL_NZ
      npusim layout where 20x40 int8 FRACTAL_NZ --index 17,33
      npusim layout where 20x40 int8 FRACTAL_NZ --offset 1569
      npusim layout --html -o layout.html
    """
    from npusim.cli.layout import show_layout

    show_layout(words or [], index, offset, device, form, html, output, force, as_json)
