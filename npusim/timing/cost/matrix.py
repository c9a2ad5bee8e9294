"""Cycles of the cube and of the paths between its buffers."""

from __future__ import annotations

from math import ceil

from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_BYTES, FRACTAL_ROWS
from npusim.devices.schema import Core, Cube
from npusim.isa import (
    BLOCK_BYTES,
    BroadcastToL0c,
    CopyToL1,
    Fixpipe,
    LoadData,
    LoadFractals,
    LoadImage,
    LoadTable,
    MicroOp,
    Mmad,
    ends,
)
from npusim.timing.cost.cycles import Cost

__all__ = [
    "between_buffers",
    "burst_bytes",
    "filled_bytes",
    "fixpipe_bytes",
    "fractal_bytes",
    "mmad",
]

FIXPIPE_ELEMENT_BYTES = 2
"""Fixpipe moves the same number of elements a cycle for every type; its rate is given for fp16.

asc-devkit, docs/zh/api, Cube指令理论性能汇总.md: 64 elements, 128 bytes of fp16 or 64 of int8.
"""


def mmad(op: Mmad, cube: Cube) -> Cost:
    """The tiles at their rate; consecutive Mmads hide most of their start-up in each other."""
    dtype = op.a.dtype.name
    if dtype not in cube.k_per_cycle:
        raise ValueError(
            f"cost: cube.k_per_cycle must state {', '.join(cube.k_per_cycle)} or more for {op}, "
            f"not lack {dtype}; use one of these types or add it to the device"
        )
    k = cube.k_per_cycle[dtype]
    tiles = ceil_div(op.m, cube.m) * ceil_div(op.n, cube.n) * ceil_div(op.k, k)
    hidden = max(0, cube.startup_cycles - cube.back_to_back_cycles)
    return Cost(cube.back_to_back_cycles + ceil(tiles / cube.tiles_per_cycle), tail=hidden)


def between_buffers(op: MicroOp, nbytes: int, core: Core) -> Cost:
    """The start-up of the path that *op* takes, and *nbytes* at the path's rate."""
    name = "_to_".join(ends(op))
    path = core.paths.get(name)
    if path is None:
        raise ValueError(
            f"cost: a core must have the path {name} for {op}, "
            f"not only {', '.join(core.paths)}; use another core or add the path to the device"
        )
    return Cost(path.startup_cycles + ceil(nbytes / path.bytes_per_cycle))


def fractal_bytes(op: LoadFractals) -> int:
    """Bytes of the fractals that *op* copies."""
    return op.repeats * op.inner * FRACTAL_BYTES


def filled_bytes(op: LoadData | LoadImage | LoadTable | BroadcastToL0c) -> int:
    """Bytes of the blocks that *op* fills, partial ones counted in full."""
    return align_up(op.dst.nbytes, BLOCK_BYTES)


def burst_bytes(op: CopyToL1) -> int:
    """Bytes of the bursts of *op*, in whole blocks."""
    return op.bursts * align_up(op.burst_bytes, BLOCK_BYTES)


def fixpipe_bytes(op: Fixpipe) -> int:
    """Bytes in whole columns of fractals, as the rate of the fixpipe counts them."""
    return op.m * align_up(op.n, FRACTAL_ROWS) * FIXPIPE_ELEMENT_BYTES
