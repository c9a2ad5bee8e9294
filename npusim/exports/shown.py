"""The level of detail of a timeline: every micro-op of a lane, or a summary."""

from __future__ import annotations

from collections.abc import Iterator

from npusim.exports.listing import Event, Listing
from npusim.isa import SetFlag, WaitFlag
from npusim.trace import LaneTrace, Trace
from npusim.trace.summary import WORDS, Joined, Level, Summary, level_of

__all__ = ["MOST_SPANS", "Shown"]

MOST_SPANS = 300_000
"""With more micro-ops the file has a summary by default: at about 330 bytes per micro-op, a larger
`trace.json` exceeds the 100 MiB that Insight reads from `visualize_data.bin`."""


class Shown:
    """The timelines of *trace* at *level*; by default, a summary if it has too many micro-ops."""

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
        """The note in a file about its level; empty if every micro-op is written."""
        return {} if self.is_whole else {"level": WORDS}

    def of(self, lane: LaneTrace) -> Iterator[Event | Joined | SetFlag | WaitFlag]:
        """Micro-ops as events, some of them joined, and undrawn flags, in program order.

        Flags within a core are counted, so the drawn ones depend on those that are not drawn.
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
