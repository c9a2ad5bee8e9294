"""How npu_format_cast is split over cores and buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from npusim.data.errors import Code, OpError
from npusim.data.integers import align_down, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, MAX_REPEATS
from npusim.kernel.rows import pieces
from npusim.ops import _protocol
from npusim.ops.npu_format_cast.contract import Problem

__all__ = ["DEPTH", "Piece", "Plan", "pieces_of_cores", "tile"]

DEPTH = 2
"""Buffers of each queue: one is loaded while the other is converted."""
LINE_BLOCKS = 16
"""Columns are split in whole cache lines of 512 bytes, over cores and into pieces."""
LEAST_BLOCKS = 2
"""A piece with the ragged end of the rows is never less than a block wide, so that 310P, which
stores whole blocks, can end it with an overlapping one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """A grid of cores over the rows of fractals of all matrices and the columns."""

    fractal_rows_per_core: int
    blocks_per_core: int
    """Columns, in blocks of 32 bytes."""
    row_step: int
    """Rows of a piece, whole fractals."""
    block_step: int
    """Columns of a piece, in blocks."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A rectangle that fits the buffer: where it begins in both layouts, and its size."""

    nd_bytes: int
    nz_bytes: int
    rows: int
    blocks: int
    width_bytes: int
    """Of a row in ND: less than its blocks hold at a ragged end."""


def tile(spec: DeviceSpec, p: Problem) -> Plan | None:
    """Split over all vector cores; None when there is nothing to do."""
    if p.is_done:
        return None
    cores = len(spec.vector_cores)
    if not p.to_fractals and p.row_bytes < spec.transfer.store_granule_bytes:
        # Rows narrower than a store spill into each other, so one core takes them in order.
        cores = 1
    total = p.batch * p.fractals_m
    lines = ceil_div(p.fractals_n, LINE_BLOCKS)
    per_core, lines_per_core = _share(total, lines, cores)
    blocks = min(lines_per_core * LINE_BLOCKS, p.fractals_n)

    # A block once in ND and once in NZ.
    room = spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - spec.transfer.store_granule_bytes
    room_blocks = room // (2 * DEPTH * BLOCK_BYTES * FRACTAL_ROWS)
    step_m = min(per_core, p.fractals_m)
    step_n = min(blocks, align_down(room_blocks // step_m, LINE_BLOCKS))
    step_m = min(step_m, room_blocks // step_n, MAX_REPEATS * 8 // FRACTAL_ROWS)
    if not step_m:
        needed = 2 * DEPTH * BLOCK_BYTES * FRACTAL_ROWS * step_n
        raise OpError(
            Code.UNSUPPORTED,
            f"npu_format_cast: its tiles of {step_n} fractals must fit into the unified buffer of "
            f"{spec.name}, {room} bytes, not need {needed}; give the chip a larger one",
        )
    columns = len(list(pieces(p.fractals_n, blocks, LEAST_BLOCKS)))
    active = ceil_div(total, per_core) * columns
    return Plan(
        block_dim=active,
        fractal_rows_per_core=per_core,
        blocks_per_core=blocks,
        row_step=step_m * FRACTAL_ROWS,
        block_step=step_n,
    )


def _share(rows: int, lines: int, cores: int) -> tuple[int, int]:
    """The smallest rectangle a core, of rows of fractals and cache lines; of equals the widest."""
    shares = (
        (ceil_div(rows, parts), ceil_div(lines, cores // parts))
        for parts in range(min(rows, cores), 0, -1)
    )
    return min(shares, key=lambda share: share[0] * share[1])


def pieces_of_cores(p: Problem, plan: Plan) -> Iterator[tuple[Piece, ...]]:
    """The pieces of each core, in the order of its work."""
    for first, count in pieces(p.batch * p.fractals_m, plan.fractal_rows_per_core):
        for start, blocks in pieces(p.fractals_n, plan.blocks_per_core, LEAST_BLOCKS):
            yield tuple(
                _piece(p, row, fractal_rows, start + column, width)
                for row, fractal_rows in _spans(p, plan, first, first + count)
                for column, width in pieces(blocks, plan.block_step, LEAST_BLOCKS)
            )


def _spans(p: Problem, plan: Plan, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Split rows of fractals [*first*, *end*) so that no part reaches into the next matrix."""
    while first < end:
        fractal_rows = min(
            plan.row_step // FRACTAL_ROWS, p.fractals_m - first % p.fractals_m, end - first
        )
        yield first, fractal_rows
        first += fractal_rows


def _piece(p: Problem, first: int, fractal_rows: int, column: int, blocks: int) -> Piece:
    """*fractal_rows* rows of fractals from *first* on, counted through all matrices."""
    batch, fractal_row = divmod(first, p.fractals_m)
    row = fractal_row * FRACTAL_ROWS
    fractal_bytes = FRACTAL_ROWS * BLOCK_BYTES
    return Piece(
        nd_bytes=(batch * p.rows + row) * p.row_bytes + column * BLOCK_BYTES,
        nz_bytes=((batch * p.fractals_n + column) * p.fractals_m + fractal_row) * fractal_bytes,
        rows=min(fractal_rows * FRACTAL_ROWS, p.rows - row),
        blocks=blocks,
        width_bytes=min(blocks * BLOCK_BYTES, p.row_bytes - column * BLOCK_BYTES),
    )
