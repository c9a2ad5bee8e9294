"""Contents of the L2 when a kernel starts, for the states that a caller can name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, get_args

import numpy as np

from npusim.data.integers import ceil_div
from npusim.data.tensor import GlobalTensor, allocated_bytes
from npusim.devices.schema import DeviceSpec
from npusim.timing.memory.carried import Arrival
from npusim.timing.memory.l2 import AGES, WHOLE, resident_share, survival
from npusim.trace.left import Runs

__all__ = ["L2_STATES", "L2State", "at_launch"]

NamedState = Literal["cold", "warm", "repeat"]
L2_STATES: tuple[NamedState, ...] = get_args(NamedState)
L2State = NamedState | tuple[str, ...] | Mapping[str, float] | Arrival
"""The contents of the L2 at launch.

cold     nothing
warm     everything, or as large a part of each tensor as fits
repeat   what remains after the same kernel has run repeatedly
names    the tensors named
shares   the given share of the lines of each tensor named, from 0 to 1, evenly spread
arrival  what earlier launches on a card have left, line by line
"""


def at_launch(
    spec: DeviceSpec, state: L2State, tensors: list[GlobalTensor], cached: Collection[str]
) -> Mapping[str, int | Runs]:
    """Tensor -> bytes brought into the L2 since its lines were touched; absent if never.

    *cached* are the names of those *tensors* that do not all bypass the L2.
    """
    if isinstance(state, Arrival):
        return state.ages(spec)
    line_bytes = spec.l2.line_bytes
    sizes = {
        tensor.name: ceil_div(allocated_bytes(tensor.nbytes), line_bytes) * line_bytes
        for tensor in tensors
    }
    if state == "cold":
        return {}
    if state != "repeat":
        return _ages_of_shares(spec, sizes, _shares(state, sizes))
    # Between two touches of a line, all other lines are touched; on average half of them are
    # brought in again, if they were evicted, before the second touch.
    turn_bytes = sum(sizes[name] for name in cached)
    fits = resident_share(turn_bytes, spec) == WHOLE
    return dict.fromkeys(cached, 0 if fits else turn_bytes // 2)


def _shares(
    state: Literal["warm"] | tuple[str, ...] | Mapping[str, float], sizes: Mapping[str, int]
) -> dict[str, int]:
    """Tensor -> the share of it that is cached, of WHOLE."""
    if isinstance(state, Mapping):
        return {name: round(share * WHOLE) for name, share in state.items()}
    return dict.fromkeys(sizes if state == "warm" else state, WHOLE)


def _ages_of_shares(
    spec: DeviceSpec, sizes: Mapping[str, int], shares: Mapping[str, int]
) -> dict[str, int]:
    """The ages at which the given share of each tensor remains, or as large a part as fits."""
    capacity_bytes = spec.l2.capacity_bytes
    wanted_bytes = sum(sizes[name] * share for name, share in shares.items()) // WHOLE
    left = survival(spec.l2.ways) * max(capacity_bytes, wanted_bytes)
    return {
        name: ceil_div(int(np.argmax(left <= share * capacity_bytes)) * capacity_bytes, AGES)
        for name, share in shares.items()
        if share
    }
