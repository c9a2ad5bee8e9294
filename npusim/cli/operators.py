"""`npusim ops`: what can be run."""

from __future__ import annotations

import inspect
from inspect import Parameter

import typer
from rich.text import Text

from npusim import ops
from npusim.cli.screen import json_text, show, table
from npusim.data.json import Json

__all__ = ["described", "is_list", "is_tensor", "list_operators"]


def list_operators(as_json: bool) -> None:
    """List the operators with the parameters that they need; as JSON with all."""
    rows = [described(name) for name in ops.names()]
    if as_json:
        typer.echo(json_text(rows))
        return
    listing = table("operator", "what it does")
    for row in rows:
        listing.add_row(Text.assemble((row["name"], "bold"), _needed(row["name"])), row["summary"])
    show(listing)


def _needed(name: str) -> str:
    """The parameters that a call of *name* needs, in brackets, and dots for those that it may have.

    >>> _needed("npu_swiglu"), _needed("abs")
    ('(x, ...)', '(x)')
    """
    parameters = ops.signature(ops.load(name)).parameters.values()
    needed = [p.name for p in parameters if p.default is Parameter.empty]
    return f"({', '.join(needed + ['...'] * (len(needed) < len(parameters)))})"


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
        "tensors": [p.name for p in parameters if is_tensor(p)],
        "attributes": [p.name for p in parameters if not is_tensor(p)],
    }


def is_tensor(parameter: Parameter) -> bool:
    """Whether *parameter* takes a tensor, possibly None."""
    if parameter.annotation is Parameter.empty:
        return parameter.default is Parameter.empty
    annotation = inspect.formatannotation(parameter.annotation)
    return "Array" in annotation or "TensorSpec" in annotation


def is_list(parameter: Parameter) -> bool:
    """Whether *parameter* takes a list of tensors, possibly None."""
    return "Sequence[Array" in inspect.formatannotation(parameter.annotation)
