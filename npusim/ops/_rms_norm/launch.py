"""The blocks of a kernel whose cores have rows of their own."""

from __future__ import annotations

from typing import Protocol

from npusim.devices.schema import DeviceSpec
from npusim.kernel.builder import Builder
from npusim.kernel.program import Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, bindings, repeat

__all__ = ["RowsKernel", "blocks_of", "cut"]


class RowsKernel(Protocol):
    """What a template does with the rows of a core."""

    builder: Builder

    def begin(self) -> None:
        """Write the steps before the first row."""

    def group(self, *views: GmView) -> None:
        """Write the steps of some rows, which the views have been cut to."""


def cut(view: GmView, start: int, stop: int | None = None) -> GmView:
    """Rows from *start* on of *view*: of a vector, whose pitch is 0, its numbers."""
    here = slice(start, stop)
    return view[here, :] if view.pitch else view[:, here]


def blocks_of(
    spec: DeviceSpec,
    kernel: RowsKernel,
    rows_of_core: tuple[int, ...],
    row_step: int,
    by_row: tuple[GmView, ...],
    whole: tuple[GmView, ...],
    by_core: tuple[GmView, ...] = (),
) -> tuple[Block, ...]:
    """One block a core; cores with as many rows share their program.

    Views *by_row* are cut to the rows of a core, and to *row_step* of them for a group; *whole* are
    read by all. Of views *by_core* each core has as many rows, in turn.
    """
    programs: dict[int, Program] = {}
    blocks: list[Block] = []
    first = 0
    for core, rows in enumerate(rows_of_core):
        if rows not in programs:
            programs[rows] = _program(kernel, by_row, rows, row_step)
        own = [cut(view, core * (view.rows // len(rows_of_core))) for view in by_core]
        bound = bindings(*(cut(view, first) for view in by_row), *own, *whole)
        blocks.append(Block(core, spec.vector_cores[core], programs[rows], bound))
        first += rows
    return tuple(blocks)


def _program(kernel: RowsKernel, views: tuple[GmView, ...], rows: int, row_step: int) -> Program:
    kernel.begin()
    for row, count in pieces(rows, row_step):
        repeat(kernel.builder, kernel.group, *(cut(view, row, row + count) for view in views))
    return kernel.builder.build()
