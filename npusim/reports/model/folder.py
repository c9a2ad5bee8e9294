"""The folder of a run of a model: its record, its page, and its tables as CSV and JSON."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from npusim.data import folders
from npusim.data.folders import Kind
from npusim.reports.model.page import page
from npusim.reports.model.sheets import sheets
from npusim.trace import model
from npusim.trace.model import MODEL, ModelRun

__all__ = ["PAGE", "kind", "write"]

PAGE = "report.html"
TABLES = "tables.json"
NOT_IN_JSON = ("launches",)
"""Tables that the record also holds, in a much smaller form."""


def kind(forced_by: str = "add --force") -> Kind:
    """How to recognise such folders before they are replaced, which *forced_by* requests."""
    return Kind("npusim.torch", MODEL, model.made, forced_by)


def write(run: ModelRun, folder: Path, of: Kind, *, force: bool = False) -> list[str]:
    """Write *run* into *folder*, replacing an earlier run if *force*; returns names of files.

    Raises FolderError.
    """
    return folders.write(partial(_fill, run), folder, of, force=force)


def _fill(run: ModelRun, new: Path) -> list[str]:
    known = sheets(run)
    files = {f"{name}.csv": sheet.to_csv() for name, sheet in known.items()}
    tree = {name: sheet.to_json() for name, sheet in known.items() if name not in NOT_IN_JSON}
    files[TABLES] = json.dumps(tree, indent=1, allow_nan=False) + "\n"
    files[PAGE] = page([run])
    for name, text in files.items():
        (new / name).write_text(text, encoding="utf-8")
    return [PAGE, *sorted(set(files) - {PAGE}), model.seal(new, run)]
