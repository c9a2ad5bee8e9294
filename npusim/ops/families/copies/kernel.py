"""Cores, tiles and programs of copies: rows pass through the unified buffer, and nothing else.

One long row is cut into even shares of whole blocks for all cores, and tiles of half the buffer
less 8 KiB, two in turn where a share has several (TensorMove of CANN: dengguojie/
vue-element-admin@7d77ce32 ops/built-in/op_tiling/tensor_move.cc, of 2022, and the public TBE copy
impl/tensor_move.py). Rows that lie apart are shared out evenly, as many in a tile as fit there;
that the vendor's Slice and ConcatD, whose templates were not read, do the like is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.kernel.builder import Builder
from npusim.kernel.program import Block
from npusim.kernel.rows import Writer, load, pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops import _protocol
from npusim.ops.families.copies.contract import Move, Problem

__all__ = ["Plan", "build", "tile"]

RESERVED_BYTES = 8192
"""Of the unified buffer, left alone (tensor_move.cc)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Shares of the rows, or of one long row, and tiles of these."""

    rows_per_core: int
    """Of each move."""
    columns_per_core: int
    """All of a row, but of one long one."""
    tile_bytes: int


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Even shares for all cores."""
    cores = len(spec.vector_cores)
    rows = max(move.src.rows for move in p.moves)
    if any(move.dst.row_bytes % spec.transfer.store_granule_bytes for move in p.moves) and rows > 1:
        # What is stored beyond the end of a row belongs to the next one, of the same core.
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
    )


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core: its part of each move, tile after tile."""
    core = spec.cores[spec.vector_kinds[0]]
    builder = Builder(p.name, core, spec.sync)
    queue = builder.queue("ub", plan.tile_bytes, "mte2", "mte3", 2)
    writer = Writer(builder, spec, "mte2")

    def stage(src: GmView, dst: GmView) -> None:
        writer.store(queue, load(builder, spec, queue, src), dst)

    bound = bindings(
        *(GmView.vector(x.name, x.element, x.spec.size) for x in p.inputs),
        GmView.vector("output", p.output.element, p.output.size),
    )
    blocks = []
    for number in range(plan.block_dim):
        for move in _tiles(p, plan, number):
            repeat(builder, stage, move.src, move.dst)
        blocks.append(Block(number, spec.vector_cores[number], builder.build(), bound))
    return tuple(blocks)


def _tiles(p: Problem, plan: Plan, core: int) -> Iterator[Move]:
    """What *core* moves at a time."""
    for move in p.moves:
        rows, columns = plan.rows_per_core, plan.columns_per_core
        is_one = move.src.rows == 1
        first = slice(None) if is_one else slice(core * rows, (core + 1) * rows)
        across = slice(core * columns, (core + 1) * columns) if is_one else slice(None)
        src, dst = move.src[first, across], move.dst[first, across]
        if not src.nbytes:
            continue
        element = src.dtype
        pitch = align_up(src.row_bytes, BLOCK_BYTES)
        width = min(src.columns, plan.tile_bytes * 8 // element.bits)
        height = max(1, plan.tile_bytes // pitch)
        for top, count in pieces(src.rows, height):
            for left, extent in pieces(src.columns, width):
                here = slice(top, top + count), slice(left, left + extent)
                yield Move(src[here], dst[here])
