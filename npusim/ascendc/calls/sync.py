"""Calls that synchronise pipes and cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from npusim.ascendc.calls.table import Chip, Table
from npusim.ascendc.errors import AscendCError
from npusim.devices.schema import Pipe
from npusim.isa import (
    Barrier,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    CrossMode,
    MicroOp,
    SetFlag,
    WaitFlag,
)

__all__ = ["CALLS", "HARD_EVENTS"]

WORDS: dict[str, Pipe] = {
    "S": "scalar",
    "V": "vector",
    "M": "cube",
    "MTE1": "mte1",
    "MTE2": "mte2",
    "MTE3": "mte3",
    "FIX": "fixpipe",
}
HARD_EVENTS = [
    "MTE2_MTE1",
    "MTE1_MTE2",
    "MTE1_M",
    "M_MTE1",
    "MTE2_V",
    "V_MTE2",
    "MTE3_V",
    "V_MTE3",
    "M_V",
    "V_M",
    "V_V",
    "MTE3_MTE1",
    "MTE1_MTE3",
    "MTE1_V",
    "MTE2_M",
    "M_MTE2",
    "V_MTE1",
    "M_FIX",
    "FIX_M",
    "MTE3_MTE2",
    "MTE2_MTE3",
    "S_V",
    "V_S",
    "S_MTE2",
    "MTE2_S",
    "S_MTE3",
    "MTE3_S",
    "MTE2_FIX",
    "FIX_MTE2",
    "FIX_S",
    "M_S",
    "FIX_MTE3",
    "MTE1_FIX",
    "FIX_MTE1",
    "FIX_FIX",
    "FIX_V",
    "V_FIX",
    "S_FIX",
    "S_M",
    "S_MTE1",
    "MTE1_S",
]
"""By the number of HardEvent, as in include/npusim_ascendc/types.h."""
PIPES: tuple[Pipe | None, ...] = (
    *("scalar", "vector", "cube", "mte1", "mte2", "mte3", None),
    *("mte3", "mte3", "vector", "fixpipe"),
)
"""By the number of pipe_t; None means all pipes."""
MODES: tuple[CrossMode, ...] = ("all", "pair", "group")
"""By the number of modeId."""


def _pair(event: int) -> tuple[Pipe, Pipe]:
    src, dst = HARD_EVENTS[event].split("_")
    return WORDS[src], WORDS[dst]


def _set_flag(_: Chip, event: int, number: int) -> Iterator[MicroOp]:
    yield SetFlag(*_pair(event), number)


def _wait_flag(_: Chip, event: int, number: int) -> Iterator[MicroOp]:
    yield WaitFlag(*_pair(event), number)


def _of_pipes(make: type[SetFlag | WaitFlag]) -> Callable[..., Iterator[MicroOp]]:
    def call(_: Chip, src: int, dst: int, number: int) -> Iterator[MicroOp]:
        pair = PIPES[src], PIPES[dst]
        if None in pair:
            raise AscendCError("a flag must be from one pipe to another, not of PIPE_ALL; name one")
        yield make(*pair, number)  # type: ignore[arg-type]

    return call


def _barrier(_: Chip, pipe: int) -> Iterator[MicroOp]:
    yield Barrier(PIPES[pipe])


def _cross(pipe: int, mode: int) -> tuple[CrossMode, Pipe]:
    known, on = MODES[mode] if mode < len(MODES) else None, PIPES[pipe]
    if known is None or on is None:
        raise AscendCError(
            f"a flag between cores must be of mode 0, 1 or 2 and of one pipe, not of mode {mode}; "
            f"use one of these"
        )
    return known, on


def _cross_set(_: Chip, mode: int, pipe: int, flag: int) -> Iterator[MicroOp]:
    yield CrossCoreSetFlag(*_cross(pipe, mode), flag)


def _cross_wait(_: Chip, mode: int, pipe: int, flag: int) -> Iterator[MicroOp]:
    yield CrossCoreWaitFlag(*_cross(pipe, mode), flag)


CALLS: Table = {
    "CrossCoreSetFlag": _cross_set,
    "CrossCoreWaitFlag": _cross_wait,
    "PipeBarrier": _barrier,
    "SetFlag": _set_flag,
    "SetFlagOfPipes": _of_pipes(SetFlag),
    "WaitFlag": _wait_flag,
    "WaitFlagOfPipes": _of_pipes(WaitFlag),
}
