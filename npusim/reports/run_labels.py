"""Labels of the runs on one page: a letter for each, and what distinguishes it from the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, groupby, islice, product
from string import ascii_uppercase
from typing import Any, NamedTuple

from npusim.data.json import Json
from npusim.devices.ranges import written
from npusim.devices.schema import DeviceSpec
from npusim.devices.settings import MARK
from npusim.reports.subject import Timed, kernel_named, named
from npusim.trace.record import Record

__all__ = [
    "Head",
    "argument",
    "distinguished",
    "heads",
    "letters",
    "listed",
    "numbers_of",
    "titled",
]

MOST_LETTERS = 60
"""The most characters of a value in a label; the table of numbers has the whole value."""
MOST_NAMES = 4
"""The most names that a title lists; it only counts the rest."""
MOST_FACTS = 8
"""The most facts that the label of a run lists; it only counts more."""


class Head(NamedTuple):
    """The label of one of the runs of a page."""

    letter: str
    """A, B and so on; empty if the page has one run."""
    who: str
    """What distinguishes it from the others."""

    def __str__(self) -> str:
        return ", ".join(filter(None, self))


class Fact(NamedTuple):
    """A property of a run that may differ between runs."""

    name: str
    """The text before its parts; empty if they speak for themselves."""
    parts: tuple[str, ...]
    """Each part that differs between runs becomes part of a label."""


def letters(runs: int) -> list[str]:
    """A letter for each of this many *runs*; two letters after Z.

    >>> letters(3), letters(28)[25:]
    (['A', 'B', 'C'], ['Z', 'AA', 'AB'])
    """
    names = ("".join(each) for size in count(1) for each in product(ascii_uppercase, repeat=size))
    return list(islice(names, runs))


def listed(names: Sequence[str]) -> str:
    """Names in a sentence; if there are many, the first ones.

    >>> listed(["a"]), listed(["a", "b", "c"]), listed(list("abcdef"))
    ('a', 'a, b and c', 'a, b, c, d and 2 more')
    """
    left = len(names) - MOST_NAMES
    *first, last = [*names[:MOST_NAMES], f"{left} more"] if left > 0 else names
    return f"{', '.join(first)} and {last}" if first else last


def titled(runs: Sequence[Timed]) -> str:
    """The subject of a page of *runs*: `npu_quantize on ascend910b2`."""
    kernels = list(dict.fromkeys(map(kernel_named, runs)))
    chips = list(dict.fromkeys(run.device.name for run in runs))
    names = list(dict.fromkeys(map(named, runs)))
    if len(runs) == len(names) <= 2:
        return " against ".join(names)
    if len(kernels) == 1 or len(chips) == 1:
        return f"{len(runs)} runs of {listed(kernels)} on {listed(chips)}"
    return f"{len(runs)} runs: {listed(names)}"


# ---- what distinguishes runs ----


def heads(runs: Sequence[Record]) -> list[Head]:
    """The labels of *runs* on a page: the chip, the template, a shape, whatever differs."""
    if len(runs) == 1:
        return [Head("", "")]
    return distinguished(list(map(_facts, runs)))


def distinguished(
    facts: Sequence[Mapping[str, Fact]], same: str = "the same call as"
) -> list[Head]:
    """A heading for each of several runs: the *facts* in which others differ.

    A run that does not differ from an earlier one is labelled the *same* as that.
    """
    found: list[Head] = []
    for letter, own in zip(letters(len(facts)), facts, strict=True):
        twin = next((n for n, other in enumerate(facts[: len(found)]) if other == own), None)
        if twin is None:
            every = (_in_words(fact, [other[name] for other in facts if name in other])
                     for name, fact in own.items())  # fmt: skip
            differing = list(filter(None, every))
            left = [f"{len(differing) - MOST_FACTS} more"] if len(differing) > MOST_FACTS else []
            found.append(Head(letter, ", ".join([*differing[:MOST_FACTS], *left])))
        else:
            found.append(Head(letter, f"{same} {found[twin].letter}"))
    return found


def _in_words(own: Fact, others: Sequence[Fact]) -> str:
    """The parts of *own* in which any of *others* differs."""
    values = [_padded(other.parts) for other in others]
    parts = (part for n, part in enumerate(_padded(own.parts))
             if any(part != other[n] for other in values))  # fmt: skip
    text = _short(" ".join(filter(None, parts)))
    return f"{own.name} {text}".strip() if text else ""


PLAIN = ("", "", "ND", "as it stands")
"""Defaults for the parts of a tensor, which other arguments lack: type, shape, layout, order."""


def _padded(parts: tuple[str, ...]) -> tuple[str, ...]:
    return parts + PLAIN[len(parts) :]


def _short(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1].rstrip(" ,") + "…"


def _facts(run: Record) -> dict[str, Fact]:
    """The properties of a run that its time may depend on.

    Arguments are compared with those of the same operator, numbers with those of the same chip,
    some of which the user may have changed.
    """
    arguments = run.facts["arguments"].items()
    base = run.device.name.removesuffix(MARK)
    numbers = numbers_of(run.device)
    return {
        "operator": Fact("", (run.op,)),
        "template": Fact("", (run.template or "",)),
        "chip": Fact("", (run.device.name,)),
        **{
            f"{base} {key}": Fact(key, (_number(value),))
            for key, value in numbers.items()
            if key not in ("name", "aliases")
        },
        **{f"{run.op} {name}": Fact(name, _parts(value)) for name, value in arguments},
        "L2": Fact("L2", (str(run.facts["l2"]),)),
        "icache": Fact("instructions", (str(run.facts["icache"]),)),
    }


def _parts(value: object) -> tuple[str, ...]:
    if isinstance(value, dict):
        order = "transposed" if value.get("transposed") else "as it stands"
        return value["dtype"], _shape(value), value["layout"], order
    return (argument(value),)


def argument(value: object) -> str:
    """An argument of `run.json` in readable form; equal consecutive tensors are counted.

    >>> argument({"dtype": "int8", "shape": [2, 3], "layout": "ND"}), argument(None), argument(0.5)
    ('int8 2x3', 'none', '0.5')
    """
    if isinstance(value, list) and any(isinstance(part, dict) for part in value):
        runs = ((text, len(list(alike))) for text, alike in groupby(map(argument, value)))
        return ", ".join(text if many == 1 else f"{many} x {text}" for text, many in runs)
    if isinstance(value, dict):
        layout = "" if value["layout"] == "ND" else f" {value['layout']}"
        order = " transposed" if value.get("transposed") else ""
        return f"{value['dtype']} {_shape(value)}{layout}{order}"
    return "none" if value is None else str(value)


def _shape(value: Json) -> str:
    return "x".join(str(extent) for extent in value["shape"]) or "scalar"


# ---- numbers of chips ----


def numbers_of(device: DeviceSpec) -> dict[str, object]:
    """The dotted key of every entry of a chip's device file -> its value."""
    return dict(_leaves(device.model_dump(mode="json", exclude={"sources"}, exclude_none=True)))


def _leaves(tree: Json, above: str = "") -> list[tuple[str, Any]]:
    found = []
    for name, node in tree.items():
        is_table = isinstance(node, dict)
        found += _leaves(node, f"{above}{name}.") if is_table else [(f"{above}{name}", node)]
    return found


def _number(value: object) -> str:
    return written(value) if isinstance(value, int | float) else str(value)
