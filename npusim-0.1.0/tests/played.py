"""Traces made by hand, whose times can be counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim import devices
from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, Global, Load, Local, MicroOp, SetFlag, Store, WaitFlag
from npusim.kernel.program import Program
from npusim.reports.causes import path_causes
from npusim.trace import LaneTrace, Launch, Trace, Trial

Times = tuple[MicroOp, int, int, int]


def lane(
    cores: tuple[int, ...],
    *times: Times,
    kind: str = "aiv",
    claimed: dict[str, int] | None = None,
    gm_bytes: int = 0,
    l2_bytes: int = 0,
    l2_hit_bytes: int = 0,
    l2_written_bytes: int = 0,
) -> LaneTrace:
    """A lane of (micro-op, start, free, end)."""
    ops = tuple(time[0] for time in times)
    start, free, end = (np.array([time[i] for time in times], np.int64) for i in (1, 2, 3))
    program = Program("kernel", ops, claimed or {})
    nbytes = gm_bytes, l2_bytes, (), l2_hit_bytes, l2_written_bytes
    return LaneTrace(cores, kind, program, start, free, end, *nbytes)


def trace(*lanes: LaneTrace) -> Trace:
    """At 1 MHz, where a cycle is a microsecond."""
    return Trace(lanes, 1_000_000)


ASCEND910B2 = devices.load("ascend910b2")


@dataclass(frozen=True, eq=False)
class Played:
    """A run of a trace made by hand."""

    trace: Trace | None
    device: DeviceSpec = ASCEND910B2
    op: str = "npu_made"
    template: str | None = None
    launch_us: float = 10.0
    time_us: float | None = None

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The one kernel of the trace."""
        cycles = self.trace.cycles if self.trace else None
        return (Launch(self.op, 1, self.time_us, self.launch_us, cycles, 0, 0),)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """As if each cause on the path gained what it takes there, a tenth of which is removed."""
        if self.trace is None:
            return ()
        path = path_causes(self)
        total_us = sum(bound.path_us for bound in path)
        return tuple(
            Trial((bound.cause,), 0.1, {}, total_us - 0.1 * bound.path_us) for bound in path
        )


def at_1_mhz(spec: DeviceSpec) -> DeviceSpec:
    """*spec* with cores that tick once a microsecond."""
    cores = {
        kind: core.model_copy(update={"clock_hz": 1_000_000}) for kind, core in spec.cores.items()
    }
    return spec.model_copy(update={"cores": cores})


X = Local("ub", 0, FLOAT32, 8)
Y = Local("ub", 64, FLOAT32, 8)
LOAD = Load(X, Global("x", 0, 32))
MUL = Binary("mul", Y, X, X)
STORE = Store(Global("y", 0, 32), Y)
READY, FREE, OUT = SetFlag("mte2", "vector", 0), SetFlag("vector", "mte2", 0), ("vector", "mte3", 0)

CHAIN = (
    (LOAD, 0, 10, 30),
    (READY, 10, 11, 30),
    (WaitFlag("mte2", "vector", 0), 1, 31, 31),
    (MUL, 31, 40, 50),
    (FREE, 40, 41, 50),
    (SetFlag(*OUT), 41, 42, 50),
    (WaitFlag("vector", "mte2", 0), 11, 51, 51),
    (LOAD, 51, 60, 80),
    (WaitFlag(*OUT), 2, 51, 51),
    (STORE, 51, 70, 100),
)
"""Load, multiply, store; then the buffer is filled again."""
