"""The template custom: vector cores dequantise the weight, cube cores multiply by it.

.. code-block:: text

    vector cores   weight tiles (rows, columns) int8 or int4 -> 16-bit, in its own layout
                   | a slot of the ring in global memory: all of k, the columns of a round
    cube cores     x (m, k) @ slot (k, columns) + bias -> output (m, columns)

In each round the cube cores compute some columns over all of k, which the vector cores have already
dequantised into a slot of a ring in global memory with up to three slots. All vector cores finish
a round together: each stores its tiles, all wait for each other, then each sets the flag of its
cube core. They do so when they have computed the first tile of the next round, whose store waits
for it. Cube cores signal in the same way what they have read: vector cores are at most two rounds
ahead (ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel, *_custom.h, *_common.h,
*_custom_weight_nz.h, op_host/op_tiling, *_tiling_custom.cpp). The base tile and the grid of cube
cores come from a library that is partly closed; see :func:`tile`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, UINT64
from npusim.data.errors import Code, OpError
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.devices.schema import Core, DeviceSpec
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube_core import CubeCore, ScaleTable
from npusim.kernel.launch import CoreSteps, launch_mixed
from npusim.kernel.matmul import BaseTile, Matmul
from npusim.kernel.matrices import GmMatrix, GmTile
from npusim.kernel.program import Block
from npusim.kernel.rows import pieces
from npusim.kernel.steps import GmViews, StageCall, Step
from npusim.kernel.tiles import whole_steps
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.ops._base_tiles import pieces_in_l1
from npusim.ops._dequantised_weight import Dequantiser, MatrixTile, Precision
from npusim.ops.npu_weight_quant_batchmatmul.problem import OP, Plan, Problem

VECTORS_DONE, CUBES_DONE, FILLED, READ = 6, 7, 8, 9
"""Flags between cores, numbered like in the kernel: of all cores of a kind, then of a group."""
MAX_ROUNDS_AHEAD = 2
"""Vector cores store a round after cube cores have read the one this many rounds before."""

# ---- how the work is split ----

RING = "dequantised"
MAX_SLOTS = 3
MAX_BASE_M, MAX_BASE_N = 128, 256
L0_BYTES = 32768
"""Half of L0A or L0B."""
LINE_BYTES = 512
SECTOR_COLUMNS = 64
"""Columns of 16 bits in a sector of 128 bytes."""
TABLE_BYTES = 4 + 8
"""Bytes of a bias and a 64-bit scale for a column, on their way through L1."""
RING_K_UNIT = 256
"""Rows of a slot along k are whole multiples of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomPlan(Plan):
    """The tiling of custom; counts of elements unless the name says otherwise."""

    base: BaseTile
    """The tile that a cube core processes at a time."""
    cores_m: int
    cores_n: int
    rounds: int
    """Each of `cores_n` base tiles of columns."""
    slots: int
    """Rounds of dequantised weight that global memory holds."""
    tile_rows: int
    """Rows of the weight, in memory order, that a vector core dequantises at a time."""
    tile_columns: int

    @property
    def round_n(self) -> int:
        """Columns of a round."""
        return self.cores_n * self.base.n


def precision(p: Problem) -> Precision:
    """fp16 throughout for an fp16 x, fp32 rounded once for a bf16 x."""
    if p.x.element is FLOAT16:
        return Precision(offset=FLOAT16, scale=FLOAT16, out=FLOAT16)
    return Precision(offset=FLOAT32, scale=FLOAT32, out=BFLOAT16)


def tile(spec: DeviceSpec, p: Problem) -> CustomPlan:
    """Split so that the busiest cube core loads least, in base tiles of at most 128 x 256.

    The vendor's grid comes from MultiCoreMatmulTiling or a closed table. The rule here is assumed,
    and so is that every vector core with a tile in a round takes part.
    """
    core, f = spec.cores["aic"], p.traits
    cores_m, base_m, base_n = min(_grids(core.count, f.m, f.n))[-1]
    blocks_n = ceil_div(f.n, base_n)
    cores_n = min(core.count // cores_m, blocks_n)
    rounds = ceil_div(blocks_n, cores_n)
    tile_rows, tile_columns = _weight_tile_sizes(spec, p)
    plan = CustomPlan(
        **p.chosen,
        block_dim=0,
        base=_base_tile(core, p, base_m, base_n),
        cores_m=cores_m,
        cores_n=cores_n,
        rounds=rounds,
        slots=min(MAX_SLOTS, rounds),
        tile_rows=tile_rows,
        tile_columns=tile_columns,
    )
    busy = min(ceil_div(len(_weight_tiles(p, plan, 0)), 2), core.count)
    return replace(
        plan,
        block_dim=max(cores_m * cores_n, busy),
        workspaces={RING: plan.slots * _slot_bytes(p, plan)},
    )


def _grids(cores: int, m: int, n: int) -> list[tuple[int, int, tuple[int, int, int]]]:
    """Rows and columns that a core loads, cores, and the grid: cores along m, base m and n."""
    grids = []
    for cores_m in range(1, min(cores, ceil_div(m, FRACTAL_ROWS)) + 1):
        cores_n = min(cores // cores_m, ceil_div(n, FRACTAL_ROWS))
        rows, columns = ceil_div(m, cores_m), ceil_div(n, cores_n)
        base_m = min(MAX_BASE_M, align_up(rows, FRACTAL_ROWS))
        # The columns of a core are split evenly. Rows of a slot are read in whole sectors if a tile
        # has more than two of them.
        even = ceil_div(columns, ceil_div(columns, MAX_BASE_N))
        base_n = align_up(even, FRACTAL_ROWS if even <= 2 * SECTOR_COLUMNS else SECTOR_COLUMNS)
        rounds = ceil_div(ceil_div(n, base_n), cores_n)
        # Padded tiles may need fewer cores along m than planned.
        used_m = ceil_div(ceil_div(m, base_m), ceil_div(rows, base_m))
        # The weight is loaded again for each row of tiles, x again in each round.
        load = rounds * (align_up(rows, base_m) + base_n * ceil_div(rows, base_m))
        grids.append((load, used_m * cores_n, (used_m, base_m, base_n)))
    return grids


def _base_tile(core: Core, p: Problem, base_m: int, base_n: int) -> BaseTile:
    """k of a piece in L0, and the pieces that a load copies to L1, of x and of the weight.

    Half of L1 for each operand, double buffered, less for the smaller one if tables need space;
    loads of whole lines of 512 bytes, the larger one a multiple of the smaller one (asc-devkit,
    impl/adv_api/tiling/matmul).
    """
    nbytes, unit = p.x.element.nbytes, c0(p.x.element)
    # Two pieces (base_m, base_k) in L0A and two (base_k, base_n) in L0B
    fitting_k = align_down(L0_BYTES // nbytes(max(base_m, base_n)), unit)
    # A power of two, so that steps of it fill whole lines.
    base_k = min(1 << (fitting_k.bit_length() - 1), align_up(p.traits.k, unit))
    room_bytes = core.usable_bytes("l1") - TABLE_BYTES * base_n
    a, b = pieces_in_l1(core, (base_m, base_n), nbytes(base_k), room_bytes)
    line, max_steps = max(1, LINE_BYTES // nbytes(base_k)), ceil_div(p.traits.k, base_k)
    steps_a, steps_b = (min(align_down(x // 2, min(line, x // 2)), max_steps) for x in (a, b))
    steps_a, steps_b = whole_steps(steps_a, steps_b)
    l0c_depth = 2 if 2 * FLOAT32.nbytes(base_m * base_n) <= (core.l0c_bytes or 0) else 1
    return BaseTile(base_m, base_n, base_k, steps_a, steps_b, l0c_depth)


def _weight_tile_sizes(spec: DeviceSpec, p: Problem) -> tuple[int, int]:
    """Rows and columns of the weight in memory: the vendor's, or fewer if they do not fit."""
    f, is_fp16 = p.traits, p.x.element is FLOAT16
    unit = 8 if f.weight == "int8" and not f.is_nz else FRACTAL_ROWS
    match f.weight, f.is_nz, f.trans_weight:
        case _, True, True:
            rows, columns = 64, 384 if is_fp16 else 256
        case "int8", True, False:
            rows, columns = 864 if is_fp16 else 544, 32
        case _, True, False:
            rows, columns = 256, 64
        case "int8", False, _:
            rows, columns = (40 if f.trans_weight else 48) if is_fp16 else 32, 512
        case _:
            rows, columns = 64, 1024
    for fewer in range(rows, 0, -unit):
        if Dequantiser.fits(spec, p.quantised_weight, precision(p), fewer, columns):
            return fewer, columns
    raise OpError(
        Code.UNSUPPORTED,
        f"{OP}: its tiles of {unit} x {columns} weights must fit into the unified buffer of "
        f"{spec.name}, {spec.cores['aiv'].usable_bytes('ub')} bytes, not need more; give the chip "
        f"a larger one",
    )


def _weight_tiles(p: Problem, plan: CustomPlan, number: int) -> list[MatrixTile]:
    """The tiles that the vector cores dequantise in round *number*, in memory order."""
    f, start = p.traits, number * plan.round_n
    of_k, of_n = (0, f.k), (start, min(start + plan.round_n, f.n))
    (top, bottom), (left, right) = (of_n, of_k) if f.trans_weight else (of_k, of_n)
    return [
        MatrixTile(top + row, left + column, rows, columns)
        for row, rows in pieces(bottom - top, plan.tile_rows)
        for column, columns in pieces(right - left, plan.tile_columns)
    ]


def _ring_slot(p: Problem, plan: CustomPlan) -> GmMatrix:
    """A slot: all of k for the columns of a round, in the weight's own orientation and layout."""
    weight, dtype, f = p.gm_weight, p.x.element, p.traits
    if weight.k_is_first:
        # As (k, columns) in memory.
        columns = align_up(plan.round_n, c0(weight.dtype)) if f.is_nz else plan.round_n
        return GmMatrix(RING, dtype, f.k, columns, True, weight.layout)
    # As (columns, k) in memory.
    return GmMatrix(RING, dtype, plan.round_n, align_up(f.k, RING_K_UNIT), False, weight.layout)


def _slot_bytes(p: Problem, plan: CustomPlan) -> int:
    """Bytes of a slot of the ring."""
    slot = _ring_slot(p, plan)
    rows = align_up(slot.rows, FRACTAL_ROWS) if p.traits.is_nz else slot.rows
    return rows * slot.dtype.nbytes(slot.columns)


# ---- programs ----


def build(spec: DeviceSpec, p: Problem, plan: CustomPlan) -> tuple[Block, ...]:
    """Build three blocks in each group: a cube core and its two vector cores."""
    bound = plan.bindings(p)
    cube, vector = _cube(spec, p, plan), _vector(spec, p, plan)
    return launch_mixed(plan.block_dim, cube, vector, lambda _: bound)


def _vector(spec: DeviceSpec, p: Problem, plan: CustomPlan) -> CoreSteps:
    """The program of a vector core: its share of each round's weight tiles, into the ring."""
    core, cores = VectorCore(OP, spec), 2 * plan.block_dim
    sizes = plan.tile_rows, plan.tile_columns
    dequantiser = Dequantiser(core, p.quantised_weight, precision(p), *sizes)
    ring, slot_bytes = _ring_slot(p, plan), _slot_bytes(p, plan)
    rounds = [_weight_tiles(p, plan, number) for number in range(plan.rounds)]

    def hand_over() -> None:
        """Wait until all vector cores have stored the round before, then release the cube core."""
        sync_all(core, "mte3", "scalar", VECTORS_DONE, FILLED)

    def hand_over_and_wait() -> None:
        """Then also wait until all cube cores have read the round `MAX_ROUNDS_AHEAD` before."""
        hand_over()
        core.cross_core_wait_flag("group", "scalar", READ)

    def calls(index: int) -> Iterator[StageCall]:
        shares = []
        for tiles in rounds:
            # Each core gets as many tiles as the busiest one needs: the last cores may have none.
            run = ceil_div(len(tiles), cores)
            shares.append(tiles[index * run : (index + 1) * run])
        if any(shares):
            yield (dequantiser.load_registers,)
        # A round: (k, round_n) of the weight, its tiles split over all vector cores
        for number, tiles in enumerate(shares):
            offset_bytes, start = number % plan.slots * slot_bytes, number * plan.round_n
            # Runs before the first store of the round, when its first tile is computed.
            between = hand_over if number < MAX_ROUNDS_AHEAD else hand_over_and_wait
            for place, tile in enumerate(tiles):
                # (k, n) goes to (k, n - start), (n, k) to (n - start, k).
                row, column = (0, start) if ring.k_is_first else (start, 0)
                at = tile.row - row, tile.column - column
                before_store = between if number and place == 0 else None
                yield dequantiser.call(tile, ring, *at, offset_bytes, before_store)
            if number and not tiles:
                yield (between,)
        yield (hand_over,)

    return CoreSteps.of_calls(core, cores, calls)


def _cube(spec: DeviceSpec, p: Problem, plan: CustomPlan) -> CoreSteps:
    """The program of cube cores: x times each round's columns, a base tile at a time."""
    core, f, base, quant = CubeCore(OP, spec), p.traits, plan.base, p.quant_scale
    rows, columns = (f.k, f.m) if f.trans_x else (f.m, f.k)
    x, ring = GmMatrix("x", p.x.element, rows, columns, f.trans_x), _ring_slot(p, plan)
    bias_dtype = None if p.bias is None else p.bias.element
    cube = Matmul(core, base, x, ring, f.k, bias=bias_dtype)
    scales = None if quant is None else ScaleTable(core, base.n)
    words = None if quant is None else GmView.vector(quant.name, UINT64, quant.spec.size)
    of_all = words if words is not None and words.columns == 1 else None

    def begin() -> None:
        if scales is not None and of_all is not None:
            scales.load(of_all)

    def tile(
        _x: GmTile, _weight: GmTile, output: GmView, bias: GmView | None, scale: GmView | None
    ) -> None:
        """`output = x @ weight + bias`, (m, k) @ (k, n), scaled to int8 with a quant_scale."""
        # (m, k) @ (k, n) of the ring's slot, fp32 sums that start from the bias or from zero
        sums = cube.multiply(output.rows, output.columns, f.k, bias=bias)
        if scales is None:
            cube.fixpipe(output, sums)
        else:
            loaded = scales.loaded(1) if scale is None else scales.load(scale)
            cube.fixpipe(output, sums, "qf322b8", loaded)

    # Position in the grid (cores_m, cores_n): whole base tiles along m, one along n a round.
    down = ceil_div(ceil_div(f.m, base.m), plan.cores_m)
    number, group, row = np.mgrid[: plan.rounds, : plan.block_dim, :down].reshape(3, -1)
    top = (group // plan.cores_n * down + row) * base.m
    column = number * plan.round_n + group % plan.cores_n * base.n
    is_inside = (top < f.m) & (column < f.n)
    number, group, top, column = (each[is_inside] for each in (number, group, top, column))
    output = GmViews.of(p.output_view, top, column, base.m, base.n)
    weight = ring.tiles(column - number * plan.round_n, output.columns)
    slot = number % plan.slots * _slot_bytes(p, plan)
    of_columns = (p.column_view(p.bias), None if of_all else words)
    arguments = (
        x.tiles(top, output.rows),
        replace(weight, offset_bytes=weight.offset_bytes + slot),
        output,
        *(view and GmViews.of(view, 0, column, 1, base.n) for view in of_columns),
    )
    # Every cube core takes part in all rounds, even with nothing to multiply: all wait for all.
    every, cores = np.mgrid[: plan.rounds, : plan.block_dim].reshape(2, -1)
    wait = partial(core.cross_core_wait_flag, "group", "mte2", FILLED)
    release = partial(sync_all, core, "fixpipe", "fixpipe", CUBES_DONE, READ)
    with_rows = np.unique(group)
    steps = (
        Step(begin, (), with_rows, 0 * with_rows - 1),
        Step(wait, (), cores, 3 * every),
        Step(tile, arguments, group, 3 * number + 1),
        Step(release, (), cores, 3 * every + 2),
    )
    return CoreSteps(core, steps)
