"""The vendor's kernel that runs a call, and why.

Atlas A2 and A3: the first that can, in this order; those with groups run no other calls.

===============  =====  ======================================================================
template         key    what it does
===============  =====  ======================================================================
moe              7      groups: like base, loading the smooth scales of the next group when needed
moe_large        8      groups: like large, the last part of a row quantised as soon as possible
single_row       100    int8: up to 16384 elements per instruction, in whole rows
multi_row        10     as many rows per instruction as 255 repeats hold in fp32
db               2, 3   one row per instruction, with the next rows loaded ahead
base             0, 1   one row per instruction, with a scalar round trip for each
large            6      a row in parts, loaded twice: for its largest magnitude, then to quantise
===============  =====  ======================================================================

310P:

===============  =====  ======================================================================
aligned          10100  patches of equally many rows, with the next one loaded ahead; all in fp16
unaligned        11000  the same, with the remaining rows on the last core
unaligned_large  11001  rows of more than 4096: eight at a time, in pieces loaded twice
===============  =====  ======================================================================

ops-nn@e5c3fa9 quant/dynamic_quant/op_host. Benchmarks of Atlas A2 (cann-bench) fit these rules. On
A2 and A3 a caller may select another template, which overrides them, but not a kernel's
requirements: some measured rows look like a release without single_row and multi_row, see
`npusim.validation.calls`.
"""

from __future__ import annotations

from typing import NamedTuple

from npusim.data.errors import shown
from npusim.data.integers import align_down, align_up
from npusim.ops import _vocabulary as ops
from npusim.ops._vocabulary import listed

NAMED = ("single_row", "multi_row", "db", "base", "large", "moe", "moe_large")
"""Templates that a caller on A2 and A3 may select; on 310P the rows decide."""
BY_SCALAR = ("base", "large", "moe", "moe_large")
"""Templates whose scalar unit divides, twice: the scale of a row is 1 / (127 / M)."""
SEVERAL_ROWS = ("single_row", "multi_row")
"""Templates with several rows per instruction, which give no offsets."""
WITH_GROUPS = ("moe", "moe_large")
"""Templates that read a group_index, and run no call without one."""
IN_PARTS, PART_COLUMNS = ("large", "moe_large"), 10240
"""Templates that process a row in parts of this many columns; the scalar unit compares their M."""

UB_BYTES = 196_352
"""Usable bytes of the unified buffer of A2 and A3: 192 KiB less 256 bytes."""
RESERVED_BYTES = 1024
"""Bytes of it that the vendor's tiling does not use."""
MULTI_ROW_RESERVED_BYTES = 3392
"""Additional bytes that the kernel multi_row reserves for the scales of its rows."""

SINGLE_ROW_COLUMNS, SINGLE_ROW_ELEMENTS = (4096, 5120, 10240), 16384
"""Row lengths of single_row, and its most elements at a time."""
MIN_MULTI_ROW_COLUMNS, MULTI_ROW_UNIT = 128, 8
MAX_MULTI_ROW_ELEMENTS = 16320
"""Elements of 255 repeats of 64 fp32."""
MAX_PIECE_ROWS = 255
"""Most rows that db and moe load at a time."""


class Traits(NamedTuple):
    """The properties of a call that decide the template of A2 and A3."""

    rows: int
    columns: int
    ub_bytes: int
    smooth: bool = False
    """Whether there are smooth scales."""
    is_int4: bool = False
    groups: int = 0
    """Number of groups of rows with their own smooth scales, 0 for none."""
    is_symmetric: bool = True


class Template(NamedTuple):
    """One of the vendor's kernels of A2 and A3, applied to a call."""

    name: str
    reason: str
    """Why the vendor's tiling selects it."""
    needs: str
    """The condition for it to run."""
    fits: bool
    """Whether the condition holds."""
    row_step: int
    """Rows that are loaded together, if a core has that many."""
    is_usual: bool = True
    """Whether the vendor's tiling selects it for this number of rows."""


def templates(t: Traits) -> tuple[Template, ...]:
    """The kernels for a call, in the vendor's order.

    An element takes 2 bytes of x, twice in db, 1 of y and 2 x 4 in fp32; its smooth scale takes
    2 + 4, or 4 in multi_row. Rows are padded to whole blocks.
    """
    columns, room, index_bytes = (
        max(1, t.columns),
        t.ub_bytes - RESERVED_BYTES,
        4 * align_up(t.groups, 8),
    )
    once, twice, together = (17, 19, 15) if t.smooth else (11, 13, 11)
    row_bytes = once * align_up(columns, 16)
    whole = align_down((room - index_bytes) // once, 16)
    # It must leave at least one byte.
    double = align_down((room - 1) // twice, 16)
    most = align_down((room - MULTI_ROW_RESERVED_BYTES) // together, 64)
    most = min(MAX_MULTI_ROW_ELEMENTS, most)
    several = f"{MIN_MULTI_ROW_COLUMNS} to {most} elements, a multiple of {MULTI_ROW_UNIT}"
    is_several = MIN_MULTI_ROW_COLUMNS <= columns <= most and columns % MULTI_ROW_UNIT == 0
    single = f"{listed(tuple(map(str, SINGLE_ROW_COLUMNS)))} elements"
    too_long = f"rows of more than {whole} elements do not fit"
    found = (
        Template(
            "single_row",
            f"4 to 384 rows of {single}",
            "the output is int8" if t.is_int4 else f"rows have {single}",
            columns in SINGLE_ROW_COLUMNS and not t.is_int4,
            SINGLE_ROW_ELEMENTS // columns,
            4 <= t.rows <= 384,
        ),
        Template(
            "multi_row", f"rows of {several}", f"rows have {several}", is_several, most // columns
        ),
        Template(
            "db",
            f"rows of at most {double} elements fit twice",
            f"rows have at most {double} elements",
            columns <= double,
            min(MAX_PIECE_ROWS, room // row_bytes),
        ),
        Template(
            "base",
            f"rows of at most {whole} elements fit once",
            f"rows have at most {whole} elements",
            columns <= whole,
            1,
        ),
        Template("large", too_long, "", True, 1),
        Template(
            "moe",
            f"groups, and rows of at most {whole} elements fit",
            f"rows have at most {whole} elements",
            columns <= whole,
            # Besides the group_index, a row's smooth scales and floats.
            min(MAX_PIECE_ROWS, room // (index_bytes + row_bytes)),
        ),
        Template("moe_large", f"groups, and {too_long}", "", True, 1),
    )
    return tuple(each for each in found if t.is_symmetric or each.name not in SEVERAL_ROWS)


def _unmet(template: Template, t: Traits) -> str | None:
    """The first condition of *template* that a call does not meet, in words; None if it can run."""
    if (template.name in WITH_GROUPS) != (t.groups > 0):
        return f"group_index is {'None' if t.groups else 'given'}"
    return None if template.fits else template.needs


def chosen(t: Traits, asked: str | None = None) -> Template:
    """The template called *asked*, or the first that the vendor's tiling selects."""
    for template in templates(t):
        if template.name == asked:
            return template._replace(reason="asked for")
    return next(each for each in templates(t) if each.is_usual and _unmet(each, t) is None)


def asked_for(contract: ops.Contract, traits: Traits) -> str | None:
    """The template that the caller selected, which must be able to run, or None; raises OpError."""
    asked, spec = contract.value("template"), contract.spec
    if asked is None:
        return None
    if spec.arch == "2002":
        contract.fail(
            f"template must be None on {spec.series}, where the rows decide, not "
            f"{shown(asked)}; leave it out"
        )
    known = templates(traits)
    named = [each for each in known if isinstance(asked, str) and each.name == asked]
    if not named:
        names = listed(tuple(each.name for each in known))
        contract.fail(
            f"template must be {names} on Atlas A2 and Atlas A3, not {shown(asked)}; leave it out "
            f"to get the vendor's choice"
        )
    need = _unmet(named[0], traits)
    contract.require(
        need is None,
        f"template {asked!r} can run only if {need}; leave it out to get the vendor's choice",
    )
    return named[0].name
