"""Elementwise kernels as the vendor's template cuts them: at least 4 KiB a core, double buffered.

The template (ops-math, design notes of the elementwise pattern): as many cores as there are
4 KiB of input, up to all of them; shares of whole 512 elements; tiles as large as the unified
buffer allows with every tensor in it twice, in whole 256 elements. The kernels that ship for A2
and A3 are closed; that they keep to it is inferred from their times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32, DType, RoundMode
from npusim.data.integers import align_up, ceil_div
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, Cast, Global, Local
from npusim.kernel.builder import Builder
from npusim.kernel.launch import Kernel
from npusim.kernel.program import Binding, Block, Program
from npusim.micro.shares import cores_of

__all__ = ["cast", "maximum"]

LEAST_BYTES = 4096
SHARE, TILE = 512, 256
"""Elements that the share of a core, and a tile, are multiples of."""
WIDE: dict[DType, tuple[DType, RoundMode]] = {INT8: (FLOAT16, "none"), BFLOAT16: (FLOAT32, "rint")}
"""Where nothing compares a type: what it is cast to, and how that is cast back."""

Body = Callable[[list[Local], Local, list[Local]], None]
"""Writes the micro-ops of a tile: inputs, output, work space."""


def cast(spec: DeviceSpec, count: int, src: DType, dst: DType, mode: RoundMode = "none") -> Kernel:
    """*count* elements of *src* become *dst*, in one micro-op a tile."""
    writing = _Writing("cast", spec, (src,), dst, ())

    def body(inputs: list[Local], output: Local, _: list[Local]) -> None:
        writing.builder.emit(Cast(output, inputs[0], mode))

    return writing.kernel(count, body)


def maximum(spec: DeviceSpec, count: int, dtype: DType) -> Kernel:
    """The larger of two elements each, *count* of them.

    bfloat16 is compared as float32, int8 as float16. Raises ValueError for types that neither they
    nor Max know.
    """
    if dtype not in (FLOAT16, FLOAT32, INT32, *WIDE):
        raise ValueError(
            f"elementwise.maximum: dtype must be one of float16, float32, int32, bfloat16, int8, "
            f"not {dtype.name}; cast it first"
        )
    work = (WIDE[dtype][0],) * 2 if dtype in WIDE else ()
    writing = _Writing("maximum", spec, (dtype, dtype), dtype, work)

    def body(inputs: list[Local], output: Local, wide: list[Local]) -> None:
        if not wide:
            writing.builder.emit(Binary("max", output, *inputs))
            return
        # The tile before may still be read from where this one writes.
        writing.builder.barrier("vector")
        for narrow, local in zip(inputs, wide, strict=True):
            writing.builder.emit(Cast(local, narrow))
        writing.builder.barrier("vector")
        writing.builder.emit(Binary("max", wide[0], *wide))
        writing.builder.barrier("vector")
        writing.builder.emit(Cast(output, wide[0], WIDE[dtype][1]))

    return writing.kernel(count, body)


class _Writing:
    """An elementwise kernel, while it is written."""

    def __init__(
        self,
        name: str,
        spec: DeviceSpec,
        inputs: Sequence[DType],
        output: DType,
        work: Sequence[DType],
    ) -> None:
        self.name, self.spec = name, spec
        self.kind, self.cores = cores_of(spec, "vector")
        self.inputs, self.output, self.work_types = inputs, output, work
        self.builder = Builder(name, spec.cores[self.kind], spec.sync)
        bits = 2 * sum(dtype.bits for dtype in (*inputs, output)) + sum(x.bits for x in work)
        self.tile = self.builder.room_bytes("ub") * 8 // bits // TILE * TILE
        self.queues = [
            self.builder.queue("ub", dtype.nbytes(self.tile), "mte2", "vector", 2)
            for dtype in inputs
        ]
        self.out = self.builder.queue("ub", output.nbytes(self.tile), "vector", "mte3", 2)
        self.work = [self.builder.claim("ub", dtype.nbytes(self.tile)) for dtype in work]

    def kernel(self, count: int, body: Body) -> Kernel:
        """*count* elements, each tile by *body*."""
        names = [f"x{index + 1}" for index in range(len(self.inputs))]
        parts = min(ceil_div(self.inputs[0].nbytes(count), LEAST_BYTES), self.cores)
        programs: dict[int, Program] = {}
        blocks = []
        for core, (start, width) in enumerate(_in_order(count, parts)):
            if width not in programs:
                programs[width] = self._program(names, width, body)
            bindings = {
                name: Binding(name, dtype.nbytes(start))
                for name, dtype in zip([*names, "y"], [*self.inputs, self.output], strict=True)
            }
            blocks.append(Block(core, self.kind, programs[width], bindings))
        inputs = {
            name: TensorSpec((count,), dtype.name)
            for name, dtype in zip(names, self.inputs, strict=True)
        }
        output = TensorSpec((count,), self.output.name)
        return Kernel(self.name, tuple(blocks), inputs, {"y": output})

    def _program(self, names: list[str], width: int, body: Body) -> Program:
        for start in range(0, width, self.tile):
            count = min(self.tile, width - start)
            shifts = {
                name: dtype.nbytes(start)
                for name, dtype in zip([*names, "y"], [*self.inputs, self.output], strict=True)
            }
            self.builder.call(count, shifts, partial(self._tile, names, count, body))
        return self.builder.build()

    def _tile(self, names: list[str], count: int, body: Body) -> None:
        for name, dtype, queue in zip(names, self.inputs, self.queues, strict=True):
            slot = queue.alloc()
            self.builder.load(slot.of(dtype, count), Global(name, 0, dtype.nbytes(count)))
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
        self.out.enque(out)
        out = self.out.deque()
        nbytes = self.output.nbytes(count)
        self.builder.store(Global("y", 0, nbytes), out.of(self.output, count))
        self.out.free(out)


def _in_order(count: int, parts: int) -> list[tuple[int, int]]:
    """Shares of the same size, the last one smaller."""
    each = align_up(ceil_div(count, parts), SHARE)
    return [(start, min(each, count - start)) for start in range(0, count, each)]
