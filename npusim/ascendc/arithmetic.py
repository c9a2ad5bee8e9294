"""Scalar operations on values that a kernel reads, counted in the text of its source.

The compiler of the host generates other instructions than that of the chip, and they change with
each version. So operators are counted in the source: those of the statement that calls
``GetValue``, and those of later statements of its block that use the assigned variable, directly or
indirectly. Each is one operation per call, however often its statement runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from npusim.ascendc.source import WORDS
from npusim.kernel.program import Line

__all__ = ["READS", "Reading", "Readings"]

READS = frozenset(("GetValue", "GetGlobalValue"))
"""The records of calls that return a value to C++."""
GET, SET = "GetValue", "SetValue"
TOKEN = re.compile(
    r"[A-Za-z_]\w*|\.?\d[\w.']*|<<=|>>=|->|::|\+\+|--|&&|\|\||<<|>>|[<>=!]=|[-+*/%&|^]=|\S|\n"
)
COMPOUND = frozenset(("+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="))
OPERATORS = COMPOUND | {
    *("+", "-", "*", "/", "%", "&", "|", "^", "~", "<<", ">>", "++", "--"),
    *("<", ">", "<=", ">=", "==", "!=", "!", "&&", "||", "?"),
}
IN_TEMPLATE_ARGUMENTS = re.compile(r"[\w:,*&<>.]+")
BEHIND_TEMPLATE_ARGUMENTS = re.compile(r"[\w(),;>:{&*.\[]")


class Reading(NamedTuple):
    """A statement that reads values."""

    file: str
    line: int
    """The line where it begins."""
    operations: int
    """Operators that belong to it."""


@dataclass(slots=True)
class _Statement:
    tokens: list[str]
    first: int
    last: int
    """Lines."""
    depth: int
    """The number of enclosing braces."""
    operations: int = field(init=False)
    assigned: set[str] = field(init=False)
    used: set[str] = field(init=False)

    def __post_init__(self) -> None:
        tokens = _without_template_arguments(self.tokens)
        count = sum(token in OPERATORS for token in tokens)
        # A SetValue has one operation itself: the one that computes its value.
        self.operations = max(0, count - (SET in tokens))
        self.assigned = set(_assigned(tokens))
        is_only_set = self.assigned if not COMPOUND & {*tokens} else set[str]()
        names = [token for token in tokens if token[0].isalpha() or token[0] == "_"]
        self.used = {name for name in names if name not in is_only_set or names.count(name) > 1}


class Readings:
    """The statements of sources that read values, from the current text of the files."""

    def __init__(self) -> None:
        self._files: dict[str, dict[int, tuple[Reading, ...]]] = {}

    def at(self, line: Line) -> tuple[Reading, ...]:
        """The statements in a line."""
        file, number = line
        if file not in self._files:
            self._files[file] = _readings(file)
        return self._files[file].get(number, ())


def _readings(file: str) -> dict[int, tuple[Reading, ...]]:
    """Line -> the statements of *file* that read values there."""
    path = Path(file)
    if not path.is_file():
        return {}
    statements = list(_statements(path.read_text(errors="replace")))
    operations = _operations(statements)
    found: dict[int, tuple[Reading, ...]] = {}
    for index, each in enumerate(statements):
        if GET in each.tokens:
            reading = Reading(file, each.first, operations[index])
            for number in range(each.first, each.last + 1):
                found[number] = (*found.get(number, ()), reading)
    return found


def _operations(statements: Sequence[_Statement]) -> dict[int, int]:
    """Statement that reads values -> the operators that belong to it."""
    found: dict[int, int] = {}
    sources: dict[str, list[int]] = {}
    """Name -> the statements that read what it was computed from; the last one counts."""
    for index, each in enumerate(statements):
        for name, those in sources.items():
            sources[name] = [x for x in those if statements[x].depth <= each.depth]
        used = [sources[name][-1] for name in each.used if sources.get(name)]
        source = index if GET in each.tokens else max(used, default=None)
        if source is not None:
            found[source] = found.get(source, 0) + each.operations
        for name in each.assigned:
            outer = [x for x in sources.get(name, ()) if statements[x].depth < each.depth]
            sources[name] = outer if source is None else [*outer, source]
    return found


def _statements(text: str) -> Iterator[_Statement]:
    """The text between semicolons and braces, with its lines and depth."""
    tokens: list[str] = []
    depth, line, first = 0, 1, 1
    for token in _tokens(text):
        if token == "\n":
            line += 1
        elif token in ("{", "}", ";"):
            if tokens:
                yield _Statement(tokens, first, line, depth)
                tokens = []
            depth += (token == "{") - (token == "}")
        else:
            first = first if tokens else line
            tokens.append(token)


def _tokens(text: str) -> Iterator[str]:
    """The tokens of C++ and line ends, without comments, strings and preprocessor directives."""
    code = "".join(
        "\n" * match.group().count("\n") + " "
        if match.lastgroup in ("blank", "text", "mark", "line")
        else match.group()
        for match in WORDS.finditer(text)
    )
    yield from TOKEN.findall(code)


def _without_template_arguments(tokens: Sequence[str]) -> list[str]:
    """*tokens* without ``<...>`` after a name, if it looks like template arguments."""
    found: list[str] = []
    place = 0
    while place < len(tokens):
        is_behind_name = bool(found) and (found[-1][0].isalpha() or found[-1][0] == "_")
        end = _closing(tokens, place) if tokens[place] == "<" and is_behind_name else None
        if end is None:
            found.append(tokens[place])
        place = place + 1 if end is None else end
    return found


def _closing(tokens: Sequence[str], place: int) -> int | None:
    """The index after the ``>`` that closes the ``<`` at *place*, if it is a template's."""
    depth = 0
    for index in range(place, len(tokens)):
        token = tokens[index]
        if not IN_TEMPLATE_ARGUMENTS.fullmatch(token) or token in ("&&", "<=", ">=", "<<"):
            return None
        depth += {"<": 1, ">": -1, ">>": -2}.get(token, 0)
        if depth <= 0:
            behind = tokens[index + 1] if index + 1 < len(tokens) else ";"
            return index + 1 if BEHIND_TEMPLATE_ARGUMENTS.match(behind) else None
    return None


def _assigned(tokens: Sequence[str]) -> Iterator[str]:
    """The names before each assignment operator outside parentheses."""
    depth = 0
    name = ""
    for token in tokens:
        depth += (token in ("(", "[")) - (token in (")", "]"))
        if depth == 0 and (token[0].isalpha() or token[0] == "_"):
            name = token
        elif depth == 0 and (token == "=" or token in COMPOUND) and name:
            yield name
