"""`npusim devices`, as it is typed."""

from __future__ import annotations

from typing import Annotated

import typer

from npusim.cli.commands import completion
from npusim.cli.commands.run import Json, Settings

__all__ = ["app"]

app = typer.Typer(invoke_without_command=True)


@app.callback()
def list_devices(context: typer.Context, as_json: Json = False) -> None:
    """List the chips, or show one of them."""
    if context.invoked_subcommand is not None:
        return
    from npusim.cli.devices import list_devices

    list_devices(as_json)


@app.command("show")
def show_device(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A chip's name, or a file that ends in .toml.",
            autocompletion=completion.devices,
        ),
    ],
    sources: Annotated[
        bool, typer.Option("--sources", help="Show the source of each number.")
    ] = False,
    setting: Settings = None,
    as_json: Json = False,
) -> None:
    """Show every number of one chip."""
    from npusim.cli.devices import show_device

    show_device(name, sources, setting or (), as_json)
