"""`--open` of commands that write a folder with a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Open", "page_of"]

Open = Annotated[bool, typer.Option("--open", help="Open the page in the folder of -o.")]


def page_of(output: Path | None, name: str, is_opened: bool, command: str) -> Path | None:
    """The page *name* in *output* if it is opened; raises UsageError where there is no folder."""
    if not is_opened:
        return None
    if output is None:
        from npusim.cli.call import UsageError

        raise UsageError(
            f"{command}: --open must come with -o, whose page it opens; name a folder, or leave "
            f"--open out"
        )
    return output / name
