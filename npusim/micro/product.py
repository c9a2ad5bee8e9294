"""A product of fp16 matrices on cube cores, each with a rectangle of the output as its own.

The kernel of the official example (asc-devkit, examples/01_simd_cpp_api/05_best_practices/
01_matrix_compute/matmul_high_performance): x1 (m, k) and x2 (n, k), both ND, are turned into Nz on
their way into L1, sums leave L0C as fp16. Rectangles are whole base tiles, so the last ones may be
smaller, or empty: 32 columns of tiles on 6 columns of cores are 6, 6, 6, 6, 6 and 2.
"""

from __future__ import annotations

from functools import partial

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe, Global
from npusim.kernel.builder import Builder
from npusim.kernel.cube import BaseTile, CubeWriter, GmFeed, GmMatrix
from npusim.kernel.launch import Kernel
from npusim.kernel.program import Binding, Block, Program
from npusim.micro.shares import cores_of

__all__ = ["product"]

Shape = tuple[int, int, int]


def product(spec: DeviceSpec, shape: Shape, tile: BaseTile, grid: tuple[int, int]) -> Kernel:
    """`y (m, n) = x1 (m, k) @ x2 (n, k).T` for *shape* (m, n, k), on a *grid* of cores.

    Each core goes along its rows of *tile* first. Raises ValueError where the grid has more cores
    than the chip, ProgramError where the tile does not fit into the buffers.
    """
    m, n, k = shape
    down, across = (
        align_up(ceil_div(extent, parts), base)
        for extent, parts, base in zip((m, n), grid, (tile.m, tile.n), strict=True)
    )
    kind, _ = cores_of(spec, "cube", grid[0] * grid[1])
    writing = _Writing(spec, kind, shape, tile)
    programs: dict[tuple[int, int], Program] = {}
    blocks: list[Block] = []
    for row in range(0, m, down):
        for column in range(0, n, across):
            size = min(down, m - row), min(across, n - column)
            if size not in programs:
                programs[size] = writing.rectangle(*size)
            bindings = {
                "x1": Binding("x1", FLOAT16.nbytes(row * k)),
                "x2": Binding("x2", FLOAT16.nbytes(column * k)),
                "y": Binding("y", FLOAT16.nbytes(row * n + column)),
            }
            blocks.append(Block(len(blocks), kind, programs[size], bindings))
    inputs = {"x1": TensorSpec((m, k), "float16"), "x2": TensorSpec((n, k), "float16")}
    return Kernel("product", tuple(blocks), inputs, {"y": TensorSpec((m, n), "float16")})


class _Writing:
    """The kernel of one core, while it is written."""

    def __init__(self, spec: DeviceSpec, kind: str, shape: Shape, tile: BaseTile) -> None:
        m, self.n, self.k = shape
        self.tile = tile
        self.builder = Builder("product", spec.cores[kind], spec.sync, alone=True)
        a, b = (
            GmFeed(self.builder, GmMatrix(name, FLOAT16, rows, self.k, False))
            for name, rows in (("x1", m), ("x2", self.n))
        )
        self.writer = CubeWriter(self.builder, tile, a, b, self.k)

    def rectangle(self, rows: int, columns: int) -> Program:
        """*rows* x *columns* of the output, a base tile after the other."""
        for row in range(0, rows, self.tile.m):
            for column in range(0, columns, self.tile.n):
                size = min(self.tile.m, rows - row), min(self.tile.n, columns - column)
                shifts = {
                    "x1": FLOAT16.nbytes(row * self.k),
                    "x2": FLOAT16.nbytes(column * self.k),
                    "y": FLOAT16.nbytes(row * self.n + column),
                }
                self.builder.call(size, shifts, partial(self._base_tile, *size))
        return self.builder.build()

    def _base_tile(self, m: int, n: int) -> None:
        slot = self.writer.product(m, n, self.k)
        high = align_up(m, FRACTAL_ROWS)
        sums = slot.of(FLOAT32, high * align_up(n, FRACTAL_ROWS))
        place = Global("y", 0, FLOAT16.nbytes(n), m, FLOAT16.nbytes(self.n))
        self.builder.emit(Fixpipe(place, sums, m, n, high, FLOAT16, "cast"))
        self.writer.release(slot)
