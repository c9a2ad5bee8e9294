"""What no caller can change: the bound of a run, and the effect of a chip that is faster there."""

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
"""Speed-up that is tried for what bounds the run."""
SUPPOSED = "on a chip where that is twice as fast"
MOST = 2
"""Most causes, and most queues, that are tried."""
SEVERAL: tuple[Known, ...] = ("buffers", "flags", "cross-core flags", "launch")
"""Causes that cover several things."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A chip that is faster where the run is limited, or a kernel with deeper queues."""

    text: str
    change: str
    settings: dict[str, float] = field(default_factory=dict)
    """Dotted keys of the chip's numbers that differ -> their values there."""
    queues: tuple[QueueName, ...] = ()
    """Queues with one more slot."""


def what_ifs(run: Result) -> Iterator[WhatIf]:
    """What-ifs for the causes that take most of the time of *run*."""
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
    """The pipe that stalls most while the pipe of *bound* makes room."""
    places = bound.where[:1]
    for row in sorted(bounds.rows(run), key=lambda row: -row.share):
        src, _, carried = row.reason.partition(": ")
        if row.cause == "flag" and (row.kind, src) in places and carried.startswith("room"):
            if row.share < bounds.MIN_SHARE:
                return ""
            return f"; {row.pipe} waits for {carried} {style.percent(row.share)} of the cores' time"
    return ""
