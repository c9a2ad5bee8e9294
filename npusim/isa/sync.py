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
    """Raise flag *event* from *src* to *dst* once all earlier work of *src* is done.

    In a program sets and waits of a flag take turns. A pipe that runs ahead may still set it again
    before an earlier wait is over; both sets count.
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
    """Hold *dst* until flag *event* from *src* is raised, then lower it."""

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
    """Later micro-ops of *pipe* wait until its earlier ones are done (PipeBarrier).

    Without a pipe, the scalar unit waits for every pipe before it issues anything more.
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
"""Which cores a flag between cores is for.

all    every cube core, or every vector core, of the launch (mode 0)
group  a cube core and its two vector cores (mode 2): what the cube core sets, both vector
       cores can await; the cube core can go on once both have set
pair   the two vector cores of a cube core (mode 1): each goes on once both have set
"""


@dataclass(frozen=True, slots=True)
class CrossCoreSetFlag(MicroOp):
    """Raise flag *event* for other cores once all earlier work of *pipe* is done.

    Flags are counted. That a core counts up to 16 sets of one that it has not awaited is assumed:
    today's page has the counter go up to 15, an older one allows 16 sets (asc-devkit,
    CrossCoreSetFlag(ISASI).md), and the msd kernel, whose ring has two halves of up to 8
    slots as the vendor's (ops-nn, weight_quant_batch_matmul_v2, *_msd_split_k.h), sets a flag
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
    """Hold *pipe* until flag *event* was raised for this core, then lower it."""

    mode: CrossMode
    pipe: Pipe
    event: int
    roles: ClassVar[tuple[Role, ...]] = ()
    work: ClassVar[Work] = Ordering()

    def __str__(self) -> str:
        return f"cross_core_wait_flag {self.mode} {self.event}"
