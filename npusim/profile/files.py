"""What profilers leave in a folder: tables of kernels as CSV, and databases.

Columns are taken by name, since they differ between versions of CANN. Names: of
``kernel_details.csv`` Ascend/pytorch torch_npu/profiler/analysis/prof_common_func/_csv_headers.py,
of ``op_summary`` Ascend/msprof docs/en/user_guide/profile_data_file_references.md. Tables of the
database (STRING_IDS, TASK, COMPUTE_TASK_INFO, COMMUNICATION_OP) are as the vendor's documents show
them (assumed: no database of a card was at hand).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.data.files import content, reason
from npusim.profile.database import rows_of
from npusim.profile.kernels import NOTHING, Kernel, Operand, ProfileError, operands

if TYPE_CHECKING:
    from os import PathLike

    from npusim.devices.schema import DeviceSpec
    from npusim.profile.comparison import Comparison

__all__ = ["Profile", "read"]

KINDS = (
    "kernel_details.csv",
    "op_summary*.csv",
    "msprof*.db",
    "ascend_pytorch_profiler*.db",
)
"""What is looked for, the first first."""
MAX_BYTES = 1 << 30
NAMES = {
    "name": ("Name", "Op Name"),
    "type": ("Type", "OP Type"),
    "cores": ("Accelerator Core", "Task Type"),
    "start": ("Start Time(us)", "Task Start Time(us)"),
    "time": ("Duration(us)", "Task Duration(us)"),
    "input shapes": ("Input Shapes",),
    "input types": ("Input Data Types",),
    "input formats": ("Input Formats",),
    "output shapes": ("Output Shapes",),
    "output types": ("Output Data Types",),
    "output formats": ("Output Formats",),
}
"""What must be there -> what torch_npu's profiler and msprof call it."""
OPTIONAL = {
    "wait": ("Wait Time(us)", "Task Wait Time(us)"),
    "blocks": ("Block Num", "Block Dim"),
    "core time": ("aicore_time(us)", "aic_time(us)"),
    "vector time": ("aiv_time(us)",),
}
"""What may be there; older CANN says Dim for what is Num now."""

Cells = Mapping[str, str]
"""A row: what NAMES and OPTIONAL call a column -> its cell."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The kernels of a profile, in the order in which they began."""

    path: Path
    """The file that they were read from."""
    kernels: tuple[Kernel, ...]

    def __repr__(self) -> str:
        return f"<profile {self.path.name}: {len(self.kernels)} kernels>"

    def compare(self, device: str | PathLike[str] | DeviceSpec, **options: object) -> Comparison:
        """Hold every kernel against *device*: see :func:`npusim.profile.comparison.compare`."""
        from npusim.profile.comparison import compare

        return compare(self, device, **options)  # type: ignore[arg-type]


def read(folder: str | PathLike[str]) -> Profile:
    """Read the profile in *folder*, or below it, or a file of one; raises ProfileError."""
    path = _found(Path(folder))
    who = f"profile: {path.name}"
    try:
        rows = rows_of(path) if path.suffix == ".db" else _rows(who, path)
        kernels = list(_kernels(rows))
    except OSError as error:
        raise ProfileError(
            f"{who}: must be a file that can be read, but: {reason(error)}; check {str(path)!r}"
        ) from None
    if not kernels:
        raise ProfileError(
            f"{who}: must hold a kernel at least, not none; profile a stretch that runs some"
        )
    return Profile(path, tuple(sorted(kernels, key=lambda kernel: kernel.start_us)))


def _found(folder: Path) -> Path:
    if folder.is_file():
        return folder
    if not folder.is_dir():
        raise ProfileError(
            f"profile: {folder} must be a folder or a file, but there is none; check the path"
        )
    for kind in KINDS:
        there = sorted(folder.rglob(kind))
        if len(there) > 1:
            names = ", ".join(path.relative_to(folder).as_posix() for path in there[:3])
            raise ProfileError(
                f"profile: {folder} must hold one profile, not {len(there)}: {names}"
                f"{', ...' if len(there) > 3 else ''}; name one of these files"
            )
        if there:
            return there[0]
    raise ProfileError(
        f"profile: {folder} must hold {', '.join(KINDS[:-1])} or {KINDS[-1]}, but has none of "
        f"them; name the folder that torch_npu's profiler or msprof left"
    )


# ---- tables ----


def _rows(who: str, path: Path) -> Iterator[tuple[str, Cells]]:
    """Where each row stands, and its cells."""
    try:
        text = content(path, MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProfileError(
            f"{who}: must be UTF-8, not byte 0x{error.object[error.start]:02x}; save it as UTF-8"
        ) from None
    lines = csv.reader(StringIO(text, newline=""), strict=True)
    try:
        head = [name.strip() for name in next(lines, [])]
        places = _places(who, head)
        for cells in lines:
            if not cells:
                continue
            where = f"{who}: line {lines.line_num}"
            if len(cells) != len(head):
                raise ProfileError(
                    f"{where}: must have {len(head)} cells like the first line, not {len(cells)}; "
                    f"export the profile again"
                )
            yield where, {name: cells[place].strip() for name, place in places.items()}
    except csv.Error as error:
        raise ProfileError(
            f"{who}: line {lines.line_num}: must be CSV, but: {error}; export the profile again"
        ) from None


def _places(who: str, head: Sequence[str]) -> dict[str, int]:
    """Which column each name stands in."""
    places = {}
    for name, spellings in (NAMES | OPTIONAL).items():
        there = [head.index(spelling) for spelling in spellings if spelling in head]
        if there:
            places[name] = there[0]
        elif name in NAMES:
            raise ProfileError(
                f"{who}: line 1: columns must hold {' or '.join(spellings)}, but it is missing; "
                f"profile at level 1 or higher (msprof: --task-time=l1), which writes it"
            )
    return places


# ---- kernels ----


def _kernels(rows: Iterator[tuple[str, Cells]]) -> Iterator[Kernel]:
    known = [(where, cells, _start_us(where, cells)) for where, cells in rows]
    first_us = min((start_us for _, _, start_us in known), default=Decimal(0))
    for where, cells, start_us in known:
        yield Kernel(
            cells["name"],
            cells["type"],
            cells["cores"],
            # Microseconds since 1970 have no room for nanoseconds in a float.
            float(start_us - first_us),
            _number(where, "time", cells["time"]),
            _number_if_any(where, "wait", cells),
            _blocks(where, cells.get("blocks", "")),
            _operands(where, "input", cells),
            _operands(where, "output", cells),
            _busy_us(where, cells),
        )


def _start_us(where: str, cells: Cells) -> Decimal:
    try:
        start_us = Decimal(cells["start"])
    except InvalidOperation:
        start_us = Decimal("nan")
    if not start_us.is_finite():
        raise _wrong(where, "start", "a time in microseconds", cells["start"])
    return start_us


def _number(where: str, name: str, cell: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise _wrong(where, name, "a time in microseconds", cell)
    return number


def _number_if_any(where: str, name: str, cells: Cells) -> float | None:
    cell = cells.get(name, "")
    return None if cell in NOTHING else _number(where, name, cell)


def _blocks(where: str, cell: str) -> int | None:
    if cell in NOTHING:
        return None
    if not cell.isdecimal():
        raise _wrong(where, "blocks", "a whole number", cell)
    return int(cell) or None


def _busy_us(where: str, cells: Cells) -> float | None:
    counted = [_number_if_any(where, name, cells) for name in ("core time", "vector time")]
    return max((found for found in counted if found), default=None)


def _operands(where: str, side: str, cells: Cells) -> tuple[Operand, ...]:
    found = [cells[f"{side} {part}"] for part in ("shapes", "types", "formats")]
    try:
        return operands(*found)
    except ValueError:
        raise ProfileError(
            f"{where}: shapes, types and formats of {side}s must be as many, shapes whole numbers, "
            f"not {', '.join(map(repr, found))}; export the profile again"
        ) from None


def _wrong(where: str, name: str, must: str, cell: str) -> ProfileError:
    spelling = (NAMES | OPTIONAL)[name][0]
    return ProfileError(
        f"{where}: {spelling} must be {must}, not {cell!r}; export the profile again"
    )
