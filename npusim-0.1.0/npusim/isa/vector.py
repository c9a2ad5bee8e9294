"""Micro-ops of the vector pipe; names and operands follow Ascend C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from npusim.data.dtypes import RoundMode
from npusim.devices.schema import Pipe
from npusim.isa.fields import Range
from npusim.isa.micro_op import MicroOp, Role
from npusim.isa.operands import Local, Register
from npusim.isa.work import Arithmetic, Rearrangement, Work

__all__ = [
    "Axpy",
    "Binary",
    "BinaryOp",
    "BinaryScalar",
    "BitwiseOp",
    "BlockReduce",
    "Broadcast",
    "Cast",
    "Compare",
    "CompareOp",
    "CompareScalar",
    "Copy",
    "Duplicate",
    "ExtremeOp",
    "Fold",
    "FoldOp",
    "Gather",
    "MulAddDst",
    "Reduce",
    "ReduceOp",
    "Select",
    "Transpose",
    "Unary",
    "UnaryOp",
    "WholeReduce",
]

BinaryOp = Literal["add", "sub", "mul", "div", "min", "max"]
BitwiseOp = Literal["and", "or"]
CompareOp = Literal["lt", "gt", "eq", "le", "ge", "ne"]
ExtremeOp = Literal["min", "max"]
FoldOp = Literal["add", "min", "max"]
ReduceOp = Literal["sum", "min", "max"]
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
class Reduce(MicroOp):
    """The smallest or largest element of *src*, as the first element of *dst*."""

    op: ExtremeOp
    dst: Local
    src: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))

    @property
    def work(self) -> Work:
        return Arithmetic(self.src.count, self.dst.dtype)

    def __str__(self) -> str:
        return f"reduce.{self.op} {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class WholeReduce(MicroOp):
    """Each repeat of *src* becomes one element of *dst* (WholeReduceSum, ...Max, ...Min).

    *src* has as many repeats as *dst* has elements, all of as many blocks; a single one may end
    within a block. With a *mask* only so many elements of each repeat take part, the first ones. A
    sum adds neighbours, then neighbours of these, and so on, as if what takes no part were 0
    (asc-devkit, ReduceRepeat.md; the zeros are assumed).
    """

    op: ReduceOp
    dst: Local
    src: Local
    mask: Annotated[int, Range(1, 128)] | None = None
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))

    @property
    def work(self) -> Work:
        return Arithmetic(self.src.count, self.dst.dtype)

    def __str__(self) -> str:
        mask = "" if self.mask is None else f", first {self.mask}"
        return f"whole_reduce.{self.op} {self.dst} <- {self.src}{mask}"


@dataclass(frozen=True, slots=True)
class Fold(MicroOp):
    """`dst = dst op repeat` for one repeat of *src* after the other, each as long as *dst*.

    Add, Max or Min whose result and first source have a repeat stride of 0, so that each repeat
    takes what the one before it has left.
    """

    op: FoldOp
    dst: Local
    src: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "updated"))

    @property
    def work(self) -> Work:
        return Arithmetic(self.src.count, self.dst.dtype)

    def __str__(self) -> str:
        return f"fold.{self.op} {self.dst} <- {self.src}"


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


@dataclass(frozen=True, slots=True)
class BlockReduce(MicroOp):
    """Each block of 32 bytes of *src* becomes one element of *dst* (BlockReduceSum and so on).

    A sum adds neighbours, then neighbours of these, and so on: ``((x0+x1)+(x2+x3))+...``
    (asc-devkit, ReduceDataBlock.md).
    """

    op: ReduceOp
    dst: Local
    src: Local
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))

    @property
    def work(self) -> Work:
        return Arithmetic(self.src.count, self.dst.dtype)

    def __str__(self) -> str:
        return f"block_reduce.{self.op} {self.dst} <- {self.src}"


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
