"""Numbers in equal steps, which kernels write into the unified buffer to count by."""

from __future__ import annotations

from npusim.isa import BinaryScalar, Local, ScalarAlu, ScalarStore
from npusim.kernel.builder import Builder, step

__all__ = ["count_up"]

__kernel_vocabulary__ = True

BY_SCALAR = 8
"""Numbers in equal steps that the scalar unit writes; the others follow by additions (assumed, as
ops-transformer's rotate_interleaved_common.h does)."""


def count_up(builder: Builder, places: Local, first: int = 0, each: int = 1) -> None:
    """*first*, *first* + *each*, ... to *places* `(n,)` of int32."""
    count = places.count
    known = min(BY_SCALAR, count)
    builder.sync("vector", "scalar")
    for number in range(known):
        builder.emit(ScalarAlu("add", "place", first + number * each, 0))
        builder.emit(ScalarStore(places.at(number, 1), "place"))
    builder.sync("scalar", "vector")
    while known < count:
        more = min(known, count - known)
        after, before = places.at(known, more), places.at(0, more)
        step(builder, BinaryScalar("add", after, before, known * each))
        known += more
