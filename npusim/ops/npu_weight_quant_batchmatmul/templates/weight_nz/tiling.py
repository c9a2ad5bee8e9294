"""How the cores of 310P share a product whose weight they dequantise on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from npusim.data.dtypes import FLOAT16
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.kernel.tiles import whole_edges
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.plan import Plan

__all__ = ["SHAPES", "Tiles", "WeightNzPlan", "tile"]


class Tiles(NamedTuple):
    """A row of the vendor's table; counts of elements unless the name says otherwise."""

    cores_n: int
    cores_m: int
    part_m: int
    part_x_k: int
    """m and k of x that become Nz at a time."""
    part_k: int
    """k of the weight that is dequantised at a time."""
    l1_k: int
    """k of a piece in L1."""
    base_m: int
    base_n: int
    base_k: int
    l0c_depth: int


_WIDE = Tiles(4, 2, 128, 128, 128, 128, 512, 128, 32, 1)
SHAPES = {
    (4, 2048, 4096): Tiles(8, 1, 64, 256, 128, 256, 64, 256, 64, 2),
    (4, 5504, 4096): Tiles(8, 1, 16, 256, 128, 256, 16, 704, 16, 2),
    (4, 4096, 2048): Tiles(8, 1, 16, 256, 128, 256, 16, 512, 32, 2),
    (4, 65000, 4096): Tiles(8, 1, 16, 128, 128, 256, 16, 512, 32, 2),
    (4, 4096, 5504): Tiles(8, 1, 16, 256, 128, 256, 16, 512, 32, 2),
    (4, 11008, 4096): Tiles(8, 1, 16, 256, 128, 512, 16, 688, 16, 1),
    (512, 4096, 2048): Tiles(8, 1, 128, 128, 128, 256, 256, 256, 64, 1),
    (512, 4096, 5504): Tiles(8, 1, 128, 128, 128, 256, 256, 256, 64, 1),
    (896, 4096, 2048): Tiles(8, 1, 112, 128, 128, 256, 224, 256, 64, 1),
    (896, 4096, 5504): Tiles(8, 1, 112, 128, 128, 256, 224, 256, 64, 1),
    (4096, 2048, 4096): _WIDE,
    (4096, 5504, 4096): _WIDE,
    (4096, 65000, 4096): _WIDE._replace(cores_n=8, cores_m=1),
    (4812, 9612, 2462): Tiles(1, 1, 128, 128, 32, 128, 128, 256, 64, 1),
    (1811, 7925, 29): Tiles(1, 1, 128, 64, 32, 64, 128, 256, 32, 1),
    (14512, 3376, 48): Tiles(1, 1, 128, 128, 32, 576, 128, 256, 48, 1),
    (5232, 3872, 6736): Tiles(1, 1, 128, 128, 32, 256, 128, 256, 64, 1),
    (5236, 13521, 7310): Tiles(1, 1, 128, 128, 32, 128, 128, 256, 64, 1),
}
"""(m, n, k) whose tiles are known: ops-nn@e5c3fa9, op_host/op_tiling/*_weight_nz_tiling.cpp.

The table's counts of buffers in L1 are left out: the kernel reads nothing of them but l1_k, and has
one piece of each operand there.
"""


@dataclass(frozen=True, slots=True)
class WeightNzPlan(Plan):
    """A grid of cores; each makes a rectangle of the output."""

    core_m: int
    core_n: int
    tiles: Tiles


def tile(spec: DeviceSpec, p: Problem) -> WeightNzPlan:
    """As the table says, else by the rule of `_assumed`; the cores of the grid share evenly."""
    f, count = p.traits, spec.cores["ai_core"].count
    tiles = SHAPES.get((f.m, f.n, f.k))
    if tiles is None or tiles.cores_n * tiles.cores_m > count:
        tiles = _assumed(f.m, f.n, count)
    core_m = ceil_div(ceil_div(f.m, tiles.base_m), tiles.cores_m) * tiles.base_m
    core_n = ceil_div(ceil_div(f.n, tiles.base_n), tiles.cores_n) * tiles.base_n
    return WeightNzPlan(
        template="weight_nz",
        form="",
        reason=p.choice.reason,
        block_dim=ceil_div(f.m, core_m) * ceil_div(f.n, core_n),
        is_mix=False,
        workspaces={},
        core_m=core_m,
        core_n=core_n,
        tiles=tiles,
    )


def _assumed(m: int, n: int, cores: int) -> Tiles:
    """Tiles of any other shape, for which the vendor's rule is closed: assumed.

    Like the table, they let cores share n before m, and give a tile many columns where m is small.
    """
    max_m, max_n, base_k = (128, 256, 64) if m > 16 else (16, 512, 32)
    cores_n = min(cores, ceil_div(n, 128))
    # A store of less than a block spills into the next row, which must come later.
    cores_m = 1 if FLOAT16.nbytes(n) < BLOCK_BYTES else cores // cores_n
    base_m = min(max_m, align_up(ceil_div(m, cores_m), FRACTAL_ROWS))
    base_n = min(max_n, align_up(ceil_div(n, cores_n), FRACTAL_ROWS))
    base_n = whole_edges(base_n, n, FLOAT16)
    part_m, part_x_k = min(base_m, 128), 128 if m > 16 else 256
    return Tiles(cores_n, cores_m, part_m, part_x_k, 128, 256, base_m, base_n, base_k, 2)
