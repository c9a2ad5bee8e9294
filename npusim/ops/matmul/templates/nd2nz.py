"""nd2nz: vector cores convert x1, x2 or both to FRACTAL_NZ, then the cube cores run like base.

A tile of rows passes through the unified buffer, half of which holds it as rows and half as NZ,
column of blocks after column. x1 is converted before x2. The cube cores wait until all vector cores
have finished both (ops-nn@e5c3fa9 matmul/mat_mul_v3/op_kernel, mat_mul_nd2nz.h and
mat_mul_unaligned_base_kernel.h).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np

from npusim.data.dtypes import FLOAT16, UINT8
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    BLOCK_BYTES,
    Binding,
    Block,
    Copy,
    CoreSteps,
    CubeCore,
    GmMatrix,
    GmView,
    GmViews,
    Local,
    Pieces,
    Step,
    VectorCore,
    launch_mixed,
    load,
    product_steps,
    store,
    sync_all,
)
from npusim.kernel.blocks import columns_of, gm_matrix_a, gm_matrix_b, output_of
from npusim.kernel.steps import tiles
from npusim.ops.matmul.check import Problem
from npusim.ops.matmul.templates.whole_k import WholeKPlan, on_cube_core, tile_base
from npusim.ops.matmul.traits import Chip, Side, conflicts, turned

TURNED, ALL_VECTOR_CORES = 0, 1
"""Flags: to the cube core of a group, and among the vector cores."""
NARROW_BYTES = 2048
"""Rows up to this size are converted whole."""
WIDTHS_BYTES = (6144, 4096, 2048)
"""Widths that are tried for wider rows."""
CONFLICT_TILE = (96, 512)
"""Rows and columns of a tile if x2 is converted because of bank conflicts."""


@dataclass(frozen=True, slots=True)
class RowTile:
    """The rows and columns that a vector core converts at a time."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurningPlan(WholeKPlan):
    """The plan of base, and the operands converted before."""

    turned: dict[Side, RowTile]


def tile(spec: DeviceSpec, p: Problem) -> TurningPlan:
    """Split like base, with the tiles of the conversion; whole fractals of rows are assumed."""
    plan = tile_base(spec, p)
    chip, vector_cores = Chip.of(spec), 2 * plan.block_dim
    room_bytes = (spec.cores["aiv"].ub_bytes or 0) // 2
    found: dict[Side, RowTile] = {}
    for side in turned(p.traits, chip):
        if side == "x2" and conflicts(p.traits, chip):
            found[side] = RowTile(*CONFLICT_TILE)
        else:
            found[side] = _row_tile(_matrix(p, side), room_bytes, vector_cores)
    return TurningPlan(
        block_dim=plan.block_dim,
        **asdict(p.choice),
        is_mix=True,
        workspaces={f"{side}_nz": _as_nz(_matrix(p, side)).matrix_bytes for side in found},
        cube=plan.cube,
        past_l2=tuple(name for name in plan.past_l2 if name not in found),
        turned=found,
    )


def _matrix(p: Problem, side: Side) -> GmMatrix:
    return gm_matrix_a(p.product) if side == "x1" else gm_matrix_b(p.product)


def _as_nz(matrix: GmMatrix) -> GmMatrix:
    return replace(matrix, layout="FRACTAL_NZ")


def _row_tile(matrix: GmMatrix, room_bytes: int, vector_cores: int) -> RowTile:
    """The tile that fits half of the unified buffer, with equal shares for the cores."""
    width, outer = align_up(matrix.columns, c0(matrix.dtype)), matrix.rows
    if matrix.dtype.nbytes(width) <= NARROW_BYTES:
        most = max(FRACTAL_ROWS, align_down(room_bytes // matrix.dtype.nbytes(width), FRACTAL_ROWS))
        rounds = ceil_div(outer, most * vector_cores)
        rows = align_up(ceil_div(outer, rounds * vector_cores), FRACTAL_ROWS)
        return RowTile(min(rows, most), width)
    best, most_left = RowTile(0, 0), -1
    for width_bytes in WIDTHS_BYTES:
        columns = width_bytes * 8 // matrix.dtype.bits
        highest = align_down(room_bytes // width_bytes, FRACTAL_ROWS)
        for rows in range(highest, 0, -FRACTAL_ROWS):
            left = ceil_div(outer, rows) * ceil_div(matrix.columns, columns) % vector_cores
            if left == 0:
                return RowTile(rows, columns)
            if left > most_left:
                best, most_left = RowTile(rows, columns), left
    return best


# ---- programs ----


def build(spec: DeviceSpec, p: Problem, plan: TurningPlan) -> tuple[Block, ...]:
    """Three blocks per group: a cube core and its two vector cores."""
    bound = {name: Binding(name) for name in p.names}
    for side in plan.turned:
        # The cube refers to the NZ of an operand by the operand's name, vector cores to its rows by
        # _nd.
        bound |= {f"{side}_nd": Binding(side), side: Binding(f"{side}_nz")}
    bound |= {name: Binding(name, is_cached=False) for name in plan.past_l2}
    nz = replace(
        p.product,
        fractal_a="x1" in plan.turned,
        fractal_b=p.product.fractal_b or "x2" in plan.turned,
    )
    core = CubeCore("matmul", spec, alone=True)
    cube, stage = on_cube_core(core, replace(p, product=nz), plan.cube)
    dealt = Pieces.of(plan.cube, nz)
    output, bias = output_of(nz, dealt, p.output.element), columns_of(nz, dealt, p.bias)
    steps = product_steps(cube, nz, dealt, stage, output, bias)
    wait = partial(core.cross_core_wait_flag, "group", "mte2", TURNED)
    turning = _vector_core(spec, p, plan)
    return launch_mixed(plan.block_dim, CoreSteps(core, steps, wait), turning, lambda _: bound)


def _vector_core(spec: DeviceSpec, p: Problem, plan: TurningPlan) -> CoreSteps:
    """The steps of a vector core: its tiles of the operands that are converted."""
    # Only a flag, no messages, goes to the cube core: the whole buffer is used, in two halves.
    core = VectorCore(plan.template, spec, alone=True)
    half_bytes = core.room_bytes("ub") // 2
    rows_in = core.queue("ub", half_bytes, "mte2", "vector")
    nz_out = core.queue("ub", half_bytes, "vector", "mte3")

    def turn(nd: GmView, nz: GmView) -> None:
        """Convert *nd* `(rows, columns)` to *nz* `(blocks, rows_padded x 32)` bytes."""
        pitch, rows_padded = nz.rows, align_up(nd.rows, FRACTAL_ROWS)
        slot = load(core, rows_in, nd, pitch=pitch * c0(nd.dtype))
        if rows_padded > nd.rows:
            # Rows that pad the last fractal are zero.
            count = (rows_padded - nd.rows) * pitch * BLOCK_BYTES // 2
            core.duplicate(slot.of(FLOAT16, count, nd.rows * pitch * BLOCK_BYTES), 0.0)
        out = nz_out.alloc()
        # (rows_padded, blocks) blocks of 32 bytes -> (blocks, rows_padded), one Copy per column
        for block in range(nz.rows):
            count = rows_padded * BLOCK_BYTES // 2
            offset = slot.offset_bytes + block * BLOCK_BYTES
            column = Local("ub", offset, FLOAT16, count, pitch, 8 * pitch)
            core.emit(Copy(out.of(FLOAT16, count, block * rows_padded * BLOCK_BYTES), column))
        rows_in.free(slot)
        store(core, nz_out, out, nz)

    cores, steps = 2 * plan.block_dim, []
    for number, (side, size) in enumerate(plan.turned.items()):
        nd, nz = _tiles(_matrix(p, side), size)
        # They are assigned in turn, first rows first, one operand after the other.
        index = np.arange(len(nd))
        steps.append(Step(turn, (nd, nz), index % cores, np.full(len(nd), number)))
    done = partial(sync_all, core, "mte3", "mte3", ALL_VECTOR_CORES, TURNED)
    steps.append(Step(done, (), np.arange(cores), np.full(cores, len(steps))))
    return CoreSteps(core, tuple(steps))


def _tiles(matrix: GmMatrix, size: RowTile) -> tuple[GmViews, GmViews]:
    """The tiles of *matrix* that are converted, as rows and as NZ."""
    nd = tiles(replace(matrix.view, name=f"{matrix.name}_nd"), size.rows, size.columns)
    # NZ: (blocks, rows_padded x 32) bytes
    column_bytes, width = _as_nz(matrix).nz_stride_bytes, c0(matrix.dtype)
    nz = GmView.of(matrix.name, UINT8, ceil_div(matrix.columns, width), column_bytes)
    row, column = np.divmod(nd.offset_bytes * 8 // matrix.dtype.bits, matrix.columns)
    down = -(-nd.rows // FRACTAL_ROWS) * FRACTAL_ROWS * BLOCK_BYTES
    blocks = -(-(column + nd.columns) // width) - column // width
    return nd, GmViews.of(nz, column // width, row * BLOCK_BYTES, blocks, down)
