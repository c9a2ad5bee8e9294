"""What happened when: the spans and counters of a run, and a run on disk."""

from __future__ import annotations

from npusim.trace.copies import COUNT_UNITS, CopyTimes, copies_of
from npusim.trace.lanes import ORDERING, LaneTrace, LazyLaneTrace, PipeCounter, Span, Trace
from npusim.trace.launch import Launch

__all__ = [
    "COUNT_UNITS",
    "ORDERING",
    "CopyTimes",
    "LaneTrace",
    "Launch",
    "LazyLaneTrace",
    "PipeCounter",
    "Span",
    "Trace",
    "copies_of",
]
