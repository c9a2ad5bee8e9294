"""The number of the card of this process: 0, or its index among the cards of a server.

Each process has one card. If `torchrun` starts several, scripts call their cards npu:1, npu:2 and
so on. Here these are names of the single card of the process, whose tensors are on npu:0.
"""

from __future__ import annotations

import os

__all__ = ["choose", "count", "current", "is_current"]

_chosen = [0]


def count() -> int:
    """The number of cards of this server: one for each process that torchrun has started on it."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(text)) if text.isdecimal() else 1


def current() -> int:
    """The number set by `set_device`, if there is such a card."""
    return _chosen[0] if _chosen[0] < count() else 0


def is_current(number: int | None) -> bool:
    """Whether *number* means the card of this process."""
    return number in (None, -1, 0, current())


def choose(number: int) -> None:
    """Set the number of the card, which is below :func:`count`."""
    _chosen[0] = number
