"""Micro-ops of the vector pipe; names and operands follow Ascend C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_args

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
    "Cast",
    "CastDequant",
    "MulAddDst",
    "MulAddForm",
    "ReluOp",
    "ScalarFormOp",
    "Unary",
    "UnaryOp",
]

BinaryOp = Literal["add", "sub", "mul", "div", "min", "max"]
BitwiseOp = Literal["and", "or"]
ReluOp = Literal["add_relu", "sub_relu"]
"""A sum or a difference, then the maximum of it and 0 (AddRelu, SubRelu)."""
ScalarFormOp = Literal["leaky_relu", "shift_left", "shift_right", "shift_right_round"]
MulAddForm = Literal["mul_add_dst", "fused_mul_add", "mul_add_relu"]
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
class CastDequant(MicroOp):
    """Convert the product with a scale (CastDequant; Cast of int32 after SetDeqScale).

    int32 -> float16           src x scale, which is a float16
    int16 -> int8, uint8       src x scale + offset, saturated; of scale the upper 19 bits count

    Products are rounded to float32 and then converted, ties to even, which is assumed.

    *scale* is one value with one *offset*, or 16 parameters of 64 bits, one for each element of a
    block of *src*, in the format of the fixpipe (SetDeqScale.md, table 1). Bytes fill one half of
    each block of *dst*, selected by its mask (halfBlock).
    """

    dst: Local
    src: Local
    scale: float | Local
    offset: Annotated[int, Range(-256, 255)] = 0
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read"),
        Role("scale", "read"),
        Role("dst", "written"),
    )
    work: ClassVar[Work] = Rearrangement()

    def __str__(self) -> str:
        offset = f" + {self.offset}" if self.offset else ""
        return f"cast_dequant {self.dst} <- {self.src} by {self.scale}{offset}"


@dataclass(frozen=True, slots=True)
class Binary(MicroOp):
    """`dst = a op b`, element by element (Add, Sub, Mul, Div, Min, Max; And, Or of bits).

    For a product or a ReluOp *dst* may be narrower; the result is then cast (MulCast, AddReluCast,
    SubReluCast).
    """

    op: Literal[BinaryOp, BitwiseOp, ReluOp]
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

    *scalar* is a constant, or a register that holds the bits of one element. `leaky_relu`
    multiplies negative elements by it (LeakyRelu; asc-devkit, Memory矢量计算接口边界值汇总.md,
    table 19). Shifts move bits by *scalar* places: for signed integers a left shift preserves the
    sign, a right shift extends it; `shift_right_round` adds the last bit shifted out (ShiftLeft,
    ShiftRight).
    """

    op: Literal[BinaryOp, ScalarFormOp]
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
        plural = "s" if self.op in get_args(BinaryOp) else ""
        return f"{self.op}{plural} {self.dst} <- {self.a}, {self.scalar}"


@dataclass(frozen=True, slots=True)
class Unary(MicroOp):
    """`dst = op(src)`, element by element (Abs, Relu, Not, Exp, Ln, Sqrt, Rsqrt, Reciprocal).

    `exp`, `ln` and `sqrt` give the value nearest to the exact result, ties to even. No public
    source confirms this for these chips; it is assumed. `rsqrt` and `reciprocal` on a chip are
    estimates, off by more than 1e-4 of the result (asc-devkit, Reciprocal.md), with undocumented
    bits: the nearest value replaces them, and kernels that must reproduce a chip's bits divide
    instead.
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

    asc-devkit, Memory矢量计算接口边界值汇总.md, tables 20 to 22, list the product in a separate
    column, with results that a fused operation would not give. *src* and the scalar may be float16
    if *dst* is float32.
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

    *a* and *b* may be float16 if *dst* is float32. As `fused_mul_add` it is `a x dst + b`
    (FusedMulAdd), as `mul_add_relu` the maximum of that and 0 (MulAddRelu).
    """

    dst: Local
    a: Local
    b: Local
    form: MulAddForm = "mul_add_dst"
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
        return f"{self.form} {self.dst} <- {self.a}, {self.b}"
