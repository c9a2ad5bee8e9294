"""Digits of x times a group of the weight, on a cube core: small integers, exact in int32.

The digits of all rows lie below each other, first all first digits: a matrix of *terms x m* rows.
Of each group comes a product of its own, since each has its own scale (ops-nn@e5c3fa9
matmul/weight_quant_batch_matmul_v2/op_kernel, *_msd_split_k.h, *_msd_group.h).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npusim.data.dtypes import FLOAT16, INT32, DType
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.isa import Fixpipe, Global, Mmad
from npusim.kernel.builder import Builder
from npusim.kernel.cube import GmFeed, GmMatrix, load_data
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits import EIGHT_BITS, FOUR_BITS, Scheme

__all__ = ["DigitProducts", "GroupCube", "Held"]

BASE_N = 512
"""Columns of a product in L0C."""
ONE = 0x3F80_0000
"""The bits of 1.0 in fp32: the fixpipe turns int32 into fp16 as they are."""


@dataclass(frozen=True, slots=True)
class DigitProducts:
    """What the cube makes of a call: how many rows, of which type."""

    scheme: Scheme
    rows: int
    """Rows of x."""
    group_size: int
    is_half: bool
    """Whether products are handed over as fp16, as inner_precise=1 asks for with int4."""

    @staticmethod
    def of(p: Problem) -> DigitProducts:
        is_int4 = p.traits.weight == "int4"
        scheme = FOUR_BITS if is_int4 else EIGHT_BITS
        is_half = is_int4 and p.inner_precise == 1
        return DigitProducts(scheme, p.traits.m, p.traits.group_size, is_half)

    @property
    def terms(self) -> int:
        return len(self.scheme.factors)

    @property
    def digit_rows(self) -> int:
        """Rows of the matrix of digits."""
        return self.terms * self.rows

    @property
    def dtype(self) -> DType:
        """Of a product in global memory."""
        return FLOAT16 if self.is_half else INT32


@dataclass(frozen=True, slots=True)
class Held:
    """Digits in L1: all rows, *count* columns."""

    slot: Slot
    count: int


class GroupCube:
    """The buffers of a cube core, and how it multiplies a group."""

    def __init__(self, builder: Builder, p: Problem, columns: int, k: int, depth: int) -> None:
        """*columns* of the weight come at a time; *k* columns of digits lie in L1, *depth* times.

        Raises ProgramError where they do not fit.
        """
        self.builder, self.products = builder, DigitProducts.of(p)
        f, dtype = p.traits, self.products.scheme.dtype
        layout: Literal["ND", "FRACTAL_NZ"] = "FRACTAL_NZ" if f.is_nz else "ND"
        self.weight = GmMatrix("weight", dtype, f.k, f.n, True, layout)
        self.digits = GmMatrix("digits", dtype, self.products.digit_rows, f.k, False)
        self._weight, self._digits = (GmFeed(builder, x) for x in (self.weight, self.digits))
        self._high = high = align_up(self.products.digit_rows, FRACTAL_ROWS)
        size, queue = f.group_size, builder.queue
        wide = min(columns, BASE_N)
        self._held = queue("l1", dtype.nbytes(high * k), "mte2", "mte1", depth)
        self._pieces = queue("l1", dtype.nbytes(size * columns), "mte2", "mte1", 2)
        self._left = queue("l0a", dtype.nbytes(high * size), "mte1", "cube", 2)
        self._right = queue("l0b", dtype.nbytes(size * wide), "mte1", "cube", 2)
        total_bytes = INT32.nbytes(high * wide)
        both = 2 if 2 * total_bytes <= builder.room_bytes("l0c") else 1
        self._totals = queue("l0c", total_bytes, "cube", "fixpipe", both)

    def hold(self, count: int) -> Held:
        """Bring *count* columns of digits into L1; give them back with `drop`."""
        slot = self._held.alloc()
        self._digits.load(slot, 0, count, self.products.digit_rows)
        self._held.enque(slot)
        return Held(self._held.deque(), count)

    def drop(self, held: Held) -> None:
        self._held.free(held.slot)

    def multiply(self, held: Held, at: int, k: int, column: int, width: int, to: Global) -> None:
        """Multiply digits from *at* on by the group of the weight that begins at row *k*.

        *width* columns from *column* on; the product goes where *to* says: first byte and stride.
        """
        rows, size = self.products.digit_rows, self.products.group_size
        piece = self._pieces.alloc()
        self._weight.load(piece, k, size, width, column)
        self._pieces.enque(piece)
        piece, left = self._pieces.deque(), self._left.alloc()
        extents = (rows, held.count), (0, at), (rows, size)
        load_data(self.builder, left, held.slot, self._digits, *extents)
        self._left.enque(left)
        left = self._left.deque()
        for start, count in pieces(width, BASE_N):
            right = self._right.alloc()
            cut = (width, size), (start, 0), (count, size)
            load_data(self.builder, right, piece, self._weight, *cut)
            self._right.enque(right)
            self._columns(left, self._right.deque(), start, count, to)
        self._left.free(left)
        self._pieces.free(piece)

    def _columns(self, left: Slot, right: Slot, start: int, count: int, to: Global) -> None:
        products, dtype, high = self.products, self.products.scheme.dtype, self._high
        size, rows, out = products.group_size, products.digit_rows, products.dtype
        a, b = left.of(dtype, high * size), right.of(dtype, size * count)
        slot = self._totals.alloc()
        total = slot.of(INT32, high * count)
        self.builder.emit(Mmad(total, a, b, rows, count, size))
        self._right.free(right)
        self._totals.enque(slot)
        slot = self._totals.deque()
        offset = to.offset_bytes + out.nbytes(start)
        place = Global(to.name, offset, out.nbytes(count), rows, to.stride_bytes)
        if products.is_half:
            op = Fixpipe(place, total, rows, count, high, out, "deqf16", ONE)
        else:
            op = Fixpipe(place, total, rows, count, high, out)
        self.builder.emit(op)
        self._totals.free(slot)
