"""What no caller can change: what bounds a run, and what a chip would gain that is faster there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from npusim.kernel.program import QueueName
from npusim.reports import bounds, style
from npusim.reports.causes import Bound, causes
from npusim.reports.trials import settings
from npusim.run.result import Result
from npusim.trace import Known

__all__ = ["MOST", "TIMES", "WhatIf", "what_ifs"]

TIMES = 2
"""How many times as fast what bounds the run is tried."""
SUPPOSED = "on a chip where that is twice as fast"
MOST = 2
"""How many causes, and how many queues, are tried."""
SEVERAL: tuple[Known, ...] = ("buffers", "flags", "cross-core flags", "launch")
"""Causes whose words are several things."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A chip that is faster where the run is held up, or a kernel with deeper queues."""

    text: str
    change: str
    settings: dict[str, float] = field(default_factory=dict)
    """The dotted keys of the chip's numbers that differ, and their values there."""
    queues: tuple[QueueName, ...] = ()
    """Those that have a slot more."""


def what_ifs(run: Result) -> Iterator[WhatIf]:
    """For each of the causes that take most of the time of *run*."""
    strongest = [each for each in causes(run) if each.numbers and each.share >= bounds.MIN_SHARE][
        :MOST
    ]
    for bound in strongest:
        share = style.percent(bound.share)
        take = "take" if bound.cause in SEVERAL else "takes"
        text = f"{bound.words} {take} {share} of the time{_where(bound)}{_waits(run, bound)}"
        yield WhatIf(text, SUPPOSED, settings(run.device, bound.cause, TIMES))


def _where(bound: Bound) -> str:
    return f", on {bound.where[0][1]} of {bound.where[0][0]}" if bound.where else ""


def _waits(run: Result, bound: Bound) -> str:
    """Who stands still for room that the pipe of *bound* has to make, most of all."""
    places = bound.where[:1]
    for row in sorted(bounds.rows(run), key=lambda row: -row.share):
        src, _, carried = row.reason.partition(": ")
        if row.cause == "flag" and (row.kind, src) in places and carried.startswith("room"):
            if row.share < bounds.MIN_SHARE:
                return ""
            return f"; {row.pipe} waits for {carried} {style.percent(row.share)} of the cores' time"
    return ""
