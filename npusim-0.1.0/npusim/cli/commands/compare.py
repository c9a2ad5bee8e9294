"""`npusim compare`, as it is typed."""

from __future__ import annotations

from typing import Annotated

import typer

from npusim.cli.commands.run import Json

__all__ = ["compare_files"]

A = Annotated[
    str,
    typer.Argument(
        metavar="A",
        help="FILE.npy, FILE.npy:bfloat16, a generator of `run`, or the folder of a model's run.",
    ),
]
B = Annotated[str, typer.Argument(metavar="B", help="The same: the golden one.")]


More = Annotated[
    list[str] | None, typer.Argument(metavar="C", help="More runs of models, if those are.")
]


def compare_files(a: A, b: B, more: More = None, as_json: Json = False) -> None:
    """Compare an array with a golden one, in the measures of the vendor's comparison tools.

    The exit code is 1 if the accuracy is not reached. Of runs of models, times are compared.
    For example: npusim compare out/output.npy golden.npy
    """
    from npusim.cli.compare import compare_files

    compare_files(a, b, more or [], as_json)
