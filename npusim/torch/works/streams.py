"""Kernels that make one pass over elements: elementwise operations of all types.

Cores and tiles follow :mod:`npusim.ops.families.elementwise.tiling`: one core for each 4 KiB of the
widest type, up to all cores; even shares in multiples of 512 elements; tiles as large as possible
with double buffers for all tensors. A step is an instruction on a whole tile. Bytes are computed as
float16, and 64-bit integers as pairs of 32 bits, with one instruction on each (assumed; the kernels
were not read).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, get_args

from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, UINT8
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BinaryOp, Local, Unary, UnaryOp
from npusim.kernel import GmView, Kernel, Step, VectorCore
from npusim.kernel.rectangles import rectangles
from npusim.ops.families.elementwise.tiling import LEAST_BYTES, SHARE, TILE
from npusim.torch.works.work import AHEAD, INPUT, OUTPUT, Work, by_bits, kernel_of, room_bytes

__all__ = ["MASK", "Stream"]

MASK = "mask"
"""A step that compares, and selects by the result."""
MOST_AHEAD = 3
"""Most tensors that can be double buffered; for more there are not enough flags."""
_UNARY = get_args(UnaryOp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream(Work):
    """*elements* elements; *loads* and *stores* have the element bits of the tensors read and
    written."""

    elements: int
    loads: tuple[int, ...]
    stores: tuple[int, ...]
    steps: tuple[str, ...] = ()
    """Names of instructions on each element, in order."""

    @property
    def size(self) -> int:
        return self.elements

    def write(self, spec: DeviceSpec) -> Kernel:
        core, count = VectorCore(self.kernel, spec), self.elements
        widest = max((*self.loads, *self.stores))
        cores = min(len(spec.vector_cores), ceil_div(count * widest // 8, LEAST_BYTES)) or 1
        share = align_up(ceil_div(count, cores), SHARE)
        tile = _Tile(core, self, share)
        parts = rectangles(1, count, (1, share), tile.columns)
        views = [
            parts.views(GmView.vector(f"{name}{place}", by_bits(bits), count))
            for name, sizes in ((INPUT, self.loads), (OUTPUT, self.stores))
            for place, bits in enumerate(sizes)
        ]
        blocks = core.launch(
            Step(tile.run, tuple(views), parts.core, parts.order), begin=tile.begin
        )
        inputs, outputs = ([(count, bits) for bits in x] for x in (self.loads, self.stores))
        return kernel_of(self.kernel, blocks, inputs, outputs)


class _Tile:
    """The buffers of a core, and the steps of a tile."""

    def __init__(self, core: VectorCore, work: Stream, share: int) -> None:
        self.core, self.work = core, work
        self.lane_bits = 64 if 64 in (*work.loads, *work.stores) else 32
        tensors = max(len(work.loads), len(work.stores))
        depth = AHEAD if tensors <= MOST_AHEAD else 1
        queued = depth * (sum(work.loads) + sum(work.stores))
        # Temporaries: the values, their mask bits, and float16 for casts from and to bytes.
        bits_each = queued + self.lane_bits + self.lane_bits // 32 + 16
        room = room_bytes(core.spec) * 8 // bits_each
        self.columns = align_down(min(share, room - TILE), TILE)
        self.loaded = [core.vecin(by_bits(bits), self.columns, depth) for bits in work.loads]
        self.stored = [core.vecout(by_bits(bits), self.columns, depth) for bits in work.stores]
        lanes = self.columns * self.lane_bits // 32
        self.values, self.half = core.tile(FLOAT32, lanes), core.tile(FLOAT16, self.columns)
        self.bits = core.tile(UINT8, lanes // 8)
        core.claim_tails()

    def begin(self) -> None:
        """Initialise the temporaries with a number."""
        self.core.duplicate(self.values, 1.0)
        self.core.duplicate(self.half, 1.0)

    def run(self, *views: GmView) -> None:
        """Process a tile; *views* has the operands, then the results."""
        core, count = self.core, align_up(views[0].columns, TILE)
        inputs, outputs = views[: len(self.loaded)], views[len(self.loaded) :]
        for queue, view in zip(self.loaded, inputs, strict=True):
            core.copy_in(queue, view)
        for queue, view in zip(self.loaded, inputs, strict=True):
            loaded = queue.deque()
            self._take(loaded[: view.columns])
            queue.free(loaded)
        values = self.values[: count * self.lane_bits // 32]
        for step in self.work.steps:
            self._step(step, values)
        for queue, view in zip(self.stored, outputs, strict=True):
            out = queue.alloc()
            self._give(out[: view.columns])
            core.store(queue, out, view)

    def _take(self, src: Local) -> None:
        """Cast *src* to the temporaries; float32 and pairs are read in place."""
        core, dtype = self.core, src.dtype
        if dtype is UINT8:
            core.cast(self.half[: src.count], src, "none")
            core.cast(self.values[: src.count], self.half[: src.count], "none")
        elif dtype is FLOAT16:
            core.cast(self.values[: src.count], src, "none")

    def _give(self, dst: Local) -> None:
        """Cast the computed values to the type of *dst*."""
        core, dtype, values = self.core, dst.dtype, self.values[: dst.count]
        if dtype is UINT8:
            core.cast(self.half[: dst.count], values)
            core.cast(dst, self.half[: dst.count], "trunc")
        elif dtype is FLOAT16:
            core.cast(dst, values)
        else:
            lanes = dst.nbytes // 4
            core.copy(dst.as_dtype(INT32, lanes), self.values.as_dtype(INT32, lanes))

    def _step(self, step: str, values: Local) -> None:
        core = self.core
        if step == MASK:
            bits = self.bits[: values.count // 8]
            core.compare("gt", bits, values, values)
            core.select(values, bits, values, 0.0)
        elif step in _UNARY:
            core.step(Unary(cast(UnaryOp, step), values, values))
        else:
            core.apply(cast(BinaryOp, step), values, values, values)
