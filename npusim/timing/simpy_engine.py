"""The engine of SimPy, whose times are the definition: pipes, memory and flags as processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import simpy

from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.timing.memory import L2, SharedMemory
from npusim.timing.pipes import Code, CrossCoreFlags, Lane
from npusim.trace import LaneTrace

__all__ = ["simulate"]

EVENTS_PER_REPORT = 1000


def simulate(
    groups: Sequence[tuple[Block, ...]],
    codes: Sequence[Code],
    cache: L2,
    spec: DeviceSpec,
    hear: Callable[[float], None] | None,
) -> tuple[tuple[LaneTrace, ...], int]:
    """Time one of each of *groups*, which run *codes*, from cycle 0.

    Returns what happened when, group by group, and how many bytes the L2 wrote back. *hear* is told
    now and then which share of the micro-ops has started. Raises DeadlockError.
    """
    env = simpy.Environment()
    memory = SharedMemory(env, spec, cache)
    cross_core_flags = CrossCoreFlags()
    lanes = [
        Lane(env, memory, cross_core_flags, code, group)
        for group, code in zip(groups, codes, strict=True)
    ]
    for lane in lanes:
        lane.run()
    if hear:
        _watch(env, lanes, hear)
    env.run()
    return tuple(lane.finish() for lane in lanes), memory.written_bytes


def _watch(env: simpy.Environment, lanes: list[Lane], hear: Callable[[float], None]) -> None:
    """Let SimPy work until nothing is left to do, with reports in between."""
    total = sum(lane.waiting for lane in lanes)
    while env.peek() < inf:
        hear(1 - sum(lane.waiting for lane in lanes) / total)
        for _ in range(EVENTS_PER_REPORT):
            if env.peek() == inf:
                break
            env.step()
