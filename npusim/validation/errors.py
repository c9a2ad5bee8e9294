"""The errors of simulated times, family by family.

Kernels of 10 us and more are judged by their relative error; shorter ones, which are mostly launch,
by their error in microseconds. If a row gives a minimum next to the median, a simulated time
between them counts as exact, and any other time has an error relative to the nearer of the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from npusim.accuracy.kernels import SHORT_US
from npusim.validation.measure import Result

__all__ = ["SHORT_US", "Errors", "Family", "families", "spearman"]


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of some rows, as shares or in microseconds; all None without rows."""

    rows: int
    median: float | None = None
    """The median absolute error."""
    p90: float | None = None
    """The 90th percentile of the absolute error."""
    bias: float | None = None
    """The median signed error: below 0 if simulated times are too short."""
    worst: float | None = None
    """The largest error, with its sign."""
    worst_id: str | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """The summary of the rows of a family."""

    name: str
    rows: int
    not_modelled: dict[str, int]
    """Reason -> number of rows without a simulated time."""
    long: Errors
    """Relative errors of rows from SHORT_US on."""
    short: Errors
    """Errors in microseconds of shorter rows."""
    rank: float | None
    """Spearman's rank correlation of simulated and measured times, long and short."""

    @property
    def modelled(self) -> int:
        """The number of rows with a simulated time."""
        return self.long.rows + self.short.rows

    def to_json(self) -> dict[str, object]:
        """The same as plain numbers and strings."""
        return asdict(self)


def families(results: Iterable[Result]) -> tuple[Family, ...]:
    """One summary per family, in the order of their first rows."""
    grouped: dict[str, list[Result]] = {}
    for result in results:
        grouped.setdefault(result.row.family, []).append(result)
    return tuple(_family(name, group) for name, group in grouped.items())


def _family(name: str, results: Sequence[Result]) -> Family:
    missing: dict[str, int] = {}
    for result in results:
        if result.reason is not None:
            missing[result.reason] = missing.get(result.reason, 0) + 1
    found = [result for result in results if result.time_us is not None]
    long = [result for result in found if result.row.latency_us >= SHORT_US]
    short = [result for result in found if result.row.latency_us < SHORT_US]
    return Family(
        name,
        len(results),
        missing,
        _errors([(result.error or 0.0, result.row.id) for result in long]),
        _errors([(result.off_us or 0.0, result.row.id) for result in short]),
        spearman(
            np.array([result.time_us for result in found], np.float64),
            np.array([result.row.latency_us for result in found], np.float64),
        ),
    )


def _errors(signed: Sequence[tuple[float, str]]) -> Errors:
    if not signed:
        return Errors(0)
    errors = np.array([error for error, _ in signed])
    size = np.abs(errors)
    worst, worst_id = signed[int(size.argmax())]
    return Errors(
        len(signed),
        float(np.median(size)),
        float(np.quantile(size, 0.9)),
        float(np.median(errors)),
        worst,
        worst_id,
    )


def spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    """The rank correlation of *a* and *b*: 1 for the same order, -1 reversed; ties share ranks.

    None if it is undefined: for fewer than three numbers, or if all are equal.

    >>> spearman(np.array([1.0, 5.0, 9.0]), np.array([2.0, 8.0, 3.0]))
    0.5
    """
    if a.size < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    x, y = (_ranks(values) for values in (a, b))
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / np.sqrt((x @ x) * (y @ y)))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rank of each value, from 1; equal values get the mean of their ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = (last - (counts - 1) / 2)[which]
    return ranks
