"""The language of a page, as its HTML names it: browsers choose glyphs and voices by it.

Without it, a Chinese page is drawn in the Japanese forms of its characters where both are there.
"""

from __future__ import annotations

from typing import Any


def name(_app: Any, docname: str, _template: str, context: dict[str, Any], _tree: Any) -> None:
    """Name Chinese where the page is Chinese."""
    if docname.endswith("_zh") or docname.startswith("course/zh/"):
        context["language"] = "zh-CN"
