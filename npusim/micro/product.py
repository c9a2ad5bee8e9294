"""A product of fp16 matrices on cube cores, each with a rectangle of the output.

The kernel of the official examples (asc-devkit, examples/01_simd_cpp_api/05_best_practices/
01_matrix_compute) and of the Matmul pages of the tuning guide (docs/zh/guide): x1 (m, k) and x2
(n, k), or (k, n), both ND, are converted to Nz on their way into L1; sums leave L0C as fp16 or
fp32. Rectangles are whole base tiles, so the last ones may be smaller, or empty: 32 columns of
tiles on 6 columns of cores are 6, 6, 6, 6, 6 and 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from npusim.data.dtypes import FLOAT16, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    BaseTile,
    Block,
    CubeCore,
    GmMatrix,
    GmTile,
    GmView,
    Kernel,
    Matmul,
    Program,
    bindings,
    pieces,
    repeat,
)
from npusim.micro.shares import cores_of

__all__ = ["Plan", "Shape", "product"]

Shape = tuple[int, int, int]
"""m, n, k."""


class Rectangle(NamedTuple):
    """A part of the output."""

    row: int
    column: int
    rows: int
    columns: int

    def seen_from(self, row: int, column: int) -> Rectangle:
        """The same rectangle relative to another origin."""
        return self._replace(row=self.row - row, column=self.column - column)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a product is split, and the options of its kernel."""

    tile: BaseTile
    grid: tuple[int, int] = (1, 1)
    """Cores over the rows and over the columns of the output."""
    l2_tiles: tuple[int, int] = (1, 1)
    """Parts of the rows and of the columns that all cores share, one after the other."""
    unit_flag: bool = False
    """Whether the fixpipe drains L0C right behind the last Mmad."""
    staggered: bool = False
    """Whether each core starts with another piece of k."""
    dtype: DType = FLOAT16
    """The type of the output."""
    transposed_b: bool = True
    """Whether x2 is (n, k) rather than (k, n)."""


def product(spec: DeviceSpec, shape: Shape, plan: Plan) -> Kernel:
    """`y (m, n) = x1 (m, k) @ x2` for *shape* (m, n, k).

    Each core works along its rows of tiles first. Raises ValueError if the grid has more cores than
    the chip, ProgramError if the tile does not fit into the buffers.
    """
    m, n, k = shape
    kind, _ = cores_of(spec, "cube", plan.grid[0] * plan.grid[1])
    kernel = ProductTiles(spec, kind, shape, plan)
    programs: dict[tuple[tuple[Rectangle, ...], int], Program] = {}
    blocks: list[Block] = []
    for core, parts in enumerate(_parts(m, n, plan)):
        row, column, *_ = parts[0]
        own = tuple(part.seen_from(row, column) for part in parts)
        first_k = kernel.cube.stagger(core, k) if plan.staggered else 0
        if (own, first_k) not in programs:
            programs[own, first_k] = kernel.rectangles(own, first_k)
        x2 = kernel.x2.view
        x2 = x2[column:, :] if plan.transposed_b else x2[:, column:]
        bound = bindings(kernel.x1.view[row:, :], x2, kernel.y[row:, column:])
        blocks.append(Block(core, kind, programs[own, first_k], bound))
    shape_b = (n, k) if plan.transposed_b else (k, n)
    inputs = {"x1": TensorSpec((m, k), "float16"), "x2": TensorSpec(shape_b, "float16")}
    return Kernel("product", tuple(blocks), inputs, {"y": TensorSpec((m, n), plan.dtype.name)})


def _parts(m: int, n: int, plan: Plan) -> list[list[Rectangle]]:
    """The parts of every L2 tile on each core; cores without any are left out."""
    (l2_m, l2_n), (grid_m, grid_n) = plan.l2_tiles, plan.grid
    cores: dict[tuple[int, int], list[Rectangle]] = {}
    for top, height in _split(0, m, l2_m, plan.tile.m):
        for left, width in _split(0, n, l2_n, plan.tile.n):
            for i, (row, rows) in enumerate(_split(top, height, grid_m, plan.tile.m)):
                for j, (column, columns) in enumerate(_split(left, width, grid_n, plan.tile.n)):
                    here = Rectangle(row, column, rows, columns)
                    cores.setdefault((i, j), []).append(here)
    return [cores[place] for place in sorted(cores)]


def _split(first: int, extent: int, parts: int, tile: int) -> Iterator[tuple[int, int]]:
    """*extent* from *first* in at most *parts* equal parts of whole *tile*, the last smaller."""
    return _tiles(first, extent, align_up(ceil_div(extent, parts), tile))


def _tiles(first: int, extent: int, step: int) -> Iterator[tuple[int, int]]:
    """*extent* from *first* in pieces of *step*, the last one smaller."""
    return ((first + start, width) for start, width in pieces(extent, step))


class ProductTiles:
    """The kernel of one core: base tile after base tile of its rectangles of the output."""

    def __init__(self, spec: DeviceSpec, kind: str, shape: Shape, plan: Plan) -> None:
        m, n, k = shape
        self.plan = plan
        self.core = CubeCore("product", spec, kind, alone=True)
        self.x1 = GmMatrix("x1", FLOAT16, m, k, False)
        rows, columns = (n, k) if plan.transposed_b else (k, n)
        self.x2 = GmMatrix("x2", FLOAT16, rows, columns, not plan.transposed_b)
        self.y = GmView.of("y", plan.dtype, m, n)
        self.cube = Matmul(self.core, plan.tile, self.x1, self.x2, k, unit_flag=plan.unit_flag)

    def rectangles(self, parts: tuple[Rectangle, ...], first_k: int) -> Program:
        """*parts* of the output, one base tile after another; sums start at *first_k*."""
        tile = self.plan.tile
        for part in parts:
            for row, m in _tiles(part.row, part.rows, tile.m):
                for column, n in _tiles(part.column, part.columns, tile.n):
                    x1, x2 = self.x1.tile(row, m), self.x2.tile(column, n)
                    y = self.y[row : row + m, column : column + n]
                    repeat(self.core, self._base_tile, x1, x2, y, first_k)
        return self.core.build()

    def _base_tile(self, x1: GmTile, x2: GmTile, y: GmView, first_k: int) -> None:
        """`y (m, n) = x1 (m, k) @ x2 (k, n)`."""
        sums = self.cube.multiply(x1.extent, x2.extent, x1.k, first_k=first_k)
        # (n / 16, rows_padded, 16) fp32 in L0C -> (m, n)
        self.cube.fixpipe(y, sums)
