"""Busy times of pipes: times that profilers counted on silicon, compared with those of runs.

`pipes.csv` has them for rows of `silicon.csv`, by their ids, from the launch nearest to the median.
They are columns of torch_npu's `kernel_details.csv` with the metric PipeUtilization,
`aic_mac_time(us)` and the others: the busy time of each pipe of each kind of core. Assumed: it is
the mean over the active cores, and a pipe is busy from the start of a micro-op until its result is
available; products agree with that: their mac takes 1 to 2 % more than their operations need at
the clock of the cores. The file also has the scalar unit, which is not compared: what a profiler
counts as its work is unknown.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from npusim.chip import Progress
from npusim.data.errors import OpError
from npusim.devices.schema import Pipe
from npusim.run.processes import answers
from npusim.run.result import Result as Run
from npusim.trace.lanes import busy_us
from npusim.validation.calls import timed
from npusim.validation.rows import Row
from npusim.validation.timed import Call, NotModelledError

__all__ = ["ALL", "COLUMNS", "PipeError", "PipeTimes", "counted", "errors", "measure", "of_run"]

SHIPPED = "pipes.csv"
ALL = "all"
"""Stands for all families."""
COLUMNS: dict[str, tuple[str, Pipe]] = {
    "aic_mac": ("aic", "cube"),
    "aic_mte1": ("aic", "mte1"),
    "aic_mte2": ("aic", "mte2"),
    "aic_fixpipe": ("aic", "fixpipe"),
    "aiv_vec": ("aiv", "vector"),
    "aiv_mte2": ("aiv", "mte2"),
    "aiv_mte3": ("aiv", "mte3"),
}
"""The name of a pipe in profilers -> the kind of its cores, and its name here."""

Times = Mapping[str, float]
"""Column -> microseconds."""


@dataclass(frozen=True, slots=True)
class PipeTimes:
    """A row with counted pipes, and their simulated times."""

    row: Row
    measured_us: Times
    """Only for pipes that were busy."""
    simulated_us: Times | None
    """None if the row has no simulated time."""
    reason: str | None = None
    """The reason why it has none."""

    def error(self, column: str) -> float | None:
        """Simulated minus measured time of the pipe *column*, as a share of the duration."""
        if self.simulated_us is None or column not in self.measured_us:
            return None
        off_us = self.simulated_us.get(column, 0.0) - self.measured_us[column]
        return off_us / self.row.latency_us

    def to_json(self) -> dict[str, object]:
        """The same as plain numbers and strings."""
        return {
            "id": self.row.id,
            "family": self.row.family,
            "duration_us": self.row.latency_us,
            "measured_us": dict(self.measured_us),
            "simulated_us": None if self.simulated_us is None else dict(self.simulated_us),
            "not_modelled": self.reason,
        }


@dataclass(frozen=True, slots=True)
class PipeError:
    """Errors of a pipe in the rows of a family, as shares of their durations."""

    family: str
    pipe: str
    rows: int
    median: float
    """The median absolute error."""
    bias: float
    """The median signed error: below 0 if simulated times are too short."""

    def to_json(self) -> dict[str, object]:
        """The same as plain numbers and strings."""
        return asdict(self)


@cache
def counted() -> Mapping[str, Times]:
    """Id of a row -> the times of its busy pipes."""
    lines = csv.DictReader((files("npusim.validation") / SHIPPED).read_text().splitlines())
    return {
        line["id"]: {
            name: float(line[f"{name}_us"]) for name in COLUMNS if float(line[f"{name}_us"])
        }
        for line in lines
    }


def measure(
    rows: Iterable[Row],
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> tuple[PipeTimes, ...]:
    """The *rows* with counted pipes, in their order; see `validation.measure`."""
    known = counted()
    rows = [row for row in rows if row.id in known]
    played = answers(_play, {row.id: row for row in rows}, jobs)
    found: dict[str, PipeTimes] = {}
    for name, answer in played:
        found[name] = answer
        if progress is not None:
            progress("rows", len(found) / len(rows))
    return tuple(found[row.id] for row in rows)


def errors(found: Sequence[PipeTimes]) -> tuple[PipeError, ...]:
    """One per family and busy pipe, in the order of the rows.

    At the end there is one for each pipe over all rows, whose family is ALL.
    """
    grouped: dict[tuple[str, str], list[float]] = {}
    whole: dict[tuple[str, str], list[float]] = {(ALL, pipe): [] for pipe in COLUMNS}
    for each in found:
        for pipe in COLUMNS:
            error = each.error(pipe)
            if error is not None:
                grouped.setdefault((each.row.family, pipe), []).append(error)
                whole[ALL, pipe].append(error)
    return tuple(
        PipeError(*key, len(own), float(np.median(np.abs(own))), float(np.median(own)))
        for key, own in (grouped | whole).items()
        if own
    )


def of_run(run: Run) -> dict[str, float]:
    """The busy time of each pipe of *run*, as a profiler counts it."""
    lanes = run.trace.lanes if run.trace else ()
    found = {}
    for column, (kind, pipe) in COLUMNS.items():
        own = [lane for lane in lanes if lane.kind == kind]
        found[column] = busy_us(own, run.device.clock_hz).get(pipe, 0.0)
    return found


def _play(row: Row) -> PipeTimes:
    known = counted()[row.id]
    try:
        kernels = timed(row)
        sums = dict.fromkeys(COLUMNS, 0.0)
        for kernel in kernels:
            assert isinstance(kernel, Call)
            run = kernel.run()
            for column, time_us in of_run(run).items():
                sums[column] += time_us
    except (NotModelledError, OpError) as error:
        return PipeTimes(row, known, None, str(error))
    return PipeTimes(row, known, sums)
