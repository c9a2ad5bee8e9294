"""Micro-ops of the vector pipe that move and fill elements; names follow Ascend C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from npusim.devices.schema import Pipe
from npusim.isa.micro_op import MicroOp, Role
from npusim.isa.operands import Local, Register
from npusim.isa.work import Rearrangement, Work

__all__ = ["Broadcast", "Copy", "Duplicate", "Gather", "Transpose"]


@dataclass(frozen=True, slots=True)
class Duplicate(MicroOp):
    """Fill *dst* with one number, or with a register's bits."""

    dst: Local
    scalar: float | Register
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("scalar", "read", "register"),
        Role("dst", "written"),
    )
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        return f"duplicate {self.dst} <- {self.scalar}"


@dataclass(frozen=True, slots=True)
class Broadcast(MicroOp):
    """Each element of *src* fills one 32-byte block of *dst* (Brcb)."""

    dst: Local
    src: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        return f"broadcast {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class Copy(MicroOp):
    """Copy element by element; with strides, blocks change places (DataCopy, UB to UB)."""

    dst: Local
    src: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        return f"copy {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class Gather(MicroOp):
    """Each element of *dst* is the one of *src* that its offset says (Gather).

    *offsets* are int32, in bytes from the beginning of *src*.
    """

    dst: Local
    src: Local
    offsets: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read"),
        Role("offsets", "read"),
        Role("dst", "written"),
    )
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        return f"gather {self.dst} <- {self.src} at {self.offsets}"


@dataclass(frozen=True, slots=True)
class Transpose(MicroOp):
    """Each matrix of 16 blocks, 512 bytes, the other way round.

    Elements of 16 bits are 16 x 16 (Transpose), and those of 32 bits 16 x 8, of which come 8 x 16
    (TransDataTo5HD).
    """

    dst: Local
    src: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        return f"transpose {self.dst} <- {self.src}"
