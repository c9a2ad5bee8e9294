"""Sending tokens to experts on other cards, and back: MoeDistributeDispatch and Combine.

.. code-block:: text

    dispatch   rows of a card: by local expert, then by the rank that they come from, then by token
               and position among its experts
               int8:  v = f32(x) [* scales[expert]];  s = 127 / max|v|;  q = rint(v * s)
                      and the row's scale is 1 / s, which is not max / 127 in the last bit
    combine    acc = 0;  acc = acc + f32(row of expert k) * scale k      for k = 0, 1, ...
               y = round(acc [+ shared x]) to the type of x

All in fp32, each operation rounded to nearest, ties to even. A row of zeros gives 127 / 0, and its
NaNs become 0. `ep_recv_counts` are running sums of the rows received, by expert and then rank.

Sources: ops-transformer@3a280bcc mc2, moe_distribute_dispatch_v2 and moe_distribute_combine_v2.
Time: a start that grows with the number of cards, plus bytes: the most that a card sends or
receives; data that leaves a server uses the links between servers in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Literal

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, INT32, Array, cast, dtype_of
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec

__all__ = ["Arrived", "combined", "dispatched", "earlier", "routing_us", "row_bytes"]

US = 1e6
ROW_UNIT_BYTES = 32
SCALE_BYTES, SOURCE_BYTES = 4, 12
"""Trailer of a row of dispatch: its scale; and rank, token and position."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """The data of a card after dispatch."""

    rows: Array
    scales: Array
    """One per row of int8; otherwise empty."""
    sources: Array
    """Rank, token and position of each row."""
    sums: Array
    """Running sums of rows, by local expert, then rank."""
    tokens: Array
    """Rows of each local expert."""


def dispatched(
    xs: Sequence[Array],
    ids: Sequence[Array],
    rank: int,
    experts: int,
    smooth: Array | None = None,
    *,
    quantises: bool = False,
) -> Arrived:
    """The rows that *rank* receives of the tokens *xs* of all ranks, whose experts are *ids*."""
    local = experts // len(xs)
    rows, scales, sources, counts = [], [], [], []
    for expert in range(rank * local, (rank + 1) * local):
        for source, (x, chosen) in enumerate(zip(xs, ids, strict=True)):
            tokens, places = np.nonzero(chosen == expert)
            counts.append(len(tokens))
            sources.append(np.stack([np.full_like(tokens, source), tokens, places], axis=1))
            own = x[tokens]
            if quantises:
                own, scale = _quantised(own, None if smooth is None else smooth[expert])
                scales.append(scale)
            rows.append(own)
    by_expert = np.array(counts, np.int64).reshape(local, len(xs))
    return Arrived(
        rows=np.concatenate(rows),
        scales=np.concatenate(scales) if scales else np.empty(0, np.float32),
        sources=np.concatenate(sources).astype(np.int32),
        sums=np.cumsum(counts).astype(np.int32),
        tokens=by_expert.sum(axis=1),
    )


def _quantised(x: Array, smooth: Array | None) -> tuple[Array, Array]:
    """Rows as int8, and the factor of each."""
    values = cast(x, FLOAT32) if x.dtype != np.float32 else x
    with np.errstate(all="ignore"):
        if smooth is not None:
            values = values * smooth.astype(np.float32)
        most = np.abs(values).max(axis=1, keepdims=True)
        factor = np.float32(127) / most
        whole = cast(values * factor, INT32, "rint")
        narrow = cast(cast(whole, FLOAT16), INT8, "trunc")
        return narrow, (np.float32(1) / factor)[:, 0]


def earlier(ids: Array) -> Array:
    """For each token and position, how many earlier ones have the same expert: `expand_idx`.

    >>> earlier(np.array([[0, 1], [1, 0]])).tolist()
    [0, 0, 1, 1]
    """
    seen: dict[int, int] = {}
    found = []
    for expert in ids.reshape(-1).tolist():
        found.append(seen.get(expert, 0))
        seen[expert] = found[-1] + 1
    return np.array(found, np.int32)


def combined(rows: Array, weights: Array, shared: Array | None = None) -> Array:
    """Tokens, in the type of the *rows* `(tokens, k, h)` of their experts."""
    total = np.zeros((rows.shape[0], rows.shape[2]), np.float32)
    wide, dtype = cast(rows, FLOAT32), dtype_of(rows)
    assert dtype is not None
    with np.errstate(all="ignore"):
        for place in range(rows.shape[1]):
            total = total + wide[:, place] * weights[:, place, None]
        if shared is not None:
            total = total + cast(shared.reshape(total.shape), FLOAT32)
    return cast(total, dtype)


def row_bytes(h: int, element_bytes: int, *, has_scale: bool, has_source: bool) -> int:
    """Bytes of a row on the links."""
    behind = SCALE_BYTES * has_scale + SOURCE_BYTES * has_source
    return align_up(h * element_bytes, ROW_UNIT_BYTES) + behind


def routing_us(
    step: Literal["dispatch", "combine"],
    size_bytes: int,
    cards: int,
    device: DeviceSpec,
    servers: int = 1,
) -> float:
    """Kernel time if a card sends or receives up to *size_bytes*, evenly from all of *cards*.

    Raises ValueError on a chip without such a kernel.
    """
    links = device.links
    routing = links.dispatch if step == "dispatch" else links.combine
    if routing is None:
        raise ValueError(
            f"collectives: {step} must run on Atlas A2 or Atlas A3, not on {device.name}; take one "
            f"of these"
        )
    start_us = routing.start_us + routing.doubling_us * log2(cards)
    moving_us = size_bytes / routing.bytes_per_s * US
    if servers > 1 and links.servers is not None:
        leaving = size_bytes * (servers - 1) / servers
        beyond_us = leaving / links.servers.gather_bytes_per_s * US
        start_us += links.servers.start_us if links.layout == "mesh" else 0.0
        moving_us = max(moving_us, beyond_us)
    return start_us + moving_us
