"""The flags and barriers that the vendor's compiler adds to a kernel automatically.

It orders dependent micro-ops within the vector pipe, and between the scalar unit and the pipes of
vectors and copies, in both directions; nothing else (asc-devkit, docs/zh/api, 核内同步,
关键特性说明.md, --cce-auto-sync, which is on by default). Where it adds them is not public: here it
is just before a micro-op that depends on an unfinished one, with the event reserved for this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from npusim.devices.schema import Pipe
from npusim.isa import Barrier, Local, MicroOp, SetFlag, WaitFlag, reads, writes

__all__ = ["AutoSync"]

EVENT = 7
"""asc-devkit, SetFlag-WaitFlag(ISASI).md: event 7 is for this."""
COPIES: tuple[Pipe, ...] = ("mte2", "mte3")
SOURCES: dict[Pipe, tuple[Pipe, ...]] = {
    "vector": ("vector", "scalar"),
    "mte2": ("scalar",),
    "mte3": ("scalar",),
    "scalar": ("vector", *COPIES),
}
"""Pipe -> the pipes whose work it can be made to wait for (table 3 there)."""

Ranges = tuple[tuple[str, int, int], ...]
"""Buffer, first byte and one past the last of each."""
Clock = dict[Pipe, int]
"""The number of micro-ops of each pipe that are known to have finished."""


@lru_cache(maxsize=1 << 16)
def _touched(op: MicroOp) -> tuple[Ranges, Ranges]:
    """The ranges that *op* reads and writes in buffers."""
    return _ranges(reads(op)), _ranges(writes(op))


def _ranges(locals_: Iterable[Local]) -> Ranges:
    return tuple((each.buffer, each.offset_bytes, each.end_bytes) for each in locals_)


def _meet(some: Ranges, others: Ranges) -> bool:
    return any(
        a == b and start < other_end and other_start < end
        for a, start, end in some
        for b, other_start, other_end in others
    )


@lru_cache(maxsize=1 << 18)
def _depend(earlier: MicroOp, later: MicroOp) -> bool:
    """Whether one of the two writes bytes that the other one reads or writes."""
    read, written = _touched(earlier)
    reads_, writes_ = _touched(later)
    return _meet(written, reads_) or _meet(written, writes_) or _meet(read, writes_)


@dataclass(slots=True)
class AutoSync:
    """The micro-ops of a core in program order, up to the current one."""

    _issued: Clock = field(default_factory=dict)
    _known: dict[Pipe, Clock] = field(default_factory=dict)
    """Pipe -> the micro-ops that have certainly finished when it begins its next one."""
    _flags: dict[tuple[Pipe, Pipe, int], Clock] = field(default_factory=dict)
    """The micro-ops that had certainly finished when a flag was set."""
    _last: dict[Pipe, dict[MicroOp, int]] = field(default_factory=dict)
    """Pipe -> the accesses to buffers, with the index of the last such micro-op."""

    def before(self, op: MicroOp) -> Iterator[MicroOp]:
        """The flags and barriers that are required before *op*, the next micro-op."""
        for source in SOURCES.get(op.pipe, ()):
            if self._must_wait(op, source):
                added: tuple[MicroOp, ...] = (
                    SetFlag(source, op.pipe, EVENT),
                    WaitFlag(source, op.pipe, EVENT),
                )
                if source == op.pipe:
                    added = (Barrier(source),)
                for each in added:
                    self._follow(each)
                    yield each
        self._follow(op)

    def _must_wait(self, op: MicroOp, source: Pipe) -> bool:
        known = self._known.get(op.pipe, {}).get(source, 0)
        last = self._last.get(source)
        if not last:
            return False
        return any(number > known and _depend(other, op) for other, number in last.items())

    def _follow(self, op: MicroOp) -> None:
        """Apply the ordering that *op* establishes."""
        match op:
            case SetFlag():
                known = dict(self._known.get(op.src, {}))
                known[op.src] = self._issued.get(op.src, 0)
                self._flags[op.src, op.dst, op.event] = known
            case WaitFlag():
                self._learn(op.dst, self._flags.get((op.src, op.dst, op.event), {}))
            case Barrier(on=None):
                for pipe in self._issued:
                    self._learn(pipe, self._issued)
                self._last.clear()
            case Barrier():
                self._learn(op.pipe, {op.pipe: self._issued.get(op.pipe, 0)})
                if op.pipe == "vector":
                    self._forget("vector")
            case _:
                pipe = op.pipe
                number = self._issued[pipe] = self._issued.get(pipe, 0) + 1
                read, written = _touched(op)
                if read or written:
                    self._last.setdefault(pipe, {})[op] = number

    def _learn(self, pipe: Pipe, clock: Clock) -> None:
        known = self._known.setdefault(pipe, {})
        for other, number in clock.items():
            known[other] = max(known.get(other, 0), number)
        self._forget(pipe)

    def _forget(self, pipe: Pipe) -> None:
        """Drop accesses that every pipe that may wait for *pipe* knows to have finished."""
        for source in SOURCES.get(pipe, ()):
            last = self._last.get(source)
            if not last:
                continue
            waiting = [p for p, sources in SOURCES.items() if source in sources]
            done = min(self._known.get(p, {}).get(source, 0) for p in waiting)
            for other in [x for x, number in last.items() if number <= done]:
                del last[other]
