"""The times of a run, as spans and counters, and a run on disk."""

from __future__ import annotations

from npusim.trace.copies import COUNT_UNITS, CopyTimes, copies_of
from npusim.trace.lanes import (
    ORDERING,
    LaneTimes,
    LaneTrace,
    LazyLaneTrace,
    PipeCounter,
    Span,
    Trace,
)
from npusim.trace.launch import Launch
from npusim.trace.trial import Cause, Known, Trial

__all__ = [
    "COUNT_UNITS",
    "ORDERING",
    "Cause",
    "CopyTimes",
    "Known",
    "LaneTimes",
    "LaneTrace",
    "Launch",
    "LazyLaneTrace",
    "PipeCounter",
    "Span",
    "Trace",
    "Trial",
    "copies_of",
]
