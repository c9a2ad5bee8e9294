"""Adding two vectors of fp16: from an element at a time on one core to all that a chip can do.

The steps are those of the official example (asc-devkit, examples/01_simd_cpp_api/
05_best_practices/00_vector_compute/add_high_performance). What it leaves open is set here: cores
get even shares, in lines of the L2.
"""

from __future__ import annotations

from functools import partial

from npusim.data.dtypes import FLOAT16
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import (
    Binary,
    Global,
    Local,
    MicroOp,
    ScalarAlu,
    ScalarLoad,
    ScalarLoop,
    ScalarStore,
)
from npusim.kernel.builder import Builder
from npusim.kernel.launch import Kernel
from npusim.kernel.program import Binding, Block, Program
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

    *bypass*: what is read goes past the L2. *scalar*: the scalar unit adds, element by element. A
    tile of x lies just before its tile of y, so the size of a tile says whether they meet in the
    banks. Raises ProgramError if the tiles do not fit into the unified buffer.
    """
    kind, parts = cores_of(spec, "vector", cores)
    writing = _Writing(spec, kind, tile, 2 if double_buffered else 1, scalar)
    line = spec.l2.line_bytes * 8 // FLOAT16.bits
    programs: dict[int, Program] = {}
    blocks = []
    for core, (start, width) in enumerate(shares(count, parts, line)):
        if width not in programs:
            programs[width] = writing.program(width)
        base = FLOAT16.nbytes(start)
        bindings = {name: Binding(name, base, not bypass) for name in ("x", "y")}
        bindings["z"] = Binding("z", base)
        blocks.append(Block(core, kind, programs[width], bindings))
    of = TensorSpec((count,), "float16")
    return Kernel("add", tuple(blocks), {"x": of, "y": of}, {"z": of})


class _Writing:
    """The kernel of one core, while it is written."""

    def __init__(self, spec: DeviceSpec, kind: str, tile: int, depth: int, scalar: bool) -> None:
        self.builder = Builder("add", spec.cores[kind], spec.sync, alone=True)
        self.tile, self.scalar = tile, scalar
        unit: Pipe = "scalar" if scalar else "vector"
        nbytes = FLOAT16.nbytes(tile)
        self.pairs = self.builder.queue("ub", 2 * nbytes, "mte2", unit, depth)
        self.sums = self.builder.queue("ub", nbytes, unit, "mte3", depth)

    def program(self, width: int) -> Program:
        """*width* elements."""
        for start in range(0, width, self.tile):
            count = min(self.tile, width - start)
            shifts = dict.fromkeys(("x", "y", "z"), FLOAT16.nbytes(start))
            self.builder.call(count, shifts, partial(self._piece, count))
        return self.builder.build()

    def _piece(self, count: int) -> None:
        nbytes = FLOAT16.nbytes(count)
        slot = self.pairs.alloc()
        x, y = slot.of(FLOAT16, count), slot.of(FLOAT16, count, FLOAT16.nbytes(self.tile))
        self.builder.load(x, Global("x", 0, nbytes))
        self.builder.load(y, Global("y", 0, nbytes))
        self.pairs.enque(slot)
        slot, out = self.pairs.deque(), self.sums.alloc()
        z = out.of(FLOAT16, count)
        self.builder.emit(_by_element(z, x, y) if self.scalar else Binary("add", z, x, y))
        self.pairs.free(slot)
        self.sums.enque(out)
        out = self.sums.deque()
        self.builder.store(Global("z", 0, nbytes), z)
        self.sums.free(out)


def _by_element(z: Local, x: Local, y: Local) -> MicroOp:
    """GetValue twice, an addition, SetValue, for each element."""
    step = FLOAT16.nbytes(1)
    body = (
        ScalarLoad("a", x.at(0, 1), step),
        ScalarLoad("b", y.at(0, 1), step),
        ScalarAlu("f16_add", "sum", "a", "b"),
        ScalarStore(z.at(0, 1), "sum", step),
    )
    return ScalarLoop(z.count, body)
