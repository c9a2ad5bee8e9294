"""The expected error of a simulated time, from measured kernels of its kind."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np

from npusim.accuracy.kinds import Kind, Sizes

__all__ = [
    "SHORT_US",
    "SIMULATED",
    "Accuracy",
    "Known",
    "accuracy_of",
    "known",
    "within_all_kinds",
]

SIMULATED = "simulated.csv"
SHORT_US = 10.0
"""Shorter kernels consist mostly of launch time, which also dominates their error."""
NINE_OF_TEN = 0.9
Span = Literal["10 us and more", "below 10 us", "of any length"]


@dataclass(frozen=True, slots=True)
class Known:
    """A measured kernel, and its simulated time."""

    id: str
    """Its row in `validation/silicon.csv`."""
    sizes: Sizes
    """Batches, m, k and n of a product; rows and columns of anything else."""
    measured_us: float
    simulated_us: float
    error: float
    """Simulated minus measured, relative to measured: `npusim.validation.Result`."""

    def __str__(self) -> str:
        """For example `1 x 4096 x 4096, measured 29.93 us, npusim 31.02 us (row m0240 of
        silicon.csv)`."""
        extents = self.sizes[1:] if self.sizes[0] == 1 and len(self.sizes) > 2 else self.sizes
        return (
            f"{' x '.join(map(str, extents))}, measured {self.measured_us:.2f} us, "
            f"npusim {self.simulated_us:.2f} us (row {self.id} of silicon.csv)"
        )


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far simulated times of a kind of kernel are off, relative to the measured ones.

    Kernels of 10 us and more count for a simulated time of 10 us and more, and shorter ones for a
    shorter one; all of them if there are none of these.
    """

    kind: str | None
    """Description; None for a custom kernel."""
    series: str
    rows: int
    """Number of measured kernels; without any, the following fields are None."""
    span: Span | None = None
    """Range of the times of the kernels that count."""
    median: float | None = None
    """Of the absolute error: half of such kernels are expected to be within it."""
    p90: float | None = None
    """The same for nine of ten: see :func:`within`."""
    bias: float | None = None
    """Median of the signed error: negative if simulated times are too short."""
    nearest: Known | None = None
    """The one of its kind, short or long, with the closest sizes, as ratios."""

    def __str__(self) -> str:
        """For example `expected error: typically 9 %, 90 % of kernels within 17 % (12 measured
        kernels, 10 us and more); usually 9 % too fast`."""
        if self.rows == 0 or self.median is None or self.p90 is None or self.bias is None:
            others = _at_least(within_all_kinds(NINE_OF_TEN))
            return (
                f"unvalidated: no public measurement of this kind of kernel on {self.series}; "
                f"90 % of the kernels of other kinds are within {others}"
            )
        percent = round(100 * self.bias)
        if self.rows == 1:
            off = (
                f"{abs(percent)} % too {'fast' if percent < 0 else 'slow'}" if percent else "right"
            )
            return (
                f"expected error: {_at_least(self.p90)} or so: npusim is {off} for the only "
                f"measured kernel of this kind, {self.span}"
            )
        usually = f"; usually {abs(percent)} % too {'fast' if percent < 0 else 'slow'}"
        return (
            f"expected error: typically {_at_least(self.median)}, 90 % of kernels within "
            f"{_at_least(self.p90)} ({self.rows} measured kernels, "
            f"{self.span}){usually if percent else ''}"
        )

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Accuracy:
        """The object whose `asdict`, written as JSON and read back, is *facts*."""
        nearest = facts["nearest"]
        if nearest is not None:
            nearest = Known(**(nearest | {"sizes": tuple(nearest["sizes"])}))
        return cls(**(dict(facts) | {"nearest": nearest}))


def accuracy_of(kind: Kind, time_us: float, sizes: Sizes | None = None) -> Accuracy:
    """The accuracy for a kernel of *kind* that takes *time_us*; without *sizes* none is nearest."""
    found = known().get(kind)
    if found is None:
        return Accuracy(str(kind), kind.series, 0)
    span, alike = _as_long(found, time_us)
    errors = [one.error for one in alike]
    return Accuracy(
        str(kind),
        kind.series,
        len(alike),
        span,
        within(errors, 0.5),
        within(errors, NINE_OF_TEN),
        float(np.median(errors)),
        None if sizes is None else _nearest(found, sizes),
    )


def within(errors: Sequence[float], share: float) -> float:
    """The bound on the absolute error that the *share* of further kernels is expected to meet.

    *errors* are those of n measured kernels of the kind. The error of another kernel is equally
    likely to fall into any gap between them, so the bound is the error of rank ``share x (n + 1)``,
    rounded up (split conformal prediction: Vovk, Gammerman, Shafer, Algorithmic Learning in a
    Random World, 2005). If n is too small for that rank, and up to n = 8 in any case, it is at
    least the bound that the same share of the kernels of all kinds meets, each kind with equal
    weight.
    """
    ranked = sorted(map(abs, errors))
    rank = math.ceil(share * (len(ranked) + 1))
    if len(ranked) >= ENOUGH:
        return ranked[rank - 1]
    return max(ranked[min(rank, len(ranked)) - 1], within_all_kinds(share))


ENOUGH = 9
"""Kernels from which on the rank for nine of ten is within them."""


def within_all_kinds(share: float) -> float:
    """The error bound of the *share* of kernels of any kind, with short and long ones separate."""
    groups = [
        [abs(one.error) for one in own if (one.measured_us < SHORT_US) == is_short]
        for own in known().values()
        for is_short in (False, True)
    ]
    weighed = sorted((error, 1 / len(group)) for group in groups for error in group)
    weights = np.cumsum([weight for _, weight in weighed])
    return weighed[int(np.searchsorted(weights, share * weights[-1]))][0]


@cache
def known() -> dict[Kind, tuple[Known, ...]]:
    """The measured kernels of each kind, by their ids."""
    text = (files(__package__) / SIMULATED).read_text(encoding="utf-8")
    found: dict[Kind, list[Known]] = {}
    _, *lines = csv.reader(text.splitlines())  # twice as fast as rows as dicts
    for name, simulated_us, measured_us, error, op, series, types, layout, sizes in lines:
        if op:
            own = found.setdefault(Kind(op, series, types, layout), [])
            extents = tuple(map(int, sizes.split("x")))
            times = float(measured_us), float(simulated_us), float(error)
            own.append(Known(name, extents, *times))
    return {kind: tuple(sorted(own, key=lambda one: one.id)) for kind, own in found.items()}


def _as_long(found: tuple[Known, ...], time_us: float) -> tuple[Span, tuple[Known, ...]]:
    """Those of *found* on the same side of SHORT_US as *time_us*, or else all."""
    alike = tuple(one for one in found if (one.measured_us < SHORT_US) == (time_us < SHORT_US))
    if not alike:
        return "of any length", found
    return ("below 10 us" if time_us < SHORT_US else "10 us and more"), alike


def _nearest(found: Sequence[Known], sizes: Sizes) -> Known:
    """The nearest one; if several are equally near, the one with the first id."""

    def distance(one: Known) -> float:
        # With fewer rows than experts, there are 0 rows per expert.
        ratios = (max(a, 1) / max(b, 1) for a, b in zip(one.sizes, sizes, strict=True))
        return math.fsum(math.log(ratio) ** 2 for ratio in ratios)

    return min(found, key=distance)


def _at_least(share: float) -> str:
    """*share* in whole percent, at least 1, since no time is known more precisely."""
    return f"{max(1, round(100 * share))} %"
