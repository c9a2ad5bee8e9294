"""Micro-ops of the vector pipe that compare and select; names follow Ascend C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from npusim.devices.schema import Pipe
from npusim.isa.micro_op import MicroOp, Role
from npusim.isa.operands import Local, Register
from npusim.isa.work import Arithmetic, Work

__all__ = ["Compare", "CompareOp", "CompareScalar", "Select"]

CompareOp = Literal["lt", "gt", "eq", "le", "ge", "ne"]


@dataclass(frozen=True, slots=True)
class Compare(MicroOp):
    """A bit for each element, whether `a op b`, the first one lowest in its byte (Compare).

    NaN is unequal to everything, and neither less nor greater.
    """

    op: CompareOp
    dst: Local
    """uint8, eight elements a byte."""
    a: Local
    b: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("a", "read"),
        Role("b", "read"),
        Role("dst", "written"),
    )

    @property
    def work(self) -> Work:
        return Arithmetic(self.a.count, self.a.dtype)

    def __str__(self) -> str:
        return f"compare.{self.op} {self.dst} <- {self.a}, {self.b}"


@dataclass(frozen=True, slots=True)
class CompareScalar(MicroOp):
    """The same with one number, or a register's bits, in place of *b* (CompareScalar)."""

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
    """`dst = a` where the bit of *mask* is set, else *b*, a vector or one number (Select)."""

    dst: Local
    mask: Local
    """uint8, as Compare writes it."""
    a: Local
    b: Local | float
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("mask", "read"),
        Role("a", "read"),
        Role("b", "read"),
        Role("dst", "written"),
    )

    @property
    def work(self) -> Work:
        return Arithmetic(self.dst.count, self.dst.dtype)

    def __str__(self) -> str:
        return f"select {self.dst} <- {self.mask}, {self.a}, {self.b}"
