"""The weight on its way into L1: int8 fractals of 32 columns become fp16 fractals of 16.

One strided Cast does both. It writes blocks that are as many blocks apart as the part has rows,
usually 128: all eight of a repeat into one group of banks, which takes eight cycles.
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.data.dtypes import FLOAT16, INT8, UINT8, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import BLOCK_BYTES, Binary, BinaryOp, Broadcast, Cast, CopyToL1, Local
from npusim.kernel.builder import Builder
from npusim.kernel.cube import GmMatrix, l1_rows
from npusim.kernel.queues import Slot
from npusim.kernel.rows import fill, pieces
from npusim.kernel.views import GmView
from npusim.kernel.views import fill as fill_bursts
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight import MatrixTile, tile_view

__all__ = ["WeightFeed"]

PART_N = 128
"""Columns of the product that are dequantised at a time."""
CAST_K = 128
"""k of one repeat of a cast: 128 lanes. Where a part has less left, a mask leaves 32 of them."""


class WeightFeed:
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
        """Claim room to dequantise *part_k* of k at a time, of *n* columns at most."""
        self._builder, self._spec, self._weight, self._part_k = builder, spec, weight, part_k
        count = min(align_up(n, FRACTAL_ROWS), PART_N) * align_up(part_k, c0(INT8))
        # By turns, each k tile from the first on.
        self._int8 = [builder.claim("ub", INT8.nbytes(count)) for _ in range(2)]
        self._fp16 = [
            builder.queue("ub", FLOAT16.nbytes(count), "vector", "mte3") for _ in range(2)
        ]
        self._steps: tuple[BinaryOp, ...] = ("add", "mul") if has_offset else ("mul",)

    @property
    def first(self) -> Slot:
        """Where its buffers for the weight begin."""
        return self._int8[0]

    def claim_parameters(self, n: int) -> None:
        """Claim room for scale and offset of *n* columns, as they are and spread over blocks."""
        columns = align_up(n, FRACTAL_ROWS)
        claim = self._builder.claim
        self._vectors = [claim("ub", FLOAT16.nbytes(columns)) for _ in self._steps]
        self._blocks = [claim("ub", BLOCK_BYTES * columns) for _ in self._steps]

    def load_parameters(self, parameters: tuple[GmView, ...]) -> None:
        """Spread `(n,)` of each parameter to `(n, 16)`, a block of equal numbers each."""
        for vector, view in zip(self._vectors, parameters, strict=True):
            fill(self._builder, self._spec, vector, view)
        self._builder.sync("mte2", "vector")
        for vector, blocks, view in zip(self._vectors, self._blocks, parameters, strict=True):
            columns = align_up(view.columns, FRACTAL_ROWS)
            numbers = vector.of(FLOAT16, columns)
            self._builder.emit(Broadcast(blocks.of(FLOAT16, c0(FLOAT16) * columns), numbers))
        self._builder.barrier("vector")

    def load(self, slot: Slot, k: int, count: int, extent: int) -> None:
        """As :class:`~npusim.kernel.cube.Feed` says: *extent* columns of the product."""
        l1_pitch = l1_rows(FLOAT16, extent, self.k_is_first) * BLOCK_BYTES
        for column, columns in pieces(extent, PART_N):
            rows = align_up(columns, FRACTAL_ROWS)
            if columns < PART_N:
                # Before a narrower last part the kernel lets all pipes run dry.
                self._builder.barrier()
            for number, (start, depth) in enumerate(pieces(count, self._part_k)):
                # (depth / 16, rows, 16) of the buffer into (count / 16, extent, 16) of L1
                tile, turn = MatrixTile(column, k + start, rows, depth), number % 2
                queue, out = self._fp16[turn], self._dequantise(tile, turn)
                blocks_k, nbytes = ceil_div(depth, c0(FLOAT16)), rows * BLOCK_BYTES
                offset_bytes = start // c0(FLOAT16) * l1_pitch + column * BLOCK_BYTES
                extent_bytes = (blocks_k - 1) * l1_pitch + nbytes
                dst = slot.of(UINT8, extent_bytes, offset_bytes)
                src = out.of(UINT8, nbytes * blocks_k)
                self._builder.emit(CopyToL1(dst, src, nbytes, blocks_k, nbytes, l1_pitch))
                queue.free(out)

    def _dequantise(self, tile: MatrixTile, turn: int) -> Slot:
        """*tile* of the weight `(rows, k)`, as `(k / 16, rows, 16)` fp16, ready for mte3."""
        builder, rows = self._builder, tile.rows
        # (k / 32, rows, 32) int8 of FRACTAL_NZ
        raw = self._int8[turn]
        fill_bursts(builder, raw, tile_view(self._weight, tile), with_gaps=True)
        builder.sync("mte2", "vector")
        out = self._fp16[turn].alloc()
        builder.emit(*_casts(out, raw, rows, align_up(tile.columns, c0(INT8))))
        # The next load waits for this cast, although it has a buffer of its own.
        builder.sync("vector", "mte2")
        builder.barrier("vector")
        for op, blocks in zip(self._steps, self._blocks, strict=True):
            count = c0(FLOAT16) * rows
            numbers = blocks.of(FLOAT16, count, tile.row * BLOCK_BYTES)
            # (rows, 16) of one column of fractals a micro-op, in place
            for block in range(ceil_div(tile.columns, c0(FLOAT16))):
                values = out.of(FLOAT16, count, block * rows * BLOCK_BYTES)
                builder.emit(Binary(op, values, values, numbers))
            builder.barrier("vector")
        builder.sync("mte1", "mte2")
        self._fp16[turn].enque(out)
        return self._fp16[turn].deque()


def _casts(dst: Slot, src: Slot, rows: int, depth: int) -> Iterator[Cast]:
    """`(depth / 32, rows, 32)` int8 to `(depth / 16, rows, 16)` fp16: a row a repeat."""
    for start in range(0, depth, CAST_K):
        whole = depth - start >= CAST_K
        width = CAST_K if whole else c0(INT8)
        for first in range(start, start + CAST_K if whole else depth, width):
            fp16 = _row_a_repeat(dst, FLOAT16, rows, first, width)
            yield Cast(fp16, _row_a_repeat(src, INT8, rows, first, width))


def _row_a_repeat(slot: Slot, dtype: DType, rows: int, first: int, width: int) -> Local:
    """Columns [first, first + width) of `(depth / C0, rows, C0)`, a row a repeat."""
    blocks = width // c0(dtype)
    whole = slot.of(dtype, width * rows, first // c0(dtype) * rows * BLOCK_BYTES)
    return Local(slot.buffer, whole.offset_bytes, dtype, whole.count, rows, 1, blocks)
