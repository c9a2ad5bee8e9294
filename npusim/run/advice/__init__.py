"""What to change, each piece of advice tried before it is given.

Rules look at a run and name changes that its caller can make. Each is run for its time, and those
that gain are told, with the time that came out. What no caller can change is told as a what-if,
on a chip that is faster where the run is held up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from npusim.devices.settings import changed
from npusim.run.advice.change import Change
from npusim.run.advice.others import attributes, launches, scales, templates
from npusim.run.advice.rows import rows
from npusim.run.advice.weights import layouts, sizes
from npusim.run.advice.what_if import WhatIf, what_ifs
from npusim.run.result import Run

if TYPE_CHECKING:
    from npusim.chip import Progress
    from npusim.run.again import Call

__all__ = ["MIN_GAIN", "Advice", "advise"]

MIN_GAIN = 0.02
"""Share of the time that advice must gain to be given; assumed, a fraction of the model's error."""
RULES = (launches, layouts, templates, sizes, scales, attributes, rows)


@dataclass(frozen=True, slots=True)
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
    arguments: dict[str, Any] = field(default_factory=dict)
    """The arguments that differ, tensors as :class:`npusim.TensorSpec`; none for a what-if."""
    settings: dict[str, float] = field(default_factory=dict)
    """Of a what-if the numbers of the chip that differ, as `--set` takes them."""
    rows: tuple[int, int] | None = None
    """How many rows the call has, and how many it has with the change, where they differ."""
    once_us: float | None = None
    """What making the tensor that is passed takes, once for many calls; None where nothing does."""

    @property
    def gain(self) -> float:
        """Share of the time that it saves, for the same work: of a row, where rows differ."""
        before, after = self.rows or (1, 1)
        return 1 - (self.after_us / after) / (self.before_us / before)

    def __str__(self) -> str:
        """For example `cast it ...: 52.32 us becomes 45.89 us, 12 % less; ...`."""
        return f"{self.change}: {self.times}"

    @property
    def times(self) -> str:
        """Both times, and what is saved."""
        if self.rows is None:
            told = f"{self.before_us:.2f} us becomes {self.after_us:.2f} us, {self.gain:.0%} less"
        else:
            before, after = self.rows
            told = (
                f"{self.before_us:.2f} us for {before} rows becomes {self.after_us:.2f} us for "
                f"{after}, {self.gain:.0%} less a row"
            )
        more = (
            ""
            if self.once_us is None
            else f"; making what is passed takes {self.once_us:.2f} us, once"
        )
        return told.replace("%", " %") + more


def advise(run: Run, progress: Progress | None = None) -> list[Advice]:
    """What would make *run* quicker, tried: changes first, what gains most before the rest.

    *progress* hears of the stage "advice". Raises ValueError for a run that was not timed or had
    nothing to do.
    """
    call = run.call
    if run.trace is None or call is None or not run.time_us:
        raise ValueError(
            f"advice: a run must have been timed and have had work to do, not {run!r}; run it "
            f"with timing=True on tensors that are not empty"
        )
    changes = [change for rule in RULES for change in rule(run, call)]
    others = list(what_ifs(run))
    count = len(changes) + len(others)
    best: dict[str, Advice] = {}
    for number, change in enumerate(changes):
        if progress is not None:
            progress("advice", number / count)
        found = _tried(run, call, change)
        known = best.get(change.topic)
        # A simpler one, which comes first, is kept unless another one is clearly better.
        if found is not None and (known is None or found.gain > known.gain + MIN_GAIN / 2):
            best[change.topic] = found
    told = sorted(best.values(), key=lambda each: (each.rows is not None, -each.gain))
    for number, other in enumerate(others, len(changes)):
        if progress is not None:
            progress("advice", number / count)
        told += _supposed(run, call, other)
    return told


def _tried(run: Run, call: Call, change: Change) -> Advice | None:
    """*change*, if a call with it gains."""
    assert run.time_us is not None
    after = call.timed(change.arguments)
    if after is None or after.time_us is None:
        return None
    found = Advice(
        *(change.text, change.change, run.time_us, after.time_us, "change"),
        arguments=change.arguments,
        rows=change.rows,
        once_us=_once(call, change),
    )
    if found.gain < MIN_GAIN:
        return None
    if change.most is not None and after.time_us > change.most * run.time_us:
        return None
    return found


def _once(call: Call, change: Change) -> float | None:
    """What making what is passed takes, where operators make it."""
    made = [call.other(op, arguments) for op, arguments in change.once]
    return sum(run.time_us or 0.0 for run in made if run is not None) if made else None


def _supposed(run: Run, call: Call, other: WhatIf) -> list[Advice]:
    assert run.time_us is not None
    after = call.timed(device=changed(run.device, other.settings))
    if after is None or after.time_us is None:
        return []
    times = run.time_us, after.time_us
    found = Advice(other.text, other.change, *times, "what if", settings=other.settings)
    return [found] if found.gain >= MIN_GAIN else []
