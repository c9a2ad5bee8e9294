"""What lies in the L2 when a kernel starts, by the states that a caller can name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, get_args

import numpy as np

from npusim.data.integers import ceil_div
from npusim.data.tensor import GlobalTensor, allocated_bytes
from npusim.devices.schema import DeviceSpec
from npusim.timing.memory.l2 import AGES, WHOLE, kept, survival

__all__ = ["L2_STATES", "L2State", "at_launch"]

NamedState = Literal["cold", "warm", "repeat"]
L2_STATES: tuple[NamedState, ...] = get_args(NamedState)
L2State = NamedState | tuple[str, ...]
"""What lies in the L2 at launch.

cold     nothing
warm     everything, or of each tensor as large a part as fits
repeat   what is left when the same kernel has run again and again
names    the tensors named
"""


def at_launch(
    spec: DeviceSpec, state: L2State, tensors: list[GlobalTensor], cached: Collection[str]
) -> dict[str, int]:
    """Tensor -> how many bytes came into the L2 since its lines were touched; never if left out.

    *cached* are the names of those of *tensors* that do not all go past the L2.
    """
    line_bytes = spec.l2.line_bytes
    sizes = {
        tensor.name: ceil_div(allocated_bytes(tensor.nbytes), line_bytes) * line_bytes
        for tensor in tensors
    }
    if state == "cold":
        return {}
    if state == "warm" or isinstance(state, tuple):
        names = sizes if state == "warm" else state
        age = _age_of_share(spec, sum(sizes[name] for name in names))
        return dict.fromkeys(names, age)
    # Between two touches of a line all others come; half of them come in again before the second
    # one, on average, if they have left.
    turn_bytes = sum(sizes[name] for name in cached)
    fits = kept(turn_bytes, spec) == WHOLE
    return dict.fromkeys(cached, 0 if fits else turn_bytes // 2)


def _age_of_share(spec: DeviceSpec, nbytes: int) -> int:
    """The age at which of *nbytes* as much is left as the L2 holds; 0 if it holds them all."""
    capacity_bytes = spec.l2.capacity_bytes
    part = int(np.argmax(survival(spec.l2.ways) * nbytes <= WHOLE * capacity_bytes))
    return ceil_div(part * capacity_bytes, AGES)
