"""Matrices in the unified buffer, and vector operations on all their rows and columns.

A plane is `(rows, columns)`, its rows padded to whole repeats of 64 float32. One micro-op covers
64 columns of all rows, one row a repeat. A vector along the columns is read again in each repeat
(repeat stride 0), and a value per row is stored as a block of eight copies (block stride 0), as
Ascend C kernels do (asc-devkit, docs/zh, the guide's page on strides; Brcb.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import FLOAT32, DType
from npusim.data.integers import align_up
from npusim.isa import BLOCK_BYTES, Binary, BinaryOp, Broadcast, Local, MulAddDst
from npusim.kernel.builder import Builder
from npusim.kernel.queues import ProgramError, Slot
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView

__all__ = [
    "REPEAT",
    "SPREAD",
    "Plane",
    "RowFactors",
    "by_column",
    "by_row",
    "multiply_add",
    "outer",
    "spread_rows",
]

__kernel_vocabulary__ = True

REPEAT = 64
"""float32 in a repeat of 256 bytes."""
SPREAD = 8
"""float32 in a block: the copies of a row's factor."""


@dataclass(frozen=True, slots=True)
class Plane:
    """*rows* x *columns* (a multiple of 64) of a tile or slot, *start_bytes* into it."""

    tile: Local | Slot
    rows: int
    columns: int
    start_bytes: int = 0

    def whole(self, dtype: DType = FLOAT32) -> Local:
        """All elements, row after row."""
        return self._part(dtype, self.rows * self.columns, 0)

    def row(self, index: int, count: int | None = None, dtype: DType = FLOAT32) -> Local:
        """One row, or the first *count* of its elements."""
        width = self.columns if count is None else count
        return self._part(dtype, width, index * dtype.nbytes(self.columns))

    def chunk(self, index: int) -> Local:
        """Columns [64 x index, 64 x index + 64) of all rows, as float32."""
        offset = self.tile.offset_bytes + self.start_bytes + index * FLOAT32.nbytes(REPEAT)
        pitch = FLOAT32.nbytes(self.columns) // BLOCK_BYTES
        # Blocks of a repeat are contiguous; the next repeat is the next row.
        return Local(self.tile.buffer, offset, FLOAT32, self.rows * REPEAT, 1, pitch)

    @property
    def chunks(self) -> range:
        return range(self.columns // REPEAT)

    @property
    def pieces(self) -> range:
        """Indices, one per micro-op: 64 columns of all rows, or a whole row if rows are fewer."""
        return range(self.rows) if self._takes_rows else self.chunks

    @property
    def _takes_rows(self) -> bool:
        return self.rows < len(self.chunks)

    def _part(self, dtype: DType, count: int, start_bytes: int) -> Local:
        """*count* elements from byte *start_bytes* of the plane on; raises ProgramError."""
        first = self.start_bytes + start_bytes
        if first + dtype.nbytes(count) > self.tile.nbytes:
            raise ProgramError(
                f"Plane: {self.rows} x {self.columns} elements of {dtype.name} at byte {first} "
                f"must fit into the {self.tile.nbytes} bytes of their tile; make the tile larger"
            )
        return Local(self.tile.buffer, self.tile.offset_bytes + first, dtype, count)

    def piece(self, index: int) -> Local:
        return self.row(index) if self._takes_rows else self.chunk(index)

    def vector_piece(self, vector: Local, index: int) -> Local:
        """The operand that applies the float32 *vector* `(columns,)` to piece *index*."""
        if self._takes_rows:
            # The piece is one whole row, so the vector applies unchanged.
            return Local(vector.buffer, vector.offset_bytes, FLOAT32, self.columns)
        # 64 elements of the vector, read again for each row: repeat stride 0.
        offset = vector.offset_bytes + index * FLOAT32.nbytes(REPEAT)
        return Local(vector.buffer, offset, FLOAT32, self.rows * REPEAT, 1, 0)

    def blocks_piece(self, blocks: Local, index: int, pitch: int) -> Local:
        """The operand that applies *blocks*, one a row, *pitch* blocks apart, to piece *index*."""
        if self._takes_rows:
            # One block for the whole row: block and repeat stride 0.
            offset = blocks.offset_bytes + index * pitch * BLOCK_BYTES
            return Local(blocks.buffer, offset, FLOAT32, self.columns, 0, 0)
        # The row's block applies to its eight blocks of elements; a repeat advances by pitch
        # blocks.
        return Local(blocks.buffer, blocks.offset_bytes, FLOAT32, self.rows * REPEAT, 0, pitch)


def by_row(builder: Builder, op: BinaryOp, plane: Plane, vector: Local) -> None:
    """`plane = plane op vector`, the float32 *vector* `(columns,)` applied to every row."""
    for index in plane.pieces:
        here = plane.piece(index)
        builder.emit(Binary(op, here, here, plane.vector_piece(vector, index)))
    builder.barrier("vector")


def by_column(builder: Builder, op: BinaryOp, plane: Plane, blocks: Local, pitch: int = 1) -> None:
    """`plane = plane op value of the row`; *blocks* holds eight copies of each row's value."""
    for index in plane.pieces:
        here = plane.piece(index)
        builder.emit(Binary(op, here, here, plane.blocks_piece(blocks, index, pitch)))
    builder.barrier("vector")


def multiply_add(
    builder: Builder, plane: Plane, blocks: Local, other: Local | Plane, pitch: int = 1
) -> None:
    """`plane = value of the row x other + plane`, *other* a vector or a plane of the same size.

    See :func:`by_row` and :func:`by_column`.
    """
    for index in plane.pieces:
        factor = (
            other.piece(index) if isinstance(other, Plane) else plane.vector_piece(other, index)
        )
        number = plane.blocks_piece(blocks, index, pitch)
        builder.emit(MulAddDst(plane.piece(index), number, factor))
    builder.barrier("vector")


def outer(builder: Builder, plane: Plane, vector: Local, blocks: Local, pitch: int = 1) -> None:
    """`plane = vector x value of the row`, with the float32 *vector* `(columns,)`."""
    for index in plane.pieces:
        of_columns = plane.vector_piece(vector, index)
        of_rows = plane.blocks_piece(blocks, index, pitch)
        builder.emit(Binary("mul", plane.piece(index), of_columns, of_rows))
    builder.barrier("vector")


def spread_rows(builder: Builder, dst: Local, numbers: Local) -> None:
    """Copy each of *numbers* into a block of eight, which :func:`by_column` reads."""
    # (rows,) -> (rows, 8)
    builder.emit(Broadcast(dst, numbers))
    builder.barrier("vector")


class RowFactors:
    """Float32 factors of rows from global memory, each in a block of eight copies."""

    def __init__(self, core: VectorCore, count: int) -> None:
        """Claim room for *count* factors, rounded up to a multiple of eight."""
        count = align_up(count, SPREAD)
        self.core = core
        self.factors_in = core.vecin(FLOAT32, count)
        self._blocks = core.tile(FLOAT32, SPREAD * count)

    def load(
        self,
        count: int,
        *views: GmView,
        pitch: int | None = None,
        with_gaps: bool = False,
        parts: int = 1,
    ) -> None:
        """Load *views* as `VectorCore.load_rows` does, and spread *count* factors *parts* times."""
        loaded = self.core.load_rows(self.factors_in, *views, pitch=pitch, with_gaps=with_gaps)
        for first in range(0, parts * count, count):
            blocks = self._blocks.at(SPREAD * first, SPREAD * count)
            spread_rows(self.core, blocks, loaded.at(first, count))
        self.factors_in.free(loaded)

    def of(self, index: int) -> Local:
        """The blocks from factor *index* on."""
        return self._blocks.at(SPREAD * index, SPREAD)

    def multiply(self, plane: Plane, factors: GmView) -> None:
        """`plane = plane * factor of the row`, *factors* `(rows,)`."""
        self.load(align_up(factors.columns, SPREAD), factors)
        by_column(self.core, "mul", plane, self.of(0))

    def product(self, plane: Plane, factors: GmView, vector: Local) -> None:
        """`plane = factor of the row * vector`, `(rows,)` by `(columns,)`."""
        self.load(align_up(factors.columns, SPREAD), factors)
        outer(self.core, plane, vector, self.of(0))
