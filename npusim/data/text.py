"""Text for users, from any source."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

__all__ = ["counted", "coverage", "printable", "tally"]

MOST_NAMES = 8
"""A tally lists this many names, then only counts."""

UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that move the cursor, reverse text, or are half a character."""


def printable(text: str) -> str:
    """*text* with control characters escaped; line breaks remain.

    A name from a file may contain an escape sequence, which could hide or forge output.

    >>> printable("chip \\x1b[2J of 8 µm")
    'chip \\\\x1b[2J of 8 µm'
    """
    return "".join(
        letter
        if letter == "\n" or unicodedata.category(letter) not in UNSEEN
        else letter.encode("unicode_escape").decode()
        for letter in text
    )


def counted(number: int, one: str, many: str) -> str:
    """A count with its noun.

    >>> counted(1, "kernel", "kernels"), counted(0, "kernel", "kernels")
    ('1 kernel', '0 kernels')
    """
    return f"{number} {one if number == 1 else many}"


def tally(counts: Mapping[str, int]) -> str:
    """Counts of each name, the most frequent first, with not too many names.

    >>> tally({"a": 1, "b": 2})
    '2 x b, 1 x a'
    """
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{count} x {name}" for name, count in ranked[:MOST_NAMES]]
    rest = ranked[MOST_NAMES:]
    if rest:
        names = counted(len(rest), "other name", "other names")
        parts.append(f"{sum(count for _, count in rest)} of {names}")
    return ", ".join(parts)


def coverage(timed: int, missing: Mapping[str, int]) -> str:
    """How many kernels of a card are *timed*, and which are *missing*.

    >>> coverage(6, {"aten.pow": 2})
    'coverage 75 %: 6 of 8 kernels timed; 2 run on the host in zero time, so that the total is a \
lower bound: 2 x aten.pow'
    """
    count = sum(missing.values())
    line = f"{timed} of {counted(timed + count, 'kernel', 'kernels')} timed"
    if not count:
        return line
    runs = "1 runs" if count == 1 else f"{count} run"
    return (
        f"coverage {100 * timed // (timed + count)} %: {line}; {runs} on the host in zero time, so "
        f"that the total is a lower bound: {tally(missing)}"
    )
