"""The elements of every page of a report: its frame, its sections, timelines with their data."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files

from npusim.data.glossary import terms
from npusim.reports.policy import policy
from npusim.reports.run_labels import Head
from npusim.reports.words import words

__all__ = [
    "SHARED",
    "columns",
    "deflated",
    "document",
    "keys",
    "languages",
    "packed",
    "sections",
    "text_of",
    "timeline",
]


def document(title: str, styles: str, script: str, body: str) -> str:
    """A page that opens from disk and needs no network; *body* is markup.

    It has both languages and the glossary, and a button that changes the language.
    """
    name = escape(title)
    script = "".join(text_of("npusim.reports", f"{each}.js") for each in SHARED) + script
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(script)}">'
        f'<title>npusim: {name}</title><link rel="icon" href="data:,">'
        f"<style>{styles}</style></head><body>"
        f'<main><button class="language" lang="zh-CN">中文</button><h1>{name}</h1>{body}</main>'
        f"{languages()}<script>{script}</script></body></html>\n"
    )


def languages() -> str:
    """The elements that `words.js` needs: both languages, and the glossary for screen readers."""
    meanings = "".join(
        f'<p id="term{n}">{escape(term.meaning)}</p>' for n, term in enumerate(terms())
    )
    return (
        f'<div id="tip" role="tooltip" hidden></div><div class="keep" hidden>{meanings}</div>'
        f"{packed('words', words())}"
    )


SHARED = ("link", "words")
"""The scripts of every page; those of the specific page follow."""


def sections(parts: Mapping[str, tuple[str, str]], folded: Collection[str] = ()) -> str:
    """Links to sections, and the sections below: key -> heading and markup; *folded* ones closed.

    A link into a closed section opens it (WHATWG, HTML, 7.4.6.3).
    """
    links = "".join(f'<a href="#{key}">{name}</a>' for key, (name, _) in parts.items())
    body = "".join(
        f'<details><summary><h2>{name}</h2></summary><section id="{key}">{markup}</section>'
        "</details>"
        if key in folded
        else f'<section id="{key}"><h2>{name}</h2>{markup}</section>'
        for key, (name, markup) in parts.items()
    )
    return f"<nav>{links}</nav>{body}"


def columns(heads: Sequence[Head], parts: Sequence[str], *, wide: bool = False) -> str:
    """*parts* of several runs side by side if there is room, each below its heading.

    *wide* parts are stacked vertically.
    """
    if len(parts) == 1:
        return f'<div class="runs"><div>{parts[0]}</div></div>'
    cells = "".join(
        f'<div><h3>{head.letter} <span class="soft">{escape(head.who)}</span></h3>{part}</div>'
        for head, part in zip(heads, parts, strict=True)
    )
    return f'<div class="runs {"stacked" if wide else "beside"}">{cells}</div>'


def text_of(package: str, name: str) -> str:
    """The text of the file *name* of *package*."""
    return (files(package) / name).read_text(encoding="utf-8")


KEYS = (
    ("zoom", ("Ctrl + wheel", "W", "S")),
    ("move", ("Shift + wheel", "Shift + drag", "A", "D")),
    ("summarise a selection", ("drag", "T")),
    ("zoom to the selection", ("Z",)),
    ("next micro-op", ("&larr;", "&rarr;")),
    ("search", ("/", "Enter", "Shift + Enter")),
    ("zoom to fit", ("0", "double click")),
    ("clear", ("Esc",)),
)
"""The actions on a timeline and their keys; letters work while the timeline has the focus."""


def timeline(
    number: int, data: dict[str, object], about: str, search: str, controls: str = ""
) -> str:
    """An interactive timeline of *about*, the *number*-th of the page; *data* are packed into it.

    *search* says what can be searched for; *controls* is markup next to the search field.
    """
    return (
        f'<div class="timeline" data-source="trace{number}"><div class="bar">'
        '<button data-act="in" aria-label="zoom in">+</button>'
        '<button data-act="out" aria-label="zoom out">&minus;</button>'
        '<button data-act="all">Zoom to fit</button>'
        '<button data-act="sum">Summarise selection</button>'
        f'<input type="search" placeholder="{escape(search)}" aria-label="search">'
        '<button data-act="previous" aria-label="previous one found">&uarr;</button>'
        '<button data-act="next" aria-label="next one found">&darr;</button>'
        f'<span class="count" role="status"></span>{controls}<span class="where"></span></div>'
        '<canvas class="axis" aria-hidden="true"></canvas>'
        '<div class="view"><div class="tall"><canvas tabindex="0" role="application" '
        f'aria-label="timeline of {escape(about)}" aria-describedby="keys{number}">'
        "</canvas></div></div>"
        '<div class="details" aria-live="polite"></div>'
        f"{keys(f'keys{number}', KEYS)}</div>{packed(f'trace{number}', data)}"
    )


def keys(name: str, known: Iterable[tuple[str, Iterable[str]]]) -> str:
    """A line with the actions and their keys; *name* is the name of the element."""
    words = " ".join(
        f"<span>{what}: {' '.join(f'<kbd>{key}</kbd>' for key in own)}</span>"
        for what, own in known
    )
    return f'<p class="keys" id="{name}">{words}</p>'


def packed(name: str, data: dict[str, object]) -> str:
    """*data* in an element called *name*, which a script unpacks."""
    code = deflated(json.dumps(data, separators=(",", ":")).encode())
    return f'<script type="application/octet-stream" id="{name}">{code}</script>'


def deflated(content: bytes) -> str:
    """*content* packed by zlib, in base64, as a script unpacks it."""
    return base64.b64encode(zlib.compress(content, 9)).decode()
