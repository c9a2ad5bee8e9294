"""The programs that cores run for npu_quant_matmul.

If the fixpipe computes the output, cube cores work alone. With float scales or row scales, a cube
core writes int32 blocks into a workspace, alternating between two (in tbe_opt and tbe as many as a
row has), and its two vector cores compute the output of one while the next one is multiplied
(ops-nn@e5c3fa9, matmul/quant_batch_matmul_v3, quant_batch_matmul_v3_bf16_basic.h,
_pertoken_basic.h). In tbe the vector cores start it, see `messages`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from npusim.data.dtypes import INT32, UINT64, Array
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    AiCore,
    Binding,
    Block,
    CoreSteps,
    CubeCore,
    GmTile,
    GmView,
    Matmul,
    NdFeed,
    NdOut,
    Pieces,
    RowTable,
    ScaleTable,
    base_tile,
    bindings,
    launch_mixed,
    product_steps,
)
from npusim.kernel.blocks import columns_of, gm_matrix_a, gm_matrix_b, output_of
from npusim.kernel.launch import launch
from npusim.ops.npu_quant_matmul import msd, pergroup
from npusim.ops.npu_quant_matmul.check import Problem
from npusim.ops.npu_quant_matmul.epilogue import FILLED, READ, Epilogue, blocks_of, workspace_of
from npusim.ops.npu_quant_matmul.messages import message_to, places, receive_step
from npusim.ops.npu_quant_matmul.tiling import Plan


def build(spec: DeviceSpec, p: Problem, plan: Any) -> tuple[Block, ...]:
    """Build one block for each core, or three: a cube core and its two vector cores."""
    if p.form == "msd":
        return msd.build(spec, p, plan)
    if p.form == "pergroup":
        return pergroup.build(spec, p, plan)
    bound = {name: Binding(name) for name in p.names}
    bound["x2"] = Binding("x2", is_cached=not plan.cube.bypasses_l2(p.product))
    pieces = Pieces.of(plan.cube, p.product)
    if spec.arch == "2002":
        return _coupled_blocks(spec, p, plan, pieces, bound)
    if p.epilogue == "fixpipe":
        return _fixpipe_blocks(spec, p, plan, pieces, bound)

    def bound_in(group: int) -> dict[str, Binding]:
        """The bindings for a group: its workspace blocks, and the messages to its cube core."""
        views = [workspace_of(plan, group * plan.workspace_blocks)]
        views += [message_to(plan, group)] if plan.is_driven else []
        return bound | bindings(*views)

    cube, vector = _cube_steps(spec, p, plan, pieces), Epilogue(spec, p, plan).steps(pieces)
    return launch_mixed(plan.cube.cores, cube, vector, bound_in)


def _matmul(core: CubeCore, p: Problem, plan: Plan) -> Matmul:
    """The buffers of a cube core.

    ops-nn@e5c3fa9, quant_batch_matmul_v3_base.h: the configurations of the Matmul API. All stagger
    k; only kernels of cube cores alone use the unit flag.
    """
    return Matmul(
        *(core, base_tile(plan.cube), gm_matrix_a(p.product), gm_matrix_b(p.product), p.product.k),
        bias=None if p.start is None else INT32,
        unit_flag=p.epilogue == "fixpipe",
    )


def _first_k(cube: Matmul, p: Problem, plan: Plan, pieces: Pieces) -> Array:
    """The start along k of each piece on its core."""
    first = [cube.stagger(core, p.product.k) for core in range(plan.cube.cores)]
    return np.array(first)[pieces.core]


def _fixpipe_blocks(
    spec: DeviceSpec, p: Problem, plan: Plan, pieces: Pieces, bound: dict[str, Binding]
) -> tuple[Block, ...]:
    """The steps of cube cores alone, whose fixpipes compute the output."""
    core = CubeCore("npu_quant_matmul", spec)
    cube = _matmul(core, p, plan)
    table = None if p.scale is None else ScaleTable(core, plan.cube.base_n)

    def block(
        x1: GmTile,
        x2: GmTile,
        output: GmView,
        first_k: int,
        bias: GmView | None,
        scales: GmView | None,
    ) -> None:
        """Compute *output* `(rows, columns)`."""
        # (rows, k) @ (k, columns) -> int32 sums in L0C
        sums = cube.multiply(x1.extent, x2.extent, x1.k, bias=bias, first_k=first_k)
        words = None
        if table is not None:
            # (columns,) 64-bit scales in the fixpipe buffer, or the single one for all columns
            words = table.loaded(1) if scales is None else table.load(scales)
        cube.fixpipe(output, sums, p.mode, words)

    def begin() -> None:
        """Load the scale of all columns, if there is only one."""
        if table is not None and p.has_one_scale:
            table.load(GmView.vector("scale", UINT64, 1))

    arguments = (
        output_of(p.product, pieces, p.output.element),
        _first_k(cube, p, plan, pieces),
        columns_of(p.product, pieces, p.start),
        columns_of(p.product, pieces, None if p.has_one_scale else p.scale),
    )
    steps = product_steps(cube, p.product, pieces, block, *arguments)
    return launch(core, "aic", *steps, begin=begin, bound=lambda _: bound)


def _cube_steps(spec: DeviceSpec, p: Problem, plan: Plan, pieces: Pieces) -> CoreSteps:
    """The steps of cube cores that write int32 sums into their blocks of the workspace."""
    core = CubeCore("npu_quant_matmul", spec)
    cube = _matmul(core, p, plan)

    def block(
        x1: GmTile,
        x2: GmTile,
        place: GmView,
        first_k: int,
        bias: GmView | None,
        is_reused: bool,
    ) -> None:
        """Write the int32 sums to *place* `(rows, columns)` of the workspace."""
        sums = cube.multiply(x1.extent, x2.extent, x1.k, bias=bias, first_k=first_k)
        if is_reused:
            # Every block of the workspace has been filled: this one must have been read.
            core.cross_core_wait_flag("group", "fixpipe", READ)
        cube.fixpipe(place, sums)
        core.cross_core_set_flag("group", "fixpipe", FILLED)

    _, begins = places(plan, pieces)
    received = (receive_step(core, pieces, begins),) if plan.is_driven else ()
    arguments = (
        blocks_of(plan, pieces),
        _first_k(cube, p, plan, pieces),
        columns_of(p.product, pieces, p.start),
        (pieces.index >= plan.workspace_blocks) & (not plan.is_driven),
    )
    steps = product_steps(cube, p.product, pieces, block, *arguments, begins=begins)
    return CoreSteps(core, (*received, *steps))


def _coupled_blocks(
    spec: DeviceSpec, p: Problem, plan: Plan, pieces: Pieces, bound: dict[str, Binding]
) -> tuple[Block, ...]:
    """The steps of coupled cores, all of which start at k = 0."""
    core, tile = AiCore("npu_quant_matmul", spec), base_tile(plan.cube)
    a, b = NdFeed(core, gm_matrix_a(p.product)), gm_matrix_b(p.product)
    # There is a PIPE_M barrier before each Mmad of ops-nn@e5c3fa9, arch20/pp_matmul_kernel.h.
    in_turn = plan.template == "pp"
    cube = Matmul(core, tile, a, b, p.product.k, "vector", in_turn=in_turn)
    out = NdOut(core, tile.m, tile.n, p.output.element)
    row = None if p.start is None else RowTable(core, tile.n, INT32, INT32)
    words_in = core.vecin(UINT64, align_up(tile.n, 32))

    def block(x1: GmTile, x2: GmTile, output: GmView, bias: GmView | None, scale: GmView) -> None:
        """Compute *output* `(rows, columns)` from int32 sums, *bias* `(columns,)` and *scale*."""
        preload = None
        if bias is not None and row is not None:
            preload = partial(row.spread, bias, rows=align_up(output.rows, FRACTAL_ROWS))
        sums = cube.multiply(x1.extent, x2.extent, x1.k, preload=preload)
        words = core.load(words_in, scale)
        # One word, or one for each column: whole fractals of columns are read.
        count = 1 if p.has_one_scale else align_up(scale.columns, 32)
        # L0C (columns / 16, rows_padded, 16) int32 -> (rows, columns)
        out.store(output, sums, p.mode, words[:count])
        words_in.free(words)
        cube.free(sums)

    of_columns = columns_of(p.product, pieces, None if p.has_one_scale else p.scale)
    arguments = (
        output_of(p.product, pieces, p.output.element),
        columns_of(p.product, pieces, p.start),
        GmView.vector("scale", UINT64, 1) if of_columns is None else of_columns,
    )
    steps = product_steps(cube, p.product, pieces, block, *arguments)
    return launch(core, core.kind, *steps, bound=lambda _: bound)
