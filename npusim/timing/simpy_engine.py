"""The SimPy engine, the reference for all times: pipes, memory and flags as processes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import inf

import simpy

from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.timing.equivalence import has_cross_core_flags
from npusim.timing.interrupts import unless_interrupted
from npusim.timing.memory import L2, SharedMemory
from npusim.timing.pipes import Code, CrossCoreFlags, Lane, Member
from npusim.timing.pipes.decode import PIPES
from npusim.trace import LaneTrace

__all__ = ["simulate"]

EVENTS_PER_REPORT = 1000


def simulate(
    groups: Sequence[tuple[Block, ...]],
    codes: Sequence[Code],
    cache: L2,
    spec: DeviceSpec,
    progress: Callable[[float], None] | None,
    every_core: bool = False,
) -> tuple[tuple[LaneTrace, ...], int]:
    """Time one core of each of *groups*, which run *codes*, from cycle 0.

    Groups with the same behaviour are timed together; with *every_core* each one separately.
    Returns the times, group by group, and the bytes that the L2 wrote back. *progress* is called
    from time to time with the share of micro-ops that have started. Raises DeadlockError.
    """
    env = simpy.Environment()
    memory = SharedMemory(env, spec, cache)
    cross_core_flags = CrossCoreFlags()
    lanes: list[Lane] = []
    for members in _together(groups, codes, every_core):
        Lane(env, memory, cross_core_flags, members, lanes)
    for lane in tuple(lanes):
        lane.run()
    clock = _Clock(env, lanes, sum(len(code.program) for code in codes), progress)
    unless_interrupted(clock.run, clock.stop)
    # A deadlock is reported for the first core that is stuck.
    lanes.sort(key=lambda lane: lane.members[0].number)
    found = {
        member.number: trace
        for lane in lanes
        for member, trace in zip(lane.members, lane.finish(), strict=True)
    }
    return tuple(found[number] for number in range(len(groups))), memory.written_bytes


def _together(
    groups: Sequence[tuple[Block, ...]], codes: Sequence[Code], every_core: bool
) -> list[list[Member]]:
    """The *groups* that start as one lane: those of a kind, unless flags tie them to others."""
    found: dict[Hashable, list[Member]] = {}
    for number, (blocks, code) in enumerate(zip(groups, codes, strict=True)):
        names = blocks[0].bindings
        places = {name: {block.bindings[name] for block in blocks} for name in names}
        different = {name: len(meant) for name, meant in places.items()}
        is_alone = every_core or has_cross_core_flags(code.program)
        key = number if is_alone else code.decoder.kind
        member = Member(number, code, blocks, different, [[] for _ in PIPES])
        found.setdefault(key, []).append(member)
    return list(found.values())


class _Clock:
    """Runs SimPy until no events are left, with progress reports in between."""

    def __init__(
        self,
        env: simpy.Environment,
        lanes: list[Lane],
        total: int,
        progress: Callable[[float], None] | None,
    ) -> None:
        self._env, self._lanes, self._total, self._progress = env, lanes, total, progress
        self._is_stopped = False

    def run(self) -> None:
        env = self._env
        while env.peek() < inf:
            if self._progress:
                self._progress(sum(lane.started for lane in self._lanes) / self._total)
            for _ in range(EVENTS_PER_REPORT):
                if self._is_stopped or env.peek() == inf:
                    return
                env.step()

    def stop(self) -> None:
        self._is_stopped = True
