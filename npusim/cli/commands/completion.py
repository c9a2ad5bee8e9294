"""What a shell offers behind a word that was begun: operators, chips, parameters and templates.

Nothing is loaded but for a word that is completed. A name with a blank, which a shell has to quote,
is offered where a blank was typed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO

import typer

__all__ = ["attributes", "devices", "operators", "templates", "tensors", "whole_words"]


def operators(context: typer.Context, incomplete: str) -> list[str]:
    """The operators; a custom kernel is a file, which shells know themselves."""
    from npusim import ops

    known = {word for each in context.command.params for word in (*each.opts, *each.secondary_opts)}
    before = _before(incomplete)
    if before.startswith("-") and before not in known:
        return []  # the value of an option that there is not
    return _begun(ops.names(), incomplete)


def layouts(incomplete: str) -> list[str]:
    """The words behind `npusim layout`: types and layouts."""
    from npusim.data.dtypes import DTYPES
    from npusim.data.layout import NAMES

    return _begun(("where", *(each.name for each in DTYPES), *NAMES), incomplete)


def devices(incomplete: str) -> list[str]:
    """The chips, and what tools call them."""
    from npusim.devices import spellings

    return _begun(
        (name for name in spellings() if " " not in name or " " in incomplete), incomplete
    )


def engines(incomplete: str) -> list[str]:
    """The engines that serve models."""
    from npusim import engines

    return _begun(engines.names(), incomplete)


def tensors(context: typer.Context, incomplete: str) -> list[str]:
    """The tensors of the operator that was typed, each with its `=`, or layouts of one."""
    before, layout, _ = incomplete.partition(":layout=")
    if layout:
        from npusim.data.tensor import LAYOUTS

        return _begun((f"{before}{layout}{name}" for name in LAYOUTS), incomplete)
    return _begun((f"{name}=" for name in _parameters(context, True)), incomplete)


def attributes(context: typer.Context, incomplete: str) -> list[str]:
    """Its attributes, and what its template, a type or a flag may be."""
    name, equals, _ = incomplete.partition("=")
    if equals:
        return _begun((f"{name}={word}" for word in _values(context, name)), incomplete)
    return _begun((f"{name}=" for name in _parameters(context, False)), incomplete)


QUANTISED = ("qint8", "quint8", "qint32")
"""Types that torch names so; they are stored as the integers without the q."""


def _values(context: typer.Context, name: str) -> Sequence[str]:
    """What attribute *name* may be, where that is one of a few words."""
    from npusim import ops
    from npusim.cli.call import parameters
    from npusim.data.dtypes import DTYPES

    op = _operator(context)
    if op is None:
        return ()
    if name == "template":
        return ops.load(op).templates
    kinds = {each.name: each.words for each in parameters(op)}
    match kinds.get(name):
        case ("dtype",):
            return (*(each.name for each in DTYPES), *QUANTISED)
        case ("bool",):
            return ("true", "false")
    return ()


def templates(context: typer.Context, incomplete: str) -> list[str]:
    """Its templates, behind those that were typed with commas."""
    from npusim import ops

    op = _operator(context)
    if op is None:
        return []
    before, comma, _ = incomplete.rpartition(",")
    every = ops.load(op).templates if comma else ("all", *ops.load(op).templates)
    return _begun((f"{before}{comma}{word}" for word in every), incomplete)


def _before(incomplete: str) -> str:
    """The word before the one that was begun, as the shell passes both."""
    typed = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    *_, last = typed.removesuffix(incomplete).split() or [""]
    return last


def _begun(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _operator(context: typer.Context) -> str | None:
    """The operator that was typed; no custom kernel, which would have to run."""
    from npusim import ops

    # While a value is missing behind the last option, words are still to be assigned.
    words = (context.params.get("op"), *context.args)
    return next((word for word in words if word in ops.names()), None)


def _parameters(context: typer.Context, are_tensors: bool) -> list[str]:
    from npusim.cli.call import parameters

    op = _operator(context)
    known = () if op is None else parameters(op)
    return [each.name for each in known if each.is_tensor == are_tensors]


# ---- bash ----

BREAKS = "=:"
"""Bash ends words there too, unless its COMP_WORDBREAKS has been changed."""


@contextmanager
def whole_words() -> Iterator[None]:
    """Make the words whole that a shell asks about, and of those that are offered print within it
    only what bash has not got yet."""
    typed = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    if _is_quoted(typed):
        # Behind a blank a word would begin, but for the quote that is open.
        os.environ["_TYPER_COMPLETE_ARGS"] = typed.rstrip()
    at = os.environ.get("COMP_CWORD", "")
    if os.environ.get("_NPUSIM_COMPLETE") != "complete_bash" or not at.isdecimal():
        yield
        return
    words, kept = _whole(os.environ.get("COMP_WORDS", "").split("\n")[: int(at) + 1])
    os.environ.update(COMP_WORDS="\n".join(words), COMP_CWORD=str(len(words) - 1))
    offered = StringIO()
    try:
        with redirect_stdout(offered):
            yield
    finally:
        rest = [word.removeprefix(kept) for word in offered.getvalue().splitlines()]
        rest = [word for word in rest if word]
        if len(rest) == 1 and rest[0].endswith("="):
            # Bash sets a blank behind the only word that is offered, and a value is to come there.
            rest.append(f"{rest[0]}...")
        for word in rest:
            print(word)


def _is_quoted(typed: str) -> bool:
    """Whether a quote is open at the end of *typed*.

    >>> _is_quoted('npusim run matmul -d "Atlas 800I '), _is_quoted("npusim run matmul ")
    (True, False)
    """
    quote = ""
    for letter in typed:
        if letter == quote:
            quote = ""
        elif letter in "\"'" and not quote:
            quote = letter
    return bool(quote)


def _whole(words: Sequence[str]) -> tuple[list[str], str]:
    """*words* as they were typed, and the part of the last one's value that bash keeps."""
    whole: list[str] = []
    is_open = False
    for word in words:
        is_break = bool(word) and not word.strip(BREAKS)
        if whole and (is_break or is_open):
            whole[-1] += word
        else:
            whole.append(word)
        is_open = is_break
    kept = whole[-1] if is_open else whole[-1].removesuffix(words[-1])
    # Of --name=value only the value is offered.
    return whole, kept.partition("=")[2] if kept.startswith("--") else kept
