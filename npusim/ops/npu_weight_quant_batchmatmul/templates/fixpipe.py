"""The fixpipe template: the cube dequantises the weight, too, so cube cores work alone.

Strips of 32 columns of the weight, 256 of k at a time, go through the cube twice:

.. code-block:: text

    int8 (k, 32) @ identity (32, 32) + int32 offset (32,)    in L0C: weight + offset, exactly
    times scale (32,)                                        by the fixpipe to fp16 in L1 (DEQF16)
    x (m, k) @ that (k, n) + bias (n,)                       in L0C, by the fixpipe to fp16

The strips of the next 256 of k are computed before the product of this one, so that the fixpipe
works while the cube does (ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel/fixpipe).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, INT32, UINT64, DType
from npusim.data.errors import Code, OpError
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import Fixpipe, LoadData, LoadNd2Nz, Local, Mmad
from npusim.kernel.core import Core
from npusim.kernel.cube import BaseTile, CubeWriter, GmFeed, GmMatrix, GmTile, Tables, l1_bytes
from npusim.kernel.program import Block
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Step
from npusim.kernel.views import GmView
from npusim.ops._dequantised_weight import MatrixTile, tile_view
from npusim.ops.npu_weight_quant_batchmatmul.check import Problem
from npusim.ops.npu_weight_quant_batchmatmul.plan import (
    OP,
    Plan,
    bindings,
    chosen,
    gm_weight,
    output_view,
    rectangles,
    vector_view,
)

__all__ = ["FixpipePlan", "build", "tile"]

STRIP = 32
"""Columns of the weight that go through the cube at a time: one fractal of int8."""
LOADED_K = 512
DEQUANTISED_K = 256
"""k of the weight that is loaded into L1 at a time, and that is dequantised at a time."""
MAX_N = 128
RESIDENT_BYTES = 250 * 1024


@dataclass(frozen=True, slots=True)
class FixpipePlan(Plan):
    """A grid of cores; each makes a rectangle of the output."""

    core_m: int
    core_n: int
    base_n: int
    base_k: int
    """k of a piece in L0A and L0B."""
    keeps_x: bool
    """Whether all of k of a core's rows of x stays in L1."""


def tile(spec: DeviceSpec, p: Problem) -> FixpipePlan:
    """Split as ops-nn@e5c3fa9 does, tiling_fixpipe.cpp; *base_k* is assumed."""
    f, cores = p.traits, spec.cores["aic"].count
    core_n = 16 if f.n <= 16 * cores else align_up(ceil_div(f.n, cores), STRIP)
    cores_n = ceil_div(f.n, core_n)
    core_m = align_up(ceil_div(f.m, cores // cores_n), FRACTAL_ROWS)
    base_n = min(core_n, MAX_N)
    return FixpipePlan(
        **chosen(p),
        block_dim=cores_n * ceil_div(f.m, core_m),
        is_mix=False,
        workspaces={},
        core_m=core_m,
        core_n=core_n,
        base_n=base_n,
        base_k=_base_k(spec, core_m, base_n),
        keeps_x=FLOAT16.nbytes(core_m * f.k) <= RESIDENT_BYTES,
    )


def _base_k(spec: DeviceSpec, m: int, n: int) -> int:
    """The largest part of 256 of which L0 holds two pieces next to the strips and the identity."""
    core = spec.cores["aic"]
    # Next to two strips (256, 32) of int8 in L0A, and the identity (32, 32) in L0B.
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
    """Base tiles of a core are all of the same rows."""
    core, f = Core(plan.template, spec, "aic", alone=True), p.traits
    x, weight = GmMatrix("x", FLOAT16, f.m, f.k, k_is_first=False), gm_weight(p)
    keep: Literal["a"] | None = "a" if plan.keeps_x else None
    steps_a, steps_b = (k // plan.base_k for k in (LOADED_K, DEQUANTISED_K))
    base = BaseTile(plan.core_m, plan.base_n, plan.base_k, steps_a, steps_b, keep=keep)
    feed = _DequantisedFeed(core, weight, plan.base_n)
    writer = CubeWriter(core, base, GmFeed(core, x), feed, f.k)
    # Two tables: the strips begin with the offset, the product with the bias.
    strip_tables = Tables(core, plan.base_n, INT32 if f.has_offset else None, scale=True)
    bias_table = Tables(core, plan.base_n, FLOAT16 if f.has_bias else None)

    def multiply(
        x: GmTile,
        _weight: GmTile,
        output: GmView,
        scale: GmView,
        offset: GmView | None,
        bias: GmView | None,
    ) -> None:
        """`output = x @ weight + bias`, (m, k) @ (k, n), the weight dequantised on its way.

        The feeds load x and the weight, from where these tiles begin.
        """
        m, n = output.rows, output.columns
        # (n,) 64-bit scales in the fixpipe buffer, (n,) int32 offsets in the bias table
        feed.scale = strip_tables.take_scale(scale)
        feed.offset = None if offset is None else strip_tables.take_bias(offset)
        start = None if bias is None else bias_table.take_bias(bias)
        # (m, k) fp16 @ (k, n) fp16: the feed dequantises the weight piece by piece
        slot = writer.product(m, n, x.k, bias=start)
        strip_tables.drop_bias()
        bias_table.drop_bias()
        # (n / 16, m, 16) fp32 in L0C -> (m, n) fp16
        rows_padded = align_up(m, FRACTAL_ROWS)
        total = slot.of(FLOAT32, rows_padded * n)
        core.emit(Fixpipe(output.operand, total, m, n, rows_padded, FLOAT16, "cast"))
        writer.release(slot)

    shares = rectangles((f.m, f.n), (plan.core_m, plan.core_n), (plan.core_m, plan.base_n))
    first, cores = [share[0] for share in shares], np.arange(len(shares))
    kept = [x.tile(each.row, each.rows) for each in first]
    prepare = [
        *[Step(lambda x: writer.fetch(x.extent, x.k), (kept,), cores, cores * 0)] * plan.keeps_x,
        Step(feed.load_identity, (), cores, cores * 0),
    ]
    arguments = _arguments(p, x, weight, [each for share in shares for each in share])
    core_of = np.repeat(cores, [len(share) for share in shares])
    main = Step(multiply, arguments, core_of, np.arange(len(core_of)) + 1)
    bound = bindings(p, plan)
    return core.launch(*prepare, main, bound=lambda _: bound)


def _arguments(
    p: Problem, x: GmMatrix, weight: GmMatrix, tiles: list[MatrixTile]
) -> tuple[Any, ...]:
    """What `multiply` gets for each of *tiles* of the output."""
    output, bias = output_view(p), vector_view(p, p.bias)
    offset = vector_view(p, p.antiquant_offset)
    scale = GmView.vector("antiquant_scale", UINT64, p.traits.n)
    columns = [slice(each.column, each.column + each.columns) for each in tiles]
    return (
        [x.tile(each.row, each.rows) for each in tiles],
        [weight.tile(each.column, each.columns) for each in tiles],
        [
            output[each.row : each.row + each.rows, here]
            for each, here in zip(tiles, columns, strict=True)
        ],
        *(view and [view[:, here] for here in columns] for view in (scale, offset, bias)),
    )


class _DequantisedFeed:
    """The fp16 weight `(k, n)` in L1, dequantised from int8 by the cube and the fixpipe."""

    producer: Pipe = "fixpipe"
    k_is_first = True
    dtype: DType = FLOAT16

    def __init__(self, core: Core, weight: GmMatrix, n: int) -> None:
        """Claim room for *n* columns of *weight*, which is stored as `(n, k)`."""
        self.core, self.weight, self.rows = core, weight, align_up(n, STRIP)
        nbytes = l1_bytes(INT8, self.rows, min(LOADED_K, weight.columns), k_is_first=False)
        self.int8 = core.queue("l1", nbytes, "mte2", "mte1", 2)
        self.strips = core.queue("l0a", DEQUANTISED_K * STRIP, "mte1", "cube", 2)
        self.identity = core.tile(INT8, STRIP * STRIP, "l0b")
        nbytes = INT32.nbytes(DEQUANTISED_K * STRIP)
        self.sums = core.queue("l0c", nbytes, "cube", "fixpipe", 2)
        self.loaded: Slot | None = None
        self.scale: Local | None = None
        """A value a column, in the fixpipe buffer."""
        self.offset: Local | None = None
        """A value a column, in the bias table."""

    def load_identity(self) -> None:
        """Load the identity `(32, 32)` into L0B, where it stays."""
        slot = self.int8.alloc()
        # (32, 32) int8 goes through a slot of the weight in L1.
        matrix, identity = slot.of(INT8, STRIP * STRIP), GmView.of("identity", INT8, STRIP, STRIP)
        self.core.emit(LoadNd2Nz(matrix, identity.operand, STRIP))
        self.int8.enque(slot)
        slot = self.int8.deque()
        self.core.emit(LoadData(self.identity, matrix, STRIP, 0, 0, STRIP, STRIP))
        self.int8.free(slot)

    def load(self, slot: Slot, k: int, count: int, extent: int) -> None:
        """Write positions [k, k + count) of *extent* columns of the product into *slot*."""
        # 512 of k are loaded at once, and dequantised in two parts of 256.
        if k % LOADED_K == 0:
            self.loaded = self._load_int8(k, extent)
        assert self.loaded is not None
        loaded_k = min(LOADED_K, self.weight.columns - k // LOADED_K * LOADED_K)
        source = self.loaded.of(INT8, self.rows * loaded_k)
        # (columns, count) int8 of each strip -> (count, columns) fp16
        for column, columns in pieces(extent, STRIP):
            self._dequantise(slot, source, k % LOADED_K, count, column, columns)
        # The last part of these 512 has been read.
        if (k + count) % LOADED_K == 0 or k + count == self.weight.columns:
            self.int8.free(self.loaded)

    def _load_int8(self, k: int, extent: int) -> Slot:
        """The int8 weight `(extent, 512 of k)` from *k* on into L1."""
        piece = tile_view(self.weight, MatrixTile(0, k, extent, LOADED_K))
        slot = self.int8.alloc()
        dst = slot.of(INT8, self.rows * piece.columns)
        self.core.emit(LoadNd2Nz(dst, piece.operand, self.rows))
        self.int8.enque(slot)
        return self.int8.deque()

    def _dequantise(
        self, slot: Slot, source: Local, k: int, count: int, column: int, columns: int
    ) -> None:
        """*count* of k of a strip, from *k* on of what is in L1, into *slot*."""
        core, left = self.core, self.strips.alloc()
        # (columns, count) int8 in L1 -> (count, columns) in L0A
        a = left.of(INT8, count * STRIP)
        core.emit(LoadData(a, source, self.rows, column, k, columns, count, transpose=True))
        self.strips.enque(left)
        left, total = self.strips.deque(), self.sums.alloc()
        # In L0C int32: (count, columns) @ identity + offset (columns,)
        sums = total.of(INT32, count * columns)
        product = Mmad(sums, a, self.identity, count, columns, columns)
        if self.offset is not None:
            product = replace(product, init="bias", bias=self.offset.at(column, columns))
        core.emit(product)
        self.strips.free(left)
        self.sums.enque(total)
        total = self.sums.deque()
        # (columns / 16, count, 16) int32 -> fp16 in L1
        assert self.scale is not None
        out = slot.of(FLOAT16, count * columns, column * FLOAT16.nbytes(count))
        scale = self.scale.at(column, columns)
        shape = count, columns, count
        core.emit(Fixpipe(out, sums, *shape, FLOAT16, "deqf16", scale, dst_rows=count))
        self.sums.free(total)
