"""How the msd kernels with scales for groups of k put products together, on vector cores.

A product is put together from those of its digits, scaled by column and by row, and added to sums,
which are the output once they are whole: see the docstring of the operator for the numbers.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, DType
from npusim.data.integers import align_up
from npusim.isa import BLOCK_BYTES, Axpy, Binary, BinaryScalar, Cast, Global, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_float32
from npusim.kernel.plane import Plane, by_row, spread_rows
from npusim.kernel.queues import Slot
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_cube import DigitProducts

__all__ = ["SPREAD", "GroupScales", "Output", "RowNumbers", "put_together"]

SPREAD = 8
"""Numbers are spread to blocks in eights: they fill a block."""


class RowNumbers:
    """A number for each row and group, each in a block of eight: see `by_column`."""

    def __init__(
        self, builder: Builder, name: str, rows: int, groups: int, all_groups: int
    ) -> None:
        """Claim room for *rows* x *groups* of the tensor *name* `(m, all_groups)`."""
        self._builder, self._name, self._stride = builder, name, FLOAT32.nbytes(all_groups)
        self.pitch = align_up(groups, SPREAD)
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
            element, n = operand.element, self._p.traits.n
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

    *slot* holds `(groups, terms, rows, columns)`, *shape* is all but the terms. int32 products are
    put together in *slot*, in fp32; fp16 ones in fp16, then widened into *wide*.
    """
    groups, rows, columns = shape
    count, terms, scheme = rows * columns, products.terms, products.scheme
    given = slot.of(products.dtype, groups * terms * count)
    if wide is None:
        numbers = given.as_dtype(FLOAT32)
        step(builder, Cast(numbers, given, "none"))
        firsts = [numbers.at(group * terms * count, count) for group in range(groups)]
        builder.emit(*(BinaryScalar("mul", first, first, scheme.weights[0]) for first in firsts))
        builder.barrier("vector")
        _add_terms(builder, numbers, (groups, terms, count), scheme.weights)
        pitch = FLOAT32.nbytes(terms * count)
        return [Plane(slot, rows, columns, group * pitch) for group in range(groups)]
    _, second, third = scheme.factors
    _add_terms(builder, given, (groups, terms, count), (1.0, 1 / second, 1 / (second * third)))
    whole = wide.of(FLOAT32, groups * count)
    for group in range(groups):
        builder.emit(Cast(whole.at(group * count, count), given.at(group * terms * count, count)))
    builder.barrier("vector")
    step(builder, BinaryScalar("mul", whole, whole, scheme.weights[0]))
    return [Plane(wide, rows, columns, FLOAT32.nbytes(group * count)) for group in range(groups)]


def _add_terms(
    builder: Builder, numbers: Local, shape: tuple[int, int, int], weights: tuple[float, ...]
) -> None:
    """Add each further term, times its weight, to the first; *shape*: groups, terms, numbers."""
    groups, terms, count = shape
    for term in range(1, terms):
        for group in range(groups):
            first = numbers.at(group * terms * count, count)
            other = numbers.at((group * terms + term) * count, count)
            builder.emit(Axpy(first, other, weights[term]))
        builder.barrier("vector")


class Output:
    """Adds the bias to sums, rounds them, ties away from zero, and stores them."""

    def __init__(self, builder: Builder, p: Problem, rows: int, columns: int) -> None:
        """Claim room for *rows* x *columns*."""
        self._builder, self._p = builder, p
        nbytes = p.output.element.nbytes(rows * columns)
        self._results = builder.queue("ub", nbytes, "vector", "mte3")
        if p.bias is not None:
            nbytes = p.bias.element.nbytes(columns)
            self._bias = builder.queue("ub", nbytes, "mte2", "vector")
            self._wide = builder.claim("ub", FLOAT32.nbytes(columns))

    def shifts(self, row: int, column: int) -> dict[str, int]:
        """Bytes to where an output begins, and its bias."""
        bias = self._p.bias
        return {
            "output": self._p.output.element.nbytes(row * self._p.traits.n + column),
            "bias": 0 if bias is None else bias.element.nbytes(column),
        }

    def write(self, sums: Plane) -> None:
        """Make the output of *sums*, which are overwritten."""
        builder, out = self._builder, self._p.output.element
        self._add_bias(sums)
        slot = self._results.alloc()
        step(builder, Cast(slot.of(out, sums.rows * sums.columns), sums.whole(), "round"))
        self._results.enque(slot)
        slot, width = self._results.deque(), out.nbytes(sums.columns)
        place = Global("output", 0, width, sums.rows, out.nbytes(self._p.traits.n))
        builder.store(place, slot.of(out, sums.columns), width)
        self._results.free(slot)

    def _add_bias(self, sums: Plane) -> None:
        bias = self._p.bias
        if bias is None:
            return
        element, columns = bias.element, sums.columns
        slot = self._bias.alloc()
        given = slot.of(element, columns)
        self._builder.load(given, Global("bias", 0, element.nbytes(columns)))
        self._bias.enque(slot)
        slot = self._bias.deque()
        if element is not FLOAT32:
            given = self._wide.of(FLOAT32, columns)
            to_float32(self._builder, given, slot.of(element, columns))
        by_row(self._builder, "add", sums, given)
        self._bias.free(slot)
