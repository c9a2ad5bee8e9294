"""Axes in another order: rows that are only moved, and matrices that are turned on the way.

Where the last axis stays, rows of it are shared out evenly and moved by strides. Where it does not,
tiles of it and of the axis that becomes the last one are turned in the unified buffer, by matrices
of 16 x 16 elements of 16 bits. Wider numbers are turned as what they have of 16 bits, twice; bytes
as float16, which has each of them exactly. That the vendor's Transpose, whose templates were not
read, does the like is assumed, and so is how a tile is cut and numbers of other widths are turned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from npusim.data.dtypes import FLOAT16, INT16, DType
from npusim.data.errors import shown
from npusim.data.integers import align_up, ceil_div
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Cast, Copy, Local, Transpose
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.program import Block
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, load, pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops import _protocol
from npusim.ops._contract import Contract
from npusim.ops.families.copies.contract import Move

__all__ = ["Plan", "Problem", "build", "check", "tile"]

ROWS = 128
"""Of a tile that is turned: eight matrices of 16, which a strided copy takes at a time."""
TILE_BYTES = 32768
"""Of a tile that is turned: five of them are in the buffer, two in, two out and one between.

Of bytes two of half that size come in and go out, and three of float16 are between."""
SIDE = 16
"""Rows, and columns, of what Transpose turns."""
LINE_BYTES = 32768
"""Of rows that are moved at a time."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of the result."""

    size: int
    src: int
    """Elements from one to the next along it in x."""
    dst: int
    """The same in the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(_protocol.Problem):
    """A checked call."""

    axes: tuple[Axis, ...]
    """Of the result, without those of length 1, merged where they follow each other in both."""

    @property
    def is_turned(self) -> bool:
        """Whether the last axis of x does not stay the last one."""
        return self.axes[-1].src != 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Rows, or tiles that are turned, in even shares."""

    share: int
    """Rows, or tiles, of a core; elements, where all of x is one row."""
    tile_columns: int
    """Along the last axis of x."""


# ---- contract ----


def check(contract: Contract) -> Problem:
    """Hold a call against what the kernel takes; raises OpError."""
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


def _order(contract: Contract, x: Operand) -> tuple[int, ...]:
    """dims counted from the first axis of *x*."""
    dims, rank = contract.value("dims"), len(x.shape)
    wanted = f"dims must name each of the {rank} axes of x once, not be"
    contract.require(
        isinstance(dims, tuple | list) and len(dims) == rank,
        f"{wanted} {shown(dims)}; pass a tuple of them",
    )
    order = tuple(contract.whole("dims", dim) for dim in dims)
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
    """Even shares for all cores."""
    cores, element = len(spec.vector_cores), p.output.element
    if p.is_turned:
        columns = TILE_BYTES // ROWS * 8 // max(element.bits, INT16.bits)
        count = sum(1 for _ in _turned(p, columns))
    else:
        columns, count = LINE_BYTES * 8 // element.bits, p.output.size // p.axes[-1].size
        if element.nbytes(p.axes[-1].size) % spec.transfer.store_granule_bytes:
            # What is stored beyond the end of a row belongs to the next one, of the same core.
            cores = 1
    share = ceil_div(count, cores)
    if len(p.axes) == 1:
        # One long row is cut into whole blocks.
        count, cores = p.output.size, len(spec.vector_cores)
        share = align_up(ceil_div(count, cores), BLOCK_BYTES * 8 // element.bits)
    return Plan(
        block_dim=ceil_div(count, share), reads_tiling=False, share=share, tile_columns=columns
    )


def _starts(axes: tuple[Axis, ...]) -> Iterator[tuple[int, int]]:
    """Where each element along *axes* begins in x and in the result, in elements."""
    for index in product(*(range(axis.size) for axis in axes)):
        yield (
            sum(i * axis.src for i, axis in zip(index, axes, strict=True)),
            sum(i * axis.dst for i, axis in zip(index, axes, strict=True)),
        )


def _turned(p: Problem, tile_columns: int) -> Iterator[Move]:
    """Tiles in order: `(rows, columns)` of x and `(columns, rows)` of the result."""
    element = p.output.element
    last = p.axes[-1]
    inner = next(axis for axis in p.axes if axis.src == 1)
    outer = tuple(axis for axis in p.axes if axis not in (last, inner))
    for src, dst in _starts(outer):
        x = GmView("x", element, last.size, inner.size, last.src, element.nbytes(src))
        y = GmView("output", element, inner.size, last.size, inner.dst, element.nbytes(dst))
        for left, width in pieces(inner.size, tile_columns):
            for top, height in pieces(last.size, ROWS):
                rows, columns = slice(top, top + height), slice(left, left + width)
                yield Move(x[rows, columns], y[columns, rows])


def _moved(p: Problem, plan: Plan, core: int) -> Iterator[Move]:
    """Rows that *core* moves at a time."""
    element, size = p.output.element, p.axes[-1].size
    first, end = core * plan.share, (core + 1) * plan.share
    if len(p.axes) == 1:
        for left, width in pieces(min(end, size) - first, plan.tile_columns):
            here = slice(None), slice(first + left, first + left + width)
            yield Move(*(GmView.vector(name, element, size)[here] for name in ("x", "output")))
        return
    *outer, lines = p.axes[:-1]
    height = max(1, LINE_BYTES // (ceil_div(element.nbytes(size), BLOCK_BYTES) * BLOCK_BYTES))
    for number, (src, dst) in enumerate(_starts(tuple(outer))):
        low = max(first - number * lines.size, 0)
        high = min(end - number * lines.size, lines.size)
        x = GmView("x", element, lines.size, size, lines.src, element.nbytes(src))
        y = GmView("output", element, lines.size, size, lines.dst, element.nbytes(dst))
        for top, count in pieces(max(high - low, 0), height):
            for left, width in pieces(size, plan.tile_columns):
                here = slice(low + top, low + top + count), slice(left, left + width)
                yield Move(x[here], y[here])


# ---- program ----


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core: its share, one move after the other."""
    whole = [GmView.vector(name, p.output.element, p.output.size) for name in ("x", "output")]
    tiles = list(_turned(p, plan.tile_columns)) if p.is_turned else []
    builder = Builder("permute", spec.cores[spec.vector_kinds[0]], spec.sync)
    stage = _turning(builder, spec, p.output.element) if tiles else _moving(builder, spec)
    blocks = []
    for core in range(plan.block_dim):
        moves = tiles[core * plan.share : (core + 1) * plan.share] or _moved(p, plan, core)
        for move in moves:
            repeat(builder, stage, move.src, move.dst)
        blocks.append(Block(core, spec.vector_cores[core], builder.build(), bindings(*whole)))
    return tuple(blocks)


def _moving(builder: Builder, spec: DeviceSpec) -> Any:
    queue = builder.queue("ub", LINE_BYTES, "mte2", "mte3", 2)
    writer = Writer(builder, spec, "mte2")

    def move(src: GmView, dst: GmView) -> None:
        writer.store(queue, load(builder, spec, queue, src), dst)

    return move


def _turning(builder: Builder, spec: DeviceSpec, element: DType) -> Any:
    tile_bytes = TILE_BYTES * min(element.bits, INT16.bits) // INT16.bits
    incoming = builder.queue("ub", tile_bytes, "mte2", "vector", 2)
    outgoing = builder.queue("ub", tile_bytes, "vector", "mte3", 2)
    turner = Turner(builder, element)
    writer = Writer(builder, spec)

    def move(src: GmView, dst: GmView) -> None:
        slot, out = load(builder, spec, incoming, src), outgoing.alloc()
        turner.turn(slot, out, ceil_div(src.row_bytes, BLOCK_BYTES))
        incoming.free(slot)
        writer.store(outgoing, out, dst, element.nbytes(ROWS))

    return move


class Turner:
    """Writes what turns a tile of numbers of one width."""

    def __init__(self, builder: Builder, element: DType) -> None:
        self.builder, self.element = builder, element
        self.between = builder.claim("ub", TILE_BYTES)
        self.halves = []
        if element.bits == 8:
            self.halves = [builder.claim("ub", TILE_BYTES) for _ in range(2)]

    def turn(self, x: Slot, y: Slot, strips: int) -> None:
        """Turn rows of *strips* blocks in *x*, into *y*."""
        self.builder.barrier("vector")
        if self.halves:
            self._bytes(x, y, strips)
        elif self.element.bits == INT16.bits:
            self._halves(x, y, strips)
        else:
            self._wider(x, y, strips)

    def _bytes(self, x: Slot, y: Slot, strips: int) -> None:
        """By way of float16, which takes two strips for one."""
        wide, turned = self.halves
        count = strips * ROWS * BLOCK_BYTES
        step(self.builder, Cast(wide.of(FLOAT16, count), x.of(self.element, count)))
        self._halves(wide, turned, 2 * strips)
        self.builder.barrier("vector")
        self.builder.emit(Cast(y.of(self.element, count), turned.of(FLOAT16, count)))

    def _halves(self, x: Slot, y: Slot, strips: int) -> None:
        for strip in range(strips):
            # The blocks of a strip below each other: eight matrices.
            column = _blocks(x, strip, ROWS, strips, 8 * strips)
            self.builder.emit(Copy(_blocks(y, strip * ROWS, ROWS), column))
        self._turned(self.between, y, strips)
        for strip in range(strips):
            # Row after row, of which each of the eight matrices has a block.
            row = _blocks(self.between, strip * ROWS, ROWS, SIDE, 1)
            self.builder.emit(Copy(_blocks(y, strip * ROWS, ROWS), row))

    def _wider(self, x: Slot, y: Slot, strips: int) -> None:
        """As parts of 16 bits, twice.

        The first turn takes the parts of a column apart, and the second one puts them together: of
        each matrix of 16 x 16, row i then has the parts of as many rows of x as a block has
        elements, from number i times as many on. So many times 16 rows are a group.
        """
        parts = self.element.bits // INT16.bits
        each = SIDE // parts
        span = each * SIDE
        groups = [*product(range(strips), range(0, ROWS, span))]
        for strip, top in groups:
            # Row each*i+j of the group becomes row i of matrix j.
            column = _blocks(x, top * strips + strip, span, strips, each * strips, each)
            matrices = _blocks(self.between, strip * ROWS + top, span, SIDE, 1, each)
            self.builder.emit(Copy(matrices, column))
        self._turned(y, self.between, strips)
        for (strip, top), part in product(groups, range(parts)):
            # Of a column, the parts in matrix j become rows parts*j and so on of one matrix.
            first, count = strip * ROWS + top + part, span // parts
            apart = _blocks(y, first, count, SIDE, parts, each)
            first = strip * ROWS + top // each + part
            together = _blocks(self.between, first, count, parts, ROWS // each, each)
            self.builder.emit(Copy(together, apart))
        self.builder.barrier("vector")
        count = strips * ROWS
        self.builder.emit(Transpose(_blocks(y, 0, count), _blocks(self.between, 0, count)))

    def _turned(self, dst: Slot, src: Slot, strips: int) -> None:
        """Turn each matrix of 16 x 16 in *src*, into *dst*."""
        count = strips * ROWS
        self.builder.barrier("vector")
        step(self.builder, Transpose(_blocks(dst, 0, count), _blocks(src, 0, count)))


def _blocks(
    slot: Slot, start: int, count: int, stride: int = 1, repeat_stride: int = 0, each: int = 8
) -> Local:
    """*count* blocks from number *start* on, *stride* apart, *each* a repeat."""
    at = slot.of(INT16, SIDE, start * BLOCK_BYTES).offset_bytes
    return Local("ub", at, INT16, count * SIDE, stride, repeat_stride or each, each)
