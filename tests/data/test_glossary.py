"""The glossary is short, in two languages, and docs/glossary.md lists it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npusim.data.glossary import MOST_TERMS, GlossaryError, find, read, terms

PAGE = Path(__file__).parent.parent.parent / "docs" / "glossary.md"
TERM = """[[terms]]
name = "{}"
name_zh = "流水"
meaning = "A queue."
meaning_zh = "队列。"
"""
SHOWN = [
    *("scalar", "vector", "cube", "mte1", "mte2", "mte3", "fixpipe", "aic", "aiv"),
    *("gm", "L2", "L1", "L0A", "L0B", "L0C", "UB", "BT", "FB", "ND", "NZ", "FRACTAL_NZ"),
    *("busy", "active", "stalled", "drain", "start delay", "slack", "wave", "coverage"),
]
"""Labels of pages and tables."""


def page(text: str) -> str:
    """The page *text* with the terms of today."""
    before, begin, rest = text.partition("<!-- terms -->\n")
    _, end, after = rest.partition("<!-- end of terms -->\n")
    rows = ["| term | 术语 | meaning | 含义 |", "|---|---|---|---|"]
    for term in terms():
        others = f" ({', '.join(term.aliases)})" if term.aliases else ""
        rows.append(
            f"| **{term.name}**{others} | {term.name_zh} | {term.meaning} | {term.meaning_zh} |"
        )
    return "".join((before, begin, "\n".join(rows), "\n", end, after))


def test_the_page_lists_the_terms(pytestconfig: pytest.Config) -> None:
    text = PAGE.read_text(encoding="utf-8")
    if pytestconfig.getoption("--update-golden"):
        PAGE.write_text(page(text), encoding="utf-8")
        return
    assert text == page(text)
    assert "| **mte2** |" in text


@pytest.mark.parametrize("word", SHOWN)
def test_what_a_page_shows_has_a_meaning(word: str) -> None:
    assert find(word) is not None


def test_a_word_that_is_no_term_has_none() -> None:
    assert find("frobnicate") is None


def test_sentences_are_plain() -> None:
    for term in terms():
        assert re.fullmatch(r"[A-Z][^.]*\.( [A-Z][^.]*\.)?", term.meaning.replace("torch.", "")), (
            term.name
        )
        assert term.meaning_zh.endswith("。")
        assert len(term.meaning) <= 160


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "".join(TERM.format(f"t{number:03}") for number in range(MOST_TERMS + 1)),
            "glossary: there must be at most 60 terms, not 61; make two terms one, with an alias",
        ),
        (
            TERM.format("pipe") + TERM.format("Pipe"),
            "glossary: a word must have one meaning, not several as 'pipe' has; leave it out of "
            "one term",
        ),
        (
            TERM.format("pipe") + TERM.format("core"),
            "glossary: terms must be in alphabetical order; sort them by name",
        ),
        (
            TERM.format("pipe").replace('meaning_zh = "队列。"\n', ""),
            "glossary: a term must have name, name_zh, meaning, meaning_zh, not lack meaning_zh as "
            "'pipe' does; write both languages",
        ),
        (
            TERM.format("pipe") + 'alias = ["queue"]\n',
            "glossary: a term must have no key 'alias', as 'pipe' has; rename or drop it",
        ),
    ],
    ids=["long", "twice", "unsorted", "one language", "key"],
)
def test_a_glossary_that_is_not_as_it_should_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(GlossaryError, match=f"^{re.escape(message)}$"):
        read(text)
