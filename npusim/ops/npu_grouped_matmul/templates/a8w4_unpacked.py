"""The template a8w4_unpacked: int8 by int4 with few columns and many rows, as int8 by int8.

Vector cores write the weight as int8 and its scales as floats and wait for each other; the rest is
like the template dequantise, with one vector core per cube core. The scales for a bfloat16 output
are rounded down to that type (ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel,
grouped_matmul_antiquant_a8w4_pre.h). Assumed: that the bias, which the digits of other templates
need, is not added to products that do not need it, that all vector cores share the weight evenly,
and how much of it each processes at a time.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, INT8, UINT64
from npusim.data.layout import c0
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    Binding,
    Block,
    CubeCore,
    GmView,
    GmViews,
    Step,
    VectorCore,
    share,
    sync_all,
)
from npusim.kernel.launch import launch_mixed
from npusim.kernel.steps import Integers, tiles
from npusim.ops.npu_grouped_matmul.parts import ONCE, bound
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.support import Types
from npusim.ops.npu_grouped_matmul.templates import dequantise
from npusim.ops.npu_grouped_matmul.templates.dequantise import DequantisePlan
from npusim.ops.npu_grouped_matmul.tiling import bound_ring, reason

UNPACKED, ALL_VECTORS = 2, 3
"""Flags: the weight is in global memory; all vector cores wait for each other."""
BYTES, SCALES = "unpacked", "scales"
"""Workspaces."""
PACKED, WORDS = "packed", "words"
"""The caller's weight and scale; *weight* and *scale* are the workspaces."""
KINDS = {PACKED: INT4, BYTES: INT8}
CHUNK = 16384
"""Elements that are unpacked at a time."""
WORDS_AT_ONCE = 2048


def tile(spec: DeviceSpec, p: Problem) -> DequantisePlan:
    """Split like the template dequantise for int8 by int8, with one vector core per cube core."""
    q = _as_int8(p)
    k, n = p.weight_shape(0)
    plan = replace(
        dequantise.tile(spec, q), template="a8w4_unpacked", reason=reason(p), vector_cores=1
    )
    of_scales = q.scale[0].element.nbytes(p.experts * n)
    workspaces = {BYTES: INT8.nbytes(p.experts * k * n), SCALES: of_scales}
    return replace(plan, workspaces=plan.workspaces | workspaces)


def _as_int8(p: Problem) -> Problem:
    """The call that *p* becomes with the unpacked weight."""
    (weight,), (k, n) = p.weight, p.weight_shape(0)
    kind = "bfloat16" if p.output.element is BFLOAT16 else "float32"
    spec = TensorSpec((p.experts, k, n), "int8", weight.spec.layout)
    return replace(
        p,
        types=Types(INT8, INT8, p.output.element, "dequantise"),
        weight=(Operand("weight", spec),),
        scale=(Operand("scale", TensorSpec((p.experts, n), kind)),),
        bias=(),
    )


def build(spec: DeviceSpec, p: Problem, plan: DequantisePlan) -> tuple[Block, ...]:
    """Build a cube core and a vector core in each group."""
    q, vector_core = _as_int8(p), VectorCore("npu_grouped_matmul", spec)
    cube_core = CubeCore("npu_grouped_matmul", spec)
    cube = dequantise.cube_steps(cube_core, q, plan)
    wait = partial(cube_core.cross_core_wait_flag, "group", "mte2", UNPACKED)
    vector = dequantise.vector_steps(vector_core, q, plan)
    vector_core.reset_buffers()
    unpacked = _unpacked(vector_core, p, q, plan.block_dim)
    names = bound(p) | {
        PACKED: Binding("weight"),
        WORDS: Binding("scale"),
        "weight": Binding(BYTES),
        ONCE: Binding(BYTES, is_cached=False),
        "scale": Binding(SCALES),
        BYTES: Binding(BYTES),
        SCALES: Binding(SCALES),
    }
    return launch_mixed(
        plan.block_dim,
        replace(cube, begin=wait),
        replace(vector, steps=(*unpacked, *vector.steps)),
        lambda core: names | bound_ring(plan, core),
        plan.vector_cores,
    )


def _unpacked(core: VectorCore, p: Problem, q: Problem, cores: int) -> tuple[Step, ...]:
    """Let vector cores write the weight and its scales first, and wait for each other."""
    dtype = q.scale[0].element
    packed_in, half = core.vecin(INT4, CHUNK, depth=2), core.tile(FLOAT16, CHUNK)
    out = core.vecout(INT8, CHUNK, depth=2)
    words_in, wide = core.vecin(UINT64, WORDS_AT_ONCE), core.tile(FLOAT32, WORDS_AT_ONCE)
    # Space for float32, whatever their type is.
    scales_out = core.vecout(dtype, FLOAT32.bits // dtype.bits * WORDS_AT_ONCE)

    def unpack(packed: GmView, *unpacked: GmView) -> None:
        """Unpack *packed* int4 `(rows, columns)` to *unpacked* int8, adjacent pieces."""
        count = packed.rows * packed.columns
        # Rows of packed elements are contiguous, in memory as in the buffer.
        flat = GmView.vector(packed.name, INT4, count).shifted_to(packed.offset_bytes)
        loaded = core.load_rows(packed_in, flat)
        core.cast(half[:count], loaded[:count], "none")
        packed_in.free(loaded)
        result = out.alloc()
        core.cast(result[:count], half[:count], "none")
        out.enque(result)
        result, pitch = out.deque(), packed.columns
        for number, view in enumerate(unpacked):
            extent = (view.rows - 1) * pitch + view.columns
            part = result.at(number * view.columns, extent)
            core.data_copy(view.operand, part, pitch if view.rows > 1 else 0)
        out.free(result)

    def write_scales(words: GmView, scales: GmView) -> None:
        """Write the lower halves of *words* `(n,)` as floats."""
        count = words.columns
        loaded, result = core.load_rows(words_in, words), scales_out.alloc()
        floats = result[:count] if dtype is FLOAT32 else wide[:count]
        core.gather_mask("even", floats, loaded.as_dtype(FLOAT32, 2 * count))
        words_in.free(loaded)
        if dtype is not FLOAT32:
            core.cast(result[:count], floats, "floor")
        core.store_rows(scales_out, result, scales)

    def wait() -> None:
        core.end_stage()
        sync_all(core, "mte3", "mte2", ALL_VECTORS, UNPACKED)

    scales = [
        tiles(GmView.vector(name, kind, p.experts * p.weight_shape(0)[1]), 1, WORDS_AT_ONCE)
        for name, kind in ((WORDS, UINT64), (SCALES, dtype))
    ]
    number, every = np.arange(len(scales[0])), np.arange(cores)
    owner, pieces = _pieces(p, cores)
    return (
        Step(unpack, pieces, owner, np.full_like(owner, -3)),
        Step(write_scales, tuple(scales), number % cores, np.full_like(number, -2)),
        Step(wait, (), every, np.full_like(every, -1)),
    )


def _pieces(p: Problem, cores: int) -> tuple[Integers, tuple[GmViews, ...]]:
    """The core of each piece of the weight, its packed source and its unpacked halves."""
    (k, n), narrow = p.weight_shape(0), c0(INT8)
    if not p.is_nz:
        # All of it is one row.
        rows = [GmView.vector(x, kind, p.experts * k * n) for x, kind in KINDS.items()]
        both = tuple(tiles(row, 1, CHUNK) for row in rows)
        return np.arange(len(both[0])) % cores, both
    # Columns of fractals (k, 64), each of which becomes two of (k, 32), far apart.
    width = c0(INT4)
    blocks = p.experts * n // width
    block, row = np.mgrid[:blocks, : k : CHUNK // width].reshape(2, -1)
    shares = [len(share(blocks, cores, core)) for core in range(cores)]
    first, rows = 2 * block * k + row, np.minimum(CHUNK // width, k - row)
    packed = GmView.of(PACKED, INT4, blocks * k, width)
    unpacked = GmView.of(BYTES, INT8, 2 * blocks * k, narrow)
    return np.repeat(np.arange(cores), shares)[block], (
        GmViews.of(packed, block * k + row, 0, rows, width),
        *(GmViews.of(unpacked, top, 0, rows, narrow) for top in (first, first + k)),
    )
