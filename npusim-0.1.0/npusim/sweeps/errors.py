"""What stops a whole sweep; what stops one of its cells stands in that cell's row."""

from __future__ import annotations

__all__ = ["SweepError"]


class SweepError(ValueError):
    """A sweep is not one that can be run, or cannot go on."""
