"""A run on a chip that is a little faster in one respect: what was changed, and what it took."""

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
"""The same, and what lies around the cores' own time."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The same programs, timed once more on a chip some of whose numbers differ."""

    causes: tuple[Known, ...]
    """What was made faster: one cause, or two at once."""
    removed: float
    """The part of the causes' own time that the changed numbers take away: 1/21 where they are 1.05
    times as fast, 1 where they became 0."""
    settings: dict[str, float]
    """The dotted keys of the numbers of the chip that differ -> their values in the trial."""
    time_us: float
    """How long the whole call took then."""

    def share(self, before_us: float) -> float:
        """The part of *before_us*, the time of the run, that the causes account for, from 0 to 1.

        Causes that take a part s of the time, of which a part r is removed, save s x r of it.
        """
        return min(1.0, max(0.0, (1 - self.time_us / before_us) / self.removed))

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """The one whose `asdict` is *row*, written as JSON and read."""
        return cls(**(dict(row) | {"causes": tuple(row["causes"])}))
