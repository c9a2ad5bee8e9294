"""The larger of two elements each, where the second operand is broadcast to the shape of the first.

Cores and tiles are those of the broadcast template of the vendor's tiling library (dengguojie/
vue-element-admin@7d77ce32 ops/built-in/op_tiling/broadcast_v3.cc, of 2022; the present one is
closed): rows are filled up to whole blocks in the unified buffer, a tile is as many rows as leave
room for three of them, the broadcast operand counted as a whole one, tiles are dealt out in order,
the same number to each core but the last, and nothing is double buffered.

How the operand is broadcast inside the buffer was not read. Assumed: a row is one instruction,
which takes a vector along the columns as it is, and a number a row from the block that Brcb made of
it.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Binary, Broadcast, Local
from npusim.kernel.builder import Builder
from npusim.kernel.launch import Kernel
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, bindings, load, repeat, store
from npusim.micro.shares import cores_of

__all__ = ["maximum"]

TENSORS = 3
"""Tiles that the library makes room for: x1, x2 broadcast, y."""
BRCB_LANES = 8
"""Elements that Brcb takes at a time."""
REPEAT_BLOCKS = 8
"""Blocks of a repeat; a strided operand is whole repeats, or less than one."""


class Extents(NamedTuple):
    """x1 is `(outer, rows, columns)`; x2 `(columns,)`, or with a number a row `(rows,)`."""

    outer: int
    rows: int
    columns: int
    by_row: bool


def maximum(
    spec: DeviceSpec, shape: tuple[int, ...], other: tuple[int, ...], dtype: DType
) -> Kernel:
    """The larger of x1 `shape` and x2 *other*, which is broadcast: `y` `shape`, all of *dtype*.

    Raises ValueError where x2 is neither a vector along the last axis of x1 nor one number for each
    row of its last two, or where *dtype* is none that Max takes.
    """
    if dtype not in (FLOAT16, FLOAT32, INT32):
        raise ValueError(
            f"broadcast.maximum: dtype must be one of float16, float32, int32, not {dtype.name}; "
            f"cast it first"
        )
    extents = _extents(shape, other)
    kind, cores = cores_of(spec, "vector")
    kernel = BroadcastTiles(spec, kind, extents, dtype)
    tiles = [
        (outer * extents.rows + row, row, rows)
        for outer in range(extents.outer)
        for row, rows in pieces(extents.rows, kernel.tile_rows)
    ]
    each = ceil_div(len(tiles), cores)
    bound = bindings(kernel.x1, kernel.x2, kernel.y)
    blocks = [
        Block(core, kind, kernel.program(tiles[first : first + each]), bound)
        for core, first in enumerate(range(0, len(tiles), each))
    ]
    inputs = {"x1": TensorSpec(shape, dtype.name), "x2": TensorSpec(other, dtype.name)}
    return Kernel("maximum", tuple(blocks), inputs, {"y": TensorSpec(shape, dtype.name)})


def _extents(shape: tuple[int, ...], other: tuple[int, ...]) -> Extents:
    """*shape* with the axes merged along which *other* is broadcast in the same way."""
    *above, columns = shape
    padded = (1,) * (len(shape) - len(other)) + other
    if padded == (1,) * len(above) + (columns,):
        return Extents(1, prod(above), columns, False)
    if above and padded == (1,) * (len(above) - 1) + (above[-1], 1):
        return Extents(prod(above[:-1]), above[-1], columns, True)
    raise ValueError(
        f"broadcast.maximum: the second shape must be that of a row, or of a column of the last "
        f"two axes, of {shape}, not {other}; expand it first"
    )


class BroadcastTiles:
    """The kernel of one core: some rows of x1 and what x2 holds for them, tile after tile."""

    def __init__(self, spec: DeviceSpec, kind: str, extents: Extents, dtype: DType) -> None:
        self.builder = Builder("maximum", spec.cores[kind], spec.sync)
        self.dtype, self.by_row = dtype, extents.by_row
        self.lanes = BLOCK_BYTES * 8 // dtype.bits
        rows, columns = extents.outer * extents.rows, extents.columns
        self.x1, self.y = (GmView.of(name, dtype, rows, columns) for name in ("x1", "y"))
        self.x2 = GmView.vector("x2", dtype, extents.rows if extents.by_row else columns)
        self.pitch_bytes = align_up(dtype.nbytes(columns), BLOCK_BYTES)
        self.tile_rows = self._rows_of_tile(extents)
        tile_bytes = self.tile_rows * self.pitch_bytes
        numbers = align_up(self.tile_rows, BRCB_LANES) if self.by_row else columns
        self.in1 = self.builder.queue("ub", tile_bytes, "mte2", "vector")
        self.in2 = self.builder.queue("ub", dtype.nbytes(numbers), "mte2", "vector")
        self.out = self.builder.queue("ub", tile_bytes, "vector", "mte3")
        self.blocks = self.builder.claim("ub", numbers * BLOCK_BYTES) if self.by_row else None

    def _rows_of_tile(self, extents: Extents) -> int:
        """As many rows as fit; raises ProgramError, from the claims, where not even one does."""
        room = self.builder.room_bytes("ub")
        row_bytes = TENSORS * self.pitch_bytes
        if self.by_row:
            row_bytes += self.dtype.nbytes(1) + BLOCK_BYTES
        return max(1, min(room // row_bytes, extents.rows))

    def program(self, tiles: list[tuple[int, int, int]]) -> Program:
        """Tiles given as their first row of x1, the same within its matrix, and how many rows."""
        for first, row, rows in tiles:
            here = slice(first, first + rows), slice(None)
            x2 = self.x2[:, row : row + rows] if self.by_row else self.x2
            repeat(self.builder, self._tile, self.x1[here], x2, self.y[here])
        return self.builder.build()

    def _tile(self, x1: GmView, x2: GmView, y: GmView) -> None:
        """*x1* and *y* `(rows, columns)`, *x2* `(rows,)` or `(columns,)`."""
        slot1, slot2 = load(self.builder, self.in1, x1), load(self.builder, self.in2, x2)
        out = self.out.alloc()
        blocks = self._spread(slot2, x1.rows) if self.by_row else None
        for row in range(x1.rows):
            start = row * self.pitch_bytes
            a, dst = (slot.of(self.dtype, x1.columns, start) for slot in (slot1, out))
            if blocks is None:
                b = slot2.of(self.dtype, x1.columns)
                self.builder.emit(Binary("max", dst, a, b))
            else:
                self._against_block(dst, a, blocks.offset_bytes + row * BLOCK_BYTES)
        self.in1.free(slot1)
        self.in2.free(slot2)
        store(self.builder, self.out, out, y)

    def _against_block(self, dst: Local, a: Local, block_bytes: int) -> None:
        """A row of x1 against the block at *block_bytes*: whole repeats, then what is left."""
        repeat_lanes = REPEAT_BLOCKS * self.lanes
        whole = a.count // repeat_lanes * repeat_lanes
        for start, count in ((0, whole), (whole, align_up(a.count - whole, self.lanes))):
            if count:
                b = Local("ub", block_bytes, self.dtype, count, 0, 0)
                dst_part, a_part = (
                    Local("ub", x.offset_bytes + self.dtype.nbytes(start), self.dtype, count)
                    for x in (dst, a)
                )
                self.builder.emit(Binary("max", dst_part, a_part, b))

    def _spread(self, numbers: Slot, rows: int) -> Slot:
        """Fill a block with each of *numbers* `(rows,)`."""
        assert self.blocks is not None
        count = align_up(rows, BRCB_LANES)
        # The tile before may still be read from where this one writes.
        self.builder.barrier("vector")
        dst = self.blocks.of(self.dtype, count * self.lanes)
        self.builder.emit(Broadcast(dst, numbers.of(self.dtype, count)))
        self.builder.barrier("vector")
        return self.blocks
