"""Kernels that only read: one DataCopy after another from global memory into UB or L1.

They are the variants of the official copy example (asc-devkit, examples/01_simd_cpp_api/
05_best_practices/04_memory_access/data_copy): a matrix of fp16 is split into tiles, rows of tiles
are divided among the cores, and nothing reads what is copied. A tile is Nz in L1.

What the example leaves open is chosen here: tiles follow a row of tiles first, all of them into one
buffer, without flags between them; staggered cores start evenly spread and wrap around.
"""

from __future__ import annotations

from typing import Literal

from npusim.data.dtypes import FLOAT16, UINT8
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, LoadNd2Nz
from npusim.kernel.builder import Builder
from npusim.kernel.launch import Kernel
from npusim.kernel.program import Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.micro.shares import cores_of, shares

__all__ = ["To", "read", "read_alike"]

To = Literal["ub", "l1"]
Shape = tuple[int, int]
PIPES = {"ub": "vector", "l1": "cube"}


def read(
    spec: DeviceSpec, shape: Shape, tile: Shape, to: To = "ub", *, times: int = 1, slices: int = 1
) -> Kernel:
    """Read a matrix of *shape* in tiles of *tile*, each core its own rows.

    It is split into *slices* of columns; each slice is read *times* times before the next one.
    Raises ValueError if slices are not whole tiles.
    """
    rows, columns = shape
    if columns % slices or (slices > 1 and columns // slices % tile[1]):
        raise ValueError(
            f"copies.read: slices must be whole tiles of {tile[1]} columns, not {slices} slices of "
            f"{columns} columns; change one of them"
        )
    kind, cores = cores_of(spec, PIPES[to])
    kernel = ReadTiles(spec, kind, shape, tile, to)
    programs: dict[int, Program] = {}
    blocks = []
    for core, (row, count) in enumerate(shares(rows, cores, tile[0])):
        if count not in programs:
            width = columns // slices
            for start in range(0, columns, width):
                for _ in range(times):
                    kernel.panel(count, start, width)
            programs[count] = kernel.builder.build()
        x = GmView.of("x", FLOAT16, rows, columns)
        blocks.append(Block(core, kind, programs[count], bindings(x[row:, :])))
    return Kernel("read", tuple(blocks), {"x": TensorSpec(shape, "float16")})


def read_alike(
    spec: DeviceSpec,
    shape: Shape,
    tile: Shape,
    to: To = "ub",
    *,
    staggered: bool = False,
    bypass: bool = False,
) -> Kernel:
    """Let every core read all of a matrix of *shape*: the same tiles in the same order.

    *staggered*: each core starts with another tile, evenly spread, and wraps around. *bypass*:
    reads bypass the L2. Raises ValueError if the matrix is not whole tiles.
    """
    rows, columns = shape
    if rows % tile[0] or columns % tile[1]:
        raise ValueError(
            f"copies.read_alike: the matrix must be whole tiles of {tile}, not {shape}; change one"
        )
    kind, cores = cores_of(spec, PIPES[to])
    kernel = ReadTiles(spec, kind, shape, tile, to)
    places = [
        (row, column) for row in range(0, rows, tile[0]) for column in range(0, columns, tile[1])
    ]
    bound = bindings(GmView.of("x", FLOAT16, rows, columns), is_cached=not bypass)
    programs: dict[int, Program] = {}
    blocks = []
    for core in range(cores):
        first = len(places) * core // cores if staggered else 0
        if first not in programs:
            for row, column in places[first:] + places[:first]:
                kernel.tile(row, column)
            programs[first] = kernel.builder.build()
        blocks.append(Block(core, kind, programs[first], bound))
    return Kernel("read_alike", tuple(blocks), {"x": TensorSpec(shape, "float16")})


class ReadTiles:
    """The kernel of one core: reads tile after tile into one buffer."""

    def __init__(self, spec: DeviceSpec, kind: str, shape: Shape, tile: Shape, to: To) -> None:
        self.builder = Builder("read", spec.cores[kind], spec.sync)
        self._x = GmView.of("x", FLOAT16, *shape)
        self._tile = tile
        self._to = to
        self._pitch_bytes = align_up(FLOAT16.nbytes(tile[1]), BLOCK_BYTES)
        self._rows_padded = align_up(tile[0], FRACTAL_ROWS)
        rows = tile[0] if to == "ub" else self._rows_padded
        self._slot = self.builder.claim(to, rows * self._pitch_bytes)

    def panel(self, rows: int, column: int, columns: int) -> None:
        """*rows* x *columns* from *column* on, one row of tiles after another."""
        for start, count in pieces(rows, self._tile[0]):
            here = slice(start, start + count), slice(column, column + columns)
            repeat(self.builder, self._row, self._x[here])

    def tile(self, row: int, column: int) -> None:
        """One tile."""
        rows, columns = self._tile
        repeat(self.builder, self._row, self._x[row : row + rows, column : column + columns])

    def _row(self, x: GmView) -> None:
        """A row of tiles, `(rows, columns)`."""
        for column, columns in pieces(x.columns, self._tile[1]):
            self._load(x[:, column : column + columns])

    def _load(self, x: GmView) -> None:
        """A tile into UB as rows, or into L1 as Nz `(columns / 16, rows_padded, 16)`."""
        if self._to == "ub":
            dst = self._slot.of(UINT8, x.extent_bytes(self._pitch_bytes))
            self.builder.data_copy(dst, x.operand, self._pitch_bytes)
        else:
            columns_padded = align_up(x.columns, c0(FLOAT16))
            dst = self._slot.of(FLOAT16, self._rows_padded * columns_padded)
            self.builder.emit(LoadNd2Nz(dst, x.operand, self._rows_padded))
