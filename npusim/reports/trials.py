"""What bounds a run, found by simulating the programs on a chip slightly faster in one respect.

The critical path proposes causes, the largest first. Each of them is made :data:`FACTOR` times as
fast, in all the numbers of the chip that it depends on, and the same programs are timed again. The
gain gives the share of the cause. If most of the time remains unexplained, the two causes whose
gains fall furthest short of their share of the path are tried together: limits that tie gain only
if both are raised.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import lru_cache

from npusim.devices.problems import ends
from npusim.devices.schema import DeviceSpec
from npusim.devices.settings import SettingError, changed
from npusim.reports.causes import CAUSES, least_us, path_causes
from npusim.reports.subject import Timed, trace_of
from npusim.trace import Known, Trial

__all__ = ["FACTOR", "MOST", "faster", "settings", "try_causes"]

FACTOR = 1.05
"""The speedup of a cause in a trial: so small that no other bottleneck takes its place."""
MOST = 4
"""The most causes that are tried one by one."""
UNEXPLAINED = 0.2
"""If no single cause explains this share of the time, two are tried together."""
CHIPS = 64
"""Size of the cache of faster chips: a few causes of each chip of a sweep."""
BUSY = 0.5
"""A link that all cores share is tried if it is busy for this share of the time, on any path."""
GROWS = ("_per_s", "bytes_per_cycle", "tiles_per_cycle")
"""Suffixes of the names of numbers that are larger on a faster chip; all others are smaller."""


def try_causes(run: Timed, time_us: Callable[[DeviceSpec], float]) -> tuple[Trial, ...]:
    """The trials of *run*; *time_us* returns the time of its programs on another chip.

    Raises ValueError for a run that was not timed or had nothing to do.
    """
    found = path_causes(run)
    path = {bound.cause: bound.path_share for bound in found}
    before_us = sum(bound.path_us for bound in found)
    least = {cause: us / before_us for cause, us in least_us(trace_of(run), run.device).items()}
    # A link that is busy most of the time may bound a run whose critical path does not show it.
    busy = {cause: share for cause, share in least.items() if share >= BUSY}
    most = {
        cause: max(path.get(cause, 0.0), busy.get(cause, 0.0))
        for cause in dict.fromkeys((*path, *busy))
    }
    candidates = sorted(
        (cause for cause in most if CAUSES[cause].numbers),
        key=lambda cause: (-most[cause], list(CAUSES).index(cause)),
    )[:MOST]

    def tried(*causes: Known) -> Trial | None:
        found = _faster(run.device, causes)
        if found is None:
            return None
        removed, values, device = found
        return Trial(causes, removed, values, time_us(device))

    alone = [trial for trial in map(tried, candidates) if trial is not None]
    shares = {trial.causes[0]: trial.share(before_us) for trial in alone}
    if len(shares) > 1 and 1 - sum(shares.values()) - path.get("earlier", 0.0) >= UNEXPLAINED:
        first, second = sorted(shares, key=lambda cause: shares[cause] - most[cause])[:2]
        both = tried(*sorted((first, second), key=candidates.index))
        return (*alone, both) if both else tuple(alone)
    return tuple(alone)


@lru_cache(CHIPS)
def _faster(
    spec: DeviceSpec, causes: tuple[Known, ...]
) -> tuple[float, dict[str, float], DeviceSpec] | None:
    """*spec* with *causes* made faster: the share of their time that is saved, the numbers that
    differ, and the chip.

    None where no number can be changed.
    """
    before = _numbers(spec)
    values: dict[str, float] = {}
    for cause in causes:
        own = settings(spec, cause, FACTOR)
        moved = {name: value for name, value in own.items() if value != before[name]}
        # Numbers of one or two cycles cannot be reduced by a twentieth, but by a whole cycle.
        values |= moved or {name: max(0, before[name] - 1) for name in own if before[name] > 0}
    if not values:
        return None
    # A single whole number gives the exact change; of several, some changed by more and some by
    # less than they should.
    removed = {1 - min(pair) / max(pair) for pair in ((before[key], values[key]) for key in values)}
    try:
        device = changed(spec, values)
    except SettingError:
        return None  # the number is already the lowest that a chip may have
    return (removed.pop() if len(removed) == 1 else 1 - 1 / FACTOR), values, device


def faster(spec: DeviceSpec, cause: Known, factor: float) -> DeviceSpec:
    """*spec* with every number that *cause* depends on faster by this factor."""
    return changed(spec, settings(spec, cause, factor))


def settings(spec: DeviceSpec, cause: Known, factor: float) -> dict[str, float]:
    """The arguments of `--set` for that: the dotted keys of the numbers, and their values.

    Whole numbers stay whole. The rounding error of one of them is carried over to the next, so that
    all of them together have the right speed.
    """
    found: dict[str, float] = {}
    left = 0.0
    for name, value in _numbers(spec).items():
        if not any(fnmatchcase(name, each) for each in CAUSES[cause].numbers):
            continue
        exact = value * factor if name.endswith(GROWS) else value / factor
        found[name] = exact
        if isinstance(value, int):
            found[name] = math.ceil(exact + left - 0.5)
            left += exact - found[name]
    return found


def _numbers(spec: DeviceSpec) -> dict[str, float]:
    """The dotted key of every number that the chip has -> the number."""
    return {
        ".".join(key): value
        for key, value in ends(spec.model_dump(exclude={"sources"}))
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
