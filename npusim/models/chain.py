"""The kernels of a part of a step on one card, launched one after the other from shapes alone.

Values that kernels pass on have names: `rows` are the activations of the tokens in a layer,
`residual` is the residual stream. A word of an engine's file takes such values and leaves others.
The values it takes were just computed and are in the L2; weights and caches come from global
memory, since those of one layer evict those of the layer before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import npusim
from npusim import collectives
from npusim.collectives import Kind, experts
from npusim.data.integers import ceil_div
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.models.shapes import Shapes
from npusim.run.runs import Run

__all__ = ["Chain", "Launched", "Rank", "Word"]

EPSILON = 1e-6
PAGE = 128
"""Tokens in a page of the KV cache (vllm-ascend, block_size)."""


@dataclass(frozen=True, slots=True)
class Rank:
    """The part of a model on one card, and the tokens of the card."""

    shapes: Shapes
    device: DeviceSpec
    quant: str
    tp: int
    """Cards that share each layer."""
    ep: int
    """Cards that share the experts."""
    dp: int
    """Groups of cards that decode independently; in prefill, one has the prompt, others wait."""
    requests: int
    new: int
    """New tokens of each request in the step; the others are in the KV cache."""
    context: int
    """Tokens of each request, including the new ones."""
    has_nz_weights: bool
    """Whether float weights are stored in FRACTAL_NZ; int8 weights always are."""
    has_nz_head: bool
    tokens: int
    """Rows of the kernels: the new tokens of all requests, and the padding of a graph."""

    @property
    def real(self) -> str:
        """The type of activations."""
        return "float16" if self.is_310p else "bfloat16"

    @property
    def is_310p(self) -> bool:
        """Whether it is a card of Atlas inference."""
        return self.device.series == "Atlas inference"

    @property
    def gathered(self) -> int:
        """Rows that are routed to experts if each card has the tokens of all cards."""
        return self.tokens * (self.dp if self.ep > 1 else 1)

    def share(self, count: int) -> int:
        """The part of *count* on one card if the cards of a layer share them."""
        return ceil_div(count, self.tp)


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel or a collective that was launched."""

    word: str
    """The word of the engine's file."""
    time_us: float
    run: Run | None
    """None for a collective."""
    stands_for: str = ""
    """The card's kernel that npusim lacks, for which this one is timed; empty otherwise."""

    kind: str = ""
    """The kind of a collective; empty for a kernel."""

    @property
    def name(self) -> str:
        """The operator, or the kind of collective."""
        return self.run.op if self.run else self.kind


Word = Callable[["Chain"], None]


@dataclass
class Chain:
    """Kernels in launch order, and the values that they pass on."""

    rank: Rank
    launched: list[Launched] = field(default_factory=list)
    word: str = ""
    """The word that is running."""
    _values: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise ValueError(
                f"engines: {self.word} must come after a kernel that leaves {name}, but none has; "
                f"put one before it"
            )
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[name] = value

    @property
    def scale(self) -> Any:
        """The scales of rows if each row has one, else None."""
        return self._values.get("row_scale")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def spec(self, *shape: int, dtype: str = "", layout: str = "ND") -> TensorSpec:
        """A tensor of this shape, with the type of activations by default."""
        return TensorSpec(shape, dtype or self.rank.real, layout)

    def kernel(
        self, op: str, *args: Any, fresh: str = "", stands_for: str = "", **options: Any
    ) -> Any:
        """Launch *op*; its inputs named in *fresh* were just computed."""
        l2: Any = tuple(fresh.split()) or "cold"
        run = npusim.run(op, *args, device=self.rank.device, values=False, l2=l2, **options)
        self.launched.append(Launched(self.word, run.time_us or 0.0, run, stands_for))
        outputs = tuple(run.outputs.values())
        return outputs if len(outputs) > 1 else outputs[0]

    def collective(self, kind: Kind, size_bytes: int, cards: int) -> None:
        """Exchange *size_bytes* of each card with the others; nothing for a single card."""
        if cards > 1:
            time_us = collectives.time_us(kind, size_bytes, cards, self.rank.device)
            self.launched.append(Launched(self.word, time_us, None, kind=kind))

    def route(self, step: Literal["dispatch", "combine"], size_bytes: int, cards: int) -> None:
        """Send *size_bytes* of each card's tokens to the cards of their experts, or back."""
        if cards > 1:
            time_us = experts.routing_us(step, size_bytes, cards, self.rank.device)
            self.launched.append(Launched(self.word, time_us, None, kind=step))

    def one(self, launched: list[Launched], stands_for: str) -> None:
        """Count the last kernels *launched* as the one kernel they stand for, which starts once."""
        del self.launched[-len(launched) :]
        longest = max(launched, key=lambda each: each.time_us)
        saved_us = sum(each.run.launch_us for each in launched if each.run) - (
            longest.run.launch_us if longest.run else 0.0
        )
        time_us = sum(each.time_us for each in launched) - saved_us
        self.launched.append(Launched(self.word, time_us, longest.run, stands_for))

    def parts(self, begin: int) -> list[Launched]:
        """The launches after the first *begin* ones."""
        return self.launched[begin:]

    def __iter__(self) -> Iterator[Launched]:
        return iter(self.launched)
