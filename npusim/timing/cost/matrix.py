"""Cycles of the cube and of the ways between the buffers around it."""

from __future__ import annotations

from math import ceil

from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import Core, Cube
from npusim.isa import (
    BLOCK_BYTES,
    BroadcastToL0c,
    CopyL0c,
    CopyToL1,
    Fixpipe,
    LoadData,
    LoadTable,
    Local,
    Mmad,
)
from npusim.timing.cost.cycles import Cost

__all__ = ["BufferOp", "between_buffers", "mmad"]

BufferOp = LoadData | LoadTable | BroadcastToL0c | CopyL0c | CopyToL1 | Fixpipe

FIXPIPE_ELEMENT_BYTES = 2
"""Fixpipe moves as many elements a cycle whatever their type; its rate is stated for fp16.

asc-devkit, docs/zh/api, Cube指令理论性能汇总.md: 64 elements, 128 bytes of fp16 or 64 of int8.
"""


def mmad(op: Mmad, cube: Cube) -> Cost:
    """A cycle a tile; one that follows another hides most of its start-up in it."""
    dtype = op.a.dtype.name
    if dtype not in cube.k_per_cycle:
        raise ValueError(
            f"cost: cube.k_per_cycle must state {', '.join(cube.k_per_cycle)} or more for {op}, "
            f"not lack {dtype}; use one of these types or add it to the device"
        )
    k = cube.k_per_cycle[dtype]
    tiles = ceil_div(op.m, cube.m) * ceil_div(op.n, cube.n) * ceil_div(op.k, k)
    hidden = max(0, cube.startup_cycles - cube.back_to_back_cycles)
    return Cost(cube.back_to_back_cycles + tiles, tail=hidden)


def between_buffers(op: BufferOp, core: Core) -> Cost:
    """The start-up of the path that *op* takes, and its bytes at the path's rate."""
    target = op.dst.buffer if isinstance(op.dst, Local) else "gm"
    name = f"{op.src.buffer}_to_{target}"
    path = core.paths.get(name)
    if path is None:
        raise ValueError(
            f"cost: a core must have the path {name} for {op}, "
            f"not only {', '.join(core.paths)}; use another core or add the path to the device"
        )
    return Cost(path.startup_cycles + ceil(_moved_bytes(op) / path.bytes_per_cycle))


def _moved_bytes(op: BufferOp) -> int:
    match op:
        case LoadData() | LoadTable() | BroadcastToL0c():
            return align_up(op.dst.nbytes, BLOCK_BYTES)
        case CopyL0c():
            return op.src.nbytes
        case CopyToL1():
            return op.bursts * ceil_div(op.burst_bytes, BLOCK_BYTES) * BLOCK_BYTES
        case Fixpipe():
            columns = align_up(op.n, FRACTAL_ROWS)
            return op.m * columns * FIXPIPE_ELEMENT_BYTES
