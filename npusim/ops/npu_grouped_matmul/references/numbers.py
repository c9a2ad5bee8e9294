"""What a reference of a group of rows gets to see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.product import CubeOrder
from npusim.devices.schema import DeviceSpec
from npusim.ops.npu_grouped_matmul.support import Types

__all__ = ["Call", "Numbers"]


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a group has of each list: of its expert, and of its rows."""

    weight: Array
    """`(k, n)`; of int4 as it is stored."""
    bias: Array | None = None
    """`(n,)`."""
    scale: Array | None = None
    """`(n,)`, `(1,)`, or `(groups of k, n)`."""
    offset: Array | None = None
    """`(1, n)`."""
    per_token_scale: Array | None = None
    """`(rows,)`."""
    antiquant_scale: Array | None = None
    antiquant_offset: Array | None = None
    place: int = 0
    """Of its expert, among those of the list."""


@dataclass(frozen=True, slots=True)
class Call:
    """The whole call."""

    types: Types
    xs: tuple[Any, ...]
    weights: tuple[Any, ...]
    bias: tuple[Array, ...]
    scale: tuple[Array, ...]
    offset: tuple[Array, ...]
    per_token_scale: tuple[Array, ...]
    antiquant_scale: tuple[Array, ...]
    antiquant_offset: tuple[Array, ...]
    counts: tuple[tuple[int, int], ...] | None
    """Experts and their rows; None where no list says."""
    act_type: int
    tuning: tuple[int, ...]
    order: CubeOrder
    spec: DeviceSpec | None
    template: str | None = None
    """The kernel that the caller names."""

    def numbers(self, expert: int, start: int, count: int) -> Numbers:
        """Those of *expert* and of *count* rows from *start* on."""
        tokens = None
        if self.per_token_scale:
            tokens = np.concatenate(self.per_token_scale)[start : start + count]
        stacked = len(self.weights) == 1 and len(self.weights[0].shape) == 3

        def own(several: tuple[Any, ...]) -> Any:
            """A tensor of the list, or a part of the only one."""
            if not several:
                return None
            whole = np.asarray(several[0 if stacked else expert])
            return np.atleast_1d(whole[expert]) if stacked else whole

        return Numbers(
            weight=own(self.weights),
            bias=own(self.bias),
            scale=own(self.scale),
            offset=own(self.offset),
            per_token_scale=tokens,
            antiquant_scale=own(self.antiquant_scale),
            antiquant_offset=own(self.antiquant_offset),
            place=expert,
        )
