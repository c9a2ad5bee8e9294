"""The schema of an engine file: what it launches for a step, and what its host takes for that.

A host launches kernels one by one, or a graph of them at once. While it works the card works too,
unless it is *awaited*: ``step = before_us + max(card, host)``, or their sum for what is awaited.
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
"""Weights: as they are, int8 with a scale for each token or a fixed one, int4."""


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
    """What the host takes, whatever a step does."""

    before_us: HostMicroseconds
    """Between the last kernel of a step and the first of the next one: sampling's ids to the host,
    the scheduler, inputs."""
    request_us: HostMicroseconds
    """Of a request before the first kernel of its prompt and after the last: server, tokens,
    scheduler."""


class Phase(Part):
    """How kernels are launched in decode, or in prefill."""

    singly: SinglyWords
    """The words whose kernels the host launches one by one, or "all"; others are in graphs."""
    launch_us: HostMicroseconds
    """The host's time for one such launch."""
    layer_us: HostMicroseconds
    """The host's time for each layer in addition: graphs that it replays, arguments that it binds
    anew."""
    is_awaited: Flag
    """Whether the card stands still while the host works on a layer."""
    gap_us: HostMicroseconds
    """From the end of a kernel to the start of the next one where both are launched already."""
    graph_tokens: Annotated[tuple[Count, ...], SOURCED, Field(strict=False)]
    """The tokens for which there are graphs: a step is padded to the next one, and beyond the last
    every kernel is launched singly and nothing is awaited. Empty where there are no graphs."""


class Dispatch(Part):
    """When tokens go straight to the cards of their experts."""

    least_cards: Count
    most_local_experts: Count
    most_tokens: Count


class Weights(Part):
    """How weights lie in memory."""

    float_layout: Annotated[Literal["ND", "NZ"], SOURCED]
    """Of floats; those of int8 are in FRACTAL_NZ."""
    lm_head_layout: Annotated[Literal["ND", "NZ"], SOURCED]


class Streams(Part):
    """What runs on a second stream, at the same time as the rest."""

    shared_experts: Flag
    """Whether the expert of all tokens does."""


class Kernels(Part):
    """The kernels of a step, in the order of their launches."""

    attention: Lists
    """Of a layer with heads, from its first norm to the sum of cards."""
    latent: Lists = Field(default_factory=dict)
    """The same with latent attention (MLA), in decode."""
    latent_prefill: Lists = Field(default_factory=dict)
    """The same in prefill."""
    mlp: Lists
    """Of a dense layer, from its second norm."""
    experts: Lists = Field(default_factory=dict)
    """Of a layer with experts, from its second norm, where every card has all tokens."""
    dispatch: Lists = Field(default_factory=dict)
    """The same where kernels send tokens straight to the cards of their experts."""
    exchange: Lists = Field(default_factory=dict)
    """The same by collectives, for more tokens than such kernels take."""
    before: Words
    after: Words
    """From the last norm to the ids of tokens."""


class Engine(Part):
    """What serves a model, with the source of every number and list."""

    thing: ClassVar[str] = "engine"
    name: Name
    host: Host
    decode: Phase
    prefill: Phase
    weights: Weights
    dispatch: dict[Literal["A2", "A3"], Dispatch]
    """Series -> when; left out where it never does."""
    streams: Streams
    kernels: Kernels
    sources: dict[str, Source] = Field(default_factory=dict, repr=False)
    """Dotted key of each number and list -> where it comes from."""

    def __hash__(self) -> int:
        return hash(self.name)
