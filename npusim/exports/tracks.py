"""Tracks of a timeline: each span goes to a track where it overlaps no other."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.exports.writing import Clock

__all__ = ["Stretch", "Tracks"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time span, in whole nanoseconds."""

    start: int
    end: int
    track: int
    """The index of the track among the tracks of its lane, from 0."""
    is_first: bool
    """Whether it is the first one there."""


class Tracks:
    """Assigns each span to the first free track of its lane.

    A cycle may be shorter than a nanosecond, and Perfetto swaps spans that begin together: each
    span is at least 1 ns long, and the next one begins later accordingly, until a gap or a longer
    span absorbs the difference. On a *clock* that counts cycles nothing is shifted.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: dict[str, list[tuple[int, int]]] = {}
        """Lane -> for each track, the end of the last span: in cycles, and in ns as drawn."""

    def take(self, lane: str, start: int, end: int, after: int = 0) -> Stretch:
        """A span on *lane* from *start* to *end* cycles; its last ns begins later than *after*."""
        ends = self._ends.setdefault(lane, [])
        found = (number for number, (busy, _) in enumerate(ends) if busy <= start)
        number = next(found, len(ends))
        is_first = number == len(ends)
        if is_first:
            ends.append((0, 0))
        start_ns = max(self._clock.ns(start), ends[number][1])
        end_ns = max(self._clock.ns(end), start_ns + 1, after + 2 if after else 0)
        ends[number] = end, end_ns
        return Stretch(start_ns, end_ns, number, is_first)
