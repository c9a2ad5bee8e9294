"""Which rows a core gets, in what steps, and what room its kernel has.

No row is shared by cores, and none waits for another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import DType
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.ops import _protocol

__all__ = [
    "KEPT_BYTES",
    "Choice",
    "Machine",
    "Plan",
    "planned",
    "rows_of_core",
    "whole_blocks",
]

CORES, UB_BYTES = 48, 196_352
"""Vector cores of Ascend910B2, and what their kernels may use of the unified buffer: 192 KiB less
256 bytes (platform_ascendc.cpp of the toolkit)."""

KEPT_BYTES = 1024
"""The vendor's tiling leaves this much of it alone, but for the dynamic quantisation."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the tiling knows of a chip."""

    cores: int
    """The vector cores beside 310P's AI cores take no part: assumed, as of other kernels there
    (asc-devkit, GetCoreNumAiv.md)."""
    ub_bytes: int
    is_310p: bool

    @staticmethod
    def of(spec: DeviceSpec | None) -> Machine:
        """That of *spec*, or of an Ascend910B2."""
        if spec is None:
            return Machine(CORES, UB_BYTES, is_310p=False)
        core = spec.cores[spec.vector_kinds[0]]
        return Machine(core.count, core.usable_bytes("ub"), is_310p=spec.arch == "2002")


@dataclass(frozen=True, slots=True)
class Choice:
    """A template, and one line that says why."""

    template: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Each core has rows of its own and takes them in steps."""

    rows_of_core: tuple[int, ...]
    row_step: int
    """Rows that are loaded together, or of which what comes out for a whole row is stored
    together; each operator's `tile` says which."""
    column_step: int
    """Columns that are loaded together: all, but for templates that cut rows into pieces."""


def planned(
    choice: Choice,
    rows: tuple[int, ...],
    row_step: int,
    column_step: int,
    workspaces: dict[str, int] | None = None,
) -> Plan:
    """The plan of *choice* for cores with *rows* each; no step has more rows than a core."""
    return Plan(
        block_dim=len(rows),
        template=choice.template,
        reason=choice.reason,
        rows_of_core=rows,
        row_step=min(row_step, rows[0]),
        column_step=column_step,
        workspaces=workspaces or {},
    )


def rows_of_core(rows: int, cores: int, unit: int = 1) -> tuple[int, ...]:
    """Rows of each core that is started: the same of all but the last, a multiple of *unit*.

    >>> rows_of_core(100, 48)[-2:], len(rows_of_core(100, 48))
    ((3, 1), 34)
    """
    each = align_up(ceil_div(rows, cores), unit)
    full, left = divmod(rows, each)
    return (each,) * full + ((left,) if left else ())


def whole_blocks(columns: int, element: DType) -> int:
    """*columns* of *element*, filled up to whole blocks of 32 bytes.

    >>> from npusim.data.dtypes import FLOAT16
    >>> whole_blocks(100, FLOAT16)
    112
    """
    return align_up(columns, BLOCK_BYTES * 8 // element.bits)
