"""The sums of a vector core of msd per_group, for its strip of a round of columns."""

from __future__ import annotations

from functools import partial

from npusim.data.dtypes import FLOAT32
from npusim.isa import Duplicate, Global
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step as chained
from npusim.kernel.plane import Plane, by_row, multiply_add
from npusim.kernel.rows import pieces
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_cube import DigitProducts
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_digits import FILLED, MET, READ
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_vector import (
    GroupScales,
    Output,
    RowNumbers,
    put_together,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_per_group_plan import PerGroupPlan, Step

__all__ = ["StripSums"]


class StripSums:
    """Adds up the groups of a strip, and makes the output of it."""

    def __init__(self, builder: Builder, p: Problem, plan: PerGroupPlan) -> None:
        self._builder, self._p, self._plan = builder, p, plan
        self._products = products = DigitProducts.of(p)
        f, rows, wide, pack = p.traits, plan.strip_m, plan.strip_n, plan.pack_groups
        count, claim, queue = rows * wide, builder.claim, builder.queue
        self._sums = claim("ub", FLOAT32.nbytes(count))
        self._output = Output(builder, p, rows, wide)
        self._scales = GroupScales(builder, p, pack, wide)
        self._numbers = {
            name: RowNumbers(builder, name, rows, pack, f.k // f.group_size)
            for name in ("largest", *("sums",) * f.has_offset)
        }
        joint = plan.joint_groups * count
        nbytes = products.dtype.nbytes(products.terms * joint)
        self._given = queue("ub", nbytes, "mte2", "vector", 2)
        self._apart = claim("ub", FLOAT32.nbytes(joint)) if products.is_half else None

    def add(self, step: Step, rows: tuple[int, int], columns: tuple[int, int]) -> None:
        """Add the groups of *step*; *rows* and *columns*, of its round, are `(first, count)`."""
        p, f, plan, out = self._p, self._p.traits, self._plan, self._products.dtype
        (row, height), (start, width) = rows, columns
        column = step.column + start
        place = step.number % plan.places * plan.place_bytes
        scale = p.antiquant_scale.element.nbytes(step.group * f.n + column)
        number = FLOAT32.nbytes(row * (f.k // f.group_size) + step.group)
        shifts = {
            "products": place + out.nbytes(row * plan.round_n + start),
            "antiquant_scale": scale,
            "antiquant_offset": scale,
            "largest": number,
            "sums": number,
            **self._output.shifts(row, column),
        }
        shape = height, width, step.groups
        key = shape, step.is_first, step.is_last, step.tells
        self._builder.call(key, shifts, partial(self._step, *key))

    def tell(self, tells: bool) -> None:
        """What was in half of the ring has been read, once all vector cores are here."""
        if tells:
            self._builder.cross_core_set_flag("all", "mte2", MET)
            self._builder.cross_core_wait_flag("all", "mte2", MET)
            self._builder.cross_core_set_flag("group", "mte2", READ)

    def _step(
        self, shape: tuple[int, int, int], is_first: bool, is_last: bool, tells: bool
    ) -> None:
        rows, columns, groups = shape
        builder, sums = self._builder, Plane(self._sums, rows, columns)
        for numbers in self._numbers.values():
            numbers.take(rows, groups)
        self._scales.take(groups, columns)
        if is_first:
            chained(builder, Duplicate(sums.whole(), 0.0))
        if self._p.traits.has_offset:
            of_rows = self._numbers["sums"]
            for group in range(groups):
                offset = self._scales.offset(group)
                multiply_add(builder, sums, of_rows.of(group), offset, of_rows.pitch)
        builder.cross_core_wait_flag("group", "mte2", FILLED)
        for group, count in pieces(groups, self._plan.joint_groups):
            self._join(sums, group, count, tells and group + count == groups)
        if is_last:
            self._output.write(sums)

    def _join(self, sums: Plane, first: int, count: int, tells: bool) -> None:
        """Add *count* groups of the pack; *tells* says that they are its last ones."""
        builder, largest = self._builder, self._numbers["largest"]
        slot = self._given.alloc()
        for dst, place in self._places(first, count, sums.rows, sums.columns):
            width = place.burst_bytes
            builder.load(slot.of(self._products.dtype, sums.columns, dst), place, width)
        self.tell(tells)
        self._given.enque(slot)
        slot = self._given.deque()
        shape = count, sums.rows, sums.columns
        planes = put_together(builder, self._products, slot, self._apart, shape)
        for group, plane in enumerate(planes, start=first):
            by_row(builder, "mul", plane, self._scales.scale(group))
            multiply_add(builder, sums, largest.of(group), plane, largest.pitch)
        self._given.free(slot)

    def _places(self, first: int, count: int, rows: int, columns: int) -> list[tuple[int, Global]]:
        """Where the products of *count* groups lie, each with its first byte in the slot."""
        products, m = self._products, self._p.traits.m
        width, pitch = (products.dtype.nbytes(x) for x in (columns, self._plan.round_n))
        start = first * products.digit_rows * pitch
        terms = count * products.terms
        if rows == m:
            return [(0, Global("products", start, width, terms * m, pitch))]
        return [
            (term * rows * width, Global("products", start + term * m * pitch, width, rows, pitch))
            for term in range(terms)
        ]
