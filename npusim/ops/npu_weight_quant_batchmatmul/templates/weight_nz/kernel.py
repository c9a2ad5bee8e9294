"""The kernel of the template weight_nz: what a coupled core does."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, UINT8, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import BLOCK_BYTES, Binary, BinaryOp, Broadcast, Cast, CopyToL1, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.coupled import NdFeed, NdOut, RowTable
from npusim.kernel.cube import BaseTile, CubeWriter, GmMatrix, GmTile, l1_rows
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import fill, pieces
from npusim.kernel.views import GmView, load, repeat
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.grid import rectangles
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight import MatrixTile, tile_view
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight_nz.tiling import WeightNzPlan
from npusim.ops.npu_weight_quant_batchmatmul.templates.workspaces import bindings

__all__ = ["build"]

PART_N = 128
"""Columns of the product that are dequantised at a time."""
OUT_BYTES = 32768
"""What is copied out of L0C at a time."""


def build(spec: DeviceSpec, p: Problem, plan: WeightNzPlan) -> tuple[Block, ...]:
    """One block a core; cores share the bodies of their programs."""
    kernel = _Kernel(spec, p, plan)
    bound = bindings(p, plan)
    f, t = p.traits, plan.tiles
    shares = rectangles((f.m, f.n), (plan.core_m, plan.core_n), (t.base_m, t.base_n))
    return tuple(
        Block(core, "ai_core", kernel.program(share), bound) for core, share in enumerate(shares)
    )


class _Kernel:
    """What a core does."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: WeightNzPlan) -> None:
        f, t = p.traits, plan.tiles
        self._builder = builder = Builder(p.choice.template, spec.cores["ai_core"], spec.sync)
        rows, columns = (f.k, f.m) if f.trans_x else (f.m, f.k)
        self._x = GmMatrix("x", FLOAT16, rows, columns, k_is_first=f.trans_x)
        self._weight = GmMatrix("weight", INT8, f.n, f.k, False, "FRACTAL_NZ")
        self._output = GmView.of("output", FLOAT16, f.m, f.n)
        names = ["antiquant_offset"] * f.has_offset + ["antiquant_scale"]
        self._parameters = [GmView.vector(name, FLOAT16, f.n) for name in names]
        self._bias = GmView.vector("bias", FLOAT16, f.n) if f.has_bias else None
        base = BaseTile(
            t.base_m,
            t.base_n,
            t.base_k,
            steps_a=t.l1_k // t.base_k,
            steps_b=t.l1_k // t.base_k,
            l0c_depth=t.l0c_depth,
            depth_a=t.depth_a,
            depth_b=t.depth_b,
        )
        self._feed = _DequantisedFeed(builder, spec, self._weight, f.has_offset, t.base_n, t.part_k)
        x_feed = NdFeed(builder, spec, self._x)
        self._writer = CubeWriter(builder, base, x_feed, self._feed, f.k, "vector")
        self._out = NdOut(builder, spec, t.base_m, t.base_n, FLOAT16, OUT_BYTES)
        self._table = RowTable(builder, spec, t.base_n, FLOAT16, FLOAT32) if f.has_bias else None

    def program(self, share: tuple[MatrixTile, ...]) -> Program:
        """Make the tiles of *share*."""
        for row, column, m, n in share:
            rows, columns = slice(row, row + m), slice(column, column + n)
            repeat(
                self._builder,
                self._multiply,
                self._x.tile(row, m),
                self._weight.tile(column, n),
                self._output[rows, columns],
                None if self._bias is None else self._bias[:, columns],
                *(parameter[:, columns] for parameter in self._parameters),
            )
        return self._builder.build()

    def _multiply(
        self, x: GmTile, _weight: GmTile, output: GmView, bias: GmView | None, *parameters: GmView
    ) -> None:
        """`output = x @ weight + bias`, (m, k) @ (k, n), the weight dequantised on its way.

        The feeds load x and the weight, from where these tiles begin.
        """
        m, n, rows_padded = output.rows, output.columns, align_up(output.rows, FRACTAL_ROWS)

        def preload(total: Local) -> None:
            # (n,) fp16 -> (n / 16, m, 16) fp32 in L0C
            assert self._table is not None
            assert bias is not None
            self._table.spread(bias, total, rows_padded)

        # (n,) fp16 scale and offset, for all k of the tile
        self._feed.load_parameters(parameters)
        # (m, k) fp16 @ (k, n) fp16 -> fp32 sums
        slot = self._writer.product(m, n, x.k, preload=None if bias is None else preload)
        self._feed.release_parameters()
        # (n / 16, m, 16) fp32 in L0C -> (m, n) fp16
        total = slot.of(FLOAT32, rows_padded * align_up(n, FRACTAL_ROWS))
        self._out.drain(total, output, "cast")
        self._writer.release(slot)


class _DequantisedFeed:
    """The fp16 weight `(n, k)` in L1, dequantised from int8 by the vector pipe."""

    producer: Pipe = "mte3"
    k_is_first = False
    dtype: DType = FLOAT16

    def __init__(
        self,
        builder: Builder,
        spec: DeviceSpec,
        weight: GmMatrix,
        has_offset: bool,
        n: int,
        part_k: int,
    ) -> None:
        """Claim room for scale and offset of *n* columns, and to dequantise *part_k* of k."""
        self._builder, self._spec, self._weight, self._part_k = builder, spec, weight, part_k
        rows = align_up(min(n, PART_N), FRACTAL_ROWS)
        count = rows * part_k
        self._int8 = builder.queue("ub", INT8.nbytes(count), "mte2", "vector", 2)
        self._cast = builder.claim("ub", FLOAT16.nbytes(count))
        self._out = builder.queue("ub", FLOAT16.nbytes(count), "vector", "mte3")
        self._steps: tuple[BinaryOp, ...] = ("add", "mul") if has_offset else ("mul",)
        self._vector_bytes = FLOAT16.nbytes(align_up(n, FRACTAL_ROWS))
        nbytes = self._vector_bytes * len(self._steps)
        self._vectors = builder.queue("ub", nbytes, "mte2", "vector")
        self._blocks = [builder.claim("ub", BLOCK_BYTES * rows) for _ in self._steps]

    def load_parameters(self, parameters: tuple[GmView, ...]) -> None:
        """Load the parameters `(n,)` of a tile; free them with `release_parameters`."""
        slot = self._vectors.alloc()
        for index, view in enumerate(parameters):
            start = slot.offset_bytes + index * self._vector_bytes
            # Offset and scale share a slot: a part for each.
            part = Slot(slot.buffer, start, self._vector_bytes, event=-1)
            fill(self._builder, self._spec, part, view)
        self._vectors.enque(slot)
        self._loaded = self._vectors.deque()

    def release_parameters(self) -> None:
        """The tile is done."""
        self._vectors.free(self._loaded)

    def load(self, slot: Slot, k: int, count: int, extent: int) -> None:
        """As :class:`~npusim.kernel.cube.Feed` says: *extent* columns of the product."""
        l1_pitch = l1_rows(FLOAT16, extent, self.k_is_first) * BLOCK_BYTES
        for column, columns in pieces(extent, PART_N):
            rows = align_up(columns, FRACTAL_ROWS)
            # Scale and offset of 128 columns serve all k of the piece.
            self._spread(column, rows)
            for start, depth in pieces(count, self._part_k):
                # (depth / 16, rows, 16) of the buffer into (count / 16, extent, 16) of L1
                out = self._dequantise(MatrixTile(column, k + start, rows, depth))
                blocks_k, nbytes = ceil_div(depth, c0(FLOAT16)), rows * BLOCK_BYTES
                offset_bytes = start // c0(FLOAT16) * l1_pitch + column * BLOCK_BYTES
                extent_bytes = (blocks_k - 1) * l1_pitch + nbytes
                dst = slot.of(UINT8, extent_bytes, offset_bytes)
                src = out.of(UINT8, nbytes * blocks_k)
                self._builder.emit(CopyToL1(dst, src, nbytes, blocks_k, nbytes, l1_pitch))
                self._out.free(out)
        # Only then may the next weight be loaded.
        self._builder.sync("mte3", "mte2")

    def _spread(self, column: int, rows: int) -> None:
        """`(rows,)` of each parameter -> `(rows, 16)`, a block of equal numbers each."""
        for index, blocks in enumerate(self._blocks):
            start = index * self._vector_bytes + FLOAT16.nbytes(column)
            numbers = self._loaded.of(FLOAT16, rows, start)
            self._builder.emit(Broadcast(blocks.of(FLOAT16, c0(FLOAT16) * rows), numbers))
        self._builder.barrier("vector")

    def _dequantise(self, tile: MatrixTile) -> Slot:
        """*tile* of the weight `(rows, k)`, as `(k / 16, rows, 16)` fp16."""
        builder, rows = self._builder, tile.rows
        view = tile_view(self._weight, tile)
        # (k / 32, rows, 32) int8 of FRACTAL_NZ
        raw = load(builder, self._int8, view, with_gaps=True)
        # (k / 32, rows, 32) int8 -> fp16, each row two blocks
        count = view.rows * view.columns
        fp16 = self._cast.of(FLOAT16, count)
        step(builder, Cast(fp16, raw.of(INT8, count)))
        self._int8.free(raw)
        out = self._out.alloc()
        for index, op in enumerate(self._steps):
            numbers = self._blocks[index].of(FLOAT16, c0(FLOAT16) * rows)
            # (rows, 16) of one column of fractals a micro-op; the first one splits rows of 32
            for block in range(ceil_div(tile.columns, c0(FLOAT16))):
                dst = out.of(FLOAT16, c0(FLOAT16) * rows, block * rows * BLOCK_BYTES)
                src = dst if index else _half_rows(fp16, block, rows)
                builder.emit(Binary(op, dst, src, numbers))
            builder.barrier("vector")
        self._out.enque(out)
        return self._out.deque()


def _half_rows(fp16: Local, block: int, rows: int) -> Local:
    """Column *block* of 16 of each of *rows* rows of 32."""
    # A row of 32 fp16 is two blocks: every second block, from the first or from the second on.
    first = (block // 2 * 2 * rows + block % 2) * BLOCK_BYTES
    return Local(fp16.buffer, fp16.offset_bytes + first, FLOAT16, c0(FLOAT16) * rows, 2, 16)
