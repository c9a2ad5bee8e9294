"""Advice on what to change; each piece is simulated before it is given.

Rules examine a run and propose changes that its caller can make. Each is run for its time, and
those that save time are listed, with the resulting time; then several of them together. What no
caller can change is reported as a what-if: a chip that is faster where the run is limited, or a
kernel whose queues have one more slot.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npusim.devices.settings import changed
from npusim.run.advice.change import Change
from npusim.run.advice.others import TEMPLATE, attributes, launches, scales, templates
from npusim.run.advice.piece import MIN_GAIN, Advice
from npusim.run.advice.rows import rows
from npusim.run.advice.slots import is_same_work, slots
from npusim.run.advice.together import together
from npusim.run.advice.weights import layouts, sizes
from npusim.run.advice.what_if import WhatIf, what_ifs
from npusim.run.result import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npusim.chip import Progress
    from npusim.run.result import Call

__all__ = ["MIN_GAIN", "Advice", "advise"]

RULES = (launches, layouts, templates, sizes, scales, attributes, rows)


def advise(run: Result, progress: Progress | None = None) -> list[Advice]:
    """Changes that would make *run* faster, simulated: changes of the call by what they save,
    several of them together, changes of the number of rows, and what-ifs.

    *progress* receives the stage "advice". Raises ValueError for a run that was not timed or did
    nothing.
    """
    call = run.call
    if run.trace is None or call is None or not run.time_us:
        raise ValueError(
            f"advice: a run must have been timed and have had work to do, not {run!r}; run it "
            f"with timing=True on tensors that are not empty"
        )
    changes = [change for rule in RULES for change in rule(run, call)]
    others = [*what_ifs(run), *slots(run)]
    count = len(changes) + 1 + len(others)

    def at(number: int) -> None:
        if progress is not None:
            progress("advice", number / count)

    best = _best(run, call, changes, at)
    ranked = sorted(best.values(), key=lambda each: -each.gain)
    same = [each for each in ranked if each.rows is None]
    at(len(changes))
    # A card chooses the kernel itself, so a caller cannot select another template.
    both = together(call, [each for each in same if each is not best.get(TEMPLATE)])
    found = [*same, *filter(None, [both]), *(each for each in ranked if each.rows is not None)]
    for number, other in enumerate(others, len(changes) + 1):
        at(number)
        found += _supposed(run, call, other, found)
    return found


def _best(
    run: Result, call: Call, changes: list[Change], at: Callable[[int], None]
) -> dict[str, Advice]:
    """The change of each topic that saves most, if any does; *at* is called with each trial."""
    best: dict[str, tuple[Advice, Change]] = {}
    over: set[str] = set()
    for number, change in enumerate(changes):
        at(number)
        after = call.timed(change.arguments) if change.topic not in over else None
        if after is None:
            continue
        found = _piece(run, change, after)
        if change.most_us is not None and found.after_us > change.most_us:
            over.add(change.topic)  # later ones take even longer
            continue
        # A simpler change, which comes first, is preferred unless another is clearly better.
        known = best[change.topic][0].gain + MIN_GAIN / 2 if change.topic in best else MIN_GAIN
        if found.gain >= known:
            best[change.topic] = found, change
    return {
        topic: replace(found, once_us=_once(call, change))
        for topic, (found, change) in best.items()
    }


def _piece(run: Result, change: Change, after: Result) -> Advice:
    return Advice(
        *(change.text, change.change, run.time_us or 0.0, after.time_us or 0.0, "change"),
        arguments=change.arguments,
        rows=change.rows,
        code=change.code,
    )


def _once(call: Call, change: Change) -> float | None:
    """The one-time cost of what is passed, if operators make it."""
    made = [call.other(op, arguments) for op, arguments in change.once]
    return sum(run.time_us or 0.0 for run in made if run is not None) if made else None


def _supposed(run: Result, call: Call, other: WhatIf, known: Iterable[Advice]) -> list[Advice]:
    """The result of *other*, if it saves time in addition to what is *known*."""
    assert run.time_us is not None
    assert run.trace is not None
    device = changed(run.device, other.settings) if other.settings else None
    after = call.timed(device=device, deeper=other.queues)
    if after is None or after.time_us is None or after.trace is None:
        return []
    if other.queues and not is_same_work(run.trace, after.trace):
        return []
    # A kernel's author who can gain as much by an attribute needs no deeper queue.
    numbers = [each for each in known if run.is_own_kernel and each.kind == "change"]
    if other.queues and any(each.after_us <= after.time_us for each in numbers):
        return []
    found = Advice(
        *(other.text, other.change, run.time_us, after.time_us, "what if"),
        settings=other.settings,
        queues=other.queues,
    )
    return [found] if found.gain >= MIN_GAIN else []
