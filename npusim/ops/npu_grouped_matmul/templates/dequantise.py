"""The template dequantise: int8 matrices whose sums vector cores convert to floats.

Cube cores write int32 tiles into a ring of four slots, and the vector cores of their groups read
them from there, some rows at a time (ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel,
grouped_matmul_quant_mixcore.h; asc-devkit@82b89a1, impl/adv_api/detail/quantization/dequant). Each
cube core has one vector core, and two only for the long activation or if tuning_config announces
many rows for each expert (op_host/op_tiling/grouped_matmul_tiling.cpp).

==================  ===============================================================================
Brcb                the scales of the rows, eight copies of each
Adds, Cast          the scales of the columns to fp32
Cast                the sums to fp32
Mul                 by the scales of the columns, 64 columns of all rows at a time
Adds 0              with row scales or an activation: makes a zero positive
Mul                 by the scales of the rows
Add                 a bfloat16 bias
activation          see `ACTIVATIONS`
Cast                to the output's type, ties to even
==================  ===============================================================================

Every buffer that is loaded or stored is double. Two vector cores alternate over the chunks, through
all tiles, the second core first. Rows are padded to 64 columns; the vendor's are padded to 16
(assumed to take as long).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT32, INT32
from npusim.data.integers import align_down, align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Local
from npusim.kernel import (
    FLOATS_PER_BLOCK,
    Block,
    CubeCore,
    GmTile,
    GmView,
    Plane,
    VectorCore,
    by_column,
    by_row,
    pieces,
    spread_rows,
)
from npusim.kernel.core import TileQueue
from npusim.kernel.launch import CoreSteps, launch_mixed
from npusim.kernel.plane import REPEAT
from npusim.ops.npu_grouped_matmul import tiling
from npusim.ops.npu_grouped_matmul.parts import (
    Matrices,
    Parts,
    bound,
    matmul_of,
    read_list,
    staggered,
)
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.support import FAST_GELU, GELU_TANH, RELU, SILU
from npusim.ops.npu_grouped_matmul.tiling import FILLED, READ, RING, MixedPlan

MANY_ROWS = 128
"""Rows for each expert, by tuning_config, from which on both vector cores may work."""
SHORT_K, LONG_K = 1024, 2048
"""They do so if k is at most the former or at least the latter."""
BYTES_EACH = {
    ("float16", False): 24,
    ("bfloat16", False): 20,
    ("float16", True): 28,
    ("bfloat16", True): 28,
}
"""Type of the output, whether row scales or an activation follow -> bytes of the unified buffer
that the vendor counts for an element."""
CHUNK = 2048
"""Elements of a chunk are a multiple of this."""
STATIC_K = 8192
"""Up to this k plain calls run a variant whose tiles are compile-time constants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DequantisePlan(MixedPlan):
    """How the cores of a group work together."""

    vector_cores: int
    unit_flag: bool
    """Whether the fixpipe follows the cube by unit flags."""
    staggers_k: bool
    """Whether cores start at different pieces of k."""


def tile(spec: DeviceSpec, p: Problem) -> DequantisePlan:
    """Base tiles, and the chunks in which vector cores process them."""
    base = tiling.int8_tile(spec, p)
    vector_cores = _vector_cores(p)
    k = int(p.groups.k.max())
    is_plain = not p.bias and p.act_type == 0 and vector_cores == 1
    is_static = base.m == MANY_ROWS and k <= STATIC_K and is_plain
    plan = DequantisePlan(
        block_dim=tiling.cores_of(spec, p),
        template="dequantise",
        reason=tiling.reason(p),
        is_mix=True,
        tile=base,
        single_n=tiling.single_columns(p, base, tiling.cores_of(spec, p)),
        vector_cores=vector_cores,
        chunk_rows=_chunk_rows(spec, p, base.m, base.n),
        unit_flag=is_static or p.is_nz,
        staggers_k=p.is_nz and not is_static,
    )
    return replace(plan, workspaces={"workspace": tiling.ring_bytes(plan)})


def _vector_cores(p: Problem) -> int:
    """The number of vector cores for each cube core."""
    k = p.x_shape(0)[1]
    has_many = bool(p.per_token_scale and p.tuning and p.tuning[0] >= MANY_ROWS)
    return 2 if p.act_type == GELU_TANH or (has_many and not SHORT_K < k < LONG_K) else 1


def _chunk_rows(spec: DeviceSpec, p: Problem, rows: int, columns: int) -> int:
    """Rows of a tile that fit into the unified buffer, by the vendor's bytes for an element."""
    scale = p.scale[0].element
    room = (spec.cores["aiv"].ub_bytes or 0) - 2 * (scale.nbytes(columns) + 4 * rows)
    passes = bool(p.per_token_scale or p.act_type)
    each_bytes = BYTES_EACH[p.output.dtype, passes]
    return max(1, align_down(room // each_bytes, CHUNK) // columns)


def build(spec: DeviceSpec, p: Problem, plan: DequantisePlan) -> tuple[Block, ...]:
    """Build a cube core and one or two vector cores in each group."""
    names = bound(p)
    return launch_mixed(
        plan.block_dim,
        cube_steps(CubeCore("npu_grouped_matmul", spec), p, plan),
        vector_steps(VectorCore("npu_grouped_matmul", spec), p, plan),
        lambda core: names | tiling.bound_ring(plan, core),
        plan.vector_cores,
    )


def _parts(p: Problem, plan: DequantisePlan) -> Parts:
    """The base tiles of blocks."""
    return Parts.dealt(p, plan.tile.m, plan.single_n, plan.block_dim, plan.tile.n)


def cube_steps(core: CubeCore, p: Problem, plan: DequantisePlan) -> CoreSteps:
    """Let cube cores write int32 sums to the ring."""
    is_start = bool(p.bias) and p.bias[0].element is INT32
    bias_type = INT32 if is_start else None
    cube = matmul_of(core, p, plan.tile, bias=bias_type, unit_flag=plan.unit_flag)

    def tile(
        x: GmTile,
        weight: GmTile,
        matrices: Matrices,
        place: GmView,
        first_k: int,
        bias: GmView | None,
        is_reused: bool,
    ) -> None:
        # (rows, k) @ (k, columns), int32 sums
        cube.use(*matrices)
        sums = cube.multiply(x.extent, weight.extent, x.k, bias=bias, first_k=first_k)
        if is_reused:
            # All slots have been filled: this one must have been read.
            core.cross_core_wait_flag("group", "fixpipe", READ)
        cube.fixpipe(tiling.laid_out(place, x.extent, weight.extent), sums)
        core.cross_core_set_flag("group", "fixpipe", FILLED)

    def arguments(own: Parts) -> tuple[Any, ...]:
        first_k = staggered(cube, own) if plan.staggers_k else 0
        bias = own.of_columns(p.bias) if is_start else None
        place = tiling.places_of(plan, own.turn)
        return own.x, own.weight, own.matrices, place, first_k, bias, own.turn >= RING

    parts = _parts(p, plan)
    read = read_list(p, core, plan.block_dim, parts)
    return CoreSteps(core, (read, *parts.steps(tile, arguments)))


def vector_steps(core: VectorCore, p: Problem, plan: DequantisePlan) -> CoreSteps:
    """Let vector cores compute the output from the sums."""
    epilogue, vector_cores = _Epilogue(core, p, plan), plan.vector_cores
    parts = _parts(p, plan)
    # Chunks of the tiles before: of two cores, the one whose turn is 1 takes the next chunk.
    chunks = -(-parts.rows // plan.chunk_rows)
    before = np.cumsum(chunks) - chunks
    before[parts.number] = before - before[np.searchsorted(parts.core, parts.core)]
    parts = parts.repeated(vector_cores)

    def arguments(own: Parts) -> tuple[Any, ...]:
        return (
            tiling.places_of(plan, own.turn),
            own.output,
            own.of_columns(p.scale),
            own.of_rows(p.per_token_scale),
            own.of_columns(p.bias) if epilogue.is_late else None,
            (own.core + before[own.number]) % vector_cores,
        )

    read = read_list(p, core, vector_cores * plan.block_dim, parts)
    return CoreSteps(core, (read, *parts.steps(epilogue.tile, arguments)))


class _Epilogue:
    """The buffers of a vector core, and the epilogue of a tile of sums."""

    def __init__(self, core: VectorCore, p: Problem, plan: DequantisePlan) -> None:
        self.core, self.p, self.plan = core, p, plan
        width, scale = align_up(plan.tile.n, REPEAT), p.scale[0].element
        size = plan.chunk_rows * width
        self.is_late = bool(p.bias) and p.bias[0].element is not INT32
        """Whether a bias is added here, after the scales; it is loaded after them."""
        behind = BFLOAT16.nbytes(width) * 8 // scale.bits if self.is_late else 0
        self.columns_in = core.vecin(scale, width + behind, depth=2)
        self.widened = core.tile(FLOAT32, width)
        self.tokens_in: TileQueue | None = None
        if p.per_token_scale:
            self.tokens_in = core.vecin(FLOAT32, align_up(plan.tile.m, FLOATS_PER_BLOCK), depth=2)
            padded = align_up(plan.chunk_rows, FLOATS_PER_BLOCK)
            self.token_blocks = core.tile(FLOAT32, FLOATS_PER_BLOCK * padded)
        self.sums_in = core.vecin(INT32, size, depth=2)
        self.out = core.vecout(p.output.element, size, depth=2)
        planes = 1 + (p.act_type != 0) + (p.act_type == GELU_TANH)
        self.planes = [core.tile(FLOAT32, size) for _ in range(planes)]

    def tile(
        self,
        place: GmView,
        output: GmView,
        scale: GmView,
        token: GmView | None,
        bias: GmView | None,
        turn: int,
    ) -> None:
        """Compute *output* `(rows, columns)` from the sums in *place* as soon as they are there.

        Of two vector cores the one with *turn* 1 starts.
        """
        core, sums = self.core, tiling.laid_out(place, output.rows, output.columns)
        views = [scale] if bias is None else [scale, bias]
        columns = core.load_rows(self.columns_in, *views).as_dtype(scale.dtype)
        tokens = None
        if token is not None and self.tokens_in is not None:
            tokens = core.load_rows(self.tokens_in, token)
        core.cross_core_wait_flag("group", "mte2", FILLED)
        for number, (row, rows) in enumerate(pieces(output.rows, self.plan.chunk_rows)):
            if self.plan.vector_cores == 1 or number % 2 != turn:
                here = slice(row, row + rows)
                self._rows(sums[here, :], output[here, :], row, columns, tokens)
        core.cross_core_set_flag("group", "mte2", READ)
        self.columns_in.free(columns)
        if tokens is not None and self.tokens_in is not None:
            self.tokens_in.free(tokens)

    def _rows(
        self, sums: GmView, output: GmView, row: int, columns: Local, tokens: Local | None
    ) -> None:
        """Compute rows of a tile, `(rows, columns)`, starting at its row *row*.

        *columns* holds the column scales followed by the bias, *tokens* the scales of all
        rows of the tile.
        """
        core, p = self.core, self.p
        rows, width = output.rows, align_up(output.columns, REPEAT)
        blocks: Local | None = None
        if tokens is not None:
            # (rows,) -> (rows, 8)
            padded = align_up(rows, FLOATS_PER_BLOCK)
            blocks = self.token_blocks[: FLOATS_PER_BLOCK * padded]
            spread_rows(core, blocks, tokens.at(row, padded))
        factors, plane = self.widened[:width], Plane(self.planes[0], rows, width)
        if columns.dtype is FLOAT32:
            core.add(factors, columns[:width], 0.0)
        else:
            core.cast(factors, columns[:width])
        loaded = core.load_rows(self.sums_in, sums, pitch=width)
        # (rows, columns_padded), int32 -> float32
        core.cast(plane.whole(), loaded[: rows * width])
        self.sums_in.free(loaded)
        by_row(core, "mul", plane, factors)
        if blocks is not None or p.act_type:
            core.add(plane.whole(), plane.whole(), 0.0)
        if blocks is not None:
            by_column(core, "mul", plane, blocks)
        if self.is_late:
            behind_bytes = align_up(columns.dtype.nbytes(output.columns), BLOCK_BYTES)
            bias = columns.as_dtype(BFLOAT16).at(behind_bytes * 8 // BFLOAT16.bits, width)
            core.cast(factors, bias)
            by_row(core, "add", plane, factors)
        if p.act_type:
            work, *more = (Plane(each, rows, width).whole() for each in self.planes[1:])
            ACTIVATIONS[p.act_type](core, plane.whole(), work, more[0] if more else work)
        result = self.out.alloc()
        # (rows, columns_padded) fp32 -> the output's type, ties to even
        core.cast(result[: rows * width], plane.whole(), "rint")
        core.store_rows(self.out, result, output, pitch=width)


# ---- activations: asc-devkit@82b89a1 impl/adv_api/detail/activation ----

FAST = -1.702
CUBIC, SLOPE = 0.044715, 1.5957691
"""Factors of the tanh form: the second is 2 x the square root of 2 / pi."""
Writer = Callable[[VectorCore, Local, Local, Local], None]
"""`write(core, values, work, more)` replaces *values* by their activation; two buffers of its size
are overwritten. Each operation rounds to nearest; exp and the division are taken to round once.
"""


def _relu(core: VectorCore, values: Local, _: Local, __: Local) -> None:
    core.relu(values, values)


def _swish(factor: float) -> Writer:
    def write(core: VectorCore, values: Local, work: Local, _: Local) -> None:
        """`x / (exp(x * factor) + 1)`."""
        core.mul(work, values, factor)
        _divide(core, values, work)

    return write


def _divide(core: VectorCore, values: Local, work: Local) -> None:
    """`values = values / (exp(work) + 1)`."""
    core.exp(work, work)
    core.add(work, work, 1.0)
    core.div(values, values, work)


def _gelu_tanh(core: VectorCore, values: Local, work: Local, more: Local) -> None:
    """`exp(min(y, 0)) * (x / (exp(-|y|) + 1))`, y = (x + 0.044715 x^3) * 1.5957691."""
    core.mul(work, values, values)
    core.mul(work, values, work)
    core.mul(work, work, CUBIC)
    core.add(work, values, work)
    core.mul(work, work, SLOPE)
    core.min(more, work, 0.0)
    core.exp(more, more)
    core.abs(work, work)
    core.mul(work, work, -1.0)
    _divide(core, values, work)
    core.mul(values, values, more)


ACTIVATIONS: dict[int, Writer] = {
    RELU: _relu,
    GELU_TANH: _gelu_tanh,
    FAST_GELU: _swish(FAST),
    SILU: _swish(-1.0),
}
"""act_type -> its writer."""
