"""Valid names, names that mean the same, and names that are alike.

Documents, shops and tools each spell a chip in their own way: `Ascend910B3`, `910B3`, `昇腾910B3`,
`Atlas A2 训练系列产品`. Case, blanks, `-` and `_`, the brand, and the words for *series* and
*product* say nothing about which chip is meant, so they do not count.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from difflib import get_close_matches
from typing import Annotated

from pydantic import AfterValidator

__all__ = [
    "Line",
    "Name",
    "begun",
    "has_hidden",
    "likely",
    "normalised",
    "quoted",
    "visible",
    "whole",
]

NAME_LETTERS = 64
LINE_LETTERS = 1000
"""About three times the longest source text of a shipped chip."""
SHOWN_LETTERS = 80
"""Letters of an invalid text that are quoted."""
PATH_LETTERS = 4096
"""The longest path on Linux (PATH_MAX of limits.h)."""
LIKENESS = 0.8
"""Share of common letters, as difflib computes it, above which a name counts as misspelled."""


def has_hidden(text: str) -> bool:
    """Whether *text* contains anything that is not visible on one line.

    These are the control, format, surrogate and unassigned characters of Unicode, which include
    terminal escapes and changes of writing direction, and its line separators.
    """
    if text.isprintable():
        return False
    # Blanks other than the ASCII one are not printable according to Python.
    return any(
        unicodedata.category(letter)[0] == "C" or unicodedata.category(letter) in ("Zl", "Zp")
        for letter in text
    )


def visible(text: str, letters: int = SHOWN_LETTERS) -> str:
    r"""*text* for a message: short, on one line, and with nothing hidden.

    >>> visible("chip\x1b[31m"), visible("ab" * 50)[-6:]
    ('chip\\x1b[31m', 'aba...')
    """
    seen = "".join(
        letter.encode("unicode_escape").decode() if has_hidden(letter) else letter
        for letter in text[: letters + 1]
    )
    return seen if len(seen) <= letters else f"{seen[: letters - 3]}..."


def quoted(text: str) -> str:
    """The same, in quotes."""
    return f"'{visible(text)}'"


def whole(path: str) -> str:
    """*path* in quotes, not shortened, since the reader needs all of it."""
    return f"'{visible(path, PATH_LETTERS)}'"


# ---- valid texts of a device file ----


def _name(name: str) -> str:
    # No markup of pages or terminals, no mathematics of pictures, no path.
    if len(name) > NAME_LETTERS or not re.fullmatch(r"[^\W_](?:[\w .+()-]*[\w.+)])?", name):
        raise ValueError(
            f"must be letters, digits, blanks and _ . + - ( ), {NAME_LETTERS} at most, from a "
            f"letter or a digit on, not {quoted(name)}; rename it"
        )
    return name


def _line(text: str) -> str:
    if len(text) > LINE_LETTERS or has_hidden(text):
        raise ValueError(
            f"must be one line of at most {LINE_LETTERS} letters and no control characters, "
            f"not {quoted(text)}; shorten or retype it"
        )
    return text


Name = Annotated[str, AfterValidator(_name)]
"""The name of a chip, which appears in pages, pictures, tables and on terminals."""
Line = Annotated[str, AfterValidator(_line)]
"""Free text, such as the source of a number."""


# ---- names that mean the same ----

TRANSLATED = {"昇腾": "ascend", "训练": "training", "推理": "inference", "异构": "heterogeneous"}
SILENT = re.compile(
    r"[\s_-]+|huawei|华为|ascend|atlas|series|系列|products?|产品|components?|组件"
    r"|inference(?:cards?|servers?|卡|服务器)|training(?:servers?|服务器)|视频解析卡"
)
"""Parts that are ignored: blanks and dashes, the brand, and the words for kinds of product."""


def normalised(name: str) -> str:
    """*name* without the parts that do not identify a chip.

    >>> normalised("Atlas A2 训练系列产品"), normalised("Atlas A2 Training Product")
    ('a2training', 'a2training')
    >>> normalised("Ascend910_9391"), normalised("Atlas 300I Pro 推理卡")
    ('9109391', '300ipro')
    """
    plain = re.sub(r"[_-]+", "", _folded(name))
    for word, english in TRANSLATED.items():
        plain = plain.replace(word, english)
    return SILENT.sub("", plain)


def likely(name: str, known: Collection[str]) -> str | None:
    """The *known* name that *name* probably misspells, of the same family of chips.

    >>> likely("ascend910b9", ["ascend910b3", "ascend310p3"])
    'ascend910b3'
    >>> likely("Ascend310B", ["ascend910b4", "ascend310p3"])
    """
    kin: dict[str, str] = {}
    for each in known:
        if _family(each) == _family(name):
            kin.setdefault(_folded(each), each)
            kin.setdefault(normalised(each), each)
    for spelled in (_folded(name), normalised(name)):
        near = get_close_matches(spelled, kin, n=1, cutoff=LIKENESS)
        if near:
            return kin[near[0]]
    return None


def begun(name: str, known: Collection[str]) -> list[str]:
    """Those *known* names that begin with all words of *name*, and are longer.

    >>> begun("Atlas 800I", ["Atlas 800I A2", "Atlas 800I A3", "Atlas 800T A2"])
    ['Atlas 800I A2', 'Atlas 800I A3']
    >>> begun("Ascend910", ["Ascend910B"]), begun("Atlas", ["Atlas A2"])
    ([], [])
    """
    words = _words(name)
    if not normalised(name):
        return []
    return [each for each in known if _words(each)[: len(words)] == words != _words(each)]


def _words(name: str) -> list[str]:
    return unicodedata.normalize("NFKC", name).casefold().split()


def _folded(name: str) -> str:
    # Full-width letters and blanks, as in Chinese text, are the same letters.
    return re.sub(r"[\s-]+", "_", unicodedata.normalize("NFKC", name).casefold().strip())


def _family(name: str) -> tuple[str, str, str]:
    """The number that identifies a family, 910B or 910_93, then generation and use.

    >>> _family("Ascend910B3"), _family("Atlas 800I A2"), _family("Atlas 推理系列产品")
    (('910b', '', ''), ('800i', '2', ''), ('', '', 'inference'))
    """
    spelled = _folded(name)
    number = re.search(r"\d+(?:_\d\d|[a-z]|_[a-z](?![a-z0-9]))?", spelled)
    generation = re.search(r"(?<![a-z0-9])a(\d)(?!\d)", spelled)
    use = re.search(r"training|inference", normalised(name))
    return (
        number[0].replace("_", "") if number else "",
        generation[1] if generation else "",
        use[0] if use else "",
    )
