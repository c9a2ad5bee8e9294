"""`npusim sweep CONFIG.json`: a model over batch, context, cards, chips, engines and weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from npusim import models
from npusim.cli.braces import Braces
from npusim.cli.call import UsageError
from npusim.cli.commands.formats import RowFormat
from npusim.cli.progress import shown as shown_progress
from npusim.cli.screen import show, table
from npusim.data import folders
from npusim.data.errors import shown
from npusim.data.files import content
from npusim.data.json import json_text
from npusim.models.sweep import VARIABLES, ModelSweep
from npusim.sweeps.page import PAGE
from npusim.sweeps.picture import PICTURE

__all__ = ["sweep_model"]

RECORD, TABLE = "model_sweep.json", "model_sweep.csv"
MARK = "npusim sweep of a model"
MAX_BYTES = 1 << 28


def sweep_model(
    config: Path,
    chips: Sequence[str],
    attributes: Sequence[str],
    options: Mapping[str, object],
    output: Path | None,
    force: bool,
    form: RowFormat,
) -> None:
    """Sweep the model at *config* and print what came out; other *options* must not be given."""
    unused = [name for name, value in options.items() if value]
    if unused:
        raise UsageError(
            f"sweep: a model must be swept by -d and by what npusim model takes, not by "
            f"{', '.join(unused)}; write for example --batch 1,8,64"
        )
    over = _over(attributes)
    if output is not None:
        folders.check(output, force, KIND)
    model = models.load(config)
    with shown_progress() as progress:
        found = models.sweep(
            model,
            over,
            device=[name for each in chips for name in each.split(",")],
            progress=lambda done, of: progress("steps", done / of),
        )
    written = []
    if output is not None:
        written = folders.write(lambda new: _fill(new, found), output, KIND, force=force)
    match form:
        case RowFormat.CSV:
            typer.echo(found.to_csv(), nl=False)
        case RowFormat.JSON:
            typer.echo(_json(found))
        case RowFormat.TEXT:
            show(_listing(found))
            if output is not None:
                show(f"\nwrote {', '.join(written)} to {output}")
    _report_refused(found)


def _over(words: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Variable -> its values: those in braces, or between commas."""
    found: dict[str, Sequence[Any]] = {}
    for each in words:
        name, equals, value = each.partition("=")
        if not equals or name not in VARIABLES or name in found:
            raise UsageError(
                f"sweep: -a must give each of {', '.join(VARIABLES)} once at most, not "
                f"{shown(each)}; write for example --batch 1,8,64"
            )
        if "," in value and "{" not in value:
            value = f"{{{value}}}"
        braces = Braces("sweep")
        braces.read(name, value)
        braces.check()
        values: list[Any] = []
        for text in braces.every():
            values.append(int(text) if str(text).lstrip("-").isdigit() else text)
        found[name] = values
    return found


# ---- files ----


def _made(where: Path) -> frozenset[str]:
    """What an earlier one wrote into *where*; raises ValueError if it wrote none."""
    try:
        facts = json.loads(content(where / RECORD, MAX_BYTES))
    except (OSError, RecursionError):
        facts = None
    if not isinstance(facts, dict) or facts.get("kind") != MARK:
        raise ValueError(f"sweep: {RECORD} must be one of a sweep of a model; write it again")
    return frozenset({RECORD, TABLE, PICTURE, PAGE})


KIND = folders.Kind("sweep", RECORD, _made)


def _fill(new: Path, found: ModelSweep) -> list[str]:
    (new / RECORD).write_text(_json(found) + "\n", encoding="utf-8")
    (new / TABLE).write_text(found.to_csv(), encoding="utf-8")
    names = [RECORD, TABLE]
    if len(found.bad) < len(found.rows):
        # Loading matplotlib takes longer than a few steps; only pictures need it.
        from npusim.sweeps.page import page
        from npusim.sweeps.picture import write

        (new / PAGE).write_text(page(found.times()), encoding="utf-8")
        names += [write(found.times(), new), PAGE]
    return names


def _json(found: ModelSweep) -> str:
    return json_text({"kind": MARK} | found.to_json())


# ---- what is printed ----


def _listing(found: ModelSweep) -> Table:
    """A line for each step that was timed."""
    names = ("device", *found.variables)
    listing = table(*names, "TPOT", "TTFT", "tokens/s", "memory of a card")
    for column in listing.columns[len(names) : -1]:
        column.justify = "right"
    for row in found.rows:
        if row.step is None:
            continue
        memory = row.step.memory
        fits = "" if memory.fits else ", does not fit"
        share = f"{100 * memory.needed_bytes / memory.capacity_bytes:.0f} %{fits}"
        listing.add_row(
            *map(Text, (row.device, *(str(value) for value in row.variables.values()))),
            f"{row.step.tpot_us / 1e3:.2f} ms",
            f"{row.step.ttft_us / 1e3:.1f} ms",
            f"{row.step.decode.tokens_per_s:,.0f}",
            share,
        )
    return listing


def _report_refused(found: ModelSweep) -> None:
    """Each refused step on stderr with its message, and exit code 1 if there is one."""
    if not found.bad:
        return
    typer.echo(f"npusim: sweep: {len(found.bad)} of {len(found.rows)} steps were refused", err=True)
    for row in found.bad:
        asked = (f"{name} {value}" for name, value in row.variables.items())
        where = ", ".join((row.device, *asked))
        typer.echo(f"npusim: {where}: {row.error}", err=True)
    raise typer.Exit(1)
