"""The fixpipe template: the cube dequantises the weight, too, so cube cores work alone.

Strips of 32 columns of the weight, 256 of k at a time, go through the cube twice:

.. code-block:: text

    int8 (k, 32) @ identity (32, 32) + int32 offset (32,)    in L0C: weight + offset, exactly
    times scale (32,)                                        by the fixpipe to fp16 in L1 (DEQF16)
    x (m, k) @ that (k, n) + bias (n,)                       in L0C, by the fixpipe to fp16

The strips of the next 256 of k are computed before the product of this one, so that the fixpipe
works beside the cube (ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel/fixpipe).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, INT32, UINT64, DType
from npusim.data.errors import Code, OpError
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import Fixpipe, LoadData, LoadNd2Nz, Local, Mmad
from npusim.kernel.builder import Builder
from npusim.kernel.cube import BaseTile, CubeWriter, GmFeed, GmMatrix, GmTile, Tables, l1_bytes
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, repeat
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.grid import rectangles
from npusim.ops.npu_weight_quant_batchmatmul.templates.plan import Plan
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight import MatrixTile, tile_view
from npusim.ops.npu_weight_quant_batchmatmul.templates.workspaces import bindings

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
        template="fixpipe",
        form="",
        reason=p.choice.reason,
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
    """The largest part of 256 of which L0 holds two pieces beside the strips and the identity."""
    core = spec.cores["aic"]
    # Beside two strips (256, 32) of int8 in L0A, and the identity (32, 32) in L0B.
    left = (core.l0a_bytes or 0) - 2 * DEQUANTISED_K * STRIP
    right = (core.l0b_bytes or 0) - STRIP * STRIP
    for k in (256, 128, 64, 32, 16):
        if 4 * m * k <= left and 4 * n * k <= right:
            return k
    raise OpError(
        Code.UNSUPPORTED,
        f"npu_weight_quant_batchmatmul: its tiles of {m} x 16 and 16 x {n} must fit twice into "
        f"L0A and L0B of {spec.name}, of which {left} and {right} bytes are left beside weights, "
        "not need more; give the chip larger ones",
    )


def build(spec: DeviceSpec, p: Problem, plan: FixpipePlan) -> tuple[Block, ...]:
    """One block a cube core; cores share the bodies of their programs."""
    kernel = _Kernel(spec, p, plan)
    bound = bindings(p, plan)
    f = p.traits
    shares = rectangles((f.m, f.n), (plan.core_m, plan.core_n), (plan.core_m, plan.base_n))
    return tuple(
        Block(core, "aic", kernel.program(share), bound) for core, share in enumerate(shares)
    )


class _Kernel:
    """What a cube core does."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: FixpipePlan) -> None:
        self._p, self._plan, f = p, plan, p.traits
        self._builder = Builder(p.choice.template, spec.cores["aic"], spec.sync, alone=True)
        self._x = GmMatrix("x", FLOAT16, f.m, f.k, k_is_first=False)
        self._weight = GmMatrix("weight", INT8, f.n, f.k, k_is_first=False)
        self._output = GmView.of("output", FLOAT16, f.m, f.n)
        self._scale = GmView.vector("antiquant_scale", UINT64, f.n)
        self._offset = GmView.vector("antiquant_offset", INT32, f.n) if f.has_offset else None
        self._bias = GmView.vector("bias", FLOAT16, f.n) if f.has_bias else None
        base = BaseTile(
            plan.core_m,
            plan.base_n,
            plan.base_k,
            steps_a=LOADED_K // plan.base_k,
            steps_b=DEQUANTISED_K // plan.base_k,
            keep="a" if plan.keeps_x else None,
        )
        self._feed = _DequantisedFeed(self._builder, self._weight, plan.base_n)
        x_feed = GmFeed(self._builder, self._x)
        self._writer = CubeWriter(self._builder, base, x_feed, self._feed, f.k)
        # Two tables: the strips begin with the offset, the product with the bias.
        offset, bias = INT32 if f.has_offset else None, FLOAT16 if f.has_bias else None
        self._strip_tables = Tables(self._builder, plan.base_n, offset, scale=True)
        self._bias_table = Tables(self._builder, plan.base_n, bias)

    def program(self, share: tuple[MatrixTile, ...]) -> Program:
        """Make the tiles of *share*, all of the same rows."""
        builder = self._builder
        if self._plan.keeps_x:
            repeat(builder, self._fetch, self._x.tile(share[0].row, share[0].rows))
        repeat(builder, self._feed.load_identity)
        for row, column, m, n in share:
            rows, columns = slice(row, row + m), slice(column, column + n)
            repeat(
                builder,
                self._multiply,
                self._x.tile(row, m),
                self._weight.tile(column, n),
                self._output[rows, columns],
                self._scale[:, columns],
                None if self._offset is None else self._offset[:, columns],
                None if self._bias is None else self._bias[:, columns],
            )
        return builder.build()

    def _fetch(self, x: GmTile) -> None:
        self._writer.fetch(x.extent, x.k)

    def _multiply(
        self,
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
        strips = self._strip_tables
        # (n,) 64-bit scales in the fixpipe buffer, (n,) int32 offsets in the bias table
        self._feed.scale = strips.take_scale(scale)
        self._feed.offset = None if offset is None else strips.take_bias(offset)
        start = None if bias is None else self._bias_table.take_bias(bias)
        # (m, k) fp16 @ (k, n) fp16: `load` below dequantises the weight piece by piece
        slot = self._writer.product(m, n, x.k, bias=start)
        strips.drop_bias()
        self._bias_table.drop_bias()
        # (n / 16, m, 16) fp32 in L0C -> (m, n) fp16
        rows_padded = align_up(m, FRACTAL_ROWS)
        total = slot.of(FLOAT32, rows_padded * n)
        self._builder.emit(Fixpipe(output.operand, total, m, n, rows_padded, FLOAT16, "cast"))
        self._writer.release(slot)


class _DequantisedFeed:
    """The fp16 weight `(k, n)` in L1, dequantised from int8 by the cube and the fixpipe."""

    producer: Pipe = "fixpipe"
    k_is_first = True
    dtype: DType = FLOAT16

    def __init__(self, builder: Builder, weight: GmMatrix, n: int) -> None:
        """Claim room for *n* columns of *weight*, which is stored as `(n, k)`."""
        self._builder, self._weight = builder, weight
        self._rows = align_up(n, STRIP)
        nbytes = l1_bytes(INT8, self._rows, min(LOADED_K, weight.columns), k_is_first=False)
        self._int8 = builder.queue("l1", nbytes, "mte2", "mte1", 2)
        self._strips = builder.queue("l0a", DEQUANTISED_K * STRIP, "mte1", "cube", 2)
        self._identity = builder.claim("l0b", STRIP * STRIP).of(INT8, STRIP * STRIP)
        nbytes = INT32.nbytes(DEQUANTISED_K * STRIP)
        self._sums = builder.queue("l0c", nbytes, "cube", "fixpipe", 2)
        self._loaded: Slot | None = None
        self.scale: Local | None = None
        """A number a column, in the fixpipe buffer."""
        self.offset: Local | None = None
        """A number a column, in the bias table."""

    def load_identity(self) -> None:
        """Load the identity `(32, 32)` into L0B, where it stays."""
        slot = self._int8.alloc()
        # (32, 32) int8 goes through a slot of the weight in L1.
        matrix, identity = slot.of(INT8, STRIP * STRIP), GmView.of("identity", INT8, STRIP, STRIP)
        self._builder.emit(LoadNd2Nz(matrix, identity.operand, STRIP))
        self._int8.enque(slot)
        slot = self._int8.deque()
        self._builder.emit(LoadData(self._identity, matrix, STRIP, 0, 0, STRIP, STRIP))
        self._int8.free(slot)

    def load(self, slot: Slot, k: int, count: int, extent: int) -> None:
        """As :class:`~npusim.kernel.cube.Feed` says: *extent* columns of the product."""
        # 512 of k are loaded at once, and dequantised in two parts of 256.
        if k % LOADED_K == 0:
            self._loaded = self._load_int8(k, extent)
        assert self._loaded is not None
        loaded_k = min(LOADED_K, self._weight.columns - k // LOADED_K * LOADED_K)
        source = self._loaded.of(INT8, self._rows * loaded_k)
        # (columns, count) int8 of each strip -> (count, columns) fp16
        for column, columns in pieces(extent, STRIP):
            self._dequantise(slot, source, k % LOADED_K, count, column, columns)
        # The last part of these 512 has been read.
        if (k + count) % LOADED_K == 0 or k + count == self._weight.columns:
            self._int8.free(self._loaded)

    def _load_int8(self, k: int, extent: int) -> Slot:
        """The int8 weight `(extent, 512 of k)` from *k* on into L1."""
        piece = tile_view(self._weight, MatrixTile(0, k, extent, LOADED_K))
        slot = self._int8.alloc()
        dst = slot.of(INT8, self._rows * piece.columns)
        self._builder.emit(LoadNd2Nz(dst, piece.operand, self._rows))
        self._int8.enque(slot)
        return self._int8.deque()

    def _dequantise(
        self, slot: Slot, source: Local, k: int, count: int, column: int, columns: int
    ) -> None:
        """*count* of k of a strip, from *k* on of what is in L1, into *slot*."""
        builder, left = self._builder, self._strips.alloc()
        # (columns, count) int8 in L1 -> (count, columns) in L0A
        a = left.of(INT8, count * STRIP)
        builder.emit(LoadData(a, source, self._rows, column, k, columns, count, transpose=True))
        self._strips.enque(left)
        left, total = self._strips.deque(), self._sums.alloc()
        # In L0C int32: (count, columns) @ identity + offset (columns,)
        sums = total.of(INT32, count * columns)
        product = Mmad(sums, a, self._identity, count, columns, columns)
        if self.offset is not None:
            product = replace(product, init="bias", bias=self.offset.at(column, columns))
        builder.emit(product)
        self._strips.free(left)
        self._sums.enque(total)
        total = self._sums.deque()
        # (columns / 16, count, 16) int32 -> fp16 in L1
        assert self.scale is not None
        out = slot.of(FLOAT16, count * columns, column * FLOAT16.nbytes(count))
        scale = self.scale.at(column, columns)
        builder.emit(
            Fixpipe(out, sums, count, columns, count, FLOAT16, "deqf16", scale, dst_rows=count)
        )
        self._sums.free(total)
