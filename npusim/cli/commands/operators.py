"""`npusim ops`, as it is typed."""

from __future__ import annotations

from npusim.cli.commands.run import Json

__all__ = ["list_operators"]


def list_operators(as_json: Json = False) -> None:
    """List the operators that are simulated."""
    from npusim.cli.operators import list_operators

    list_operators(as_json)
