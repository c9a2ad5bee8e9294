"""Micro-ops of the vector pipe; names and operands follow Ascend C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from npusim.data.dtypes import RoundMode
from npusim.devices.schema import Pipe
from npusim.isa.micro_op import MicroOp, Role
from npusim.isa.operands import Local, Register
from npusim.isa.work import Arithmetic, Rearrangement, Work

__all__ = [
    "Axpy",
    "Binary",
    "BinaryOp",
    "BinaryScalar",
    "BitwiseOp",
    "Cast",
    "MulAddDst",
    "Unary",
    "UnaryOp",
]

BinaryOp = Literal["add", "sub", "mul", "div", "min", "max"]
BitwiseOp = Literal["and", "or"]
UnaryOp = Literal["abs", "relu", "not", "exp", "ln", "sqrt", "rsqrt", "reciprocal"]


@dataclass(frozen=True, slots=True)
class Cast(MicroOp):
    """Convert element by element; *mode* is the rounding."""

    dst: Local
    src: Local
    mode: RoundMode = "none"
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        return f"cast.{self.mode} {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class Binary(MicroOp):
    """`dst = a op b`, element by element (Add, Sub, Mul, Div, Min, Max; And, Or of bits)."""

    op: BinaryOp | BitwiseOp
    dst: Local
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
        return Arithmetic(self.dst.count, self.dst.dtype)

    def __str__(self) -> str:
        return f"{self.op} {self.dst} <- {self.a}, {self.b}"


@dataclass(frozen=True, slots=True)
class BinaryScalar(MicroOp):
    """`dst = a op scalar` (Adds, Muls, Mins, Maxs, ...).

    *scalar* is a number, or a register that holds the bits of one element.
    """

    op: BinaryOp
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
        return Arithmetic(self.dst.count, self.dst.dtype)

    def __str__(self) -> str:
        return f"{self.op}s {self.dst} <- {self.a}, {self.scalar}"


@dataclass(frozen=True, slots=True)
class Unary(MicroOp):
    """`dst = op(src)`, element by element (Abs, Relu, Not, Exp, Ln, Sqrt, Rsqrt, Reciprocal).

    `exp`, `ln` and `sqrt` give the nearest number to the exact result, ties to even. Nothing public
    says so for these chips; it is assumed. `rsqrt` and `reciprocal` of a chip are estimates, off by
    more than 1e-4 of the result (asc-devkit, Reciprocal.md), whose bits nobody documents: the
    nearest number stands for them, and kernels that are to have a chip's bits divide instead.
    """

    op: UnaryOp
    dst: Local
    src: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))

    @property
    def work(self) -> Work:
        return Arithmetic(self.dst.count, self.dst.dtype)

    def __str__(self) -> str:
        return f"{self.op} {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class Axpy(MicroOp):
    """`dst = src x scalar + dst` (Axpy): the product is rounded, then the sum.

    asc-devkit, Memory矢量计算接口边界值汇总.md, tables 20 to 22, give the product a column of its
    own, with results that a fused operation would not have.
    """

    dst: Local
    src: Local
    scalar: float | Register
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read"),
        Role("scalar", "read", "register"),
        Role("dst", "updated"),
    )

    @property
    def work(self) -> Work:
        return Arithmetic(self.dst.count, self.dst.dtype, per_element=2)

    def __str__(self) -> str:
        return f"axpy {self.dst} <- {self.src}, {self.scalar}"


@dataclass(frozen=True, slots=True)
class MulAddDst(MicroOp):
    """`dst = a x b + dst` (MulAddDst): the product is rounded, then the sum; see :class:`Axpy`.

    *a* and *b* may be float16 where *dst* is float32.
    """

    dst: Local
    a: Local
    b: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("a", "read"),
        Role("b", "read"),
        Role("dst", "updated"),
    )

    @property
    def work(self) -> Work:
        return Arithmetic(self.dst.count, self.dst.dtype, per_element=2)

    def __str__(self) -> str:
        return f"mul_add_dst {self.dst} <- {self.a}, {self.b}"
