"""Where no kernel ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from npusim.profile.kernels import Kernel

__all__ = ["Gap", "gaps_of"]

LEAST_US = 0.05
"""Shorter ones are how start and end are rounded, assumed: some tables give hundredths."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Gaps between two types of kernels."""

    before: str
    after: str
    count: int
    time_us: float
    longest_us: float
    at_us: float
    """When the longest began, from the first kernel on."""


def gaps_of(kernels: Sequence[Kernel]) -> tuple[Gap, ...]:
    """The gaps between *kernels*, which come in order of their starts, of whatever stream."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    last = kernels[0]
    for kernel in kernels[1:]:
        gap_us = kernel.start_us - last.end_us
        if gap_us >= LEAST_US:
            found.setdefault((last.type, kernel.type), []).append((gap_us, last.end_us))
        if kernel.end_us > last.end_us:
            last = kernel
    gaps = []
    for (before, after), own in found.items():
        longest_us, at_us = max(own)
        total_us = sum(gap_us for gap_us, _ in own)
        gaps.append(Gap(before, after, len(own), total_us, longest_us, at_us))
    return tuple(sorted(gaps, key=lambda gap: -gap.time_us))
