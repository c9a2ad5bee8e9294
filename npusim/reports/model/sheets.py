"""The tables of a run of a model as columns and rows, for pages, CSV and JSON.

A column whose name ends in `_us` holds microseconds, in `_bytes` bytes; a `share` is from 0 to 1.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field

from npusim.reports.model import tables
from npusim.reports.model.tables import Total
from npusim.reports.model.works import work_of
from npusim.reports.style import percent, size_named, span_named
from npusim.reports.tables import Cell
from npusim.trace.model import ModelRun

__all__ = ["HEADINGS", "Sheet", "Value", "readable", "sheets"]

Value = str | int | float | None

TOTAL = ("launches", "time_us", "share", "launch_us", "read_bytes", "written_bytes", "gm_bytes",
         "bound", "bound_share")  # fmt: skip
KERNEL = ("op", "template", "inputs", "outputs", "launches", "time_us", "share", "each_us",
          "each_launch_us", "cores", "cycles", "read_bytes", "written_bytes", "gm_bytes",
          "l2_hit_bytes", "gm_written_bytes", "bound", "bound_share")  # fmt: skip

HEADINGS = {
    "time_us": "time",
    "launch_us": "of it launch",
    "each_us": "each",
    "each_launch_us": "of it launch",
    "read_bytes": "cores read",
    "written_bytes": "cores write",
    "gm_bytes": "global memory",
    "l2_hit_bytes": "found in the L2",
    "gm_written_bytes": "written back",
    "bound": "bound by",
    "not_timed": "not timed",
    "op": "kernel",
}
"""Column -> how pages head it, where that is not its name."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table."""

    name: str
    """The name of its file: `operators`."""
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    heads: Mapping[str, str] = field(default_factory=lambda: HEADINGS)
    """Column -> how pages head it, where that is not its name."""

    def to_csv(self) -> str:
        """Comma-separated values below the names of columns."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()

    def to_json(self) -> list[dict[str, object]]:
        """A table for each row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def headings(self) -> list[str]:
        """How pages head its columns."""
        return [self.heads.get(name, name) for name in self._shown()]

    def readable(self) -> list[list[Cell]]:
        """Its rows in readable form; a bottleneck has its share, unless that is the whole time."""
        rows = []
        for row in self.rows:
            values = dict(zip(self.columns, row, strict=True))
            cells = {name: readable(name, values[name]) for name in self._shown()}
            share = values.get("bound_share")
            if share is not None and cells["bound"] and readable("share", share) != "100 %":
                cells["bound"] = f"{cells['bound']}, {readable('share', share)}"
            rows.append(list(cells.values()))
        return rows

    def _shown(self) -> list[str]:
        return [name for name in self.columns if name != "bound_share"]


def readable(column: str, value: Value) -> Cell:
    """*value* of *column* in readable form.

    >>> readable("time_us", 1234.5), readable("share", 0.5), readable("launches", 12)
    ('1.23 ms', '50 %', 12)
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if column == "difference_us":
        words = span_named(abs(value))
        return words if words == span_named(0) else f"{'-' if value < 0 else '+'}{words}"
    if column.endswith("_us"):
        return span_named(value)
    if column.endswith("ratio"):
        return f"{value:.2f}"
    if column.endswith("_bytes"):
        return size_named(value)
    if column.endswith("share"):
        return percent(value)
    return value


def sheets(run: ModelRun) -> dict[str, Sheet]:
    """Name -> table, for all tables."""
    found = (_works(run), _operators(run), _modules(run), _roles(run), _layers(run),
             _kernels(run), _launches(run), _not_timed(run))  # fmt: skip
    return {sheet.name: sheet for sheet in found}


def _share(us: float, run: ModelRun) -> float:
    return us / run.time_us if run.time_us else 0.0


def _total(of: Total, run: ModelRun) -> tuple[Value, ...]:
    """The columns of `TOTAL`."""
    launches, time_us, *rest = astuple(of)
    return (launches, time_us, _share(time_us, run), *rest)


def _works(run: ModelRun) -> Sheet:
    rows = ((work, *_total(own, run)) for work, own in tables.by_work(run).items())
    return Sheet("works", ("work", *TOTAL), tuple(rows))


def _operators(run: ModelRun) -> Sheet:
    rows = tuple((*key, *_total(own, run)) for key, own in tables.by_operator(run).items())
    return Sheet("operators", ("operator", "op", *TOTAL), rows)


def _modules(run: ModelRun) -> Sheet:
    return _of_modules("modules", run, tables.by_module(run), run.classes, str)


def _roles(run: ModelRun) -> Sheet:
    classes = {tables.role_of(path): name for path, name in run.classes.items()}
    return _of_modules("roles", run, tables.by_role(run), classes, tables.role_of)


def _of_modules(
    name: str,
    run: ModelRun,
    found: Mapping[str, Total],
    classes: Mapping[str, str],
    named: Callable[[str], str],
) -> Sheet:
    """A row for each of *found*; *named* replaces paths by their names."""
    missing: Counter[str] = Counter()
    for each in run.not_timed:
        for path in tables.above(named(each.module)):
            missing[path] += each.count
    rows = tuple(
        (path, classes.get(path, ""), *_total(own, run), missing[path])
        for path, own in found.items()
    )
    return Sheet(name, ("module", "class", *TOTAL, "not_timed"), rows)


def _layers(run: ModelRun) -> Sheet:
    rows = tuple(
        (layer, work, *_total(own, run))
        for layer, works in tables.by_layer(run).items()
        for work, own in works.items()
    )
    return Sheet("layers", ("layer", "work", *TOTAL), rows)


def _kernels(run: ModelRun) -> Sheet:
    """Bytes, cycles and `each` refer to one launch."""
    rows = tuple(
        (
            *(kernel.op, kernel.template, ", ".join(kernel.inputs), ", ".join(kernel.outputs)),
            *(own.launches, own.time_us, _share(own.time_us, run), kernel.time_us),
            *(kernel.launch_us, kernel.cores, kernel.cycles, kernel.read_bytes),
            *(kernel.written_bytes, kernel.gm_bytes, kernel.l2_hit_bytes),
            *(kernel.gm_written_bytes, kernel.bound, kernel.bound_share),
        )
        for kernel, own in tables.by_kernel(run).items()
    )
    return Sheet("kernels", KERNEL, rows)


def _launches(run: ModelRun) -> Sheet:
    columns = ("start_us", "time_us", "stream", "op", "work", "operator", "module", "graph",
               "read_bytes", "written_bytes", "gm_bytes", "bound")  # fmt: skip
    rows = tuple(
        (
            *(launch.start_us, launch.time_us, launch.stream, launch.kernel.op),
            *(work_of(launch.kernel.op), launch.operator, launch.module, launch.graph),
            *(launch.kernel.read_bytes, launch.kernel.written_bytes, launch.kernel.gm_bytes),
            launch.kernel.bound,
        )
        for launch in run.launches
    )
    return Sheet("launches", columns, rows)


def _not_timed(run: ModelRun) -> Sheet:
    rows = tuple((each.operator, each.module, each.count) for each in run.not_timed)
    return Sheet("not_timed", ("operator", "module", "count"), rows)
