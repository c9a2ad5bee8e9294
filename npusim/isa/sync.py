"""Micro-ops that order pipes: flags between two of them, barriers within one."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.spec import Pipe

__all__ = ["Barrier", "SetFlag", "WaitFlag"]


@dataclass(frozen=True, slots=True)
class SetFlag:
    """Raise flag *event* from *src* to *dst* once all earlier work of *src* is done.

    Flags are counted: two sets before one wait are both kept.
    """

    src: Pipe
    dst: Pipe
    event: int

    @property
    def pipe(self) -> Pipe:
        return self.src

    def __str__(self) -> str:
        return f"set_flag {self.src}->{self.dst} {self.event}"


@dataclass(frozen=True, slots=True)
class WaitFlag:
    """Hold *dst* until flag *event* from *src* is raised, then lower it."""

    src: Pipe
    dst: Pipe
    event: int

    @property
    def pipe(self) -> Pipe:
        return self.dst

    def __str__(self) -> str:
        return f"wait_flag {self.src}->{self.dst} {self.event}"


@dataclass(frozen=True, slots=True)
class Barrier:
    """Later micro-ops of *pipe* wait until its earlier ones are done (PipeBarrier).

    Without a pipe, the scalar unit waits for every pipe before it hands out anything more.
    """

    on: Pipe | None = None

    @property
    def pipe(self) -> Pipe:
        return self.on or "scalar"

    def __str__(self) -> str:
        return f"barrier {self.on or 'all'}"
