"""`npusim ops`: what can be run."""

from __future__ import annotations

import inspect

import typer
from rich.table import Table
from rich.text import Text

from npusim import ops
from npusim.cli.screen import show, table
from npusim.data.json import Json, json_text
from npusim.ops import NO_DEFAULT, in_words

__all__ = ["attribute_table", "described", "list_operators"]


def list_operators(as_json: bool) -> None:
    """List the operators; as JSON with their parameters."""
    rows = [described(name) for name in ops.names()]
    if as_json:
        typer.echo(json_text(rows))
        return
    listing = table("operator", "what it does")
    for row in rows:
        listing.add_row(Text(row["name"], "bold"), row["summary"])
    show(listing)


def described(name: str) -> Json:
    """Signature, summary, tensors and attributes of the operator called *name*."""
    operator = ops.load(name)
    parameters = ops.signature(operator).parameters.values()
    bare = [p.replace(annotation=p.empty) for p in parameters]
    first = operator.document.partition("\n")[0]
    return {
        "name": name,
        "signature": str(inspect.Signature(bare)),
        "summary": first.removeprefix(f"{name}: "),
        "tensors": [p.name for p in operator.parameters if p.is_tensor],
        "attributes": [p.name for p in operator.attributes],
        "types": {p.name: p.type for p in operator.parameters},
    }


def attribute_table(name: str) -> Table | None:
    """The attributes of the operator called *name*, as `-a` takes them; None if it has none."""
    attributes = ops.load(name).attributes
    if not attributes:
        return None
    listing = table("attribute", "type", "default")
    for each in attributes:
        default = "must be given" if each.default is NO_DEFAULT else str(each.default)
        words = f"{in_words(each)}{', or none' * each.may_be_none}"
        listing.add_row(Text(each.name, "bold"), Text(words), Text(default))
    return listing
