"""Axes in another order: rows that are only moved, and matrices that are transposed on the way.

If the last axis stays, its rows are divided evenly and moved by strides. Otherwise tiles of it and
of the new last axis are transposed in the unified buffer, by matrices of 16 x 16 elements of 16
bits. Wider elements are transposed as parts of 16 bits, twice; bytes as float16, which represents
each of them exactly. That the vendor's Transpose, whose templates were not read, does similarly is
assumed, and so is how a tile is cut and elements of other widths are transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from npusim.data.dtypes import FLOAT16, INT16, DType
from npusim.data.errors import shown
from npusim.data.integers import align_up, ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Cast, Copy, Local, Transpose
from npusim.kernel import Binding, Block, GmView, GmViews, Step, VectorCore, pieces
from npusim.kernel.steps import Integers
from npusim.ops import _vocabulary as ops

ROWS = 128
"""Rows of a transposed tile: eight matrices of 16, which one strided copy covers."""
TILE_BYTES = 32768
"""Bytes of a transposed tile: the buffer has five of them, two in, two out and one in between.

For bytes two of half that size are in and out, and three of float16 in between."""
SIDE = 16
"""Rows and columns of a matrix of Transpose."""
LINE_BYTES = 32768
"""Bytes of rows that are moved at a time."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of the result."""

    size: int
    src: int
    """Stride of x along it, in elements."""
    dst: int
    """Stride of the result along it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call."""

    axes: tuple[Axis, ...]
    """Axes of the result, without those of length 1, merged where they are adjacent in both."""

    @property
    def is_turned(self) -> bool:
        """Whether the last axis of x does not remain the last one."""
        return self.axes[-1].src != 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Rows, or transposed tiles, in equal shares."""

    share: int
    """Rows, or tiles, of a core; elements, if all of x is one row."""
    tile_columns: int
    """Along the last axis of x."""


# ---- contract ----


def check(contract: ops.Contract) -> Problem:
    """Check that the kernel accepts a call; raises OpError."""
    spec, operand = contract.spec, contract.operand("x")
    order = _order(contract, operand)
    shape = tuple(operand.shape[axis] for axis in order)
    axes = _merged(operand.shape, order)
    p = Problem(
        inputs=(operand,),
        outputs={"output": TensorSpec(shape, operand.spec.dtype)},
        axes=axes,
    )
    if not p.is_turned:
        return p
    element, granule = operand.element, spec.transfer.store_granule_bytes
    contract.require(
        element.nbytes(axes[-1].size) % granule == 0,
        f"the last axes of the result must have whole blocks of {granule} bytes on "
        f"{spec.series}, not {axes[-1].size} elements: others are not simulated; pad x",
    )
    return p


def _order(contract: ops.Contract, x: Operand) -> tuple[int, ...]:
    """dims as non-negative axes of *x*."""
    dims, rank = contract.value("dims"), len(x.shape)
    wanted = f"dims must name each of the {rank} axes of x once, not be"
    contract.require(
        len(dims) == rank,
        f"{wanted} {shown(dims)}; pass a tuple of them",
    )
    order = tuple(dims)
    contract.require(
        sorted(dim % rank if -rank <= dim < rank else rank for dim in order) == [*range(rank)],
        f"{wanted} {order}; pass a tuple of them",
    )
    return tuple(dim % rank for dim in order)


def _merged(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[Axis, ...]:
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    found: list[Axis] = []
    after = prod(shape)
    for axis in order:
        size = shape[axis]
        if size == 1:
            continue
        after = after // size if size else 0
        new = Axis(size, strides[axis], after)
        if found and found[-1].src == new.src * size:
            new = Axis(found.pop().size * size, new.src, new.dst)
        found.append(new)
    return tuple(found) or (Axis(1, 1, 1),)


# ---- tiling ----


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Equal shares for all cores."""
    cores, element = len(spec.vector_cores), p.output.element
    if p.is_turned:
        columns = TILE_BYTES // ROWS * 8 // max(element.bits, INT16.bits)
        inner = next(axis for axis in p.axes if axis.src == 1)
        tiles = ceil_div(inner.size, columns) * ceil_div(p.axes[-1].size, ROWS)
        count = p.output.size // (p.axes[-1].size * inner.size) * tiles
    else:
        columns, count = LINE_BYTES * 8 // element.bits, p.output.size // p.axes[-1].size
        if element.nbytes(p.axes[-1].size) % spec.transfer.store_granule_bytes:
            # A store past the end of a row overlaps the next one, which the same core stores later.
            cores = 1
    share = ceil_div(count, cores)
    if len(p.axes) == 1:
        # One long row is cut into whole blocks.
        count, cores = p.output.size, len(spec.vector_cores)
        share = align_up(ceil_div(count, cores), BLOCK_BYTES * 8 // element.bits)
    return Plan(
        block_dim=ceil_div(count, share), reads_tiling=False, share=share, tile_columns=columns
    )


def _starts(axes: tuple[Axis, ...]) -> tuple[Integers, Integers]:
    """Offset of each element along *axes* in x and in the result, in elements."""
    if not axes:
        return np.zeros(1, np.int64), np.zeros(1, np.int64)
    index = np.indices([axis.size for axis in axes]).reshape(len(axes), -1)
    src, dst = (
        np.array(steps) @ index for steps in zip(*((x.src, x.dst) for x in axes), strict=True)
    )
    return src, dst


# ---- kernel ----


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """The share of a core, one move after another."""
    core, element = VectorCore("permute", spec), p.output.element
    stage = _turning(core, element) if p.is_turned else _moving(core, element)
    owner, src, dst = _turned(p, plan) if p.is_turned else _moved(p, plan)
    bound = {name: Binding(name) for name in ("x", "output")}
    step = Step(stage, (src, dst), owner)
    return core.launch(step, bound=lambda _: bound, block_dim=plan.block_dim)


def _turned(p: Problem, plan: Plan) -> tuple[Integers, GmViews, GmViews]:
    """Tiles in order, and their cores: `(rows, columns)` of x, `(columns, rows)` of the result."""
    element, last = p.output.element, p.axes[-1]
    inner = next(axis for axis in p.axes if axis.src == 1)
    outer = tuple(axis for axis in p.axes if axis not in (last, inner))
    src, dst = _starts(outer)
    tiles = [
        (top, height, left, width)
        for left, width in pieces(inner.size, plan.tile_columns)
        for top, height in pieces(last.size, ROWS)
    ]
    top, height, left, width = (np.tile(part, src.size) for part in np.array(tiles, np.int64).T)
    src, dst = (np.repeat(start, len(tiles)) for start in (src, dst))
    size = element.bits
    x_at = (src + top * last.src + left) * size // 8
    y_at = (dst + left * inner.dst + top) * size // 8
    x = GmViews("x", element, height, width, last.src, x_at)
    y = GmViews("output", element, width, height, inner.dst, y_at)
    return np.arange(src.size) // plan.share, x, y


def _moved(p: Problem, plan: Plan) -> tuple[Integers, GmViews, GmViews]:
    """Rows that are moved at a time, and their cores."""
    element, size = p.output.element, p.axes[-1].size
    if len(p.axes) == 1:
        lines = Axis(1, 0, 0)
        found = [
            (core, first + left, first + left, 1, width)
            for core, first in enumerate(range(0, size, plan.share))
            for left, width in pieces(min(plan.share, size - first), plan.tile_columns)
        ]
    else:
        *outer, lines = p.axes[:-1]
        found = list(_rows(p, plan, tuple(outer), lines))
    owner, src, dst, rows, columns = np.array(found, np.int64).reshape(-1, 5).T
    x = GmViews("x", element, rows, columns, lines.src, src * element.bits // 8)
    y = GmViews("output", element, rows, columns, lines.dst, dst * element.bits // 8)
    return owner, x, y


def _rows(
    p: Problem, plan: Plan, outer: tuple[Axis, ...], lines: Axis
) -> Iterator[tuple[int, int, int, int, int]]:
    """Runs of *lines*: core, offsets in x and in the result, rows and columns."""
    size = p.axes[-1].size
    row_bytes = align_up(p.output.element.nbytes(size), BLOCK_BYTES)
    height, starts = max(1, LINE_BYTES // row_bytes), list(zip(*_starts(outer), strict=True))
    for core in range(plan.block_dim):
        first = core * plan.share
        for number in range(first // lines.size, ceil_div(first + plan.share, lines.size)):
            if number >= len(starts):
                break
            src, dst = starts[number]
            low = max(first - number * lines.size, 0)
            high = min(first + plan.share - number * lines.size, lines.size)
            for top, count in pieces(max(high - low, 0), height):
                for left, width in pieces(size, plan.tile_columns):
                    row = low + top
                    at = src + row * lines.src + left, dst + row * lines.dst + left
                    yield core, *at, count, width


def _moving(core: VectorCore, element: DType) -> Callable[[GmView, GmView], None]:
    queue = core.tiles(element, LINE_BYTES * 8 // element.bits, "mte2", "mte3", 2)
    core.claim_tails("mte2")

    def move(src: GmView, dst: GmView) -> None:
        core.store(queue, core.load(queue, src), dst)

    return move


def _turning(core: VectorCore, element: DType) -> Callable[[GmView, GmView], None]:
    tile_bytes = TILE_BYTES * min(element.bits, INT16.bits) // INT16.bits
    count = tile_bytes * 8 // element.bits
    incoming, outgoing = core.vecin(element, count, 2), core.vecout(element, count, 2)
    turner = Turner(core, element)
    core.claim_tails()

    def move(src: GmView, dst: GmView) -> None:
        loaded, out = core.load(incoming, src), outgoing.alloc()
        turner.turn(loaded, out, ceil_div(src.row_bytes, BLOCK_BYTES))
        incoming.free(loaded)
        core.store(outgoing, out, dst, ROWS)

    return move


class Turner:
    """Writes the transposition of a tile of elements of one width."""

    def __init__(self, core: VectorCore, element: DType) -> None:
        self.core, self.element = core, element
        count = TILE_BYTES * 8 // INT16.bits
        self.between = core.tile(INT16, count)
        self.halves: list[Local] = []
        if element.bits == 8:
            self.halves = [core.tile(FLOAT16, count) for _ in range(2)]

    def turn(self, x: Local, y: Local, strips: int) -> None:
        """Transpose rows of *strips* blocks in *x*, into *y*."""
        self.core.barrier("vector")
        if self.halves:
            self._bytes(x, y, strips)
        elif self.element.bits == INT16.bits:
            self._halves(x, y, strips)
        else:
            self._wider(x, y, strips)

    def _bytes(self, x: Local, y: Local, strips: int) -> None:
        """Through float16, which takes two strips for one."""
        wide, turned = self.halves
        count = strips * ROWS * BLOCK_BYTES
        self.core.cast(wide[:count], x[:count], "none")
        self._halves(wide, turned, 2 * strips)
        self.core.barrier("vector")
        self.core.emit(Cast(y[:count], turned[:count]))

    def _halves(self, x: Local, y: Local, strips: int) -> None:
        for strip in range(strips):
            # The blocks of a strip as a column: eight matrices.
            column = _blocks(x, strip, ROWS, strips, 8 * strips)
            self.core.emit(Copy(_blocks(y, strip * ROWS, ROWS), column))
        self._turned(self.between, y, strips)
        for strip in range(strips):
            # Row after row, with one block of each of the eight matrices.
            row = _blocks(self.between, strip * ROWS, ROWS, SIDE, 1)
            self.core.emit(Copy(_blocks(y, strip * ROWS, ROWS), row))

    def _wider(self, x: Local, y: Local, strips: int) -> None:
        """Transpose elements as parts of 16 bits, twice.

        The first pass separates the parts of a column, and the second one joins them: in each
        matrix of 16 x 16, row i then has the parts of as many rows of x as a block has elements,
        starting at i times that number. That many times 16 rows are a group.
        """
        parts = self.element.bits // INT16.bits
        each = SIDE // parts
        span = each * SIDE
        groups = [*product(range(strips), range(0, ROWS, span))]
        for strip, top in groups:
            # Row each*i+j of the group becomes row i of matrix j.
            column = _blocks(x, top * strips + strip, span, strips, each * strips, each)
            matrices = _blocks(self.between, strip * ROWS + top, span, SIDE, 1, each)
            self.core.emit(Copy(matrices, column))
        self._turned(y, self.between, strips)
        for (strip, top), part in product(groups, range(parts)):
            # For a column, the parts in matrix j become rows parts*j and so on of one matrix.
            first, count = strip * ROWS + top + part, span // parts
            apart = _blocks(y, first, count, SIDE, parts, each)
            first = strip * ROWS + top // each + part
            together = _blocks(self.between, first, count, parts, ROWS // each, each)
            self.core.emit(Copy(together, apart))
        self.core.barrier("vector")
        count = strips * ROWS
        self.core.emit(Transpose(_blocks(y, 0, count), _blocks(self.between, 0, count)))

    def _turned(self, dst: Local, src: Local, strips: int) -> None:
        """Transpose each matrix of 16 x 16 in *src*, into *dst*."""
        count = strips * ROWS
        self.core.barrier("vector")
        self.core.transpose(_blocks(dst, 0, count), _blocks(src, 0, count))


def _blocks(
    tile: Local, start: int, count: int, stride: int = 1, repeat_stride: int = 0, each: int = 8
) -> Local:
    """*count* blocks from index *start* on, *stride* apart, *each* per repeat."""
    at = tile.offset_bytes + start * BLOCK_BYTES
    return Local("ub", at, INT16, count * SIDE, stride, repeat_stride or each, each)
