"""The schema of an engine file: the kernels it launches for a step, and the host's time for them.

A host launches kernels one by one, or a graph of them at once. It works in parallel to the card
unless the card waits for it: ``step = before_us + max(card, host)``, or their sum if *awaited*.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from npusim.devices.names import Name, visible
from npusim.devices.parts import Part, Source
from npusim.devices.ranges import SOURCED, Within
from npusim.engines.words import ALL, WORDS

__all__ = ["Dispatch", "Engine", "Host", "Phase", "Quant"]

HostMicroseconds = Annotated[float, Within(0, 10_000_000, "us", "hosts take up to 0.2 s a request")]
Count = Annotated[int, Within(1, 1 << 24, "of them", "graphs are for up to thousands of tokens")]
Quant = Literal["float", "w8a8", "w8a8-static", "w4a16"]
"""Weights: unquantised, int8 with a scale per token or a static one, or int4."""


def _known_word(word: str) -> str:
    if word not in WORDS:
        raise ValueError(f"must be words that are known, not {visible(word)}; see docs/models.md")
    return word


def _known_or_all(word: str) -> str:
    return word if word == ALL else _known_word(word)


Words = Annotated[
    tuple[Annotated[str, AfterValidator(_known_word)], ...], SOURCED, Field(strict=False)
]
SinglyWords = Annotated[
    tuple[Annotated[str, AfterValidator(_known_or_all)], ...], SOURCED, Field(strict=False)
]
Flag = Annotated[bool, SOURCED]
Lists = dict[Quant, Words]


class Host(Part):
    """The host's time that does not depend on the step."""

    before_us: HostMicroseconds
    """From the last kernel of a step to the first of the next one: sampled ids to the host,
    scheduler, inputs."""
    request_us: HostMicroseconds
    """Per request, before the first kernel of its prompt and after the last one: server, tokens,
    scheduler."""


class Phase(Part):
    """How kernels are launched in decode, or in prefill."""

    singly: SinglyWords
    """The words whose kernels the host launches one by one, or "all"; others are in graphs."""
    launch_us: HostMicroseconds
    """The host's time for one such launch."""
    layer_us: HostMicroseconds
    """The host's additional time for each layer: replaying graphs, rebinding arguments."""
    is_awaited: Flag
    """Whether the card is idle while the host works on a layer."""
    gap_us: HostMicroseconds
    """From the end of a kernel to the start of the next one if both are already launched."""
    graph_tokens: Annotated[tuple[Count, ...], SOURCED, Field(strict=False)]
    """Token counts for which there are graphs: a step is padded to the next one; beyond the last,
    every kernel is launched singly and nothing is awaited. Empty if there are no graphs."""


class Dispatch(Part):
    """When tokens are sent directly to the cards of their experts."""

    least_cards: Count
    most_local_experts: Count
    most_tokens: Count


class Weights(Part):
    """Layout of weights in memory."""

    float_layout: Annotated[Literal["ND", "NZ"], SOURCED]
    """Layout of float weights; int8 weights are in FRACTAL_NZ."""
    lm_head_layout: Annotated[Literal["ND", "NZ"], SOURCED]


class Streams(Part):
    """Work on a second stream, in parallel to the rest."""

    shared_experts: Flag
    """Whether the shared expert runs there."""


class Kernels(Part):
    """The kernels of a step, in launch order."""

    attention: Lists
    """For a layer with heads, from its first norm to the sum over cards."""
    latent: Lists = Field(default_factory=dict)
    """The same for latent attention (MLA), in decode."""
    latent_prefill: Lists = Field(default_factory=dict)
    """The same for latent attention in prefill."""
    mlp: Lists
    """For a dense layer, from its second norm."""
    experts: Lists = Field(default_factory=dict)
    """For a layer with experts, from its second norm, if every card has all tokens."""
    dispatch: Lists = Field(default_factory=dict)
    """The same if kernels send tokens directly to the cards of their experts."""
    exchange: Lists = Field(default_factory=dict)
    """The same by collectives, for more tokens than such kernels take."""
    before: Words
    after: Words
    """From the last norm to the ids of the new tokens."""


class Engine(Part):
    """An engine that serves a model, with the source of every figure and list."""

    thing: ClassVar[str] = "engine"
    name: Name
    host: Host
    decode: Phase
    prefill: Phase
    weights: Weights
    dispatch: dict[Literal["A2", "A3"], Dispatch]
    """Series -> its conditions; absent if tokens are never sent directly."""
    streams: Streams
    kernels: Kernels
    sources: dict[str, Source] = Field(default_factory=dict, repr=False)
    """Dotted key of each figure and list -> its source."""

    def __hash__(self) -> int:
        return hash(self.name)
