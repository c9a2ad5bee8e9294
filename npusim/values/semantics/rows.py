"""Rows of a vector core as lazy tiles, whose extremes are known without writing them.

A kernel that searches for the maximum of a row widens it, halves it repeatedly, compares it with
the result, selects the elements that are equal, and halves those again, down to one element.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import FLOAT32, Array, cast
from npusim.isa import Local, WholeReduce
from npusim.values.buffers import Elements
from npusim.values.runs import Halved
from npusim.values.semantics import half_order
from npusim.values.semantics.state import Bytes

__all__ = ["HalvedTile", "Row", "SelectedTile", "WidenedTile", "WrittenRow", "extreme_of"]


def extreme_of(op: str, values: Array) -> Array:
    """The smallest or largest along the last axis."""
    return np.asarray((np.min if op == "min" else np.max)(values, axis=-1))


class Row(Protocol):
    """Contiguous elements."""

    def write(self, raw: Bytes) -> None:
        """Write the row into *raw*, the bytes of its whole buffer."""

    def extreme(self, op: str) -> Array | None:
        """The minimum or maximum, `(..., 1)`; None if it depends on the order.

        Two zeros can differ in sign, and two NaN in their bits.
        """


class WrittenRow:
    """*values*, which the buffer already holds."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def write(self, raw: Bytes) -> None:
        pass

    def extreme(self, op: str) -> Array | None:
        found = extreme_of(op, self.values)[..., None]
        return None if (found == 0).any() or np.isnan(found).any() else found


class WidenedTile(Elements):
    """fp16 *halves* in memory never written, as the fp32 elements of *place*; lanes first."""

    def __init__(self, place: Local, halves: Array) -> None:
        super().__init__(place)
        self.halves = halves

    def write(self, raw: Bytes) -> None:
        found = raw[..., self.start : self.end].view(np.float32)
        cast(self.halves, FLOAT32, "none", out=found)

    def extreme(self, op: str) -> Array | None:
        found = half_order.extreme(op, self.halves)
        return None if found is None else found.astype(np.float32)


class SelectedTile(Elements):
    """*a* where *holds*, else *b*, as the fp32 elements of *place*; lanes first."""

    def __init__(self, place: Local, holds: NDArray[np.bool_], a: Array, b: Array) -> None:
        super().__init__(place)
        self._shape, self._b = holds.shape, b
        self._places = np.flatnonzero(holds)
        self._chosen = a[np.unravel_index(self._places, holds.shape)]

    def write(self, raw: Bytes) -> None:
        found = raw[..., self.start : self.end].view(np.float32)
        found[...] = self._b
        found[np.unravel_index(self._places, self._shape)] = self._chosen

    def extreme(self, op: str) -> Array | None:
        *lead, count = self._shape
        found = np.full(int(np.prod(lead)), self._b)
        rows = self._places // count
        (np.minimum if op == "min" else np.maximum).at(found, rows, self._chosen)
        has_negative_zero = any(((x == 0) & np.signbit(x)).any() for x in (self._chosen, self._b))
        is_whole = (np.bincount(rows, minlength=1) == count).any()
        if has_negative_zero or is_whole or np.isnan(found).any():
            return None
        return found.reshape(*lead, 1)


class HalvedTile(Elements):
    """A halved row that is computed only when read; its extreme is known without that."""

    def __init__(self, halved: Halved, row: Row) -> None:
        super().__init__(halved.row)
        self._ops, self._row = halved.ops, row

    def write(self, raw: Bytes) -> None:
        self._row.write(raw)
        for op in self._ops:
            a, b = (raw[..., x.offset_bytes : x.end_bytes].view(np.float32) for x in (op.a, op.b))
            (np.minimum if op.op == "min" else np.maximum)(a, b, out=a)

    def extreme_for(self, op: WholeReduce) -> Array | None:
        """The result of *op* on the rest, `(..., 1)`; None if it depends on the order."""
        last = self._ops[-1]
        if (op.op, op.src, op.dst.count, op.mask) != (last.op, last.dst, 1, None):
            return None
        return self._row.extreme(op.op)
