"""Tracks of a timeline: each stretch of time goes where it overlaps no other."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.exports.writing import Clock

__all__ = ["Stretch", "Tracks"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time, in whole nanoseconds."""

    start: int
    end: int
    track: int
    """Number of the track, from 0, among those of its lane."""
    is_first: bool
    """Whether it is the first one there."""


class Tracks:
    """Gives each stretch of time the first track of its lane that is free.

    A cycle may be shorter than a nanosecond, and Perfetto swaps stretches that begin together: each
    stretch is at least 1 ns long, and what follows at once begins that much later, until a gap or
    a longer stretch makes up for it. On a *clock* that counts cycles nothing moves.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: dict[str, list[tuple[int, int]]] = {}
        """Lane -> of each track, the end of the last stretch: in cycles, and in ns as drawn."""

    def take(self, lane: str, start: int, end: int, after: int = 0) -> Stretch:
        """A place on *lane* from *start* to *end* cycles; its last ns begins later than *after*."""
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
