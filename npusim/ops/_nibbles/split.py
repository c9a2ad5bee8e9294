"""int8 rows written as two int4 a number, on a vector core."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, INT4, INT8, INT16
from npusim.data.integers import align_up
from npusim.isa import REPEAT_BYTES, Binary, BinaryScalar, Cast, Duplicate, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.views import GmView, load, repeat, store

__all__ = ["LONGEST", "NibbleSplitter", "digits_of"]

LONGEST = 29576
"""Numbers of a row that the unified buffer holds with all that becomes of it (ops-nn@e5c3fa9
quant_batch_matmul_v4, the tiling of msd)."""
LOW_BITS = 0x0F0F
"""The lower four bits of two numbers."""


def digits_of(m: int, k: int) -> GmView:
    """The workspace of the digits of *m* rows: `(2 m, k)` int4, high digits in even rows."""
    return GmView.of("digits", INT4, 2 * m, k)


class NibbleSplitter:
    """Buffers for rows of up to *k* numbers, an even count; each is there once."""

    def __init__(self, builder: Builder, k: int) -> None:
        width = align_up(k, REPEAT_BYTES)
        self._builder = builder
        self._x = builder.queue("ub", INT8.nbytes(width), "mte2", "vector")
        self._half = builder.claim("ub", FLOAT16.nbytes(width))
        self._low = builder.claim("ub", INT8.nbytes(width))
        self._mask = builder.claim("ub", REPEAT_BYTES)
        self._digits = builder.queue("ub", INT4.nbytes(width), "vector", "mte3")

    def prepare(self) -> None:
        """Fill the mask, once."""
        count = REPEAT_BYTES * 8 // INT16.bits
        step(self._builder, Duplicate(self._mask.of(INT16, count), LOW_BITS))

    def rows(self, x: GmView, digits: GmView, index: int, parts: int) -> None:
        """Every *parts*-th row of *x* `(m, k)` from *index* on, to *digits* `(2 m, k)`."""
        for row in range(index, x.rows, parts):
            pair = digits[2 * row : 2 * row + 2, :]
            repeat(self._builder, self._row, x[row : row + 1, :], pair)

    def _row(self, x: GmView, digits: GmView) -> None:
        """*x* `(1, k)` to *digits* `(2, k)`."""
        builder, k = self._builder, x.columns
        slot = load(builder, self._x, x)
        half = self._half.of(FLOAT16, k)
        # (k,) int8 -> fp16, / 16 exactly, rounded down to int4
        step(builder, Cast(half, slot.of(INT8, k), "none"))
        step(builder, BinaryScalar("mul", half, half, 1 / 16))
        self._store(half, digits[:1, :], floor=True)
        # The lower four bits, two numbers at a time in whole repeats: 0 ... 15, minus 8.
        pairs = align_up(k, REPEAT_BYTES) // 2
        low = self._low.of(INT16, pairs)
        step(builder, Binary("and", low, slot.of(INT16, pairs), self._mask_of(pairs)))
        self._x.free(slot)
        step(builder, Cast(half, self._low.of(INT8, k), "none"))
        step(builder, BinaryScalar("add", half, half, -8.0))
        self._store(half, digits[1:, :], floor=False)

    def _mask_of(self, count: int) -> Local:
        """The mask, read again for each repeat."""
        return Local(self._mask.buffer, self._mask.offset_bytes, INT16, count, 1, 0)

    def _store(self, half: Local, digit: GmView, *, floor: bool) -> None:
        out = self._digits.alloc()
        step(self._builder, Cast(out.of(INT4, half.count), half, "floor" if floor else "none"))
        store(self._builder, self._digits, out, digit)
