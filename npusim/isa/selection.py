"""Micro-ops of the vector pipe that compare and select; names follow Ascend C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from npusim.data.integers import ceil_div
from npusim.devices.schema import Pipe
from npusim.isa.micro_op import MicroOp, Role
from npusim.isa.operands import REPEAT_BYTES, Local, Numbers, Register, lanes
from npusim.isa.work import Arithmetic, Rearrangement, Work

__all__ = [
    "CMP_MASK_BYTES",
    "CmpMask",
    "Compare",
    "CompareOp",
    "CompareScalar",
    "GetCmpMask",
    "Select",
    "SetCmpMask",
]

CmpMask = Literal["cmp_mask"]
"""The compare mask register of the vector pipe, one bit per lane of a repeat."""
CMP_MASK_BYTES = 16
CompareOp = Literal["lt", "gt", "eq", "le", "ge", "ne"]


@dataclass(frozen=True, slots=True)
class Compare(MicroOp):
    """Write one bit per element, whether `a op b`, the first one lowest in its byte (Compare).

    NaN is unequal to everything, and neither less nor greater. In the register the bits of inactive
    lanes are 0, which is assumed.
    """

    op: CompareOp
    dst: Local | CmpMask
    """uint8 with eight elements a byte, or the register for one repeat."""
    a: Local
    b: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("a", "read"),
        Role("b", "read"),
        Role("dst", "written"),
        Role("dst", "written", "register"),
    )

    @property
    def work(self) -> Work:
        return Arithmetic(self.a.count, self.a.dtype)

    def __str__(self) -> str:
        return f"compare.{self.op} {self.dst} <- {self.a}, {self.b}"


@dataclass(frozen=True, slots=True)
class CompareScalar(MicroOp):
    """Compare with one value, or the bits of a register, as *b* (CompareScalar)."""

    op: CompareOp
    dst: Local
    a: Local
    scalar: float | Register
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("a", "read"),
        Role("scalar", "read", "register"),
        Role("dst", "written"),
    )

    @property
    def work(self) -> Work:
        return Arithmetic(self.a.count, self.a.dtype)

    def __str__(self) -> str:
        return f"compares.{self.op} {self.dst} <- {self.a}, {self.scalar}"


@dataclass(frozen=True, slots=True)
class Select(MicroOp):
    """`dst = a` where the bit of *mask* is set, else *b*, a vector or one value (Select).

    Each repeat has a bit for each of its lanes, including those that a mask of *dst*, *a* and *b*
    disables. With the bits of a single repeat, as in the register, every repeat uses the same bits
    (VSEL_CMPMASK_SPR).
    """

    dst: Local
    mask: Local | CmpMask
    """uint8, as Compare writes it."""
    a: Local
    b: Local | float
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("mask", "read"),
        Role("mask", "read", "register"),
        Role("a", "read"),
        Role("b", "read"),
        Role("dst", "written"),
    )

    @property
    def work(self) -> Work:
        return Arithmetic(self.dst.count, self.dst.dtype)

    def __str__(self) -> str:
        return f"select {self.dst} <- {self.mask}, {self.a}, {self.b}"

    @property
    def repeat_lanes(self) -> int:
        """Lanes of a repeat, which is also its number of bits."""
        return REPEAT_BYTES * 8 // self.dst.dtype.bits

    @property
    def bits(self) -> Numbers:
        """The index of the bit that decides on each element, `(count,)`."""
        dst = self.dst
        if not dst.is_strided:
            return np.arange(dst.count)
        within = np.arange(dst.repeat_elements) if dst.mask is None else lanes(dst.mask)
        repeat, lane = np.divmod(np.arange(dst.count), within.size)
        return repeat * self.repeat_lanes + within[lane]

    @property
    def mask_bytes(self) -> int:
        """Bytes of the bits of all its repeats."""
        return int(self.bits.max(initial=-1)) // 8 + 1

    @property
    def whole_mask_bytes(self) -> int:
        """Bytes of the bits of full repeats."""
        return ceil_div(8 * self.mask_bytes, self.repeat_lanes) * self.repeat_lanes // 8

    @property
    def is_repeated(self) -> bool:
        """Whether every repeat uses the same bits."""
        of_one = self.repeat_lanes // 8
        return not isinstance(self.mask, Local) or self.mask.count == of_one != self.mask_bytes


@dataclass(frozen=True, slots=True)
class GetCmpMask(MicroOp):
    """Write the 128 bits of the register into *dst* (GetCmpMask)."""

    dst: Local
    """uint8."""
    mask: CmpMask = "cmp_mask"
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("mask", "read", "register"),
        Role("dst", "written"),
    )
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        return f"get_cmp_mask {self.dst}"


@dataclass(frozen=True, slots=True)
class SetCmpMask(MicroOp):
    """Set the 128 bits of the register to those of *src* (SetCmpMask)."""

    src: Local
    """uint8."""
    mask: CmpMask = "cmp_mask"
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read"),
        Role("mask", "written", "register"),
    )
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        return f"set_cmp_mask {self.src}"
