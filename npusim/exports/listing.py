"""The listing of a kernel: one line for each distinct micro-op of its programs.

A body that is called repeatedly, or by several cores, is listed once, so a line corresponds to an
address in the tools of the vendor: the k-th word of the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from npusim.devices.schema import Pipe
from npusim.isa import Global, MicroOp, copied_place, global_operand
from npusim.kernel.program import Body, Call
from npusim.trace import ORDERING, LaneTrace, Trace

__all__ = ["Event", "Line", "Listing"]

WORD_BYTES = 4
"""The distance between addresses: an instruction of the core takes 32 bits."""


@dataclass(frozen=True, eq=False)
class Line:
    """One micro-op of the listing."""

    number: int
    """Counted from 1."""
    op: MicroOp
    pipe: Pipe
    text: str
    """The micro-op as in the program, without shifts of its global memory addresses."""

    @property
    def name(self) -> str:
        """The mnemonic without modes."""
        return self.text.partition(" ")[0].partition(".")[0]

    @property
    def address(self) -> str:
        return f"0x{(self.number - 1) * WORD_BYTES:x}"

    @cached_property
    def place(self) -> Global | None:
        """The operands of the micro-op in global memory."""
        return global_operand(self.op)

    @cached_property
    def nbytes(self) -> int:
        """Bytes that it moves between global memory and the core."""
        place = copied_place(self.op)
        return place.nbytes if place else 0

    def moved(self, shifts: dict[str, int]) -> str:
        """The text with global memory addresses shifted by *shifts*."""
        place = self.place
        shift = shifts.get(place.name, 0) if place else 0
        if place is None or not shift:
            return self.text
        there = replace(place, offset_bytes=place.offset_bytes + shift)
        return self.text.replace(str(place), str(there), 1)


@dataclass(frozen=True, slots=True)
class Event:
    """One micro-op as a core ran it, in cycles."""

    line: Line
    text: str
    start: int
    free: int
    """The pipe can take its next micro-op."""
    end: int
    """The result is available."""


class Listing:
    """All lines of all programs of a trace, in program order, cores with low numbers first.

    *name* is the name of the listing in places such as `quantize.txt:12`.
    """

    def __init__(self, trace: Trace, name: str) -> None:
        self.name = name
        self.lines: list[Line] = []
        self._known: dict[Body, tuple[int, int]] = {}
        """Body -> its first line, and the one past its last."""
        same: dict[tuple[MicroOp, ...], tuple[int, int]] = {}
        for lane in sorted(trace.lanes, key=lambda lane: lane.cores[0]):
            for body in lane.program.bodies:
                if body not in self._known:
                    if body.ops not in same:
                        same[body.ops] = self._add(body.ops)
                    self._known[body] = same[body.ops]
        self.orders = np.array([isinstance(line.op, ORDERING) for line in self.lines])
        """`(lines,)`: which of them only synchronise."""

    def _add(self, ops: tuple[MicroOp, ...]) -> tuple[int, int]:
        first = len(self.lines)
        self.lines += [Line(first + i, op, op.pipe, str(op)) for i, op in enumerate(ops, 1)]
        return first, len(self.lines)

    def place(self, call: Call) -> tuple[int, int]:
        """Index of the first line of *call*, and the one past its last."""
        return self._known[call.body]

    def of(self, call: Call) -> Sequence[Line]:
        """The lines of *call*."""
        first, last = self.place(call)
        return self.lines[first:last]

    def code(self, line: Line) -> str:
        """The place of *line*: `name:number`."""
        return f"{self.name}:{line.number}"

    def source(self) -> Iterator[str]:
        """The text of the listing, line by line."""
        return (f"{line.pipe:8} {line.text}\n" for line in self.lines)

    def events(self, lane: LaneTrace, first: int = 0, last: int | None = None) -> Iterator[Event]:
        """The micro-ops that the cores of *lane* ran, in program order, generated lazily.

        Only micro-ops with indices from *first* up to *last*, by default up to the end.
        """
        last = len(lane.program) if last is None else last
        for call, begin, own in lane.program.between(first, last):
            rows = slice(begin + own.start, begin + own.stop)
            times = (x[rows].tolist() for x in (lane.start, lane.free, lane.end))
            for line, start, free, end in zip(self.of(call)[own], *times, strict=True):
                yield Event(line, line.moved(call.shifts), start, free, end)

    def ops(self, lane: LaneTrace, first: int, last: int) -> Iterator[MicroOp]:
        """The micro-ops of *lane* with indices from *first* up to *last*, without shifts."""
        for call, _, own in lane.program.between(first, last):
            yield from call.ops[own]
