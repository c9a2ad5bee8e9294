"""Operands of micro-ops: ranges of a core's buffers and of global memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import DType
from npusim.data.integers import ceil_div
from npusim.isa.fields import BYTES, COUNT, OneOf, Range

__all__ = [
    "BLOCK_BYTES",
    "BUFFERS",
    "FLOATS_PER_BLOCK",
    "FLOATS_PER_REPEAT",
    "MASK",
    "MAX_BURSTS",
    "MAX_REPEATS",
    "REPEAT_BLOCKS",
    "REPEAT_BYTES",
    "STRIDE",
    "Global",
    "Local",
    "Register",
    "lanes",
    "places",
]

BLOCK_BYTES = 32
"""A data block: the unit of the unified buffer and of DataCopy (asc-devkit, docs/zh/guide)."""

BUFFERS = OneOf(("ub", "l1", "l0a", "l0b", "l0c", "bt", "fb"))
"""The unified buffer, the buffers of the cube, the bias table and the fixpipe buffer."""
REPEAT_BLOCKS = 8
"""Blocks of an operand in a repeat: a vector instruction takes at most 256 bytes."""
ROW_BLOCKS = Range(1, 2**16 - 1)
"""Blocks in a row of DataCopy, or in a repeat of Copy when counting elements: 16 bits."""
REPEAT_BYTES = REPEAT_BLOCKS * BLOCK_BYTES
"""Bytes of an operand in a full repeat."""
FLOATS_PER_BLOCK, FLOATS_PER_REPEAT = 8, 64
"""fp32 elements in a block of 32 bytes, and in a repeat of 256."""
MAX_REPEATS = 2**8 - 1
"""The repeat count of a vector instruction has 8 bits (asc-devkit, docs/zh/guide)."""
MAX_BURSTS = 2**12 - 1
"""The burst count of DataCopy has 12 bits, as have the extents of Mmad.

Assumed for every copy, including that from the unified buffer to L1.
"""
STRIDE = Range(0, 2**16 - 1)
"""Blocks from one start to the next: 16 bits, the widest stride field of any instruction."""

MASK = Range(1, 2**REPEAT_BYTES - 1)
"""Active lanes of a repeat, one bit each, the first lane lowest (asc-devkit, SIMD计算说明/
掩码.md). Types of 1 byte that fill half blocks need twice the bits of `uint64_t mask[2]`."""

Register = str
"""Name of a scalar register of 64 bits; a float is held as its bits."""


@dataclass(frozen=True, slots=True)
class Local:
    """*count* elements in a buffer of the core, contiguous unless strides say otherwise.

    A vector instruction reads *repeat_blocks* blocks of 32 bytes per repeat, *block_stride* blocks
    apart, and starts the next repeat *repeat_stride* blocks further. There are eight, or fewer when
    the operand is narrower than another one or a mask disables blocks (asc-devkit, docs/zh/guide).
    A *mask* that leaves partial blocks is given by its lanes: *count* is then the number of active
    elements, and the inactive ones are not part of the operand. Without a mask the last repeat may
    be partial, as in Counter mode, where the chip counts elements.
    """

    buffer: Annotated[str, BUFFERS]
    offset_bytes: int
    dtype: DType
    count: int
    block_stride: Annotated[int, STRIDE] = 1
    repeat_stride: Annotated[int, STRIDE] = 8
    repeat_blocks: Annotated[int, ROW_BLOCKS] = REPEAT_BLOCKS
    mask: Annotated[int, MASK] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without gaps."""
        return self.dtype.nbytes(self.count)

    @property
    def is_strided(self) -> bool:
        return (
            self.block_stride != 1
            or self.repeat_stride != self.repeat_blocks
            or self.mask is not None
        )

    @property
    def is_ragged(self) -> bool:
        """Whether it is strided and no rectangle of blocks: masked, or with a partial last repeat
        or block.
        """
        if not self.is_strided:
            return False
        blocks, rest = divmod(self.nbytes, BLOCK_BYTES)
        ends_early = rest or (blocks > self.repeat_blocks and blocks % self.repeat_blocks)
        return self.mask is not None or bool(ends_early)

    @property
    def repeat_elements(self) -> int:
        """Elements of a repeat."""
        if self.mask is not None:
            return lanes(self.mask).size
        return self.repeat_blocks * BLOCK_BYTES * 8 // self.dtype.bits

    @property
    def repeats(self) -> int:
        """Number of repeats of its elements."""
        return ceil_div(self.count, self.repeat_elements)

    @property
    def end_bytes(self) -> int:
        """One past the last byte touched."""
        if not self.is_strided:
            return self.offset_bytes + self.nbytes
        if self.is_ragged:
            return self.offset_bytes + _reach(_shape(self))
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
        """*count* elements that repeat those of the first block: strides of 0."""
        return Local(self.buffer, self.offset_bytes, self.dtype, count, 0, 0)

    def as_dtype(self, dtype: DType, count: int | None = None) -> Local:
        """The same bytes read as another type."""
        fits = self.nbytes * 8 // dtype.bits
        return Local(self.buffer, self.offset_bytes, dtype, fits if count is None else count)

    def __str__(self) -> str:
        has_gaps = self.block_stride != 1 or self.repeat_stride != self.repeat_blocks
        stride = f" stride {self.block_stride},{self.repeat_stride}" if has_gaps else ""
        if stride and self.repeat_blocks != REPEAT_BLOCKS:
            stride += f" of {self.repeat_blocks} blocks"
        if self.mask is not None:
            stride += f" mask {self.mask:#x}"
        return f"{self.buffer}[{self.offset_bytes}:{self.end_bytes}] {self.dtype.name}{stride}"


Numbers = NDArray[np.int64]
_Shape = tuple[int, int, int, int, int, int | None]
"""Bits per element, element count, strides, blocks per repeat, mask."""


def _shape(local: Local) -> _Shape:
    strides = local.block_stride, local.repeat_stride, local.repeat_blocks
    return local.dtype.bits, local.count, *strides, local.mask


def places(local: Local) -> Numbers:
    """Byte offset of each element of a strided *local* from its start: `(count,)`.

    For 4-bit elements there is one offset per byte of two elements.
    """
    return _places(_shape(local))


@lru_cache(maxsize=4096)
def _places(shape: _Shape) -> Numbers:
    bits, count, _, repeat_stride, _, _ = shape
    within = _within(shape)
    repeat, lane = np.divmod(np.arange(ceil_div(count * bits, max(8, bits))), within.size)
    return repeat * repeat_stride * BLOCK_BYTES + within[lane]


def _within(shape: _Shape) -> Numbers:
    """Byte offsets of the elements of the first repeat; of the bytes for 4-bit elements."""
    bits, _, block_stride, _, repeat_blocks, mask = shape
    size = max(1, bits // 8)
    per_block = BLOCK_BYTES // size
    taken = np.arange(repeat_blocks * per_block) if mask is None else lanes(mask)
    block, inside = np.divmod(taken, per_block)
    found: Numbers = block * block_stride * BLOCK_BYTES + inside * size
    return found


@lru_cache(maxsize=4096)
def _reach(shape: _Shape) -> int:
    """Bytes from the offset to one past the last byte touched."""
    bits, count, _, repeat_stride, _, _ = shape
    within = _within(shape)
    before, rest = divmod(ceil_div(count * bits, max(8, bits)) - 1, within.size)
    # The last repeat, and the previous one, which may extend further.
    ends = [before * repeat_stride * BLOCK_BYTES + int(within[: rest + 1].max())]
    if before:
        ends.append((before - 1) * repeat_stride * BLOCK_BYTES + int(within.max()))
    return max(ends) + max(1, bits // 8)


@lru_cache(maxsize=4096)
def lanes(mask: int) -> Numbers:
    """The indices of the lanes that *mask* enables."""
    return np.array([lane for lane, bit in enumerate(f"{mask:b}"[::-1]) if bit == "1"], np.int64)


@dataclass(frozen=True, slots=True)
class Global:
    """*bursts* bursts of *burst_bytes* each, *stride_bytes* from start to start, in tensor *name*.

    *offset_bytes* is relative to the start of the block's binding of *name*.
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
