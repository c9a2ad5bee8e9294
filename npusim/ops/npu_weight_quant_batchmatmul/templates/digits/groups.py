"""x in digits where each group of k has a scale: each group of each row is split on its own.

See the docstring of the operator for the numbers, and `splitter` for the work on a plane of groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, DType
from npusim.kernel.builder import Builder
from npusim.kernel.views import GmView, repeat
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits.scheme import (
    Scheme,
    digit_views,
    scheme_of,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits.splitter import DigitSplitter
from npusim.ops.npu_weight_quant_batchmatmul.traits import CallTraits

__all__ = [
    "ALL_VECTORS",
    "DIGITS_READY",
    "PRODUCTS_READ",
    "PRODUCTS_READY",
    "GroupProducts",
    "GroupSplitter",
    "absmax_view",
    "group_views",
    "sums_view",
]

DIGITS_READY, PRODUCTS_READY, PRODUCTS_READ = 0, 1, 2
"""Flags between a cube core and its vector cores."""
ALL_VECTORS = 3
"""Flag at which all vector cores wait for each other."""


@dataclass(frozen=True, slots=True)
class GroupProducts:
    """What the cube makes of the digits of one group: `(terms x m, n)` in fp16 or int32."""

    scheme: Scheme
    rows: int
    """Rows of x."""
    is_half: bool
    """Whether products are stored as fp16, as inner_precise=1 asks for with int4."""

    @staticmethod
    def of(p: Problem) -> GroupProducts:
        is_half = p.traits.weight == "int4" and p.inner_precise == 1
        return GroupProducts(scheme_of(p.traits), p.traits.m, is_half)

    @property
    def terms(self) -> int:
        return self.scheme.terms

    @property
    def digit_rows(self) -> int:
        """Rows of the matrix of digits, and of a product."""
        return self.terms * self.rows

    @property
    def dtype(self) -> DType:
        """Of a product in global memory."""
        return FLOAT16 if self.is_half else INT32


def absmax_view(f: CallTraits) -> GmView:
    """The largest magnitude of each row and group, `(m, groups)`."""
    return GmView.of("largest", FLOAT32, f.m, f.k // f.group_size)


def sums_view(f: CallTraits) -> GmView | None:
    """The sum of each row and group, `(m, groups)`: only an offset is multiplied by it."""
    return GmView.of("sums", FLOAT32, f.m, f.k // f.group_size) if f.has_offset else None


def group_views(f: CallTraits) -> tuple[GmView, ...]:
    """Digits, largest magnitudes and, where they are needed, sums: what a GroupSplitter writes."""
    sums = sums_view(f)
    return (*digit_views(f), absmax_view(f), *(() if sums is None else (sums,)))


class GroupSplitter:
    """Writes groups of x in digits."""

    def __init__(
        self, builder: Builder, p: Problem, max_groups: int, *, loads_ahead: bool = True
    ) -> None:
        """Claim room for *max_groups* at a time; *loads_ahead* as of :class:`DigitSplitter`."""
        self._builder, self._f = builder, p.traits
        self._x = GmView.of("x", p.x.element, p.traits.m, p.traits.k)
        self._splitter = DigitSplitter(
            builder,
            p.x.element,
            scheme_of(p.traits),
            max_groups,
            p.traits.group_size,
            loads_ahead=loads_ahead,
        )

    def write(self, row: int, group: int, groups: int) -> None:
        """Write *groups* groups of *row* from *group* on: a plane of groups x group size."""
        f = self._f
        numbers = slice(group, group + groups)
        here = slice(group * f.group_size, (group + groups) * f.group_size)
        sums = sums_view(f)
        repeat(
            self._builder,
            self._groups,
            self._x.row(row)[:, here],
            groups,
            absmax_view(f).row(row)[:, numbers],
            None if sums is None else sums.row(row)[:, numbers],
            *(digit.row(row)[:, here] for digit in digit_views(f)),
        )

    def _groups(
        self, x: GmView, groups: int, absmax: GmView, sums: GmView | None, *digits: GmView
    ) -> None:
        """x (1, groups x group size) -> digits of the same shape, two numbers for each group."""
        splitter = self._splitter
        # (1, groups x group size) -> (groups, group size) fp32: a group is a row of the plane
        plane = splitter.load(x, groups)
        # The sum is that of x itself, so it comes before the division.
        if sums is not None:
            splitter.store_numbers(splitter.row_sums(plane), sums)
        # (groups,) each
        largest = splitter.absmax(plane)
        splitter.divide(plane, largest)
        splitter.store_numbers(largest, absmax)
        splitter.split(plane, *digits)
