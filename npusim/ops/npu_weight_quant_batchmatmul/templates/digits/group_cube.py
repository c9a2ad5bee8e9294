"""Digits of x times a group of the weight, on a cube core: small integers, exact in int32.

The digits are a matrix of *terms x m* rows: the first digits of all rows, then the second ones.
Each group has a product of its own, since each has its own scale (ops-nn@e5c3fa9
matmul/weight_quant_batch_matmul_v2/op_kernel, *_msd_split_k.h, *_msd_group.h).
"""

from __future__ import annotations

from npusim.data.dtypes import INT32
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.isa import Fixpipe, Mmad
from npusim.kernel.builder import Builder
from npusim.kernel.cube import GmFeed, load_data
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits.groups import GroupProducts
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits.scheme import gm_digits
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight import gm_weight

__all__ = ["GroupCube"]

BASE_N = 512
"""Columns of a product in L0C."""
ONE = 0x3F80_0000
"""The bits of 1.0 in fp32: the fixpipe turns int32 into fp16 as they are."""


class GroupCube:
    """The buffers of a cube core, and how it multiplies the groups of a pack."""

    def __init__(self, builder: Builder, p: Problem, columns: int, max_k: int, depth: int) -> None:
        """Load *columns* of the weight at a time; L1 holds digits of *max_k*, *depth* times.

        Raises ProgramError where they do not fit.
        """
        self._builder, self._products = builder, GroupProducts.of(p)
        self._size = size = p.traits.group_size
        self.digits, self.weight = gm_digits(p.traits), gm_weight(p)
        self._digits, self._weight = GmFeed(builder, self.digits), GmFeed(builder, self.weight)
        dtype, queue = self.digits.dtype, builder.queue
        self._rows_padded = rows = align_up(self._products.digit_rows, FRACTAL_ROWS)
        base_n = min(columns, BASE_N)
        # L1: digits (rows, max_k), and two pieces (group size, columns) of the weight. Two each of
        # L0A (rows, group size), L0B (group size, base_n) and, if they fit, L0C (rows, base_n).
        self._packs = queue("l1", dtype.nbytes(rows * max_k), "mte2", "mte1", depth)
        self._pieces = queue("l1", dtype.nbytes(size * columns), "mte2", "mte1", 2)
        self._left = queue("l0a", dtype.nbytes(rows * size), "mte1", "cube", 2)
        self._right = queue("l0b", dtype.nbytes(size * base_n), "mte1", "cube", 2)
        total_bytes = INT32.nbytes(rows * base_n)
        l0c_depth = 2 if 2 * total_bytes <= builder.room_bytes("l0c") else 1
        self._totals = queue("l0c", total_bytes, "cube", "fixpipe", l0c_depth)

    def load_digits(self, k: int) -> Slot:
        """Load *k* columns of digits into L1; free them with `release`."""
        # (terms x m, k) of global memory -> Nz in L1
        slot = self._packs.alloc()
        self._digits.load(slot, 0, k, self._products.digit_rows)
        self._packs.enque(slot)
        return self._packs.deque()

    def release(self, digits: Slot) -> None:
        self._packs.free(digits)

    def multiply(self, digits: Slot, k: int, group: int, column: int, products: GmView) -> None:
        """Multiply group *group* of *digits*, *k* columns, by the same group of the weight.

        Columns from *column* on are written to *products* `(terms x m, columns)`.
        """
        rows, size = products.rows, self._size
        # (k, n) -> (group size, columns) of the weight in L1
        piece = self._pieces.alloc()
        self._weight.load(piece, group * size, size, products.columns, column)
        self._pieces.enque(piece)
        piece, left = self._pieces.deque(), self._left.alloc()
        # (rows, k) -> (rows, group size) of the digits in L0A
        in_l1, origin = (rows, k), (0, group * size)
        load_data(self._builder, left, digits, self._digits, in_l1, origin, (rows, size))
        self._left.enque(left)
        left = self._left.deque()
        for start, count in pieces(products.columns, BASE_N):
            # (group size, columns) -> (group size, count) of the weight in L0B
            right = self._right.alloc()
            in_l1, origin = (products.columns, size), (start, 0)
            load_data(self._builder, right, piece, self._weight, in_l1, origin, (count, size))
            self._right.enque(right)
            self._base_tile(left, self._right.deque(), products[:, start : start + count])
        self._left.free(left)
        self._pieces.free(piece)

    def _base_tile(self, left: Slot, right: Slot, products: GmView) -> None:
        """(rows, group size) @ (group size, columns) -> (rows, columns), to global memory."""
        dtype, size = self.digits.dtype, self._size
        rows, columns, rows_padded = products.rows, products.columns, self._rows_padded
        a, b = left.of(dtype, rows_padded * size), right.of(dtype, size * columns)
        slot = self._totals.alloc()
        total = slot.of(INT32, rows_padded * columns)
        self._builder.emit(Mmad(total, a, b, rows, columns, size))
        self._right.free(right)
        self._totals.enque(slot)
        slot = self._totals.deque()
        dst, out = products.operand, products.dtype
        # int32 -> fp16 as it is: the scale of the conversion is one
        if self._products.is_half:
            op = Fixpipe(dst, total, rows, columns, rows_padded, out, "deqf16", ONE)
        else:
            op = Fixpipe(dst, total, rows, columns, rows_padded, out)
        self._builder.emit(op)
        self._totals.free(slot)
