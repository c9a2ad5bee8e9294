"""How npu_quant_matmul is split over cores and buffers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.data.dtypes import INT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import Core, DeviceSpec
from npusim.kernel import CubeTiles
from npusim.ops import _vocabulary as ops
from npusim.ops.npu_quant_matmul import msd, pergroup
from npusim.ops.npu_quant_matmul.check import Problem, Template
from npusim.ops.npu_quant_matmul.tiles_basic import basic_tiles, is_basic
from npusim.ops.npu_quant_matmul.tiles_grid import (
    coupled_tiles,
    few_rows_tiles,
    grid_tiles,
    is_pp,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """The cube's tiles, and the pieces in which vector cores convert int32 to the output."""

    template: Template
    cube: CubeTiles
    epilogue_rows: int
    """Rows of a block in the unified buffer at a time; 0 if the fixpipe does it all."""
    epilogue_columns: int
    workspace_blocks: int
    """Blocks of int32 that each cube core has in global memory for its two vector cores."""
    vector_cores: int = 2
    """The vector cores in a group that finish blocks; the other one answers flags (assumed)."""

    @property
    def is_driven(self) -> bool:
        """Whether vector cores start the cube cores, see `messages`."""
        return self.template == "tbe" and self.is_mix


MESSAGE_BYTES = 64
"""A line of the scalar unit's cache (assumed); see `messages`."""


def tile(spec: DeviceSpec, p: Problem) -> ops.Plan:
    """Split like the vendor, as far as its rules are public.

    ops-nn@e5c3fa9 matmul/quant_batch_matmul_v3/op_host/op_tiling: the basic template if its
    conditions hold, otherwise the older library's; 310P has other rules. See `tiles_basic`,
    `tiles_grid`, `msd` and `pergroup` for what is modelled and what is not.
    """
    if p.form == "msd":
        return msd.tile(spec, p)
    if p.form == "pergroup":
        return pergroup.tile(spec, p)
    if spec.arch == "2002":
        cube = coupled_tiles(spec, p)
        # A quarter of the unified buffer for results of L0C; x1 is converted to NZ in one half.
        room = spec.cores["ai_core"].usable_bytes("ub") // 4
        rows = min(cube.base_m, align_down(room // p.output.element.nbytes(cube.base_n), 16))
        own: Template = "pp" if is_pp(p) else "coupled"
        why = f"m = {p.product.m}, {'with' if p.bias else 'without'} a bias"
        return _plan(p, own, why, cube, rows, cube.base_n)
    core = spec.cores["aic"]
    template, why = _template(spec, p)
    cube = (
        basic_tiles(spec, p)
        if template == "basic"
        else few_rows_tiles(core, p) or grid_tiles(core, p)
    )
    if p.epilogue == "fixpipe":
        return _plan(p, template, why, cube)
    strip = ceil_div(ceil_div(p.product.n, cube.base_n), cube.cores_n)
    if template == "tbe" and _is_opt(p, cube, strip, core.count):
        template, why = "tbe_opt", "few rows, and room for a row of blocks in the workspace"
    template = p.asked or template
    rows = _epilogue_rows(spec.cores["aiv"], p, cube, template == "tbe_opt")
    opt_blocks = min(strip, MAX_FLAGS)
    blocks = {"basic": 2, "tbe_opt": opt_blocks}.get(template, _rectangle_blocks(cube, strip))
    plan = _plan(p, template, why, cube, rows, cube.base_n, blocks)
    return replace(plan, vector_cores=_vector_cores(p, cube, template))


def _rectangle_blocks(cube: CubeTiles, strip: int) -> int:
    """Blocks that a message starts: those of a core in a row of blocks, as far as there is space.

    The vendor shrinks rectangles until they fit the workspace. Assumed: it does so block by block,
    and to no more blocks than the flags by which opt runs ahead.
    """
    room = MAX_WORKSPACE_BYTES // (INT32.nbytes(cube.base_m * cube.base_n) * cube.cores)
    return max(1, min(strip, room, MAX_FLAGS))


def _vector_cores(p: Problem, cube: CubeTiles, template: Template) -> int:
    """The vector cores of a group that compute the output: one with opt and row scales.

    Also one for much output of short sums, for which the vendor starts only one per cube core
    (op_kernel/quant_batch_matmul_v3.cpp; only with row scales, bfloat16 and FRACTAL_NZ).
    """
    pr = p.product
    if p.pertoken_scale is None:
        return 2
    blocks = ceil_div(pr.m, cube.base_m) * ceil_div(pr.n, cube.base_n)
    is_short = pr.k <= 1152 and blocks >= 682
    is_long = 1152 < pr.k <= 1536 and pr.m >= 12544 and pr.n >= 1280
    is_kind = p.output.dtype == "bfloat16" and pr.fractal_b
    return 1 if template == "tbe_opt" or (is_kind and (is_short or is_long)) else 2


def _template(spec: DeviceSpec, p: Problem) -> tuple[Template, str]:
    """The template whose tiles are used, and why."""
    pr = p.product
    if p.asked is not None:
        return ("basic" if p.asked == "basic" else "tbe"), "asked for"
    sizes = f"(m, k, n) = {(pr.m, pr.k, pr.n)}"
    if is_basic(spec, p):
        return "basic", f"the default, since {sizes} is not on the vendor's list of exceptions"
    if pr.matrices > 1:
        return "tbe", f"basic takes no batches, and this one has {pr.matrices} matrices"
    return "tbe", f"{sizes} is on the vendor's list of exceptions from basic"


def _plan(
    p: Problem,
    template: Template,
    why: str,
    cube: CubeTiles,
    rows: int = 0,
    columns: int = 0,
    blocks: int = 0,
) -> Plan:
    """The plan with pieces of *rows* x *columns*, and *blocks* of each core in the workspace."""
    workspaces = {}
    if blocks:
        block_bytes = INT32.nbytes(cube.base_m * cube.base_n)
        workspaces["workspace"] = blocks * block_bytes * cube.cores
        if (p.asked or template) == "tbe":
            workspaces["messages"] = MESSAGE_BYTES * cube.cores
    return Plan(
        block_dim=cube.cores,
        template=p.asked or template,
        reason="asked for" if p.asked else why,
        is_mix=blocks > 0,
        workspaces=workspaces,
        cube=cube,
        epilogue_rows=rows,
        epilogue_columns=columns,
        workspace_blocks=blocks,
    )


MAX_WORKSPACE_BYTES = 50 * 2**20
MAX_FLAGS = 15
"""The most blocks that the cube core of opt is ahead (quant_batch_matmul_v3_pertoken_opt.h)."""


def _is_opt(p: Problem, cube: CubeTiles, strip: int, cores: int) -> bool:
    """Whether a whole strip of blocks has its own workspace, so that the cube never waits."""
    pr = p.product
    nbytes = 4 * cube.base_m * strip * cube.base_n * cores
    if p.pertoken_scale is not None and nbytes < MAX_WORKSPACE_BYTES and pr.m <= cube.base_m:
        return True
    is_aligned = pr.k % 64 == 0 and pr.n % 64 == 0 and pr.m <= 256
    per_column = p.scale is not None and p.scale.spec.size > 1
    return is_aligned and p.bias is None and per_column


def _epilogue_rows(core: Core, p: Problem, cube: CubeTiles, is_opt: bool) -> int:
    """Rows of `base_n` that fit into the unified buffer of a vector core."""
    bm, bn = cube.base_m, cube.base_n
    fixed, row, column = bm * 32, 0, 2 * (4 + 2)
    if is_opt:
        fixed += bm * bn * 4 + align_up(bm, 8) * 4 + 8 * bn
        column += 4
    else:
        column += 8
        if p.scale is not None and p.scale.spec.size > 1:
            column += 2 * p.scale.element.bits // 8
        if p.pertoken_scale is not None:
            column, row = column + 8, 2 * 4
    room = core.usable_bytes("ub") - fixed
    return max(1, min(room // (column * bn + row), bm, p.product.m))
