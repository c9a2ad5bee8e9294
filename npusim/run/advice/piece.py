"""A piece of advice, with the times of its simulation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from npusim.data.arguments import Arguments
from npusim.kernel.program import QueueName

__all__ = ["MIN_GAIN", "Advice"]

MIN_GAIN = 0.02
"""Least share of the time that advice must save; assumed, a fraction of the model's error."""


@dataclass(frozen=True, slots=True, repr=False)
class Advice:
    """One piece of advice, and the times of its simulation."""

    text: str
    """The finding, in plain words."""
    change: str
    """What to do; for a what-if, what would have to be different."""
    before_us: float
    after_us: float
    """The time of the changed call, simulated like any other."""
    kind: Literal["change", "what if"]
    arguments: Arguments = field(default_factory=dict)
    """The arguments that differ, tensors as :class:`npusim.TensorSpec`; empty for a what-if."""
    settings: dict[str, float] = field(default_factory=dict)
    """The chip's numbers that differ in a what-if, in the notation of `--set`."""
    queues: tuple[QueueName, ...] = ()
    """The queues of the kernel that have one more slot in a what-if."""
    rows: tuple[int, int] | None = None
    """Rows of the call now and with the change, if they differ."""
    code: tuple[str, ...] = ()
    """What to do, as lines of a PyTorch script, if it can be written that way."""
    once_us: float | None = None
    """One-time cost of what is passed, shared by many calls; None if there is none."""

    @property
    def gain(self) -> float:
        """Share of the time that it saves for the same work: per row, if rows differ."""
        before, after = self.rows or (1, 1)
        return 1 - (self.after_us / after) / (self.before_us / before)

    def __str__(self) -> str:
        """For example `cast it ...: 52.32 us becomes 45.89 us, 12 % less; ...`."""
        return f"{self.change}: {self.times}"

    def __repr__(self) -> str:
        return f"<Advice: {self}>"

    @property
    def times(self) -> str:
        """Both times, and the saving."""
        saved = f"{self.gain:.0%} less"
        before, after = self.rows or (1, 1)
        if self.rows is None:
            words = f"{self.before_us:.2f} us becomes {self.after_us:.2f} us, {saved}"
        elif after % before == 0:
            times = f"{after // before} x {self.before_us:.2f} us"
            words = f"{self.after_us:.2f} us instead of {times}, {saved}"
        else:
            words = (
                f"{self.after_us:.2f} us for {after} rows instead of {self.before_us:.2f} us for "
                f"{before}, {saved} for each row"
            )
        once = "" if self.once_us is None else f"; one-time cost: {self.once_us:.2f} us"
        return words.replace("%", " %") + once
