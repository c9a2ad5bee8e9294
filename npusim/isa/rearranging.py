"""Micro-ops of the vector pipe that move and fill elements; names follow Ascend C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from npusim.devices.schema import Pipe
from npusim.isa.micro_op import MicroOp, Role
from npusim.isa.operands import Local, Register
from npusim.isa.work import Rearrangement, Work

__all__ = [
    "Broadcast",
    "Copy",
    "Duplicate",
    "Gather",
    "GatherBlocks",
    "Scatter",
    "TransDataTo5HD",
    "Transpose",
]


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

    *offsets* are int32 or uint32, in bytes from the beginning of *src*. They have the mask of
    *dst*, and each its own strides.
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


@dataclass(frozen=True, slots=True)
class GatherBlocks(MicroOp):
    """Each block of *dst* is the one of *src* that its offset says (Gatherb).

    *offsets* are uint32 or int32, in bytes from the beginning of *src*: those of blocks.
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
        return f"gather_blocks {self.dst} <- {self.src} at {self.offsets}"


@dataclass(frozen=True, slots=True)
class Scatter(MicroOp):
    """Each element of *src* becomes the one of *dst* that its offset says (Scatter).

    *offsets* are as those of :class:`Gather`, from the beginning of *dst*, all different, and have
    the mask of *src*. *dst* names all that they may mean.
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
        return f"scatter {self.dst} at {self.offsets} <- {self.src}"


@dataclass(frozen=True, slots=True)
class TransDataTo5HD(MicroOp):
    """Turn 16 rows of a block, or of half a block, which may lie anywhere (TransDataTo5HD).

    Repeat by repeat, of element i of row j of *src*
    8 bits     comes element j of row i of *dst*: 16 x 16, in the half that the mask of each says
    16 bits    comes element j of row i: 16 x 16
    32 bits    comes element j % 8 of row 2 i + j // 8: of 16 x 8 come 8 x 16

    Each of the 16 rows of *src* and of *dst* has its own place and as many blocks as there are
    repeats, from one to the next as its repeat stride says.
    """

    dst: tuple[Local, ...]
    src: tuple[Local, ...]
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        dst, src = (", ".join(map(str, rows)) for rows in (self.dst, self.src))
        return f"trans_data_to_5hd {dst} <- {src}"
