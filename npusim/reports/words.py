"""The words of pages in English and Chinese, and the glossary that explains them.

A page is written in English; `chinese.toml` has its texts in Chinese, and `words.js` changes one
into the other. A text may have places, such as `bound by {cause}: {share} of {time}`, whose words
are changed too; where a place ends in a star, a list stands there.
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
    """English -> Chinese, of all texts on pages."""
    text = (files(__package__) / "chinese.toml").read_text(encoding="utf-8")
    return {en: zh for section in tomllib.loads(text).values() for en, zh in section.items()}


def words() -> dict[str, object]:
    """What a page holds of both: labels, and terms with all their spellings."""
    found = [asdict(term) | {"words": [term.name, *term.aliases]} for term in terms()]
    for term in found:
        del term["aliases"]
    return {"labels": chinese(), "terms": found}
