"""How errors against measured kernels move with the numbers of a chip. Writes nothing.

    .venv/bin/python benchmarks/calibration.py
    .venv/bin/python benchmarks/calibration.py gm.row_ns l2.row_ns --scale 0.8 --scale 1.25 -j 2

Without numbers: the table of errors that the README shows, of the times in simulated.csv. With
numbers, each is scaled alone on every chip that has it, the sample of `npusim validate` (or all
rows, or those of a file) is simulated with it, and a table shows for each family the median of the
error without its sign and, in brackets, with it. Best is the scale with the least mean of medians
over families, each of which counts once. Kernels below 10 us are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from npusim import devices
from npusim.cli.screen import show, table
from npusim.cli.validate import errors
from npusim.validation import Family, Row, families, measure, read, sample, simulated

SCALES = (0.5, 0.8, 0.9, 1.1, 1.25, 2.0)


def main() -> None:
    """Print the tables that the command line asks for."""
    parser = argparse.ArgumentParser(description="Errors under scaled numbers of a chip.")
    parser.add_argument("numbers", nargs="*", metavar="NUMBER", help="such as gm.row_ns")
    parser.add_argument("--scale", type=float, action="append", metavar="X", help="may come often")
    parser.add_argument("--csv", type=Path, help="measured kernels; those that ship by default")
    parser.add_argument("--family", action="append", help="only this family; may come often")
    parser.add_argument("--all", action="store_true", help="every row, not a sample")
    parser.add_argument("-j", "--jobs", type=int, metavar="N")
    options = parser.parse_args()
    rows = [row for row in read(options.csv) if row.family in (options.family or [row.family])]
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
    listing = table(number, *(f"x {scale:g}" for scale in found))
    for column in listing.columns[1:]:
        column.justify = "right"
    for own in zip(*found.values(), strict=True):
        if own[0].long.rows:
            listing.add_row(own[0].name, *map(_cell, own))
    means = {scale: _mean(own) for scale, own in found.items()}
    listing.add_row("mean of medians", *(f"{100 * mean:.2f} %" for mean in means.values()))
    best = min(means, key=lambda scale: (means[scale], abs(scale - 1)))
    values = {devices.load(row.device).name: _value(row.device, number) for row in rows}
    told = ", ".join(
        f"{name} {value:g} -> {value * best:g}" for name, value in sorted(values.items()) if value
    )
    show(listing, f"best: x {best:g} ({told})\n")


def _cell(family: Family) -> str:
    assert family.long.median is not None
    assert family.long.bias is not None
    return f"{100 * family.long.median:.1f} % ({100 * family.long.bias:+.1f})"


def _mean(found: Sequence[Family]) -> float:
    return fmean(family.long.median for family in found if family.long.median is not None)


if __name__ == "__main__":
    main()
