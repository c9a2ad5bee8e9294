"""The first thing on a page: what to change, and the time that came out when it was tried."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Protocol

__all__ = ["NOTHING", "Advised", "section", "sentence", "supposed"]

NOTHING = "Nothing that was tried gains."


class Advised(Protocol):
    """What a page needs of a piece of advice."""

    @property
    def text(self) -> str:
        """What was found, in plain words."""

    @property
    def change(self) -> str:
        """What to do; of a what-if, what would have to be otherwise."""

    @property
    def code(self) -> Sequence[str]:
        """The change as lines of a PyTorch script, where it can be written so."""

    @property
    def before_us(self) -> float:
        """The time of the run."""

    @property
    def after_us(self) -> float:
        """The time of the changed call, which was simulated as any other."""

    @property
    def rows(self) -> tuple[int, int] | None:
        """How many rows the call has, and how many with the change, where they differ."""

    @property
    def times(self) -> str:
        """The times before and after, and what is saved."""

    @property
    def kind(self) -> str:
        """`change` for what a caller can do, `what if` for what no caller can."""


def section(given: Sequence[Advised] | str) -> str:
    """The advice for one run as a list, or in a sentence why there is none."""
    if isinstance(given, str):
        return f'<p class="note">{escape(given)}</p>'
    changes = "".join(map(_item, (each for each in given if each.kind == "change")))
    text = f'<ol class="advice">{changes}</ol>' if changes else f"<p>{NOTHING}</p>"
    return text + supposed(given)


def supposed(given: Sequence[Advised]) -> str:
    """What another chip or another kernel would change, as a list; nothing if that is not known."""
    items = "".join(map(_item, (each for each in given if each.kind != "change")))
    note = "What another chip or another kernel would change:"
    return f'<p class="note">{note}</p><ul>{items}</ul>' if items else ""


def _item(each: Advised) -> str:
    return (
        f"<li>{escape(sentence(each.text))}. <b>{escape(sentence(each.change))}:</b> "
        f"{escape(each.times)}.</li>"
    )


def sentence(words: str) -> str:
    """*words* as a sentence begins, unless they begin with a name in a program."""
    first, _, rest = words.partition(" ")
    is_word = first.rstrip(",:").isalpha() and len(first) > 1 and not rest.startswith("= ")
    return words[:1].upper() + words[1:] if is_word else words
