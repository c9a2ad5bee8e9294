"""The programs of elementwise kernels: a run of elements, or tiles of rows, step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import DType
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import BLOCK_BYTES, REPEAT_BYTES, Broadcast, Cast, Local, Register
from npusim.kernel import Binding, Block, GmView, GmViews, TileQueue, VectorCore
from npusim.kernel import Step as LaunchStep
from npusim.kernel.rectangles import rectangles
from npusim.ops.families.elementwise.chain import Step, Value
from npusim.ops.families.elementwise.contract import Problem
from npusim.ops.families.elementwise.tiling import (
    BRCB_LANES,
    LEAST_ELEMENTS,
    Plan,
    Steps,
    block_elements,
    steps_of,
)


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Tiles of the operands and of the result, assigned to the cores in order."""
    core = VectorCore(p.name, spec)
    tiles = Tiles(core, p, plan)
    if plan.share:
        parts = rectangles(1, p.output.size, (1, plan.share), plan.tile_columns)
        runs = [x for x, extent in zip(p.inputs, p.extents, strict=True) if extent == "tile"]
        vectors = [GmView.vector(x.name, x.element, p.output.size) for x in runs]
        vectors.append(GmView.vector("output", p.output.element, p.output.size))
        step = LaunchStep(tiles.tile, tuple(map(parts.views, vectors)), parts.core, parts.order)
        return core.launch(step, begin=tiles.begin)
    views = _row_tiles(p, plan)
    numbers = np.arange(len(views[0])) // plan.tiles_per_core
    bound = {name: Binding(name) for name in (*(x.name for x in p.inputs), "output")}
    step = LaunchStep(tiles.tile, views, numbers)
    return core.launch(step, begin=tiles.begin, bound=lambda _: bound)


def _row_tiles(p: Problem, plan: Plan) -> tuple[GmViews, ...]:
    """Tiles in order: views of each operand that is not a single number, then of the result."""
    sizes = [axis.size for axis in p.axes]
    steps = [1] * (len(sizes) - 2) + [plan.tile_rows, plan.tile_columns]
    grid = [ceil_div(size, step) for size, step in zip(sizes, steps, strict=True)]
    places = np.unravel_index(np.arange(np.prod(grid)), grid)
    first = [place * step for place, step in zip(places, steps, strict=True)]
    rows = np.minimum(plan.tile_rows, sizes[-2] - first[-2])
    columns = np.minimum(plan.tile_columns, sizes[-1] - first[-1])
    found = []
    for index, extent in enumerate((*p.extents, "tile")):
        if extent == "number":
            continue
        is_output = index == len(p.inputs)
        element = p.output.element if is_output else p.inputs[index].element
        name = "output" if is_output else p.inputs[index].name
        strides = _strides(p, index)
        offset = np.array(first).T @ np.array(strides) * element.bits // 8
        one = np.ones_like(rows)
        height, width = {"tile": (rows, columns), "row": (one, columns), "column": (one, rows)}[
            extent
        ]
        pitch = strides[-2] if extent == "tile" else 0
        found.append(GmViews(name, element, height, width, pitch, offset))
    return tuple(found)


def _strides(p: Problem, index: int) -> list[int]:
    """Strides along each axis, in elements, of operand *index* or of the result after them."""
    strides, step = [], 1
    for axis in reversed(p.axes):
        has = index == len(p.inputs) or axis.has[index]
        strides.append(step if has else 0)
        step *= axis.size if has else 1
    return strides[::-1]


class Tiles:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p = core, p
        self.steps = steps = steps_of(core.spec, p)
        room = Size(steps, plan.tile_rows, plan.tile_columns)
        self.queues = {
            index: core.vecin(x.dtype, room.elements(x), plan.depth)
            for index, x in enumerate(steps.operands)
            if x.extent != "number"
        }
        self.out = core.vecout(steps.output, room.count, plan.depth)
        self.work = [core.tile(x.dtype, room.elements(x)) for x in steps.work]
        self.constants = [core.tile(x.dtype, room.elements(x)) for x, _ in steps.constants]
        columns = {x for step in steps.steps for x in step.operands if x.extent == "column"}
        blocks = align_up(plan.tile_rows, BRCB_LANES)
        self.blocks = {
            x: core.tile(x.dtype, blocks * block_elements(x.dtype))
            for x in sorted(columns, key=lambda x: x.number)
        }
        self.numbers = [
            (GmView.vector(x.name, x.element, 1), self._number_queue(x.element, value.dtype))
            for x, value in zip(p.inputs, steps.operands, strict=True)
            if value.extent == "number"
        ]
        self.widened = core.claim("ub", BLOCK_BYTES) if self.numbers else None
        core.claim_tails()

    def _number_queue(self, dtype: DType, target: DType) -> TileQueue:
        reader: Pipe = "scalar" if dtype is target else "vector"
        return self.core.tiles(dtype, block_elements(dtype), "mte2", reader)

    def begin(self) -> None:
        """Load single numbers into their registers, and fill constants."""
        dtypes = [x.dtype for x in self.steps.operands if x.extent == "number"]
        for (view, queue), dtype in zip(self.numbers, dtypes, strict=True):
            self._take_number(view, queue, dtype)
        for local, (_, number) in zip(self.constants, self.steps.constants, strict=True):
            self.core.duplicate(local, number)

    def _take_number(self, view: GmView, queue: TileQueue, dtype: DType) -> None:
        """Load the single number of *view* into the register of its name, as *dtype*."""
        core, loaded = self.core, self.core.load(queue, view)
        number = loaded[:1]
        if view.dtype is not dtype:
            assert self.widened is not None
            number = self.widened.of(dtype, 1)
            core.emit(Cast(number, loaded[:1]))
            core.sync("vector", "scalar")
        core.get_value(view.name, number)
        queue.free(loaded)

    def tile(self, *views: GmView) -> None:
        """Process a view of each operand that is not a single number, then of the result."""
        *inputs, output = views
        size = Size(self.steps, output.rows, output.columns)
        for view, queue in zip(inputs, self.queues.values(), strict=True):
            self.core.copy_in(queue, view, size.pitch if view.rows > 1 else None)
        loaded = {index: queue.deque() for index, queue in self.queues.items()}
        out = self.out.alloc()
        TileWriter(self, size, loaded, out).write()
        for index, tile in loaded.items():
            self.queues[index].free(tile)
        self.core.store(self.out, out, output, size.pitch if output.rows > 1 else None)


@dataclass(frozen=True, slots=True)
class Size:
    """A tile in the buffer."""

    steps: Steps
    rows: int
    columns: int

    @property
    def pitch(self) -> int:
        """Elements from row to row."""
        return self.steps.pitch(self.columns) if self.rows > 1 else self.columns

    @property
    def count(self) -> int:
        """Elements of instructions on the whole tile, including padding."""
        return align_up(self.rows * self.pitch, self.steps.whole)

    def elements(self, x: Value) -> int:
        """Elements of an instruction on *x*."""
        if x.extent == "tile":
            return self.count // 8 if x.is_mask else self.count
        return align_up(self.columns if x.extent == "row" else self.rows, BRCB_LANES)


class TileWriter:
    """Writes the vector micro-ops of one tile."""

    def __init__(self, tiles: Tiles, size: Size, loaded: dict[int, Local], out: Local) -> None:
        self.tiles, self.size, self.loaded, self.out = tiles, size, loaded, out
        self.core, self.steps = tiles.core, tiles.steps
        self.read: set[object] = set()
        self.written: set[object] = set()
        """Buffers that have been accessed since the last barrier."""

    def write(self) -> None:
        """Write all steps, with a barrier before each that depends on an earlier one."""
        if self.steps.work or self.tiles.blocks:
            # The buffers that this tile writes may still be read for the previous one.
            self.core.barrier("vector")
        spread: set[Value] = set()
        for step in self.steps.steps:
            by_row = step.result.extent == "tile" and any(
                x.extent in ("row", "column") for x in step.operands
            )
            for x in dict.fromkeys(step.operands) if by_row else ():
                if x.extent == "column" and x not in spread:
                    self._spread(x)
                    spread.add(x)
            touched = [self._buffer(x, by_row) for x in step.operands]
            self._order(touched, self.steps.places[step.result])
            if by_row:
                self._by_row(step)
            else:
                operands = [self._local(x) for x in step.operands]
                self.core.emit(step.make(self._local(step.result), *operands))

    def _buffer(self, x: Value, by_row: bool) -> object:
        return ("blocks", x) if by_row and x.extent == "column" else self.steps.places[x]

    def _order(self, read: list[object], written: object) -> None:
        if self.written & {*read, written} or written in self.read:
            self.core.barrier("vector")
            self.read, self.written = set(), set()
        self.read.update(read)
        self.written.add(written)

    def _spread(self, x: Value) -> None:
        """Broadcast each number of *x* to a block."""
        self._order([self.steps.places[x]], ("blocks", x))
        count = align_up(self.size.rows, BRCB_LANES)
        blocks = self.tiles.blocks[x][: count * block_elements(x.dtype)]
        src = self._local(x)
        assert isinstance(src, Local)
        self.core.emit(Broadcast(blocks, src))

    def _local(self, x: Value) -> Local | Register:
        """The whole of *x*; a single number is in the register of its name."""
        place, count = self.steps.places[x], self.size.elements(x)
        if x.extent == "number":
            return self.tiles.p.inputs[place.index].name
        if place.kind == "operand":
            return self.loaded[place.index][:count]
        if place.kind == "constant":
            return self.tiles.constants[place.index][:count]
        tile = self.out if place.kind == "result" else self.tiles.work[place.index]
        return tile.as_dtype(x.dtype, count)

    def _by_row(self, step: Step) -> None:
        """One micro-op per row; two, if numbers per row meet columns that are no full repeats."""
        # The padding of a row was loaded too, as zeros.
        columns = align_up(self.size.columns, LEAST_ELEMENTS)
        dtype = step.result.dtype
        parts = [(0, columns)]
        if any(x.extent == "column" for x in step.operands):
            lanes = REPEAT_BYTES * 8 // dtype.bits
            whole = columns // lanes * lanes
            rest = align_up(columns - whole, block_elements(dtype))
            parts = [part for part in ((0, whole), (whole, rest)) if part[1]]
        for row in range(self.size.rows):
            for start, count in parts:
                operands = [self._of_row(x, row, start, count) for x in step.operands]
                dst = self._of_row(step.result, row, start, count)
                self.core.emit(step.make(dst, *operands))

    def _of_row(self, x: Value, row: int, start: int, count: int) -> Local | Register:
        """*count* elements of row number *row* of *x*, from column *start* on."""
        if x.extent == "column":
            return self.tiles.blocks[x][row * block_elements(x.dtype) :].again(count)
        local = self._local(x)
        if isinstance(local, str):
            return local
        first = start + (row * self.size.pitch if x.extent == "tile" else 0)
        return Local("ub", local.offset_bytes + x.dtype.nbytes(first), x.dtype, count)
