"""A product of fp16 matrices on cube cores, each with a rectangle of the output as its own.

The kernel of the official example (asc-devkit, examples/01_simd_cpp_api/05_best_practices/
01_matrix_compute/matmul_high_performance): x1 (m, k) and x2 (n, k), both ND, become Nz on
their way into L1, sums leave L0C as fp16. Rectangles are whole base tiles, so the last ones may be
smaller, or empty: 32 columns of tiles on 6 columns of cores are 6, 6, 6, 6, 6 and 2.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe
from npusim.kernel.builder import Builder
from npusim.kernel.cube import BaseTile, CubeWriter, GmFeed, GmMatrix, GmTile
from npusim.kernel.launch import Kernel
from npusim.kernel.program import Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.micro.shares import cores_of

__all__ = ["product"]

Shape = tuple[int, int, int]


def product(spec: DeviceSpec, shape: Shape, tile: BaseTile, grid: tuple[int, int]) -> Kernel:
    """`y (m, n) = x1 (m, k) @ x2 (n, k).T` for *shape* (m, n, k), on a *grid* of cores.

    Each core works along its rows of *tile* first. Raises ValueError where the grid has more cores
    than the chip, ProgramError where the tile does not fit into the buffers.
    """
    m, n, k = shape
    core_m = align_up(ceil_div(m, grid[0]), tile.m)
    core_n = align_up(ceil_div(n, grid[1]), tile.n)
    kind, _ = cores_of(spec, "cube", grid[0] * grid[1])
    kernel = ProductTiles(spec, kind, shape, tile)
    x1, x2, y = _tensors(shape)
    programs: dict[tuple[int, int], Program] = {}
    blocks: list[Block] = []
    for row, rows in pieces(m, core_m):
        for column, columns in pieces(n, core_n):
            size = rows, columns
            if size not in programs:
                programs[size] = kernel.rectangle(*size)
            bound = bindings(x1.view[row:, :], x2.view[column:, :], y[row:, column:])
            blocks.append(Block(len(blocks), kind, programs[size], bound))
    inputs = {"x1": TensorSpec((m, k), "float16"), "x2": TensorSpec((n, k), "float16")}
    return Kernel("product", tuple(blocks), inputs, {"y": TensorSpec((m, n), "float16")})


def _tensors(shape: Shape) -> tuple[GmMatrix, GmMatrix, GmView]:
    """x1 (m, k) and x2 (n, k) as operands, and y (m, n)."""
    m, n, k = shape
    x1, x2 = (GmMatrix(name, FLOAT16, rows, k, False) for name, rows in (("x1", m), ("x2", n)))
    return x1, x2, GmView.of("y", FLOAT16, m, n)


class ProductTiles:
    """The kernel of one core: base tile after base tile of a rectangle of the output."""

    def __init__(self, spec: DeviceSpec, kind: str, shape: Shape, tile: BaseTile) -> None:
        self.tile = tile
        self.builder = Builder("product", spec.cores[kind], spec.sync, alone=True)
        self.x1, self.x2, self.y = _tensors(shape)
        a, b = GmFeed(self.builder, self.x1), GmFeed(self.builder, self.x2)
        self.writer = CubeWriter(self.builder, tile, a, b, shape[2])

    def rectangle(self, rows: int, columns: int) -> Program:
        """*rows* x *columns* of the output, a base tile after the other."""
        for row, m in pieces(rows, self.tile.m):
            for column, n in pieces(columns, self.tile.n):
                x1, x2 = self.x1.tile(row, m), self.x2.tile(column, n)
                y = self.y[row : row + m, column : column + n]
                repeat(self.builder, self._base_tile, x1, x2, y)
        return self.builder.build()

    def _base_tile(self, x1: GmTile, x2: GmTile, y: GmView) -> None:
        """`y (m, n) = x1 (m, k) @ x2 (n, k).T`."""
        slot = self.writer.product(x1.extent, x2.extent, x1.k)
        # (n / 16, rows_padded, 16) fp32 in L0C -> (m, n)
        rows_padded = align_up(y.rows, FRACTAL_ROWS)
        sums = slot.of(FLOAT32, rows_padded * align_up(y.columns, FRACTAL_ROWS))
        op = Fixpipe(y.operand, sums, y.rows, y.columns, rows_padded, FLOAT16, "cast")
        self.builder.emit(op)
        self.writer.release(slot)
