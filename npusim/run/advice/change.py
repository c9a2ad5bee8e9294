"""A change of a call that a caller can make, before it is simulated."""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.data.arguments import Arguments
from npusim.data.tensor import TensorSpec

__all__ = ["Change", "resized"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Different arguments for a call, and why they may be faster."""

    text: str
    """The finding, in plain words."""
    change: str
    """What to do."""
    code: tuple[str, ...] = ()
    """The same as lines of a PyTorch script, if it can be written that way."""
    arguments: Arguments
    """The arguments that differ."""
    topic: str
    """Subject; of several changes with one topic the best is reported."""
    rows: tuple[int, int] | None = None
    """Rows of the call now and with the change, if they differ."""
    most_us: float | None = None
    """Upper limit for its time; later changes of its topic take longer."""
    once: tuple[tuple[str, Arguments], ...] = ()
    """Operators and their arguments that make what is passed, once for many calls."""


def resized(spec: TensorSpec, axis: int, size: int) -> TensorSpec:
    """*spec* with another *size* along *axis*, which counts from the end if negative."""
    shape = list(spec.shape)
    shape[axis] = size
    return replace(spec, shape=tuple(shape))
