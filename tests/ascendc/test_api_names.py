"""docs/kernels.md lists the names that the headers declare, and which of them are refused.

`python tests/ascendc/test_api_names.py` writes the list anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from npusim.ascendc.calls import CALLS
from npusim.ascendc.compiler import INCLUDE
from npusim.ascendc.missing import DOCUMENTED

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"
HEADERS = sorted((INCLUDE / "npusim_ascendc").glob("*.h"))
API = re.compile(r"^namespace AscendC \{$(.*?)^\}  // namespace AscendC$", re.MULTILINE | re.DOTALL)
FUNCTION = re.compile(r"^__aicore__ [^(]*?\b(\w+)\(", re.MULTILINE)
CLASS = re.compile(r"^(?:class|struct) (\w+)(?: [:{].*)?$", re.MULTILINE)
FAMILY = re.compile(r"^NPUSIM_(\w+)\((.*)\)$", re.MULTILINE)
IN_FAMILY = re.compile(r"^ +__aicore__ .*? ([A-Z]\w*[a-z]\w*)\(.*\\$", re.MULTILINE)
LONG_FAMILY = re.compile(r"^NPUSIM_\w+\((\w+),", re.MULTILINE)
RECORDED = re.compile(r'(?:record|unary|binary|reduce)\("(\w+)"')
RECORDS_ITSELF = ("UNARY", "BINARY", "WITH_SCALAR", "MIXED", "REDUCTION")
"""Families of which each name is recorded as it is called."""


def declared(text: str) -> list[str]:
    """The functions and types of the API in a header."""
    names = set[str]()
    for part in API.findall(text):
        names |= {*FUNCTION.findall(part), *CLASS.findall(part), *IN_FAMILY.findall(part)}
        for words in (*(each for _, each in FAMILY.findall(part)), *LONG_FAMILY.findall(part)):
            names |= {word for word in words.split(", ") if re.fullmatch(r"[A-Z]\w*[a-z]\w*", word)}
    return sorted(names)


def refused() -> list[str]:
    """Calls that a header records and that no core does."""
    recorded = set[str]()
    for file in HEADERS:
        text = file.read_text()
        recorded |= {*RECORDED.findall(text)}
        for family, words in FAMILY.findall(text):
            if family in RECORDS_ITSELF:
                recorded.add(words.split(", ")[0])
    return sorted(recorded - set(CALLS))


def listing() -> str:
    """The list as the page has it."""
    rows = ["| part | names |", "|---|---|"]
    for file in HEADERS:
        text = file.read_text()
        names = declared(text)
        if names:
            what = text.partition("\n")[0].removeprefix("// ").rstrip(".")
            rows.append(f"| {what} | {', '.join(f'`{name}`' for name in names)} |")
    rows += ["", f"Refused where they are called: {', '.join(f'`{x}`' for x in refused())}."]
    return "\n".join(rows)


def missing() -> str:
    """The documented names that no header has, as the page has them."""
    return ", ".join(f"`{name}`" for name in DOCUMENTED.read_text().split())


def page(text: str) -> str:
    """The page *text* with the lists of today."""
    for mark, content in (("names", listing()), ("missing", missing())):
        before, begin, rest = text.partition(f"<!-- {mark} -->\n")
        _, end, after = rest.partition(f"<!-- end of {mark} -->\n")
        text = f"{before}{begin}{content}\n{end}{after}"
    return text


def test_the_page_lists_what_the_headers_declare() -> None:
    text = PAGE.read_text()
    assert text == page(text)
    assert "`Add`" in text
    assert "`ReduceMax`" in text


def test_no_header_declares_a_name_that_is_listed_as_missing() -> None:
    listed = DOCUMENTED.read_text().split()
    assert listed == sorted(set(listed))
    assert len(listed) > 400
    for file in HEADERS:
        assert set(listed) & set(declared(file.read_text())) == set()


def test_headers_are_short_enough_to_read() -> None:
    assert {file.name for file in HEADERS if file.read_text().count("\n") > 450} == set()


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
