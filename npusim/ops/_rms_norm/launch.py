"""The blocks of a kernel whose cores have rows of their own."""

from __future__ import annotations

from collections.abc import Callable

from npusim.kernel.program import Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops._rms_norm.tiling import Plan

__all__ = ["Kernel", "launch_rows", "nothing"]

Kernel = tuple[Callable[[], None], Callable[..., None]]
"""What comes before the first row of a core, and the steps of some rows."""


def nothing() -> None:
    """Nothing comes before the first row."""


def cut(view: GmView, start: int, stop: int | None = None) -> GmView:
    """Rows from *start* on of *view*: of a vector, whose pitch is 0, its numbers."""
    here = slice(start, stop)
    return view[here, :] if view.pitch else view[:, here]


def launch_rows(
    core: VectorCore,
    plan: Plan,
    kernel: Kernel,
    by_row: tuple[GmView, ...],
    whole: tuple[GmView, ...],
    by_core: tuple[GmView, ...] = (),
) -> tuple[Block, ...]:
    """One block a core; cores with as many rows share their program.

    Views *by_row* are cut to the rows of a core, and to those of a step; *whole* are read by all.
    Of views *by_core* each core has as many rows, in turn.
    """
    programs: dict[int, Program] = {}
    blocks: list[Block] = []
    first = 0
    begin, group = kernel
    for number, rows in enumerate(plan.rows_of_core):
        if rows not in programs:
            begin()
            for row, count in pieces(rows, plan.row_step):
                repeat(core, group, *(cut(view, row, row + count) for view in by_row))
            programs[rows] = core.build()
        own = [cut(view, number * (view.rows // plan.block_dim)) for view in by_core]
        bound = bindings(*(cut(view, first) for view in by_row), *own, *whole)
        blocks.append(Block(number, core.kind, programs[rows], bound))
        first += rows
    return tuple(blocks)
