"""The elements of first screens: large figures, a stacked bar of parts, bars of shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from npusim.reports.style import span_named

__all__ = ["Part", "Share", "bar", "key", "left", "named", "percent", "screen", "shares", "tiles"]

LEAST_NAMED = 0.01
"""Parts with a smaller share of the time get no name below the bar."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a stacked bar."""

    name: str
    us: float
    color: str


@dataclass(frozen=True, slots=True)
class Share:
    """The utilisation of one resource."""

    name: str
    of_one: float
    text: str


def screen(parts: Iterable[str]) -> str:
    """The first screen of a page, which consists of *parts*."""
    return f'<div class="answer">{"".join(parts)}</div>'


def tiles(found: Iterable[tuple[str, str]]) -> str:
    """Each figure in large type, with its description below."""
    cells = "".join(f"<div><b>{escape(large)}</b>{escape(small)}</div>" for large, small in found)
    return f'<div class="tiles">{cells}</div>'


def percent(share: float) -> str:
    """A share in percent with at least two digits.

    >>> percent(0.0131), percent(0.19), percent(0.0002)
    ('1.3 %', '19 %', '< 0.1 %')
    """
    if 0 < share < 0.001:
        return "< 0.1 %"
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def bar(parts: Sequence[Part], full_us: float) -> str:
    """A stacked bar of *parts*, whose length is their share of *full_us*."""
    pieces = "".join(
        f'<i style="width:{100 * part.us / full_us:.4f}%;background:{part.color}" '
        f'title="{escape(part.name)}: {span_named(part.us)}"></i>'
        for part in parts
        if part.us
    )
    return f'<div class="stack">{pieces}</div>'


def named(parts: Sequence[Part], full_us: float) -> dict[str, str]:
    """The larger of *parts*, by name and time -> colour."""
    return {
        f"{part.name} {span_named(part.us)}": part.color
        for part in parts
        if part.us >= LEAST_NAMED * full_us
    }


def key(colors: Mapping[str, str]) -> str:
    """The legend of bars: names -> colours."""
    marks = (
        f'<span><i class="swatch" style="background:{color}"></i>{escape(name)}</span>'
        for name, color in colors.items()
    )
    return f'<p class="key">{"".join(marks)}</p>'


def shares(found: Sequence[Sequence[Share]], letters: Sequence[str] = ("",)) -> str:
    """A line for each name, with one bar per run, labelled with the letter of the run."""
    names = dict.fromkeys(share.name for own in found for share in own)
    by_name = [{share.name: share for share in own} for own in found]
    lines = []
    for name in names:
        bars = "".join(
            f"<span>{letter}</span>{left(own[name].of_one)}<span>{own[name].text}</span>"
            if name in own
            else f"<span>{letter}</span><span></span><span>none</span>"
            for own, letter in zip(by_name, letters, strict=True)
        )
        lines.append(f"<dt>{escape(name)}</dt><dd>{bars}</dd>")
    return f'<dl class="limits">{"".join(lines)}</dl>'


def left(share: float) -> str:
    """A bar that is filled up to *share*."""
    return f'<div class="left"><i style="width:{100 * min(share, 1):.1f}%"></i></div>'
