"""A picture as an element of a page, in which labels remain text."""

from __future__ import annotations

import re
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["svg_of"]

FONTS = "'DejaVu Sans', Verdana, 'PingFang SC', 'Microsoft YaHei', 'Noto Sans CJK SC', sans-serif"


def svg_of(figure: Figure, salt: str) -> str:
    """*figure* as an element; *salt* makes the ids inside differ from those of other figures."""
    from matplotlib import rc_context

    text = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    element = text.getvalue()
    element = element[element.index("<svg") :].replace("'DejaVu Sans'", FONTS)
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    element = re.sub(r'\bid="(figure|axes|matplotlib|text|patch|line2d)[^"]*"', "", element)
    return re.sub(r"\s*\n\s*", "\n", element)
