"""Spans as text, counters as the profiler counts, and cores that were timed as one."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tiny import play, tiny_spec

from npusim import isa
from npusim.chip import Binding
from npusim.data.dtypes import FLOAT32, UINT8
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Program
from npusim.trace import LaneTrace, PipeCounter, Trace

X = isa.Local("ub", 0, FLOAT32, 64)
BYTES = isa.Local("ub", 0, UINT8, 256)
PROGRAM: tuple[isa.MicroOp, ...] = (
    isa.Load(BYTES, isa.Global("x", 0, 256)),
    *(isa.SetFlag("mte2", "vector", 0), isa.WaitFlag("mte2", "vector", 0)),
    isa.BinaryScalar("add", X, X, 1.0),
    isa.Barrier("vector"),
    isa.BinaryScalar("mul", X, X, 2.0),
    *(isa.SetFlag("vector", "mte3", 0), isa.WaitFlag("vector", "mte3", 0)),
    isa.Store(isa.Global("y", 0, 256), BYTES),
)


TEXT = """\
core pipe        start     free      end  micro-op
   0 mte2            0        8       18  load ub[0:256] uint8 <- x+0 256 B
   0 mte2            8        8       18  set_flag mte2->vector 0
   0 vector          0       18       18  wait_flag mte2->vector 0
   0 vector         18       21       24  adds ub[0:256] float32 <- ub[0:256] float32, 1.0
   0 vector         21       24       24  barrier vector
   0 vector         24       27       30  muls ub[0:256] float32 <- ub[0:256] float32, 2.0
   0 vector         27       27       30  set_flag vector->mte3 0
   0 mte3            0       30       30  wait_flag vector->mte3 0
   0 mte3           30       38       42  store y+0 256 B <- ub[0:256] uint8
"""
"""8 cycles and 10; 2 + 1 and 3, twice; 8 and 4."""


def test_a_trace_as_text(tiny: DeviceSpec) -> None:
    assert play(tiny, PROGRAM).to_text() == TEXT


def test_a_trace_as_text_without_flags_and_barriers(tiny: DeviceSpec) -> None:
    lines = play(tiny, PROGRAM).to_text(ordering=False).splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["mte2", "vector", "vector", "mte3"]


def test_counters_of_each_pipe(tiny: DeviceSpec) -> None:
    assert play(tiny, PROGRAM).counters() == {
        0: {
            "mte2": PipeCounter(18, 1, 256),
            "mte3": PipeCounter(12, 1, 256),
            "vector": PipeCounter(12, 2, 0),
        }
    }


def test_overlapping_spans_are_busy_once(tiny: DeviceSpec) -> None:
    far = isa.Load(BYTES, isa.Global("x", 4096, 256))
    op = isa.ScalarAlu("add", "r", 1, 1)
    program = (isa.Load(BYTES, isa.Global("x", 0, 256)), far, op, op)
    # Loads 0 to 18 and 8 to 26: 26 cycles, not 36.
    counters = play(tiny, program).counters()[0]
    assert counters == {"mte2": PipeCounter(26, 2, 512), "scalar": PipeCounter(2, 2, 0)}


@pytest.mark.parametrize(
    ("spans", "busy"),
    [
        ([(0, 10), (10, 20)], 20),
        ([(0, 10), (15, 20)], 15),
        ([(0, 10), (5, 20)], 20),
        ([(0, 30), (5, 10), (20, 25)], 30),
        ([(0, 30), (5, 10), (28, 40), (29, 35), (50, 51)], 41),
        ([(3, 3)], 0),
    ],
)
def test_busy_cycles_are_those_covered_by_any_span(spans: list[tuple[int, int]], busy: int) -> None:
    start, end = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    ops = tuple(isa.ScalarAlu("add", "r", 1, 1) for _ in spans)
    lane = LaneTrace((0,), "aiv", Program("kernel", ops), start, end, end, 0, 0)
    assert lane.counters() == {"scalar": PipeCounter(busy, len(spans), 0)}


def test_a_strided_copy_counts_its_own_bytes_not_those_moved(tiny: DeviceSpec) -> None:
    rows = isa.Load(isa.Local("ub", 0, UINT8, 40), isa.Global("x", 5, 40, 3, 200), 64)
    trace = play(tiny, (rows,))
    assert trace.counters()[0]["mte2"].nbytes == 120
    # Off their sectors, the rows move the lines they touch: 0, 1 and 3.
    assert trace.gm_bytes == trace.l2_bytes == 128 + 128 + 128
    assert [span.nbytes for span in trace.spans()] == [120]


def test_cores_timed_as_one_are_listed_one_by_one(tiny: DeviceSpec) -> None:
    bindings = tuple({"x": Binding("x", at), "y": Binding("y", at)} for at in (0, 1024, 2048))
    program = Program("kernel", PROGRAM)
    trace = play(tiny, program, program, program, bindings=bindings, every_core=False)
    assert [lane.cores for lane in trace.lanes] == [(0, 1, 2)]
    assert trace.cores == (0, 1, 2)
    assert trace.micro_ops == 27
    assert [span.core for span in trace.spans()] == [0] * 9 + [1] * 9 + [2] * 9
    assert [span.start for span in trace.spans(1)] == [span.start for span in trace.spans(2)]
    assert list(trace.counters()) == [0, 1, 2]
    # Three at a third of the speed: 24 + 10, 12, 24 + 4.
    assert trace.cycles == 34 + 12 + 28
    assert (trace.kind(2), trace.clock_hz) == ("aiv", 10**9)


def test_a_core_that_took_no_part_is_refused(tiny: DeviceSpec) -> None:
    trace = play(tiny, PROGRAM, PROGRAM)
    text = "trace: core must be one of 0, 1, not 2; see Trace.cores"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        trace.kind(2)


def test_nothing_happened() -> None:
    trace = Trace((), 10**9)
    assert (trace.cycles, trace.micro_ops, trace.cores, trace.counters()) == (0, 0, (), {})
    text = "trace: core must be one of none, not 0; see Trace.cores"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        list(trace.spans(0))
    assert play(tiny_spec(), ()).cycles == 0
