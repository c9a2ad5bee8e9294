"""Braces in the words of a sweep: what stands in them varies.

.. code-block:: text

    {1..64}          every whole number, as in a shell
    {1..64..8}       every eighth: 1, 9, 17 ...
    {1..64..x2}      each twice the one before: 1, 2, 4 ... 64
    {1,2,4}          these, which may be words or ranges: {float16,bfloat16}, {1..8,16,32}
    {m=1..64}        the same under a name, and
    {m}              the value of that name, in any other word

bash and zsh themselves write unquoted braces out. What they make of them arrives as several words,
which :func:`braced` puts together again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise, product

from npusim.cli.call import UsageError
from npusim.data.errors import shown

__all__ = ["Braces", "Value", "braced"]

Value = int | str
MOST_VALUES = 100_000
"""Of one pair of braces: as many as a sweep may have cells."""
RANGE = re.compile(r"([+-]?[0-9]{1,18})\.\.([+-]?[0-9]{1,18})(?:\.\.(x?)([+-]?[0-9]{1,18}))?")


class Braces:
    """The braces of all words of a command, and what varies by them."""

    def __init__(self, command: str) -> None:
        self._command = command
        self.variables: dict[str, tuple[Value, ...]] = {}
        """Name -> its values; unnamed braces are called after their parameter."""
        self._words: dict[str, tuple[str, ...]] = {}

    def read(self, name: str, text: str) -> None:
        """Take in the word *text* of parameter *name*; raises UsageError for what is no pattern.

        >>> braces = Braces("sweep")
        >>> braces.read("x", "spec:{m=1..4..x2}x16")
        >>> braces.read("y", "spec:{m}x{8,16}")
        >>> braces.variables
        {'m': (1, 2, 4), 'y': (8, 16)}
        >>> braces.filled({"m": 2, "y": 8})
        {'x': 'spec:2x16', 'y': 'spec:2x8'}
        """
        pieces = re.split(r"\{([^{}]*)\}", text)
        if any(letter in piece for piece in pieces[::2] for letter in "{}"):
            raise self._error(
                f"braces must come in pairs, none in another, not as in {shown(text)}"
            )
        unnamed = sum(1 for piece in pieces[1::2] if self._is_unnamed(piece))
        number = 0
        for place in range(1, len(pieces), 2):
            inside = pieces[place]
            own, equals, values = inside.partition("=")
            if not equals and not self._is_unnamed(inside):
                continue  # a name
            if not equals:
                number += 1
                own, values = (f"{name}_{number}" if unnamed > 1 else name), inside
            if not own.isidentifier() or own in self.variables:
                raise self._error(
                    f"braces must have a name of their own, such as {{m=1..64}}, not {shown(own)}"
                )
            self.variables[own] = self._values(values)
            pieces[place] = own
        self._words[name] = tuple(pieces)

    def filled(self, values: Mapping[str, Value]) -> dict[str, str]:
        """Parameter -> its word, where each variable has one of its *values*."""
        found = {}
        for name, pieces in self._words.items():
            parts = (
                str(values[piece]) if place % 2 else piece for place, piece in enumerate(pieces)
            )
            found[name] = "".join(parts)
        return found

    def every(self, name: str) -> tuple[str, ...]:
        """The word of *name* with each of its values in turn."""
        choices = product(*self.variables.values())
        keys = tuple(self.variables)
        return tuple(self.filled(dict(zip(keys, each, strict=True)))[name] for each in choices)

    def check(self) -> None:
        """Refuse a name in braces that no other braces give values to."""
        for pieces in self._words.values():
            for piece in pieces[1::2]:
                if piece not in self.variables:
                    near = get_close_matches(piece, self.variables, n=1)
                    hint = f"did you mean {{{near[0]}}}?" if near else "write for example {1..64}"
                    raise UsageError(
                        f"{self._command}: braces must hold a range, a list, or a name that has "
                        f"values, not {shown(piece)}; {hint}"
                    )

    @staticmethod
    def _is_unnamed(inside: str) -> bool:
        return "=" not in inside and ("," in inside or ".." in inside)

    def _values(self, text: str) -> tuple[Value, ...]:
        found: list[Value] = []
        for part in text.split(","):
            match = RANGE.fullmatch(part)
            if match:
                found += self._range(part, match)
            else:
                found.append(int(part) if re.fullmatch(r"[+-]?[0-9]{1,18}", part) else part)
        if "" in found:
            raise self._error(f"braces must hold a range or a list, not {shown(text)}")
        return tuple(dict.fromkeys(found))

    def _range(self, text: str, match: re.Match[str]) -> list[int]:
        first, last = int(match[1]), int(match[2])
        step = int(match[4] or 1)
        if match[3]:
            if first < 1 or last < first or step < 2:
                raise self._error(
                    f"a range by a factor must go up from 1 or more by x2 or more, not as "
                    f"{shown(text)}"
                )
            found = [first]
            while found[-1] * step <= last:
                found.append(found[-1] * step)
            return found
        step = abs(step) or 1
        if abs(last - first) // step >= MOST_VALUES:
            raise self._error(
                f"a range must have at most {MOST_VALUES} values, not as {shown(text)}"
            )
        if last < first:
            return list(range(first, last - 1, -step))
        return list(range(first, last + 1, step))

    def _error(self, must: str) -> UsageError:
        return UsageError(f"{self._command}: {must}; write for example {{1..64}} or {{1,2,4}}")


def braced(words: Sequence[str]) -> str:
    """The pattern that a shell wrote out as *words*: their common text, and in braces the rest.

    >>> braced(["spec:1x8", "spec:2x8", "spec:10x8"]), braced(["qint8", "quint8"])
    ('spec:{1,2,10}x8', '{qint8,quint8}')
    """
    if len(words) == 1:
        return words[0]
    cut = [re.findall(r"[0-9]+|[^0-9]+", word) for word in words]
    if all(len(one) == len(other) for one, other in pairwise(cut)):
        columns = list(zip(*cut, strict=True))
        varied = [place for place, column in enumerate(columns) if len(set(column)) > 1]
        if len(varied) == 1:
            (place,) = varied
            inside = ",".join(columns[place])
            return "".join(
                f"{{{inside}}}" if here == place else column[0]
                for here, column in enumerate(columns)
            )
    return f"{{{','.join(words)}}}"
