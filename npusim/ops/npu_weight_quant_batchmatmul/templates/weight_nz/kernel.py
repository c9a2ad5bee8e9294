"""The weight_nz template: coupled cores dequantise the weight in their unified buffer.

The weight comes in as `(k / 32, n, 32)` int8, and goes on to L1 as `(k / 16, n, 16)` fp16:

.. code-block:: text

    cast            (k / 32, n, 32) int8 -> fp16
    add the offset  half of each row of 32, so that (k / 16, n, 16) comes out
    times the scale

Only then may the next weight come in (ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel/
*_weight_nz_performance.h). x and the output are ND, and sums start from the bias.
"""

from __future__ import annotations

from functools import partial

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, UINT8, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import BLOCK_BYTES, Binary, BinaryOp, Broadcast, Cast, CopyToL1, Global, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.coupled import NdFeed, NdOut, RowTable
from npusim.kernel.cube import BaseTile, CubeWriter, GmMatrix, l1_rows
from npusim.kernel.program import Binding, Block
from npusim.kernel.queues import Slot
from npusim.kernel.rows import fill, pieces
from npusim.kernel.tiles import Piece
from npusim.kernel.views import GmView
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.grid import rectangles
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight_nz.tiling import WeightNzPlan, tile

__all__ = ["WeightNzPlan", "build", "tile"]

PART_N = 128
"""Columns of the product that are dequantised at a time."""
OUT_BYTES = 32768
"""What comes out of L0C at a time."""


def build(spec: DeviceSpec, p: Problem, plan: WeightNzPlan) -> tuple[Block, ...]:
    """One block a core; cores share the bodies of their programs."""
    kernel = _Kernel(spec, p, plan)
    bindings = {name: Binding(name) for name in [*(x.name for x in p.inputs), "output"]}
    f, t = p.traits, plan.tiles
    blocks = []
    shares = rectangles((f.m, f.n), (plan.core_m, plan.core_n), (t.base_m, t.base_n))
    for core, share in enumerate(shares):
        kernel.write(share)
        blocks.append(Block(core, "ai_core", kernel.builder.build(), bindings))
    return tuple(blocks)


class _Kernel:
    """What a core does."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: WeightNzPlan) -> None:
        self.p, f, t = p, p.traits, plan.tiles
        self.builder = Builder(p.choice.template, spec.cores["ai_core"], spec.sync)
        rows, columns = (f.k, f.m) if f.trans_x else (f.m, f.k)
        self.x = GmMatrix("x", FLOAT16, rows, columns, k_is_first=f.trans_x)
        steps = t.l1_k // t.base_k
        base = BaseTile(
            *(t.base_m, t.base_n, t.base_k, steps, steps, t.l0c_depth),
            depth_a=t.depth_a,
            depth_b=t.depth_b,
        )
        self.weight = _WeightFeed(self.builder, spec, p, t.base_n, t.part_k)
        feed = NdFeed(self.builder, spec, self.x)
        self.writer = CubeWriter(self.builder, base, feed, self.weight, f.k, "vector")
        self.out = NdOut(self.builder, spec, t.base_m, t.base_n, FLOAT16, OUT_BYTES)
        self.bias = RowTable(self.builder, spec, t.base_n, FLOAT16, FLOAT32) if p.bias else None

    def write(self, share: tuple[Piece, ...]) -> None:
        """Make the pieces of *share*."""
        for piece in share:
            of_column = FLOAT16.nbytes(piece.column)
            self.builder.call(
                (piece.rows, piece.columns),
                {
                    "x": self.x.shift(piece.row),
                    "weight": self.weight.gm_matrix.shift(piece.column),
                    "antiquant_scale": of_column,
                    "antiquant_offset": of_column,
                    "bias": of_column,
                    "output": FLOAT16.nbytes(piece.row * self.p.traits.n) + of_column,
                },
                partial(self._make, piece.rows, piece.columns),
            )

    def _make(self, rows: int, columns: int) -> None:
        f, bias, high = self.p.traits, self.bias, align_up(rows, FRACTAL_ROWS)

        def preload(total: Local) -> None:
            assert bias is not None
            bias.spread(GmView.vector("bias", FLOAT16, columns), total, high)

        self.weight.take(columns)
        slot = self.writer.product(rows, columns, f.k, preload=preload if bias else None)
        self.weight.drop()
        total = slot.of(FLOAT32, high * align_up(columns, FRACTAL_ROWS))
        output = GmView.of("output", FLOAT16, rows, f.n)[:, :columns]
        self.out.drain(total, output, "cast")
        self.writer.release(slot)


class _WeightFeed:
    """The fp16 weight in L1 as `(n, k)`, made from the int8 one by the vector pipe."""

    producer: Pipe = "mte3"
    k_is_first = False
    dtype: DType = FLOAT16

    def __init__(self, builder: Builder, spec: DeviceSpec, p: Problem, n: int, part_k: int) -> None:
        """Claim room for the parameters of *n* columns, and to dequantise *part_k* of k."""
        self._builder, self._spec, self._part_k = builder, spec, part_k
        self.gm_matrix = GmMatrix("weight", INT8, p.traits.n, p.traits.k, False, "FRACTAL_NZ")
        high = align_up(min(n, PART_N), FRACTAL_ROWS)
        self._come = builder.queue("ub", INT8.nbytes(high * part_k), "mte2", "vector", 2)
        self._cast = builder.claim("ub", FLOAT16.nbytes(high * part_k))
        self._made = builder.queue("ub", FLOAT16.nbytes(high * part_k), "vector", "mte3")
        steps: tuple[tuple[BinaryOp, str], ...] = (("mul", "antiquant_scale"),)
        if p.antiquant_offset:
            steps = (("add", "antiquant_offset"), *steps)
        self._steps = steps
        """What is done to the weight, with which tensor."""
        self._wide = FLOAT16.nbytes(align_up(n, FRACTAL_ROWS))
        self._parameters = builder.queue("ub", self._wide * len(steps), "mte2", "vector")
        self._blocks = [builder.claim("ub", BLOCK_BYTES * high) for _ in steps]

    def take(self, columns: int) -> None:
        """Bring the parameters of *columns* columns in; done with by `drop`."""
        slot = self._parameters.alloc()
        for index, (_, name) in enumerate(self._steps):
            place = Slot(slot.buffer, slot.offset_bytes + index * self._wide, self._wide, -1)
            fill(self._builder, self._spec, place, GmView.vector(name, FLOAT16, columns))
        self._parameters.enque(slot)
        self._taken = self._parameters.deque()

    def drop(self) -> None:
        self._parameters.free(self._taken)

    def load(self, slot: Slot, k: int, count: int, extent: int) -> None:
        height = l1_rows(FLOAT16, extent, self.k_is_first)
        for column, width in pieces(extent, PART_N):
            high = align_up(width, FRACTAL_ROWS)
            self._spread(column, high)
            for start, deep in pieces(count, self._part_k):
                made = self._dequantise(k + start, deep, column, high)
                across, pitch = ceil_div(deep, c0(FLOAT16)), high * BLOCK_BYTES
                at = (start // c0(FLOAT16) * height + column) * BLOCK_BYTES
                dst, src = slot.of(UINT8, pitch, at), made.of(UINT8, pitch * across)
                copy = CopyToL1(dst, src, pitch, across, pitch, height * BLOCK_BYTES)
                self._builder.emit(copy)
                self._made.free(made)
        self._builder.sync("mte3", "mte2")

    def _spread(self, column: int, high: int) -> None:
        """A block of each parameter for each of *high* columns."""
        for index, blocks in enumerate(self._blocks):
            start = index * self._wide + FLOAT16.nbytes(column)
            numbers = self._taken.of(FLOAT16, high, start)
            self._builder.emit(Broadcast(blocks.of(FLOAT16, 16 * high), numbers))
        self._builder.barrier("vector")

    def _dequantise(self, k: int, count: int, column: int, high: int) -> Slot:
        """[k, k + count) of *high* columns, as `(count / 16, high, 16)` fp16."""
        come, across = self._come.alloc(), ceil_div(count, c0(INT8))
        start = self.gm_matrix.shift_k(k) + column * BLOCK_BYTES
        pitch = high * BLOCK_BYTES
        place = Global("weight", start, pitch, across, self.gm_matrix.nz_stride_bytes)
        self._builder.load(come.of(INT8, pitch * across), place, pitch)
        self._come.enque(come)
        come = self._come.deque()
        wide = self._cast.of(FLOAT16, pitch * across)
        step(self._builder, Cast(wide, come.of(INT8, pitch * across)))
        self._come.free(come)
        made = self._made.alloc()
        columns = range(ceil_div(count, c0(FLOAT16)))
        for index, (op, _) in enumerate(self._steps):
            numbers = self._blocks[index].of(FLOAT16, 16 * high)
            for block in columns:
                dst = made.of(FLOAT16, 16 * high, block * pitch)
                src = dst if index else _half_rows(wide, block, high)
                self._builder.emit(Binary(op, dst, src, numbers))
            self._builder.barrier("vector")
        self._made.enque(made)
        return self._made.deque()


def _half_rows(wide: Local, block: int, rows: int) -> Local:
    """Column *block* of 16 of each of *rows* rows that lie as rows of 32."""
    first = (block // 2 * 2 * rows + block % 2) * BLOCK_BYTES
    return Local(wide.buffer, wide.offset_bytes + first, FLOAT16, 16 * rows, 2, 16)
