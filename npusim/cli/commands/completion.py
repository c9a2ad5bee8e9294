"""What a shell offers behind a word that was begun: operators, chips, parameters and templates.

Nothing is loaded but for a word that is completed. Words in which a shell would have to quote a
blank are not offered.
"""

from __future__ import annotations

from collections.abc import Iterable

import typer

__all__ = ["attributes", "devices", "operators", "tensors"]


def operators(incomplete: str) -> list[str]:
    """The operators; a kernel of one's own is a file, which shells know themselves."""
    from npusim import ops

    return _begun(ops.names(), incomplete)


def devices(incomplete: str) -> list[str]:
    """The chips, and what tools call them."""
    from npusim.devices import spellings

    return _begun((name for name in spellings() if " " not in name), incomplete)


def tensors(context: typer.Context, incomplete: str) -> list[str]:
    """The tensors of the operator that was typed, each with its `=`."""
    return _begun((f"{name}=" for name in _parameters(context, True)), incomplete)


def attributes(context: typer.Context, incomplete: str) -> list[str]:
    """Its attributes, and what its template may be."""
    from npusim import ops

    op = _operator(context)
    if op is not None and incomplete.startswith("template="):
        return _begun((f"template={word}" for word in ops.load(op).templates), incomplete)
    return _begun((f"{name}=" for name in _parameters(context, False)), incomplete)


def _begun(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _operator(context: typer.Context) -> str | None:
    """The operator that was typed; no kernel of one's own, which would have to run."""
    from npusim import ops

    # While a value is missing behind the last option, words are still to be assigned.
    words = (context.params.get("op"), *context.args)
    return next((word for word in words if word in ops.names()), None)


def _parameters(context: typer.Context, are_tensors: bool) -> list[str]:
    from npusim.cli.call import parameters
    from npusim.cli.operators import is_tensor

    op = _operator(context)
    known = () if op is None else parameters(op)
    return [each.name for each in known if is_tensor(each) == are_tensors]
