"""The words of the site's search, in English and in Chinese.

Chinese has no blanks between words, so each two neighbouring characters count as one: a page has
what is searched if it has all pairs of it. Sphinx splits what it indexes, and the search page
what is typed.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.search.en import SearchEnglish

HAN = "一-鿿"
PAIRS = rf"(?=([{HAN}]{{2}}))|(?<![{HAN}])[{HAN}](?![{HAN}])"
"""Pairs, which overlap, and a character that stands alone."""


class Words(SearchEnglish):
    """English words, and pairs of Chinese characters."""

    js_splitter_code = (
        rf"function splitQuery(query) {{ const words = /{PAIRS}|"
        rf"(?:(?![{HAN}])[\p{{L}}\p{{N}}_])+/gu;"
        " return Array.from(query.matchAll(words), function (found) {"
        " return found[1] || found[0]; }); }"
    )
    _words = re.compile(rf"{PAIRS}|(?:(?![{HAN}])\w)+")

    def split(self, input: str) -> list[str]:
        """The words of *input*.

        >>> Words({}).split("用 npusim 做矩阵乘")
        ['用', 'npusim', '做矩', '矩阵', '阵乘']
        """
        return [found[1] or found[0] for found in self._words.finditer(input)]


def add(app: Any) -> None:
    """Search by these words."""
    app.add_search_language(Words)
