"""Which number the card of this process has: 0, or its place among those of a server.

Each process has one card. Where `torchrun` starts several, scripts call theirs npu:1, npu:2 and so
on; here that names the one card as npu:0 does, whose tensors say npu:0.
"""

from __future__ import annotations

import os

__all__ = ["choose", "count", "current", "is_current"]

_chosen = [0]


def count() -> int:
    """Cards of this server, one for each process that torchrun has started on it."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(text)) if text.isdecimal() else 1


def current() -> int:
    """The number that `set_device` has chosen, if there is such a card."""
    return _chosen[0] if _chosen[0] < count() else 0


def is_current(number: int | None) -> bool:
    """Whether *number* means the card of this process."""
    return number in (None, -1, 0, current())


def choose(number: int) -> None:
    """Call the card *number*, which is below :func:`count`."""
    _chosen[0] = number
