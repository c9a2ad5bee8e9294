"""The file of simulated times that ships with npusim, the source of every `npusim.accuracy`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from importlib.resources import files
from io import StringIO

from npusim import devices, ops
from npusim.accuracy import Kind, Sizes, kind_of
from npusim.accuracy.kernels import SIMULATED
from npusim.validation.calls import OTHER_KERNELS, timed
from npusim.validation.measure import Result
from npusim.validation.rows import Row
from npusim.validation.timed import Call, NotModelledError

__all__ = ["COLUMNS", "content", "moved", "results", "times", "with_others"]

COLUMNS = (
    *("id", "simulated_us", "measured_us", "error"),
    *("op", "series", "types", "layout", "sizes"),
)
DIGITS = 4
"""The decimals of a time in microseconds."""
NO_LINE = "npusim can, but simulated.csv has no line of it"


def times(text: str | None = None) -> dict[str, float]:
    """The simulated times of the file, or of its *text*, by the ids of their rows."""
    text = (files("npusim.accuracy") / SIMULATED).read_text() if text is None else text
    return {line["id"]: float(line["simulated_us"]) for line in csv.DictReader(text.splitlines())}


def results(rows: Iterable[Row]) -> tuple[Result, ...]:
    """The results of `measure` when the file was written; nothing is simulated."""
    found = times()
    return tuple(_result(row, found) for row in rows)


def with_others(rows: Iterable[Row], timed: Iterable[Result]) -> tuple[Result, ...]:
    """The results of *rows*: those that were *timed* now, and for the others those of the file."""
    now = {result.row.id: result for result in timed}
    return tuple(now.get(result.row.id, result) for result in results(rows))


def moved(timed: Iterable[Result]) -> int:
    """The number of rows whose time, *timed* now, differs from the file."""
    found = times()
    return sum(
        one.time_us is not None and round(one.time_us, DIGITS) != found.get(one.row.id)
        for one in timed
    )


def content(rows: Iterable[Row], found: Mapping[str, float]) -> str:
    """The contents of the file: a line for each of *rows* that has a time among *found*.

    Times are in tenths of a nanosecond. A row of two operators counts for the second, which takes
    most of the time. Kernels that are not operators, or not the vendor's, have no kind, nor do rows
    without information about their kernel. The error is that of the kernels alone.
    """
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        if row.id in found:
            time_us = round(found[row.id], DIGITS)
            error = Result(row, time_us).kernel_error
            kind, sizes = NO_KIND if error is None else _kind(row)
            extents = "x".join(map(str, sizes))
            said = "" if error is None else f"{error:.6f}"
            writer.writerow((row.id, time_us, row.latency_us, said, *kind, extents))
    return text.getvalue()


def _result(row: Row, found: Mapping[str, float]) -> Result:
    try:
        timed(row)
    except NotModelledError as error:
        return Result(row, None, str(error))
    time_us = found.get(row.id)
    return Result(row, time_us, NO_LINE if time_us is None else None)


NO_KIND: tuple[tuple[str, ...], Sizes] = ("", "", "", ""), ()


def _kind(row: Row) -> tuple[Kind | tuple[str, ...], Sizes]:
    *_, call = timed(row)
    if not isinstance(call, Call) or row.family in OTHER_KERNELS:
        return NO_KIND
    bound = ops.signature(ops.load(call.op)).bind(*call.args, **call.options)
    return kind_of(call.op, devices.load(call.device).series, bound.arguments)
