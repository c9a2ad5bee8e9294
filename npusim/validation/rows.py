"""Measured kernels, one per row of a CSV file."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

from npusim import devices
from npusim.data.files import content

__all__ = ["SHIPPED", "Row", "RowError", "read"]

SHIPPED = "silicon.csv"
MAX_BYTES = 1 << 26
"""The most bytes of a file; a row has less than a thousand."""


REPLAYED = "matmul_bf16_910b"
"""The family whose benchmark replays short kernels one after the other."""
HOST_US = 9.0, 12.0
"""The time in which the host issues a kernel there. Products of 4 and 8 rows with n up to 2048 take
9.7 to 11.5 us for every k from 256 to 2048, those of 2 and of 16 rows 5 to 9. So a row between
these measures the host, and not the kernel, if SEVERAL products that are not smaller take CLEARLY
less. Inferred from the times; the source does not mention it."""
CLEARLY = 0.8
"""They take clearly less if they take at most this share of the time."""
SEVERAL = 2
"""A single one may be faster because of a different tiling."""


class RowError(ValueError):
    """A file does not contain measured kernels."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured kernel; an empty cell, or unknown in place of a flag, is None."""

    id: str
    family: str
    """Rows with the same source, method of measurement and kind of chip."""
    op: str
    """A torch_npu function, two of them joined by ` + `, or a description of another kernel."""
    device: str
    latency_us: float
    """The median if the source gives one."""
    b: int | None = None
    m: int | None = None
    k: int | None = None
    n: int | None = None
    shape: str = ""
    """The shapes as text, if m, k and n do not give them."""
    x_dtype: str = ""
    w_dtype: str = ""
    out_dtype: str = ""
    scale_dtype: str = ""
    w_layout: str = ""
    antiquant_offset: bool | None = None
    pertoken: bool | None = None
    bias: bool | None = None
    l2: str = ""
    """The state of the L2, in the terms of the source."""
    variant: str = ""
    latency_min_us: float | None = None
    """The minimum, if the source gives it next to the median, or if `read` takes it from rows of
    the same table."""
    source: str = ""
    note: str = ""

    def nearest_us(self, time_us: float) -> float:
        """The time to compare with *time_us*: the nearest time from the minimum to the median.

        Measurements in a served model report both: the minimum is the kernel alone, the median
        includes the effects of other kernels and other cards. A benchmark that replays short
        kernels one after the other may measure how fast the host issues them, see `read`.
        """
        least_us = self.latency_us if self.latency_min_us is None else self.latency_min_us
        return min(max(time_us, least_us), self.latency_us)


def read(path: Path | None = None) -> tuple[Row, ...]:
    """The rows of the file at *path*, by default the one that ships with npusim, in order.

    The first line names the columns, in any order: those of :class:`Row`, of which id, family, op,
    device and latency_us are required. Raises RowError.

    Rows that measure the host, see HOST_US, get a minimum: the time of the fastest product that is
    not smaller than theirs.
    """
    where = files("npusim.validation") / SHIPPED if path is None else path
    who = f"validate: {where.name}"
    try:
        raw = where.read_bytes() if path is None else content(path, MAX_BYTES)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise RowError(
            f"{who}: must be a file that can be read, but: {error.strerror}; "
            f"check the path {str(where)!r}"
        ) from None
    except UnicodeDecodeError as error:
        raise RowError(
            f"{who}: must be UTF-8, not byte 0x{error.object[error.start]:02x}; "
            f"save the file as UTF-8"
        ) from None
    rows = tuple(_rows(who, text))
    if not rows:
        raise RowError(f"{who}: must hold a row at least, not none; add one below the columns")
    return _held_up_by_the_host(rows)


def _held_up_by_the_host(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """*rows*, with a minimum for those that measure the host."""
    replayed = [row for row in rows if row.family == REPLAYED]
    found = []
    for row in rows:
        least, most = HOST_US
        if row.family == REPLAYED and least <= row.latency_us <= most:
            faster = [
                other.latency_us
                for other in replayed
                if other.latency_us < CLEARLY * row.latency_us and _is_no_smaller(other, row)
            ]
            if len(faster) >= SEVERAL and row.latency_min_us is None:
                row = replace(row, latency_min_us=min(faster))
        found.append(row)
    return tuple(found)


def _is_no_smaller(row: Row, than: Row) -> bool:
    """Whether all sizes of the product of *row* are known, and none is smaller than in *than*."""
    sizes = zip((row.m, row.k, row.n), (than.m, than.k, than.n), strict=True)
    return all(a is not None and b is not None and a >= b for a, b in sizes)


def _rows(who: str, text: str) -> Iterator[Row]:
    lines = csv.reader(StringIO(text, newline=""), strict=True)
    seen: set[str] = set()
    try:
        columns = _columns(who, next(lines, []))
        for cells in lines:
            if not cells:
                continue  # an empty line
            place = f"{who}: line {lines.line_num}"
            if len(cells) != len(columns):
                raise RowError(
                    f"{place}: must have {len(columns)} cells like the first line, "
                    f"not {len(cells)}; quote cells that hold a comma"
                )
            row = _row(place, dict(zip(columns, cells, strict=True)))
            if row.id in seen:
                raise RowError(
                    f"{place}: id must be given once, not {row.id!r} again; name it otherwise"
                )
            seen.add(row.id)
            yield row
    except csv.Error as error:
        raise RowError(
            f"{who}: line {lines.line_num}: must be CSV, but: {error}; fix that place"
        ) from None


def _columns(who: str, found: list[str]) -> list[str]:
    for name in found:
        if name not in PARSERS:
            near = get_close_matches(name, PARSERS, n=1)
            hint = f"did you mean {near[0]}?" if near else "take it out"
            raise RowError(
                f"{who}: line 1: columns must be among {', '.join(PARSERS)}, not {name!r}; {hint}"
            )
        if found.count(name) > 1:
            raise RowError(f"{who}: line 1: column {name} must come once; take one of them out")
    for name in NEEDED:
        if name not in found:
            raise RowError(
                f"{who}: line 1: columns must hold {', '.join(NEEDED)}, but {name} is missing; "
                f"add it"
            )
    return found


def _row(place: str, cells: dict[str, str]) -> Row:
    values: dict[str, Any] = {}
    for name, cell in cells.items():
        must, parse = PARSERS[name]
        try:
            values[name] = parse(cell)
        except ValueError:
            raise RowError(f"{place}: {name} must be {must}, not {cell!r}; fix the cell") from None
    row = Row(**values)
    if row.latency_min_us is not None and row.latency_min_us > row.latency_us:
        raise RowError(
            f"{place}: latency_min_us must be at most latency_us, {row.latency_us:g}, "
            f"not {row.latency_min_us:g}; fix one of them"
        )
    return row


def _word(cell: str) -> str:
    if not cell:
        raise ValueError
    return cell


def _chip(cell: str) -> str:
    devices.load(_word(cell))
    return cell


def _size(cell: str) -> int | None:
    if not cell:
        return None
    size = int(cell)
    if size < 1:
        raise ValueError
    return size


def _time(cell: str) -> float:
    time_us = float(cell)
    if not 0 < time_us < math.inf:
        raise ValueError
    return time_us


def _time_if_any(cell: str) -> float | None:
    return _time(cell) if cell else None


def _flag(cell: str) -> bool | None:
    known = {"True": True, "False": False, "unknown": None, "": None}
    if cell not in known:
        raise ValueError
    return known[cell]


def _among(choices: tuple[str, ...]) -> tuple[str, Callable[[str], str]]:
    """One of *choices*, or an empty cell."""

    def parse(cell: str) -> str:
        if cell and cell not in choices:
            raise ValueError
        return cell

    return f"one of {'; '.join(choices)}; or empty", parse


L2_STATES = (
    "warm", "cold", "flushed", "served", "served, last written", "weights cold",
    "weights cold, activations warm", "unknown", "as noted",
)  # fmt: skip
TEXT = ("text", str)
WORD = ("a name", _word)
SIZE = ("a whole number above 0, or empty", _size)
FLAG = ("True, False, unknown or empty", _flag)
PARSERS: dict[str, tuple[str, Callable[[str], object]]] = {
    field.name: TEXT for field in fields(Row)
}
"""Column -> the required form of a cell, and its conversion to a value."""
PARSERS |= dict.fromkeys(("id", "family", "op"), WORD)
PARSERS |= dict.fromkeys(("b", "m", "k", "n"), SIZE)
PARSERS |= dict.fromkeys(("antiquant_offset", "pertoken", "bias"), FLAG)
PARSERS |= {
    "device": ("a chip that `npusim devices` lists", _chip),
    "w_layout": _among(("ND", "NZ")),
    "l2": _among(L2_STATES),
    "latency_us": ("a number above 0", _time),
    "latency_min_us": ("a number above 0, or empty", _time_if_any),
}
NEEDED = ("id", "family", "op", "device", "latency_us")
