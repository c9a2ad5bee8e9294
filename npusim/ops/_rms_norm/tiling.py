"""Which template takes a call, which rows a core gets in what steps, and the launch of both.

No row is shared by cores, and none waits for another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import DType
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel import BLOCK_BYTES, Block, GmView, GmViews, Step, VectorCore, pieces
from npusim.ops import _vocabulary as ops

__all__ = [
    "KEPT_BYTES",
    "Kernel",
    "Machine",
    "Plan",
    "Template",
    "chosen",
    "launch_rows",
    "planned",
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
    """The vector cores of 310P apart from its AI cores take no part: assumed, as of other kernels
    there (asc-devkit, GetCoreNumAiv.md)."""
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
class Template:
    """One of the vendor's kernels, and whether it can take a call."""

    name: str
    reason: str
    """Why it takes the calls that it can take."""
    fits: bool
    on_310p: bool = True
    """Whether the vendor ever takes it there."""


def chosen(templates: tuple[Template, ...], machine: Machine, asked: str | None) -> Template:
    """The first of *templates* that can take the call, or the one called *asked*."""
    for template in templates:
        if template.name == asked:
            return Template(template.name, "asked for", fits=True)
    fitting = (each for each in templates if each.fits and (each.on_310p or not machine.is_310p))
    return next(fitting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Each core has rows of its own and takes them in steps."""

    rows_of_core: tuple[int, ...]
    row_step: int
    """Rows that are loaded together, or of which what comes out for a whole row is stored
    together; each operator's `tile` says which."""
    column_step: int
    """Columns that are loaded together: all, but for templates that cut rows into pieces."""

    def parts(self, columns: int) -> list[slice]:
        """The pieces of a row of *columns*."""
        return [slice(start, start + width) for start, width in pieces(columns, self.column_step)]


def planned(
    template: Template,
    rows: int,
    machine: Machine,
    row_step: int,
    column_step: int,
    unit: int = 1,
    *,
    workspace_bytes_of_core: int = 0,
) -> Plan:
    """The plan for *rows*: cores get as many each, a multiple of *unit*, and the last what is left.

    No step has more rows than a core.
    """
    each = align_up(ceil_div(rows, machine.cores), unit)
    full, left = divmod(rows, each)
    rows_of_core = (each,) * full + ((left,) if left else ())
    workspace_bytes = len(rows_of_core) * workspace_bytes_of_core
    return Plan(
        block_dim=len(rows_of_core),
        template=template.name,
        reason=template.reason,
        rows_of_core=rows_of_core,
        row_step=min(row_step, rows_of_core[0]),
        column_step=column_step,
        workspaces={"workspace": workspace_bytes} if workspace_bytes else {},
    )


def whole_blocks(columns: int, element: DType) -> int:
    """*columns* of *element*, filled up to whole blocks of 32 bytes.

    >>> from npusim.data.dtypes import FLOAT16
    >>> whole_blocks(100, FLOAT16)
    112
    """
    return align_up(columns, BLOCK_BYTES * 8 // element.bits)


Kernel = tuple[Callable[[], None] | None, Callable[..., None]]
"""What comes before the first row of a core, and the steps of some rows."""


def launch_rows(
    core: VectorCore, plan: Plan, kernel: Kernel, *views: GmView, by_core: tuple[GmView, ...] = ()
) -> tuple[Block, ...]:
    """A block for each core.

    The kernel gets *views* cut to the rows of a step, vectors to their elements; then those
    *by_core*, of which each core has as many rows.
    """
    begin, group = kernel
    rows_of_core, step = np.array(plan.rows_of_core), plan.row_step
    # All cores but the last one have as many rows, and so as many steps.
    steps_of_core = -(-rows_of_core // step)
    number = np.repeat(np.arange(plan.block_dim), steps_of_core)
    first = (np.arange(number.size) - number * steps_of_core[0]) * step
    count = np.minimum(step, rows_of_core[number] - first)
    top = number * rows_of_core[0] + first
    arguments = [
        GmViews.of(view, top, 0, count, view.columns)
        if view.pitch
        else GmViews.of(view, 0, top, 1, count)
        for view in views
    ]
    for view in by_core:
        rows = view.rows // plan.block_dim
        arguments.append(GmViews.of(view, number * rows, 0, rows, view.columns))
    return core.launch(Step(group, tuple(arguments), number), begin=begin)
