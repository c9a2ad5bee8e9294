"""Base tiles of npu_grouped_matmul, the cores that start, and tiles passed between cores.

ops-transformer@c29bc10 gmm/grouped_matmul/op_host/op_tiling/grouped_matmul_tiling.cpp: a base tile
fills L0C once, half of L1 is for the weight, and the rest for x.

If vector cores finish the sums of a cube core, it writes each base tile to the next slot of a ring
in the workspace, with contiguous rows, and continues unless all slots are full; the slots of all
cores with the same index are adjacent (op_kernel/grouped_matmul_quant_mixcore.h).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import INT8, INT32, DType
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel import BaseTile, Binding, GmView, GmViews
from npusim.kernel.steps import Integers
from npusim.kernel.tiles import whole_steps
from npusim.ops import _protocol
from npusim.ops.npu_grouped_matmul.problem import Problem

WIDTH = 256
"""Columns of a base tile."""
PIECE_BYTES = 32768
"""Half of L0A or L0B."""
SUM_BYTES = 131072
"""L0C, which holds one tile."""
WEIGHT_BYTES = 262144
"""The weight's half of L1."""
BIAS_BYTES, WORDS_BYTES = 4 * 256, 8 * 256
"""Bytes of L1 for the bias and the scales of a tile's columns."""
FEW_ROWS, LONG_ROW, MOST_COLUMNS, FULL_WAVE = 32, 2048, 1024, 0.95
"""Rows for each expert up to which blocks of int8 are wider than a tile, columns from which on they
always are, their width then, and how full the last wave must be if tuning_config is given.
"""
TALL_TUNING, TALL_TILE, TALL_WEIGHTS = (128, 256), (128, 128), ((7168, 2048), (7680, 2048))
"""With expected rows (tuning_config) above the former and at most the latter, int8 has tiles taller
than wide; columns and k of these; (k, n) that have them for fewer rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Base tiles, and the columns of a block."""

    tile: BaseTile
    single_n: int
    """Columns of a group that a core computes before it moves on; a multiple of a tile's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlan(Plan):
    """Tiles whose output vector cores compute."""

    chunk_rows: int
    """Rows of a tile in the unified buffer at a time."""


def base_tile(
    spec: DeviceSpec,
    dtype: DType,
    rows: int,
    *,
    width: int = WIDTH,
    table_bytes: int = 0,
    k: int | None = None,
) -> BaseTile:
    """The tile for *rows* of x in all, *width* columns wide.

    *table_bytes* of L1 are for bias and scales; *k* is that of half of L0B, or less. The part of L1
    that a taller tile leaves for the weight is assumed: all that x does not use.
    """
    k = k or align_down(PIECE_BYTES * 8 // (width * dtype.bits), 16)
    m = min(PIECE_BYTES * 8 // (k * dtype.bits), SUM_BYTES // (4 * width))
    m = min(m, align_up(rows, 16))
    room = (spec.cores["aic"].l1_bytes or 0) - table_bytes
    share_a, share_b = room - WEIGHT_BYTES, WEIGHT_BYTES
    if m > width:
        share_a, share_b = share_b, share_a
    step_a = share_a // 2 // dtype.nbytes(m * k)
    step_b = share_b // 2 // dtype.nbytes(width * k)
    return BaseTile(m, width, k, *whole_steps(step_a, step_b))


def int8_tile(spec: DeviceSpec, p: Problem) -> BaseTile:
    """The tile for int8 by int8: taller than wide if tuning_config gives 129 to 256 rows.

    Sums that stay int32 also have such tiles for fewer rows, with weights of two shapes.
    """
    tables = table_bytes(p, words=True)
    rows_given = p.tuning[0] if p.tuning else 0
    sizes = p.weight_shape(0)
    is_listed = 0 < rows_given <= TALL_TUNING[0] and not p.scale and sizes in TALL_WEIGHTS
    if TALL_TUNING[0] < rows_given <= TALL_TUNING[1] or is_listed:
        width, k = TALL_TILE
        return base_tile(spec, INT8, rows_of(p), width=width, k=k, table_bytes=tables)
    return base_tile(spec, INT8, rows_of(p), table_bytes=tables)


def rows_of(p: Problem) -> int:
    """The rows for which the tile is chosen: all of a single x, or those of the largest of several.

    They are not those of a group, which the host does not know.
    """
    return p.rows if len(p.x) == 1 else int(p.groups.m.max())


def table_bytes(p: Problem, *, words: bool = False) -> int:
    """Bytes of L1 for a bias, and for the *words* of the fixpipe."""
    return (BIAS_BYTES if p.bias else 0) + (WORDS_BYTES if words else 0)


def single_columns(p: Problem, tile: BaseTile, cores: int) -> int:
    """Columns of a block of int8: more than a tile's if FRACTAL_NZ weights allow it.

    For few rows for each expert, as many as make the last wave of cores fullest, at most 1024; if
    tuning_config gives the rows, the most that fill the last wave to FULL_WAVE. The variant for one
    expert that splits its blocks on the device is left out.
    """
    n, experts = p.weight_shape(0)[1], p.experts
    if not p.is_nz or p.group_type != 0:
        return tile.n
    if p.tuning and p.tuning[0]:
        rows = experts * ceil_div(p.tuning[0], tile.m)
        if rows * ceil_div(n, tile.n) > cores:
            return _filling(n, rows, cores, WIDTH)
    elif p.rows <= FEW_ROWS * experts and (not p.trans_weight or n >= LONG_ROW):
        widths = range(MOST_COLUMNS, tile.n - 1, -tile.n)
        if n >= LONG_ROW:
            return MOST_COLUMNS
        if experts * ceil_div(n, tile.n) > cores:
            return max(widths, key=lambda width: _wave(experts * ceil_div(n, width), cores))
    return tile.n


def _filling(n: int, rows: int, cores: int, width: int) -> int:
    """The widest even split of *n* whose blocks, in *rows* rows of blocks, fill the last wave."""
    for cuts in range(1, cores + 1):
        columns = ceil_div(n, cuts)
        is_whole = cuts == 1 or columns % width == 0
        if is_whole and _wave(rows * cuts, cores) >= FULL_WAVE:
            return align_up(columns, width)
    return width


def _wave(blocks: int, cores: int) -> float:
    """How full the waves of all cores are with *blocks*."""
    return blocks / align_up(blocks, cores)


def cores_of(spec: DeviceSpec, p: Problem | None = None) -> int:
    """All cube cores start, even if fewer have work.

    For a call *p* with one group of at most 256 rows by tuning_config, only as many start as its
    blocks of columns need for the same number of waves.
    """
    cores = spec.cores["aic"].count
    if p is None or p.experts > 1 or not p.tuning or not 0 < p.tuning[0] <= TALL_TUNING[1]:
        return cores
    blocks = ceil_div(p.weight_shape(0)[1], WIDTH)
    return ceil_div(blocks, ceil_div(blocks, cores))


def reason(p: Problem) -> str:
    """The reason for the kernel, and what was assumed."""
    x, weight = p.types.stored
    why = f"{x} x, {weight} weight and {p.types.output} output" if p.asked is None else "asked for"
    if p.group_list is not None and p.group_list.array is None:
        why += "; group_list has no values, so every group is assumed to have an equal share"
    return why


# ---- the ring ----

RING = 4
"""Slots of the ring: tiles that a cube core may be ahead."""
FILLED, READ = 0, 1
"""Flags between a cube core and its vector cores: a tile is in its slot; it was read."""


def ring_bytes(plan: MixedPlan, element: DType = INT32) -> int:
    """Bytes of the workspace of all cores."""
    return RING * plan.block_dim * _place_bytes(plan, element)


def _place_bytes(plan: MixedPlan, element: DType) -> int:
    return element.nbytes(plan.tile.m * plan.tile.n)


def bound_ring(plan: MixedPlan, core: int, element: DType = INT32) -> dict[str, Binding]:
    """The binding of the first slot of cube core index *core*."""
    return {"workspace": Binding("workspace", core * _place_bytes(plan, element))}


def places_of(plan: MixedPlan, turn: Integers, element: DType = INT32) -> GmViews:
    """The slot of tile index *turn* of a core, see :func:`laid_out`."""
    offset = turn % RING * plan.block_dim * _place_bytes(plan, element)
    one = np.ones_like(turn)
    return GmViews("workspace", element, one, plan.tile.m * plan.tile.n * one, 0, offset)


def laid_out(place: GmView, rows: int, columns: int) -> GmView:
    """A tile of *rows* and *columns* in its *place*, with contiguous rows."""
    return GmView.of(place.name, place.dtype, rows, columns).shifted_to(place.offset_bytes)
