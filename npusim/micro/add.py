"""Adding two vectors of fp16: from one element at a time on one core to all that a chip can do.

The steps are those of the official example (asc-devkit, examples/01_simd_cpp_api/
05_best_practices/00_vector_compute/add_high_performance). What it leaves open is chosen here: cores
get equal shares, in lines of the L2.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import (
    Binary,
    Local,
    MicroOp,
    ScalarAlu,
    ScalarLoad,
    ScalarLoop,
    ScalarStore,
)
from npusim.kernel.builder import Builder
from npusim.kernel.launch import Kernel
from npusim.kernel.program import Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, bindings, repeat, store
from npusim.micro.shares import cores_of, shares

__all__ = ["add"]


def add(
    spec: DeviceSpec,
    count: int,
    tile: int,
    *,
    cores: int | None = None,
    double_buffered: bool = False,
    bypass: bool = False,
    scalar: bool = False,
) -> Kernel:
    """`z = x + y`, *count* elements in tiles of *tile*, on all vector cores or the first *cores*.

    *bypass*: reads bypass the L2. *scalar*: the scalar unit adds, element by element. A tile of x
    is directly before its tile of y, so the size of a tile decides whether they share banks. Raises
    ProgramError if the tiles do not fit into the unified buffer.
    """
    kind, parts = cores_of(spec, "vector", cores)
    kernel = AddTiles(spec, kind, tile, 2 if double_buffered else 1, scalar)
    line = spec.l2.line_bytes * 8 // FLOAT16.bits
    programs: dict[int, Program] = {}
    blocks = []
    for core, (start, width) in enumerate(shares(count, parts, line)):
        if width not in programs:
            programs[width] = kernel.program(width)
        x, y, z = (GmView.vector(name, FLOAT16, count)[:, start:] for name in "xyz")
        bound = bindings(x, y, is_cached=not bypass) | bindings(z)
        blocks.append(Block(core, kind, programs[width], bound))
    of = TensorSpec((count,), "float16")
    return Kernel("add", tuple(blocks), {"x": of, "y": of}, {"z": of})


class AddTiles:
    """The kernel of one core: adds tile after tile of x and y."""

    def __init__(self, spec: DeviceSpec, kind: str, tile: int, depth: int, scalar: bool) -> None:
        self.builder = Builder("add", spec.cores[kind], spec.sync, alone=True)
        self.tile, self.scalar = tile, scalar
        unit: Pipe = "scalar" if scalar else "vector"
        nbytes = FLOAT16.nbytes(tile)
        self.pairs = self.builder.queue("ub", 2 * nbytes, "mte2", unit, depth)
        self.sums = self.builder.queue("ub", nbytes, unit, "mte3", depth)

    def program(self, width: int) -> Program:
        """*width* elements."""
        tensors = [GmView.vector(name, FLOAT16, width) for name in "xyz"]
        for start, count in pieces(width, self.tile):
            tiles = (tensor[:, start : start + count] for tensor in tensors)
            repeat(self.builder, self._tile, *tiles)
        return self.builder.build()

    def _tile(self, x: GmView, y: GmView, z: GmView) -> None:
        """`z = x + y`, `(count,)` each; y is a whole tile after x in the buffer."""
        slot, count = self.pairs.alloc(), z.columns
        a, b = slot.of(FLOAT16, count), slot.of(FLOAT16, count, FLOAT16.nbytes(self.tile))
        self.builder.data_copy(a, x.operand)
        self.builder.data_copy(b, y.operand)
        self.pairs.enque(slot)
        slot, out = self.pairs.deque(), self.sums.alloc()
        c = out.of(FLOAT16, count)
        self.builder.emit(_by_element(c, a, b) if self.scalar else Binary("add", c, a, b))
        self.pairs.free(slot)
        store(self.builder, self.sums, out, z)


def _by_element(z: Local, x: Local, y: Local) -> MicroOp:
    """GetValue twice, an addition, and SetValue, for each element."""
    step = FLOAT16.nbytes(1)
    body = (
        ScalarLoad("a", x.at(0, 1), step),
        ScalarLoad("b", y.at(0, 1), step),
        ScalarAlu("f16_add", "sum", "a", "b"),
        ScalarStore(z.at(0, 1), "sum", step),
    )
    return ScalarLoop(z.count, body)
