"""What a page says in two languages: where its code, numbers, links and tables must be the same.

A page is a sequence of pieces: headings, paragraphs, lists, tables and blocks of code. The Chinese
page has the same pieces in the same order, a paragraph on one line, as Markdown makes a space of
the end of a line. Code is the same byte for byte; of prose, what needs no translation is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from os.path import normpath
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
COURSE = "docs/course"
CHINESE = (
    {"README.md": "README.zh-CN.md"}
    | {f"docs/{page}.md": f"docs/{page}_zh.md" for page in ("tour", "torch", "accuracy")}
    | {
        f"{COURSE}/{page.name}": f"{COURSE}/zh/{page.name}"
        for page in sorted((ROOT / COURSE).glob("*.md"))
    }
)
"""An English page -> its translation, as paths from the root."""

PIECE = re.compile(r"^```.*?^```$|(?:^(?!```)[^\n]*\S[^\n]*(?:\n|\Z))+", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)]+)\)")
UNITS = {
    "字节": "byte", "bytes": "byte", "位": "bit", "bits": "bit",
    "个周期": "cycle", "cycles": "cycle", "B": "billion",
}  # fmt: skip
"""Units that are written in several ways -> the one that is compared."""

NUMBER = re.compile(
    r"(?<![\w.])(-?\d+(?:,\d{3})*(?:\.\d+)?)(?:[ -]?(%|us|Ki?B|MiB|Gi?B|Tflop/s|billion|B|bytes?"
    r"|bits?|cycles?|字节|个周期|位(?!置)|亿|万)(?!\w)|(?!\w))",
    re.ASCII,
)
"""A number that is not part of a name, as `fp16` is, and its unit."""

ORDINAL = re.compile(r"(第 \d+ )位")
"""The place of a bit, which is no number of bits."""

WORDS = re.compile(r"[A-Za-z]{3,}[^A-Za-z]+[A-Za-z]{3,}[^A-Za-z]+[A-Za-z]{3,}")


class Piece(NamedTuple):
    """A part of a page: *kind* is what it is, *start* and *end* where it stands."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def begins(self) -> str:
        """Enough of its beginning to find it by."""
        first, _, rest = self.text.strip().partition("\n")
        line = rest.partition("\n")[0] if first.startswith("```") else first
        return line if len(line) <= 24 else f"{line[:24]}…"


def pieces(text: str) -> list[Piece]:
    """Those of a page, in their order."""
    found = [(match[0].rstrip("\n"), match.start()) for match in PIECE.finditer(text)]
    return [Piece(_kind(piece), piece, start, start + len(piece)) for piece, start in found]


def _kind(text: str) -> str:
    if text.startswith(("```", "    ")):
        return "code"
    if text.startswith("#"):
        return f"heading of level {len(text) - len(text.lstrip('#'))}"
    if text.startswith("|"):
        return "table"
    if text.startswith("* "):
        items = len(re.findall(r"^\* ", text, re.MULTILINE))
        return f"list of {items}"
    return "picture" if text.startswith("![") else "paragraph"


def rows(table: str) -> list[list[str]]:
    """The cells of each row."""
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.split("\n")
    ]


def links(text: str, folder: Path) -> Counter[str]:
    """Where *text* of a page in *folder* leads: paths from the root, and addresses."""
    return Counter(link if ":" in link else normpath(folder / link) for link in LINK.findall(text))


def in_chinese(found: Counter[str]) -> Counter[str]:
    """Where the links of a translation must lead: to translations, and from one to its page."""
    there = CHINESE | {"docs/operators.md": "docs/operators_zh.md"}
    back = {chinese: english for english, chinese in there.items()}
    return Counter((there | back).get(link, link) for link in found.elements())


def numbers(text: str) -> Counter[str]:
    """Those of *text*, each with its unit, as often as they stand there."""
    prose = ORDINAL.sub(r"\1", LINK.sub("", CODE.sub("``", text)))
    return Counter(
        f"{number} {UNITS.get(unit, unit)}".rstrip() for number, unit in NUMBER.findall(prose)
    )


def _said(
    english: str, chinese: str, page: str
) -> Iterator[tuple[str, Counter[str], Counter[str]]]:
    """What both must say alike: what it is, and as the one and the other have it."""
    yield "inline code", Counter(CODE.findall(english)), Counter(CODE.findall(chinese))
    yield "numbers", numbers(english), numbers(chinese)
    ours = in_chinese(links(english, Path(page).parent))
    yield "links", ours, links(chinese, Path(CHINESE[page]).parent)


def differences(page: str, english: str, chinese: str) -> list[str]:
    """What is not the same in both texts of *page*, a line each; translated well, none."""
    ours, theirs = pieces(english), pieces(chinese)
    for one, other in zip(ours, theirs, strict=False):
        if one.kind != other.kind:
            return [f"{other.begins!r} must be the {one.kind} {one.begins!r}, not a {other.kind}"]
    if len(ours) != len(theirs):
        longer = max(ours, theirs, key=len)[min(len(ours), len(theirs))]
        where = "English" if len(ours) > len(theirs) else "Chinese"
        return [f"only the {where} page has the {longer.kind} {longer.begins!r}"]
    return [line for pair in zip(ours, theirs, strict=True) for line in _piece_differs(page, *pair)]


def _piece_differs(page: str, one: Piece, other: Piece) -> Iterator[str]:
    if one.kind == "code":
        if one.text != other.text:
            yield from _lines_differ(one, other)
    elif one.kind == "table":
        yield from _table_differs(page, one, other)
    else:
        yield from _prose_differs(page, one.text, other.text, other.begins)


def _lines_differ(one: Piece, other: Piece) -> Iterator[str]:
    """The first line alone: what follows it may be but shifted."""
    lines = zip_longest(one.text.split("\n"), other.text.split("\n"), fillvalue="")
    number, (line, found) = next(pair for pair in enumerate(lines) if pair[1][0] != pair[1][1])
    yield f"line {number} of the block {one.begins!r} must be {line!r}, not {found!r}"


def _table_differs(page: str, one: Piece, other: Piece) -> Iterator[str]:
    ours, theirs = rows(one.text), rows(other.text)
    if [len(row) for row in ours] != [len(row) for row in theirs]:
        first = [row[0] for row in theirs]
        lacking = [row[0] for row in ours if CODE.search(row[0]) and row[0] not in first]
        yield (
            f"the table {other.begins!r} must have {len(ours)} rows with as many cells as the"
            f" English one, not {len(theirs)}; lacking: {', '.join(lacking) or 'none by name'}"
        )
        return
    for row, found in zip(ours, theirs, strict=True):
        for cell, its in zip(row, found, strict=True):
            yield from _prose_differs(page, cell, its, its)


def _prose_differs(page: str, english: str, chinese: str, begins: str) -> Iterator[str]:
    for name, ours, theirs in _said(english, chinese, page):
        if ours != theirs:
            lacks, adds = (ours - theirs).elements(), (theirs - ours).elements()
            yield f"{begins!r} has other {name}: lacks {[*lacks]}, adds {[*adds]}"
    if english == chinese and WORDS.search(CODE.sub("", english)):
        yield f"{begins!r} must be in Chinese"


def renewed(english: str, chinese: str) -> str:
    """The Chinese page with what needs no translator as in the English one.

    Blocks of code, cells of tables without words, and in a paragraph that differs by one number
    of one unit that number. Pages whose pieces do not pair are left as they are.
    """
    ours, theirs = pieces(english), pieces(chinese)
    if [piece.kind for piece in ours] != [piece.kind for piece in theirs]:
        return chinese
    for one, other in reversed([*zip(ours, theirs, strict=True)]):
        chinese = chinese[: other.start] + _renewed(one, other) + chinese[other.end :]
    return chinese


def _renewed(one: Piece, other: Piece) -> str:
    if one.kind == "code":
        return one.text
    if one.kind != "table":
        return _with_number(one.text, other.text)
    ours, theirs = rows(one.text), rows(other.text)
    if [len(row) for row in ours] != [len(row) for row in theirs]:
        return other.text
    return "\n".join(
        f"| {' | '.join(_cell(*pair) for pair in zip(row, its, strict=True))} |"
        if row[0].strip("-")
        else line
        for row, its, line in zip(ours, theirs, other.text.split("\n"), strict=True)
    )


def _cell(english: str, chinese: str) -> str:
    bare = CODE.sub("", english)
    return _with_number(english, chinese) if re.search(r"[^\W\d_]", bare) else english


def _with_number(english: str, chinese: str) -> str:
    ours, theirs = numbers(english), numbers(chinese)
    lacks, adds = [*(ours - theirs).elements()], [*(theirs - ours).elements()]
    if len(lacks) != 1 or len(adds) != 1:
        return chinese
    (number, _, unit), (was, _, its) = lacks[0].partition(" "), adds[0].partition(" ")
    # In another unit it may be the same number, and of two that are alike one may have changed.
    if unit != its or theirs[adds[0]] != 1:
        return chinese
    stands = rf"{CODE.pattern}|{LINK.pattern}|(?<![\w.])(?P<number>{re.escape(was)})(?!\w|\.\d)"
    return re.sub(stands, lambda at: number if at["number"] else at[0], chinese, flags=re.ASCII)
