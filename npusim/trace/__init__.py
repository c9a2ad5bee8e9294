"""What happened when: the spans and counters of a run, and a run on disk."""

from __future__ import annotations

from npusim.trace.lanes import ORDERING, LaneTrace, PipeCounter, Span, Trace

__all__ = ["ORDERING", "LaneTrace", "PipeCounter", "Span", "Trace"]
