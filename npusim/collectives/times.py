"""The time of a collective: its start, and bytes over the links of a card.

The data from one card to another is a slice. By the algorithms of HCCL for directly connected cards
(hicann/hccl@09300b70, docs/zh/user_guide/coll_algo_intro):

.. code-block:: text

    all_gather      gather                  slice: what a card contributes
    reduce_scatter  reduce                  slice: what a card receives
    all_reduce      reduce, then gather     slice: a share of a card's data
    broadcast       scatter, then gather    slice: a share of the root's data
    all_to_all      exchange                slice: a share of what a card contributes

In a phase every card receives a slice from each other card. Short slices move directly, by vector
cores of one kernel; longer ones by tasks of copy engines, which a processor of the card issues one
by one, which takes time itself. Over a bus (310P) a phase has one step per other card. Between
servers of Atlas A2 each card exchanges data with those at its position: the collective is one
within servers, and one between them by NHR in ceil(log2(servers)) steps.

The figures, with their sources, are the `links` of a device file.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from numbers import Integral
from os import PathLike
from typing import Literal, get_args

from npusim import devices
from npusim.data.integers import ceil_div
from npusim.devices.links import Links, Servers
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
"""Kinds whose size is divided into a slice for each card; for the others it is the slice."""
US = 1e6


Way = Literal["nothing", "direct", "staged", "exchange"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """The time of a collective, and its parts."""

    way: Way
    """How bytes move within a server."""
    start_us: float
    """Time before bytes move."""
    moving_us: float
    """Time of the bytes on the links, without what overlaps with the start."""
    time_us: float
    servers: int = 1
    """Number of servers, between which another algorithm runs."""


NOTHING = Estimate("nothing", 0.0, 0.0, 0.0)


def time_us(
    kind: Kind,
    size_bytes: int,
    cards: int,
    device: str | PathLike[str] | DeviceSpec,
    servers: int | None = None,
) -> float:
    """Kernel time of a collective over *cards*, from when the last of them has started.

    *size_bytes* is a card's data for all_reduce and broadcast, what it contributes to all_gather
    and all_to_all, and what it receives from reduce_scatter. The cards are in as few *servers* as
    can hold them, or in the given number, evenly. The host's launch is `device.links.host_us`.
    Raises ValueError for another kind, a negative size, or cards that cannot take part.

    >>> round(time_us("all_reduce", 64 << 20, 8, "Atlas A2"))
    1062
    """
    return estimate(kind, size_bytes, cards, devices.load(device), servers).time_us


def estimate(
    kind: Kind, size_bytes: int, cards: int, device: DeviceSpec, servers: int | None = None
) -> Estimate:
    """The time of a collective and its parts; arguments are those of :func:`time_us`."""
    links = device.links
    _check(kind, size_bytes, cards, device)
    count = _servers(kind, cards, device, servers)
    if cards == 1 or size_bytes == 0:
        return NOTHING
    slice_bytes = size_bytes / cards if kind in SHARED else float(size_bytes)
    if links.layout == "mesh" and count > 1:
        return _in_servers(kind, slice_bytes, cards // count, count, links)
    return _at_once(kind, slice_bytes, cards, links, is_beyond=count > 1)


def _check(kind: Kind, size_bytes: int, cards: int, device: DeviceSpec) -> None:
    most = device.links.most_cards
    if kind not in KINDS:
        raise ValueError(
            f"collectives: the kind must be one of {', '.join(KINDS)}, not {kind!r}; use one of "
            f"these"
        )
    if isinstance(size_bytes, bool) or not isinstance(size_bytes, Integral) or size_bytes < 0:
        raise ValueError(
            f"collectives: {kind}: size_bytes must be a whole number from 0 on, not "
            f"{size_bytes!r}; pass the bytes of a card"
        )
    if isinstance(cards, bool) or not isinstance(cards, Integral) or not 0 < cards <= most:
        raise ValueError(
            f"collectives: {kind}: cards must be 1 to {most} on {device.name}, as many as its "
            f"links join, not {cards!r}; take fewer, or another chip"
        )


def _servers(kind: Kind, cards: int, device: DeviceSpec, given: int | None) -> int:
    """The number of servers that hold *cards*."""
    most, count = device.links.cards, given
    if count is None:
        count = ceil_div(cards, most)
        # A plane connects any of them.
        if device.links.layout != "mesh":
            return count
    if count < 1 or cards % count or cards // count > most:
        raise ValueError(
            f"collectives: {kind}: cards must be as many in each server, up to {most} on "
            f"{device.name}, not {cards} in {count}; take a multiple of the servers, or "
            f"more of them"
        )
    return count


def message_us(size_bytes: int, device: DeviceSpec, *, is_beyond: bool = False) -> float:
    """The time to send *size_bytes* to one card, which may be *is_beyond* the sender's server."""
    links = device.links
    if is_beyond and links.servers is not None:
        return links.servers.start_us + size_bytes / links.servers.gather_bytes_per_s * US
    return links.message.start_us + size_bytes / links.message.bytes_per_s * US


# ---- directly connected cards ----


def _at_once(
    kind: Kind, slice_bytes: float, cards: int, links: Links, *, is_beyond: bool
) -> Estimate:
    """Every card exchanges slices with all others; the collective may go *is_beyond* a server."""
    phases, taken_bytes = PHASES[kind], (cards - 1) * slice_bytes
    if kind == "all_to_all":
        exchange = links.exchange
        start_us = exchange.start_us + exchange.doubling_us * log2(cards)
        return _summed("exchange", start_us, taken_bytes / exchange.rate(cards) * US)
    servers = links.servers if is_beyond and links.layout == "plane" else None
    beyond_us = servers.start_us * len(phases) if servers else 0.0
    if links.direct is not None and slice_bytes <= _direct_bytes(kind, links, is_beyond):
        start_us = links.direct.start_us + links.direct.doubling_us * log2(cards) + beyond_us
        moving_us = len(phases) * taken_bytes / links.direct.rate(cards) * US
        return _summed("direct", start_us, moving_us)
    staged = links.staged
    steps = cards - 1 if links.layout == "ring" else 1
    phase_us = staged.start_us * steps + staged.task_us * (cards + staged.extra_tasks)
    start_us = phase_us * len(phases) + beyond_us
    moving_us = sum(
        taken_bytes / (_rate(servers, phase) if servers else staged.of(phase).rate(cards)) * US
        for phase in phases
    )
    time_us = max(start_us, moving_us) + min(start_us, moving_us) / staged.stages
    return Estimate("staged", start_us, moving_us, time_us)


def _direct_bytes(kind: Kind, links: Links, is_beyond: bool) -> float:
    """The longest slice that moves directly."""
    assert links.direct is not None
    is_gathered = PHASES[kind][0] == "gather"
    most = links.direct.gather_slice_bytes if is_gathered else links.direct.reduce_slice_bytes
    return min(most, links.servers.slice_bytes) if links.servers and is_beyond else most


def _rate(servers: Servers, phase: Phase) -> float:
    """Bytes a second that a card receives from other servers."""
    return servers.reduce_bytes_per_s if phase == "reduce" else servers.gather_bytes_per_s


def _summed(way: Way, start_us: float, moving_us: float) -> Estimate:
    return Estimate(way, start_us, moving_us, start_us + moving_us)


# ---- servers of a mesh ----


def _in_servers(kind: Kind, slice_bytes: float, cards: int, count: int, links: Links) -> Estimate:
    """Within *count* servers of *cards*, and between those at the same position in each."""
    servers, phases = links.servers, PHASES[kind]
    assert servers is not None
    is_exchange = kind == "all_to_all"
    # A slice within a server's mesh contains those of all servers.
    inner_bytes = slice_bytes if is_exchange else slice_bytes * count
    inside = NOTHING
    if cards > 1:
        inside = _at_once(kind, inner_bytes, cards, links, is_beyond=True)
    steps = count - 1 if is_exchange else ceil(log2(count))
    others = (count - 1) * cards if is_exchange else count - 1
    start_us = servers.start_us * steps * len(phases)
    moving_us = sum(others * slice_bytes / _rate(servers, phase) * US for phase in phases)
    between_us = start_us + moving_us
    # An exchange uses both kinds of links at the same time.
    time_us = max(inside.time_us, between_us) if is_exchange else inside.time_us + between_us
    start_us, moving_us = inside.start_us + start_us, inside.moving_us + moving_us
    return Estimate(inside.way, start_us, moving_us, time_us, count)
