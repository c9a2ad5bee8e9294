"""The links between cards, and the cost of moving bytes over them, as a device file gives it.

A card here is what software sees as one device: on Atlas A3, one die.
"""

from __future__ import annotations

from typing import Literal

from npusim.devices.parts import Part
from npusim.devices.ranges import BytesPerSecond, Cards, Microseconds, SliceBytes, Stages, Tasks

__all__ = ["Copies", "Direct", "Lanes", "Links", "Message", "Routing", "Servers", "Staged"]


class Lanes(Part):
    """How fast a card receives data from other cards."""

    pair_bytes_per_s: BytesPerSecond
    """From the one other card, if the two closest cards take part."""
    peer_bytes_per_s: BytesPerSecond
    """From each of several other cards."""
    port_bytes_per_s: BytesPerSecond
    """From all others together, at most."""

    def rate(self, cards: int) -> float:
        """Bytes a second that a card receives from all others, of *cards* in total."""
        if cards == 2:
            return self.pair_bytes_per_s
        return min((cards - 1) * self.peer_bytes_per_s, self.port_bytes_per_s)


class Copies(Lanes):
    """A kernel whose vector cores copy between the memories of cards."""

    start_us: Microseconds
    doubling_us: Microseconds
    """Added each time the number of cards doubles."""


class Direct(Copies):
    """The same for short slices of every collective except all_to_all."""

    gather_slice_bytes: SliceBytes
    """The longest slice, the data from one card to another, that is gathered this way."""
    reduce_slice_bytes: SliceBytes
    """The same if slices are reduced."""


class Staged(Part):
    """Tasks of copy engines, which a processor of the card issues one after the other."""

    start_us: Microseconds
    """Before the bytes of a phase move, without its tasks."""
    task_us: Microseconds
    """To issue a task."""
    extra_tasks: Tasks
    """Tasks of a phase in addition to one per card."""
    stages: Stages
    """Stages of the pipeline in which issuing and moving overlap; at 1 they do not."""
    gather: Lanes
    reduce: Lanes

    def of(self, phase: str) -> Lanes:
        """The lanes of a phase, "reduce" or another."""
        return self.reduce if phase == "reduce" else self.gather


class Routing(Part):
    """A kernel that sends tokens to their experts on other cards, or back."""

    start_us: Microseconds
    doubling_us: Microseconds
    """Added each time the number of cards doubles."""
    bytes_per_s: BytesPerSecond
    """Rate for what a card sends or receives, whichever is more."""


class Message(Part):
    """A message from one card to another."""

    start_us: Microseconds
    """In addition to its bytes."""
    bytes_per_s: BytesPerSecond


class Servers(Part):
    """What changes if cards of several servers take part."""

    start_us: Microseconds
    """Added to a phase; in a mesh, the time of a message between servers without its bytes."""
    slice_bytes: SliceBytes
    """The longest slice that moves directly."""
    gather_bytes_per_s: BytesPerSecond
    """Rate at which a card receives data from other servers."""
    reduce_bytes_per_s: BytesPerSecond


class Links(Part):
    """The links of a card."""

    layout: Literal["mesh", "plane", "ring"]
    """A link from each card of a server to each other one; a switched plane, also between servers;
    or a bus over which each card sends to the next."""
    cards: Cards
    """Cards of a server."""
    most_cards: Cards
    """Cards that can take part in one collective."""
    host_us: Microseconds
    """The host's time to launch a collective from a script; the card may work meanwhile."""
    prepared_us: Microseconds
    """Longest start of a collective whose tasks are prepared: that of a tile of a product fused
    with it."""
    message: Message
    staged: Staged
    exchange: Copies
    """all_to_all."""
    direct: Direct | None = None
    """Absent if there is no such kernel."""
    dispatch: Routing | None = None
    """Absent if there is no such kernel, as is `combine`."""
    combine: Routing | None = None
    servers: Servers | None = None
    """Absent if nothing is known of several servers."""
