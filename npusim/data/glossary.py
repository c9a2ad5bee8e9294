"""The glossary: terms shared by pages, messages and documents, in English and Chinese.

>>> find("MTE2").name_zh
'搬入流水 MTE2'
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["MOST_TERMS", "GlossaryError", "Term", "find", "read", "terms"]

MOST_TERMS = 60
"""More would be too many for a newcomer to learn."""
TEXTS = ("name", "name_zh", "meaning", "meaning_zh")


class GlossaryError(ValueError):
    """A glossary that lacks a language, has a word twice or is too long."""


@dataclass(frozen=True, slots=True)
class Term:
    """A term of the field, and what it means."""

    name: str
    name_zh: str
    meaning: str
    """One or two sentences."""
    meaning_zh: str
    aliases: tuple[str, ...] = ()
    """Other spellings, as used in pages, profilers and the vendor's documents."""


@cache
def terms() -> tuple[Term, ...]:
    """All terms, in alphabetical order."""
    return read((files(__package__) / "glossary.toml").read_text(encoding="utf-8"))


def find(word: str) -> Term | None:
    """The term called *word*, by its name or an alias in any case; None if there is none."""
    return _by_word().get(word.casefold())


@cache
def _by_word() -> dict[str, Term]:
    return {word.casefold(): term for term in terms() for word in (term.name, *term.aliases)}


def read(text: str) -> tuple[Term, ...]:
    """The terms of a glossary in TOML; raises :class:`GlossaryError`."""
    found = tuple(_term(entry) for entry in tomllib.loads(text).get("terms", ()))
    if len(found) > MOST_TERMS:
        raise GlossaryError(
            f"glossary: there must be at most {MOST_TERMS} terms, not {len(found)}; "
            f"make two terms one, with an alias"
        )
    words = [word for term in found for word in (term.name, *term.aliases)]
    folded = [word.casefold() for word in words]
    twice = [word for word in words if folded.count(word.casefold()) > 1]
    if twice:
        raise GlossaryError(
            f"glossary: a word must have one meaning, not several as {twice[0]!r} has; "
            f"leave it out of one term"
        )
    names = [term.name for term in found]
    if names != sorted(names, key=str.casefold):
        raise GlossaryError("glossary: terms must be in alphabetical order; sort them by name")
    return found


def _term(entry: Mapping[str, Any]) -> Term:
    name = entry.get("name", "without a name")
    missing = [key for key in TEXTS if not entry.get(key)]
    if missing:
        raise GlossaryError(
            f"glossary: a term must have {', '.join(TEXTS)}, not lack {', '.join(missing)} "
            f"as {name!r} does; write both languages"
        )
    unknown = sorted(set(entry) - {field.name for field in fields(Term)})
    if unknown:
        raise GlossaryError(
            f"glossary: a term must have no key {unknown[0]!r}, as {name!r} has; rename or drop it"
        )
    texts = {key: entry[key] for key in TEXTS}
    return Term(**texts, aliases=tuple(entry.get("aliases", ())))
