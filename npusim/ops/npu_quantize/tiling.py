"""How npu_quantize is split over cores and buffers."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.rows import balanced, pieces
from npusim.ops import _vocabulary as ops
from npusim.ops.npu_quantize.check import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """A grid of cores over the matrix, and pieces that fit the buffer."""

    rows_per_core: int
    columns_per_core: int
    row_step: int
    """Rows of a piece."""
    column_step: int
    depth: int
    """Depth of each queue: 1 loads and computes alternately, 2 at the same time."""


RESERVED_BYTES = 2048
"""Bytes of the unified buffer that the vendor's tiling does not use
(ascend_quant_v2_tiling.cpp)."""
CACHE_LINE_BYTES = {"2201": 512, "2002": 256}
"""Columns are split in these units (ascend_quant_v2_tiling.cpp)."""
BOTH_WAYS_COLUMNS = 32
"""Both rows and columns are split only above this many columns (ascend_quant_v2_tiling.cpp)."""
ELEMENTWISE_BYTES = 4096
"""A core is not started for less than this (ops-math, elementwise template). The kernel of
div_mode=True is closed on A2, A3 and 310P; it is assumed to follow that template."""
SCALE_CHUNK = 64
"""Scaled by row: scales in the buffer at a time, within RESERVED_BYTES (assumed)."""


def _bytes_per_column(p: Problem, depth: int) -> tuple[int, int]:
    """Buffer bytes per column: in each row of a piece, and once."""
    narrow = p.input.element.bits == 16
    moving = depth * (p.input.element.bits // 8 + max(1, p.target.bits // 8))
    fixed = 4 if narrow else 0
    if p.scaling == "column":
        for operand in p.inputs[1:]:
            # The vector as loaded, and as float32.
            fixed += 4 if operand.element is FLOAT32 else 4 + operand.element.bits // 8
    return moving, fixed


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split over cores and buffers as the vendor does.

    div_mode=False: ops-nn@e5c3fa9 quant/ascend_quant_v2/op_host/ascend_quant_v2_tiling.cpp, which
    splits rows or cache lines, whichever occupies more cores, or both, with single buffers.
    div_mode=True: the elementwise template, with double buffers.
    """
    cores = len(spec.vector_cores)
    size = p.input.element.bits // 8
    depth = 2 if p.divide else 1
    usable = min(cores, ceil_div(p.input.spec.nbytes, ELEMENTWISE_BYTES)) if p.divide else cores
    line = CACHE_LINE_BYTES[spec.arch]
    granule = spec.transfer.store_granule_bytes
    if p.target.nbytes(p.columns) < granule:
        # Rows narrower than a store spill into each other, so one core stores them in order.
        usable = 1
    row_parts, column_parts = _grid(p.rows, p.columns, size, usable, line)
    rows_per_core = ceil_div(p.rows, row_parts)
    lines = ceil_div(p.columns * size, line)
    columns_per_core = ceil_div(lines, column_parts) * (line // size)
    columns_per_core = min(columns_per_core, p.columns)

    core = spec.cores[spec.vector_kinds[0]]
    room = core.usable_bytes("ub") - RESERVED_BYTES
    moving, fixed = _bytes_per_column(p, depth)
    max_columns = room // (moving + fixed) // (line // size) * (line // size)
    row_step = 1
    width = pitch_columns(p, columns_per_core)
    if width <= max_columns // 2:
        row_step = max(1, min((room - width * fixed) // (width * moving), rows_per_core))
    parts = pieces(p.columns, columns_per_core, least_columns(spec, p))
    active = ceil_div(p.rows, rows_per_core) * len(list(parts))
    # ascend_quant_v2 starts every vector core; those without work return at once.
    block_dim = active if p.divide else cores
    return Plan(
        block_dim=block_dim,
        rows_per_core=rows_per_core,
        columns_per_core=columns_per_core,
        row_step=row_step,
        column_step=min(max_columns, columns_per_core),
        depth=depth,
    )


def _grid(rows: int, columns: int, size: int, cores: int, line: int) -> tuple[int, int]:
    """Number of parts into which rows and columns are split."""
    lines = ceil_div(columns * size, line)
    by_row, by_line = balanced(rows, cores), balanced(lines, cores)
    grid = (by_row, 1) if by_row >= by_line else (1, by_line)
    if max(grid) < cores and 1 < rows <= cores and columns > BOTH_WAYS_COLUMNS:
        both = balanced(lines, cores // rows)
        if rows * both > max(grid):
            grid = (rows, both)
    return grid


def least_columns(spec: DeviceSpec, p: Problem) -> int:
    """Columns of the narrowest piece that can be stored."""
    return max(1, spec.transfer.store_granule_bytes * 8 // p.target.bits)


def pitch_columns(p: Problem, columns: int) -> int:
    """Columns from row to row in the buffer, such that every row starts at a block in each type."""
    unit = 256 // min(p.target.bits, 8)
    return align_up(columns, unit)
