"""`npusim layout`: which element of a matrix lies where, and what lies at a byte."""

from __future__ import annotations

import re
from dataclasses import asdict
from io import BytesIO
from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

from npusim import devices
from npusim.cli.call import UsageError
from npusim.cli.commands.formats import MapFormat
from npusim.cli.grids import FORMATS, described, facts
from npusim.cli.screen import show
from npusim.data.dtypes import dtype_named
from npusim.data.errors import shown
from npusim.data.files import check_place, write
from npusim.data.json import json_text
from npusim.data.layout import Placement, Spot
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.timing.banks import bank_of

__all__ = ["show_layout"]


PICTURES = ("svg", "png")
FORMAT_NAMES = tuple(form.value for form in MapFormat)
ENDINGS = {"txt": "text", "htm": "html"}
INCHES = (6.0, 24.0)
"""Smallest and largest width and height of a picture."""


def show_layout(
    words: list[str],
    index: str | None,
    offset: str | None,
    device: str,
    form: MapFormat | None,
    html: bool,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Show how the matrix that *words* describe lies in memory, or where one place of it is."""
    asked = _format(form, html, as_json, output)
    placement = _placement(words, asked)
    spec = devices.load(device)
    if index is not None or offset is not None:
        _where(placement, index, offset, spec, asked, output)
        return
    if words[:1] == ["where"]:
        raise UsageError("layout: where must be given --index I,J or --offset BYTE; add one")
    if output is not None:
        check_place(output, force, "layout")
    elif asked == "png":
        raise UsageError("layout: a PNG must go to a file, not to the screen; add -o layout.png")
    data = _written(placement, asked, spec)
    if output is None:
        typer.echo(data.decode(), nl=False)
        return
    write(output, lambda new: new.write_bytes(data), "layout", force=force)
    show(f"wrote {output}")


def _format(form: MapFormat | None, html: bool, as_json: bool, output: Path | None) -> str:
    named = {form.value} if form is not None else set()
    named |= {"html"} if html else set()
    named |= {"json"} if as_json else set()
    if len(named) > 1:
        raise UsageError(
            f"layout: a map must be written one way, not {', '.join(sorted(named))}; keep one"
        )
    if named:
        return named.pop()
    if output is None:
        return "text"
    ending = output.suffix[1:].lower()
    found = ENDINGS.get(ending, ending)
    if found not in FORMAT_NAMES:
        raise UsageError(
            f"layout: a file must end in one of .{', .'.join((*ENDINGS, *FORMAT_NAMES))}, "
            f"not {shown(output.name)}; rename it or add --format"
        )
    return found


def _placement(words: list[str], asked: str) -> Placement:
    """The matrix that *words* describe; the page begins with one even if there are none."""
    if not words and asked == "html":
        words = ["20x40", "int8", "FRACTAL_NZ"]
    words = words[words[:1] == ["where"] :]
    if len(words) != 3:
        raise UsageError(
            f"layout: a matrix must be given as SHAPE DTYPE LAYOUT, not {shown(' '.join(words))}; "
            f"write for example 20x40 int8 FRACTAL_NZ"
        )
    shape, dtype, name = words
    if not re.fullmatch(r"[0-9]{1,9}x[0-9]{1,9}", shape):
        raise UsageError(
            f"layout: a shape must be rows x columns, not {shown(shape)}; write for example 20x40"
        )
    rows, columns = (int(size) for size in shape.split("x"))
    try:
        return Placement(rows, columns, dtype_named(dtype), name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _written(of: Placement, asked: str, spec: DeviceSpec) -> bytes:
    if asked == "html":
        from npusim.reports.layout_page import page

        return page(of, spec).encode()
    return _drawn(of, asked) if asked in PICTURES else FORMATS[asked](of).encode()


def _drawn(of: Placement, asked: str) -> bytes:
    # Loading matplotlib takes longer than all the rest; only pictures need it.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from npusim.reports.layout import layout

    rows_padded, cols_padded = of.padded
    smallest, largest = INCHES
    width = min(largest, max(smallest, cols_padded * 0.3))
    height = max(2.0, width * rows_padded / cols_padded * 0.7) + 1
    figure = Figure((width, min(largest, height)))
    with rc_context({"svg.hashsalt": "npusim", "svg.fonttype": "none"}):
        figure.subplots_adjust(0.08, 0.12, 0.99, 0.92)
        layout(of, ax=figure.subplots())
        raw = BytesIO()
        # Without a date the same map is the same file.
        metadata = {"Date": None} if asked == "svg" else None
        figure.savefig(raw, format=asked, dpi=120, metadata=metadata)
    return raw.getvalue()


# ---- one place ----


def _where(
    of: Placement,
    index: str | None,
    offset: str | None,
    spec: DeviceSpec,
    asked: str,
    output: Path | None,
) -> None:
    if index is not None and offset is not None:
        raise UsageError("layout: either --index or --offset must be given, not both; drop one")
    if asked not in ("text", "json") or output is not None:
        raise UsageError("layout: one place must be printed as text or json; drop --format and -o")
    spots = _found(of, index, offset)
    if asked == "json":
        rows = [asdict(spot) | _bank(spot, spec) for spot in spots]
        typer.echo(json_text(facts(of) | {"device": spec.name, "places": rows}))
        return
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold")
    lines.add_column()
    for key, value in described(of):
        lines.add_row(key, Text(value))
    for spot in spots:
        for key, value in _lines(of, spot, spec):
            lines.add_row(key, Text(value))
    show(lines)


def _found(of: Placement, index: str | None, offset: str | None) -> tuple[Spot, ...]:
    if index is not None:
        if not re.fullmatch(r"[0-9]{1,9},[0-9]{1,9}", index):
            raise UsageError(
                f"layout: --index must be I,J, not {shown(index)}; write for example 17,33"
            )
        row, column = (int(part) for part in index.split(","))
        return (of.where(row, column),)
    assert offset is not None
    if not re.fullmatch(r"[0-9]{1,18}|0[xX][0-9a-fA-F]{1,15}", offset):
        raise UsageError(
            f"layout: --offset must be a byte, not {shown(offset)}; write for example 1569"
        )
    return of.at_byte(int(offset, 16 if offset[:2].lower() == "0x" else 10))


def _bank(spot: Spot, spec: DeviceSpec) -> dict[str, int | None]:
    """Group and bank of the place if the matrix began with the unified buffer."""
    ub_bytes = spec.cores[spec.vector_kinds[0]].ub_bytes or 0
    if spot.byte >= ub_bytes:
        return {"ub_bank_group": None, "ub_bank": None}
    group, bank = bank_of(spec.banks, spot.byte // BLOCK_BYTES)
    return {"ub_bank_group": group, "ub_bank": bank}


def _lines(of: Placement, spot: Spot, spec: DeviceSpec) -> list[tuple[str, str]]:
    holds = "padding" if spot.is_padding else f"row {spot.row}, column {spot.column}"
    bits = "" if of.dtype.bits >= 8 else f", bits {spot.bit} to {spot.bit + of.dtype.bits - 1}"
    lines = [("holds", holds), ("place", f"element {spot.element}, byte {spot.byte}{bits}")]
    if spot.fractal is not None:
        lines.append(
            (
                "fractal",
                f"number {spot.fractal} in memory, at {spot.fractal_row}, {spot.fractal_column} of "
                f"the matrix; inside it row {spot.inner_row}, column {spot.inner_column}",
            )
        )
    bank = _bank(spot, spec)
    group = f"group {bank['ub_bank_group']}, bank {bank['ub_bank']} of it"
    beyond = "none: the place is beyond the buffer"
    where = beyond if bank["ub_bank"] is None else f"{group}, if the matrix begins with the buffer"
    return [*lines, (f"UB bank on {spec.name}", where)]
