"""Kernels with serial dependencies: Cumsum, NonZero and Range.

A running sum along the last axis adds sixteen rows at a time, transposed so that each lane is a
row; along another axis it adds whole rows (cum_computer.py of CANN 8.1.RC1). In NonZero all cores
find hits and then synchronise; after that, core 0 alone moves them to the result (non_zero.py
there). Assumed: the distribution of the hits, and that lines which do not fit are split.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, UINT8
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import FLOATS_PER_BLOCK, FLOATS_PER_REPEAT
from npusim.kernel import Binding, GmView, GmViews, Kernel, Step, VectorCore, sync_all
from npusim.kernel.rectangles import rectangles
from npusim.torch.works.work import INPUT, OUTPUT, Work, by_bits, kernel_of, room_bytes

__all__ = ["Compaction", "RunningSum"]

LEAST, WHOLE = 32, 256
"""Least elements of a core, and the elements of one comparison, for any type."""
LANES = 16
"""Rows that are summed together along the last axis."""
PLACES = "places"
"""The workspace for the indices of hits."""
READY = 0
"""The flag on which all cores synchronise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSum(Work):
    """*outer* matrices of *lines* rows of *inner* elements, each row added to the next."""

    on_inference = False
    outer: int
    lines: int
    inner: int
    bits: int

    @property
    def size(self) -> int:
        return self.outer * self.lines * self.inner

    def write(self, spec: DeviceSpec) -> Kernel:
        core, dtype = VectorCore(self.kernel, spec), by_bits(self.bits)
        is_turned = self.inner == 1
        # A line is one element of each of sixteen rows.
        groups = ceil_div(self.outer, LANES) if is_turned else self.outer
        width = LANES if is_turned else align_up(self.inner, FLOATS_PER_BLOCK)
        most = align_down(room_bytes(spec) // (3 * dtype.nbytes(1) + 8), FLOATS_PER_REPEAT)
        held = min(align_up(self.lines * width, FLOATS_PER_REPEAT), most)
        loaded, stored = core.vecin(dtype, held), core.vecout(dtype, held)
        values = core.tile(FLOAT32, held)
        core.claim_tails()

        def tile(x: GmView, y: GmView) -> None:
            source, out, count = core.load(loaded, x), stored.alloc(), x.columns
            core.duplicate(values, 0.0)
            if dtype.bits < 32:
                core.cast(values[:count], source[:count], "none")
            for start in range(width, count - width + 1, width):
                line = values[start : start + width]
                core.add(line, line, values[start - width : start])
            if is_turned:
                # Transpose, and transpose back; a transposition takes sixteen lines.
                core.copy(values[:count], values[:count])
                core.copy(values[:count], values[:count])
            loaded.free(source)
            if dtype.bits < 32:
                core.cast(out[:count], values[:count])
            else:
                core.copy(out[:count].as_dtype(INT32, count), values[:count].as_dtype(INT32))
            core.store(stored, out, y)

        total = groups * self.lines * width
        cores = min(len(spec.vector_cores), groups)
        share = ceil_div(groups, cores) * self.lines * width
        step = max(width, held // width * width)
        parts = rectangles(1, total, (1, share), step)
        views = [
            parts.views(GmView.vector(name, dtype, total)) for name in (f"{INPUT}0", f"{OUTPUT}0")
        ]
        blocks = core.launch(Step(tile, tuple(views), parts.core, parts.order))
        return kernel_of(self.kernel, blocks, [(total, self.bits)], [(total, self.bits)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction(Work):
    """The indices of *hits* hits among *elements* elements of *bits*, with *axes* values each."""

    on_inference = False
    elements: int
    bits: int
    hits: int
    axes: int

    @property
    def size(self) -> int:
        return self.elements

    def write(self, spec: DeviceSpec) -> Kernel:
        core = VectorCore(self.kernel, spec)
        finding = _Finding(core, self)
        cores = min(len(spec.vector_cores), ceil_div(self.elements, LEAST))
        share = align_up(ceil_div(self.elements, cores), LEAST)
        parts = rectangles(1, self.elements, (1, share), finding.held)
        source = GmView.vector(f"{INPUT}0", by_bits(self.bits), self.elements)
        size = max(1, self.hits * self.axes)
        stored = max(self.elements, size)
        places = GmView.vector(PLACES, INT32, stored)
        views = parts.views(source), parts.views(places)
        met = np.unique(parts.core)
        core.reset_buffers()
        moving = _Moving(core, self, met.size)
        reads = GmViews.of(places, 0, moving.start, 1, moving.count)
        result = GmView.vector(f"{OUTPUT}0", by_bits(64), size)
        writes = GmViews.of(result, 0, moving.start, 1, moving.count)
        alone = np.zeros(moving.start.size, np.int64)
        bound = {name: Binding(name) for name in (f"{INPUT}0", f"{OUTPUT}0", PLACES)}
        blocks = core.launch(
            Step(finding.find, views, parts.core, parts.order - parts.order.max() - 2),
            Step(finding.meet, (), met, 0 * met - 1),
            Step(moving.move, (reads, writes), alone, alone),
            bound=lambda _: bound,
        )
        inputs, outputs = [(self.elements, self.bits)], [(size, 64)]
        return kernel_of(self.kernel, blocks, inputs, outputs, {PLACES: INT32.nbytes(stored)})


class _Finding:
    """The buffers and the stages of a core that searches for hits."""

    def __init__(self, core: VectorCore, work: Compaction) -> None:
        self.core, self.axes, dtype = core, work.axes, by_bits(work.bits)
        # The loaded element, its value, two numbers for its index, half a value, and a mask bit.
        each_bytes = dtype.nbytes(1) + 3 * INT32.nbytes(1) + 2 + 1
        most = align_down(room_bytes(core.spec) // each_bytes - WHOLE, WHOLE)
        self.held = held = min(align_up(work.elements, WHOLE), most)
        self.loaded, self.found = core.vecin(dtype, held), core.vecout(INT32, held)
        self.values, self.ramp = core.tile(FLOAT32, held), core.tile(INT32, held)
        self.half, self.bits = core.tile(FLOAT16, held), core.tile(UINT8, held // 8)
        core.claim_tails()

    def find(self, x: GmView, places: GmView) -> None:
        """Compute the indices of non-zero elements, one axis after the other."""
        core, count = self.core, align_up(x.columns, WHOLE)
        source, values, ramp = core.load(self.loaded, x), self.values[:count], self.ramp[:count]
        core.duplicate(values, 0.0)
        if source.dtype is UINT8:
            core.cast(self.half[: x.columns], source[: x.columns], "none")
            core.cast(values[: x.columns], self.half[: x.columns], "none")
        elif source.dtype is FLOAT16:
            core.cast(values[: x.columns], source[: x.columns], "none")
        core.compare("ne", self.bits[: count // 8], values, 0.0)
        core.duplicate(ramp, 0)
        self.loaded.free(source)
        out = self.found.alloc()
        for _ in range(self.axes):
            core.add(ramp, ramp, 1)
            core.copy(out[:count], ramp)
        core.store(self.found, out[: x.columns], places)

    def meet(self) -> None:
        """Wait until all cores have found their hits."""
        self.core.end_stage()
        sync_all(self.core, "mte3", "mte2", READY)


class _Moving:
    """The buffers of core 0, which moves the hits of one core after the other."""

    def __init__(self, core: VectorCore, work: Compaction, cores: int) -> None:
        self.core = core
        size = max(1, work.hits * work.axes)
        room = align_down(room_bytes(core.spec) // (INT32.nbytes(1) + 8), FLOATS_PER_REPEAT)
        piece, each = min(align_up(size, FLOATS_PER_REPEAT), room), ceil_div(size, cores)
        self.taken = core.tiles(INT32, piece, "mte2", "vector")
        self.given = core.vecout(by_bits(64), piece)
        core.claim_tails()
        starts = [np.arange(x, min(x + each, size), piece) for x in range(0, size, each)]
        self.start = np.concatenate(starts)
        self.count = np.diff([*self.start.tolist(), size])

    def move(self, places: GmView, out: GmView) -> None:
        """Move some hits to the result, as 64-bit integers."""
        core, count = self.core, out.columns
        source, wide = core.load(self.taken, places), self.given.alloc()
        lanes = wide[:count].as_dtype(INT32, 2 * count)
        core.duplicate(lanes, 0)
        core.copy(lanes[:count], source[:count])
        self.taken.free(source)
        core.store(self.given, wide, out)
