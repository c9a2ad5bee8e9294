"""Errors in the tree of a file of numbers and sources, in messages a reader can act on.

The schema, *root* below, is that of a chip unless another one is given.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    TypeGuard,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel

from npusim.devices.names import LINE_LETTERS, has_hidden, quoted, visible
from npusim.devices.parts import NUMBER, Confidence, Part, Source
from npusim.devices.ranges import MANY, SOURCED, Within, written
from npusim.devices.schema import DeviceSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

__all__ = [
    "Key",
    "Problem",
    "dotted",
    "ends",
    "explain",
    "has_key",
    "is_table",
    "range_at",
    "range_of",
    "shown",
    "split",
    "wrong_keys",
]

Key = tuple[str, ...]
Tree = dict[str, Any]
"""A table of a device file: key -> a value, or a nested table."""
FIELDS = ("value", "source", "confidence")


class Problem(NamedTuple):
    """One violation, phrased as *what must hold, not what came; what to do*."""

    key: Key
    text: str
    is_joint: bool = False
    """Whether each number is valid alone, but their combination is not."""


# ---- numbers and their sources ----


def split(
    tree: Tree, root: type[Part] = DeviceSpec
) -> tuple[Tree, dict[str, Source], list[Problem]]:
    """Split *tree* into plain values, the source of each number, and the problems found.

    >>> leaf = {"value": 2, "source": "ini: l2_size", "confidence": "vendor file"}
    >>> split({"sources": {"ini": "chip.ini"}, "l2": {"capacity_bytes": leaf}})[:2]
    ({'l2': {'capacity_bytes': 2}}, {'l2.capacity_bytes': Source(text='chip.ini: l2_size', \
confidence='vendor file')})
    """
    tree = dict(tree)
    texts = tree.pop("sources", {})
    sources, problems = {}, []
    for key, node in ends(tree):
        is_number = _is_number(node)
        wrong = _wrong_with(node, texts) if is_number else _wrong_without(key, node, root)
        if wrong:
            problems.append(Problem(key, wrong))
        elif is_number:
            source = Source(_written_out(node, texts), node["confidence"])
            sources.update(dict.fromkeys(_sourced(key, node["value"]), source))
    return _values(tree), sources, problems


def _sourced(key: Key, value: object) -> list[str]:
    """The dotted keys that share one source: a number, or each name of a group."""
    if key[0] == "aliases" and isinstance(value, list):
        return [f"aliases.{name}" for name in value]
    return [".".join(key)]


def is_table(node: object) -> TypeGuard[Tree]:
    """Whether *node* has entries; the inline table of a number counts as one number."""
    return isinstance(node, dict) and not any(field in node for field in FIELDS)


def _is_number(node: object) -> bool:
    return isinstance(node, dict) and not is_table(node)


def ends(tree: dict[str, object], above: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Every number, and every other entry that is not a table, with its key."""
    for name, node in tree.items():
        if is_table(node):
            yield from ends(node, (*above, name))
        else:
            yield (*above, name), node


def _values(tree: Tree) -> Tree:
    values = {}
    for name, node in tree.items():
        if is_table(node):
            values[name] = _values(node)
        else:
            values[name] = node.get("value") if _is_number(node) else node
    return values


def wrong_keys(tree: dict[str, object]) -> list[Problem]:
    """The problems in the table of source keys of one file."""
    texts = tree.get("sources", {})
    if not isinstance(texts, dict):
        text = f"must be a table, not {shown(texts)}; start it with [sources]"
        return [Problem(("sources",), text)]
    problems = []
    for key, text in texts.items():
        if not re.fullmatch(r"\w+", key):
            wrong = f"must be named by letters, digits and _ alone, not {quoted(key)}; rename it"
            problems.append(Problem(("sources", key), wrong))
        elif not isinstance(text, str):
            wrong = f"must be a string, not {shown(text)}; put it in quotes"
            problems.append(Problem(("sources", key), wrong))
        elif has_hidden(text) or len(text) > LINE_LETTERS:
            problems.append(Problem(("sources", key), _one_line(text)))
    return problems


def _one_line(text: str) -> str:
    return (
        f"must be one line of at most {LINE_LETTERS} letters and no control characters, "
        f"not {quoted(text)}; shorten or retype it"
    )


def _keys(text: str) -> tuple[list[str], str]:
    """Split the keys off a source text: ``"ini, doc: l2_size"`` -> ini and doc, l2_size."""
    match = re.match(r"(\w+(?:, \w+)*): (?=\S)", text)
    return (match[1].split(", "), text[match.end() :]) if match else ([], text)


def _written_out(node: Tree, texts: dict[str, str]) -> str:
    keys, rest = _keys(node["source"])
    whole = " and ".join(texts[key] for key in keys)
    return f"{whole}: {rest}" if keys else rest


def _wrong_with(node: dict[str, object], texts: dict[str, str]) -> str | None:
    """The problem in a number's own table, apart from its value."""
    if set(node) != set(FIELDS):
        came = visible(", ".join(node))
        return f"must have value, source and confidence, not {came}; write {NUMBER}"
    source, confidence = node["source"], node["confidence"]
    if confidence not in get_args(Confidence):
        words = ", ".join(get_args(Confidence))
        return (
            f"confidence must be one of {words}, not {shown(confidence)}; "
            "take the word that fits the source"
        )
    if not isinstance(source, str) or not source.strip():
        return f"source must say where the number comes from, not {shown(source)}; write a text"
    if has_hidden(source) or len(source) > LINE_LETTERS:
        return f"source {_one_line(source)}"
    unknown = [key for key in _keys(source)[0] if key not in texts]
    if unknown:
        known = ", ".join(texts) or "none so far"
        return (
            f"source must start with a key of [sources] ({known}) or with no key at all, "
            f"not {unknown[0]!r}; add the key to [sources] or leave the colon out"
        )
    return None


def _wrong_without(key: Key, node: object, root: type[Part]) -> str | None:
    """The problem with an entry that has no source."""
    kind = _schema(key, root)
    if (isinstance(node, int | float) and _takes_number(kind)) or _is_sourced(kind):
        return f"must have value, source and confidence, not {shown(node)} alone; write {NUMBER}"
    return None


# ---- the schema ----


def _schema(key: Key, root: type[Part] = DeviceSpec) -> Any:
    """The schema's type for the entry at *key*, or None if it has no such entry."""
    kind: Any = root
    for name in key:
        if _is_model(kind):
            kind = _entries(kind).get(name)
        else:
            kind = get_args(kind)[1] if get_origin(kind) is dict else None
        if get_origin(kind) in (Union, UnionType):
            # A table that may be absent.
            kind = next((part for part in get_args(kind) if _is_model(part)), kind)
    return kind


def _is_model(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


@cache
def _entries(table: type[BaseModel]) -> dict[str, object]:
    """The types of the entries of *table*, by name."""
    return get_type_hints(table, include_extras=True)


def range_of(kind: object) -> Within | None:
    """The range of a number of type *kind* of the schema, or None if it has none."""
    found = [part for part in get_args(kind) if isinstance(part, Within)]
    below = [range_of(part) for part in get_args(kind) if get_origin(kind) in (Union, UnionType)]
    return next((each for each in (*found, *below) if each is not None), None)


def range_at(key: Key) -> Within | None:
    """The range of the number at *key* of a device file, or None if there is none."""
    return range_of(_schema(key))


def _takes_number(kind: object) -> bool:
    return range_of(kind) is not None


def _is_sourced(kind: object) -> bool:
    return SOURCED in get_args(kind)


def has_key(tree: dict[str, object], key: Key) -> bool:
    """Whether *tree* has an entry at *key*."""
    node: object = tree
    for name in key:
        if not isinstance(node, dict) or name not in node:
            return False
        node = node[name]
    return True


# ---- errors of pydantic ----


def explain(error: ValidationError, root: type[Part] = DeviceSpec) -> list[Problem]:
    """Convert the errors of pydantic to problems, in the same order."""
    problems = [_explain(detail, root) for detail in error.errors(include_url=False)]
    # Entries below one that should not exist are irrelevant.
    wrong = {problem.key for problem in problems}
    return [
        problem
        for problem in problems
        if not any(problem.key[:depth] in wrong for depth in range(1, len(problem.key)))
    ]


def _explain(detail: ErrorDetails, root: type[Part]) -> Problem:
    # "[key]" marks an error in the name of an entry, not in its value.
    key = tuple(str(part) for part in detail["loc"] if part != "[key]")
    if detail["type"] == "value_error":
        # The schema's own checks say "<key below their table> must ...".
        below, _, rest = f" {detail['ctx']['error']}".partition(" must ")
        return Problem((*key, *below.strip().split(".")) if below else key, f"must {rest}", True)
    if detail["type"] == "missing":
        return Problem(key, _missing(key, root))
    if detail["type"] == "extra_forbidden":
        return Problem(key, _unknown(key, root))
    value = detail["input"]
    within = range_of(_schema(key, root))
    # An integer with too many digits for a float is reported as not a float.
    is_far = detail["type"] == "float_type" and type(value) is int
    if within is not None and (is_far or detail["type"] in RANGE_ERRORS):
        return Problem(key, _beyond(within, value))
    must, remedy = _demand(detail)
    # A fraction where an integer is required often has a larger unit, such as 1.85 in GHz.
    if within is not None and type(value) is float and not within.low <= value <= within.high:
        slip = within.slip(value)
        if slip is not None and float(slip[1]).is_integer():
            remedy = _meant(value, slip)
    return Problem(key, f"{must}, not {shown(value)}; {remedy}")


RANGE_ERRORS = ("greater_than_equal", "less_than_equal")


def _beyond(within: Within, value: float) -> str:
    """The problem with a number outside the range *within*."""
    if within.low == within.high:
        only = f"{written(within.low)} {within.unit}"
        return f"must be {only}, {within.why}, not {shown(value)}; write {written(within.low)}"
    slip = within.slip(value)
    remedy = f"give a number in this range, in {within.unit}"
    if slip is not None:
        remedy = _meant(value, slip)
    return f"must lie in {within}, not {shown(value)}; {remedy}"


def _meant(value: float, slip: tuple[str, str]) -> str:
    """What to write instead of *value*, which probably has the unit of *slip*."""
    return f"{shown(value)} looks like {slip[0]}: write {slip[1]}"


def _missing(key: Key, root: type[Part]) -> str:
    kind = _schema(key, root)
    if _takes_number(kind) or _is_sourced(kind):
        return f"must be given; write {NUMBER}"
    if get_origin(kind) is dict or _is_model(kind):
        return f"must be given; add the table, or take it from a shipped {root.thing} with extends"
    return "must be given; add it"


def _unknown(key: Key, root: type[Part]) -> str:
    fields = [name for name in _schema(key[:-1], root).model_fields if name != "sources"]
    known = fields if key[:-1] else ["extends", *fields, "sources"]
    near = get_close_matches(key[-1], known, n=1)
    remedy = f"did you mean {near[0]}?" if near else "rename or drop it"
    return f"must be one of {', '.join(known)}, not {visible(key[-1])}; {remedy}"


def _demand(detail: ErrorDetails) -> tuple[str, str]:
    """What pydantic required, and what to do about it."""
    limits = detail.get("ctx", {})
    match detail["type"]:
        case "finite_number":
            return "must be a finite number", "write one"
        case "int_type":
            return "must be a whole number", "write it without fraction and quotes"
        case "float_type":
            return "must be a number", "write it without quotes"
        case "string_type":
            return "must be a string", "put it in quotes"
        case "tuple_type":
            return "must be a list", "put it in square brackets"
        case "model_type" | "dict_type":
            return "must be a table", "put its entries under a heading in square brackets"
        case "literal_error":
            return f"must be {limits['expected']}", "take one of these"
        case _:
            return f"must pass a check ({detail['msg']})", "correct it"


def dotted(key: Key) -> str:
    """*key* as written in a file, shortened and with nothing hidden."""
    return visible(".".join(key))


def shown(value: object) -> str:
    """*value* in the notation of TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list | tuple):
        return "a table" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int) and abs(value) >= MANY:
        return "a number of very many digits"  # Python does not print more than 4300 digits
    return repr(value) if isinstance(value, int | float) else str(value)
