"""What no caller can change: what bounds a run, and what a chip would gain that is faster there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from npusim.devices.schema import DeviceSpec
from npusim.reports import bounds, style
from npusim.reports.causes import CAUSES, Bound, Known, causes
from npusim.run.result import Run

__all__ = ["TIMES", "WhatIf", "faster", "what_ifs"]

TIMES = 2
"""How many times as fast what bounds the run is tried."""
SUPPOSED = "on a chip where that is twice as fast"
MOST = 2
MIN_SHARE = 0.05
"""Of the time: what is less is not told of."""
GROWS = ("_per_s", "bytes_per_cycle", "repeat_bytes")
"""Ends of the names of numbers that are larger where a chip is faster; all others are smaller."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A chip that is faster where the run is held up."""

    text: str
    change: str
    device: DeviceSpec


def what_ifs(run: Run) -> Iterator[WhatIf]:
    """For each of the causes that take most of the time of *run*."""
    told = [each for each in causes(run) if each.numbers and each.share >= MIN_SHARE][:MOST]
    for bound in told:
        share = style.percent(bound.share)
        text = f"{bound.words} takes {share} of the time{_where(bound)}{_waits(run, bound)}"
        if " and " in bound.words:
            text = text.replace(" takes ", " take ", 1)
        yield WhatIf(text, SUPPOSED, faster(run.device, bound.cause, TIMES))


def _where(bound: Bound) -> str:
    return f", on {bound.where[0][1]} of {bound.where[0][0]}" if bound.where else ""


def _waits(run: Run, bound: Bound) -> str:
    """Who stands still for room that the pipe of *bound* has to make, most of all."""
    pipes = [pipe for _, pipe in bound.where[:1]]
    for row in sorted(bounds.rows(run), key=lambda row: -row.share):
        src, _, carried = row.reason.partition(": ")
        if row.cause == "flag" and src in pipes and carried.startswith("room"):
            if row.share < MIN_SHARE:
                return ""
            return f"; {row.pipe} waits for {carried} {style.percent(row.share)} of the cores' time"
    return ""


def faster(spec: DeviceSpec, cause: Known, factor: int) -> DeviceSpec:
    """*spec* with every number that *cause* depends on so many times as fast."""
    tree = spec.model_dump()
    _scale(tree, "", CAUSES[cause].numbers, factor)
    return DeviceSpec.model_validate(tree)


def _scale(tree: dict[str, Any], above: str, numbers: tuple[str, ...], factor: int) -> None:
    for name, value in tree.items():
        key = f"{above}{name}"
        if isinstance(value, dict):
            _scale(value, f"{key}.", numbers, factor)
        elif value is not None and any(fnmatchcase(key, number) for number in numbers):
            if key.endswith(GROWS) or "k_per_cycle" in key:
                tree[name] = value * factor
            else:
                tree[name] = value // factor if isinstance(value, int) else value / factor
