"""The texts of pages in English and Chinese, and the glossary that explains their terms.

A page is written in English; `chinese.toml` has the Chinese texts, and `words.js` replaces one
by the other. A text may have placeholders, as in `bound by {cause}: {share} of {time}`, whose words
are translated too; a placeholder that ends in a star stands for a list.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from functools import cache
from importlib.resources import files

from npusim.data.glossary import terms

__all__ = ["chinese", "words"]


@cache
def chinese() -> dict[str, str]:
    """English -> Chinese, for all texts on pages."""
    text = (files(__package__) / "chinese.toml").read_text(encoding="utf-8")
    return {en: zh for section in tomllib.loads(text).values() for en, zh in section.items()}


def words() -> dict[str, object]:
    """The data that a page holds for both: labels, and terms with all their spellings."""
    found = [asdict(term) | {"words": [term.name, *term.aliases]} for term in terms()]
    for term in found:
        del term["aliases"]
    return {"labels": chinese(), "terms": found}
