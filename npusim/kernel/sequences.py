"""Arithmetic sequences of integers that kernels write into the unified buffer as indices."""

from __future__ import annotations

from npusim.isa import Local
from npusim.kernel.vector_core import VectorCore

__all__ = ["BY_SCALAR", "count_on", "count_up"]

__kernel_vocabulary__ = True

BY_SCALAR = 8
"""Elements that the scalar unit writes; additions produce the others (assumed, as in
ops-transformer's rotate_interleaved_common.h)."""


def count_up(core: VectorCore, places: Local, first: int = 0, each: int = 1) -> None:
    """Write *first*, *first* + *each*, ... to *places* `(n,)` of int32."""
    known = min(BY_SCALAR, places.count)
    core.sync("vector", "scalar")
    for number in range(known):
        core.alu("add", "place", first + number * each, 0)
        core.set_value(places[number : number + 1], "place")
    core.sync("scalar", "vector")
    count_on(core, places, known, each)


def count_on(core: VectorCore, places: Local, known: int, each: float) -> None:
    """Extend *places* `(n,)` from its first *known* elements, which cover steps of *each*."""
    while known < places.count:
        more = min(known, places.count - known)
        core.add(places[known : known + more], places[:more], known * each)
        known += more
