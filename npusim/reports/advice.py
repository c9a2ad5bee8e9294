"""The advice at the top of a page: what to change, and the time simulated with the change."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Protocol

__all__ = ["NOTHING", "Advised", "section", "sentence", "supposed"]

NOTHING = "Nothing that was tried gains."


class Advised(Protocol):
    """A piece of advice, as a page shows it."""

    @property
    def text(self) -> str:
        """The finding in plain words."""

    @property
    def change(self) -> str:
        """What to do; for a what-if, what would have to be different."""

    @property
    def code(self) -> Sequence[str]:
        """The change as lines of a PyTorch script, if it can be written as code."""

    @property
    def before_us(self) -> float:
        """The time of the run."""

    @property
    def after_us(self) -> float:
        """The time of the changed call, which was simulated like any other call."""

    @property
    def rows(self) -> tuple[int, int] | None:
        """The number of rows of the call without and with the change, if they differ."""

    @property
    def times(self) -> str:
        """The times before and after the change, and the time saved."""

    @property
    def kind(self) -> str:
        """`change` for what a caller can do, `what if` for what no caller can."""


def section(given: Sequence[Advised] | str) -> str:
    """The advice for one run as a list, or a sentence that says why there is none."""
    if isinstance(given, str):
        return f'<p class="note">{escape(given)}</p>'
    changes = "".join(map(_item, (each for each in given if each.kind == "change")))
    text = f'<ol class="advice">{changes}</ol>' if changes else f"<p>{NOTHING}</p>"
    return text + supposed(given)


def supposed(given: Sequence[Advised]) -> str:
    """What another chip or another kernel would change, as a list; empty if that is not known."""
    items = "".join(map(_item, (each for each in given if each.kind != "change")))
    note = "What another chip or another kernel would change:"
    return f'<p class="note">{note}</p><ul>{items}</ul>' if items else ""


def _item(each: Advised) -> str:
    return (
        f"<li>{escape(sentence(each.text))}. <b>{escape(sentence(each.change))}:</b> "
        f"{escape(each.times)}.</li>"
    )


def sentence(words: str) -> str:
    """*words* with a capital first letter, unless they begin with a name from a program."""
    first, _, rest = words.partition(" ")
    is_word = first.rstrip(",:").isalpha() and len(first) > 1 and not rest.startswith("= ")
    return words[:1].upper() + words[1:] if is_word else words
