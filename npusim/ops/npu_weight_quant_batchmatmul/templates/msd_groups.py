"""x in digits if each group of k has a scale: the common part of msd_group and msd per_group.

Each group of each row is split separately. A cube core multiplies the digits `(terms x m, k)` of a
group by the same group of the weight, since each has its own scale. Vector cores combine: a product
is the sum of the products of its digits, scaled by column and by row, and is added to sums, which
become the output once complete. See the docstring of the operator for the arithmetic
(ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel, *_msd_split_k.h, *_msd_group.h).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, DType
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.isa import Axpy, Local
from npusim.kernel import views
from npusim.kernel.cube_core import CubeCore
from npusim.kernel.matrices import L1Matrix, l0c_elements
from npusim.kernel.plane import SPREAD, Plane, RowFactors, by_row, multiply_add
from npusim.kernel.rows import pieces
from npusim.kernel.steps import StageCall
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.ops._digits import DigitSplitter
from npusim.ops.npu_weight_quant_batchmatmul.choice import CallTraits, scheme_of
from npusim.ops.npu_weight_quant_batchmatmul.problem import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates import msd

DIGITS_READY, PRODUCTS_READY, PRODUCTS_READ = 0, 1, 2
"""Flags between a cube core and its vector cores."""
ALL_VECTORS = 3
"""The flag by which all vector cores wait for each other."""


def product_rows(f: CallTraits) -> int:
    """Rows of the matrix of digits, and of a product: those of all digits of x."""
    return scheme_of(f).terms * f.m


def product_dtype(p: Problem) -> DType:
    """The type of a product in global memory: fp16 with inner_precise=1 and int4, or int32."""
    return FLOAT16 if p.traits.weight == "int4" and p.inner_precise == 1 else INT32


# ---- vector cores: split x into digits ----


def _absmax_view(f: CallTraits) -> GmView:
    """The largest magnitude of each row and group, `(m, groups)`."""
    return GmView.of("largest", FLOAT32, f.m, f.k // f.group_size)


def _sums_view(f: CallTraits) -> GmView | None:
    """The sum of each row and group, `(m, groups)`: needed only to multiply an offset."""
    return GmView.of("sums", FLOAT32, f.m, f.k // f.group_size) if f.has_offset else None


def group_views(f: CallTraits) -> tuple[GmView | None, ...]:
    """Digits, largest magnitudes and, if needed, sums: what a GroupSplitter writes."""
    return (*msd.digit_views(f), _absmax_view(f), _sums_view(f))


class GroupSplitter:
    """Splits groups of x into digits."""

    def __init__(
        self, core: VectorCore, p: Problem, max_groups: int, *, loads_ahead: bool = True
    ) -> None:
        """Allocate space for *max_groups* at a time; *loads_ahead*: see :class:`DigitSplitter`."""
        self.f = p.traits
        self._x = GmView.of("x", p.x.element, p.traits.m, p.traits.k)
        sizes = max_groups, p.traits.group_size
        scheme = scheme_of(p.traits)
        ahead = loads_ahead
        self._splitter = DigitSplitter(core, p.x.element, scheme, *sizes, loads_ahead=ahead)

    def write(self, row: int, group: int, groups: int) -> StageCall:
        """Write *groups* groups of *row* from *group* on: each is a row of a plane."""
        f = self.f
        of_groups = slice(group, group + groups)
        here = slice(group * f.group_size, (group + groups) * f.group_size)
        sums = _sums_view(f)
        return (
            self._splitter.write,
            True,
            self._x.row(row)[:, here],
            groups,
            _absmax_view(f).row(row)[:, of_groups],
            None if sums is None else sums.row(row)[:, of_groups],
            *(digit.row(row)[:, here] for digit in msd.digit_views(f)),
        )


# ---- cube cores: digits of a group times the weight ----

BASE_N = 512
"""Columns of a product in L0C."""
ONE = 0x3F80_0000
"""The bits of 1.0 in fp32: with it the fixpipe converts int32 to fp16 unscaled."""


class GroupCube:
    """The buffers of a cube core, and how it multiplies the groups of a pack."""

    def __init__(self, core: CubeCore, p: Problem, columns: int, max_k: int, depth: int) -> None:
        """Load *columns* of the weight at a time; L1 holds digits of *max_k*, *depth* times.

        Raises ProgramError if they do not fit.
        """
        self.core, self._rows, size = core, product_rows(p.traits), p.traits.group_size
        self._size, self._is_half = size, product_dtype(p) is FLOAT16
        self.digits, self.weight = msd.gm_digits(p.traits), p.gm_weight
        dtype, rows = self.digits.dtype, align_up(self._rows, FRACTAL_ROWS)
        base_n = min(columns, BASE_N)
        # L1: digits (rows, max_k), and two pieces (group size, columns) of the weight. Two each of
        # L0A (rows, group size), L0B (group size, base_n) and, if they fit, L0C (rows, base_n).
        self.packs = core.tiles(dtype, rows * max_k, "mte2", "mte1", depth, "l1")
        self._pieces = core.tiles(dtype, size * columns, "mte2", "mte1", 2, "l1")
        self._left = core.tiles(dtype, rows * size, "mte1", "cube", 2, "l0a")
        self._right = core.tiles(dtype, size * base_n, "mte1", "cube", 2, "l0b")
        fits_twice = 2 * INT32.nbytes(rows * base_n) <= core.room_bytes("l0c")
        self._sums = core.l0c_queue(INT32, rows, base_n, 2 if fits_twice else 1)

    def load_digits(self, k: int) -> L1Matrix:
        """Load *k* columns of digits into L1; free them in `packs` when they are multiplied."""
        # (terms x m, k) of global memory -> Nz in L1
        tile = self.packs.alloc()
        piece = self.core.load_matrix(tile, self.digits, self._rows, k)
        self.packs.enque(tile)
        self.packs.deque()
        return piece

    def multiply(self, digits: L1Matrix, group: int, column: int, products: GmView) -> None:
        """Multiply group index *group* of *digits* by the same group of the weight.

        Columns from *column* on are written to *products* `(terms x m, columns)`.
        """
        core, rows, size = self.core, products.rows, self._size
        # (k, n) -> (group size, columns) of the weight in L1
        tile, first = self._pieces.alloc(), group * size
        weight = core.load_matrix(tile, self.weight, products.columns, size, first, column)
        self._pieces.enque(tile)
        self._pieces.deque()
        # (rows, k) -> (rows, group size) of the digits in L0A
        left = self._left.alloc()
        a = core.load_data(left, digits.at(k=first), rows, size)
        self._left.enque(left)
        self._left.deque()
        for start, count in pieces(products.columns, BASE_N):
            # (group size, columns) -> (group size, count) of the weight in L0B
            right = self._right.alloc()
            b = core.load_data(right, weight.at(origin=start), count, size)
            self._right.enque(right)
            self._base_tile(a, b, self._right.deque(), products[:, start : start + count])
        self._left.free(left)
        self._pieces.free(tile)

    def _base_tile(self, a: Local, b: Local, right: Local, products: GmView) -> None:
        """(rows, group size) @ (group size, columns) -> (rows, columns), to global memory."""
        core, sums = self.core, self._sums.alloc()
        here = sums[: l0c_elements(products.rows, products.columns)]
        core.mmad(here, a, b, (products.rows, products.columns, self._size))
        self._right.free(right)
        self._sums.enque(sums)
        self._sums.deque()
        # int32 -> fp16 unscaled: the scale of the conversion is one
        if self._is_half:
            core.fixpipe(products, here, "deqf16", ONE)
        else:
            core.fixpipe(products, here)
        self._sums.free(sums)


# ---- vector cores: products of digits to sums ----


class GroupOperands:
    """The operands of the sums: products of groups, and their scales.

    Sums, products and outputs are `(rows, columns)`; scales and offsets `(groups, columns)`;
    largest magnitudes and sums of x `(rows, groups)`.
    """

    def __init__(
        self,
        core: VectorCore,
        p: Problem,
        *,
        max_rows: int,
        max_columns: int,
        scale_groups: int,
        factor_groups: int,
        max_products: int,
    ) -> None:
        """Allocate space for scales of *scale_groups* and row factors of *factor_groups* groups.

        *max_products* elements of a digit's products are combined at a time.
        """
        self.core, self.f, self._scheme = core, p.traits, scheme_of(p.traits)
        self._parameters = [
            None if x is None else GmView.of(x.name, x.element, *p.antiquant_scale.shape)
            for x in (p.antiquant_scale, p.antiquant_offset)
        ]
        count, has_offset = scale_groups * max_columns, p.traits.has_offset
        self.scales_in = core.vecin(p.antiquant_scale.element, count)
        self._scales = [core.tile(FLOAT32, count) for _ in range(1 + has_offset)]
        # (rows, pitch) factors, each in a block of eight
        self.pitch = align_up(factor_groups, SPREAD)
        self._absmax = RowFactors(core, max_rows * self.pitch)
        self._row_sums = RowFactors(core, max_rows * self.pitch) if has_offset else None
        dtype = product_dtype(p)
        self.products_in = core.vecin(dtype, self._scheme.terms * max_products, depth=2)
        self._wide = core.tile(FLOAT32, max_products) if dtype is FLOAT16 else None

    def views(self, rows: slice, groups: slice, columns: slice) -> tuple[GmView | None, ...]:
        """Scale, offset, largest magnitudes and sums in global memory, None if there are none."""
        of_rows = (_absmax_view(self.f), _sums_view(self.f))
        return (
            *(view and view[groups, columns] for view in self._parameters),
            *(view and view[rows, groups] for view in of_rows),
        )

    def load_rows(self, absmax: GmView, sums: GmView | None) -> None:
        """Load the row factors."""
        self._absmax.load(absmax.rows * self.pitch, absmax, pitch=self.pitch)
        if self._row_sums is not None and sums is not None:
            self._row_sums.load(sums.rows * self.pitch, sums, pitch=self.pitch)

    def absmax(self, group: int, row: int = 0) -> Local:
        """The largest magnitudes of *group* from *row* on, blocks that are `pitch` apart."""
        return self._absmax.of(row * self.pitch + group)

    def load_scales(self, scale: GmView, offset: GmView | None) -> None:
        """(groups, columns) of both -> float32 scales, and scales times offsets."""
        core, count = self.core, scale.rows * scale.columns
        given = (scale,) if offset is None else (scale, offset)
        wide = [tile[:count] for tile in self._scales]
        for view, values in zip(given, wide, strict=True):
            loaded = core.load_rows(self.scales_in, view, pitch=view.columns)
            core.cast(values, loaded[:count])
            self.scales_in.free(loaded)
        # (groups, columns): scale x offset replaces the offset
        if offset is not None:
            scales, products = wide
            core.mul(products, scales, products)

    def scale(self, group: int, columns: int) -> Local:
        """`(columns,)` of the loaded scales."""
        return self._scales[0].at(group * columns, columns)

    def add_offset(self, sums: Plane, group: int, scale: int) -> None:
        """sums += sum of the row of x * (scale * offset), if there is an offset.

        *group* counts from the first group whose row factors were loaded, *scale* likewise.
        """
        if self._row_sums is not None:
            of_columns = self._scales[1].at(scale * sums.columns, sums.columns)
            of_rows = self._row_sums.of(group)
            multiply_add(self.core, sums, of_rows, of_columns, self.pitch)

    def load_products(
        self,
        digits: Iterable[GmView],
        groups: int,
        rows: int,
        columns: int,
        after_load: Callable[[], None] | None,
    ) -> tuple[Local, list[Plane]]:
        """A float32 plane for each of *groups*; *digits* are the products of all their digits.

        *after_load* emits the flags that follow the loads. Free the tile when the planes have been
        read.
        """
        tile = self.products_in.alloc()
        # (groups, terms, rows, columns) int32 or fp16
        views.fill(self.core, self.products_in.slot(tile), *digits, pitch=columns)
        if after_load is not None:
            after_load()
        self.products_in.enque(tile)
        tile = self.products_in.deque()
        return tile, self._join_terms(tile, groups, rows, columns)

    def _join_terms(self, tile: Local, groups: int, rows: int, columns: int) -> list[Plane]:
        """(groups, terms, rows, columns) products -> (rows, columns) in float32 for each group.

        int32 products are combined in place, in float32; fp16 ones in fp16, then widened.
        """
        core, scheme, terms = self.core, self._scheme, self._scheme.terms
        count = rows * columns
        raw = tile[: groups * terms * count]
        firsts = [slice(start, start + count) for start in range(0, raw.count, terms * count)]
        # int32 and fp32 have the same size: combined in place.
        if self._wide is None:
            values = raw.as_dtype(FLOAT32)
            core.cast(values, raw)
            with core.independent():
                for first in firsts:
                    core.mul(values[first], values[first], scheme.weights[0])
            _add_terms(core, values, groups, count, scheme.weights)
            return [Plane(tile, rows, columns, FLOAT32.nbytes(first.start)) for first in firsts]
        # fp16: second and third digits weigh 1 / F2 and 1 / (F2 F3) of the first.
        _, second, third = scheme.factors
        _add_terms(core, raw, groups, count, (1.0, 1 / second, 1 / (second * third)))
        # (groups, rows, columns) fp16 -> fp32, times 1 / F1
        wide = self._wide[: groups * count]
        with core.independent():
            for group, first in enumerate(firsts):
                core.cast(wide.at(group * count, count), raw[first])
        core.mul(wide, wide, scheme.weights[0])
        return [Plane(wide, rows, columns, FLOAT32.nbytes(g * count)) for g in range(groups)]


def _add_terms(
    core: VectorCore, values: Local, groups: int, count: int, weights: tuple[float, ...]
) -> None:
    """Add each further term, times its weight, to the first: `(groups, terms, count)`."""
    terms = len(weights)
    for term in range(1, terms):
        for group in range(groups):
            first = values.at(group * terms * count, count)
            other = values.at((group * terms + term) * count, count)
            core.emit(Axpy(first, other, weights[term]))
        core.barrier("vector")


class GroupEpilogue:
    """Adds the bias to sums, rounds them, ties away from zero, and stores them."""

    def __init__(self, core: VectorCore, p: Problem, max_rows: int, max_columns: int) -> None:
        """Allocate space for *max_rows* x *max_columns*."""
        self.core, self._output, self._bias = core, p.output_view, p.column_view(p.bias)
        self.out = core.vecout(p.output.element, max_rows * max_columns)
        if p.bias is not None:
            self.bias_in = core.vecin(p.bias.element, max_columns)
            self.bias = core.tile(FLOAT32, max_columns)

    def views(self, rows: slice, columns: slice) -> tuple[GmView, GmView | None]:
        """The output of *rows* and *columns*, and the bias of *columns*."""
        return self._output[rows, columns], None if self._bias is None else self._bias[:, columns]

    def write(self, sums: Plane, output: GmView, bias: GmView | None) -> None:
        """Compute *output* from *sums*, which are overwritten."""
        core = self.core
        if bias is not None:
            # (rows, columns) + (columns,) -> (rows, columns)
            loaded = core.load_rows(self.bias_in, bias)
            values = loaded[: bias.columns]
            if bias.dtype is not FLOAT32:
                core.cast(self.bias[: bias.columns], values)
                values = self.bias[: bias.columns]
            by_row(core, "add", sums, values)
            self.bias_in.free(loaded)
        result = self.out.alloc()
        # (rows, columns) fp32 -> the type of y
        core.cast(result[: sums.rows * sums.columns], sums.whole(), "round")
        core.store_rows(self.out, result, output, sums.columns)
