"""What the msd kernels with scales for groups of k do on vector cores.

First x is written in digits, then, when the cube has multiplied, the products of each group are put
together: see the docstring of the operator for the numbers, `digits` for the first stage.
"""

from __future__ import annotations

from functools import partial

from npusim.dtypes import FLOAT32, DType
from npusim.isa import BLOCK_BYTES, Axpy, Binary, BinaryScalar, Cast, Global, Local
from npusim.ops._chain import step
from npusim.ops._cube import rounded_up
from npusim.ops._plane import Plane, spread_rows
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits import DigitStage
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_cube import DigitProducts
from npusim.program import Builder, Slot

__all__ = [
    "FILLED",
    "MET",
    "READ",
    "READY",
    "SPREAD",
    "DigitWriter",
    "GroupScales",
    "RowNumbers",
    "meet",
    "put_together",
    "workspaces",
]

READY, FILLED, READ = 0, 1, 2
"""Flags in a group: digits are there, products are there, products were read."""
MET = 3
"""Flag among vector cores."""
SPREAD = 8
"""Numbers are spread to blocks in eights: they fill a block."""


def workspaces(p: Problem, products: DigitProducts) -> dict[str, int]:
    """Digits `(terms x m, k)`, and largest magnitudes and sums `(m, groups)` in fp32."""
    f = p.facts
    numbers_bytes = FLOAT32.nbytes(f.m * (f.k // f.group_size))
    found = {
        "digits": products.scheme.dtype.nbytes(products.digit_rows * f.k),
        "largest": numbers_bytes,
    }
    return found | ({"sums": numbers_bytes} if f.has_offset else {})


def meet(builder: Builder) -> None:
    """Let all vector cores wait until each has stored what it had."""
    builder.cross_core_set_flag("all", "mte3", MET)
    builder.cross_core_wait_flag("all", "mte2", MET)


class DigitWriter:
    """Writes groups of x in digits."""

    def __init__(self, builder: Builder, p: Problem, most_groups: int) -> None:
        """Claim room for *most_groups* at a time."""
        self._builder, self._p, self._products = builder, p, DigitProducts.of(p)
        digit = self._products.scheme.dtype
        size = p.facts.group_size
        self._stage = DigitStage(builder, p.x.element, digit, most_groups, size)

    def write(self, row: int, group: int, groups: int) -> None:
        """Write *groups* groups of *row* from *group* on."""
        f = self._p.facts
        first, number = row * f.k + group * f.group_size, row * (f.k // f.group_size) + group
        shifts = {
            "x": self._p.x.element.nbytes(first),
            "digits": self._products.scheme.dtype.nbytes(first),
            "largest": FLOAT32.nbytes(number),
            "sums": FLOAT32.nbytes(number),
        }
        self._builder.call(("digits", groups), shifts, partial(self._write, groups))

    def _write(self, groups: int) -> None:
        f, stage, scheme = self._p.facts, self._stage, self._products.scheme
        size, count = f.group_size, groups * f.group_size
        place = Global("x", 0, self._p.x.element.nbytes(count))
        plane = stage.take(place, groups, size, size)
        if f.has_offset:
            stage.hand_out(stage.sums(plane), Global("sums", 0, FLOAT32.nbytes(groups)))
        largest = stage.largest(plane)
        stage.divide(plane, largest)
        stage.hand_out(largest, Global("largest", 0, FLOAT32.nbytes(groups)))
        digit = scheme.dtype.nbytes
        stage.split(
            plane, scheme, lambda term: Global("digits", digit(term * f.m * f.k), digit(count))
        )


class RowNumbers:
    """A number for each row and group, each in a block of eight: see `by_column`."""

    def __init__(self, builder: Builder, name: str, rows: int, groups: int, all_groups: int) -> None:
        """Claim room for *rows* x *groups* of the tensor *name* `(m, all_groups)`."""
        self._builder, self._name, self._stride = builder, name, FLOAT32.nbytes(all_groups)
        self.pitch = rounded_up(groups, SPREAD)
        """Blocks from row to row."""
        self._given = builder.queue("ub", FLOAT32.nbytes(rows * self.pitch), "mte2", "vector")
        self._blocks = builder.claim("ub", BLOCK_BYTES * rows * self.pitch)

    def take(self, rows: int, groups: int) -> None:
        slot, pitch_bytes = self._given.alloc(), FLOAT32.nbytes(self.pitch)
        place = Global(self._name, 0, FLOAT32.nbytes(groups), rows, self._stride)
        self._builder.load(slot.of(FLOAT32, groups), place, pitch_bytes)
        self._given.enque(slot)
        slot = self._given.deque()
        count = rows * self.pitch
        blocks = self._blocks.of(FLOAT32, SPREAD * count)
        spread_rows(self._builder, blocks, slot.of(FLOAT32, count))
        self._given.free(slot)

    def of(self, group: int, row: int = 0) -> Local:
        """The blocks of *group*, from *row* on, `pitch` of them apart."""
        start = BLOCK_BYTES * (row * self.pitch + group)
        return self._blocks.of(FLOAT32, SPREAD, start)


class GroupScales:
    """Scales, and their products with the offsets, of some groups and columns in fp32."""

    def __init__(self, builder: Builder, p: Problem, groups: int, columns: int) -> None:
        self._builder, self._p = builder, p
        self._operands = [x for x in (p.antiquant_scale, p.antiquant_offset) if x is not None]
        count = groups * columns
        nbytes = p.antiquant_scale.element.nbytes(count)
        self._raw = builder.queue("ub", nbytes, "mte2", "vector")
        self._wide = [builder.claim("ub", FLOAT32.nbytes(count)) for _ in self._operands]

    def take(self, groups: int, columns: int, first: int = 0) -> None:
        """Bring those of *groups* groups from *first* on."""
        for operand, wide in zip(self._operands, self._wide, strict=True):
            element, n = operand.element, self._p.facts.n
            start, width = element.nbytes(first * n), element.nbytes(columns)
            place = Global(operand.name, start, width, groups, element.nbytes(n))
            self._widen(operand.element, wide, place)
        if len(self._wide) > 1:
            scale, both = (wide.of(FLOAT32, groups * columns) for wide in self._wide)
            step(self._builder, Binary("mul", both, scale, both))
        self._columns = columns

    def _widen(self, element: DType, wide: Slot, place: Global) -> None:
        slot, width = self._raw.alloc(), place.burst_bytes
        count = place.nbytes // element.nbytes(1)
        self._builder.load(slot.of(element, count // place.bursts), place, width)
        self._raw.enque(slot)
        slot = self._raw.deque()
        step(self._builder, Cast(wide.of(FLOAT32, count), slot.of(element, count), "none"))
        self._raw.free(slot)

    def scale(self, group: int) -> Local:
        return self._of(0, group)

    def offset(self, group: int) -> Local:
        """Scale times offset."""
        return self._of(1, group)

    def _of(self, which: int, group: int) -> Local:
        start = FLOAT32.nbytes(group * self._columns)
        return self._wide[which].of(FLOAT32, self._columns, start)


def put_together(
    builder: Builder,
    products: DigitProducts,
    slot: Slot,
    wide: Slot | None,
    shape: tuple[int, int, int],
) -> list[Plane]:
    """The products of digits as one plane of fp32 for each group.

    *slot* holds `(groups, terms, rows, columns)`, *shape* is all but the terms. fp16 products are
    put together in fp16, then widened into *wide*; int32 ones in *slot*, in fp32.
    """
    groups, rows, columns = shape
    count, terms, scheme = rows * columns, products.terms, products.scheme
    dtype = products.dtype
    whole = slot.of(dtype, groups * terms * count)
    undo = scheme.weights
    if wide is None:
        dtype = FLOAT32
        step(builder, Cast(whole.as_dtype(FLOAT32), whole, "none"))
        whole = whole.as_dtype(FLOAT32)
        for group in range(groups):
            first = whole.at(group * terms * count, count)
            builder.emit(BinaryScalar("mul", first, first, undo[0]))
        builder.barrier("vector")
    else:
        _, second, third = scheme.factors
        undo = (undo[0], 1 / second, 1 / (second * third))
    for term in range(1, terms):
        for group in range(groups):
            first = whole.at(group * terms * count, count)
            other = whole.at((group * terms + term) * count, count)
            builder.emit(Axpy(first, other, undo[term]))
        builder.barrier("vector")
    if wide is None:
        pitch = FLOAT32.nbytes(terms * count)
        return [Plane(slot, rows, columns, group * pitch) for group in range(groups)]
    for group in range(groups):
        here = wide.of(FLOAT32, count, FLOAT32.nbytes(group * count))
        builder.emit(Cast(here, whole.at(group * terms * count, count), "none"))
    builder.barrier("vector")
    everything = wide.of(FLOAT32, groups * count)
    step(builder, BinaryScalar("mul", everything, everything, undo[0]))
    return [Plane(wide, rows, columns, FLOAT32.nbytes(g * count)) for g in range(groups)]
