"""Errors that stop a whole sweep; an error of one cell is part of the row of that cell."""

from __future__ import annotations

__all__ = ["SweepError"]


class SweepError(ValueError):
    """A sweep is invalid, or cannot continue."""
