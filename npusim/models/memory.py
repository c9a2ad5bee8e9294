"""The memory of a model on a card: its part of the weights, and the KV cache of its requests."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.integers import ceil_div
from npusim.models.chain import PAGE
from npusim.models.shapes import Heads, Shapes
from npusim.reports.style import size_named

__all__ = ["Memory", "memory_of"]

GROUP = 128
"""Rows of an int4 weight that share a scale."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one card."""

    weights_bytes: int
    cache_bytes: int
    capacity_bytes: int

    @property
    def needed_bytes(self) -> int:
        """The bytes of both."""
        return self.weights_bytes + self.cache_bytes

    @property
    def fits(self) -> bool:
        """Whether the card has enough memory; that of kernels and the engine is not counted."""
        return self.needed_bytes <= self.capacity_bytes

    def __str__(self) -> str:
        whole = (
            f"{size_named(self.weights_bytes)} of weights and {size_named(self.cache_bytes)} of "
            f"caches on each card, of {size_named(self.capacity_bytes)}"
        )
        if self.fits:
            return whole
        what = "the weights alone do" if self.weights_bytes > self.capacity_bytes else "they do"
        times = ceil_div(self.needed_bytes, self.capacity_bytes)
        return f"{whole}: {what} not fit; take {times} times as many cards, or less of them"

    def to_json(self) -> dict[str, object]:
        """The same as plain numbers."""
        return {
            "weights_bytes": self.weights_bytes,
            "cache_bytes": self.cache_bytes,
            "capacity_bytes": self.capacity_bytes,
            "fits": self.fits,
        }


def memory_of(
    shapes: Shapes,
    quant: str,
    tp: int,
    ep: int,
    requests: int,
    context: int,
    capacity_bytes: int,
) -> Memory:
    """The memory of a card that decodes *requests* of *context* tokens each."""
    share = _bytes_each(quant)
    attention = shapes.layers * shapes.attention_weights // tp
    dense = shapes.dense_layers * shapes.dense_weights // tp
    weights = share * (attention + dense)
    if shapes.experts is not None:
        own = shapes.experts
        each = 3 * shapes.hidden * own.intermediate
        local = own.count * each // (ep if ep > 1 else tp)
        shared = 3 * shapes.hidden * own.shared_intermediate // tp
        weights += share * own.layers * (local + shared)
        weights += 4 * own.layers * own.count * shapes.hidden  # the gate is fp32
    weights += 2 * shapes.word_weights / tp
    return Memory(round(weights), _cache_bytes(shapes, tp, requests, context), capacity_bytes)


def _bytes_each(quant: str) -> float:
    """Bytes per element of a weight, including scales of groups; scales of columns are few."""
    return {"float": 2.0, "w4a16": 0.5 + 2 / GROUP}.get(quant, 1.0)


def _cache_bytes(shapes: Shapes, tp: int, requests: int, context: int) -> int:
    """Keys and values of two bytes per element, in whole pages; latent rows are on every card."""
    own = shapes.attention
    elements = own.cache_elements
    if isinstance(own, Heads):
        elements = 2 * ceil_div(own.kv_count, tp) * own.size
    rows = ceil_div(context, PAGE) * PAGE
    return 2 * shapes.layers * requests * rows * elements
