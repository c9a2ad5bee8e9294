"""Micro-ops of the vector pipe that move or fill elements; names follow Ascend C."""

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
    """Fill *dst* with one value, or with the bits of a register."""

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
    """Fill one 32-byte block of *dst* with each element of *src* (Brcb)."""

    dst: Local
    src: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        return f"broadcast {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class Copy(MicroOp):
    """Copy element by element; strides can permute blocks (DataCopy, UB to UB)."""

    dst: Local
    src: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        return f"copy {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class Gather(MicroOp):
    """Gather elements: each element of *dst* is that of *src* at its offset (Gather).

    *offsets* are int32 or uint32, in bytes from the start of *src*. They have the mask of *dst*,
    while each operand has its own strides.
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
    """Transpose each matrix of 16 blocks, 512 bytes.

    Elements of 16 bits form 16 x 16 (Transpose); those of 32 bits form 16 x 8, which become 8 x 16
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
    """Gather blocks: each block of *dst* is that of *src* at its offset (Gatherb).

    *offsets* are uint32 or int32, one per block, in bytes from the start of *src*.
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
    """Scatter elements: each element of *src* goes to its offset in *dst* (Scatter).

    *offsets* are like those of :class:`Gather`, from the start of *dst*, all different, with the
    mask of *src*. *dst* covers every element that they may address.
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
    """Transpose 16 rows of a block, or of half a block, at any addresses (TransDataTo5HD).

    Repeat by repeat, of element i of row j of *src*
    8 bits     comes element j of row i of *dst*: 16 x 16, in the half that the mask of each says
    16 bits    comes element j of row i: 16 x 16
    32 bits    comes element j % 8 of row 2 i + j // 8: of 16 x 8 come 8 x 16

    Each of the 16 rows of *src* and of *dst* has its own address and one block per repeat, spaced
    by its repeat stride.
    """

    dst: tuple[Local, ...]
    src: tuple[Local, ...]
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        dst, src = (", ".join(map(str, rows)) for rows in (self.dst, self.src))
        return f"trans_data_to_5hd {dst} <- {src}"
