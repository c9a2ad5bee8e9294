"""Text for people, whoever has written it."""

from __future__ import annotations

import unicodedata

__all__ = ["printable"]

UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of what moves the cursor, turns text round, or is half a character."""


def printable(text: str) -> str:
    """*text* with what a terminal would obey written out; lines stay lines.

    A name from a file may hold an escape sequence, which could hide or forge what is shown.

    >>> printable("chip \\x1b[2J of 8 µm")
    'chip \\\\x1b[2J of 8 µm'
    """
    return "".join(
        letter
        if letter == "\n" or unicodedata.category(letter) not in UNSEEN
        else letter.encode("unicode_escape").decode()
        for letter in text
    )
