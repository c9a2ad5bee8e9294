"""Runs of models on the command line: their page, and several held against the first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from os.path import lexists
from pathlib import Path

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from npusim.cli.call import UsageError
from npusim.cli.screen import show, table
from npusim.data.files import check_place, write
from npusim.data.json import json_text
from npusim.reports import model
from npusim.trace.model import MODEL, ModelRun, read

__all__ = ["are_models", "compare_models", "write_page"]

MAKER = "python -m npusim.torch --report"


def are_models(paths: Sequence[Path], command: str) -> bool:
    """Whether *paths* are folders with runs of models; raises UsageError if only some are."""
    found = [lexists(path / MODEL) for path in paths]
    if any(found) and not all(found):
        model, other = paths[found.index(True)], paths[found.index(False)]
        raise UsageError(
            f"{command}: all must be runs of models, as {model} is, but {other} is none; "
            f"name folders that {MAKER} has written, or leave {model} out"
        )
    return all(found)


def write_page(paths: Sequence[Path], target: Path, force: bool) -> None:
    """Write the page of a run, or of several that are compared, to *target*."""
    check_place(target, force, "report")
    runs = [read(path) for path in paths]
    write(target, partial(_fill, runs), "report", force=force)
    show(f"wrote {target}")


def _fill(runs: list[ModelRun], path: Path) -> None:
    path.write_text(model.page(runs), encoding="utf-8")


def compare_models(paths: Sequence[Path], as_json: bool) -> None:
    """Print the times of runs side by side: by kind of work, operator and module."""
    runs = [read(path, "compare") for path in paths]
    found = model.compared(runs)
    if as_json:
        typer.echo(json_text({name: sheet.to_json() for name, sheet in found.items()}))
        return
    parts: list[RenderableType] = [Text(line) for line in model.headline_of(runs)]
    for name in ("works", "operators", "roles"):
        parts += [Text(), _listing(found[name])]
    show(Group(*parts))


def _listing(sheet: model.Sheet) -> RenderableType:
    """Times of all runs, and in one column how often each launched."""
    end = next(n for n, name in enumerate(sheet.columns) if name.endswith("_launches"))
    listing = table(*sheet.headings()[:end], "launches")
    for column in listing.columns[1:]:
        column.justify = "right"
    for row in sheet.readable():
        cells = *row[:end], ", ".join(map(str, row[end:]))
        listing.add_row(*(Text(str(cell)) for cell in cells))
    return listing
