"""The fixpipe template: the cube dequantises the weight, too, so cube cores work alone.

Strips of 32 columns of the weight, 256 of k at a time, go through the cube twice:

.. code-block:: text

    int8 (k, 32) @ identity (32, 32) + int32 offset (32,)    in L0C: weight + offset, exactly
    times scale (32,)                                        by the fixpipe to fp16 in L1 (DEQF16)
    x (m, k) @ that (k, n) + bias (n,)                       in L0C, by the fixpipe to fp16

The strips of the next 256 of k come before the product of this one, so that the fixpipe works
beside the cube (ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel/fixpipe).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, INT32, UINT64, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import Fixpipe, Global, LoadData, LoadNd2Nz, Local, Mmad
from npusim.kernel.builder import Builder
from npusim.kernel.cube import BaseTile, CubeWriter, GmFeed, GmMatrix, Tables, l1_bytes
from npusim.kernel.program import Binding, Block
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.tiles import Piece
from npusim.kernel.views import GmView
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.grid import rectangles
from npusim.ops.npu_weight_quant_batchmatmul.templates.plan import Plan

__all__ = ["FixpipePlan", "build", "tile"]

STRIP = 32
"""Columns of the weight that go through the cube at a time: one fractal of int8."""
LOADED_K = 512
MADE_K = 256
"""k of the weight that comes to L1 at a time, and that is dequantised at a time."""
MOST_N = 128
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
    base_n = min(core_n, MOST_N)
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
    left = (core.l0a_bytes or 0) - 2 * MADE_K * STRIP
    right = (core.l0b_bytes or 0) - STRIP * STRIP
    fits = (k for k in (256, 128, 64, 32, 16) if 4 * m * k <= left and 4 * n * k <= right)
    return next(fits)


def build(spec: DeviceSpec, p: Problem, plan: FixpipePlan) -> tuple[Block, ...]:
    """One block a cube core; cores share the bodies of their programs."""
    kernel = _Kernel(spec, p, plan)
    bindings = {name: Binding(name) for name in [*(x.name for x in p.inputs), "output"]}
    f = p.traits
    blocks = []
    shares = rectangles((f.m, f.n), (plan.core_m, plan.core_n), (plan.core_m, plan.base_n))
    for core, share in enumerate(shares):
        kernel.write(share)
        blocks.append(Block(core, "aic", kernel.builder.build(), bindings))
    return tuple(blocks)


class _Kernel:
    """What a cube core does."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: FixpipePlan) -> None:
        self.p, self.plan, f = p, plan, p.traits
        self.builder = Builder(p.choice.template, spec.cores["aic"], spec.sync, alone=True)
        self.x = GmMatrix("x", FLOAT16, f.m, f.k, k_is_first=False)
        self.weight = GmMatrix("weight", INT8, f.n, f.k, k_is_first=False)
        base = BaseTile(
            plan.core_m,
            plan.base_n,
            plan.base_k,
            steps_a=LOADED_K // plan.base_k,
            steps_b=MADE_K // plan.base_k,
            keep="a" if plan.keeps_x else None,
        )
        self.made = _MadeWeight(self.builder, self.weight, plan.base_n)
        feed = GmFeed(self.builder, self.x)
        self.writer = CubeWriter(self.builder, base, feed, self.made, f.k)
        offset = INT32 if p.antiquant_offset else None
        self.columns = Tables(self.builder, plan.base_n, offset, scale=True)
        self.bias = Tables(self.builder, plan.base_n, FLOAT16 if p.bias else None)

    def write(self, share: tuple[Piece, ...]) -> None:
        """Make the pieces of *share*, all of the same rows."""
        f = self.p.traits
        if self.plan.keeps_x:
            rows = share[0].rows
            moved = {"x": self.x.shift(share[0].row)}
            self.builder.call(("x", rows), moved, lambda: self.writer.fetch(rows, f.k))
        self.builder.call("identity", {}, self.made.take_identity)
        for piece in share:
            self.builder.call(
                (piece.rows, piece.columns),
                {
                    "x": self.x.shift(piece.row),
                    "weight": self.weight.shift(piece.column),
                    "antiquant_scale": 8 * piece.column,
                    "antiquant_offset": INT32.nbytes(piece.column),
                    "bias": FLOAT16.nbytes(piece.column),
                    "output": FLOAT16.nbytes(piece.row * f.n + piece.column),
                },
                partial(self._make, piece.rows, piece.columns),
            )

    def _make(self, rows: int, columns: int) -> None:
        p, n = self.p, self.p.traits.n
        self.made.scale = self.columns.take_scale(GmView.vector("antiquant_scale", UINT64, columns))
        if p.antiquant_offset:
            offset = GmView.vector("antiquant_offset", INT32, columns)
            self.made.offset = self.columns.take_bias(offset)
        start = None
        if p.bias:
            start = self.bias.take_bias(GmView.vector("bias", FLOAT16, columns))
        slot = self.writer.product(rows, columns, p.traits.k, bias=start)
        self.columns.drop_bias()
        self.bias.drop_bias()
        high = align_up(rows, FRACTAL_ROWS)
        total = slot.of(FLOAT32, high * columns)
        place = Global("output", 0, FLOAT16.nbytes(columns), rows, FLOAT16.nbytes(n))
        self.builder.emit(Fixpipe(place, total, rows, columns, high, FLOAT16, "cast"))
        self.writer.release(slot)


class _MadeWeight:
    """The fp16 weight in L1 as `(k, n)`, made from the int8 one on the cube."""

    producer: Pipe = "fixpipe"
    k_is_first = True
    dtype: DType = FLOAT16

    def __init__(self, builder: Builder, gm_matrix: GmMatrix, n: int) -> None:
        """Claim room for *n* columns."""
        self._builder, self._gm_matrix = builder, gm_matrix
        self._height = align_up(n, STRIP)
        nbytes = l1_bytes(INT8, self._height, min(LOADED_K, gm_matrix.columns), k_is_first=False)
        self._come = builder.queue("l1", nbytes, "mte2", "mte1", 2)
        self._left = builder.queue("l0a", MADE_K * STRIP, "mte1", "cube", 2)
        self._identity = builder.claim("l0b", STRIP * STRIP).of(INT8, STRIP * STRIP)
        self._sums = builder.queue("l0c", INT32.nbytes(MADE_K * STRIP), "cube", "fixpipe", 2)
        self.scale: Local | None = None
        """A number a column, in the fixpipe buffer."""
        self.offset: Local | None = None
        """A number a column, in the bias table."""

    def take_identity(self) -> None:
        """Bring the identity into L0B, where it stays."""
        slot = self._come.alloc()
        matrix = slot.of(INT8, STRIP * STRIP)
        self._builder.emit(LoadNd2Nz(matrix, Global("identity", 0, STRIP, STRIP, STRIP), STRIP))
        self._come.enque(slot)
        slot = self._come.deque()
        self._builder.emit(LoadData(self._identity, matrix, STRIP, 0, 0, STRIP, STRIP))
        self._come.free(slot)

    def load(self, slot: Slot, k: int, count: int, extent: int) -> None:
        if k % LOADED_K == 0:
            self._load(k, extent)
        for column, width in pieces(extent, STRIP):
            self._through_cube(slot, k % LOADED_K, count, column, width)
        if (k + count) % LOADED_K == 0 or k + count == self._gm_matrix.columns:
            self._come.free(self._loaded)

    def _load(self, k: int, extent: int) -> None:
        """The int8 weight of *extent* columns of the product from *k* on."""
        count = min(LOADED_K, self._gm_matrix.columns - k)
        slot = self._come.alloc()
        dst = slot.of(INT8, self._height * count)
        place = Global("weight", k, count, extent, self._gm_matrix.columns)
        self._builder.emit(LoadNd2Nz(dst, place, self._height))
        self._come.enque(slot)
        self._loaded = self._come.deque()
        self._source = dst

    def _through_cube(self, slot: Slot, row: int, count: int, column: int, width: int) -> None:
        """*count* of k of a strip; *row* is where they begin in what was loaded."""
        left = self._left.alloc()
        a = left.of(INT8, count * STRIP)
        turn = LoadData(a, self._source, self._height, column, row, width, count, transpose=True)
        self._builder.emit(turn)
        self._left.enque(left)
        left, total = self._left.deque(), self._sums.alloc()
        sums = total.of(INT32, count * width)
        moved = Mmad(sums, a, self._identity, count, width, width)
        if self.offset is not None:
            moved = replace(moved, init="bias", bias=self.offset.at(column, width))
        self._builder.emit(moved)
        self._left.free(left)
        self._sums.enque(total)
        total = self._sums.deque()
        assert self.scale is not None
        made = slot.of(FLOAT16, count * width, FLOAT16.nbytes(column * count))
        scale = self.scale.at(column, width)
        self._builder.emit(
            Fixpipe(made, sums, count, width, count, FLOAT16, "deqf16", scale, dst_rows=count)
        )
        self._sums.free(total)
