"""Micro-ops that order pipes: flags between two of them, barriers within one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from npusim.devices.schema import Pipe
from npusim.isa.micro_op import MicroOp, Role
from npusim.isa.work import Ordering, Work

__all__ = ["Barrier", "CrossCoreSetFlag", "CrossCoreWaitFlag", "CrossMode", "SetFlag", "WaitFlag"]


@dataclass(frozen=True, slots=True)
class SetFlag(MicroOp):
    """Set flag *event* from *src* to *dst* when all earlier work of *src* has finished.

    In a program sets and waits of a flag alternate. A pipe that runs ahead may set it again before
    an earlier wait has finished; both sets count.
    """

    src: Pipe
    dst: Pipe
    event: int
    roles: ClassVar[tuple[Role, ...]] = ()
    work: ClassVar[Work] = Ordering()

    @property
    def pipe(self) -> Pipe:
        return self.src

    def __str__(self) -> str:
        return f"set_flag {self.src}->{self.dst} {self.event}"


@dataclass(frozen=True, slots=True)
class WaitFlag(MicroOp):
    """Stop *dst* until flag *event* from *src* is set, then clear it."""

    src: Pipe
    dst: Pipe
    event: int
    roles: ClassVar[tuple[Role, ...]] = ()
    work: ClassVar[Work] = Ordering()

    @property
    def pipe(self) -> Pipe:
        return self.dst

    def __str__(self) -> str:
        return f"wait_flag {self.src}->{self.dst} {self.event}"


@dataclass(frozen=True, slots=True)
class Barrier(MicroOp):
    """Later micro-ops of *pipe* wait until its earlier ones have finished (PipeBarrier).

    Without a pipe, the scalar unit waits for every pipe before it issues further micro-ops.
    """

    on: Pipe | None = None
    roles: ClassVar[tuple[Role, ...]] = ()
    work: ClassVar[Work] = Ordering()

    @property
    def pipe(self) -> Pipe:
        return self.on or "scalar"

    def __str__(self) -> str:
        return f"barrier {self.on or 'all'}"


CrossMode = Literal["all", "group", "pair"]
"""The cores that a flag between cores synchronises.

all    every cube core, or every vector core, of the launch (mode 0)
group  a cube core and its two vector cores (mode 2): both vector cores can wait for a flag set
       by the cube core; the cube core continues when both have set theirs
pair   the two vector cores of a cube core (mode 1): each continues when both have set theirs
"""


@dataclass(frozen=True, slots=True)
class CrossCoreSetFlag(MicroOp):
    """Set flag *event* for other cores when all earlier work of *pipe* has finished.

    Flags are counted. That a core counts up to 16 sets it has not yet waited for is assumed:
    today's page has the counter go up to 15, an older one allows 16 sets (asc-devkit,
    CrossCoreSetFlag(ISASI).md), and the msd kernel, whose ring has two halves of up to 8
    slots like the vendor's (ops-nn, weight_quant_batch_matmul_v2, *_msd_split_k.h), sets a flag
    16 times ahead.
    """

    mode: CrossMode
    pipe: Pipe
    event: int
    roles: ClassVar[tuple[Role, ...]] = ()
    work: ClassVar[Work] = Ordering()

    def __str__(self) -> str:
        return f"cross_core_set_flag {self.mode} {self.event}"


@dataclass(frozen=True, slots=True)
class CrossCoreWaitFlag(MicroOp):
    """Stop *pipe* until flag *event* is set for this core, then decrement it."""

    mode: CrossMode
    pipe: Pipe
    event: int
    roles: ClassVar[tuple[Role, ...]] = ()
    work: ClassVar[Work] = Ordering()

    def __str__(self) -> str:
        return f"cross_core_wait_flag {self.mode} {self.event}"
