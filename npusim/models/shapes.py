"""The shapes of a decoder, as far as its kernels and its memory depend on them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Experts", "Heads", "Latent", "Shapes"]


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention by heads; several query heads may share one head of keys and values (GQA)."""

    count: int
    kv_count: int
    size: int
    """Elements of a head of queries, keys or values."""
    has_norms: bool = False
    """Whether each head of queries and keys is normalised by its root mean square."""
    window: int | None = None
    """The sliding window in tokens; None if all layers attend back to the first token."""
    window_share: float = 0.0
    """The share of the layers that have the window."""

    @property
    def cache_elements(self) -> int:
        """KV cache elements of a token in a layer: keys and values."""
        return 2 * self.kv_count * self.size


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (MLA): keys and values of all heads come from one latent row."""

    count: int
    q_rank: int | None
    """Elements of the latent row of queries; None if queries come from the hidden state."""
    kv_rank: int
    rope: int
    """Elements of a head with rotary embedding; those of keys are shared by all heads."""
    nope: int
    """Elements of a head of queries and keys without rotary embedding."""
    value: int
    """Elements of a head of values."""

    @property
    def cache_elements(self) -> int:
        """KV cache elements of a token in a layer: the latent row and the rotary part of keys."""
        return self.kv_rank + self.rope


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts instead of the dense MLP of a layer."""

    count: int
    chosen: int
    """Experts per token."""
    intermediate: int
    """The intermediate size of one expert."""
    shared_intermediate: int
    """The intermediate size of the shared expert, which gets every token; 0 without one."""
    layers: int
    """The number of layers with experts; the others are dense."""
    groups: int = 1
    chosen_groups: int = 1
    is_sigmoid: bool = False
    """Whether the gate uses sigmoids instead of a softmax."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """A decoder: the sizes of its layers, its embedding and its head."""

    architecture: str
    """The class in transformers: `Qwen3ForCausalLM`."""
    hidden: int
    layers: int
    vocabulary: int
    longest: int
    """The most tokens of a request."""
    attention: Heads | Latent
    intermediate: int
    """The intermediate size of a dense layer."""
    experts: Experts | None
    has_output_norms: bool
    """Whether a layer also normalises the results of attention and MLP by root mean square."""
    is_tied: bool
    """Whether embedding and head share one table of tokens."""

    @property
    def dense_layers(self) -> int:
        """Layers without experts."""
        return self.layers - (self.experts.layers if self.experts else 0)

    @property
    def attention_weights(self) -> int:
        """Elements of the weights of the projections around attention in one layer."""
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
        """Elements of the tables of tokens of embedding and head."""
        return self.vocabulary * self.hidden * (1 if self.is_tied else 2)
