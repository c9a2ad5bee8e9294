"""Buffers of kernels that scale rows dynamically: smooth scales, and pieces of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from npusim.data.dtypes import FLOAT32
from npusim.isa import Local
from npusim.kernel import Block, Cast, Duplicate, GmView, Step, VectorCore
from npusim.kernel.rectangles import RowPieces
from npusim.kernel.rows import whole_blocks
from npusim.ops._dynamic_quant import Plan, Problem
from npusim.ops._row_groups import groups_of_pieces


def matrices(p: Problem) -> tuple[GmView, GmView, GmView]:
    """x and the output `(rows, columns)`, and the scales `(rows,)`."""
    x = GmView.of("x", p.x.element, p.rows, p.columns)
    output = GmView.of("output", p.target, p.rows, p.columns)
    return x, output, GmView.vector("scale", FLOAT32, p.rows)


@dataclass(frozen=True, eq=False)
class SmoothScales:
    """Smooth scales, as fp32, in *tile* of a kernel.

    They are loaded into its upper half, so that widening from the start never overwrites what is
    still to be read.
    """

    core: VectorCore
    p: Problem
    tile: Local

    @staticmethod
    def claimed(core: VectorCore, p: Problem, columns: int) -> SmoothScales:
        """Smooth scales for up to *columns* columns, in a tile claimed for them."""
        return SmoothScales(core, p, core.tile(FLOAT32, whole_blocks(columns, p.x.element)))

    def load(self, columns: slice, group: int = 0) -> None:
        """Load the scales of *group* for *columns*, not yet as fp32."""
        p, element = self.p, self.p.x.element
        every = GmView.of("smooth_scales", element, max(1, p.groups), p.columns)
        view = every.row(group)[:, columns]
        self.core.data_copy(self._narrow(view.columns), view.operand)

    def widen(self, width: int) -> Local:
        """The loaded scales, as fp32 `(width,)`."""
        wide = self.tile[:width]
        self.core.widen(wide, self._narrow(width))
        return wide

    def take(self, columns: slice, group: int = 0) -> None:
        """Load and widen the scales of *group* for *columns*, in place of the previous ones.

        Kernels with groups stop all pipes meanwhile.
        """
        # Earlier rows may still be multiplied by the present ones.
        self.core.sync("vector", "mte2")
        self.load(columns, group)
        if self.p.groups:
            self.core.barrier()
        else:
            self.core.sync("mte2", "vector")
        self.widen(len(range(self.p.columns)[columns]))

    def keep(self) -> None:
        """Load and widen the scales of all columns, once; no barrier follows."""
        self.load(slice(self.p.columns))
        self.core.sync("mte2", "vector")
        width = self.p.columns
        self.core.emit(Cast(self.tile[:width], self._narrow(width), "none"))

    def _narrow(self, width: int) -> Local:
        count = self.tile.count
        return self.tile.as_dtype(self.p.x.element, 2 * count)[count : count + width]


def fill_constants(
    core: VectorCore, p: Problem, largest: Local, inverse: Local | None = None
) -> None:
    """Initialise *largest* and its *inverse* for Div and Mul; no barrier follows."""
    core.emit(Duplicate(largest, p.largest))
    if inverse is not None:
        core.emit(Duplicate(inverse, 1 / p.largest))


# ---- pieces ----


def pieces_of_cores(p: Problem, plan: Plan) -> tuple[RowPieces, tuple[Any, ...]]:
    """The pieces of rows of all cores, and the arguments of a stage for each: first its views.

    With a group_index the group of the row before follows, 0 before a core's first one, and those
    of its rows.
    """
    found = RowPieces.of(plan.rows_of_core, plan.row_step)
    views = tuple(map(found.views, matrices(p)))
    if p.group_index is None:
        return found, views
    return found, (*views, *groups_of_pieces(p.group_of, found))


def launch_pieces(
    core: VectorCore,
    p: Problem,
    plan: Plan,
    piece: Callable[..., None],
    begin: Callable[[], None] | None = None,
) -> tuple[Block, ...]:
    """A block for each core, which runs *piece* for its rows, `row_step` at a time.

    `piece(x, output, scale)` computes *output* and *scale* `(rows,)` from *x*, `(rows, columns)`
    like *output*; with a group_index it also gets groups, see `pieces_of_cores`.
    """
    found, arguments = pieces_of_cores(p, plan)
    return core.launch(Step(piece, arguments, found.core), begin=begin)
