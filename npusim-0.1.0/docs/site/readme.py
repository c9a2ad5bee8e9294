"""README.md, in two languages, as pages of the site, where links lead from `docs`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PAGES = {"tour": "README.md", "tour_zh": "README.zh-CN.md"}
"""A page of the site -> the file at the root whose text it has."""

LOCAL = re.compile(r"\]\((?![a-z]+:|#)([^)]+)\)")


def include(app: Any, docname: str, source: list[str]) -> None:
    """Put the text of a file of the root in place of the page that stands for it."""
    if docname in PAGES:
        path = ROOT / PAGES[docname]
        app.env.note_dependency(str(path))
        up = "../" * (docname.count("/") + 1)
        text = path.read_text(encoding="utf-8")
        text = LOCAL.sub(rf"]({up}\1)", text).replace(f"]({up}docs/", f"]({up[3:]}")
        for page, name in PAGES.items():
            text = text.replace(f"]({up}{name})", f"]({up[3:]}{page}.md)")
        source[0] = text
