"""Collectives over several cards: which bits come out, and how long they take.

::

    from npusim import collectives

    collectives.time_us("all_reduce", 64 << 20, 8, "Atlas A2")       # kernel time, in us
    collectives.all_reduce([of_rank_0, of_rank_1], "sum", devices.load("Atlas A3"))

Times and values know the same ways to move slices: :mod:`npusim.collectives.times` says which there
are, :mod:`npusim.collectives.values` in what order each adds.
"""

from __future__ import annotations

from npusim.collectives.times import KINDS, Estimate, Kind, estimate, message_us, time_us
from npusim.collectives.values import (
    OPERATIONS,
    REDUCED,
    Operation,
    all_reduce,
    reduce_scatter,
)

__all__ = [
    "KINDS",
    "OPERATIONS",
    "REDUCED",
    "Estimate",
    "Kind",
    "Operation",
    "all_reduce",
    "estimate",
    "message_us",
    "reduce_scatter",
    "time_us",
]
