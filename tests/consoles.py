"""What README and docs show as typed at a shell: each `console` block, and what it answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


def is_chinese(page: Path) -> bool:
    """Whether *page* is a translation, by its name."""
    return page.parent.name == "zh" or page.stem.endswith("_zh")


PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if not is_chinese(page)),
]
"""Not the translations: tests/test_translations.py holds their blocks equal to these."""


class Console(NamedTuple):
    """A block: *script* is the Python that stands before it, if it runs one."""

    page: str
    command: str
    answer: str
    script: str | None


def consoles() -> list[Console]:
    """Every one, page by page."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.finditer(
            r"(?:^```python\n(?P<script>(?:(?!^```).)*)^```\n\n)?"
            r"^```console\n\$ (?P<command>[^\n]*)\n(?P<answer>.*?)^```",
            text,
            re.DOTALL | re.MULTILINE,
        ):
            name = page.relative_to(ROOT).as_posix()
            found.append(Console(name, block["command"], block["answer"], block["script"]))
    return found


def held(console: Console, answer: str, *, update: bool) -> None:
    """Compare what a command answered with what the page shows; with *update*, show that."""
    if update and answer != console.answer:
        page = ROOT / console.page
        before = f"```console\n$ {console.command}\n"
        text = page.read_text(encoding="utf-8")
        shown = f"{before}{console.answer}```"
        assert text.count(shown) == 1
        page.write_text(text.replace(shown, f"{before}{answer}```"), encoding="utf-8")
        return
    assert answer == console.answer


def needs_torch(console: Console) -> bool:
    """Whether it runs a script of PyTorch, which its own tests do."""
    return "npusim.torch" in console.command
