"""The critical path in words: micro-ops, flags between cores, slack, and when cores finished.

The path holds everything that the end time depends on; each of its cycles belongs to one micro-op.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from itertools import pairwise

from npusim.devices.schema import Pipe
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag
from npusim.reports.causes import CAUSES
from npusim.reports.critical_path import Step, steps
from npusim.reports.finish import Finish, finishes
from npusim.reports.slack import Slack, slack
from npusim.reports.subject import Subject, elapsed_us, trace_of
from npusim.trace import Cause, Trace

__all__ = ["MOST_PARTS", "CriticalPath", "Crossing", "Part", "path_of"]


@dataclass(frozen=True, slots=True)
class Part:
    """All micro-ops on the path with one mnemonic, on one pipe of one kind of core."""

    kind: str
    pipe: Pipe
    name: str
    """The mnemonic, such as `load` or `set_flag`."""
    micro_ops: int
    us: float
    share: float
    """Its share of the time of the slowest core."""
    cause: Cause
    """The cause of most of its time."""

    @property
    def words(self) -> str:
        """The cause in words."""
        return CAUSES[self.cause].words


@dataclass(frozen=True, slots=True)
class Crossing:
    """A flag between cores on the path: the core that set it, and the core that waited."""

    core: int
    kind: str
    pipe: Pipe
    dst_core: int
    dst_kind: str
    dst_pipe: Pipe
    flag: str
    """Mode and event, such as `group 3`."""
    set_us: float
    """When the work before the set had finished."""


MOST_PARTS = 12
"""The most parts that are listed; the rest are small, and the JSON holds them."""


@dataclass(frozen=True, slots=True, repr=False)
class CriticalPath:
    """What the end time depends on."""

    steps: tuple[Step, ...]
    """From the first cycle to the last result; their cycles add up to those of the path."""
    parts: tuple[Part, ...]
    """The same grouped by mnemonic, longest first, without those that took no time."""
    crossings: tuple[Crossing, ...]
    """Where the path crosses from one core to another, in order."""
    slack: tuple[Slack, ...]
    """The slack of each pipe: the minimum is 0 for pipes on the path."""
    finishes: tuple[Finish, ...]
    """When the cores of each kind finished."""
    us: float
    """The length of the path, which is the time of the slowest core."""

    def __repr__(self) -> str:
        """The longest parts, one line each, instead of every step."""
        lines = [
            f"  {part.us:9.2f} us {part.share:6.1%}  {part.name} on {part.pipe} of {part.kind}, "
            f"{part.micro_ops} micro-ops, mostly {part.words}"
            for part in self.parts[:MOST_PARTS]
        ]
        return "\n".join((f"critical path of {self.us:.2f} us, {len(self.steps)} steps", *lines))

    def to_json(self) -> dict[str, object]:
        """Everything except the single steps, as plain numbers, strings and lists."""
        return {
            "us": self.us,
            "parts": [asdict(part) for part in self.parts],
            "crossings": [asdict(crossing) for crossing in self.crossings],
            "slack": [asdict(each) for each in self.slack],
            "finishes": [
                asdict(each) | {"idle": each.idle, "median_us": each.median_us}
                for each in self.finishes
            ],
        }


def path_of(subject: Subject) -> CriticalPath:
    """The critical path of *subject*, a trace or a run.

    Raises ValueError for a run that was not timed or had nothing to do.
    """
    trace = trace_of(subject)
    found = steps(trace)
    return CriticalPath(
        found,
        tuple(_parts(trace, found)),
        tuple(_crossings(trace, found)),
        tuple(slack(trace)),
        tuple(finishes(subject)),
        elapsed_us(trace),
    )


def _parts(trace: Trace, found: tuple[Step, ...]) -> list[Part]:
    count: Counter[tuple[str, Pipe, str]] = Counter()
    causes: dict[tuple[str, Pipe, str], Counter[Cause]] = {}
    for step in found:
        if step.cycles:
            op = trace.lanes[step.lane].ops[step.index]
            key = step.kind, step.pipe, str(op).partition(" ")[0]
            count[key] += 1
            for cause, cycles in step.causes:
                causes.setdefault(key, Counter())[cause] += cycles
    us = 1e6 / trace.clock_hz
    parts = []
    for key, own in causes.items():
        cycles = own.total()
        # Of two causes with the same time, the one that the documentation lists first.
        cause = min(own, key=lambda cause: (-own[cause], list(CAUSES).index(cause)))
        parts.append(Part(*key, count[key], cycles * us, cycles / trace.cycles, cause))
    return sorted(parts, key=lambda part: (-part.us, part.kind, part.pipe, part.name))


def _crossings(trace: Trace, found: tuple[Step, ...]) -> list[Crossing]:
    crossings = []
    for before, after in pairwise(found):
        op = trace.lanes[after.lane].ops[after.index]
        if before.lane != after.lane and isinstance(op, CrossCoreSetFlag | CrossCoreWaitFlag):
            crossings.append(
                Crossing(
                    *(before.core, before.kind, before.pipe, after.core, after.kind, after.pipe),
                    f"{op.mode} {op.event}",
                    before.until / trace.clock_hz * 1e6,
                )
            )
    return crossings
