"""A run on a chip that is slightly faster in one respect: the change and the resulting time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

__all__ = ["Cause", "Known", "Trial"]

Cause = Literal[
    "gm", "l2 reads", "l2 writes", "port", "rows", "memory latency", "copy issue",
    "cube", "vector", "buffers", "scalar", "pipe latency", "dispatch", "flags", "cross-core flags",
]  # fmt: skip
"""Why a cycle of the critical path passed; `npusim.reports.causes.CAUSES` has words for each."""
Known = Cause | Literal["launch", "earlier"]
"""The same, and the time outside the cores' own."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The same programs, timed again on a chip with some figures changed."""

    causes: tuple[Known, ...]
    """What was made faster: one cause, or two at once."""
    removed: float
    """The part of the causes' own time that the changed figures remove: 1/21 if they are 1.05 times
    as fast, 1 if they became 0."""
    settings: dict[str, float]
    """Dotted keys of the changed figures of the chip -> their values in the trial."""
    time_us: float
    """The resulting time of the whole call."""

    def share(self, before_us: float) -> float:
        """The share of *before_us*, the time of the run, that the causes account for, from 0 to 1.

        If causes take a share s of the time, and a part r of it is removed, the trial saves s x r.
        """
        return min(1.0, max(0.0, (1 - self.time_us / before_us) / self.removed))

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """The trial whose `asdict`, written as JSON and read back, is *row*."""
        return cls(**(dict(row) | {"causes": tuple(row["causes"])}))
