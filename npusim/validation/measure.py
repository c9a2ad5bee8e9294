"""Simulate the times of rows, several in parallel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from npusim.chip import Progress
from npusim.data.errors import OpError
from npusim.run.processes import answers
from npusim.validation.calls import timed
from npusim.validation.events import events_of
from npusim.validation.rows import Row
from npusim.validation.timed import NotModelledError, Timed

__all__ = ["Result", "measure", "measured"]


@dataclass(frozen=True, slots=True)
class Result:
    """A row, and its simulated time or the reason why it has none."""

    row: Row
    time_us: float | None
    """The time of its kernels, plus any overhead of the row: see `npusim.validation.events`."""
    reason: str | None = None

    @property
    def off_us(self) -> float | None:
        """Simulated minus measured time; 0 between minimum and median: `Row.nearest_us`."""
        return None if self.time_us is None else self.time_us - self.row.nearest_us(self.time_us)

    @property
    def error(self) -> float | None:
        """The same relative to the measured time: 0.1 is a tenth too long."""
        if self.time_us is None or self.off_us is None:
            return None
        return self.off_us / self.row.nearest_us(self.time_us)

    @property
    def kernel_error(self) -> float | None:
        """The error of the kernels alone; None if the row has no information about them."""
        if self.time_us is None or self.off_us is None:
            return None
        events, held_against_us = events_of(self.row), self.row.nearest_us(self.time_us)
        measured_us, simulated_us = map(events.kernel_us, (held_against_us, self.time_us))
        if measured_us is None or simulated_us is None:
            return None
        return (simulated_us - measured_us) / measured_us

    def to_json(self) -> dict[str, object]:
        """The same as plain numbers and strings."""
        row, events = self.row, events_of(self.row)
        sizes = {name: getattr(row, name) for name in ("m", "k", "n") if getattr(row, name)}
        return {
            "id": row.id,
            "family": row.family,
            "op": row.op,
            "device": row.device,
            **(sizes or {"shape": row.shape}),
            "measured_us": row.latency_us,
            "measured_min_us": row.latency_min_us,
            "simulated_us": self.time_us,
            "around_us": events.around_us,
            "host_us": events.host_us,
            "error": self.error,
            "not_modelled": self.reason,
            "source": row.source,
        }


def measure(
    rows: Sequence[Row],
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> tuple[Result, ...]:
    """The results of *rows*, in their order.

    *jobs* processes share the work, by default one per processor; with 1 all runs in this
    process. Their number does not change the results. With more than 1 a script must have its own
    calls below `if __name__ == "__main__"`, since each process imports it again. *progress* is
    called with "rows" and the share of them that is done.

    Raises RowError if a row lacks what its operator needs.
    """
    # Long kernels take long to simulate, so they start first, and no process ends with one.
    order = sorted(range(len(rows)), key=lambda place: -rows[place].latency_us)
    if progress is not None:
        # The first row may take a minute to finish.
        progress("rows", 0.0)
    found: dict[int, Result] = {}
    for number, result in measured([rows[place] for place in order], jobs=jobs):
        found[order[number]] = result
        if progress is not None:
            progress("rows", len(found) / len(rows))
    return tuple(found[place] for place in range(len(rows)))


def measured(rows: Sequence[Row], *, jobs: int | None = None) -> Iterator[tuple[int, Result]]:
    """The index of each of *rows* and its result, as they finish: unmodelled rows at once, others
    are started in order. Otherwise the same as :func:`measure`.
    """
    work: dict[int, tuple[Timed, ...]] = {}
    for place, row in enumerate(rows):
        try:
            work[place] = timed(row)
        except NotModelledError as error:
            yield place, Result(row, None, str(error))
    for place, (kernels_us, reason) in answers(_play, work, jobs):
        row = rows[place]
        interval_us = None if kernels_us is None else events_of(row).interval_us(kernels_us)
        yield place, Result(row, interval_us, reason)


Answer = tuple[float | None, str | None]
"""A time in microseconds, or the reason why there is none."""


def _play(kernels: tuple[Timed, ...]) -> Answer:
    try:
        return sum(kernel.time_us() for kernel in kernels), None
    except OpError as error:
        return None, str(error)
