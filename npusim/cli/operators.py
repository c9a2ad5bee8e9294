"""`npusim ops`: what can be run."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer
from rich.text import Text

from npusim import ops
from npusim.cli.call import is_tensor, parameters
from npusim.cli.screen import json_text, show, table

__all__ = ["described", "list_operators"]


def list_operators(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """List the operators with their parameters."""
    rows = [described(name) for name in ops.names()]
    if as_json:
        typer.echo(json_text(rows))
        return
    listing = table("operator", "what it does")
    for row in rows:
        listing.add_row(Text.assemble((row["name"], "bold"), row["signature"]), row["summary"])
    show(listing)


def described(name: str) -> dict[str, Any]:
    """Signature, summary, tensors and attributes of the operator called *name*."""
    bare = [p.replace(annotation=p.empty) for p in parameters(name)]
    first = ops.load(name).document.partition("\n")[0]
    return {
        "name": name,
        "signature": str(inspect.Signature(bare)),
        "summary": first.removeprefix(f"{name}: "),
        "tensors": [p.name for p in parameters(name) if is_tensor(p)],
        "attributes": [p.name for p in parameters(name) if not is_tensor(p)],
    }
