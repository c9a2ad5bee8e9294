"""From the words of a command line to the arguments of an operator."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Container, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from npusim import devices
from npusim.ascendc import Build, SourceLaunch, named, names_source
from npusim.cli.structures import structures
from npusim.data.arguments import Arguments
from npusim.data.errors import shown
from npusim.devices.schema import DeviceSpec
from npusim.ops import NO_DEFAULT, Kind, KindError, Parameter, kinds_of, value_of
from npusim.run.call import find
from npusim.run.inputs import Value, parse
from npusim.run.user_kernel import KernelError

__all__ = [
    "UsageError",
    "arguments",
    "attribute",
    "chip",
    "kernel_of",
    "options_of",
    "parameters",
    "settings",
]


MAX_DIGITS = 19
"""No number of 64 bits has more."""
EXAMPLES = {"acl_format": "29"}
"""What attributes may be of which the type alone says too little."""


class UsageError(ValueError):
    """The command line does not say what is needed."""


def parameters(op: str | SourceLaunch) -> tuple[Parameter, ...]:
    """The parameters of *op*, as `run` takes it, in order.

    Raises UsageError for an unknown operator, KernelError for a kernel that cannot be found.
    """
    try:
        operator = find(op)
    except KernelError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from None
    return operator.parameters


def options_of(parameter: Parameter) -> tuple[str, ...]:
    """The options that may give *parameter*: both if it may be a tensor or a number."""
    if not parameter.is_tensor:
        return ("-a",)
    return ("-i", "-a") if kinds_of(parameter) else ("-i",)


def kernel_of(
    op: str, blocks: int | None, timeout_s: float | None, build: Build
) -> str | SourceLaunch:
    """What *op* is to run: a kernel of C++, on that many blocks, or else itself.

    Raises UsageError where a kernel of C++ lacks its blocks, or anything else has some.
    """
    if names_source(op):
        return named(op, blocks, timeout_s, build)
    given = {
        "--blocks": blocks is not None,
        "--timeout": timeout_s is not None,
        "--define": bool(build.defines),
        "--include": bool(build.include),
    }
    if any(given.values()):
        option = next(name for name, is_given in given.items() if is_given)
        raise UsageError(
            f"run: {option} must come with a kernel of C++, such as add.cpp:add, not with {op}; "
            f"leave it out"
        )
    return op


def arguments(
    op: str | SourceLaunch, tensors: Iterable[str], attributes: Iterable[str], command: str = "run"
) -> Arguments:
    """Arguments for *op* from the values of `-i` and `-a` of a *command*.

    Tensors that may be None can be left out, and a list of tensors is given one by one; brackets
    make a list of one. Raises UsageError for names that do not fit *op*, InputError and
    FileError for their values.
    """
    known = parameters(op)
    found: Arguments = {}
    if isinstance(op, SourceLaunch):
        found, attributes = structures(command, op.parameters, attributes, attribute, makes=True)
    op = str(op)
    lists = {p.name for p in known if p.is_list}
    named = {option: [p.name for p in known if option in options_of(p)] for option in ("-i", "-a")}
    words = _named(command, op, "-i", tensors, named["-i"], lists)
    settings = _named(command, op, "-a", attributes, named["-a"])
    found |= {
        p.name: _attribute(command, op, p, *settings[p.name]) for p in known if p.name in settings
    }
    for parameter in known:
        name = parameter.name
        if name in words and name in found:
            raise UsageError(f"{command}: {name} of {op} must come once; drop -i or -a {name}")
        if name in words or name in found or parameter.default is not NO_DEFAULT:
            continue
        if not (parameter.is_tensor and parameter.may_be_none):
            example = f"-i {name}=randn:8x16" if parameter.is_tensor else _example(parameter)
            raise UsageError(f"{command}: {name} of {op} must be given; add for example {example}")
        found[name] = None
    for name, several in words.items():
        values = [value for word in several for value in _tensors(command, word, words)]
        is_list = len(values) > 1 or (name in lists and _is_list_of_one(several[0], words))
        found[name] = values if is_list else values[0]
    return found


def _is_list_of_one(word: str, words: Mapping[str, list[str]]) -> bool:
    """Whether *word* stands in brackets, or is like one that does."""
    (model,) = words[word.removeprefix("like:")] if word.startswith("like:") else (word,)
    return model.startswith("[") and model.endswith("]")


def _tensors(command: str, word: str, words: Mapping[str, list[str]]) -> list[Value]:
    """The tensor of *word*: `like:NAME` is one of zeros, with the shape and type of another one, or
    as many as that is a list of."""
    if not word.startswith("like:"):
        return [parse(_without_brackets(word))]
    name = word.removeprefix("like:")
    models = words.get(name, [])
    if not models or models[0].startswith("like:"):
        raise UsageError(
            f"{command}: like: must name another -i that is written out, not {shown(name)}; "
            f"write for example -i z=like:x -i x=randn:64"
        )
    found = [parse(_without_brackets(model)) for model in models]
    return [np.zeros_like(each) if isinstance(each, np.ndarray) else each for each in found]


def _without_brackets(word: str) -> str:
    return word[1:-1] if word.startswith("[") and word.endswith("]") else word


def _example(parameter: Parameter) -> str:
    """What `-a` may be for an attribute called *name*."""
    kind = next(iter(kinds_of(parameter)), None)
    word = EXAMPLES.get(parameter.name, str(kind.examples[0]).lower() if kind else "1")
    count = parameter.length or 2
    return f"-a {parameter.name}={','.join([word] * count) if parameter.is_sequence else word}"


def _attribute(command: str, op: str, parameter: Parameter, word: str) -> object:
    """The value that *word* means for *parameter*, by its type; raises UsageError."""
    kinds = kinds_of(parameter)
    if not kinds:
        return attribute(word)  # of a custom kernel, whose annotation is none of the types
    if parameter.may_be_none and word.lower() == "none":
        return None
    value: object = word
    if parameter.is_sequence:
        value = [_element(kinds, part) for part in word.rstrip(",").split(",") if word]
    else:
        value = _element(kinds, word)
    try:
        return value_of(parameter, value)
    except KindError as error:
        must = error.must.removeprefix(parameter.name)
        raise UsageError(
            f"{command}: {parameter.name} of {op}{must}, not {shown(word)}; write for example "
            f"{_example(parameter)}"
        ) from None


def _element(kinds: tuple[Kind, ...], word: str) -> object:
    """What *word* means where one of *kinds* is wanted; itself if none of them takes that."""
    if any(kind.takes(0.5) for kind in kinds) and re.fullmatch(r"(?i)[+-]?(inf|nan)", word):
        return float(word)
    value = word if kinds[0].takes(word) else attribute(word)
    return value if any(kind.takes(value) for kind in kinds) else word


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
