"""The database that msprof and torch_npu's profiler leave, as rows of their tables.

Names stand in STRING_IDS, by number; when a task ran stands in TASK, in nanoseconds; what it was in
COMPUTE_TASK_INFO, and collectives in COMMUNICATION_OP: assumed, and tried on no real database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from decimal import Decimal
from pathlib import Path

from npusim.data.files import opened
from npusim.profile.kernels import ProfileError

__all__ = ["rows_of"]

NS = Decimal(1000)
"""Nanoseconds of a microsecond."""
WORDS = {
    "name": "name",
    "type": "opType",
    "cores": "taskType",
    "input shapes": "inputShapes",
    "input types": "inputDataTypes",
    "input formats": "inputFormats",
    "output shapes": "outputShapes",
    "output types": "outputDataTypes",
    "output formats": "outputFormats",
}
"""What a row holds -> the column of COMPUTE_TASK_INFO with the number of its text."""
BLOCKS = ("blockNum", "blockDim")
TABLES = {
    "STRING_IDS": ("id", "value"),
    "TASK": ("startNs", "endNs", "globalTaskId"),
    "COMPUTE_TASK_INFO": ("globalTaskId", *WORDS.values()),
}
"""Table -> columns that it must have."""
COLLECTIVES = {"COMMUNICATION_OP": ("opName", "opType", "startNs", "endNs")}


def rows_of(path: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The rows of the database at *path*; raises ProfileError, and OSError if it is no file."""
    opened(path).close()
    who = f"profile: {path.name}"
    try:
        # Nothing is written next to it, not even a journal.
        address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as base:
            yield from _rows(who, base)
    except sqlite3.Error as error:
        raise ProfileError(
            f"{who}: must be a database of SQLite, but: {error}; export the profile again"
        ) from None


def _rows(who: str, base: sqlite3.Connection) -> Iterator[tuple[str, Mapping[str, str]]]:
    there = {name: _columns(base, name) for name in (*TABLES, *COLLECTIVES)}
    for name, columns in TABLES.items():
        _check(who, name, columns, there[name])
    words = dict(base.execute("SELECT id, value FROM STRING_IDS"))
    blocks = (f"c.{name}" for name in BLOCKS if name in there["COMPUTE_TASK_INFO"])
    texts = ", ".join(f"c.{column}" for column in WORDS.values())
    query = (
        f"SELECT t.startNs, t.endNs, {next(blocks, 'NULL')}, {texts} FROM COMPUTE_TASK_INFO c "
        "JOIN TASK t ON t.globalTaskId = c.globalTaskId ORDER BY t.startNs"
    )
    for number, (start, end, count, *numbers) in enumerate(base.execute(query), 1):
        cells = dict(zip(WORDS, (_word(words, each) for each in numbers), strict=True))
        yield (
            f"{who}: task {number}",
            cells | _times(start, end) | {"blocks": "" if count is None else str(count)},
        )
    if set(COLLECTIVES["COMMUNICATION_OP"]) <= set(there["COMMUNICATION_OP"]):
        collectives = base.execute("SELECT opName, opType, startNs, endNs FROM COMMUNICATION_OP")
        for number, (name, kind, start, end) in enumerate(collectives, 1):
            cells = dict.fromkeys(WORDS, "") | {"name": _word(words, name)}
            cells |= {"type": _word(words, kind), "cores": "COMMUNICATION"}
            yield f"{who}: collective {number}", cells | _times(start, end)


def _columns(base: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in base.execute(f"PRAGMA table_info({table})")]


def _check(who: str, table: str, needed: tuple[str, ...], there: list[str]) -> None:
    missing = [name for name in needed if name not in there]
    if missing:
        what = f"the column {missing[0]}" if there else "the table"
        raise ProfileError(
            f"{who}: {table} must have {', '.join(needed)}, but {what} is missing; "
            f"name op_summary_*.csv or kernel_details.csv instead"
        )


def _word(words: Mapping[object, object], number: object) -> str:
    return str(words.get(number, "" if number is None else number))


def _times(start: object, end: object) -> dict[str, str]:
    """Start and length in microseconds, as a table has them."""
    if not isinstance(start, int) or not isinstance(end, int):
        return {"start": str(start), "time": ""}
    return {"start": str(Decimal(start) / NS), "time": str(Decimal(end - start) / NS)}
