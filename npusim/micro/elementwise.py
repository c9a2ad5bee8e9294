"""Elementwise kernels: at least 4 KiB a core, and one tile without a double buffer where it fits.

As many cores as there are 4 KiB of input, up to all of them, in shares of whole 512 elements, as in
the design notes of the vendor's elementwise template (ops-math). The tiles are those of its tiling
library (dengguojie/vue-element-admin@7d77ce32 ops/built-in/op_tiling/elewise_v3.cc, of 2022): the
unified buffer has room for all tensors that are needed at a time, each counted in the widest type;
a share that is larger than that comes in even tiles with every tensor in it twice. The kernels that
ship for A2 and A3 are closed; that they keep to both is inferred from their times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, DType, RoundMode
from npusim.data.integers import align_up, ceil_div
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, Cast, Local
from npusim.isa.vector import BinaryOp
from npusim.kernel.builder import Builder
from npusim.kernel.launch import Kernel
from npusim.kernel.program import Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, bindings, fill, repeat, store
from npusim.micro.shares import cores_of

__all__ = ["add", "cast", "maximum"]

LEAST_BYTES = 4096
SHARE, TILE = 512, 128
"""Elements that the share of a core, and a tile of several, are multiples of."""
LIMITS = {8: 32767, 16: 32767, 32: 16383}
"""Bits of the widest type -> most elements of a tile."""
WIDE: dict[DType, tuple[DType, RoundMode]] = {INT8: (FLOAT16, "none"), BFLOAT16: (FLOAT32, "rint")}
"""What no instruction compares or adds: what it is cast to, and how that is cast back."""

Body = Callable[[list[Local], Local, list[Local]], None]
"""Writes the micro-ops of a tile: inputs, output, work space."""


def cast(spec: DeviceSpec, count: int, src: DType, dst: DType, mode: RoundMode = "none") -> Kernel:
    """*count* elements of *src* become *dst*, in one micro-op a tile."""
    tiles = ElementwiseTiles("cast", spec, count, (src,), dst, ())

    def body(inputs: list[Local], output: Local, _: list[Local]) -> None:
        tiles.builder.emit(Cast(output, inputs[0], mode))

    return tiles.kernel(body)


def maximum(spec: DeviceSpec, count: int, dtype: DType) -> Kernel:
    """The larger of two elements each, *count* of them.

    bfloat16 is compared as float32, int8 as float16. Raises ValueError for types that neither Max
    nor these conversions support.
    """
    if dtype not in (FLOAT16, FLOAT32, INT32, *WIDE):
        raise ValueError(
            f"elementwise.maximum: dtype must be one of float16, float32, int32, bfloat16, int8, "
            f"not {dtype.name}; cast it first"
        )
    return _of_two("maximum", "max", spec, count, dtype)


def add(spec: DeviceSpec, count: int, dtype: DType) -> Kernel:
    """The sum of two elements each, *count* of them.

    bfloat16 is added as float32. Raises ValueError for types that neither Add nor this conversion
    supports.
    """
    if dtype not in (FLOAT16, FLOAT32, INT32, BFLOAT16):
        raise ValueError(
            f"elementwise.add: dtype must be one of float16, float32, int32, bfloat16, "
            f"not {dtype.name}; cast it first"
        )
    return _of_two("add", "add", spec, count, dtype)


def _of_two(name: str, op: BinaryOp, spec: DeviceSpec, count: int, dtype: DType) -> Kernel:
    """*op* of two elements each, in a type that it takes."""
    work = (WIDE[dtype][0],) * 2 if dtype in WIDE else ()
    tiles = ElementwiseTiles(name, spec, count, (dtype, dtype), dtype, work)

    def body(inputs: list[Local], output: Local, widened: list[Local]) -> None:
        if not widened:
            tiles.builder.emit(Binary(op, output, *inputs))
            return
        # The tile before may still be read from where this one writes.
        tiles.builder.barrier("vector")
        for narrow, local in zip(inputs, widened, strict=True):
            tiles.builder.emit(Cast(local, narrow))
        tiles.builder.barrier("vector")
        tiles.builder.emit(Binary(op, widened[0], *widened))
        tiles.builder.barrier("vector")
        tiles.builder.emit(Cast(output, widened[0], WIDE[dtype][1]))

    return tiles.kernel(body)


class ElementwiseTiles:
    """An elementwise kernel for *count* elements, tile after tile."""

    def __init__(
        self,
        name: str,
        spec: DeviceSpec,
        count: int,
        inputs: Sequence[DType],
        output: DType,
        work: Sequence[DType],
    ) -> None:
        self.name, self.spec, self.count = name, spec, count
        self.kind, cores = cores_of(spec, "vector")
        self.inputs, self.output, self.work_types = inputs, output, work
        self.builder = Builder(name, spec.cores[self.kind], spec.sync)
        self.shares = _in_order(count, min(ceil_div(inputs[0].nbytes(count), LEAST_BYTES), cores))
        depth = self._cut()
        self.queues = [
            self.builder.queue("ub", dtype.nbytes(self.tile), "mte2", "vector", depth)
            for dtype in inputs
        ]
        self.out = self.builder.queue("ub", output.nbytes(self.tile), "vector", "mte3", depth)
        self.work = [self.builder.claim("ub", dtype.nbytes(self.tile)) for dtype in work]

    def _cut(self) -> int:
        """Set the size of a tile; returns how many are in the buffer at a time."""
        widest = max(dtype.bits for dtype in (*self.inputs, self.output, *self.work_types))
        # What is needed at a time: the inputs and the output, and one more while both are cast.
        tensors = len(self.inputs) + 1 + (len(self.work_types) > 0)
        room = self.builder.room_bytes("ub") // tensors * 8 // widest
        share = self.shares[0][1]
        if share <= min(room, LIMITS[widest]):
            self.tile = share
            return 1
        most = min(room // 2, LIMITS[widest]) // TILE * TILE
        self.tile = align_up(ceil_div(share, ceil_div(share, most)), TILE)
        return 2

    def kernel(self, body: Body) -> Kernel:
        """Each tile by *body*."""
        count = self.count
        programs: dict[int, Program] = {}
        blocks = []
        for core, (start, width) in enumerate(self.shares):
            if width not in programs:
                programs[width] = self._program(width, body)
            bound = bindings(*(tensor[:, start:] for tensor in self._tensors(count)))
            blocks.append(Block(core, self.kind, programs[width], bound))
        specs = {x.name: TensorSpec((count,), x.dtype.name) for x in self._tensors(count)}
        outputs = {"y": specs.pop("y")}
        return Kernel(self.name, tuple(blocks), specs, outputs)

    def _tensors(self, count: int) -> list[GmView]:
        """x1, x2 and so on, and y, *count* elements of each."""
        names = [f"x{index + 1}" for index in range(len(self.inputs))]
        dtypes = zip([*names, "y"], [*self.inputs, self.output], strict=True)
        return [GmView.vector(name, dtype, count) for name, dtype in dtypes]

    def _program(self, width: int, body: Body) -> Program:
        for start, count in pieces(width, self.tile):
            tiles = (tensor[:, start : start + count] for tensor in self._tensors(width))
            repeat(self.builder, self._tile, body, *tiles)
        return self.builder.build()

    def _tile(self, body: Body, *tensors: GmView) -> None:
        """Inputs and output `(count,)`; all loads are issued before the first is awaited."""
        *views, output = tensors
        count = output.columns
        for view, queue in zip(views, self.queues, strict=True):
            slot = queue.alloc()
            fill(self.builder, slot, view)
            queue.enque(slot)
        filled = [queue.deque() for queue in self.queues]
        out = self.out.alloc()
        inputs = [slot.of(dtype, count) for slot, dtype in zip(filled, self.inputs, strict=True)]
        work = [
            slot.of(dtype, count) for slot, dtype in zip(self.work, self.work_types, strict=True)
        ]
        body(inputs, out.of(self.output, count), work)
        for queue, slot in zip(self.queues, filled, strict=True):
            queue.free(slot)
        store(self.builder, self.out, out, output)


def _in_order(count: int, parts: int) -> list[tuple[int, int]]:
    """Shares of the same size, the last one smaller."""
    each = align_up(ceil_div(count, parts), SHARE)
    return [(start, min(each, count - start)) for start in range(0, count, each)]
