"""What a timeline shows of each lane: every micro-op, or a summary of them."""

from __future__ import annotations

from collections.abc import Iterator

from npusim.exports.listing import Event, Listing
from npusim.isa import SetFlag, WaitFlag
from npusim.trace import LaneTrace, Trace
from npusim.trace.summary import WORDS, Joined, Level, Summary, level_of

__all__ = ["MOST_SPANS", "Shown"]

MOST_SPANS = 300_000
"""Above it the file has a summary unless all is asked for: with some 330 bytes a micro-op, a larger
`trace.json` is beyond the 100 MiB that Insight reads of `visualize_data.bin`."""


class Shown:
    """What timelines show of *trace* at *level*; by itself, a summary where all is too much."""

    def __init__(self, trace: Trace, listing: Listing, level: Level | None = None) -> None:
        self.level: Level = level_of(trace, level, MOST_SPANS)
        self._listing = listing
        self._summary = Summary(trace, MOST_SPANS) if self.level == "summary" else None

    @property
    def is_whole(self) -> bool:
        """Whether every micro-op is written."""
        return self._summary is None

    @property
    def facts(self) -> dict[str, str]:
        """What a file says of its level; nothing where every micro-op is written."""
        return {} if self.is_whole else {"level": WORDS}

    def of(self, lane: LaneTrace) -> Iterator[Event | Joined | SetFlag | WaitFlag]:
        """Micro-ops as events, others joined, in program order; flags stand where none is drawn.

        Flags within a core are counted: those that are drawn follow from those that are not.
        """
        if self._summary is None:
            yield from self._listing.events(lane)
            return
        parts = self._summary.parts(lane)
        has_flags = not all(part.is_joined for part in parts)
        for part, joined in zip(parts, self._summary.joined(lane), strict=True):
            if not part.is_joined:
                yield from self._listing.events(lane, part.first, part.last)
                continue
            yield from joined
            for op in self._listing.ops(lane, part.first, part.last) if has_flags else ():
                if isinstance(op, SetFlag | WaitFlag):
                    yield op
