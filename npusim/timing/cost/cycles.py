"""The cost of a micro-op that stays inside its core."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cost"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Cycles of a micro-op whose time does not depend on other cores."""

    body: int
    head: int = 0
    """Paid before the body if the pipe was drained."""
    tail: int = 0
    """From the end of the body until the result is available."""
