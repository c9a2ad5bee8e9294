"""Which of the vendor's kernels takes a call, and why.

Atlas A2 and A3: the first that can, in this order; those with groups take no other call.

===============  =====  ======================================================================
template         key    what it does
===============  =====  ======================================================================
moe              7      groups: as base, and the smooth scales of the next group when it comes
moe_large        8      groups: as large, the last part of a row quantised as soon as it can
single_row       100    int8: up to 16384 elements an instruction, in whole rows
multi_row        10     as many rows an instruction as 255 repeats hold in fp32
db               2, 3   a row an instruction, the next rows on their way
base             0, 1   a row an instruction, a trip to the scalar unit for each
large            6      a row in parts, loaded twice: for its largest number, then to quantise
===============  =====  ======================================================================

310P:

===============  =====  ======================================================================
aligned          10100  patches of equally many rows, the next one on its way; all in fp16
unaligned        11000  the same, and rows that are left go to the last core
unaligned_large  11001  rows of more than 4096: eight at a time, in pieces loaded twice
===============  =====  ======================================================================

ops-nn@e5c3fa9 quant/dynamic_quant/op_host. Benchmarks of Atlas A2 (cann-bench) fit these rules. On
A2 and A3 a caller may name another template, which overrules them, but not what a kernel cannot do
without: some measured rows look like a release that had no single_row and multi_row yet, see
`npusim.validation.calls`.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

from npusim.data.errors import shown
from npusim.data.integers import align_up
from npusim.ops import _vocabulary as ops
from npusim.ops._vocabulary import listed

__all__ = [
    "BY_SCALAR",
    "IN_PARTS",
    "PART_COLUMNS",
    "UB_BYTES",
    "Choice",
    "Template",
    "Traits",
    "asked_for",
    "choose",
    "index_bytes",
    "max_columns",
]

Named = Literal["single_row", "multi_row", "db", "base", "large", "moe", "moe_large"]
NAMED: tuple[Named, ...] = get_args(Named)
"""What a caller on A2 and A3 may ask for; on 310P the rows decide."""
Template = Named | Literal["aligned", "unaligned", "unaligned_large"]

BY_SCALAR = ("base", "large", "moe", "moe_large")
"""Templates whose scalar unit divides, twice: the scale of a row is 1 / (127 / M)."""

SEVERAL_ROWS = ("single_row", "multi_row")
"""Templates of several rows an instruction, which give no offsets."""
WITH_GROUPS = ("moe", "moe_large")
"""Templates that read a group_index, and take no call without one."""
IN_PARTS, PART_COLUMNS = ("large", "moe_large"), 10240
"""Templates that take a row in parts, of so many columns; the scalar unit compares their M."""

UB_BYTES = 196_352
"""What a kernel may use of the unified buffer of A2 and A3: 192 KiB less 256 bytes."""
KEPT_BYTES = 1024
"""The vendor's tiling leaves this much of it alone."""
MULTI_ROW_KEPT_BYTES = 3392
"""The kernel multi_row leaves so much more for the scales of its rows."""

SINGLE_ROW_COLUMNS = (4096, 5120, 10240)
MIN_MULTI_ROW_COLUMNS, MULTI_ROW_UNIT = 128, 8
MAX_MULTI_ROW_ELEMENTS = 16320
"""What 255 repeats of 64 fp32 elements take."""


class Choice(NamedTuple):
    """A template, and one line that says why."""

    template: Template
    reason: str


class Traits(NamedTuple):
    """What decides which template of A2 and A3 takes a call."""

    rows: int
    columns: int
    smooth: bool
    """Whether there are smooth scales."""
    ub_bytes: int
    is_int4: bool
    groups: int
    """How many groups of rows have their own smooth scales, 0 for none."""
    is_symmetric: bool


def max_columns(template: Template, smooth: bool, ub_bytes: int) -> int:
    """Elements of the longest row for which *template* has room; multi_row: of all its rows.

    An element takes 2 bytes of x, twice in db, 1 of y and 2 x 4 in fp32; its smooth scale takes
    2 + 4, or 4 in multi_row. Rows fill whole blocks.
    """
    room = ub_bytes - KEPT_BYTES
    match template:
        case "multi_row":
            fitting = (room - MULTI_ROW_KEPT_BYTES) // (15 if smooth else 11)
            return min(MAX_MULTI_ROW_ELEMENTS, fitting // 64 * 64)
        case "db":
            # It must leave at least a byte.
            return (room - 1) // (19 if smooth else 13) // 16 * 16
        case _:
            return room // (17 if smooth else 11) // 16 * 16


def index_bytes(groups: int) -> int:
    """What the group_index takes of the buffer."""
    return 4 * align_up(groups, 8)


def choose(t: Traits) -> Choice:
    """The template of A2 and A3 that takes a call.

    Kernels of several rows an instruction give no offsets: without them the next ones take it.
    """
    if t.groups:
        limit = max_columns("moe", True, t.ub_bytes - index_bytes(t.groups))
        if t.columns <= limit:
            return Choice("moe", f"groups, and rows of at most {limit} elements fit")
        return Choice("moe_large", f"groups, and rows of more than {limit} elements do not fit")
    if t.columns in SINGLE_ROW_COLUMNS and 4 <= t.rows <= 384 and not t.is_int4 and t.is_symmetric:
        return Choice("single_row", "4 to 384 rows of 4096, 5120 or 10240 elements")
    limit = max_columns("multi_row", t.smooth, t.ub_bytes)
    if _takes_several(t.columns, limit) and t.is_symmetric:
        return Choice("multi_row", f"rows of 128 to {limit} elements, a multiple of 8")
    if t.columns <= (limit := max_columns("db", t.smooth, t.ub_bytes)):
        return Choice("db", f"rows of at most {limit} elements fit twice")
    if t.columns <= (limit := max_columns("base", t.smooth, t.ub_bytes)):
        return Choice("base", f"rows of at most {limit} elements fit once")
    return Choice("large", f"rows of more than {limit} elements do not fit")


def _takes_several(columns: int, limit: int) -> bool:
    """Whether rows of *columns* are such as multi_row takes, up to *limit*."""
    return MIN_MULTI_ROW_COLUMNS <= columns <= limit and columns % MULTI_ROW_UNIT == 0


# ---- templates by name ----


def asked_for(contract: ops.Contract, template: Any, traits: Traits) -> Template | None:
    """*template*, held against the product line and what the kernel needs; raises OpError."""
    if template is None:
        return None
    spec = contract.spec
    if spec.arch == "2002":
        contract.fail(
            f"template must be None on {spec.series}, where the rows decide, not "
            f"{shown(template)}; leave it out"
        )
    known = tuple(name for name in NAMED if traits.is_symmetric or name not in SEVERAL_ROWS)
    named = [name for name in known if isinstance(template, str) and name == template]
    if not named:
        contract.fail(
            f"template must be {listed(known)} on Atlas A2 and Atlas A3, not {shown(template)}; "
            f"leave it out to get the vendor's choice"
        )
    need = _unmet(named[0], traits)
    contract.require(
        need is None,
        f"template {template!r} can run only if {need}; leave it out to get the vendor's choice",
    )
    return named[0]


def _unmet(template: Template, t: Traits) -> str | None:
    """The first need of *template* that a call does not fulfil, in words; None if it can run."""
    if (template in WITH_GROUPS) != (t.groups > 0):
        return f"group_index is {'None' if t.groups else 'given'}"
    limit = max_columns(template, t.smooth, t.ub_bytes - index_bytes(t.groups))
    match template:
        case "single_row" if t.is_int4:
            return "the output is int8"
        case "single_row" if t.columns not in SINGLE_ROW_COLUMNS:
            return f"rows have {listed(tuple(map(str, SINGLE_ROW_COLUMNS)))} elements"
        case "multi_row" if not _takes_several(t.columns, limit):
            return f"rows have {MIN_MULTI_ROW_COLUMNS} to {limit} elements, a multiple of 8"
        case "db" | "base" | "moe" if t.columns > limit:
            return f"rows have at most {limit} elements"
    return None
