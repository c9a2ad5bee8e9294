"""Micro-ops of the scalar pipe: one element at a time, and the trap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from npusim.data.dtypes import DType
from npusim.data.integers import ceil_div
from npusim.devices.schema import Pipe
from npusim.isa.fields import BYTES, COUNT, SIGNED_64
from npusim.isa.micro_op import MicroOp, Role, registers_read, registers_set
from npusim.isa.operands import Global, Local, Register
from npusim.isa.work import ScalarWork, Work

__all__ = [
    "AluOp",
    "ScalarAlu",
    "ScalarLoad",
    "ScalarLoadGlobal",
    "ScalarLoop",
    "ScalarOp",
    "ScalarStore",
    "ScalarStoreGlobal",
    "Trap",
]

AluOp = Literal[
    "add",
    "sub",
    "mul",
    "and",
    "or",
    "shl",
    "shr",
    "min",
    "max",
    "eq",
    "lt",
    "select",
    "f32_to_i32",
    "i32_to_f32",
    "f32_add",
    "f32_sub",
    "f32_mul",
    "f32_div",
    "f32_sqrt",
    "f32_max",
    "f32_min",
    "f32_lt",
    "f16_add",
    "f16_to_f32",
    "f32_to_f16",
]


OF_ONE: tuple[AluOp, ...] = ("f32_to_i32", "i32_to_f32", "f16_to_f32", "f32_to_f16", "f32_sqrt")
"""Operations with one operand."""


@dataclass(frozen=True, slots=True)
class ScalarLoad(MicroOp):
    """Read one element into a register (GetValue); a loop advances by *step_bytes*."""

    dst: Register
    src: Local
    step_bytes: Annotated[int, BYTES] = 0
    pipe: ClassVar[Pipe] = "scalar"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read"),
        Role("dst", "written", "register"),
    )
    work: ClassVar[Work] = ScalarWork()

    def __str__(self) -> str:
        return f"sload {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class ScalarLoadGlobal(MicroOp):
    """Read one element of global memory into a register (GlobalTensor.GetValue).

    It goes through the scalar unit's data cache, not through mte2, and the scalar unit waits for
    it. *is_cached* means that an earlier read has brought the line, of 64 bytes, into the cache.
    """

    dst: Register
    src: Global
    dtype: DType
    is_cached: bool = False
    pipe: ClassVar[Pipe] = "scalar"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read", "global"),
        Role("dst", "written", "register"),
    )
    work: ClassVar[Work] = ScalarWork()

    def __str__(self) -> str:
        return f"sload {self.dst} <- {self.src} {self.dtype.name}"


@dataclass(frozen=True, slots=True)
class ScalarStore(MicroOp):
    """Write a register into one element (SetValue)."""

    dst: Local
    src: Register
    step_bytes: Annotated[int, BYTES] = 0
    pipe: ClassVar[Pipe] = "scalar"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("dst", "written"),
        Role("src", "read", "register"),
    )
    work: ClassVar[Work] = ScalarWork()

    def __str__(self) -> str:
        return f"sstore {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class ScalarStoreGlobal(MicroOp):
    """Write a register into one element of global memory (GlobalTensor.SetValue).

    It goes through the scalar unit's data cache, and counts as written to memory when it is done,
    as if DataCacheCleanAndInvalid followed.
    """

    dst: Global
    src: Register
    dtype: DType
    pipe: ClassVar[Pipe] = "scalar"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("dst", "written", "global"),
        Role("src", "read", "register"),
    )
    work: ClassVar[Work] = ScalarWork()

    def __str__(self) -> str:
        return f"sstore {self.dst} {self.dtype.name} <- {self.src}"


@dataclass(frozen=True, slots=True)
class ScalarAlu(MicroOp):
    """`dst = op(a, b, c)` on 64-bit integers; an operand is a register or a constant.

    `select` gives b where a is not 0, else c; `eq`, `lt` and `f32_lt` give 0 or 1; `shr` fills with
    zeros. Operations named after a float type take and give the bits of such floats, rounded to
    nearest, ties to even: `f32_add` and the like, `f16_add`, and the conversions `f16_to_f32`,
    `f32_to_f16`, `f32_to_i32` and `i32_to_f32`. `f32_max` and `f32_min` of NaN are NaN.
    """

    op: AluOp
    dst: Register
    a: Register | Annotated[int, SIGNED_64]
    b: Register | Annotated[int, SIGNED_64] = 0
    c: Register | Annotated[int, SIGNED_64] = 0
    pipe: ClassVar[Pipe] = "scalar"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("a", "read", "register"),
        Role("b", "read", "register"),
        Role("c", "read", "register"),
        Role("dst", "written", "register"),
    )
    work: ClassVar[Work] = ScalarWork()

    def __str__(self) -> str:
        more = "".join(f", {x}" for x in (self.b, self.c)[: 2 if self.op == "select" else 1])
        return f"{self.op} {self.dst} <- {self.a}{'' if self.op in OF_ONE else more}"


@dataclass(frozen=True, slots=True)
class Trap(MicroOp):
    """Stop the core when *when* is not 0; the host sees an exception with *reason*.

    A kernel that has read its control data traps on a constant 1, which also stops a run for time.
    """

    when: Register | Annotated[int, SIGNED_64]
    reason: str
    pipe: ClassVar[Pipe] = "scalar"
    roles: ClassVar[tuple[Role, ...]] = (Role("when", "read", "register"),)
    work: ClassVar[Work] = ScalarWork()

    def __str__(self) -> str:
        return f"trap if {self.when}: {self.reason}"


ScalarOp = ScalarLoad | ScalarStore | ScalarAlu | Trap


@dataclass(frozen=True, slots=True)
class ScalarLoop(MicroOp):
    """Run *body* *count* times, element by element.

    Iterations must be independent: each writes a register before it reads it.
    """

    count: Annotated[int, COUNT]
    body: tuple[ScalarOp, ...]
    pipe: ClassVar[Pipe] = "scalar"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("body", "read", touched="loaded"),
        Role("body", "written", touched="stored"),
        Role("body", "read", "register", touched="used"),
        Role("body", "written", "register", touched="left"),
    )
    # Profilers count single accesses only.
    work: ClassVar[Work] = ScalarWork(counts_bytes=False)

    @property
    def loaded(self) -> tuple[Local, ...]:
        """The ranges that its iterations read, one per load."""
        loads = (part for part in self.body if isinstance(part, ScalarLoad))
        return tuple(self.swept(part.src, part.step_bytes) for part in loads)

    @property
    def stored(self) -> tuple[Local, ...]:
        """The ranges that its iterations write, one per store."""
        stores = (part for part in self.body if isinstance(part, ScalarStore))
        return tuple(self.swept(part.dst, part.step_bytes) for part in stores)

    @property
    def used(self) -> tuple[Register, ...]:
        """Registers that an iteration reads before it sets them."""
        found: list[Register] = []
        known: set[Register] = set()
        for part in self.body:
            found += [name for name in registers_read(part) if name not in known]
            known.update(registers_set(part))
        return tuple(found)

    @property
    def left(self) -> tuple[Register, ...]:
        """Registers that hold the values of the last iteration."""
        return tuple(name for part in self.body for name in registers_set(part))

    def swept(self, first: Local, step_bytes: int) -> Local:
        """The range that an operand touches in *count* iterations, from *first* on."""
        steps = ceil_div((self.count - 1) * step_bytes * 8, first.dtype.bits)
        span = steps + first.count
        return Local(first.buffer, first.offset_bytes, first.dtype, span)

    def __str__(self) -> str:
        return f"loop {self.count} x ({'; '.join(str(op) for op in self.body)})"
