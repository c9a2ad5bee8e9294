"""How long a collective takes: what starts it, and bytes over the links of a card.

What passes from one card to another is a slice. By the algorithms of HCCL for cards that reach each
other directly (hicann/hccl@09300b70, docs/zh/user_guide/coll_algo_intro):

.. code-block:: text

    all_gather      gather                  slice: what a card gives
    reduce_scatter  reduce                  slice: what a card gets
    all_reduce      reduce, then gather     slice: a share of what a card has
    broadcast       scatter, then gather    slice: a share of what the root has
    all_to_all      exchange                slice: a share of what a card gives

In a phase every card takes in a slice from each other. Short slices move directly, by vector cores
of one kernel; longer ones by tasks of copy engines, which a processor of the card hands out, and
that takes time itself. Over a bus (310P) a phase has a step for each other card. Between servers of
Atlas A2 each card talks to those in its place: the collective is one within servers, and one
between them by NHR in ceil(log2(servers)) steps.

The numbers, with their sources, are the `links` of a device file.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from os import PathLike
from typing import Literal, get_args

from npusim import devices
from npusim.devices.links import Links
from npusim.devices.schema import DeviceSpec

__all__ = ["KINDS", "Estimate", "Kind", "estimate", "message_us", "time_us"]

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Phase = Literal["gather", "reduce", "exchange"]
PHASES: dict[Kind, tuple[Phase, ...]] = {
    "all_gather": ("gather",),
    "reduce_scatter": ("reduce",),
    "all_reduce": ("reduce", "gather"),
    "broadcast": ("gather", "gather"),
    "all_to_all": ("exchange",),
}
SHARED: frozenset[Kind] = frozenset({"all_reduce", "broadcast", "all_to_all"})
"""Those whose size is cut into a slice for each card; of the others it is the slice."""
US = 1e6


Way = Literal["nothing", "direct", "staged", "exchange"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """The time of a collective, and what it is made of."""

    way: Way
    """How bytes move within a server."""
    start_us: float
    """What passes before bytes move."""
    moving_us: float
    """What the bytes take on the links, without what overlaps with the start."""
    time_us: float


NOTHING = Estimate("nothing", 0.0, 0.0, 0.0)


def time_us(
    kind: Kind, size_bytes: int, cards: int, device: str | PathLike[str] | DeviceSpec
) -> float:
    """Kernel time of a collective over *cards*, from when the last of them has begun.

    *size_bytes* is what a card has of all_reduce and broadcast, what it gives of all_gather and
    all_to_all, and what it gets of reduce_scatter. The host's launch is `device.links.host_us`.
    Raises ValueError for another kind, a negative size, or cards that cannot take part.

    >>> round(time_us("all_reduce", 64 << 20, 8, "Atlas A2"))
    1028
    """
    return estimate(kind, size_bytes, cards, devices.load(device)).time_us


def estimate(kind: Kind, size_bytes: int, cards: int, device: DeviceSpec) -> Estimate:
    """The time of a collective and its parts; arguments are those of :func:`time_us`."""
    _check(kind, size_bytes, cards, device)
    links = device.links
    if cards == 1 or size_bytes == 0:
        return NOTHING
    slice_bytes = size_bytes / cards if kind in SHARED else float(size_bytes)
    if links.layout == "mesh" and cards > links.cards:
        return _in_servers(kind, slice_bytes, cards, links)
    return _at_once(kind, slice_bytes, cards, links, is_beyond=cards > links.cards)


def _check(kind: Kind, size_bytes: int, cards: int, device: DeviceSpec) -> None:
    links = device.links
    if kind not in KINDS:
        raise ValueError(
            f"collectives: the kind must be one of {', '.join(KINDS)}, not {kind!r}; use one of "
            f"these"
        )
    if isinstance(size_bytes, bool) or not isinstance(size_bytes, int) or size_bytes < 0:
        raise ValueError(
            f"collectives: {kind}: size_bytes must be a whole number from 0 on, not "
            f"{size_bytes!r}; pass the bytes of a card"
        )
    if isinstance(cards, bool) or not isinstance(cards, int) or not 0 < cards <= links.most_cards:
        raise ValueError(
            f"collectives: {kind}: cards must be 1 to {links.most_cards} on {device.name}, as many "
            f"as its links join, not {cards!r}; take fewer, or another chip"
        )
    if links.layout == "mesh" and cards > links.cards and cards % links.cards:
        raise ValueError(
            f"collectives: {kind}: cards must be up to {links.cards} on {device.name}, which are a "
            f"server, or whole servers of them, not {cards}; take a multiple of {links.cards}"
        )


def message_us(size_bytes: int, device: DeviceSpec) -> float:
    """The time of *size_bytes* that one card sends another of its server."""
    message = device.links.message
    return message.start_us + size_bytes / message.bytes_per_s * US


# ---- cards that reach each other ----


def _at_once(
    kind: Kind, slice_bytes: float, cards: int, links: Links, *, is_beyond: bool
) -> Estimate:
    """Every card exchanges slices with all others; the collective may go *is_beyond* a server."""
    phases, taken_bytes = PHASES[kind], (cards - 1) * slice_bytes
    if kind == "all_to_all":
        exchange = links.exchange
        start_us = exchange.start_us + exchange.doubling_us * log2(cards)
        return _summed("exchange", start_us, taken_bytes / exchange.rate(cards) * US)
    beyond_us = 0.0
    if links.servers and cards > links.cards:
        beyond_us = links.servers.start_us * len(phases)
    if links.direct is not None and slice_bytes <= _direct_bytes(kind, links, is_beyond):
        start_us = links.direct.start_us + links.direct.doubling_us * log2(cards) + beyond_us
        moving_us = len(phases) * taken_bytes / links.direct.rate(cards) * US
        return _summed("direct", start_us, moving_us)
    staged = links.staged
    steps = cards - 1 if links.layout == "ring" else 1
    phase_us = staged.start_us * steps + staged.task_us * (cards + staged.extra_tasks)
    start_us = phase_us * len(phases) + beyond_us
    moving_us = sum(taken_bytes / _staged_rate(phase, cards, links) * US for phase in phases)
    time_us = max(start_us, moving_us) + min(start_us, moving_us) / staged.stages
    return Estimate("staged", start_us, moving_us, time_us)


def _direct_bytes(kind: Kind, links: Links, is_beyond: bool) -> float:
    """The longest slice that moves directly."""
    assert links.direct is not None
    is_gathered = PHASES[kind][0] == "gather"
    most = links.direct.gather_slice_bytes if is_gathered else links.direct.reduce_slice_bytes
    return min(most, links.servers.slice_bytes) if links.servers and is_beyond else most


def _staged_rate(phase: Phase, cards: int, links: Links) -> float:
    """Bytes a second that a card takes in from all others."""
    is_reduced = phase == "reduce"
    if links.servers and cards > links.cards:
        servers = links.servers
        return servers.reduce_bytes_per_s if is_reduced else servers.gather_bytes_per_s
    return (links.staged.reduce if is_reduced else links.staged.gather).rate(cards)


def _summed(way: Way, start_us: float, moving_us: float) -> Estimate:
    return Estimate(way, start_us, moving_us, start_us + moving_us)


# ---- servers of a mesh ----


def _in_servers(kind: Kind, slice_bytes: float, cards: int, links: Links) -> Estimate:
    """Within servers over their meshes, and between those in the same place of each."""
    servers = links.servers
    assert servers is not None
    count = cards // links.cards
    # What a card gives or gets of its mesh is what all servers have of its place.
    inner_bytes = slice_bytes if kind == "all_to_all" else slice_bytes * count
    inside = _at_once(kind, inner_bytes, links.cards, links, is_beyond=True)
    phases = PHASES[kind]
    if kind == "all_to_all":
        steps, others = count - 1, cards - links.cards
    else:
        steps, others = ceil(log2(count)), count - 1
    start_us = servers.start_us * steps * len(phases)
    moving_us = 0.0
    for phase in phases:
        is_reduced = phase == "reduce"
        rate = servers.reduce_bytes_per_s if is_reduced else servers.gather_bytes_per_s
        moving_us += others * slice_bytes / rate * US
    if kind == "all_to_all":
        # Both kinds of links work at once.
        time_us = max(inside.time_us, start_us + moving_us)
    else:
        time_us = inside.time_us + start_us + moving_us
    return Estimate(inside.way, inside.start_us + start_us, inside.moving_us + moving_us, time_us)
