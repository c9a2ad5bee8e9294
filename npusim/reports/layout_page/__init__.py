"""A page for exploring layouts: it opens from disk and needs no network and no installation.

`map.js` computes what it draws, `mmad.js` for an Mmad, from the data that :func:`facts` takes from
``npusim.data.layout`` and a device: the order of axes and the fractal of each layout, the operands
of an Mmad, and the cost of a burst. The rest is presentation.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files

from npusim.check.rules import Place, RuleError, check
from npusim.check.rules.matrix import OPERAND_DTYPES
from npusim.check.rules.matrix import SUMS as MMAD_SUMS
from npusim.data.dtypes import DTYPES, UINT8, DType
from npusim.data.json import Json
from npusim.data.layout import FRACTAL_ROWS, Placement, c0
from npusim.data.layout.html import DARK_SHADES, SHADES
from npusim.data.layout.placement import OF_ALL_ROWS, ORDERS, SUMS
from npusim.devices.schema import CORE_KINDS, DeviceSpec
from npusim.isa import BLOCK_BYTES, Global, LoadNd2Nz, Local, Mmad
from npusim.kernel.builder import Builder
from npusim.reports import frame
from npusim.reports.policy import policy
from npusim.timing.cost.matrix import mmad

__all__ = ["MAX_EXTENT", "facts", "page"]

MAX_EXTENT = 1 << 16
"""The most rows and columns of a matrix on the page."""
WINDOW = 128
"""Rows and columns that the page draws at a time; a multiple of the size of every fractal."""
MMAD_EXTENT = 64
"""The same for an Mmad, whose three operands are drawn next to each other."""
MMAD_START = {"m": 20, "n": 32, "k": 40}
"""The initial matrix: several fractals of every type in both directions, some padded."""
SCRIPTS = ("map.js", "draw.js", "mmad.js", "page.js")
SHARED = tuple(f"{name}.js" for name in frame.SHARED)
"""The style sheets of every page."""


def page(start: Placement, spec: DeviceSpec) -> str:
    """The page as text; it starts with *start*, and its copies cost what they cost on *spec*."""
    if max(start.rows, start.columns) > MAX_EXTENT:
        raise ValueError(
            f"layout: the page must begin with at most {MAX_EXTENT} rows and columns, not "
            f"{start.rows} x {start.columns}; take a smaller matrix"
        )
    here = files(__name__)
    # No text within the data may close the element that contains it.
    parts = {"data": json.dumps(facts(start, spec), allow_nan=False).replace("<", "\\u003c")}
    for name in (*SCRIPTS, "page.css"):
        parts[name] = here.joinpath(name).read_text(encoding="utf-8")
    for name in SHARED:
        parts[name] = frame.text_of("npusim.reports", name)
    parts["languages"] = frame.languages()
    parts["policy"] = policy(*(f"\n{parts[name]}\n" for name in (*SHARED, *SCRIPTS)))
    text = here.joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"/\*\{([\w.]+)\}\*/", lambda place: parts[place[1]], text)


def facts(start: Placement, spec: DeviceSpec) -> Json:
    """The data of layouts and of the device for the page, as JSON."""
    return {
        "start": {
            "rows": start.rows,
            "columns": start.columns,
            "dtype": start.dtype.name,
            "layout": start.name,
        },
        "most": MAX_EXTENT,
        "window": WINDOW,
        "block_bytes": BLOCK_BYTES,
        "bits": {dtype.name: dtype.bits for dtype in DTYPES},
        "layouts": {name: _layout(name) for name in ORDERS},
        "shades": SHADES,
        "dark_shades": DARK_SHADES,
        "mmad": _mmad(start.dtype, spec),
        "device": {
            "name": spec.name,
            "sector_bytes": spec.transfer.sector_bytes,
            "line_bytes": spec.l2.line_bytes,
            "issue_cycles": spec.transfer.issue_cycles,
            "burst_cycles": spec.transfer.burst_cycles,
            "nd2nz_refusal": _refusal(spec),
            "gm_row_ns": spec.gm.row_ns,
            "l2_row_ns": spec.l2.row_ns,
        },
    }


def _refusal(spec: DeviceSpec) -> str | None:
    """Why the chip does not convert rows to Nz on the way into L1; None if it does."""
    kind = CORE_KINDS[spec.arch][0]
    builder = Builder("page", spec.cores[kind], spec.sync)
    block = builder.claim("l1", FRACTAL_ROWS * BLOCK_BYTES).of(UINT8, BLOCK_BYTES)
    op = LoadNd2Nz(block, Global("x", 0, BLOCK_BYTES), FRACTAL_ROWS)
    builder.emit(op)
    try:
        check(builder.build(), Place(spec, kind))
    except RuleError as error:
        return str(error).partition(f"{op}: ")[2]
    return None


def _layout(name: str) -> dict[str, object]:
    """The order of axes of a layout, and its fractal for each type that it can hold."""
    order = ORDERS[name]
    dtypes = SUMS if name == "L0C" else DTYPES
    return {
        "axes": order.axes if order else None,
        "fractals": {dtype.name: _fractal(name, dtype) for dtype in dtypes},
    }


def _fractal(name: str, dtype: DType) -> tuple[int | None, int] | None:
    """Rows and columns of a fractal, None for all rows; None for ND."""
    found = Placement(1, 1, dtype, name).fractal
    return (None, found[1]) if found and name in OF_ALL_ROWS else found


def _mmad(wanted: DType, spec: DeviceSpec) -> dict[str, object]:
    """The buffers of the operands of an Mmad, and its types: *wanted* first if it is among them."""
    dtypes = [dtype for dtype in OPERAND_DTYPES[spec.arch] if dtype.name in spec.cube.k_per_cycle]
    return {
        "most": MMAD_EXTENT,
        "start": MMAD_START | {"dtype": (wanted if wanted in dtypes else dtypes[0]).name},
        "layouts": {"a": "Zz", "b": "Zn", "c": "L0C"},
        "buffers": {"a": "L0A", "b": "L0B", "c": "L0C"},
        "dtypes": {
            dtype.name: {"sum": MMAD_SUMS[dtype].name, "cycles": _step_cycles(dtype, spec)}
            for dtype in dtypes
        },
    }


def _step_cycles(dtype: DType, spec: DeviceSpec) -> int:
    """The additional cycles of an Mmad for one more fractal of A and of B."""

    def cycles(fractals: int) -> int:
        k = fractals * c0(dtype)
        a = Local("l0a", 0, dtype, FRACTAL_ROWS * k)
        b = Local("l0b", 0, dtype, k * FRACTAL_ROWS)
        c = Local("l0c", 0, MMAD_SUMS[dtype], FRACTAL_ROWS**2)
        return mmad(Mmad(c, a, b, FRACTAL_ROWS, FRACTAL_ROWS, k), spec.cube).body

    return cycles(2) - cycles(1)
