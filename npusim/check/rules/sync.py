"""Rules of flags, within a core and between cores."""

from __future__ import annotations

from npusim.check.rules.rule import Rule
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag, SetFlag, WaitFlag

__all__ = ["RULES"]

FLAGS = (SetFlag, WaitFlag)
CROSS_FLAGS = (CrossCoreSetFlag, CrossCoreWaitFlag)
CROSS_EVENTS = 11
"""Flags between cores are numbered from 0 to 10 (asc-devkit, CrossCoreSetFlag(ISASI).md)."""

RULES = (
    Rule(
        FLAGS,
        lambda op, at: 0 <= op.event < at.spec.sync.event_ids and op.src != op.dst,
        lambda op, at: (
            f"a flag must go between two pipes with an event in [0, {at.spec.sync.event_ids}), "
            f"not {op.src}->{op.dst} {op.event}; use another event"
        ),
    ),
    Rule(
        FLAGS,
        lambda op, at: {op.src, op.dst} <= set(at.core.pipes),
        lambda op, at: (
            f"a flag must go between pipes of {at.kind}, which are {', '.join(at.core.pipes)}, "
            f"not {op.src}->{op.dst}; drop it"
        ),
    ),
    # The guide's page on NPU architecture 2002 has no flags between cores.
    Rule(
        CROSS_FLAGS,
        lambda _, at: at.arch == "2201",
        lambda _, at: (
            f"the arch must have flags between cores, as 2201 has, not be {at.arch}; "
            f"give each core its own work"
        ),
    ),
    Rule(
        CROSS_FLAGS,
        lambda op, _: 0 <= op.event < CROSS_EVENTS,
        lambda op, _: (
            f"a flag between cores must have an event in [0, {CROSS_EVENTS}), not {op.event}; "
            f"use another event"
        ),
    ),
    Rule(
        CROSS_FLAGS,
        lambda op, at: op.mode != "pair" or at.kind == "aiv",
        lambda _, at: (
            f"a flag of a pair must be one of vector cores, not of {at.kind}; take the mode group"
        ),
    ),
)
