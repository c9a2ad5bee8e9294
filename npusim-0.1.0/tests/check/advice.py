"""Follows the advice of race messages, as a reader would."""

from __future__ import annotations

import re

from npusim.check.hazards import RaceError
from npusim.isa import Barrier, MicroOp, SetFlag, WaitFlag

__all__ = ["advised"]


def advised(error: RaceError, ops: list[MicroOp], event: int = 7) -> list[MicroOp]:
    """*ops* with all flags, by an *event* that is free, and barriers that the message asks for."""
    advice = str(error).rpartition("; ")[2]
    first, second = (int(number) for number in re.findall(r"#(\d+) ", str(error))[:2])
    wanted: list[tuple[int, MicroOp, MicroOp | None]] = []
    if pair := re.match(r"set a flag from (\w+) to (\w+) after the first", advice):
        wanted.append((first, SetFlag(*pair.groups(), event), WaitFlag(*pair.groups(), event)))
    if pipe := re.match(r"put a barrier of the (\w+) pipe between them", advice):
        wanted.append((first, Barrier(pipe[1]), None))
    for source, dst, number in re.findall(
        r"(?:one|a flag) from (\w+) to (\w+) after #(\d+)", advice
    ):
        wanted.append((int(number), SetFlag(source, dst, event), WaitFlag(source, dst, event)))
    for pipe, number in re.findall(r"a barrier of the (\w+) pipe after #(\d+)", advice):
        wanted.append((int(number), Barrier(pipe), None))
    assert wanted, advice
    fixed: list[MicroOp] = []
    for index, op in enumerate(ops):
        fixed += [wait for _, _, wait in wanted if wait is not None and index == second]
        fixed.append(op)
        fixed += [after for number, after, _ in wanted if number == index]
    return fixed
