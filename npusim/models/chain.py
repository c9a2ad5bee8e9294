"""The kernels of a part of a step on one card, launched one after the other by shapes alone.

What kernels hand on has a name: `rows` are the tokens that a layer works on, `residual` what it
adds to. A word of an engine's file takes such values and leaves others; what it takes was just made
and lies in the L2, while weights and caches come from global memory, since those of one layer push
those of the layer before out.
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
"""Tokens of a page of the caches (vllm-ascend, block_size)."""


@dataclass(frozen=True, slots=True)
class Rank:
    """What one card has of a model, and the tokens that it is given."""

    shapes: Shapes
    device: DeviceSpec
    quant: str
    tp: int
    """Cards that share each layer."""
    ep: int
    """Cards that share the experts."""
    dp: int
    """Groups of cards that decode apart; in prefill, one has the prompt and the others wait."""
    requests: int
    new: int
    """Tokens of each request that the step works on; the others are in the caches."""
    context: int
    """Tokens of each request, the new ones included."""
    has_nz_weights: bool
    """Whether weights of floats lie in FRACTAL_NZ; those of int8 always do."""
    has_nz_head: bool
    tokens: int
    """Rows that kernels work on: the new tokens of all requests, and what a graph is padded by."""

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
        """Rows that experts choose from where all cards have the tokens of all."""
        return self.tokens * (self.dp if self.ep > 1 else 1)

    def share(self, count: int) -> int:
        """Of *count* that are split over the cards of a layer, those of one card."""
        return ceil_div(count, self.tp)


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel, or a collective, in its place."""

    word: str
    """The word of the engine's file."""
    time_us: float
    run: Run | None
    """None for a collective."""
    stands_for: str = ""
    """The kernel of the card that npusim has not, which this one is timed for; else nothing."""

    kind: str = ""
    """Of a collective."""

    @property
    def name(self) -> str:
        """The operator, or the kind of collective."""
        return self.run.op if self.run else self.kind


Word = Callable[["Chain"], None]


@dataclass
class Chain:
    """Kernels in the order of their launches, and the values that they hand on."""

    rank: Rank
    launched: list[Launched] = field(default_factory=list)
    word: str = ""
    """The one that runs."""
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
        """The scales of rows, if each has one; else None."""
        return self._values.get("row_scale")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def spec(self, *shape: int, dtype: str = "", layout: str = "ND") -> TensorSpec:
        """A tensor of that shape, of activations unless another type is named."""
        return TensorSpec(shape, dtype or self.rank.real, layout)

    def kernel(
        self, op: str, *args: Any, fresh: str = "", stands_for: str = "", **options: Any
    ) -> Any:
        """Launch *op*; its inputs named in *fresh* were just made."""
        l2: Any = tuple(fresh.split()) or "cold"
        run = npusim.run(op, *args, device=self.rank.device, values=False, l2=l2, **options)
        self.launched.append(Launched(self.word, run.time_us or 0.0, run, stands_for))
        outputs = tuple(run.outputs.values())
        return outputs if len(outputs) > 1 else outputs[0]

    def collective(self, kind: Kind, size_bytes: int, cards: int) -> None:
        """Exchange *size_bytes* of each card with the others; nothing where there are none."""
        if cards > 1:
            time_us = collectives.time_us(kind, size_bytes, cards, self.rank.device)
            self.launched.append(Launched(self.word, time_us, None, kind=kind))

    def route(self, step: Literal["dispatch", "combine"], size_bytes: int, cards: int) -> None:
        """Send *size_bytes* of each card's tokens to the cards of their experts, or back."""
        if cards > 1:
            time_us = experts.routing_us(step, size_bytes, cards, self.rank.device)
            self.launched.append(Launched(self.word, time_us, None, kind=step))

    def one(self, launched: list[Launched], stands_for: str) -> None:
        """Count the *launched* last as the one kernel that they stand for, which starts once."""
        del self.launched[-len(launched) :]
        longest = max(launched, key=lambda each: each.time_us)
        saved_us = sum(each.run.launch_us for each in launched if each.run) - (
            longest.run.launch_us if longest.run else 0.0
        )
        time_us = sum(each.time_us for each in launched) - saved_us
        self.launched.append(Launched(self.word, time_us, longest.run, stands_for))

    def parts(self, begin: int) -> list[Launched]:
        """What was launched since there were *begin* kernels."""
        return self.launched[begin:]

    def __iter__(self) -> Iterator[Launched]:
        return iter(self.launched)
