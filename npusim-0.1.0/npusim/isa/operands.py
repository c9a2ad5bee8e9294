"""What micro-ops work on: ranges of a core's buffers and of global memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from npusim.data.dtypes import DType
from npusim.data.integers import ceil_div
from npusim.isa.fields import BYTES, COUNT, OneOf, Range

__all__ = [
    "BLOCK_BYTES",
    "BUFFERS",
    "FLOATS_PER_BLOCK",
    "FLOATS_PER_REPEAT",
    "MAX_BURSTS",
    "MAX_REPEATS",
    "REPEAT_BYTES",
    "STRIDE",
    "Global",
    "Local",
    "Register",
]

BLOCK_BYTES = 32
"""A data block: the unit of the unified buffer and of DataCopy (asc-devkit, docs/zh/guide)."""

BUFFERS = OneOf(("ub", "l1", "l0a", "l0b", "l0c", "bt", "fb"))
"""The unified buffer, those around the cube, the bias table and the fixpipe buffer."""
REPEAT_BLOCKS = Range(1, 8)
"""Blocks of an operand in a repeat: 256 bytes are the most that a vector instruction takes."""
REPEAT_BYTES = REPEAT_BLOCKS.high * BLOCK_BYTES
"""Bytes of an operand in a whole repeat."""
FLOATS_PER_BLOCK, FLOATS_PER_REPEAT = 8, 64
"""fp32 elements in a block of 32 bytes, and in a repeat of 256."""
MAX_REPEATS = 2**8 - 1
"""The repeat count of a vector instruction has 8 bits (asc-devkit, docs/zh/guide)."""
MAX_BURSTS = 2**12 - 1
"""The field of DataCopy for the number of bursts has 12 bits, as that of Mmad for its extents.

Assumed of every copy, also that of the unified buffer to L1.
"""
STRIDE = Range(0, 2**16 - 1)
"""Blocks from one to the next: 16 bits, the widest field of the instructions that stride."""

Register = str
"""A scalar register holds a 64-bit integer; a float loaded into one is its bits."""


@dataclass(frozen=True, slots=True)
class Local:
    """*count* elements in a buffer of the core, contiguous unless strides say otherwise.

    A vector instruction reads *repeat_blocks* blocks of 32 bytes a repeat, *block_stride* blocks
    apart, and starts the next repeat *repeat_stride* blocks further. They are eight, or as many
    fewer as the operand is narrower than another one or as a mask leaves (asc-devkit,
    docs/zh/guide).
    """

    buffer: Annotated[str, BUFFERS]
    offset_bytes: int
    dtype: DType
    count: int
    block_stride: Annotated[int, STRIDE] = 1
    repeat_stride: Annotated[int, STRIDE] = 8
    repeat_blocks: Annotated[int, REPEAT_BLOCKS] = 8

    @property
    def nbytes(self) -> int:
        """Bytes that the elements take, gaps excluded."""
        return self.dtype.nbytes(self.count)

    @property
    def is_strided(self) -> bool:
        return self.block_stride != 1 or self.repeat_stride != self.repeat_blocks

    @property
    def repeat_elements(self) -> int:
        """Elements of a repeat."""
        return self.repeat_blocks * BLOCK_BYTES * 8 // self.dtype.bits

    @property
    def end_bytes(self) -> int:
        """One past the last byte touched."""
        if not self.is_strided:
            return self.offset_bytes + self.nbytes
        blocks = ceil_div(self.nbytes, BLOCK_BYTES)
        repeats, first = ceil_div(blocks, self.repeat_blocks), min(blocks, self.repeat_blocks)
        last = (repeats - 1) * self.repeat_stride + (first - 1) * self.block_stride
        return self.offset_bytes + (last + 1) * BLOCK_BYTES

    def at(self, start: int, count: int) -> Local:
        """*count* elements from element *start* on; raises ValueError beyond the range."""
        if not 0 <= start <= start + count <= self.count:
            raise ValueError(
                f"isa.Local.at: elements [{start}, {start + count}) must lie in [0, {self.count}); "
                f"ask for less"
            )
        offset = self.offset_bytes + self.dtype.nbytes(start)
        return Local(self.buffer, offset, self.dtype, count)

    def __getitem__(self, where: slice) -> Local:
        """Elements [start, stop); raises ValueError beyond the range, or with a step."""
        if where.step is not None:
            raise ValueError(
                f"isa.Local: a slice must have no step, not {where.step}; take it out, and give "
                f"the operand strides"
            )
        start = where.start or 0
        return self.at(start, (self.count if where.stop is None else where.stop) - start)

    def again(self, count: int) -> Local:
        """*count* elements that are those of the first block again and again: strides of 0."""
        return Local(self.buffer, self.offset_bytes, self.dtype, count, 0, 0)

    def as_dtype(self, dtype: DType, count: int | None = None) -> Local:
        """The same bytes read as another type."""
        fits = self.nbytes * 8 // dtype.bits
        return Local(self.buffer, self.offset_bytes, dtype, fits if count is None else count)

    def __str__(self) -> str:
        stride = f" stride {self.block_stride},{self.repeat_stride}" if self.is_strided else ""
        if stride and self.repeat_blocks != REPEAT_BLOCKS.high:
            stride += f" of {self.repeat_blocks} blocks"
        return f"{self.buffer}[{self.offset_bytes}:{self.end_bytes}] {self.dtype.name}{stride}"


@dataclass(frozen=True, slots=True)
class Global:
    """*bursts* pieces of *burst_bytes* each, *stride_bytes* from start to start, in tensor *name*.

    *offset_bytes* counts from where the block's binding of *name* begins.
    """

    name: str
    offset_bytes: int
    burst_bytes: Annotated[int, COUNT]
    bursts: Annotated[int, COUNT] = 1
    stride_bytes: Annotated[int, BYTES] = 0

    @property
    def nbytes(self) -> int:
        """Bytes that move."""
        return self.burst_bytes * self.bursts

    @property
    def end_bytes(self) -> int:
        """One past the last byte touched."""
        return self.offset_bytes + (self.bursts - 1) * self.stride_bytes + self.burst_bytes

    def __str__(self) -> str:
        burst = f"{self.bursts}x{self.burst_bytes} B stride {self.stride_bytes}"
        size = f"{self.nbytes} B" if self.bursts == 1 else burst
        return f"{self.name}+{self.offset_bytes} {size}"
