"""Tiles of int32 sums on their way from a cube core to the vector cores beside it.

A cube core writes each base tile to the next place of a ring in the workspace, its rows behind each
other, and goes on unless all places are full; the places of all cores with one number lie beside
each other (ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel/grouped_matmul_quant_mixcore.h).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from npusim.data.dtypes import INT32, DType
from npusim.kernel.program import Binding
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView
from npusim.ops.npu_grouped_matmul.templates.plan import Part, Plan

__all__ = ["FILLED", "READ", "MixedPlan", "bound_ring", "place_of", "ring_bytes", "tiles_of"]

FILLED, READ = 0, 1
"""Flags between a cube core and its vector cores: a tile is in its place; it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlan(Plan):
    """Tiles, and who makes the output of them."""

    ring: int
    """Tiles that a cube core may be ahead."""
    vector_cores: int
    """Beside each cube core."""
    chunk_rows: int
    """Rows of a tile in the unified buffer at a time."""
    unit_flag: bool
    """Whether the fixpipe follows the cube by unit flags."""
    staggers_k: bool
    """Whether cores begin at different pieces of k."""


def ring_bytes(plan: MixedPlan, element: DType = INT32) -> int:
    """The workspace of all cores."""
    return plan.ring * plan.block_dim * _place_bytes(plan, element)


def _place_bytes(plan: MixedPlan, element: DType) -> int:
    return element.nbytes(plan.tile.m * plan.tile.n)


def bound_ring(plan: MixedPlan, core: int, element: DType = INT32) -> dict[str, Binding]:
    """Where the first place of cube core number *core* is."""
    return {"workspace": Binding("workspace", core * _place_bytes(plan, element))}


def place_of(
    plan: MixedPlan, number: int, rows: int, columns: int, element: DType = INT32
) -> GmView:
    """Where tile *number* of a core goes, `(rows, columns)` of *element*."""
    start = number % plan.ring * plan.block_dim * _place_bytes(plan, element)
    return GmView.of("workspace", element, rows, columns).shifted_to(start)


def tiles_of(plan: Plan, part: Part) -> Iterator[Part]:
    """The base tiles of a block, side by side."""
    for column, columns in pieces(part.columns, plan.tile.n):
        yield part._replace(column=part.column + column, columns=columns)
