"""How npu_swiglu is split over cores and buffers: tiles of several rows, dealt out in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from npusim.data.dtypes import FLOAT32, DType
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.ops import _protocol
from npusim.ops.npu_swiglu.contract import Problem

__all__ = ["Plan", "tile"]

MAX_ROWS = 4095
"""Bursts of a copy."""
MAX_GAP = 65535
"""Blocks between two bursts, or bytes where rows are no whole blocks; and columns of a tile."""
COLUMN_UNIT_BYTES = 512
"""Tiles narrower than a row are as many times this wide."""
QUEUES = 3
"""The two halves of x, and y."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Tiles of `row_step` x `column_step`, of which core i takes number i, i + block_dim, ..."""

    row_step: int
    column_step: int
    depth: int
    """Buffers of each half and of y: 2 load and compute at the same time."""

    def tiles(self, p: Problem) -> int:
        """How many tiles there are."""
        return ceil_div(p.rows, self.row_step) * ceil_div(p.columns, self.column_step)


def work_bytes(element: DType) -> int:
    """Bytes of fp32 that an element takes beside the queues: two numbers, or one for float32."""
    return FLOAT32.nbytes(1 if element is FLOAT32 else 2)


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Choose tiles and depth as the vendor does.

    ops-nn@e5c3fa9 activation/swi_glu/op_host/swi_glu_tiling.cpp. 310P counts its AI cores alone
    (asc-devkit, GetCoreNumAiv.md).
    """
    kind = spec.vector_kinds[0]
    cores, ub_bytes = spec.cores[kind].count, spec.cores[kind].usable_bytes("ub")
    plan = _best(p, cores, ub_bytes, depth=2)
    if ceil_div(plan.tiles(p), plan.block_dim) == 2:
        single = _best(p, cores, ub_bytes, depth=1)
        if single.tiles(p) <= single.block_dim >= plan.block_dim:
            return single
    return plan


def _best(p: Problem, cores: int, ub_bytes: int, depth: int) -> Plan:
    """Most cores, then fewest tiles, then the largest, then most whole ones, then the first."""
    per_element = depth * QUEUES * p.element.nbytes(1) + work_bytes(p.element)
    # Elements of a tile, in whole blocks.
    room = align_down(ub_bytes // per_element, BLOCK_BYTES // p.element.nbytes(1))

    def merit(size: tuple[int, int]) -> tuple[int, int, int, int]:
        rows, columns = size
        tiles = ceil_div(p.rows, rows) * ceil_div(p.columns, columns)
        whole = (p.rows // rows) * (p.columns // columns)
        return min(tiles, cores), -tiles, rows * columns, whole

    # `max` keeps the first of equals.
    rows, columns = max(_sizes(p, room), key=merit)
    return Plan(
        block_dim=merit((rows, columns))[0], row_step=rows, column_step=columns, depth=depth
    )


def _sizes(p: Problem, room: int) -> Iterator[tuple[int, int]]:
    """Rows and columns of tiles of at most *room* elements, from the widest to the narrowest."""
    size = p.element.nbytes(1)
    unit, per_block = COLUMN_UNIT_BYTES // size, BLOCK_BYTES // size
    in_blocks = p.columns % per_block == 0
    most_rows = min(p.rows, MAX_ROWS)
    columns = min(p.columns, room, MAX_GAP if in_blocks else MAX_GAP // size)
    if columns < p.columns:
        columns = align_down(columns, unit)
    while True:
        # Bytes between a row's end and the next one's begin: the other half, and what is left.
        gap_bytes = (2 * p.columns - columns) * size
        is_near = (gap_bytes // BLOCK_BYTES if in_blocks else gap_bytes) <= MAX_GAP
        rows = min(room // align_up(columns, per_block), most_rows) if is_near else 1
        yield rows, columns
        if columns <= unit or rows == most_rows:
            return
        columns = align_down(columns - 1, unit)
