"""What a decoder is made of, as far as its kernels and its memory depend on it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Experts", "Heads", "Latent", "Shapes"]


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention by heads, of which several of queries may share one of keys and values."""

    count: int
    kv_count: int
    size: int
    """Elements of a head of queries, keys or values."""
    has_norms: bool = False
    """Whether each head of queries and keys is divided by its root mean square."""
    window: int | None = None
    """Tokens that layers with a window look back; None where all look back to the first."""
    window_share: float = 0.0
    """The share of the layers that have the window."""

    @property
    def cache_elements(self) -> int:
        """Of a token in a layer: keys and values."""
        return 2 * self.kv_count * self.size


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (MLA): keys and values of all heads come from one short row."""

    count: int
    q_rank: int | None
    """Elements of the row that queries come from; None where they come from the token itself."""
    kv_rank: int
    rope: int
    """Elements of a head that are turned by the position; those of keys are shared by all heads."""
    nope: int
    """Elements of a head of queries and keys that are not turned."""
    value: int
    """Elements of a head of values."""

    @property
    def cache_elements(self) -> int:
        """Of a token in a layer: the short row and the turned part of the keys."""
        return self.kv_rank + self.rope


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of the dense product of a layer."""

    count: int
    chosen: int
    """Experts of a token."""
    intermediate: int
    """Of one expert."""
    shared_intermediate: int
    """Of what every token goes through as well; 0 where there is no such expert."""
    layers: int
    """Layers that have experts; the others are dense."""
    groups: int = 1
    chosen_groups: int = 1
    is_sigmoid: bool = False
    """Whether the gate weighs by sigmoids and not by a softmax."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """A decoder: sizes of its layers and of both ends."""

    architecture: str
    """The class in transformers: `Qwen3ForCausalLM`."""
    hidden: int
    layers: int
    vocabulary: int
    longest: int
    """Tokens of a request at most."""
    attention: Heads | Latent
    intermediate: int
    """Of a dense layer."""
    experts: Experts | None
    has_output_norms: bool
    """Whether a layer divides what attention and products give by its root mean square too."""
    is_tied: bool
    """Whether both ends share one table of tokens."""

    @property
    def dense_layers(self) -> int:
        """Layers without experts."""
        return self.layers - (self.experts.layers if self.experts else 0)

    @property
    def attention_weights(self) -> int:
        """Elements of the weights of the products around attention, of one layer."""
        own = self.attention
        if isinstance(own, Heads):
            return self.hidden * own.size * (2 * own.count + 2 * own.kv_count)
        head = own.nope + own.rope
        queries = self.hidden * own.count * head
        if own.q_rank is not None:
            queries = own.q_rank * (self.hidden + own.count * head)
        keys = self.hidden * (own.kv_rank + own.rope)
        expanded = own.kv_rank * own.count * (own.nope + own.value)
        return queries + keys + expanded + own.count * own.value * self.hidden

    @property
    def dense_weights(self) -> int:
        """Elements of the weights of gate, up and down of one dense layer."""
        return 3 * self.hidden * self.intermediate

    @property
    def word_weights(self) -> int:
        """Elements of the tables of tokens at both ends."""
        return self.vocabulary * self.hidden * (1 if self.is_tied else 2)
