"""What every page of a report is made of: its frame, its sections, timelines with their data."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from npusim.reports.policy import policy

__all__ = ["document", "sections", "text_of", "timeline"]


def document(title: str, styles: str, script: str, body: str) -> str:
    """A page that opens from disk and asks nothing of any network; *body* is markup."""
    name = escape(title)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(script)}">'
        f'<title>npusim: {name}</title><link rel="icon" href="data:,">'
        f"<style>{styles}</style></head><body>"
        f"<h1>{name}</h1>{body}"
        f"<script>{script}</script></body></html>\n"
    )


def sections(parts: Mapping[str, tuple[str, str]]) -> str:
    """Links to sections, and these below them: key -> heading and markup."""
    links = "".join(f'<a href="#{key}">{name}</a>' for key, (name, _) in parts.items())
    body = "".join(
        f'<section id="{key}"><h2>{name}</h2>{markup}</section>'
        for key, (name, markup) in parts.items()
    )
    return f"<nav>{links}</nav>{body}"


def text_of(package: str, name: str) -> str:
    """The file *name* that is part of *package*."""
    return (files(package) / name).read_text(encoding="utf-8")


def timeline(number: int, data: dict[str, Any], about: str, search: str) -> str:
    """An interactive timeline of *about*, the *number*-th of the page; *data* are packed into it.

    *search* says what can be searched for.
    """
    text = json.dumps(data, separators=(",", ":"))
    packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    return (
        f'<div class="timeline" data-source="trace{number}"><div class="bar">'
        '<button data-act="in">+</button><button data-act="out">&minus;</button>'
        '<button data-act="all">all</button>'
        f'<input type="search" placeholder="{escape(search)}" aria-label="search">'
        '<button data-act="next">find next</button><span class="where"></span></div>'
        f'<div class="view"><canvas tabindex="0" aria-label="timeline of {escape(about)}">'
        "</canvas></div>"
        '<div class="details" aria-live="polite"></div></div>'
        f'<script type="application/octet-stream" id="trace{number}">{packed}</script>'
    )
