"""Cores, tiles and programs of elementwise kernels.

Operands that all have the shape of the result are one run of elements. As many cores as there are
4 KiB of the first operand, up to all of them, take even shares of whole 512 elements, as in the
design notes of the vendor's elementwise template (ops-math). The tiles are those of its tiling
library (dengguojie/vue-element-admin@7d77ce32 ops/built-in/op_tiling/elewise_v3.cc, of 2022): the
unified buffer has room for all tensors that are needed at a time, each counted in the widest type;
a share that is larger than that comes in even tiles with every operand and the result in it twice.

Where an operand is broadcast, tiles are rows of the last two axes along which operands are
broadcast in different ways (broadcast_v3.cc there): filled up to whole blocks in the buffer, as
many as leave room for all tensors, a broadcast one counted as a whole one. They are dealt out in
order, the same number to each core but the last, and nothing is double buffered. How an operand is
broadcast inside the buffer was not read. Assumed: a row is one instruction, which takes a row as it
is, and a number a row from the block that Brcb made of it. A number for all is a scalar operand.

The kernels that ship for these chips are closed; that they keep to both is inferred from their
times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from npusim.data.dtypes import FLOAT16, DType
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    REPEAT_BYTES,
    Broadcast,
    Cast,
    Duplicate,
    Local,
    Register,
    ScalarLoad,
)
from npusim.kernel.builder import Builder
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Queue, Slot
from npusim.kernel.rows import Writer, fill, load, pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops import _protocol
from npusim.ops.families.elementwise.chain import Chain, Place, Step, Value, places
from npusim.ops.families.elementwise.contract import Problem

__all__ = ["Plan", "build", "tile"]

LEAST_BYTES = 4096
SHARE, TILE = 512, 128
"""Elements that the share of a core, and a tile of several, are multiples of."""
LIMITS = {8: 32767, 16: 32767, 32: 16383}
"""Bits of the widest type -> most elements of a tile of a run."""
BRCB_LANES = 8
"""Elements that Brcb takes at a time."""
WHOLE = 128
"""Elements of a repeat of 16 bits, which a comparison takes whole."""
LEAST_ELEMENTS = 8
"""Of a block of 32 bits: so many are loaded at least, the last ones zeros."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Tiles of `(rows, columns)`, dealt out to the cores."""

    tile_rows: int
    tile_columns: int
    tiles_per_core: int
    """Of a run of elements: those of a core's share, of which the last core may have fewer."""
    share: int
    """Elements of a run that a core takes; 0 where operands are broadcast."""
    depth: int
    """Buffers of each operand and of the result."""


# ---- steps ----


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a tile, and where their values are."""

    operands: tuple[Value, ...]
    steps: tuple[Step, ...]
    places: dict[Value, Place]
    work: tuple[Value, ...]
    constants: tuple[tuple[Value, float], ...]
    output: DType

    @property
    def widest_bits(self) -> int:
        """Of all tensors that are in the buffer."""
        tensors = [*self.operands, *self.work, *(x for x, _ in self.constants)]
        return max(*(x.dtype.bits for x in tensors if not x.is_mask), self.output.bits)

    @property
    def whole(self) -> int:
        """Elements that tiles are filled up to multiples of: repeats, if they are compared."""
        is_compared = any(step.result.is_mask for step in self.steps)
        return WHOLE if is_compared else LEAST_ELEMENTS

    def pitch(self, columns: int) -> int:
        """Elements from row to row: each starts at a block in every type."""
        dtypes = [*(x.dtype for x in self.operands), self.output]
        return align_up(columns, max(_lanes(dtype) for dtype in dtypes))

    @property
    def tensors(self) -> int:
        """Tiles of the widest type that the buffer must have room for."""
        bits = sum(x.dtype.bits for x in self.operands if x.extent != "number") + self.output.bits
        bits += sum(1 if x.is_mask else x.dtype.bits for x in self.work)
        bits += sum(x.dtype.bits for x, _ in self.constants)
        return ceil_div(bits, self.widest_bits)


def steps_of(spec: DeviceSpec, p: Problem) -> Steps:
    """What the kernel of *p* does with a tile."""
    chain = Chain(spec)
    # A number for all is widened once, on its way into its register.
    # Flags are compared in float16, whatever they choose from.
    targets = [FLOAT16 if x.name == "condition" else p.computed_in for x in p.inputs]
    operands = [
        chain.operand(target if extent == "number" else x.element, extent)
        for x, extent, target in zip(p.inputs, p.extents, targets, strict=True)
    ]
    values = [chain.cast(x, target) for x, target in zip(operands, targets, strict=True)]
    found = p.expression.write(chain, *values, *p.attributes)
    output = p.output.element
    found = found if p.expression.gives_bool else chain.cast(found, output)
    if not chain.steps or found.extent != "tile":
        chain.copy(found)
    where, work = places(chain, operands, output)
    kept = tuple(work), tuple(chain.constants)
    return Steps(tuple(operands), tuple(chain.steps), where, *kept, output)


# ---- tiling ----


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """A run of elements in even shares, or tiles of rows."""
    steps = steps_of(spec, p)
    kind = spec.vector_kinds[0]
    room = spec.cores[kind].usable_bytes("ub")
    if all(extent in ("tile", "number") for extent in p.extents):
        return _run(spec, p, steps, room)
    return _rows(spec, p, steps, room)


def _run(spec: DeviceSpec, p: Problem, steps: Steps, room: int) -> Plan:
    count = p.output.size
    widest, element = steps.widest_bits, p.inputs[0].element
    cores = min(ceil_div(element.nbytes(count), LEAST_BYTES), len(spec.vector_cores))
    share = align_up(ceil_div(count, cores), SHARE)
    most = room // steps.tensors * 8 // widest
    depth, width = 1, min(share, count)
    if width > min(most, LIMITS[widest]):
        depth = 2
        most = min(most // 2, LIMITS[widest]) // TILE * TILE
        width = align_up(ceil_div(width, ceil_div(width, most)), TILE)
    return Plan(
        block_dim=ceil_div(count, share),
        reads_tiling=False,
        tile_rows=1,
        tile_columns=width,
        tiles_per_core=ceil_div(min(share, count), width),
        share=share,
        depth=depth,
    )


def _rows(spec: DeviceSpec, p: Problem, steps: Steps, room: int) -> Plan:
    *outer, rows, columns = (axis.size for axis in p.axes)
    pitch, element_bytes = steps.pitch(columns), steps.tensors * steps.widest_bits // 8
    granule = spec.transfer.store_granule_bytes
    # What fills tiles up, and a tail that goes by itself where stores have a least size.
    slack = steps.whole * element_bytes + (granule if granule > 1 else 0)
    widest = align_down((room - slack) // element_bytes, steps.whole)
    width = min(pitch, widest)
    # A number a row, and the block that Brcb makes of it.
    beside = sum(BLOCK_BYTES + x.dtype.bits // 8 for x in steps.operands if x.extent == "column")
    tile_rows = max(1, min(rows, (room - slack) // (width * element_bytes + beside)))
    tiles = prod(outer) * ceil_div(rows, tile_rows) * ceil_div(columns, width)
    cores = len(spec.vector_cores)
    if p.output.element.nbytes(columns) < granule:
        # Such rows spill into the next ones when they are stored, so one core takes them all.
        cores = 1
    each = ceil_div(tiles, cores)
    return Plan(
        block_dim=ceil_div(tiles, each),
        reads_tiling=False,
        tile_rows=tile_rows,
        tile_columns=min(width, columns),
        tiles_per_core=each,
        share=0,
        depth=1,
    )


# ---- program ----


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores that do the same share their program."""
    return _run_blocks(spec, p, plan) if plan.share else _row_blocks(spec, p, plan)


def _run_blocks(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    kernel = Tiles(spec, p, plan)
    programs: dict[int, Program] = {}
    blocks: list[Block] = []
    count = p.output.size
    for start, width in pieces(count, plan.share):
        if width not in programs:
            tiles = (
                [view[:, first : first + size] for view in _vectors(p, width)]
                for first, size in pieces(width, plan.tile_columns)
            )
            programs[width] = kernel.program(tiles)
        here = [view[:, start:] for view in _vectors(p, count)]
        bound = bindings(*here, *kernel.number_views)
        blocks.append(Block(len(blocks), spec.vector_cores[len(blocks)], programs[width], bound))
    return tuple(blocks)


def _vectors(p: Problem, count: int) -> list[GmView]:
    """The operands that are a run of elements, and the result: *count* of each."""
    runs = [x for x, extent in zip(p.inputs, p.extents, strict=True) if extent == "tile"]
    found = [GmView.vector(x.name, x.element, count) for x in runs]
    return [*found, GmView.vector("output", p.output.element, count)]


def _row_blocks(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    kernel = Tiles(spec, p, plan)
    views = list(_row_tiles(p, plan))
    whole = [GmView.vector(x.name, x.element, x.spec.size) for x in p.inputs]
    bound = bindings(*whole, GmView.vector("output", p.output.element, p.output.size))
    return tuple(
        Block(
            core,
            spec.vector_cores[core],
            kernel.program(views[first : first + plan.tiles_per_core]),
            bound,
        )
        for core, first in enumerate(range(0, len(views), plan.tiles_per_core))
    )


def _row_tiles(p: Problem, plan: Plan) -> Iterator[list[GmView]]:
    """Tiles in order: a view of each operand that is none number for all, then of the result."""
    *outer, rows, columns = (axis.size for axis in p.axes)
    for above in product(*(range(size) for size in outer)):
        for row, height in pieces(rows, plan.tile_rows):
            for column, width in pieces(columns, plan.tile_columns):
                first, size = (*above, row, column), (height, width)
                yield [
                    _view(p, index, first, size)
                    for index, extent in enumerate((*p.extents, "tile"))
                    if extent != "number"
                ]


def _view(p: Problem, index: int, first: tuple[int, ...], size: tuple[int, int]) -> GmView:
    """What a tile, *size* from *first* on, has of operand *index*, or of the result behind them."""
    is_output = index == len(p.inputs)
    name, element = (
        ("output", p.output.element)
        if is_output
        else (p.inputs[index].name, p.inputs[index].element)
    )
    strides, step = [], 1
    for axis in reversed(p.axes):
        has = is_output or axis.has[index]
        strides.append(step if has else 0)
        step *= axis.size if has else 1
    strides.reverse()
    offset = element.nbytes(sum(a * b for a, b in zip(first, strides, strict=True)))
    extent = "tile" if is_output else p.extents[index]
    if extent == "tile":
        return GmView(name, element, *size, strides[-2], offset)
    return GmView(name, element, 1, size[1] if extent == "row" else size[0], 0, offset)


class Tiles:
    """The programs of the cores, while they are written."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p = spec, p
        self.steps = steps = steps_of(spec, p)
        core = spec.cores[spec.vector_kinds[0]]
        self.builder = builder = Builder(p.name, core, spec.sync)
        self.room = Size(steps, plan.tile_rows, plan.tile_columns)
        self.queues = {
            index: builder.queue("ub", self.room.nbytes(x), "mte2", "vector", plan.depth)
            for index, x in enumerate(steps.operands)
            if x.extent != "number"
        }
        out_bytes = steps.output.nbytes(self.room.count)
        self.out = builder.queue("ub", out_bytes, "vector", "mte3", plan.depth)
        self.work = [builder.claim("ub", self.room.nbytes(x)) for x in steps.work]
        self.constants = [
            builder.claim("ub", self.room.nbytes(x)).of(x.dtype, self.room.elements(x))
            for x, _ in steps.constants
        ]
        columns = {x for step in steps.steps for x in step.operands if x.extent == "column"}
        self.blocks = {
            x: builder.claim("ub", align_up(plan.tile_rows, BRCB_LANES) * BLOCK_BYTES)
            for x in sorted(columns, key=lambda x: x.number)
        }
        self.numbers = [
            (GmView.vector(x.name, x.element, 1), builder.queue("ub", BLOCK_BYTES, "mte2", reader))
            for x, value in zip(p.inputs, steps.operands, strict=True)
            if value.extent == "number"
            for reader in (("scalar",) if x.element is value.dtype else ("vector",))
        ]
        self.widened = builder.claim("ub", BLOCK_BYTES) if self.numbers else None
        self.writer = Writer(builder, spec)

    @property
    def number_views(self) -> list[GmView]:
        return [view for view, _ in self.numbers]

    def program(self, tiles: Iterable[list[GmView]]) -> Program:
        """*tiles* one after the other, each the views of its operands and of its result."""
        dtypes = [x.dtype for x in self.steps.operands if x.extent == "number"]
        for (view, queue), dtype in zip(self.numbers, dtypes, strict=True):
            self._take_number(view, queue, dtype)
        for local, (_, number) in zip(self.constants, self.steps.constants, strict=True):
            self.builder.emit(Duplicate(local, number))
            self.builder.barrier("vector")
        for views in tiles:
            repeat(self.builder, self._tile, *views)
        return self.builder.build()

    def _take_number(self, view: GmView, queue: Queue, dtype: DType) -> None:
        """Put the one number of *view* into the register of its name, as *dtype*."""
        slot = load(self.builder, self.spec, queue, view)
        number = slot.of(view.dtype, 1)
        if view.dtype is not dtype:
            assert self.widened is not None
            number = self.widened.of(dtype, 1)
            self.builder.emit(Cast(number, slot.of(view.dtype, 1)))
            self.builder.sync("vector", "scalar")
        self.builder.emit(ScalarLoad(view.name, number))
        queue.free(slot)

    def _tile(self, *views: GmView) -> None:
        """A view of each operand that is no number, then of the result."""
        *inputs, output = views
        size = Size(self.steps, output.rows, output.columns)
        for view, queue in zip(inputs, self.queues.values(), strict=True):
            slot = queue.alloc()
            rows_apart = view.dtype.nbytes(size.pitch) if view.rows > 1 else None
            fill(self.builder, self.spec, slot, view, rows_apart)
            queue.enque(slot)
        slots = {index: queue.deque() for index, queue in self.queues.items()}
        out = self.out.alloc()
        TileWriter(self, size, slots, out).write()
        for index, slot in slots.items():
            self.queues[index].free(slot)
        apart = output.dtype.nbytes(size.pitch) if output.rows > 1 else None
        self.writer.store(self.out, out, output, apart)


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
        """Elements that instructions on the whole tile take, with what fills it up."""
        return align_up(self.rows * self.pitch, self.steps.whole)

    def elements(self, x: Value) -> int:
        """Elements that an instruction on *x* takes."""
        if x.extent == "tile":
            return self.count // 8 if x.is_mask else self.count
        return align_up(self.columns if x.extent == "row" else self.rows, BRCB_LANES)

    def nbytes(self, x: Value) -> int:
        return x.dtype.nbytes(self.elements(x))


class TileWriter:
    """Writes the vector micro-ops of one tile."""

    def __init__(self, tiles: Tiles, size: Size, slots: dict[int, Slot], out: Slot) -> None:
        self.tiles, self.size, self.slots, self.out = tiles, size, slots, out
        self.builder, self.steps = tiles.builder, tiles.steps
        self.read: set[object] = set()
        self.written: set[object] = set()
        """Buffers that have been touched since the last barrier."""

    def write(self) -> None:
        """All steps, with a barrier before each that one before it stands in the way of."""
        if self.steps.work or self.tiles.blocks:
            # The tile before may still be read from where this one writes.
            self.builder.barrier("vector")
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
                self.builder.emit(step.make(self._local(step.result), *operands))

    def _buffer(self, x: Value, by_row: bool) -> object:
        return ("blocks", x) if by_row and x.extent == "column" else self.steps.places[x]

    def _order(self, read: list[object], written: object) -> None:
        if self.written & {*read, written} or written in self.read:
            self.builder.barrier("vector")
            self.read, self.written = set(), set()
        self.read.update(read)
        self.written.add(written)

    def _spread(self, x: Value) -> None:
        """A block of each number of *x*."""
        self._order([self.steps.places[x]], ("blocks", x))
        count = align_up(self.size.rows, BRCB_LANES)
        blocks = self.tiles.blocks[x].of(x.dtype, count * _lanes(x.dtype))
        src = self._local(x)
        assert isinstance(src, Local)
        self.builder.emit(Broadcast(blocks, src))

    def _local(self, x: Value) -> Local | Register:
        """All of *x*; a number for all is in the register of its name."""
        place, count = self.steps.places[x], self.size.elements(x)
        if x.extent == "number":
            return self.tiles.p.inputs[place.index].name
        if place.kind == "operand":
            return self.slots[place.index].of(x.dtype, count)
        if place.kind == "constant":
            return self.tiles.constants[place.index].at(0, count)
        slot = self.out if place.kind == "result" else self.tiles.work[place.index]
        return slot.of(x.dtype, count)

    def _by_row(self, step: Step) -> None:
        """A micro-op a row; two, where numbers a row meet columns that are no whole repeats."""
        # What fills a row up was loaded too, as zeros.
        columns = align_up(self.size.columns, LEAST_ELEMENTS)
        dtype = step.result.dtype
        parts = [(0, columns)]
        if any(x.extent == "column" for x in step.operands):
            lanes = REPEAT_BYTES * 8 // dtype.bits
            whole = columns // lanes * lanes
            rest = align_up(columns - whole, _lanes(dtype))
            parts = [part for part in ((0, whole), (whole, rest)) if part[1]]
        for row in range(self.size.rows):
            for start, count in parts:
                operands = [self._of_row(x, row, start, count) for x in step.operands]
                dst = self._of_row(step.result, row, start, count)
                self.builder.emit(step.make(dst, *operands))

    def _of_row(self, x: Value, row: int, start: int, count: int) -> Local | Register:
        """*count* elements of row number *row* of *x*, from column *start* on."""
        if x.extent == "column":
            first = self.tiles.blocks[x].offset_bytes + row * BLOCK_BYTES
            return Local("ub", first, x.dtype, count, 0, 0)
        local = self._local(x)
        if isinstance(local, str):
            return local
        first = start + (row * self.size.pitch if x.extent == "tile" else 0)
        return Local("ub", local.offset_bytes + x.dtype.nbytes(first), x.dtype, count)


def _lanes(dtype: DType) -> int:
    """Elements of a block."""
    return BLOCK_BYTES * 8 // dtype.bits
