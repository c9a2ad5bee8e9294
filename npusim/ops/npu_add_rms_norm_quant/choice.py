"""Which of the vendor's kernels takes a call of npu_add_rms_norm_quant, and why.

========  ===============================================================================
template  what it does
========  ===============================================================================
single_n  a row a core: what can be loaded and stored meanwhile is
split_d   a row in pieces, x1 and x2 loaded and added twice
normal    a row at a time
========  ===============================================================================

The first that can, in this order; how long rows may be depends on which operands there are. ops-nn
@e5c3fa9 norm/add_rms_norm_quant/op_host/add_rms_norm_quant_tiling.cpp. The vendor's tiling keeps
what it found of beta and of a second scale for later calls of a process; here each call is the
first one. On A2 and A3 a caller may name another template, which overrules the choice, but not what
a kernel has room for.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.integers import align_down, align_up, ceil_div
from npusim.ops._rms_norm.rows import KEPT_BYTES, Choice, Machine

__all__ = ["NAMED", "Given", "choose", "piece_columns", "unmet"]

NAMED = ("single_n", "split_d", "normal")

PLAIN_NORMAL, PLAIN_SINGLE, PLAIN_PIECE = 8192, 12224, 7680
"""Columns that fit with neither beta nor a second scale."""
NORMAL_BYTES, NORMAL_KEPT_BYTES = 20, 256
PIECE_BYTES, PIECE_KEPT_BYTES = 22, 2560
SINGLE_BYTES = 16
"""What the templates take of the buffer for a column beside the operands, and all in all."""
UNIT = 32
"""Limits are multiples of 32 columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Which of the operands there are that need not be."""

    zero_points1: bool
    beta: bool
    scales2: bool
    zero_points2: bool

    @property
    def is_plain(self) -> bool:
        return not (self.beta or self.scales2)

    @property
    def row_bytes(self) -> int:
        """What they take of the buffer for a column, beside the first scales."""
        found = 4 + 2 * self.beta + 4 * self.zero_points1
        return found + self.scales2 * (6 + 4 * self.zero_points2)

    @property
    def single_bytes(self) -> int:
        """The same in single_n."""
        return 4 + self.scales2 * (4 + 4 * self.zero_points2)


def _longest_normal(given: Given, machine: Machine) -> int:
    if given.is_plain:
        return PLAIN_NORMAL
    room = machine.ub_bytes - KEPT_BYTES - NORMAL_KEPT_BYTES
    return align_down(room // (NORMAL_BYTES + given.row_bytes), UNIT)


def _longest_single(given: Given, machine: Machine) -> int:
    if given.is_plain:
        return PLAIN_SINGLE
    return align_down((machine.ub_bytes - KEPT_BYTES) // (SINGLE_BYTES + given.single_bytes), UNIT)


def piece_columns(columns: int, given: Given, machine: Machine) -> int:
    """Columns that split_d takes at a time; the last piece of a row is what is left."""
    if given.is_plain:
        return align_up(ceil_div(columns, ceil_div(columns, PLAIN_PIECE)), 16)
    room = machine.ub_bytes - KEPT_BYTES - PIECE_KEPT_BYTES
    return min(columns, align_down(room // (PIECE_BYTES + given.row_bytes), UNIT))


def choose(rows: int, columns: int, given: Given, machine: Machine) -> Choice:
    """The template for *rows* of *columns*."""
    longest = _longest_single(given, machine)
    cores = machine.cores
    if rows <= cores and not machine.is_310p and columns <= longest:
        reason = f"no more rows than the {cores} cores, of at most {longest} elements"
        return Choice("single_n", reason)
    longest = _longest_normal(given, machine)
    if columns > longest:
        return Choice("split_d", f"rows of more than {longest} elements do not fit")
    return Choice("normal", f"rows of at most {longest} elements fit")


def unmet(rows: int, columns: int, given: Given, machine: Machine) -> dict[str, str | None]:
    """Template -> what it would need and a call does not have, None if it can run."""
    found: dict[str, str | None] = {}
    limits = (
        ("normal", _longest_normal(given, machine)),
        ("single_n", _longest_single(given, machine)),
    )
    for template, limit in limits:
        found[template] = None if columns <= limit else f"rows have at most {limit} elements"
    if rows > machine.cores:
        found["single_n"] = f"there are at most {machine.cores} rows, one a core"
    return found
