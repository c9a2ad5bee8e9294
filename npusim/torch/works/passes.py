"""Kernels that make several passes over rows: norms, reductions of any type, and counts.

Cores have even shares of the rows. A tile has as many rows as fit, and each pass runs its
instructions on the tile. If a pass reduces, each row is folded onto one repeat, and one instruction
reduces all repeats. A row that does not fit is loaded again for each pass, piece by piece, by one
core. The scalar results of rows go through the scalar unit if the vendor's kernel reads them there.

CANN 8.1.RC1, dsl/unify_schedule/vector, norm/norm_tilingcase.py, and the tiling library of 2022,
norm.cc and reduce_tiling_v3.cc. Order and number of instructions are assumed, because the source of
the generator is closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast, get_args

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, UINT8
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import FLOATS_PER_REPEAT, BinaryOp, Local, Unary, UnaryOp
from npusim.kernel import Binding, GmView, GmViews, Kernel, Step, VectorCore
from npusim.torch.works.work import INPUT, OUTPUT, Work, by_bits, kernel_of, room_bytes

__all__ = ["Pass", "RowPasses"]

MOST_ROWS = 64
"""Most rows of a tile: one instruction reduces this many repeats (assumed)."""
NUMBER = "number"
"""The register for a scalar result."""
_UNARY = get_args(UnaryOp)


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over a row."""

    steps: tuple[str, ...] = ()
    """Instructions on each element."""
    reduces: bool = True
    by_scalar: bool = False
    """Whether the scalar result goes through the scalar unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPasses(Work):
    """*passes* over *rows* rows of *columns* elements of *bits*."""

    on_inference = False
    rows: int
    columns: int
    bits: int
    passes: tuple[Pass, ...]
    others: tuple[int, ...] = ()
    """Element bits of further operands with as many rows."""
    parameters: tuple[int, ...] = ()
    """Element bits of further operands with a single row, shared by all rows."""
    stores: tuple[int, ...] = ()
    """Element bits of the results that have whole rows."""
    numbers: tuple[int, ...] = ()
    """Element bits of the results that have one element for each row."""

    @property
    def size(self) -> int:
        return self.rows * self.columns

    def write(self, spec: DeviceSpec) -> Kernel:
        core = VectorCore(self.kernel, spec)
        cores = min(len(spec.vector_cores), self.rows)
        share = ceil_div(self.rows, cores)
        row_bits = sum(self._own_bits) * 2 + self._lane_bits
        lanes = align_up(self.columns, FLOATS_PER_REPEAT)
        room = room_bytes(spec, MOST_ROWS * FLOATS_PER_REPEAT * 4 * 2) * 8
        fits = room // (lanes * row_bits)
        height = max(1, min(fits, share, MOST_ROWS))
        width = lanes if fits else align_down(room // row_bits, FLOATS_PER_REPEAT)
        tiles = _Tiles(core, self, height, width)
        bound = {name: Binding(name) for name in tiles.names}
        steps = tiles.whole(share, height) if fits else tiles.pieces(share, width)
        blocks = core.launch(*steps, begin=tiles.begin, bound=lambda _: bound)
        size = self.rows * self.columns
        inputs = [(size, bits) for bits in (self.bits, *self.others)]
        inputs += [(self.columns, bits) for bits in self.parameters]
        outputs = [*((size, bits) for bits in self.stores)]
        outputs += [(self.rows, bits) for bits in self.numbers]
        return kernel_of(self.kernel, blocks, inputs, outputs)

    @property
    def _own_bits(self) -> tuple[int, ...]:
        return self.bits, *self.others, *self.parameters, *self.stores

    @property
    def _lane_bits(self) -> int:
        """Bits of the temporaries of an element: 32, or a pair of 32 for 64 bits, and a float16."""
        return (64 if 64 in self._own_bits else 32) + 16


class _Tiles:
    """The buffers and the stages of a core."""

    def __init__(self, core: VectorCore, work: RowPasses, height: int, width: int) -> None:
        self.core, self.work, self.width = core, work, width
        count = height * width
        self.pair = 2 if 64 in work._own_bits else 1
        self.loaded = core.vecin(by_bits(work.bits), count, 2)
        self.others = [core.vecin(by_bits(bits), count) for bits in work.others]
        self.parameters = [core.vecin(by_bits(bits), width, 2) for bits in work.parameters]
        self.stored = [core.vecout(by_bits(bits), count, 2) for bits in work.stores]
        self.numbers = [core.vecout(by_bits(bits), MOST_ROWS) for bits in work.numbers]
        self.values = core.tile(FLOAT32, count * self.pair)
        self.half = core.tile(FLOAT16, count)
        self.folded = core.tile(FLOAT32, height * FLOATS_PER_REPEAT)
        self.found = core.tile(FLOAT32, MOST_ROWS * 2)
        core.claim_tails()
        inputs = 1 + len(work.others) + len(work.parameters)
        outputs = len(work.stores) + len(work.numbers)
        self.names = [f"{INPUT}{place}" for place in range(inputs)]
        self.names += [f"{OUTPUT}{place}" for place in range(outputs)]

    def begin(self) -> None:
        """Clear the upper halves of 64-bit results, and the padding between rows, which is cast
        together with the rows."""
        core = self.core
        core.duplicate(self.found, 0.0)
        if self.work.columns < self.width and self.loaded.dtype in (UINT8, FLOAT16):
            for slot in self.loaded.queue.slots:
                words = slot.of(FLOAT16, slot.nbytes // FLOAT16.nbytes(1))
                core.duplicate(words, 0.0)
            core.barrier()

    def _matrix(self, place: int, bits: int) -> GmView:
        return GmView.of(f"{OUTPUT}{place}", by_bits(bits), self.work.rows, self.work.columns)

    def _others(self) -> list[GmView]:
        work = self.work
        return [
            GmView.of(f"{INPUT}{1 + place}", by_bits(bits), work.rows, work.columns)
            for place, bits in enumerate(work.others)
        ]

    def _shared(self) -> list[GmView]:
        work = self.work
        return [
            GmView.vector(f"{INPUT}{1 + len(work.others) + place}", by_bits(bits), work.columns)
            for place, bits in enumerate(work.parameters)
        ]

    def _of_rows(self) -> list[GmView]:
        """The results that have one element for each row."""
        first = len(self.work.stores)
        return [
            GmView.vector(f"{OUTPUT}{first + place}", by_bits(bits), self.work.rows)
            for place, bits in enumerate(self.work.numbers)
        ]

    def whole(self, share: int, height: int) -> list[Step]:
        """Tiles of *height* rows."""
        work = self.work
        starts = [
            np.arange(x, min(x + share, work.rows), height) for x in range(0, work.rows, share)
        ]
        top, core = np.concatenate(starts), np.repeat(range(len(starts)), [*map(len, starts)])
        rows = np.minimum(height, np.minimum((core + 1) * share, work.rows) - top)
        x = GmView.of(f"{INPUT}0", by_bits(work.bits), work.rows, work.columns)
        stored = [self._matrix(*each) for each in enumerate(work.stores)]
        matrices, shared = [x, *self._others(), *stored], self._shared()
        views = [GmViews.of(view, top, 0, rows, work.columns) for view in matrices]
        views += [GmViews.of(view, 0, 0 * top, 1, work.columns) for view in shared]
        views += [GmViews.of(view, 0, top, 1, rows) for view in self._of_rows()]
        return [Step(self._tile, tuple(views), core)]

    def _tile(self, x: GmView, *views: GmView) -> None:
        work, rows = self.work, x.rows
        others, rest = views[: len(work.others)], views[len(work.others) :]
        outputs, rest = rest[: len(work.stores)], rest[len(work.stores) :]
        self._load(x, others, rest[: len(work.parameters)])
        for each in work.passes:
            self._go(each, rows, self.width)
        self._store(outputs, rows)
        self._finish(rows, rest[len(work.parameters) :])

    def pieces(self, share: int, width: int) -> list[Step]:
        """Rows one after the other: each pass goes over all pieces of *width*."""
        work, steps = self.work, list[Step]()
        count = ceil_div(work.columns, width)
        row, piece = (each.ravel() for each in np.mgrid[0 : work.rows, 0:count])
        x = GmView.of(f"{INPUT}0", by_bits(work.bits), work.rows, work.columns)
        turns = len(work.passes) + 1
        for number, each in enumerate(work.passes):
            is_last = number == len(work.passes) - 1
            stored = [self._matrix(*one) for one in enumerate(work.stores) if is_last]
            matrices, shared = [x, *self._others(), *stored], self._shared() if is_last else []
            views = [GmViews.of(view, row, piece * width, 1, width) for view in matrices]
            views += [GmViews.of(view, 0, piece * width, 1, width) for view in shared]
            order = (row * turns + number) * count + piece
            steps.append(Step(_Piece(self, each), tuple(views), row // share, order))
        rows = np.arange(work.rows)
        if work.numbers:
            views = [GmViews.of(view, 0, rows, 1, 1) for view in self._of_rows()]
            order = (rows * turns + turns - 1) * count
            steps.append(Step(self._finish_row, tuple(views), rows // share, order))
        return steps

    def go(self, each: Pass, x: GmView, views: tuple[GmView, ...]) -> None:
        """Run one pass over a piece of a row; the last pass has results and parameters."""
        others, rest = views[: len(self.others)], views[len(self.others) :]
        count = len(self.stored) if rest else 0
        outputs, parameters = rest[:count], rest[count:]
        self._load(x, others, parameters)
        self._go(each, 1, self.width)
        self._store(outputs, 1)

    # ---- parts ----

    def _load(self, x: GmView, others: tuple[GmView, ...], parameters: tuple[GmView, ...]) -> None:
        core, dtype = self.core, by_bits(self.work.bits)
        pitch = self.width if x.rows > 1 else None
        for queue, view in zip(self.parameters, parameters, strict=False):
            queue.free(core.load(queue, view))
        for queue, view in zip(self.others, others, strict=True):
            queue.free(core.load(queue, view, pitch))
        loaded, count = core.load(self.loaded, x, pitch), x.rows * self.width
        core.duplicate(self.values[: count * self.pair], 0.0)
        taken = loaded[: (x.rows - 1) * self.width + x.columns]
        if dtype is UINT8:
            core.cast(self.half[: taken.count], taken, "none")
            core.cast(self.values[: taken.count], self.half[: taken.count], "none")
        elif dtype is FLOAT16:
            core.cast(self.values[: taken.count], taken, "none")
        self.loaded.free(loaded)

    def _go(self, each: Pass, rows: int, width: int) -> None:
        """Run pass *each* on the loaded rows."""
        core, values = self.core, self.values[: rows * width * self.pair]
        for step in each.steps:
            if step in _UNARY:
                core.step(Unary(cast(UnaryOp, step), values, values))
            else:
                core.apply(cast(BinaryOp, step), values, values, values)
        if not each.reduces:
            return
        found, folded = self.found[:rows], self.folded[: rows * FLOATS_PER_REPEAT]
        core.duplicate(folded, 0.0)
        for row in range(rows):
            part = values[row * width * self.pair : (row + 1) * width * self.pair]
            repeat = folded[row * FLOATS_PER_REPEAT : (row + 1) * FLOATS_PER_REPEAT]
            if width > FLOATS_PER_REPEAT:
                core.fold("add", repeat, part)
        core.whole_reduce("sum", found, folded)
        for row in range(rows if each.by_scalar else 0):
            core.sync("vector", "scalar")
            core.get_value(NUMBER, found[row : row + 1])
            core.alu("add", NUMBER, NUMBER, 1)
            core.sync("scalar", "vector")

    def _store(self, outputs: tuple[GmView, ...], rows: int) -> None:
        core = self.core
        for queue, view in zip(self.stored, outputs, strict=False):
            out = queue.alloc()
            self._give(out[: (rows - 1) * self.width + view.columns])
            core.store(queue, out, view, self.width if rows > 1 else None)

    def _finish_row(self, *numbers: GmView) -> None:
        self._finish(1, numbers)

    def _finish(self, rows: int, numbers: tuple[GmView, ...]) -> None:
        for queue, view in zip(self.numbers, numbers, strict=True):
            out = queue.alloc()
            self._give(out[:rows], self.found)
            self.core.store(queue, out, view)

    def _give(self, dst: Local, values: Local | None = None) -> None:
        """Cast the computed values to the type of *dst*."""
        core, dtype, values = self.core, dst.dtype, values or self.values
        if dtype is UINT8:
            core.cast(self.half[: dst.count], values[: dst.count])
            core.cast(dst, self.half[: dst.count], "trunc")
        elif dtype is FLOAT16:
            core.cast(dst, values[: dst.count])
        else:
            lanes = dst.nbytes // 4
            core.copy(dst.as_dtype(INT32, lanes), values.as_dtype(INT32, lanes))


@dataclass(frozen=True)
class _Piece:
    """The stage of a piece of a row in one pass."""

    tiles: _Tiles
    which: Pass

    def __call__(self, x: GmView, *views: GmView) -> None:
        self.tiles.go(self.which, x, views)
