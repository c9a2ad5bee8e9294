"""A piece of advice, with the times that it was tried with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from npusim.data.arguments import Arguments
from npusim.kernel.program import QueueName

__all__ = ["MIN_GAIN", "Advice"]

MIN_GAIN = 0.02
"""Share of the time that advice must gain to be given; assumed, a fraction of the model's error."""


@dataclass(frozen=True, slots=True, repr=False)
class Advice:
    """One piece of advice, and the times that it was tried with."""

    text: str
    """What was found, in plain words."""
    change: str
    """What to do; of a what-if, what would have to be otherwise."""
    before_us: float
    after_us: float
    """The time of the changed call, which was simulated as any other."""
    kind: Literal["change", "what if"]
    arguments: Arguments = field(default_factory=dict)
    """The arguments that differ, tensors as :class:`npusim.TensorSpec`; none for a what-if."""
    settings: dict[str, float] = field(default_factory=dict)
    """The numbers of the chip that differ in a what-if, as `--set` takes them."""
    queues: tuple[QueueName, ...] = ()
    """The queues of the kernel that have a slot more in a what-if."""
    rows: tuple[int, int] | None = None
    """How many rows the call has, and how many it has with the change, where they differ."""
    code: tuple[str, ...] = ()
    """What to do as lines of a PyTorch script, where it can be written so."""
    once_us: float | None = None
    """What it takes to make what is passed, once for many calls; None where nothing is made."""

    @property
    def gain(self) -> float:
        """Share of the time that it saves, for the same work: of a row, where rows differ."""
        before, after = self.rows or (1, 1)
        return 1 - (self.after_us / after) / (self.before_us / before)

    def __str__(self) -> str:
        """For example `cast it ...: 52.32 us becomes 45.89 us, 12 % less; ...`."""
        return f"{self.change}: {self.times}"

    def __repr__(self) -> str:
        return f"<Advice: {self}>"

    @property
    def times(self) -> str:
        """Both times, and what is saved."""
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
