"""Braces in the words of a sweep: what stands in them varies.

.. code-block:: text

    {1..64}          every whole number, as in a shell
    {1..64..8}       every eighth: 1, 9, 17 ...
    {1..64..x2}      each twice the one before: 1, 2, 4 ... 64
    {1,2,4}          these, which may be words or ranges: {float16,bfloat16}, {1..8,16,32}
    {m=1..64}        the same under a name, and
    {m}              the value of that name, in any other word

bash and zsh themselves write unquoted braces out. What they make of them arrives as several words,
which :meth:`Braces.read` puts together again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from math import prod

from npusim.cli.call import UsageError
from npusim.data.errors import shown

__all__ = ["Braces", "Value"]

Value = int | str
MOST_VALUES = 100_000
"""One pair of braces has at most so many: as many as a sweep may have cells."""
RANGE = re.compile(r"([+-]?[0-9]{1,18})\.\.([+-]?[0-9]{1,18})(?:\.\.(x?)([+-]?[0-9]{1,18}))?")
NUMBER = re.compile(r"-?[1-9][0-9]{0,17}|0")
"""A whole number as Python writes it; others, such as 01, are words, which may name files."""
PADDED = re.compile(r"[+-]?0[0-9]+")
PIECE = re.compile(
    r"[a-z]*(?:float|int)[0-9]\w*|(?<!\w)[+-]?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"
    r"|[0-9]+\.[0-9]+|[0-9]+|x(?=[0-9])|[A-Za-z_]+?(?=x[0-9])|[A-Za-z_]+|.",
    re.DOTALL,
)
"""What one pair of braces makes of a word: an element type, a number, letters, or a sign."""


class Braces:
    """The braces of all words of a command, and what varies by them."""

    def __init__(self, command: str) -> None:
        self._command = command
        self.variables: dict[str, tuple[Value, ...]] = {}
        """Name -> its values; unnamed braces are called after their parameter."""
        self._words: list[tuple[str, tuple[str, ...]]] = []
        """Parameter and word, cut where braces begin and end; every other piece is a name."""

    def read(self, name: str, *words: str) -> None:
        """Take in the word of parameter *name*, or all that a shell made of it.

        Raises UsageError for what is no pattern.

        >>> braces = Braces("sweep")
        >>> braces.read("x", "spec:{m=1..4..x2}x16")
        >>> braces.read("y", "spec:{m}x8", "spec:{m}x16")
        >>> braces.variables
        {'m': (1, 2, 4), 'y': (8, 16)}
        >>> braces.filled({"m": 2, "y": 8})
        [('x', 'spec:2x16'), ('y', 'spec:2x8')]
        """
        text = _braced(words)
        if text is not None:
            self._read(name, text)
        elif any(letter in word for word in words for letter in "{}"):
            raise self._error(
                f"braces of which a shell wrote some out must be in quotes, all of {shown(name)}"
            )
        else:
            # Words with no common pattern, or with commas in them.
            self._put(name, words)
            self._words.append((name, ("", name, "")))

    def _read(self, name: str, text: str) -> None:
        """Take in the word *text*, as it was typed."""
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
            self._put(own, self._values(values))
            pieces[place] = own
        self._words.append((name, tuple(pieces)))

    def _put(self, own: str, values: Sequence[Value]) -> None:
        """Note the *values* of the variable *own*."""
        if not own.isidentifier() or own in self.variables:
            raise self._error(
                f"braces must have their own name, such as {{m=1..64}}, not {shown(own)}"
            )
        self.variables[own] = tuple(dict.fromkeys(values))

    def filled(self, values: Mapping[str, Value]) -> list[tuple[str, str]]:
        """Every parameter with its word, where each variable has one of its *values*."""
        found = []
        for name, pieces in self._words:
            parts = (
                str(values[piece]) if place % 2 else piece for place, piece in enumerate(pieces)
            )
            found.append((name, "".join(parts)))
        return found

    def every(self) -> tuple[str, ...]:
        """The one word that was read with each of its values in turn."""
        count = prod(map(len, self.variables.values()))
        if count > MOST_VALUES:
            raise self._error(f"a word must have at most {MOST_VALUES} values, not {count}")
        keys = tuple(self.variables)
        choices = (dict(zip(keys, each, strict=True)) for each in product(*self.variables.values()))
        return tuple(self.filled(each)[0][1] for each in choices)

    def check(self) -> None:
        """Refuse a name in braces that no other braces give values to."""
        for _, pieces in self._words:
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
            elif ".." in part and "/" not in part:
                raise self._error(
                    f"a range must be of whole numbers of at most 18 digits, as 1..64, 1..64..8 or "
                    f"1..64..x2, not {shown(part)}"
                )
            else:
                found.append(int(part) if NUMBER.fullmatch(part) else part)
        if "" in found:
            raise self._error(f"braces must hold a range or a list, not {shown(text)}")
        return tuple(found)

    def _range(self, text: str, match: re.Match[str]) -> list[Value]:
        found = self._numbers(text, match)
        ends = match[1], match[2]
        if any(map(PADDED.fullmatch, ends)):
            # As in a shell: all as long as the longer end.
            return [str(number).zfill(max(map(len, ends))) for number in found]
        return list(found)

    def _numbers(self, text: str, match: re.Match[str]) -> Sequence[int]:
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
        return range(first, last - 1, -step) if last < first else range(first, last + 1, step)

    def _error(self, must: str) -> UsageError:
        return UsageError(f"{self._command}: {must}; write for example {{1..64}} or {{1,2,4}}")


def _braced(words: Sequence[str]) -> str | None:
    """The pattern that a shell wrote out as *words*: what differs in braces; None if there is none.

    >>> _braced(["spec:1x8", "spec:2x8", "spec:10x8"]), _braced(["qint8", "quint8"])
    ('spec:{1,2,10}x8', '{qint8,quint8}')
    """
    if len(words) == 1:
        return words[0]
    cut = [tuple(PIECE.findall(word)) for word in words]
    if len(set(map(len, cut))) > 1:
        return None
    choices = [tuple(dict.fromkeys(column)) for column in zip(*cut, strict=True)]
    has_sign = any(len(each) > 1 and set("".join(each)) & set(",={}") for each in choices)
    if has_sign or prod(map(len, choices)) != len(words) or list(product(*choices)) != cut:
        return None
    return "".join(each[0] if len(each) == 1 else f"{{{','.join(each)}}}" for each in choices)
