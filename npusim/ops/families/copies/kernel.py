"""Cores, tiles and programs of copies: rows pass through the unified buffer.

One long row is cut into equal shares of whole blocks for all cores, and tiles of half the buffer
less 8 KiB, two in turn if a share has several (TensorMove of CANN: dengguojie/
vue-element-admin@7d77ce32 ops/built-in/op_tiling/tensor_move.cc, of 2022, and the public TBE copy
impl/tensor_move.py). Rows that are apart are divided evenly, as many in a tile as fit; that the
vendor's Slice and ConcatD, whose templates were not read, do similarly is assumed. So is that on
310P, where less than a block cannot be stored, one core joins parts that are no whole blocks, row
by row if some are shorter than a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.kernel import Binding, Block, GmView, GmViews, Step, VectorCore, pieces
from npusim.ops import _vocabulary as ops
from npusim.ops.families.copies.contract import Move, Problem

RESERVED_BYTES = 8192
"""Bytes of the unified buffer that are not used (tensor_move.cc)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Shares of the rows, or of one long row, and tiles of these."""

    rows_per_core: int
    """Rows of each move on a core."""
    columns_per_core: int
    """All of a row, unless it is a single long one."""
    tile_bytes: int
    is_by_row: bool
    """Whether all parts of a row are stored before the next row."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Equal shares for all cores."""
    cores, granule = len(spec.vector_cores), spec.transfer.store_granule_bytes
    rows = max(move.src.rows for move in p.moves)
    is_ragged = any(move.dst.row_bytes % granule for move in p.moves)
    if is_ragged and (rows > 1 or len(p.moves) > 1):
        # A store past the end of a row overlaps the next one, which the same core stores later.
        cores = 1
    room = spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - RESERVED_BYTES
    element = p.output.element
    columns = max(move.src.columns for move in p.moves)
    each_columns = columns
    if rows == 1:
        unit = BLOCK_BYTES * 8 // element.bits
        each_columns = align_up(ceil_div(columns, cores), unit)
    each = ceil_div(rows, cores)
    return Plan(
        block_dim=max(ceil_div(rows, each), ceil_div(columns, each_columns)),
        reads_tiling=False,
        rows_per_core=each,
        columns_per_core=each_columns,
        tile_bytes=align_down(room // 2, BLOCK_BYTES),
        is_by_row=len(p.moves) > 1 and any(move.dst.row_bytes < granule for move in p.moves),
    )


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """A core's part of each move, tile after tile."""
    core, element = VectorCore(p.name, spec), p.output.element
    queue = core.tiles(element, plan.tile_bytes * 8 // element.bits, "mte2", "mte3", 2)
    core.claim_tails("mte2")

    def stage(src: GmView, dst: GmView) -> None:
        core.store(queue, core.load(queue, src), dst)

    steps = []
    for number, move in enumerate(p.moves):
        # No piece of a part is shorter than the smallest store, unless it is the only one.
        least = ceil_div(8 * spec.transfer.store_granule_bytes, element.bits)
        parts = _tiles(move, plan, least if len(p.moves) > 1 else 1)
        found = np.array(list(parts), np.int64).reshape(-1, 5)
        owner, *here = found.T
        views = GmViews.of(move.src, *here), GmViews.of(move.dst, *here)
        order = len(p.moves) * here[0] if plan.is_by_row else np.zeros_like(owner)
        steps.append(Step(stage, views, owner, order + number))
    bound = {name: Binding(name) for name in (*(x.name for x in p.inputs), "output")}
    return core.launch(*steps, bound=lambda _: bound, block_dim=plan.block_dim)


def _tiles(move: Move, plan: Plan, least: int) -> Iterator[tuple[int, int, int, int, int]]:
    """The pieces that cores move at a time: core, first row and column, rows and columns."""
    whole = move.src
    for core in range(plan.block_dim):
        first = core * plan.rows_per_core if whole.rows > 1 else 0
        left = core * plan.columns_per_core if whole.rows == 1 else 0
        own = whole[first : first + plan.rows_per_core, :]
        if whole.rows == 1:
            own = whole[:, left : left + plan.columns_per_core]
        if not own.nbytes:
            continue
        width = min(own.columns, plan.tile_bytes * 8 // own.dtype.bits)
        height = max(1, plan.tile_bytes // align_up(own.row_bytes, BLOCK_BYTES))
        if plan.is_by_row:
            height = 1
        for top, count in pieces(own.rows, height):
            for column, extent in pieces(own.columns, width, least):
                yield core, first + top, left + column, count, extent
