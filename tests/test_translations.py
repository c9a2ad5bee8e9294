"""The Chinese pages say what the English ones say: the same code, numbers, links and tables."""

from __future__ import annotations

import pytest
from translations import CHINESE, COURSE, ROOT, differences, links, renewed

UNTRANSLATED: tuple[str, ...] = ()
"""English pages, as paths from the root, that have no Chinese one yet."""

TRANSLATED = [page for page in CHINESE if page not in UNTRANSLATED]


def test_every_page_has_a_translation_or_is_declared_to_have_none() -> None:
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / COURSE / "zh").glob("*.md")}
    there |= {path.name for path in ROOT.glob("README.*.md")}
    # tests/test_operator_pages.py holds the lists of operators against each other.
    there |= {f"docs/{path.name}" for path in (ROOT / "docs").glob("*_zh.md")}
    there -= {"docs/operators_zh.md"}
    assert sorted(there) == sorted(CHINESE[page] for page in TRANSLATED)
    assert set(UNTRANSLATED) <= set(CHINESE)


@pytest.mark.parametrize("page", TRANSLATED)
def test_a_translation_matches_its_page(page: str, pytestconfig: pytest.Config) -> None:
    """With --update-golden, blocks and numbers are copied first; words are for a translator."""
    english = (ROOT / page).read_text(encoding="utf-8")
    path = ROOT / CHINESE[page]
    if pytestconfig.getoption("--update-golden"):
        path.write_text(renewed(english, path.read_text(encoding="utf-8")), encoding="utf-8")
    told = differences(page, english, path.read_text(encoding="utf-8"))
    assert told == [], f"{path.name}: --update-golden copies blocks and numbers, words need you"


@pytest.mark.parametrize("page", TRANSLATED)
def test_every_link_of_a_translation_leads_somewhere(page: str) -> None:
    found = links((ROOT / CHINESE[page]).read_text(encoding="utf-8"), (ROOT / CHINESE[page]).parent)
    assert found
    assert [link for link in found if ":" not in link and not (ROOT / link).exists()] == []


ENGLISH = """# 1. A title

A copy of `load` takes 32 bytes, `4` of them from [page 4](04_nd_and_nz.md).

```python
>>> 1 + 1
2

```

| name | what |
|---|---|
| `a` | 16 rows |
"""
TRANSLATION = """# 1. 标题

`load` 的一次搬运从[第 4 页](04_nd_and_nz.md)取 32 字节，其中 `4` 个。

```python
>>> 1 + 1
2

```

| 名称 | 含义 |
|---|---|
| `a` | 16 行 |
"""


LOAD = "'`load` 的一次搬运从[第 4 页](04_…' has other"
TELLS = {
    ("", ""): [],
    ("32 字节", "64 字节"): [f"{LOAD} numbers: lacks ['32 byte'], adds ['64 byte']"],
    ("32 字节", "32 个周期"): [f"{LOAD} numbers: lacks ['32 byte'], adds ['32 cycle']"],
    ("32 字节", "`32` 字节"): [
        f"{LOAD} inline code: lacks [], adds ['32']",
        f"{LOAD} numbers: lacks ['32 byte'], adds []",
    ],
    ("04_nd_and_nz", "04_nd_and_zz"): [
        f"{LOAD} links: lacks ['{COURSE}/zh/04_nd_and_nz.md'], adds ['{COURSE}/zh/04_nd_and_zz.md']"
    ],
    ("1 + 1", "1 + 2"): ["line 1 of the block '>>> 1 + 1' must be '>>> 1 + 1', not '>>> 1 + 2'"],
    ("2\n\n```", "2\n```"): ["line 3 of the block '>>> 1 + 1' must be '', not '```'"],
    ("| `a` | 16 行 |\n", ""): [
        "the table '| 名称 | 含义 |' must have 3 rows with as many cells as the English one, not "
        "2; lacking: `a`"
    ],
    ("16 行", "61 行"): ["'61 行' has other numbers: lacks ['16'], adds ['61']"],
    ("# 1.", "## 1."): [
        "'## 1. 标题' must be the heading of level 1 '# 1. A title', not a heading of level 2"
    ],
    ("\n| 名称", "\n多。\n\n| 名称"): [
        "'多。' must be the table '| name | what |', not a paragraph"
    ],
    ("16 行 |\n", "16 行 |\n\n多。\n"): ["only the Chinese page has the paragraph '多。'"],
}


@pytest.mark.parametrize("change", TELLS)
def test_what_differs_is_reported(change: tuple[str, str]) -> None:
    page = f"{COURSE}/01_the_core.md"
    told = differences(page, ENGLISH, TRANSLATION.replace(*change, 1))
    assert told == TELLS[change]


def test_prose_that_stands_there_in_english_is_reported() -> None:
    page, text = f"{COURSE}/01_the_core.md", "The same words in both.\n"
    assert differences(page, text, text) == ["'The same words in both.' must be in Chinese"]


@pytest.mark.parametrize(
    ("was", "becomes"), [("1 + 1\n2", "2 + 2\n4"), ("32", "64"), ("`a`", "`b`"), ("16", "8")]
)
def test_blocks_names_and_single_numbers_need_no_translator(was: str, becomes: str) -> None:
    english = ENGLISH.replace(was, becomes)
    assert renewed(english, TRANSLATION) == TRANSLATION.replace(was, becomes)


def test_a_number_is_renewed_outside_of_code_and_links_alone() -> None:
    renumbered = renewed(ENGLISH.replace("page 4", "page 5"), TRANSLATION)
    assert renumbered == TRANSLATION.replace("第 4 页", "第 5 页")


def test_what_needs_a_translator_is_left_as_it_is() -> None:
    assert renewed(f"{ENGLISH}\nMore.\n", TRANSLATION) == TRANSLATION
    assert renewed(ENGLISH.replace("32", "64").replace("A copy", "1 copy"), TRANSLATION) == (
        TRANSLATION
    )
