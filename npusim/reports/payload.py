"""The data of the interactive timeline of a report, as plain numbers and strings.

Micro-ops of a body that calls share stand there once; times are differences, which compress well.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.kernel.program import Body, Call, Line
from npusim.reports import style
from npusim.reports.bars import alike
from npusim.reports.flags import NOBODY, matches, what
from npusim.reports.subject import slowest_lanes
from npusim.reports.traffic import moved, path
from npusim.trace import ORDERING, LaneTrace, Trace

__all__ = ["MAX_OPS", "payload"]

MAX_OPS = 120_000
"""Micro-ops, after which no further core is shown."""


class _Words:
    """Strings, each once, known by their numbers."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def number(self, word: str) -> int:
        """The number of *word*."""
        return self.known.setdefault(word, len(self.known))


def payload(trace: Trace, code: dict[Line, str]) -> dict[str, Any]:
    """The lanes of *trace* that there is room for, the slowest of each kind before the others."""
    words, bodies = _Words(), dict[Body, int]()
    written: list[Any] = []
    shown, left_out = _chosen(trace)
    lanes = []
    for lane, cores in shown:
        for call in lane.program.calls:
            if call.body not in bodies:
                bodies[call.body] = len(written)
                written.append(_body(call, words, code))
        lanes.append(_lane(lane, cores, bodies, words))
    return {
        "clock_hz": trace.clock_hz,
        "cycles": trace.cycles,
        "pipes": list(style.PIPES),
        "colors": list(style.COLORS.values()),
        "bodies": written,
        "lanes": lanes,
        "left_out": left_out,
        "words": list(words.known),
    }


def _chosen(trace: Trace) -> tuple[list[tuple[LaneTrace, tuple[int, ...]]], int]:
    """Lanes with the cores that ran alike, and how many cores there is no room for."""
    groups = alike(trace)
    first = [lane.cores[0] for lane in slowest_lanes(trace)]
    groups.sort(key=lambda group: (not set(group[1]) & set(first), group[1]))
    shown: list[tuple[LaneTrace, tuple[int, ...]]] = []
    count = left_out = 0
    for lane, cores in groups:
        count += len(lane.program)
        if shown and count > MAX_OPS:
            left_out += len(cores)
        else:
            shown.append((lane, cores))
    return shown, left_out


def _body(call: Call, words: _Words, code: dict[Line, str]) -> list[list[int]]:
    """For each micro-op its pipe, name, text, bytes, path, line and code; -1 for none."""
    found = []
    for index, op in enumerate(call.ops):
        line = call.lines[index] if call.lines else None
        way = path(op)
        found.append(
            [
                style.PIPES.index(op.pipe),
                words.number(str(op).partition(" ")[0]),
                words.number(str(op)),
                moved(op) if way else 0,
                words.number(way) if way else -1,
                words.number(f"{line[0]}:{line[1]}") if line else -1,
                words.number(code.get(line, "")) if line else -1,
                int(isinstance(op, ORDERING)),
            ]
        )
    return found


def _lane(
    lane: LaneTrace, cores: tuple[int, ...], bodies: dict[Body, int], words: _Words
) -> dict[str, Any]:
    matched = matches(lane.ops)
    carried = what(lane.ops, matched)
    waits = np.flatnonzero(matched != NOBODY).tolist()
    return {
        "name": style.cores_named(cores, lane.kind),
        "calls": [
            [bodies[call.body], words.number(_shifts(call.shifts)) if call.shifts else -1]
            for call in lane.program.calls
        ],
        "start": np.diff(lane.start, prepend=0).tolist(),
        "free": (lane.free - lane.start).tolist(),
        "end": (lane.end - lane.free).tolist(),
        "waits": [
            [wait, int(matched[wait]), words.number(carried.get(wait, ""))] for wait in waits
        ],
    }


def _shifts(shifts: dict[str, int]) -> str:
    return ", ".join(f"{name} + {nbytes} bytes" for name, nbytes in shifts.items())
