"""The links between cards, and what moving bytes over them costs, as a device file gives it.

A card here is what software sees as one device: for Atlas A3, one die.
"""

from __future__ import annotations

from typing import Literal

from npusim.devices.parts import Part
from npusim.devices.ranges import BytesPerSecond, Cards, Microseconds, SliceBytes, Stages, Tasks

__all__ = ["Copies", "Direct", "Lanes", "Links", "Message", "Routing", "Servers", "Staged"]


class Lanes(Part):
    """How fast a card takes in what other cards send."""

    pair_bytes_per_s: BytesPerSecond
    """From the one other card, where two take part that are closest to each other."""
    peer_bytes_per_s: BytesPerSecond
    """From each of several other cards."""
    port_bytes_per_s: BytesPerSecond
    """From all others together, at most."""

    def rate(self, cards: int) -> float:
        """Bytes a second that a card takes in from all others, of *cards* in all."""
        if cards == 2:
            return self.pair_bytes_per_s
        return min((cards - 1) * self.peer_bytes_per_s, self.port_bytes_per_s)


class Copies(Lanes):
    """One kernel whose vector cores copy between the memories of cards."""

    start_us: Microseconds
    doubling_us: Microseconds
    """Added each time that the number of cards doubles."""


class Direct(Copies):
    """The same for short slices of every collective but all_to_all."""

    gather_slice_bytes: SliceBytes
    """The longest slice, which is what passes from one card to another, that is gathered so."""
    reduce_slice_bytes: SliceBytes
    """The same where slices are reduced."""


class Staged(Part):
    """Tasks of copy engines, which a processor of the card hands out one after the other."""

    start_us: Microseconds
    """Before the bytes of a phase move, but for its tasks."""
    task_us: Microseconds
    """To hand out a task."""
    extra_tasks: Tasks
    """Tasks of a phase in addition to one for each card."""
    stages: Stages
    """Handing out and moving overlap like a pipeline of so many stages; at 1 they do not."""
    gather: Lanes
    reduce: Lanes

    def of(self, phase: str) -> Lanes:
        """The lanes of a phase, "reduce" or another."""
        return self.reduce if phase == "reduce" else self.gather


class Routing(Part):
    """A kernel that sends tokens to their experts on other cards, or back."""

    start_us: Microseconds
    doubling_us: Microseconds
    """Added each time that the number of cards doubles."""
    bytes_per_s: BytesPerSecond
    """What a card sends or takes in, whichever is more."""


class Message(Part):
    """What one card sends another."""

    start_us: Microseconds
    """Besides its bytes."""
    bytes_per_s: BytesPerSecond


class Servers(Part):
    """What changes where cards of several servers take part."""

    start_us: Microseconds
    """Added to a phase; of a mesh, what a message between servers takes besides its bytes."""
    slice_bytes: SliceBytes
    """The longest slice that moves directly."""
    gather_bytes_per_s: BytesPerSecond
    """What a card takes in from other servers."""
    reduce_bytes_per_s: BytesPerSecond


class Links(Part):
    """The links of a card."""

    layout: Literal["mesh", "plane", "ring"]
    """A link from each card of a server to each other; a switched plane, also between servers; or
    a bus over which each card sends to the next."""
    cards: Cards
    """Cards of a server."""
    most_cards: Cards
    """Cards that can take part in one collective."""
    host_us: Microseconds
    """What the host takes to launch a collective from a script; the card may work meanwhile."""
    prepared_us: Microseconds
    """What the start of a collective takes at most whose tasks wait ready: of a tile of a product
    that is fused with it."""
    message: Message
    staged: Staged
    exchange: Copies
    """all_to_all."""
    direct: Direct | None = None
    """Left out if there is no such kernel."""
    dispatch: Routing | None = None
    """Left out if there is no such kernel, as `combine`."""
    combine: Routing | None = None
    servers: Servers | None = None
    """Left out if there is nothing to say of several."""
