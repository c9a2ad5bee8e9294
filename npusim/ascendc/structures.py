"""Structures in a preprocessed source: their fields, and which of them a kernel reads.

The compiler gives the offsets of fields; this module finds their names in the output of the
preprocessor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from npusim.ascendc.source import Word, closing_of, words_of

__all__ = ["Member", "Structure", "needed", "own_text", "printing", "read_by", "structure"]

BRACES = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])'|namespace\s+([\w:]+)\s*\{|[{}]")
"""Brackets of blocks, and the names of namespaces."""
LINE = re.compile(r'^# \d+ "([^"]*)"', re.MULTILINE)
SYSTEM = ("/usr/", "<")
"""Path prefixes of files that do not belong to kernels."""
NOT_A_FIELD = frozenset(("using", "typedef", "static", "friend", "enum", "template", "public"))
NOT_A_FIELD |= {"private", "protected", "constexpr", "operator"}
ACCESS = frozenset(("public", "private", "protected"))
NAME = r"[A-Za-z_][\w:]*"


class Member(NamedTuple):
    """A field of a structure, and the last word of its type."""

    name: str
    type: str


class Structure(NamedTuple):
    """A structure with its qualified name."""

    name: str
    members: tuple[Member, ...]


def own_text(preprocessed: str) -> str:
    """The output of a preprocessor without system files."""
    edges = [*LINE.finditer(preprocessed)]
    ends = [match.start() for match in edges[1:]] + [len(preprocessed)]
    return "".join(
        preprocessed[match.end() : end]
        for match, end in zip(edges, ends, strict=True)
        if not match[1].startswith(SYSTEM)
    )


def structure(text: str, name: str) -> Structure | None:
    """The structure *name* of *text*, including its base classes."""
    last = _unaliased(text, name).rpartition("::")[2]
    head = re.search(rf"\b(?:struct|class)\b[^;{{}}()=]*?\b{last}\b([^;{{}}()=<>]*)\{{", text)
    if head is None:
        return None
    members: list[Member] = []
    for base in re.findall(rf"{NAME}", head[1].partition(":")[2]):
        inherited = structure(text, base) if base not in ACCESS | {"virtual"} else None
        members += inherited.members if inherited else ()
    members += _members(_body(text, head.end() - 1))
    return Structure("::".join([*_namespaces(text[: head.start()]), last]), tuple(members))


def needed(text: str, name: str) -> dict[str, Structure]:
    """The structure *name* of *text* and its nested ones, by the last part of each name."""
    found: dict[str, Structure] = {}
    waiting = [name]
    while waiting:
        each = waiting.pop()
        known = structure(text, each) if each not in found else None
        if known is not None:
            found[each] = known
            waiting += [member.type for member in known.members]
    return found


def read_by(text: str, kernel: str, pointer: str) -> list[str]:
    """The structures that *kernel* reads from its parameter *pointer*, according to *text*."""
    head = re.search(rf"\b{kernel}\s*\([^;{{]*\{{", text)
    for part in ((_body(text, head.end() - 1),) if head else ()) + (text,):
        found = re.findall(rf"read_tiling<\s*(?:const )?({NAME})\s*>\(\s*{pointer}\s*\)", part)
        if found:
            return list(dict.fromkeys(_unaliased(part + text, each) for each in found))
    return []


def printing(structures: dict[str, Structure]) -> str:
    """C++ that prints the offsets of the fields of *structures*, and exits before other code."""
    lines = [
        f'npusim::print_field<decltype(::{known.name}::{member.name})>("{name}", "{member.name}", '
        f'"{member.type}", '
        f"offsetof(::{known.name}, {member.name}), sizeof(::{known.name}));"
        for name, known in structures.items()
        for member in known.members
    ]
    return (
        '\n#include <unistd.h>\n#include "npusim_ascendc/layout.h"\n'
        "__attribute__((constructor(101))) static void npusim_print_layout()\n{\n"
        + "\n".join(lines)
        + "\nfflush(stdout);\n_exit(0);\n}\nint main() {}\n"
    )


def _unaliased(text: str, name: str) -> str:
    """The type that *name* stands for, if the text has a `using` for it."""
    alias = re.search(rf"\busing\s+{name.rpartition('::')[2]}\s*=\s*({NAME})\s*;", text)
    return name if alias is None or alias[1] == name else _unaliased(text, alias[1])


def _namespaces(before: str) -> list[str]:
    """The namespaces that are open at the end of *before*."""
    opened: list[str] = []
    for match in BRACES.finditer(before):
        if match[0] == "}" and opened:
            opened.pop()
        elif match[0].endswith("{"):
            opened.append(match[1] or "")
    return [name for name in opened if name]


def _body(text: str, opening: int) -> str:
    """The text between the bracket at *opening* and its closing bracket."""
    depth = 0
    for match in BRACES.finditer(text, opening):
        depth += match[0].endswith("{") - (match[0] == "}")
        if depth == 0:
            return text[opening + 1 : match.start()]
    return text[opening + 1 :]


def _members(body: str) -> Iterator[Member]:
    """The fields that the *body* of a structure declares."""
    words = [word for word in words_of(body) if word.kind not in ("blank", "line")]
    statement: list[Word] = []
    index = 0
    while index < len(words):
        word = words[index]
        if word.text in ("(", "[", "{"):
            is_body = word.text == "{" and any(x.text == "(" for x in statement)
            statement.append(word)
            index = closing_of(words, index)
            if is_body:
                statement = []
        elif word.text == ";":
            yield from _declared(statement)
            statement = []
        elif word.text == ":" and len(statement) == 1 and statement[0].text in ACCESS:
            statement = []
        else:
            statement.append(word)
        index += 1


def _declared(statement: Sequence[Word]) -> Iterator[Member]:
    """The fields that one statement declares; its brackets are reduced to their first token."""
    texts = [word.text for word in statement]
    before = texts[: texts.index("=")] if "=" in texts else texts
    if not texts or texts[0] in NOT_A_FIELD or "(" in before:
        return
    depth, kind = 0, ""
    parts: list[list[Word]] = [[]]
    for word in statement:
        depth += (word.text == "<") - (word.text == ">")
        if word.text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(word)
    for part in parts:
        names = [
            word.text
            for word in part[: next((i for i, x in enumerate(part) if x.text in "=[{:"), None)]
            if word.kind == "name"
        ]
        kind = kind or (names[-2] if len(names) > 1 else "")
        if names and kind:
            yield Member(names[-1], kind)
