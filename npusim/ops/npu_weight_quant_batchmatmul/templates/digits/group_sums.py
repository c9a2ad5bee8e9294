"""How vector cores combine the products of groups.

A product is the sum of those of its digits, scaled by column and by row, and added to sums, which
are the output once they are complete: see the docstring of the operator for the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up
from npusim.isa import BLOCK_BYTES, Axpy, Binary, BinaryScalar, Cast, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.columns import ColumnVector
from npusim.kernel.plane import Plane, by_row, multiply_add, spread_rows
from npusim.kernel.queues import Slot
from npusim.kernel.views import GmView, fill, load, store
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits.groups import (
    GroupProducts,
    absmax_view,
    sums_view,
)

__all__ = ["SPREAD", "GroupEpilogue", "GroupOperands"]

SPREAD = 8
"""Numbers are spread to blocks in eights: they fill a block."""


class RowNumbers:
    """A number for each row and group, each in a block of eight: see `by_column`."""

    def __init__(self, builder: Builder, max_rows: int, max_groups: int) -> None:
        """Claim room for *max_rows* x *max_groups*."""
        self._builder = builder
        self.pitch = align_up(max_groups, SPREAD)
        """Blocks from row to row."""
        count = max_rows * self.pitch
        self._raw = builder.queue("ub", FLOAT32.nbytes(count), "mte2", "vector")
        self._blocks = builder.claim("ub", BLOCK_BYTES * count)

    def load(self, numbers: GmView) -> None:
        """(rows, groups) of global memory -> (rows, pitch, 8)."""
        slot = load(self._builder, self._raw, numbers, pitch=self.pitch)
        count = numbers.rows * self.pitch
        blocks = self._blocks.of(FLOAT32, SPREAD * count)
        spread_rows(self._builder, blocks, slot.of(FLOAT32, count))
        self._raw.free(slot)

    def of(self, group: int, row: int = 0) -> Local:
        """The blocks of *group*, from *row* on, `pitch` of them apart."""
        # (rows, pitch, 8): the block of this row and group
        start = BLOCK_BYTES * (row * self.pitch + group)
        return self._blocks.of(FLOAT32, SPREAD, start)


class GroupScales:
    """Scales, and their products with the offsets, of some groups and columns in float32."""

    def __init__(self, builder: Builder, p: Problem, max_groups: int, max_columns: int) -> None:
        """Claim room for *max_groups* x *max_columns*."""
        self._builder = builder
        count = max_groups * max_columns
        raw_bytes = p.antiquant_scale.element.nbytes(count)
        self._raw = builder.queue("ub", raw_bytes, "mte2", "vector")
        self._floats = [
            builder.claim("ub", FLOAT32.nbytes(count)) for _ in range(1 + p.traits.has_offset)
        ]
        self._columns = 0

    def load(self, scale: GmView, offset: GmView | None) -> None:
        """(groups, columns) of both -> float32 scales, and scales times offsets."""
        builder, count = self._builder, scale.rows * scale.columns
        views = (scale,) if offset is None else (scale, offset)
        floats = [slot.of(FLOAT32, count) for slot in self._floats]
        for view, numbers in zip(views, floats, strict=True):
            slot = load(builder, self._raw, view, pitch=view.columns)
            step(builder, Cast(numbers, slot.of(view.dtype, count), "none"))
            self._raw.free(slot)
        # (groups, columns): scale x offset replaces the offset
        if offset is not None:
            scales, products = floats
            step(builder, Binary("mul", products, scales, products))
        self._columns = scale.columns

    def scale(self, group: int) -> Local:
        """`(columns,)`."""
        return self._of(0, group)

    def scaled_offset(self, group: int) -> Local:
        """Scale times offset, `(columns,)`."""
        return self._of(1, group)

    def _of(self, which: int, group: int) -> Local:
        start = FLOAT32.nbytes(group * self._columns)
        return self._floats[which].of(FLOAT32, self._columns, start)


class GroupOperands:
    """The operands of the sums: products of groups, and the numbers that scale them.

    Sums, products and outputs are `(rows, columns)`; scales and offsets `(groups, columns)`;
    largest magnitudes and sums of x `(rows, groups)`.
    """

    def __init__(
        self,
        builder: Builder,
        p: Problem,
        *,
        max_rows: int,
        max_columns: int,
        scale_groups: int,
        number_groups: int,
        max_products: int,
    ) -> None:
        """Claim room for scales of *scale_groups* and numbers of rows of *number_groups* groups.

        *max_products* elements of a digit's products are combined at a time.
        """
        self._builder, self._f, self._products = builder, p.traits, GroupProducts.of(p)
        self._parameters = [
            None if x is None else GmView.of(x.name, x.element, *p.antiquant_scale.shape)
            for x in (p.antiquant_scale, p.antiquant_offset)
        ]
        self.scales = GroupScales(builder, p, scale_groups, max_columns)
        self.absmax = RowNumbers(builder, max_rows, number_groups)
        self._row_sums: RowNumbers | None = None
        if p.traits.has_offset:
            self._row_sums = RowNumbers(builder, max_rows, number_groups)
        raw_bytes = self._products.dtype.nbytes(self._products.terms * max_products)
        self._raw = builder.queue("ub", raw_bytes, "mte2", "vector", 2)
        self._floats: Slot | None = None
        if self._products.is_half:
            self._floats = builder.claim("ub", FLOAT32.nbytes(max_products))

    def views(self, rows: slice, groups: slice, columns: slice) -> tuple[GmView | None, ...]:
        """Scale, offset, largest magnitudes and sums in global memory, None where there is none."""
        numbers = (absmax_view(self._f), sums_view(self._f))
        return (
            *(view and view[groups, columns] for view in self._parameters),
            *(view and view[rows, groups] for view in numbers),
        )

    def load_rows(self, absmax: GmView, sums: GmView | None) -> None:
        """Load the numbers of rows."""
        self.absmax.load(absmax)
        if self._row_sums is not None and sums is not None:
            self._row_sums.load(sums)

    def add_offset(self, sums: Plane, group: int, scale: int) -> None:
        """sums += sum of the row of x * (scale * offset), if there is an offset.

        *group* counts from the first whose numbers of rows were loaded, *scale* likewise.
        """
        if self._row_sums is not None:
            of_rows, of_columns = self._row_sums.of(group), self.scales.scaled_offset(scale)
            multiply_add(self._builder, sums, of_rows, of_columns, self._row_sums.pitch)

    def load_products(
        self,
        views: Iterable[GmView],
        groups: int,
        rows: int,
        columns: int,
        after_load: Callable[[], None] | None,
    ) -> tuple[Slot, list[Plane]]:
        """A float32 plane for each of *groups*; *views* are the products of all their digits.

        *after_load* writes flags that follow the loads. Give the slot back with `release`.
        """
        slot = self._raw.alloc()
        # (groups, terms, rows, columns) int32 or fp16
        fill(self._builder, slot, *views, pitch=columns)
        if after_load is not None:
            after_load()
        self._raw.enque(slot)
        slot = self._raw.deque()
        return slot, self._join_terms(slot, groups, rows, columns)

    def release(self, slot: Slot) -> None:
        """The planes of *slot* have been read."""
        self._raw.free(slot)

    def _join_terms(self, slot: Slot, groups: int, rows: int, columns: int) -> list[Plane]:
        """(groups, terms, rows, columns) products -> (rows, columns) in float32 for each group.

        int32 products are combined in place, in float32; fp16 ones in fp16, then widened.
        """
        builder, terms, scheme = self._builder, self._products.terms, self._products.scheme
        floats, count = self._floats, rows * columns
        raw = slot.of(self._products.dtype, groups * terms * count)
        # int32 and fp32 have the same size: combined where they were loaded.
        if floats is None:
            numbers = raw.as_dtype(FLOAT32)
            step(builder, Cast(numbers, raw, "none"))
            for group in range(groups):
                first = numbers.at(group * terms * count, count)
                builder.emit(BinaryScalar("mul", first, first, scheme.weights[0]))
            builder.barrier("vector")
            _add_terms(builder, numbers, groups, count, scheme.weights)
            pitch_bytes = FLOAT32.nbytes(terms * count)
            return [Plane(slot, rows, columns, group * pitch_bytes) for group in range(groups)]
        # fp16: second and third digits weigh 1 / F2 and 1 / (F2 F3) of the first.
        _, second, third = scheme.factors
        _add_terms(builder, raw, groups, count, (1.0, 1 / second, 1 / (second * third)))
        # (groups, rows, columns) fp16 -> fp32, times 1 / F1
        whole = floats.of(FLOAT32, groups * count)
        for group in range(groups):
            first = raw.at(group * terms * count, count)
            builder.emit(Cast(whole.at(group * count, count), first))
        builder.barrier("vector")
        step(builder, BinaryScalar("mul", whole, whole, scheme.weights[0]))
        pitch_bytes = FLOAT32.nbytes(count)
        return [Plane(floats, rows, columns, group * pitch_bytes) for group in range(groups)]


def _add_terms(
    builder: Builder, numbers: Local, groups: int, count: int, weights: tuple[float, ...]
) -> None:
    """Add each further term, times its weight, to the first: `(groups, terms, count)`."""
    terms = len(weights)
    for term in range(1, terms):
        for group in range(groups):
            first = numbers.at(group * terms * count, count)
            other = numbers.at((group * terms + term) * count, count)
            builder.emit(Axpy(first, other, weights[term]))
        builder.barrier("vector")


class GroupEpilogue:
    """Adds the bias to sums, rounds them, ties away from zero, and stores them."""

    def __init__(self, builder: Builder, p: Problem, max_rows: int, max_columns: int) -> None:
        """Claim room for *max_rows* x *max_columns*."""
        self._builder, bias = builder, p.bias
        self._output = GmView.of("output", p.output.element, p.traits.m, p.traits.n)
        self._bias = None if bias is None else GmView.vector("bias", bias.element, p.traits.n)
        result_bytes = p.output.element.nbytes(max_rows * max_columns)
        self._results = builder.queue("ub", result_bytes, "vector", "mte3")
        self._bias_vector: ColumnVector | None = None
        if bias is not None:
            raw = builder.queue("ub", bias.element.nbytes(max_columns), "mte2", "vector")
            floats = builder.claim("ub", FLOAT32.nbytes(max_columns))
            widened = None if bias.element is FLOAT32 else floats
            self._bias_vector = ColumnVector(builder, raw, widened)

    def views(self, rows: slice, columns: slice) -> tuple[GmView, GmView | None]:
        """The output of *rows* and *columns*, and the bias of *columns*."""
        return self._output[rows, columns], None if self._bias is None else self._bias[:, columns]

    def write(self, sums: Plane, output: GmView, bias: GmView | None) -> None:
        """Make *output* of *sums*, which are overwritten."""
        builder = self._builder
        if bias is not None and self._bias_vector is not None:
            # (rows, columns) + (columns,) -> (rows, columns)
            by_row(builder, "add", sums, self._bias_vector.take(bias))
            self._bias_vector.drop()
        slot = self._results.alloc()
        numbers = slot.of(output.dtype, sums.rows * sums.columns)
        # (rows, columns) fp32 -> the type of y
        step(builder, Cast(numbers, sums.whole(), "round"))
        store(builder, self._results, slot, output, sums.columns)
