"""A change of a call that a caller can make, before it is tried."""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.data.arguments import Arguments
from npusim.data.tensor import TensorSpec

__all__ = ["Change", "resized"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Other arguments for a call, and why they may be quicker."""

    text: str
    """What was found, in plain words."""
    change: str
    """What to do."""
    code: tuple[str, ...] = ()
    """The same as lines of a PyTorch script, where it can be written so."""
    arguments: Arguments
    """Those that differ."""
    topic: str
    """What it is about; of several changes of one topic the best is reported."""
    rows: tuple[int, int] | None = None
    """How many rows the call has, and how many it would have, where they differ."""
    most_us: float | None = None
    """How long it may take at most; changes of its topic that come after it take longer."""
    once: tuple[tuple[str, Arguments], ...] = ()
    """Operators and their arguments that make what is passed, once for many calls."""


def resized(spec: TensorSpec, axis: int, size: int) -> TensorSpec:
    """*spec* with another *size* along *axis*, which counts from the end if it is below 0."""
    shape = list(spec.shape)
    shape[axis] = size
    return replace(spec, shape=tuple(shape))
