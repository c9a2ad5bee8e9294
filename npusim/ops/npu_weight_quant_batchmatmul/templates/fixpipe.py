"""The fixpipe template: the cube also dequantises the weight, so cube cores work alone.

Strips of 32 columns of the weight, 256 of k at a time, go through the cube twice:

.. code-block:: text

    int8 (k, 32) @ identity (32, 32) + int32 offset (32,)    in L0C: weight + offset, exactly
    times scale (32,)                                        by the fixpipe to fp16 in L1 (DEQF16)
    x (m, k) @ that (k, n) + bias (n,)                       in L0C, by the fixpipe to fp16

The strips of the next 256 of k are computed before the product of this one, so that the fixpipe
works in parallel with the cube (ops-nn@e5c3fa9
matmul/weight_quant_batch_matmul_v2/op_kernel/fixpipe).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from npusim.data.dtypes import FLOAT16, INT8, INT32, UINT64, DType
from npusim.data.errors import Code, OpError
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import LoadData, Local
from npusim.kernel.cube_core import BiasTable, CubeCore, ScaleTable
from npusim.kernel.matmul import BaseTile, Matmul
from npusim.kernel.matrices import GmMatrix, GmTile, L1Matrix
from npusim.kernel.program import Block
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Step
from npusim.kernel.views import GmView
from npusim.ops._dequantised_weight import MatrixTile, tile_view
from npusim.ops.npu_weight_quant_batchmatmul.problem import OP, Plan, Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates import arguments_of, rectangles

STRIP = 32
"""Columns of the weight that go through the cube at a time: one fractal of int8."""
LOADED_K = 512
DEQUANTISED_K = 256
"""k of the weight that is loaded into L1 at a time, and that is dequantised at a time."""
MAX_N = 128
RESIDENT_BYTES = 250 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FixpipePlan(Plan):
    """A grid of cores; each computes a rectangle of the output."""

    core_m: int
    core_n: int
    base_n: int
    base_k: int
    """k of a piece in L0A and L0B."""
    keeps_x: bool
    """Whether the rows of x of a core stay in L1 for all of k."""


def tile(spec: DeviceSpec, p: Problem) -> FixpipePlan:
    """Split like ops-nn@e5c3fa9, tiling_fixpipe.cpp; *base_k* is assumed."""
    f, cores = p.traits, spec.cores["aic"].count
    core_n = 16 if f.n <= 16 * cores else align_up(ceil_div(f.n, cores), STRIP)
    cores_n = ceil_div(f.n, core_n)
    core_m = align_up(ceil_div(f.m, cores // cores_n), FRACTAL_ROWS)
    base_n = min(core_n, MAX_N)
    return FixpipePlan(
        **p.chosen,
        block_dim=cores_n * ceil_div(f.m, core_m),
        core_m=core_m,
        core_n=core_n,
        base_n=base_n,
        base_k=_base_k(spec, core_m, base_n),
        keeps_x=FLOAT16.nbytes(core_m * f.k) <= RESIDENT_BYTES,
    )


def _base_k(spec: DeviceSpec, m: int, n: int) -> int:
    """The largest part of 256 for which L0 holds two pieces plus the strips and the identity."""
    core = spec.cores["aic"]
    # In addition to two strips (256, 32) of int8 in L0A, and the identity (32, 32) in L0B.
    left = (core.l0a_bytes or 0) - 2 * DEQUANTISED_K * STRIP
    right = (core.l0b_bytes or 0) - STRIP * STRIP
    for k in (256, 128, 64, 32, 16):
        if 4 * m * k <= left and 4 * n * k <= right:
            return k
    raise OpError(
        Code.UNSUPPORTED,
        f"{OP}: its tiles of {m} x 16 and 16 x {n} must fit twice into L0A and L0B of {spec.name}, "
        f"of which {left} and {right} bytes are left next to weights, not need more; give the chip "
        f"larger ones",
    )


def build(spec: DeviceSpec, p: Problem, plan: FixpipePlan) -> tuple[Block, ...]:
    """All base tiles of a core have the same rows."""
    core, f = CubeCore(plan.template, spec, alone=True), p.traits
    x, weight = GmMatrix("x", FLOAT16, f.m, f.k, k_is_first=False), p.gm_weight
    keep: Literal["a"] | None = "a" if plan.keeps_x else None
    steps_a, steps_b = (k // plan.base_k for k in (LOADED_K, DEQUANTISED_K))
    base = BaseTile(plan.core_m, plan.base_n, plan.base_k, steps_a, steps_b, keep=keep)
    feed = _DequantisedFeed(core, weight, plan.base_n)
    cube = Matmul(core, base, x, feed, f.k)
    # Two tables of vectors: the strips start from the offset, the product from the bias.
    offsets = BiasTable(core, plan.base_n, INT32) if f.has_offset else None
    scales = ScaleTable(core, plan.base_n)
    biases = BiasTable(core, plan.base_n, FLOAT16) if f.has_bias else None

    def multiply(
        x: GmTile,
        _weight: GmTile,
        output: GmView,
        scale: GmView,
        offset: GmView | None,
        bias: GmView | None,
    ) -> None:
        """`output = x @ weight + bias`, (m, k) @ (k, n), the weight dequantised while loading.

        The feeds load x and the weight, starting at these tiles.
        """
        # (n,) 64-bit scales in the fixpipe buffer, (n,) int32 offsets in the bias table
        feed.scale = scales.load(scale)
        feed.offset = offsets.take(offset) if offsets and offset else None
        start = biases.take(bias) if biases and bias else None
        # (m, k) fp16 @ (k, n) fp16: the feed dequantises the weight piece by piece
        sums = cube.multiply(output.rows, output.columns, x.k, bias=start)
        if offsets and feed.offset:
            offsets.drop(feed.offset)
        if biases and start:
            biases.drop(start)
        # (n / 16, m, 16) fp32 in L0C -> (m, n) fp16
        cube.fixpipe(output, sums)

    tiles = rectangles((f.m, f.n), (plan.core_m, plan.core_n), (plan.core_m, plan.base_n))
    cores, first = np.unique(tiles.core, return_index=True)
    kept = x.tiles(tiles.row[first], tiles.rows[first])
    scale = GmView.vector("antiquant_scale", UINT64, f.n)
    vectors = scale, p.column_view(p.antiquant_offset), p.column_view(p.bias)
    arguments, order = arguments_of(p, x, weight, tiles, *vectors), np.arange(tiles.core.size)
    bound = plan.bindings(p)
    return core.launch(
        *[Step(cube.fetch, (kept,), cores, cores * 0)] * plan.keeps_x,
        Step(feed.load_identity, (), cores, cores * 0),
        Step(multiply, arguments, tiles.core, order + 1),
        bound=lambda _: bound,
    )


class _DequantisedFeed:
    """The fp16 weight `(k, n)` in L1, dequantised from int8 by the cube and the fixpipe."""

    producer: Pipe = "fixpipe"
    k_is_first = True
    dtype: DType = FLOAT16

    def __init__(self, core: CubeCore, weight: GmMatrix, n: int) -> None:
        """Allocate space for *n* columns of *weight*, which is stored as `(n, k)`."""
        self.core, self.weight, self.rows = core, weight, align_up(n, STRIP)
        self.int8 = core.l1_queue(weight, self.rows, min(LOADED_K, weight.columns))
        self.strips = core.tiles(INT8, DEQUANTISED_K * STRIP, "mte1", "cube", 2, "l0a")
        self.identity = core.tile(INT8, STRIP * STRIP, "l0b")
        self.sums = core.l0c_queue(INT32, DEQUANTISED_K, STRIP, 2)
        self.loaded: Local | None = None
        self.scale: Local | None = None
        """A value for each column, in the fixpipe buffer."""
        self.offset: Local | None = None
        """A value for each column, in the bias table."""

    def load_identity(self) -> None:
        """Load the identity `(32, 32)` into L0B, where it stays."""
        # (32, 32) int8 passes through a tile of the weight in L1.
        tile = self._load(GmView.of("identity", INT8, STRIP, STRIP), STRIP)
        self.core.load_data(self.identity, L1Matrix(tile, STRIP, STRIP), STRIP, STRIP)
        self.int8.free(tile)

    def load(self, tile: Local, k: int, count: int, extent: int) -> None:
        """Write positions [k, k + count) of *extent* columns of the product into *tile*."""
        # 512 of k are loaded at once, and dequantised in two parts of 256.
        if k % LOADED_K == 0:
            piece = tile_view(self.weight, MatrixTile(0, k, extent, LOADED_K))
            self.loaded = self._load(piece, self.rows)
        assert self.loaded is not None
        # (columns, count) int8 of each strip -> (count, columns) fp16
        for column, columns in pieces(extent, STRIP):
            part = tile.at(column * count, columns * count)
            self._dequantise(part, self.loaded, k % LOADED_K, count, column, columns)
        # The last part of these 512 has been read.
        if (k + count) % LOADED_K == 0 or k + count == self.weight.columns:
            self.int8.free(self.loaded)

    def _load(self, piece: GmView, rows: int) -> Local:
        """Load int8 *piece* into L1 as Nz with *rows* rows."""
        tile = self.int8.alloc()
        self.core.load_nd2nz(tile[: rows * piece.columns], piece, rows)
        self.int8.enque(tile)
        return self.int8.deque()[: rows * piece.columns]

    def _dequantise(
        self, out: Local, int8: Local, k: int, count: int, column: int, columns: int
    ) -> None:
        """Dequantise *count* of k of a strip, from *k* on within L1, into *out*."""
        core, left = self.core, self.strips.alloc()
        # (columns, count) int8 in L1 -> (count, columns) in L0A
        a = left[: count * STRIP]
        core.emit(LoadData(a, int8, self.rows, column, k, columns, count, transpose=True))
        self.strips.enque(left)
        left, sums = self.strips.deque(), self.sums.alloc()
        # In L0C int32: (count, columns) @ identity + offset (columns,)
        total, shape = sums[: count * columns], (count, columns, columns)
        if self.offset is None:
            core.mmad(total, a, self.identity, shape)
        else:
            core.mmad(total, a, self.identity, shape, "bias", self.offset.at(column, columns))
        self.strips.free(left)
        self.sums.enque(sums)
        sums = self.sums.deque()
        # (columns / 16, count, 16) int32 -> fp16 in L1
        assert self.scale is not None
        scale = self.scale.at(column, columns)
        core.fixpipe_to_l1(out, total, (count, columns), count, "deqf16", scale)
        self.sums.free(sums)
