"""Micro-ops around the cube: matrices move from L1 to L0, are multiplied, and leave L0C.

A matrix in a buffer is given by its first byte and its layout (``data/layout``): Nz in L1, Zz in
L0A, Zn in L0B, Nz of 16 x 16 in L0C. Each micro-op starts at the first byte of its operand and
reads or writes whole fractals; `count` is the number of their elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from npusim.data.dtypes import UINT8, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.devices.schema import Pipe
from npusim.isa.fields import BYTES, COUNT, UNSIGNED_64, Range
from npusim.isa.fractals import IMAGE_INSTRUCTIONS
from npusim.isa.micro_op import MicroOp, Role
from npusim.isa.mte import AtomicOp, combination
from npusim.isa.operands import BLOCK_BYTES, Global, Local
from npusim.isa.work import Product, Transfer, Work

__all__ = [
    "BroadcastToL0c",
    "CopyL0c",
    "CopyToL1",
    "Fixpipe",
    "LoadData",
    "LoadNd2Nz",
    "LoadTable",
    "Mmad",
    "QuantMode",
]

QuantMode = Literal["none", "cast", "deqf16", "req8", "qf322b8"]
"""Conversion of the elements of L0C on their way out.

none    unchanged
cast    fp32 -> fp16 or bf16, ties to even (F322F16, F322BF16)
deqf16  int32 -> fp16, times the scale (DEQF16; VDEQF16 with a scale for each column)
req8    int32 -> int8, times the scale, saturated to nine bits, plus the offset (REQ8, VREQ8)
qf322b8 the same from fp32 (QF322B8_PRE, VQF322B8_PRE)

asc-devkit, docs/zh, 矩阵搬出关键特性说明/随路量化.md.
"""

Init = Literal["zero", "bias", "accumulate"]


@dataclass(frozen=True, slots=True)
class LoadNd2Nz(MicroOp):
    """Copy rows of global memory into L1 as Nz (DataCopy with Nd2NzParams).

    *src* is the matrix, one burst per row. In L1 it is part of a matrix of *dst_rows* rows: columns
    of fractals are ``dst_rows x 32`` bytes apart, and rows are *row_stride* times 32 bytes apart.
    Columns are padded with zeros to a whole C0; rows below the last one are not written.
    """

    dst: Local
    src: Global
    dst_rows: int
    row_stride: Annotated[int, Range(1, 2**14)] = 1
    pipe: ClassVar[Pipe] = "mte2"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read", "global"),
        Role("dst", "written", touched="footprint"),
    )

    @property
    def work(self) -> Work:
        return Transfer(self.src.nbytes)

    @property
    def footprint(self) -> Local:
        """All bytes written, as one range."""
        blocks = ceil_div(self.src.burst_bytes, BLOCK_BYTES)
        rows = (self.src.bursts - 1) * self.row_stride + 1
        nbytes = ((blocks - 1) * self.dst_rows + rows) * BLOCK_BYTES
        return Local(self.dst.buffer, self.dst.offset_bytes, UINT8, nbytes)

    def __str__(self) -> str:
        apart = "" if self.row_stride == 1 else f" every {self.row_stride}"
        return f"nd2nz {self.dst} of {self.dst_rows} rows{apart} <- {self.src}"


@dataclass(frozen=True, slots=True)
class LoadData(MicroOp):
    """Fill L0A or L0B from an Nz matrix in L1 (LoadData).

    Takes the *rows* x *columns* tile from (*row*, *column*), both multiples of a fractal, of a
    matrix of *src_rows* rows that begins at *src*. L0A receives it as Zz. L0B receives the Zn of
    its transpose, which has the same fractals. With *transpose* the tile is transposed on the way,
    so L0A then expects `(k, m)` in L1 and L0B `(k, n)`.
    """

    dst: Local
    src: Local
    src_rows: int
    row: int
    column: int
    rows: int
    columns: int
    transpose: bool = False
    pipe: ClassVar[Pipe] = "mte1"
    instructions: ClassVar[int] = IMAGE_INSTRUCTIONS
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read", touched="footprint"),
        Role("dst", "written"),
    )

    @property
    def work(self) -> Work:
        return Transfer(self.dst.nbytes)

    @property
    def footprint(self) -> Local:
        """All bytes read, as one range."""
        width = c0(self.src.dtype)
        first = self.column // width * self.src_rows + self.row
        blocks = ceil_div(self.columns, width)
        last = (blocks - 1) * self.src_rows + align_up(self.rows, FRACTAL_ROWS)
        offset = self.src.offset_bytes + first * BLOCK_BYTES
        return Local(self.src.buffer, offset, UINT8, last * BLOCK_BYTES)

    def __str__(self) -> str:
        turned = " transposed" if self.transpose else ""
        piece = f"[{self.row}:+{self.rows}, {self.column}:+{self.columns}]"
        return f"load_data {self.dst} <- {self.src} of {self.src_rows} rows {piece}{turned}"


@dataclass(frozen=True, slots=True)
class LoadTable(MicroOp):
    """Copy a vector from L1 into the bias table (mte1) or the fixpipe buffer (fixpipe).

    float16 is converted to float32 on the way into the bias table (DataCopy, C1 to C2).
    """

    dst: Local
    src: Local
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))
    work: ClassVar[Work] = Transfer()

    @property
    def pipe(self) -> Pipe:
        return "mte1" if self.dst.buffer == "bt" else "fixpipe"

    def __str__(self) -> str:
        return f"load_table {self.dst} <- {self.src}"


@dataclass(frozen=True, slots=True)
class Mmad(MicroOp):
    """`dst (m, n) = start + a (m, k) @ b (k, n)` (Mmad).

    *a* is Zz in L0A, *b* Zn in L0B, *dst* Nz in L0C: float32 or int32. It starts from zero, from
    *bias* `(n,)` in the bias table, or from the contents of *dst*. Elements beyond m, n and k are
    ignored. With *gemv* *a* is one row of contiguous elements (asc-devkit, GEMV.md). For
    *unit_flag* see :class:`Fixpipe`.
    """

    dst: Local
    a: Local
    b: Local
    m: int
    n: int
    k: int
    init: Init = "zero"
    bias: Local | None = None
    unit_flag: bool = False
    gemv: bool = False
    pipe: ClassVar[Pipe] = "cube"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("a", "read"),
        Role("b", "read"),
        Role("bias", "read", touched="start"),
        Role("dst", "written"),
    )

    @property
    def start(self) -> Local | None:
        """The operand from which the sum starts: *dst*, the bias, or None for zero."""
        return self.dst if self.init == "accumulate" else self.bias

    @property
    def work(self) -> Work:
        return Product(self.m, self.n, self.k, self.a.dtype)

    def __str__(self) -> str:
        name = f"mmad{'.unit_flag' if self.unit_flag else ''}{'.gemv' if self.gemv else ''}"
        start = f"{self.bias} + " if self.bias else ""
        sign = "+=" if self.init == "accumulate" else "="
        return f"{name} {self.m}x{self.n}x{self.k} {self.dst} {sign} {start}{self.a} @ {self.b}"


@dataclass(frozen=True, slots=True)
class Fixpipe(MicroOp):
    """Write `(m, n)` of L0C to global memory or L1, converted by *mode* (Fixpipe).

    *src* is Nz of *src_rows* rows. It goes to global memory as ND, one burst per row, or as Nz, one
    burst per column of fractals; these have 16 columns, 32 for 1-byte types, and 8 for float32 with
    *channel_split*. It goes to L1 as Nz of *dst_rows* rows. With *relu* negative values become 0
    before scaling. *scale* is one 64-bit quantisation parameter, or one per column in the fixpipe
    buffer. With *atomic* the results are combined with the contents of global memory, in type
    *dtype*: added, or the maximum or minimum taken, as *atomic_op* says.

    With *unit_flag*, an Mmad that also has it and this one hand L0C over 512 bytes at a time:
    either may run right behind the other (asc-devkit, Mmad.md, Fixpipe.md, the guide's page on
    UnitFlag). A program expresses this with two flags in place of one. The first directly precedes
    the leading micro-op, so that the following one starts when it starts; the second follows it,
    and the other pipe waits for it before it continues. If only one of two accesses to L0C has it,
    or the first flag is missing, they race.
    """

    dst: Global | Local
    src: Local
    m: int
    n: int
    src_rows: int
    dtype: DType
    mode: QuantMode = "none"
    scale: Local | Annotated[int, UNSIGNED_64] | None = None
    dst_rows: int = 0
    atomic: bool = False
    unit_flag: bool = False
    atomic_op: AtomicOp = "add"
    relu: bool = False
    layout: Literal["nd", "nz"] = "nd"
    channel_split: bool = False
    pipe: ClassVar[Pipe] = "fixpipe"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read", touched="footprint"),
        Role("scale", "read"),
        Role("dst", "written", touched="written"),
        Role("dst", "written", "global", combined="combined"),
    )

    @property
    def work(self) -> Work:
        return Transfer(self.dtype.nbytes(self.m * self.n))

    @property
    def combined(self) -> str | None:
        """How it combines with the contents of global memory, or None."""
        return combination(self.atomic_op, self.dtype) if self.atomic else None

    @property
    def fractal_columns(self) -> int:
        """Columns of a fractal when the destination is Nz in global memory."""
        if self.channel_split:
            return FRACTAL_ROWS // 2
        return max(FRACTAL_ROWS, c0(self.dtype))

    @property
    def footprint(self) -> Local:
        """All bytes read from L0C, as one range."""
        columns = align_up(self.n, FRACTAL_ROWS)
        return Local(
            self.src.buffer, self.src.offset_bytes, self.src.dtype, self.src_rows * columns
        )

    @property
    def written(self) -> Local | None:
        """All bytes written in L1, as one range; None if it goes to global memory."""
        if isinstance(self.dst, Global):
            return None
        blocks = ceil_div(self.n, c0(self.dtype))
        nbytes = ((blocks - 1) * self.dst_rows + self.m) * BLOCK_BYTES
        return Local(self.dst.buffer, self.dst.offset_bytes, UINT8, nbytes)

    def __str__(self) -> str:
        scale = "" if self.scale is None else f" by {self.scale}"
        sign = {"add": "+=", "max": "max=", "min": "min="}[self.atomic_op] if self.atomic else "<-"
        marks = (("unit_flag", "relu", "channel_split"), ("nz",) if self.layout == "nz" else ())
        found = (*(x for x in marks[0] if getattr(self, x)), *marks[1])
        name = ".".join(("fixpipe", self.mode, *found))
        return f"{name} {self.m}x{self.n} {self.dst} {self.dtype.name} {sign} {self.src}{scale}"


@dataclass(frozen=True, slots=True)
class CopyL0c(MicroOp):
    """Move `(m, n)` of L0C into the unified buffer, converted by *mode* (DataCopy, CO1 to CO2).

    Coupled cores only, on their vector pipe. *dst* is Nz with as many rows as *src*; its fractals
    have 16 columns, 32 for int8. *scale* is as in :class:`Fixpipe`, in the unified buffer.
    """

    dst: Local
    src: Local
    mode: QuantMode = "none"
    scale: Local | Annotated[int, UNSIGNED_64] | None = None
    rows: int = 16
    """Rows of both, a multiple of 16."""
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read"),
        Role("scale", "read"),
        Role("dst", "written"),
    )

    @property
    def work(self) -> Work:
        return Transfer(self.dst.nbytes)

    def __str__(self) -> str:
        scale = "" if self.scale is None else f" by {self.scale}"
        return f"copy_l0c.{self.mode} {self.dst} <- {self.src} of {self.rows} rows{scale}"


@dataclass(frozen=True, slots=True)
class BroadcastToL0c(MicroOp):
    """Write a vector `(n,)` from the unified buffer to each of *rows* rows of L0C.

    Coupled cores only, which have no bias table (BroadCastVecToMM); *dst* is Nz, and *rows* a
    multiple of 16.
    """

    dst: Local
    src: Local
    rows: int
    pipe: ClassVar[Pipe] = "vector"
    roles: ClassVar[tuple[Role, ...]] = (Role("src", "read"), Role("dst", "written"))
    work: ClassVar[Work] = Transfer()

    def __str__(self) -> str:
        return f"broadcast_to_l0c {self.dst} of {self.rows} rows <- {self.src}"


@dataclass(frozen=True, slots=True)
class CopyToL1(MicroOp):
    """Copy *bursts* bursts of *burst_bytes* from the unified buffer to L1 (DataCopy, UB to L1).

    Coupled cores only. Bursts start *src_pitch_bytes* and *dst_pitch_bytes* apart.
    """

    dst: Local
    src: Local
    burst_bytes: Annotated[int, COUNT]
    bursts: Annotated[int, COUNT] = 1
    src_pitch_bytes: Annotated[int, BYTES] = 0
    dst_pitch_bytes: Annotated[int, BYTES] = 0
    pipe: ClassVar[Pipe] = "mte3"
    roles: ClassVar[tuple[Role, ...]] = (
        Role("src", "read", touched="read"),
        Role("dst", "written", touched="written"),
    )

    @property
    def work(self) -> Work:
        return Transfer(self.bursts * self.burst_bytes)

    @property
    def read(self) -> Local:
        """All bytes read, as one range."""
        nbytes = (self.bursts - 1) * self.src_pitch_bytes + self.burst_bytes
        return Local(self.src.buffer, self.src.offset_bytes, UINT8, nbytes)

    @property
    def written(self) -> Local:
        """All bytes written, as one range."""
        nbytes = (self.bursts - 1) * self.dst_pitch_bytes + self.burst_bytes
        return Local(self.dst.buffer, self.dst.offset_bytes, UINT8, nbytes)

    def __str__(self) -> str:
        shape = f"{self.bursts}x{self.burst_bytes} B"
        pitches = f"pitch {self.dst_pitch_bytes} <- {self.src_pitch_bytes}"
        return f"copy {shape} {self.dst} <- {self.src} {pitches}"
