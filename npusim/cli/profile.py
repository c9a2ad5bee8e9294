"""`npusim profile`: a profile of a real card held against the simulator."""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Group
from rich.text import Text

from npusim import validation
from npusim.cli.progress import shown
from npusim.cli.screen import RemarkedTable, show
from npusim.data import files, folders
from npusim.data.files import content
from npusim.data.json import json_text
from npusim.profile import Comparison, read
from npusim.profile.rows import added
from npusim.profile.tables import GROUPS, facts, findings, group_cells, kernels_csv
from npusim.validation.written import to_csv

__all__ = ["profile"]

RECORD, PAGE, TABLE = "profile.json", "profile.html", "kernels.csv"
MAX_BYTES = 1 << 30


def profile(
    folder: Path,
    device: str,
    output: Path | None,
    rows: Path | None,
    force: bool,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Print, and write if asked, how the profile in *folder* compares with *device*."""
    taken = read(folder)
    if output is not None:
        folders.check(output, force, KIND)
    earlier = _earlier(rows)
    with shown() as progress:
        found = taken.compare(device, jobs=jobs, progress=progress)
    text = json_text(facts(found))
    notes = []
    if output is not None:
        names = folders.write(lambda new: _fill(new, found, text), output, KIND, force=force)
        notes.append(f"wrote {', '.join(names)} to {output}")
    if rows is not None:
        more = added(found, earlier)
        whole = to_csv([*earlier, *more])
        files.write(rows, lambda new: _put(new, whole), "profile", force=True)
        notes.append(f"added {len(more)} of {len(found.known)} kinds of kernels to {rows}")
    if as_json:
        typer.echo(text)
        return
    show(Group(*map(Text, findings(found)), Text(), _listing(found)))
    if notes:
        show(*("", *notes))


def _earlier(rows: Path | None) -> tuple[validation.Row, ...]:
    """What is in the file already, which must be one that can be added to."""
    if rows is None:
        return ()
    if files.taken(rows) is not None:
        return validation.read(rows)
    files.check_place(rows, False, "profile")
    return ()


def _put(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _fill(new: Path, found: Comparison, text: str) -> list[str]:
    # The page loads what draws; a table does without.
    from npusim.profile.page import page

    _put(new / PAGE, page(found))
    _put(new / TABLE, kernels_csv(found))
    _put(new / RECORD, text + "\n")
    return [PAGE, TABLE, RECORD]


def _made(where: Path) -> frozenset[str]:
    """What an earlier one wrote into *where*; raises ValueError if it wrote none."""
    try:
        known = json.loads(content(where / RECORD, MAX_BYTES))
    except (OSError, RecursionError):
        known = None
    if not isinstance(known, dict) or not {"profile", "groups", "kernels"} <= set(known):
        raise ValueError(f"profile: {RECORD} must have groups and kernels; write it again")
    return frozenset({RECORD, PAGE, TABLE})


KIND = folders.Kind("profile", RECORD, _made)


def _listing(found: Comparison) -> RemarkedTable:
    """Launches of the same work, slow ones first: the numbers, and below them what it was."""
    kind, _, _, *numbers, _ = GROUPS
    listing = RemarkedTable(*numbers, kind, numbers=slice(len(numbers)))
    for group in found.groups:
        kind, shapes, formats, *numbers, cause = group_cells(group)
        remark = "  ".join(filter(None, (shapes, formats, cause)))
        listing.add_row(*numbers, kind, remark=remark)
    return listing
