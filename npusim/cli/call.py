"""From the words of a command line to the arguments of an operator."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Container, Iterable
from difflib import get_close_matches
from inspect import Parameter
from typing import Any

from npusim import devices, ops
from npusim.cli.operators import is_list, is_tensor
from npusim.data.arguments import Arguments
from npusim.data.errors import shown
from npusim.devices.schema import DeviceSpec
from npusim.run.call import find
from npusim.run.inputs import parse
from npusim.run.user_kernel import KernelError

__all__ = ["UsageError", "arguments", "attribute", "chip", "parameters", "settings"]


MAX_DIGITS = 18
"""Every number of so many fits into 64 bits."""


class UsageError(ValueError):
    """The command line does not say what is needed."""


def parameters(op: str) -> tuple[Parameter, ...]:
    """The parameters of *op*, as `run` takes it, in order.

    Raises UsageError for an unknown operator, KernelError for a kernel that cannot be found.
    """
    try:
        operator = find(op)
    except KernelError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from None
    return tuple(ops.signature(operator).parameters.values())


def _may_be_none(parameter: Parameter) -> bool:
    return "None" in inspect.formatannotation(parameter.annotation)


EXAMPLES = {"dtype": "qint8", "acl_format": "29"}
"""What an attribute without a default may be, for the words that ask for it."""


def arguments(
    op: str, tensors: Iterable[str], attributes: Iterable[str], command: str = "run"
) -> Arguments:
    """Arguments for *op* from the values of `-i` and `-a` of a *command*.

    Tensors that may be None can be left out, and a list of tensors is given one by one. Raises
    UsageError for names that do not fit *op*, InputError and FileError for their values.
    """
    known = parameters(op)
    lists = {p.name for p in known if is_list(p)}
    words = _named(command, op, "-i", tensors, [p.name for p in known if is_tensor(p)], lists)
    settings = _named(command, op, "-a", attributes, [p.name for p in known if not is_tensor(p)])
    found: Arguments = {name: attribute(word) for name, (word,) in settings.items()}
    for parameter in known:
        name = parameter.name
        if name in words or name in found or parameter.default is not Parameter.empty:
            continue
        if not (is_tensor(parameter) and _may_be_none(parameter)):
            option, example = ("-i", "randn:8x16") if is_tensor(parameter) else ("-a", "")
            example = example or EXAMPLES.get(name, "1")
            raise UsageError(
                f"{command}: {name} of {op} must be given; "
                f"add for example {option} {name}={example}"
            )
        found[name] = None
    for name, several in words.items():
        values = [parse(word) for word in several]
        found[name] = values if len(values) > 1 else values[0]
    return found


def _named(
    command: str,
    op: str,
    option: str,
    texts: Iterable[str],
    known: list[str],
    lists: Container[str] = (),
) -> dict[str, list[str]]:
    """Cut each NAME=VALUE of *texts*, where NAME is one of *known*; all but *lists* come once."""
    what = "a tensor" if option == "-i" else "an attribute"
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            example = "input=randn:8x16" if option == "-i" else "dtype=qint8"
            raise UsageError(
                f"{command}: {option} must be NAME=VALUE, not {shown(text)}; write for example "
                f"{option} {example}"
            )
        if name not in known:
            near = get_close_matches(name, known, n=1)
            other = "-a" if option == "-i" else "-i"
            hint = f"did you mean {near[0]}?" if near else f"use one of these, or {other}"
            raise UsageError(
                f"{command}: {option} must name {what} of {op}, one of {', '.join(known)}, "
                f"not {shown(name)}; {hint}"
            )
        if name in found and name not in lists:
            raise UsageError(f"{command}: {option} {name} must come once; drop one of them")
        found.setdefault(name, []).append(value)
    return found


def attribute(word: str) -> Any:
    """The value that *word* means: true, false, none, a number, a list of whole numbers with commas
    between or behind them, or else the word itself.

    Raises UsageError for a number that is too large.

    >>> [attribute(word) for word in ("true", "none", "-1", "0.5", "1,2", "qint8")]
    [True, None, -1, 0.5, [1, 2], 'qint8']
    """
    names = {"true": True, "false": False, "none": None}
    if word.lower() in names:
        return names[word.lower()]
    if re.fullmatch(r"([+-]?[0-9]+,)+([+-]?[0-9]+)?", word):
        return [attribute(part) for part in word.rstrip(",").split(",")]
    if re.fullmatch(r"[+-]?[0-9]+", word):
        digits = len(word.lstrip("+-"))
        if digits > MAX_DIGITS:
            raise UsageError(
                f"attributes: a whole number must have at most {MAX_DIGITS} digits, not {digits}; "
                f"write a smaller one"
            )
        return int(word)
    if re.fullmatch(r"[+-]?([0-9]+\.[0-9]*|\.?[0-9]+)(e[+-]?[0-9]{1,3})?", word, re.IGNORECASE):
        number = float(word)
        if math.isinf(number):
            raise UsageError(
                f"attributes: a number must be at most {sys.float_info.max:.6g}, not {word[:40]}; "
                f"write a smaller one"
            )
        return number
    return word


# ---- chips ----


def settings(words: Iterable[str], command: str) -> dict[str, str]:
    """The numbers of a chip to change, from the values of `--set`; raises UsageError."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(
                f"{command}: --set must be KEY=VALUE, not {shown(word)}; write for example "
                f"--set gm.read_bytes_per_s=x2"
            )
        if key in found:
            raise UsageError(f"{command}: --set {key} must come once; drop one of them")
        found[key] = value
    return found


def chip(name: str, words: Iterable[str], command: str) -> DeviceSpec:
    """The chip called *name*, with the numbers changed that *words*, of `--set`, say."""
    return devices.changed(devices.load(name), settings(words, command))
