"""How errors against measured kernels move with the numbers of a chip. Writes nothing.

    .venv/bin/python benchmarks/calibration.py
    .venv/bin/python benchmarks/calibration.py gm.row_ns l2.row_ns --scale 0.8 --scale 1.25 -j 2

Without numbers: the table of errors of docs/accuracy.md, of the times in simulated.csv, or with
--summary that of the README. With numbers, each is scaled alone on every chip that has it, the
sample of `npusim validate` (or all rows, or those of a file) is simulated with it, and tables show
for each family the median of the error without its sign and, in brackets, with it: in percent for
kernels from 10 us on, in microseconds for shorter ones. Best is the scale with the least mean of
medians over families, each of which counts once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from npusim import devices
from npusim.cli.screen import show, table
from npusim.cli.validate import errors
from npusim.validation import Family, Result, Row, families, measure, read, sample, simulated
from npusim.validation.errors import Errors

SCALES = (0.5, 0.8, 0.9, 1.1, 1.25, 2.0)
PARTS: tuple[tuple[str, Callable[[Family], Errors], str, float], ...] = (
    ("from 10 us", lambda family: family.long, "%", 100.0),
    ("below 10 us", lambda family: family.short, "us", 1.0),
)
"""What errors are given for, with their unit and what they are multiplied by."""


def main() -> None:
    """Print the tables that the command line asks for."""
    parser = argparse.ArgumentParser(description="Errors under scaled numbers of a chip.")
    parser.add_argument("numbers", nargs="*", metavar="NUMBER", help="such as gm.row_ns")
    parser.add_argument("--scale", type=float, action="append", metavar="X", help="may come often")
    parser.add_argument("--csv", type=Path, help="measured kernels; those that ship by default")
    parser.add_argument("--family", action="append", help="only this family; may come often")
    parser.add_argument("--all", action="store_true", help="every row, not a sample")
    parser.add_argument("--summary", action="store_true", help="a line for each kind, as Markdown")
    parser.add_argument("-j", "--jobs", type=int, metavar="N")
    options = parser.parse_args()
    rows = [row for row in read(options.csv) if row.family in (options.family or [row.family])]
    if options.summary:
        print(summary(simulated.results(rows)))
        return
    if not options.numbers:
        show(errors(families(simulated.results(rows))))
        return
    chosen = rows if options.all else sample(rows)
    for number in options.numbers:
        _check(number, chosen)
    scales = sorted({1.0, *(options.scale or SCALES)})
    as_is = families(measure(chosen, jobs=options.jobs))
    for number in options.numbers:
        found = {
            scale: as_is if scale == 1.0 else _scaled(chosen, number, scale, options.jobs)
            for scale in scales
        }
        _show(number, found, chosen)


def summary(results: Sequence[Result]) -> str:
    """A line for each kind of kernel, as Markdown, of rows from 10 us on."""
    by_kind = [replace(each, row=replace(each.row, family=_kind(each.row))) for each in results]
    listing = ["| kernels | timed | half within | nine of ten within | median error |"]
    listing.append("|---|---|---|---|---|")
    for found in sorted(families(by_kind), key=lambda family: KINDS.index(family.name)):
        errors = found.long
        if errors.median is not None and errors.p90 is not None and errors.bias is not None:
            shares = f"{errors.median:.0%} | {errors.p90:.0%} | {errors.bias:+.0%}"
            listing.append(f"| {found.name} | {errors.rows} | {shares.replace('%', ' %')} |")
    return "\n".join(listing)


KINDS = ("matrix products", "attention", "layers of experts", "all others", "steps of training")


def _kind(row: Row) -> str:
    if row.family.startswith("training_"):
        return "steps of training"
    if "attention" in row.op:
        return "attention"
    if "npu_grouped_matmul + npu_swiglu" in row.op:
        return "layers of experts"
    return "matrix products" if "matmul" in row.op.lower() else "all others"


def _check(number: str, rows: Sequence[Row]) -> None:
    if not any(number in devices.load(row.device).sources for row in rows):
        raise SystemExit(
            f"calibration: a number must be one that `npusim devices show NAME --sources` lists, "
            f"not {number}; use one of these"
        )


def _scaled(rows: Sequence[Row], number: str, scale: float, jobs: int | None) -> tuple[Family, ...]:
    """The errors of *rows* on chips whose *number* is multiplied by *scale*."""
    with TemporaryDirectory() as folder:
        names = {row.device for row in rows}
        chips = {name: _chip(name, number, scale, Path(folder)) for name in names}
        changed = [replace(row, device=chips[row.device]) for row in rows]
        return families(measure(changed, jobs=jobs))


def _chip(name: str, number: str, scale: float, folder: Path) -> str:
    """The file of a chip like *name*, or *name* if it does not have that *number*."""
    value = _value(name, number)
    if value is None:
        return name
    scaled = round(value * scale) if isinstance(value, int) else value * scale
    table, _, key = number.rpartition(".")
    path = folder / f"{devices.load(name).name}.toml"
    path.write_text(
        f'extends = "{name}"\nname = "scaled"\n\n[{table}]\n'
        f'{key} = {{ value = {scaled}, source = "scaled by {scale:g}", confidence = "assumed" }}\n'
    )
    return str(path)


@cache
def _value(name: str, number: str) -> int | float | None:
    spec = devices.load(name)
    if number not in spec.sources:
        return None
    found = spec.model_dump()
    for key in number.split("."):
        found = found[key]
    assert isinstance(found, int | float)
    return found


def _show(number: str, found: dict[float, tuple[Family, ...]], rows: Sequence[Row]) -> None:
    values = {devices.load(row.device).name: _value(row.device, number) for row in rows}
    words = ", ".join(f"{name} {value:g}" for name, value in sorted(values.items()) if value)
    show(f"{number}: {words}")
    for title, part, unit, factor in PARTS:
        listing = table(title, *(f"x {scale:g}" for scale in found))
        for column in listing.columns[1:]:
            column.justify = "right"
        own = {scale: [part(family) for family in by] for scale, by in found.items()}
        for family, *of_scales in zip(found[1.0], *own.values(), strict=True):
            if of_scales[0].rows:
                cells = (
                    f"{factor * e.median:.1f} {unit} ({factor * e.bias:+.1f})" for e in of_scales
                )
                listing.add_row(family.name, *cells)
        if listing.rows:
            means = {scale: fmean(e.median for e in by if e.rows) for scale, by in own.items()}
            cells = (f"{factor * mean:.2f} {unit}" for mean in means.values())
            listing.add_row("mean of medians", *cells)
            best = min(means, key=lambda scale: (means[scale], abs(scale - 1)))
            show(listing, f"best: x {best:g}\n")


if __name__ == "__main__":
    main()
