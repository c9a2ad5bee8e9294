"""A matrix from ND to Nz by vector cores: load rows into UB, reorder blocks, store Nz.

The kernel of the official example of bank conflicts (asc-devkit, examples/01_simd_cpp_api/
05_best_practices/04_memory_access/bank_conflict_nd2nz): a repeat copies the eight blocks of a row
to eight columns of blocks. These are *stride* blocks apart: all in one group of banks if that is a
multiple of 16, each in a different one if it is odd.

What the example leaves open is chosen here: tiles are assigned in order, one row of tiles after
another, and both sides are double buffered.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, UINT8
from npusim.data.layout import FRACTAL_ROWS, NZ, c0
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Copy, Local
from npusim.kernel.builder import Builder
from npusim.kernel.launch import Kernel
from npusim.kernel.program import Block, Program
from npusim.kernel.views import GmView, bindings, load, repeat
from npusim.micro.shares import cores_of, shares

__all__ = ["TILE_COLUMNS", "reorder"]

TILE_COLUMNS = 128
"""Columns that a repeat copies: eight blocks of fp16."""


def reorder(spec: DeviceSpec, rows: int, columns: int, tile_rows: int, stride: int) -> Kernel:
    """Convert a matrix of *rows* x *columns* fp16 to Nz, in tiles of *tile_rows* x 128.

    Columns of blocks are *stride* blocks apart in UB. Raises ValueError if rows are not whole
    fractals, columns not whole tiles, or columns of blocks overlap.
    """
    if rows % FRACTAL_ROWS or columns % TILE_COLUMNS or stride < tile_rows:
        raise ValueError(
            f"reorder: a matrix must be rows of {FRACTAL_ROWS} by columns of {TILE_COLUMNS}, and "
            f"the stride at least the {tile_rows} rows of a tile, not {rows} x {columns} and "
            f"{stride}; pad them"
        )
    kind, cores = cores_of(spec, "vector")
    tiles = [
        (row, column)
        for row in range(0, rows, tile_rows)
        for column in range(0, columns, TILE_COLUMNS)
    ]
    kernel = ReorderTiles(spec, kind, rows, columns, tile_rows, stride)
    bound = bindings(kernel.x, kernel.y)
    blocks = [
        Block(core, kind, kernel.program(tiles[first : first + count]), bound)
        for core, (first, count) in enumerate(shares(len(tiles), cores))
    ]
    shape = NZ.array_shape(rows, columns, (FRACTAL_ROWS, c0(FLOAT16)))
    x, y = TensorSpec((rows, columns), "float16"), TensorSpec(shape, "float16")
    return Kernel("reorder", tuple(blocks), {"x": x}, {"y": y})


class ReorderTiles:
    """The kernel of one core: loads a tile as rows and stores it as columns of blocks."""

    def __init__(
        self, spec: DeviceSpec, kind: str, rows: int, columns: int, tile_rows: int, stride: int
    ) -> None:
        self.builder = Builder("reorder", spec.cores[kind], spec.sync)
        self.tile_rows, self.stride = tile_rows, stride
        width, blocks_n = c0(FLOAT16), columns // c0(FLOAT16)
        self.x = GmView.of("x", FLOAT16, rows, columns)
        self.y = GmView.of("y", FLOAT16, blocks_n, rows * width)
        """Nz: each of its rows is a column of blocks, `(rows, C0)`."""
        tile_bytes = FLOAT16.nbytes(tile_rows * TILE_COLUMNS)
        self.rows = self.builder.queue("ub", tile_bytes, "mte2", "vector", 2)
        nz_bytes = TILE_COLUMNS // width * stride * BLOCK_BYTES
        self.nz = self.builder.queue("ub", nz_bytes, "vector", "mte3", 2)

    def program(self, tiles: list[tuple[int, int]]) -> Program:
        """The tiles that begin at these rows and columns."""
        width = c0(FLOAT16)
        for row, column in tiles:
            x = self.x[row : row + self.tile_rows, column : column + TILE_COLUMNS]
            ns = slice(column // width, (column + TILE_COLUMNS) // width)
            repeat(self.builder, self._tile, x, self.y[ns, row * width : (row + x.rows) * width])
        return self.builder.build()

    def _tile(self, x: GmView, y: GmView) -> None:
        """*x* `(rows, 128)` to *y*, eight columns of blocks `(rows, C0)`."""
        slot = load(self.builder, self.rows, x)
        out, count = self.nz.alloc(), x.rows * TILE_COLUMNS
        strided = Local("ub", out.offset_bytes, FLOAT16, count, self.stride, 1)
        self.builder.emit(Copy(strided, slot.of(FLOAT16, count)))
        self.rows.free(slot)
        self.nz.enque(out)
        out = self.nz.deque()
        src = out.of(UINT8, y.extent_bytes(self.stride * BLOCK_BYTES))
        self.builder.data_copy(y.operand, src, self.stride * BLOCK_BYTES)
        self.nz.free(out)
