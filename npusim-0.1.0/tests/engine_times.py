"""What the engines must agree on: all that a trace holds."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from npusim.timing.compiled import is_built
from npusim.trace import CopyTimes, LaneTrace, Trace

__all__ = ["assert_equal_traces", "needs_compiled"]

needs_compiled = pytest.mark.skipif(
    not is_built(), reason="the compiled engine was not built here: there was no C compiler"
)
COPIES = tuple(field.name for field in fields(CopyTimes))


def _facts(lane: LaneTrace) -> tuple[object, ...]:
    counts = lane.gm_bytes, lane.l2_bytes, lane.l2_hit_bytes, lane.l2_written_bytes
    return lane.cores, lane.groups, lane.kind, lane.program, *counts


def assert_equal_traces(one: Trace, other: Trace) -> None:
    """Every start, free and end, every byte, and what held every copy up."""
    assert one.clock_hz == other.clock_hz
    assert one.gm_written_bytes == other.gm_written_bytes
    for a, b in zip(one.lanes, other.lanes, strict=True):
        assert _facts(a) == _facts(b)
        for name in ("start", "free", "end"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        for name in COPIES:
            np.testing.assert_array_equal(getattr(a.copies, name), getattr(b.copies, name))
