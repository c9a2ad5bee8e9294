"""What the plans of all templates say."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.ops import _protocol

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Which kernel runs, why, and on how many cores; each template adds sizes of its tiles."""

    template: str
    reason: str
