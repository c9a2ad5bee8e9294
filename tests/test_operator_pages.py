"""The operators that README and docs list are those that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npusim import devices, ops
from npusim.explain.operator import formula
from npusim.reports.model.works import WORKS, work_of

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "operators.md"
CHINESE = ROOT / "docs" / "operators_zh.md"
BEGIN, END = "<!-- operators -->\n\n", "\n<!-- end of operators -->\n"


def by_work() -> dict[str, list[str]]:
    """Kind of work -> the operators that do it."""
    found = {work: [name for name in ops.names() if work_of(name) == work] for work in WORKS}
    return {work: names for work, names in found.items() if names}


def chips(name: str) -> str:
    """The series that operator *name* is supported on."""
    series = {line for row in ops.load(name).support for line in row.on}
    if len(series) == len({devices.load(chip).series for chip in devices.names()}):
        return "all"
    return ", ".join(sorted(series)).replace("Atlas ", "")


MOST_NAMED = 6


def short_table() -> str:
    """A line for each kind of work, with some of its operators."""
    rows = ["| kind of work | operators |", "|---|---|"]
    for work, names in by_work().items():
        more = len(names) - MOST_NAMED
        shown = " ".join(f"`{name}`" for name in names[:MOST_NAMED])
        rows.append(f"| {work} | {shown}{f' +{more}' if more > 0 else ''} |")
    return "\n".join(rows) + "\n"


def long_table() -> str:
    """A line for each operator."""
    rows = ["| operator | chips | what it computes |", "|---|---|---|"]
    for work, names in by_work().items():
        rows.append(f"| **{work}** | | |")
        for name in names:
            rows.append(f"| `{name}` | {chips(name)} | {formula(name)[0].rstrip('.')} |")
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(("path", "table"), [(README, short_table), (PAGE, long_table)])
def test_a_page_lists_the_operators(path: Path, table: object, pytestconfig: pytest.Config) -> None:
    assert callable(table)
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    shown, end, after = rest.partition(END)
    assert end
    if pytestconfig.getoption("--update-golden"):
        path.write_text(before + begin + table() + end + after, encoding="utf-8")
        return
    assert shown == table()


def test_the_chinese_page_lists_the_same_operators_and_chips() -> None:
    listed = {}
    for line in CHINESE.read_text(encoding="utf-8").splitlines():
        if found := re.match(r"\| (`[^|]+`) \| (\S[^|]*?) \|", line):
            for name in re.findall(r"`(\w+)`", found[1]):
                listed[name] = found[2].replace("全部", "all")
    assert listed == {name: chips(name) for name in ops.names()}


@pytest.mark.parametrize("path", [PAGE, CHINESE], ids=lambda path: path.name)
def test_every_chip_is_named(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [name for name in devices.names() if f"`{name}`" not in text] == []
