"""A matrix from ND to Nz by vector cores: rows come into UB, blocks change places, Nz goes out.

The kernel of the official example of bank conflicts (asc-devkit, examples/01_simd_cpp_api/
05_best_practices/04_memory_access/bank_conflict_nd2nz): a repeat copies the eight blocks of a row
to eight columns of blocks. These lie *stride* blocks apart, all in one group of banks if that is a
multiple of 16, each in another one if it is odd.

What the example leaves open is set here: tiles are dealt out in order, a row of tiles after the
other, and both sides are double buffered.
"""

from __future__ import annotations

from functools import partial

from npusim.data.dtypes import FLOAT16
from npusim.data.layout import FRACTAL_ROWS, NZ, c0
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Copy, Global, Local
from npusim.kernel.builder import Builder
from npusim.kernel.launch import Kernel
from npusim.kernel.program import Binding, Block, Program
from npusim.micro.shares import cores_of, shares

__all__ = ["TILE_COLUMNS", "reorder"]

TILE_COLUMNS = 128
"""What a repeat copies: eight blocks of fp16."""


def reorder(spec: DeviceSpec, rows: int, columns: int, tile_rows: int, stride: int) -> Kernel:
    """Turn a matrix of *rows* x *columns* fp16 into Nz, in tiles of *tile_rows* x 128.

    Columns of blocks lie *stride* blocks apart in UB. Raises ValueError where rows are no whole
    fractals, columns no whole tiles, or columns of blocks overlap.
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
    writing = _Writing(spec, kind, rows, columns, tile_rows, stride)
    bindings = {name: Binding(name) for name in ("x", "y")}
    blocks = [
        Block(core, kind, writing.program(tiles[first : first + count]), bindings)
        for core, (first, count) in enumerate(shares(len(tiles), cores))
    ]
    shape = NZ.array_shape(rows, columns, (FRACTAL_ROWS, c0(FLOAT16)))
    given, made = TensorSpec((rows, columns), "float16"), TensorSpec(shape, "float16")
    return Kernel("reorder", tuple(blocks), {"x": given}, {"y": made})


class _Writing:
    """The kernel of one core, while it is written."""

    def __init__(
        self, spec: DeviceSpec, kind: str, rows: int, columns: int, tile_rows: int, stride: int
    ) -> None:
        self.builder = Builder("reorder", spec.cores[kind], spec.sync)
        self.rows, self.columns = rows, columns
        self.tile_rows, self.stride = tile_rows, stride
        self.width = FLOAT16.nbytes(TILE_COLUMNS)
        across = self.width // BLOCK_BYTES
        self.x = self.builder.queue("ub", tile_rows * self.width, "mte2", "vector", 2)
        self.y = self.builder.queue("ub", across * stride * BLOCK_BYTES, "vector", "mte3", 2)

    def program(self, tiles: list[tuple[int, int]]) -> Program:
        """The tiles that begin at these rows and columns."""
        for row, column in tiles:
            count = min(self.tile_rows, self.rows - row)
            shifts = {
                "x": FLOAT16.nbytes(row * self.columns + column),
                "y": (column // c0(FLOAT16) * self.rows + row) * BLOCK_BYTES,
            }
            self.builder.call(count, shifts, partial(self._tile, count))
        return self.builder.build()

    def _tile(self, rows: int) -> None:
        source = Global("x", 0, self.width, rows, FLOAT16.nbytes(self.columns))
        target = Global(
            "y", 0, rows * BLOCK_BYTES, self.width // BLOCK_BYTES, self.rows * BLOCK_BYTES
        )
        slot = self.x.alloc()
        self.builder.load(slot.of(FLOAT16, TILE_COLUMNS), source, self.width)
        self.x.enque(slot)
        slot, out = self.x.deque(), self.y.alloc()
        count = rows * TILE_COLUMNS
        strided = Local("ub", out.offset_bytes, FLOAT16, count, self.stride, 1)
        self.builder.emit(Copy(strided, slot.of(FLOAT16, count)))
        self.x.free(slot)
        self.y.enque(out)
        out = self.y.deque()
        self.builder.store(target, out.of(FLOAT16, c0(FLOAT16)), self.stride * BLOCK_BYTES)
        self.y.free(out)
