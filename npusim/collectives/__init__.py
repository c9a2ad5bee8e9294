"""Collectives over several cards: their results, bit for bit, and their times.

::

    from npusim import collectives

    collectives.time_us("all_reduce", 64 << 20, 8, "Atlas A2")       # kernel time, in us
    collectives.all_reduce([of_rank_0, of_rank_1], "sum", devices.load("Atlas A3"))

Times and values are based on the same algorithms: :mod:`npusim.collectives.times` lists them, and
:mod:`npusim.collectives.values` gives the order in which each adds.
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
