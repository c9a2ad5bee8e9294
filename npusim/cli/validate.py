"""`npusim validate`: simulated times compared with times measured on silicon."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import typer
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from npusim import validation
from npusim.cli.call import UsageError
from npusim.cli.progress import shown
from npusim.cli.screen import PAGE_COLUMNS, RemarkedTable, show, table
from npusim.data import folders
from npusim.data.files import content
from npusim.data.json import json_text
from npusim.data.text import counted
from npusim.validation import Family, Result, Row, pipes, simulated
from npusim.validation.errors import SHORT_US, Errors
from npusim.validation.events import events_of
from npusim.validation.pictures import PICTURES

__all__ = ["errors", "validate"]

RECORD = "validation.json"
MAX_BYTES = 1 << 28
"""That file has at most so many: a kernel has less than a thousand."""


def validate(
    csv: Path | None,
    family: Sequence[str],
    every_row: bool,
    output: Path | None,
    force: bool,
    jobs: int | None,
    as_json: bool,
    of_pipes: bool,
) -> None:
    """Hold simulated times against measured ones, family by family."""
    if of_pipes:
        if csv is not None:
            raise UsageError(
                "validate: --pipes must be of the rows that ship with npusim, whose pipes were "
                "counted, not of a file; leave CSV out"
            )
        if output is not None:
            raise UsageError("validate: --pipes must go without --output; leave it out")
        _hold_pipes(family, jobs, as_json)
        return
    known = _chosen(validation.read(csv), family)
    rows = known if csv is not None or every_row else validation.sample(known)
    if output is not None:
        folders.check(output, force, KIND)
    with shown() as progress:
        results = validation.measure(rows, jobs=jobs, progress=progress)
    note = []
    if len(rows) < len(known):
        note = [_sampled(results, len(known))]
        results = simulated.with_others(known, results)
    families = validation.families(results)
    facts = json_text(
        {
            "timed_now": len(rows),
            "rows": [result.to_json() for result in results],
            "families": [found.to_json() for found in families],
        }
    )
    written = []
    if output is not None:
        written = folders.write(lambda new: _fill(new, results, facts), output, KIND, force=force)
    if as_json:
        typer.echo(facts)
        return
    show(Group(*note, errors(families), *_between_events(rows), *_missing(families)))
    if output is not None:
        show(f"\nwrote {', '.join(written)} to {output}")


def _hold_pipes(family: Sequence[str], jobs: int | None, as_json: bool) -> None:
    """The same for the times of pipes, of all rows that have them."""
    rows = [row for row in validation.read() if row.id in pipes.counted()]
    with shown() as progress:
        found = pipes.measure(_chosen(tuple(rows), family), jobs=jobs, progress=progress)
    by_pipe = pipes.errors(found)
    if as_json:
        rows_json = [one.to_json() for one in found]
        typer.echo(json_text({"rows": rows_json, "pipes": [one.to_json() for one in by_pipe]}))
        return
    listing = table("family", "pipe", "rows", "median", "bias")
    for column in listing.columns[2:]:
        column.justify = "right"
    last = ""
    for one in by_pipe:
        name = "" if one.family == last else one.family
        shares = _share(one.median), _share(one.bias, "+")
        listing.add_row(Text(name, "bold"), one.pipe, str(one.rows), *shares)
        last = one.family
    show(listing)


def _made(where: Path) -> frozenset[str]:
    """What an earlier one wrote into *where*; raises ValueError if it wrote none."""
    try:
        facts = json.loads(content(where / RECORD, MAX_BYTES))
    except (OSError, RecursionError):
        facts = None
    if not isinstance(facts, dict) or not {"rows", "families"} <= set(facts):
        raise ValueError(f"validate: {RECORD} must have rows and families; write it again")
    return frozenset({RECORD, *PICTURES})


KIND = folders.Kind("validate", RECORD, _made)


def _chosen(rows: tuple[Row, ...], names: Sequence[str]) -> tuple[Row, ...]:
    known = list(dict.fromkeys(row.family for row in rows))
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "use one of these"
            raise UsageError(
                f"validate: --family must be one of {', '.join(known)}, not {name!r}; {hint}"
            )
    return tuple(row for row in rows if not names or row.family in names)


def _fill(new: Path, results: tuple[Result, ...], facts: str) -> list[str]:
    (new / RECORD).write_text(facts + "\n", encoding="utf-8")
    names = [RECORD]
    if any(result.time_us is not None for result in results):
        # Loading matplotlib takes longer than a few rows; only pictures need it.
        from npusim.validation.pictures import write

        names += write(results, new)
    return names


# ---- the table ----


def _sampled(results: Sequence[Result], known: int) -> Text:
    """What is said where *results* are those of a sample of so many rows."""
    moved = simulated.moved(results)
    same = f"{moved} of them with another time" if moved else "with the same times"
    return Text(
        f"{known} rows with stored times; {len(results)} of them simulated again, {same}; "
        f"--all simulates all\n"
    )


def errors(families: Sequence[Family]) -> RemarkedTable:
    """A line for each family, and one for its short rows, if there are any."""
    headings = "family", "rows", "timed", f"from {SHORT_US:g} us", "median", "P90", "bias"
    listing = RemarkedTable(*headings, "worst", "rank", numbers=slice(1, None))
    for found in families:
        long, short = found.long, found.short
        listing.add_row(
            Text(found.name, "bold"),
            *(str(found.rows), str(found.modelled)),
            *(str(long.rows or ""), _share(long.median), _share(long.p90)),
            *(_share(long.bias, "+"), _worst(_share(long.worst, "+"), long.worst_id)),
            "" if found.rank is None else f"{found.rank:.2f}",
            remark=_short(short) if short.rows else "",
        )
    return listing


def _short(found: Errors) -> str:
    return (
        f"below {SHORT_US:g} us: {counted(found.rows, 'row', 'rows')}, median {_us(found.median)}, "
        f"worst {_worst(_us(found.worst, '+'), found.worst_id)}"
    )


def _share(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{round(100 * value):{sign}d} %"


def _us(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.1f} us"


def _worst(error: str, name: str | None) -> str:
    return f"{error} {name}" if name else ""


def _between_events(rows: Sequence[Row]) -> list[RenderableType]:
    """What the times of families hold besides the kernel, where they are not Task Durations."""
    lines = Table.grid(padding=(0, 2))
    for _ in range(2):
        lines.add_column(overflow="fold")
    for name, events in dict.fromkeys((row.family, events_of(row)) for row in rows):
        if events.table:
            lines.add_row(Text(name, "bold"), Text(str(events)))
    return _below("measured from event to event", lines)


def _missing(families: Sequence[Family]) -> list[RenderableType]:
    """What has no simulated time, and why."""
    lines = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "left"):
        lines.add_column(justify=justify, overflow="fold")
    for found in families:
        for reason, count in found.not_modelled.items():
            lines.add_row(Text(found.name, "bold"), str(count), Text(reason))
    return _below("not modelled", lines)


def _below(heading: str, lines: Table) -> list[RenderableType]:
    return [Text(f"\n{heading}"), Constrain(lines, PAGE_COLUMNS)] if lines.row_count else []
