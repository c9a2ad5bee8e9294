"""The template weight_nz: coupled cores dequantise the weight in their unified buffer.

For each block (m, n) of the output, one k tile after the other (ops-nn@e5c3fa9
matmul/weight_quant_batch_matmul_v2/op_kernel/*_weight_nz_performance{,_base}.h):

.. code-block:: text

    weight   (n, k) int8 in parts of at most 128 x 128: load, cast, + offset, x scale, copy to L1
    x        (m, k) fp16 in parts: load rows, convert them to Nz, copy to L1
    bias     loaded and cast to fp32; the first k tile writes it into L0C
    cube     sums += x @ weight, base_k after base_k

L1 holds one piece of each operand, and nearly every flag is waited for where it is set: the next
part of the weight is loaded when the cast of this one has ended and mte1 has issued all its loads,
the next k tile when this one is in L1. Results use the buffers of the weight, so blocks do not
overlap either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, UINT8, DType
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryOp,
    Cast,
    Copy,
    Local,
)
from npusim.kernel import views
from npusim.kernel.ai_core import AiCore, NdFeed
from npusim.kernel.cube_core import L0Pair, MmadInit
from npusim.kernel.matrices import GmMatrix, GmTile, L1Matrix, l0c_elements, l1_elements, l1_rows
from npusim.kernel.program import Block
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Step
from npusim.kernel.tiles import whole_edges
from npusim.kernel.views import GmView
from npusim.ops._dequantised_weight import MatrixTile, tile_view
from npusim.ops.npu_weight_quant_batchmatmul.problem import Plan, Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates import arguments_of, rectangles

# ---- how the work is split ----


class Tiles(NamedTuple):
    """A row of the vendor's table; counts of elements unless the name says otherwise."""

    cores_n: int
    cores_m: int
    part_m: int
    part_x_k: int
    """m and k of x that are converted to Nz at a time."""
    part_k: int
    """k of the weight that is dequantised at a time."""
    l1_k: int
    """k of a piece in L1."""
    base_m: int
    base_n: int
    base_k: int
    l0c_depth: int


_WIDE = Tiles(4, 2, 128, 128, 128, 128, 512, 128, 32, 1)
SHAPES = {
    (4, 2048, 4096): Tiles(8, 1, 64, 256, 128, 256, 64, 256, 64, 2),
    (4, 5504, 4096): Tiles(8, 1, 16, 256, 128, 256, 16, 704, 16, 2),
    (4, 4096, 2048): Tiles(8, 1, 16, 256, 128, 256, 16, 512, 32, 2),
    (4, 65000, 4096): Tiles(8, 1, 16, 128, 128, 256, 16, 512, 32, 2),
    (4, 4096, 5504): Tiles(8, 1, 16, 256, 128, 256, 16, 512, 32, 2),
    (4, 11008, 4096): Tiles(8, 1, 16, 256, 128, 512, 16, 688, 16, 1),
    (512, 4096, 2048): Tiles(8, 1, 128, 128, 128, 256, 256, 256, 64, 1),
    (512, 4096, 5504): Tiles(8, 1, 128, 128, 128, 256, 256, 256, 64, 1),
    (896, 4096, 2048): Tiles(8, 1, 112, 128, 128, 256, 224, 256, 64, 1),
    (896, 4096, 5504): Tiles(8, 1, 112, 128, 128, 256, 224, 256, 64, 1),
    (4096, 2048, 4096): _WIDE,
    (4096, 5504, 4096): _WIDE,
    (4096, 65000, 4096): _WIDE._replace(cores_n=8, cores_m=1),
    (4812, 9612, 2462): Tiles(1, 1, 128, 128, 32, 128, 128, 256, 64, 1),
    (1811, 7925, 29): Tiles(1, 1, 128, 64, 32, 64, 128, 256, 32, 1),
    (14512, 3376, 48): Tiles(1, 1, 128, 128, 32, 576, 128, 256, 48, 1),
    (5232, 3872, 6736): Tiles(1, 1, 128, 128, 32, 256, 128, 256, 64, 1),
    (5236, 13521, 7310): Tiles(1, 1, 128, 128, 32, 128, 128, 256, 64, 1),
}
"""(m, n, k) whose tiles are known: ops-nn@e5c3fa9, op_host/op_tiling/*_weight_nz_tiling.cpp.

The table's counts of buffers in L1 are left out: the kernel reads only l1_k of them, and has one
piece of each operand there.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNzPlan(Plan):
    """A grid of cores; each computes a rectangle of the output."""

    core_m: int
    core_n: int
    tiles: Tiles


def tile(spec: DeviceSpec, p: Problem) -> WeightNzPlan:
    """Split by the table, else by the rule of `_assumed`; cores of the grid share evenly."""
    f, count = p.traits, spec.cores["ai_core"].count
    tiles = SHAPES.get((f.m, f.n, f.k))
    if tiles is None or tiles.cores_n * tiles.cores_m > count:
        tiles = _assumed(f.m, f.n, count)
    core_m = ceil_div(ceil_div(f.m, tiles.base_m), tiles.cores_m) * tiles.base_m
    core_n = ceil_div(ceil_div(f.n, tiles.base_n), tiles.cores_n) * tiles.base_n
    return WeightNzPlan(
        **p.chosen,
        block_dim=ceil_div(f.m, core_m) * ceil_div(f.n, core_n),
        core_m=core_m,
        core_n=core_n,
        tiles=tiles,
    )


def _assumed(m: int, n: int, cores: int) -> Tiles:
    """Tiles of any other shape, for which the vendor's rule is closed: assumed.

    Like the table, they let cores share n before m, and give a tile many columns if m is small.
    """
    max_m, max_n, base_k = (128, 256, 64) if m > 16 else (16, 512, 32)
    cores_n = min(cores, ceil_div(n, 128))
    # A store of less than a block overlaps the next row, which must be stored later.
    cores_m = 1 if FLOAT16.nbytes(n) < BLOCK_BYTES else cores // cores_n
    base_m = min(max_m, align_up(ceil_div(m, cores_m), FRACTAL_ROWS))
    base_n = min(max_n, align_up(ceil_div(n, cores_n), FRACTAL_ROWS))
    base_n = whole_edges(base_n, n, FLOAT16)
    part_m, part_x_k = min(base_m, 128), 128 if m > 16 else 256
    return Tiles(cores_n, cores_m, part_m, part_x_k, 128, 256, base_m, base_n, base_k, 2)


# ---- programs ----


def build(spec: DeviceSpec, p: Problem, plan: WeightNzPlan) -> tuple[Block, ...]:
    """Build the blocks of the output, core by core."""
    f, t, kernel = p.traits, plan.tiles, _Kernel(spec, p, plan)
    tiles = rectangles((f.m, f.n), (plan.core_m, plan.core_n), (t.base_m, t.base_n))
    parameters = [p.column_view(each) for each in (p.antiquant_offset, p.antiquant_scale) if each]
    vectors = p.column_view(p.bias), *parameters
    arguments = arguments_of(p, kernel.x, kernel.weight, tiles, *vectors)
    bound = plan.bindings(p)
    return kernel.core.launch(Step(kernel.block, arguments, tiles.core), bound=lambda _: bound)


class _Kernel:
    """The buffers of a core, and its computation of a block of the output."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: WeightNzPlan) -> None:
        f, self.t = p.traits, plan.tiles
        t, self.core = self.t, AiCore(plan.template, spec)
        core = self.core
        rows, columns = (f.k, f.m) if f.trans_x else (f.m, f.k)
        self.x, self.weight = GmMatrix("x", FLOAT16, rows, columns, f.trans_x), p.gm_weight
        # In the unified buffer: the weight and the output on top of it, x, parameters, the bias.
        self.b = _WeightFeed(core, self.weight, f.has_offset, t.base_n, t.part_k)
        part = (t.part_x_k, t.part_m) if f.trans_x else (t.part_m, t.part_x_k)
        self.a = NdFeed(core, self.x, part)
        self.out = _BlockOut(core, t.base_m, t.base_n, self.b.first)
        self.b.claim_parameters(t.base_n)
        columns_padded = align_up(t.base_n, FRACTAL_ROWS)
        if f.has_bias:
            self.bias_half = core.tile(FLOAT16, columns_padded)
            self.bias_row = core.tile(FLOAT32, columns_padded)
        # One piece of each operand in L1, and one event for both.
        longest = min(t.l1_k, align_up(f.k, FRACTAL_ROWS))
        count = l1_elements(FLOAT16, t.base_n, longest, self.b.k_is_first)
        self.l1_b = core.tiles(FLOAT16, count, "mte3", "mte1", 1, "l1")
        self.l1_a = core.l1_tile(self.x, t.base_m, longest)
        self.l0 = L0Pair(core, FLOAT16, t.base_m, t.base_n, t.base_k)
        self.l0c = core.l0c_queue(FLOAT32, t.base_m, t.base_n, t.l0c_depth, drain="vector")

    def block(
        self, x: GmTile, _weight: GmTile, output: GmView, bias: GmView | None, *parameters: GmView
    ) -> None:
        """`output = x @ weight + bias`, (m, k) @ (k, n), the weight dequantised while loading.

        The feeds load x and the weight, starting at these tiles.
        """
        core, m, n = self.core, output.rows, output.columns
        # (n,) fp16 scale and offset, for all k of the block
        self.b.load_parameters(parameters)
        # (n / 16, m, 16) fp32 sums
        sums = self.l0c.alloc()[: l0c_elements(m, n)]
        for k, count in pieces(x.k, self.t.l1_k):
            piece = self.l1_b.alloc()
            self.b.load(piece, k, count, n)
            self.a.load(self.l1_a, k, count, m)
            if bias is not None:
                self._start_from(bias, sums, m, is_first=k == 0)
            self.l1_b.enque(piece)
            piece = self.l1_b.deque()
            a, b = L1Matrix(self.l1_a, m, count, self.a.k_is_first), L1Matrix(piece, n, count)
            for start, step_k in pieces(count, self.t.base_k):
                # (m, step_k) @ (step_k, n); only the first step of all starts the sums.
                starts = k == start == 0 and bias is None
                init: MmadInit = "zero" if starts else "accumulate"
                self.l0.multiply(sums, a.at(start), b.at(start), (m, n, step_k), init)
            self.l1_b.free(piece)
            # Only then may the next weight be loaded.
            core.sync("mte3", "mte2")
        self.l0c.enque(sums)
        self.l0c.deque()
        self.out.drain(sums, output)
        self.l0c.free(sums)
        # The next weight is loaded to where the output was.
        core.sync("mte3", "mte2")

    def _start_from(self, bias: GmView, sums: Local, m: int, *, is_first: bool) -> None:
        """Load *bias* `(n,)` as fp32, for each k tile; the first one writes it into L0C."""
        core, columns = self.core, align_up(bias.columns, FRACTAL_ROWS)
        core.fetch(self.bias_half, bias)
        row = self.bias_row[:columns]
        core.cast(row, self.bias_half[:columns])
        if is_first:
            # (n,) -> (n / 16, m, 16), the same values in each row
            core.broadcast_to_l0c(sums, row, align_up(m, FRACTAL_ROWS))
            core.sync("vector", "cube")


# ---- loading the weight into L1 ----

PART_N = 128
"""Columns of the product that are dequantised at a time."""
CAST_K = 128
"""k of one repeat of a cast: 128 lanes. If less is left a mask selects 32 of them; the kernel does
so for parts that are short throughout, and for the end of longer ones it is assumed."""


class _WeightFeed:
    """The fp16 weight `(n, k)` in L1: int8 fractals of 32 columns become fp16 fractals of 16.

    One strided Cast does both. Its destination blocks are as many blocks apart as the part has
    rows, usually 128: all eight of a repeat fall into one group of banks, taking eight cycles.
    usually 128: all eight of a repeat into one group of banks, which takes eight cycles.
    """

    producer: Pipe = "mte3"
    k_is_first = False
    dtype: DType = FLOAT16

    def __init__(
        self, core: AiCore, weight: GmMatrix, has_offset: bool, n: int, part_k: int
    ) -> None:
        """Allocate space to dequantise *part_k* of k at a time, of *n* columns at most."""
        self.core, self.weight, self.part_k = core, weight, part_k
        self.part_n = min(align_up(n, FRACTAL_ROWS), PART_N)
        count = self.part_n * align_up(part_k, c0(INT8))
        # Alternating, for each k tile from the first on.
        self.int8 = [core.claim("ub", INT8.nbytes(count)) for _ in range(2)]
        self.fp16 = [core.vecout(FLOAT16, count) for _ in range(2)]
        self.steps: tuple[BinaryOp, ...] = ("add", "mul") if has_offset else ("mul",)

    @property
    def first(self) -> Slot:
        """The start of its buffers for the weight."""
        return self.int8[0]

    def claim_parameters(self, n: int) -> None:
        """Allocate space for *n* columns' scale and offset, as loaded and broadcast over blocks."""
        columns = align_up(n, FRACTAL_ROWS)
        self.vectors = [self.core.tile(FLOAT16, columns) for _ in self.steps]
        self.blocks = [self.core.tile(FLOAT16, c0(FLOAT16) * columns) for _ in self.steps]

    def load_parameters(self, parameters: tuple[GmView, ...]) -> None:
        """Broadcast `(n,)` of each parameter to `(n, 16)`, a block of copies each."""
        core = self.core
        for vector, view in zip(self.vectors, parameters, strict=True):
            core.fill(vector, view)
        core.sync("mte2", "vector")
        with core.independent():
            for vector, blocks, view in zip(self.vectors, self.blocks, parameters, strict=True):
                columns = align_up(view.columns, FRACTAL_ROWS)
                core.brcb(blocks[: c0(FLOAT16) * columns], vector[:columns])

    def load(self, l1: Local, k: int, count: int, extent: int) -> None:
        """Write positions [k, k + count) of *extent* columns of the product into *l1*."""
        l1_pitch = l1_rows(FLOAT16, extent, self.k_is_first) * BLOCK_BYTES
        for column, columns in pieces(extent, self.part_n):
            rows = align_up(columns, FRACTAL_ROWS)
            if rows < self.part_n:
                # Before a narrower last part the kernel waits until all pipes are idle.
                self.core.barrier()
            for number, (start, depth) in enumerate(pieces(count, self.part_k)):
                # (depth / 16, rows, 16) of the buffer into (count / 16, extent, 16) of L1
                tile, turn = MatrixTile(column, k + start, rows, depth), number % 2
                out = self._dequantise(tile, turn)
                blocks_k, nbytes = ceil_div(depth, c0(FLOAT16)), rows * BLOCK_BYTES
                offset_bytes = start // c0(FLOAT16) * l1_pitch + column * BLOCK_BYTES
                extent_bytes = (blocks_k - 1) * l1_pitch + nbytes
                dst = l1.as_dtype(UINT8).at(offset_bytes, extent_bytes)
                src = out.as_dtype(UINT8, nbytes * blocks_k)
                self.core.copy_to_l1(dst, src, nbytes, blocks_k, nbytes, l1_pitch)
                self.fp16[turn].free(out)

    def _dequantise(self, tile: MatrixTile, turn: int) -> Local:
        """Dequantise a *tile* `(rows, k)` of the weight to `(k / 16, rows, 16)` fp16 for mte3."""
        core, rows, raw = self.core, tile.rows, self.int8[turn]
        # (k / 32, rows, 32) int8 of FRACTAL_NZ
        views.fill(core, raw, tile_view(self.weight, tile), with_gaps=True)
        core.sync("mte2", "vector")
        out = self.fp16[turn].alloc()
        depth = align_up(tile.columns, c0(INT8))
        whole = depth // CAST_K * CAST_K
        for first in range(0, whole, CAST_K):
            self._cast(out, raw, rows, first, CAST_K)
        for first in range(whole, depth, c0(INT8)):
            self._cast(out, raw, rows, first, c0(INT8))
        # The next load waits for this cast, although it has its own buffer.
        core.sync("vector", "mte2")
        core.barrier("vector")
        for op, blocks in zip(self.steps, self.blocks, strict=True):
            count = c0(FLOAT16) * rows
            values = blocks.at(c0(FLOAT16) * tile.row, count)
            # (rows, 16) of one column of fractals in each micro-op, in place
            for block in range(ceil_div(tile.columns, c0(FLOAT16))):
                here = out.at(block * count, count)
                core.emit(Binary(op, here, here, values))
            core.barrier("vector")
        core.sync("mte1", "mte2")
        self.fp16[turn].enque(out)
        return self.fp16[turn].deque()

    def _cast(self, dst: Local, src: Slot, rows: int, first: int, width: int) -> None:
        """Cast columns [first, first + width) of all *rows* to fp16: a row in each repeat."""
        fp16, int8 = (
            Local(
                place.buffer,
                place.offset_bytes + first // c0(dtype) * rows * BLOCK_BYTES,
                dtype,
                width * rows,
                rows,
                1,
                width // c0(dtype),
            )
            for place, dtype in ((dst, FLOAT16), (src, INT8))
        )
        self.core.emit(Cast(fp16, int8))


# ---- storing the output from L0C ----

OUT_BYTES = 32768
"""Bytes that are copied out of L0C at a time (assumed)."""
REPEAT_BLOCKS = 8


class _BlockOut:
    """L0C to fp16 rows: converted into the buffer as Nz, reordered to ND, stored."""

    def __init__(self, core: AiCore, m: int, n: int, under: Slot) -> None:
        """Allocate space for blocks of *m* x *n* on top of *under*."""
        self.core = core
        core.claim_tails()
        rows_padded = align_up(m, FRACTAL_ROWS)
        max_columns = align_down(OUT_BYTES // FLOAT16.nbytes(rows_padded), FRACTAL_ROWS)
        self.max_columns = min(align_up(n, FRACTAL_ROWS), max(FRACTAL_ROWS, max_columns))
        with core.on_top_of(under):
            self.nz = core.tile(FLOAT16, rows_padded * self.max_columns)
            self.nd = core.vecout(FLOAT16, rows_padded * self.max_columns)

    def drain(self, src: Local, output: GmView) -> None:
        """Copy the fp32 sums *src*, `(n / 16, m, 16)` in L0C, to *output* `(m, n)`."""
        rows_padded = align_up(output.rows, FRACTAL_ROWS)
        # A piece of less than a block would overwrite its neighbour when stored.
        for column, columns in pieces(output.columns, self.max_columns, c0(FLOAT16)):
            count = rows_padded * align_up(columns, FRACTAL_ROWS)
            part = src.at(rows_padded * column, count)
            self.core.copy_l0c(self.nz[:count], part, rows_padded, "cast")
            self._store(output[:, column : column + columns])
            self.core.barrier("vector")

    def _store(self, output: GmView) -> None:
        """Reorder the Nz tile of these columns to rows, and store them.

        The vendor's kernel multiplies by one (Muls), which takes as long as a Copy but would not
        leave infinities and NaN as they are where overflow saturates.
        """
        rows, blocks_n = output.rows, ceil_div(output.columns, c0(FLOAT16))
        rows_padded, tile = align_up(rows, FRACTAL_ROWS), self.nd.alloc()
        for first in range(0, blocks_n, REPEAT_BLOCKS):
            # A row in each repeat: up to 8 blocks, rows_padded apart before, contiguous after.
            blocks = min(REPEAT_BLOCKS, blocks_n - first)
            count, start = rows * blocks * c0(FLOAT16), first * BLOCK_BYTES
            nd = Local("ub", tile.offset_bytes + start, FLOAT16, count, 1, blocks_n, blocks)
            start *= rows_padded
            nz = Local("ub", self.nz.offset_bytes + start, FLOAT16, count, rows_padded, 1, blocks)
            self.core.emit(Copy(nd, nz))
        self.core.store(self.nd, tile, output, blocks_n * c0(FLOAT16))
