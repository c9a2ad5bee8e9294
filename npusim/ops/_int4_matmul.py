"""int8 rows times int4 weights: each int8 is split into two int4, whose products are joined.

.. code-block:: text

    x = 16 hi + lo + 8,   hi = floor(x / 16),   lo = (x & 15) - 8        both in [-8, 7]

The cube multiplies int4 by int4. Row m of x becomes rows 2m, hi, and 2m + 1, lo; the fixpipe scales
the sums of both and rounds them to float16, one group of k after another, each added in float16 to
the output so far. Vector cores then join them to 16 hi + lo. The 8 is in the row that the caller
adds: 8 times the sum of each column of the weight, scaled.

ops-nn@e5c3fa9 matmul/quant_batch_matmul_v4/op_kernel, quant_batch_matmul_v4_msd.h;
ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel, grouped_matmul_antiquant_a8w4_msd*.h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, INT8, INT16, INT32, Array, DType
from npusim.data.integers import align_up
from npusim.isa import REPEAT_BYTES, Local
from npusim.kernel.core import TileQueue
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube_core import CubeCore, L0Pair, ScaleTable
from npusim.kernel.matmul import BaseTile, Matmul
from npusim.kernel.matrices import GmMatrix, GmTile, l0c_elements
from npusim.kernel.plane import REPEAT, Plane, RowFactors, by_row
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Step
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, repeat
from npusim.ops._matmul_oracle import IntProduct, exact_int, scale_of_words, shifted

__all__ = [
    "FILLED",
    "MAX_ROW",
    "READ",
    "DigitSplitter",
    "DigitSums",
    "Epilogue",
    "GroupRuns",
    "HalfSums",
    "ScaledGroups",
    "digit_sums",
    "digits_of",
    "scaled_groups",
    "unpacked",
]

FILLED, READ = 0, 1
"""Flags between a cube core and its vector cores: the workspace has a block; it was read."""
MAX_ROW = 29576
"""Elements of a row that the unified buffer holds together with its intermediate results
(ops-nn@e5c3fa9 quant_batch_matmul_v4, the tiling of msd)."""
LOW_BITS = 0x0F0F
"""The lower four bits of two int8."""

# ---- vector cores: int8 as two int4 ----


def digits_of(m: int, k: int) -> GmView:
    """The workspace for the digits of *m* rows: `(2 m, k)` int4, high digits in even rows."""
    return GmView.of("digits", INT4, 2 * m, k)


class DigitSplitter:
    """Writes int8 rows of up to *k* elements, an even count, as two int4 each."""

    def __init__(self, core: VectorCore, k: int) -> None:
        width = align_up(k, REPEAT_BYTES)
        self.core = core
        self.x_in = core.vecin(INT8, width)
        self.half = core.tile(FLOAT16, width)
        self.low = core.tile(INT8, width)
        self.mask = core.tile(INT16, REPEAT_BYTES * 8 // INT16.bits)
        self.digits_out = core.vecout(INT4, width)

    def step(
        self,
        x: GmView,
        cores: int,
        order: int,
        events: tuple[int, int],
        add_up: Callable[[int], None] | None = None,
    ) -> Step:
        """Every core writes the digits of its share of the rows of *x* `(m, k)`, and may *add_up*.

        Then all wait for each other by the first of *events*, and set the second one for cube
        cores.
        """
        core, digits = self.core, digits_of(x.rows, x.columns)

        def split(index: int) -> None:
            core.duplicate(self.mask, LOW_BITS)
            for row in range(index, x.rows, cores):
                repeat(core, self._row, x[row : row + 1, :], digits[2 * row : 2 * row + 2, :])
            if add_up is not None:
                add_up(index)
            core.end_stage()
            sync_all(core, "mte3", "mte2", *events)

        number = np.arange(cores)
        return Step(split, (number,), number, np.full(cores, order))

    def _row(self, x: GmView, digits: GmView) -> None:
        """Write *x* `(1, k)` to *digits* `(2, k)`."""
        core, k = self.core, x.columns
        loaded, half = core.load_rows(self.x_in, x), self.half[:k]
        # (k,) int8 -> fp16, / 16 exactly, rounded down to int4
        core.cast(half, loaded[:k], "none")
        core.mul(half, half, 1 / 16)
        self._store(half, digits[:1, :], floor=True)
        # The lower four bits, two elements at a time in full repeats: 0 ... 15, minus 8.
        pairs = align_up(k, REPEAT_BYTES) // 2
        low = self.low.as_dtype(INT16, pairs)
        mask = replace(self.mask, count=pairs, repeat_stride=0)
        core.bitwise("and", low, loaded.as_dtype(INT16, pairs), mask)
        self.x_in.free(loaded)
        core.cast(half, self.low[:k], "none")
        core.add(half, half, -8.0)
        self._store(half, digits[1:, :], floor=False)

    def _store(self, half: Local, digit: GmView, *, floor: bool) -> None:
        tile = self.digits_out.alloc()
        self.core.cast(tile[: half.count], half, "floor" if floor else "none")
        self.core.store_rows(self.digits_out, tile, digit)


# ---- cube cores ----


class ScaledGroups:
    """Blocks of `(rows, k) @ (k, columns)`: `C = f16(C + f16(f32(sum of a group) x scale))`.

    The first group of k is stored, the others are added in place, in ascending order.
    """

    def __init__(
        self,
        core: CubeCore,
        tile: BaseTile,
        a: GmMatrix,
        b: GmMatrix,
        k: int,
        *,
        signals: bool = True,
    ) -> None:
        """*k* is that of a group; *signals* says whether each block sets the flag FILLED."""
        self.core, self.k, self.signals = core, k, signals
        self.a, self.b = a, b
        self._cube = Matmul(core, tile, a, b, k)
        self._scales = ScaleTable(core, tile.n)

    def block(
        self,
        a: GmTile,
        b: GmTile,
        scale: GmView,
        sums: GmView,
        waits: bool,
        matrices: tuple[GmMatrix, GmMatrix] | None = None,
    ) -> None:
        """Write *sums* `(rows, columns)` of *a* and *b*, tiles with all of k.

        They are tiles of *matrices*, or of those given to the constructor. *scale* is `(groups,
        columns)`. *waits* means that the workspace was filled before, and its contents must first
        have been read.
        """
        of_a, of_b = matrices or (self.a, self.b)
        self._cube.use(of_a, of_b)
        for group in range(scale.rows):
            k = group * self.k
            repeat(
                self.core,
                self._group,
                a.part_of_k(of_a, k, self.k),
                b.part_of_k(of_b, k, self.k),
                scale.row(group),
                sums,
                waits and group == 0,
                group > 0,
                self.signals and group == scale.rows - 1,
                (of_a, of_b),
            )

    def _group(
        self,
        a: GmTile,
        b: GmTile,
        scale: GmView,
        sums: GmView,
        waits: bool,
        adds: bool,
        is_last: bool,
        _: tuple[GmMatrix, GmMatrix],
    ) -> None:
        """Scale the *sums* `(rows, columns)` of one group, and store or add them."""
        total = self._cube.multiply(a.extent, b.extent, a.k)
        words = self._scales.load(scale)
        if waits:
            self.core.cross_core_wait_flag("group", "fixpipe", READ)
        # L0C (columns / 16, rows_padded, 16) int32 -> (rows, columns) fp16
        self._cube.fixpipe(sums, total, "deqf16", words, atomic=adds)
        if is_last:
            self.core.cross_core_set_flag("group", "fixpipe", FILLED)


class GroupRuns:
    """Products of groups of k, several per load of both operands.

    L1 holds two loads, L0 two groups, and L0C the sums of one.
    """

    def __init__(
        self,
        core: CubeCore,
        block: tuple[int, int],
        operands: tuple[GmMatrix, GmMatrix],
        group_k: int,
        groups: int,
    ) -> None:
        """Claim buffers for blocks of that many rows and columns; *groups* of *group_k* a load."""
        self.core, self.group_k, self.k = core, group_k, groups * group_k
        (m, n), (a, b) = block, operands
        self._sides = [(each, core.l1_queue(each, x, self.k)) for each, x in ((a, m), (b, n))]
        self._l0 = L0Pair(core, a.dtype, m, n, group_k)
        self._sums = core.l0c_queue(INT32, m, n)

    def run(self, m: int, n: int) -> Iterator[Local]:
        """The int32 sums of (m, k) times (k, n), one group after another, in L0C.

        The operands are at the start of their names of global memory. Release the sums by `free`
        when the fixpipe has read them.
        """
        pieces = []
        for (matrix, queue), extent in zip(self._sides, (m, n), strict=True):
            tile = queue.alloc()
            pieces.append(self.core.load_matrix(tile, matrix, extent, self.k))
            queue.enque(tile)
            queue.deque()
        a, b = pieces
        for start in range(0, self.k, self.group_k):
            sums = self._sums.alloc()[: l0c_elements(m, n)]
            # (m, group_k) @ (group_k, n) -> (m, n)
            self._l0.multiply(sums, a.at(start), b.at(start), (m, n, self.group_k))
            self._sums.enque(sums)
            self._sums.deque()
            yield sums
        for (_, queue), piece in zip(self._sides, pieces, strict=True):
            queue.free(piece.tile)

    def free(self, sums: Local) -> None:
        """Release L0C, which has been read."""
        self._sums.free(sums)


# ---- vector cores: from sums to the output ----


class HalfSums:
    """Float16 sums of up to *rows* x *columns*, widened."""

    def __init__(self, core: VectorCore, rows: int, columns: int) -> None:
        self.core = core
        count = rows * align_up(columns, REPEAT)
        self.sums_in = core.vecin(FLOAT16, count, depth=2)
        self.plane = core.tile(FLOAT32, count)

    def take(self, sums: GmView) -> Plane:
        """*sums* `(rows, columns)` in fp32."""
        plane = Plane(self.plane, sums.rows, align_up(sums.columns, REPEAT))
        _widened(self.core, self.sums_in, sums, plane)
        return plane


class DigitSums:
    """Float16 sums of both digits, of up to *rows* x *columns*, joined in fp32."""

    def __init__(self, core: VectorCore, rows: int, columns: int) -> None:
        self.core = core
        count = rows * align_up(columns, REPEAT)
        self.high_in, self.low_in = (core.vecin(FLOAT16, count, depth=2) for _ in range(2))
        self.plane, self.work = (core.tile(FLOAT32, count) for _ in range(2))

    def work_like(self, plane: Plane) -> Plane:
        """A scratch plane of that size."""
        return Plane(self.work, plane.rows, plane.columns)

    def take(self, sums: GmView) -> Plane:
        """`f32(lo) + f32(hi) * 16` of *sums* `(2 rows, columns)`, high digits in even rows."""
        core, rows, pitch = self.core, sums.rows // 2, sums.pitch
        # One row for both: (rows, 2 x pitch), of which the first columns are high digits.
        both = GmView(sums.name, sums.dtype, rows, 2 * pitch, 2 * pitch, sums.offset_bytes)
        plane = Plane(self.plane, rows, align_up(sums.columns, REPEAT))
        work = self.work_like(plane)
        _widened(core, self.high_in, both[:, : sums.columns], plane)
        _widened(core, self.low_in, both[:, pitch : pitch + sums.columns], work)
        core.mul(plane.whole(), plane.whole(), 16.0)
        core.add(plane.whole(), work.whole(), plane.whole())
        return plane


def _widened(core: VectorCore, queue: TileQueue, sums: GmView, plane: Plane) -> None:
    """Load float16 *sums* into the float32 *plane*."""
    loaded = core.load_rows(queue, sums, pitch=plane.columns)
    core.cast(plane.whole(), loaded[: plane.rows * plane.columns])
    queue.free(loaded)


class Epilogue:
    """`y((sum [+ offset of the column]) * factor of the row)`, rounded to nearest even."""

    def __init__(
        self,
        core: VectorCore,
        block: tuple[int, int],
        out: DType,
        *,
        digits: bool,
        offset: bool,
    ) -> None:
        """Claim room for that many rows and columns of the output.

        *digits* says whether a row of sums is two, of high and of low digits, and *offset* whether
        an offset is added to each column.
        """
        rows, columns = block
        width = align_up(columns, REPEAT)
        self.core, self.max_rows = core, rows
        self.sums = (DigitSums if digits else HalfSums)(core, rows, width)
        self.offset_in = core.vecin(FLOAT32, width if offset else 0)
        self.factors = RowFactors(core, rows)
        self.out = core.vecout(out, rows * width, depth=2)

    def block(
        self,
        sums: GmView,
        output: GmView,
        offset: GmView | None,
        factors: GmView,
        turn: int,
        product: tuple[GmView, GmView] | None = None,
    ) -> None:
        """*output* `(rows, columns)`, *offset* `(columns,)`, *factors* `(rows,)`.

        Two vector cores alternate over its chunks of rows, starting with the one of *turn* 0. For
        sums of digits, the *product* of a vector of rows and a vector of columns may be added.
        """
        each = sums.rows // output.rows
        self.core.cross_core_wait_flag("group", "mte2", FILLED)
        for row, rows in list(pieces(output.rows, self.max_rows))[turn::2]:
            here, own = slice(row, row + rows), slice(each * row, each * (row + rows))
            added = None if product is None else (product[0][:, here], product[1])
            self._rows(sums[own, :], output[here, :], offset, factors[:, here], added)
        self.core.cross_core_set_flag("group", "mte2", READ)

    def _rows(
        self,
        sums: GmView,
        output: GmView,
        offset: GmView | None,
        factors: GmView,
        product: tuple[GmView, GmView] | None,
    ) -> None:
        """Compute some rows of *output*, whose sums are available."""
        core = self.core
        # fp32, rows padded to whole repeats
        plane = self.sums.take(sums)
        if offset is not None:
            loaded = core.load_rows(self.offset_in, offset)
            by_row(core, "add", plane, loaded[: offset.columns])
            self.offset_in.free(loaded)
        if product is not None:
            assert isinstance(self.sums, DigitSums)
            of_rows, of_columns = product
            work = self.sums.work_like(plane)
            loaded = core.load_rows(self.offset_in, of_columns)
            self.factors.product(work, of_rows, loaded[: of_columns.columns])
            self.offset_in.free(loaded)
            core.add(plane.whole(), work.whole(), plane.whole())
        self.factors.multiply(plane, factors)
        result = self.out.alloc()
        core.cast(result[: plane.rows * plane.columns], plane.whole(), "rint")
        core.store_rows(self.out, result, output, plane.columns)


# ---- oracle ----

F32 = np.float32


def unpacked(words: Array, turned: bool = False) -> Array:
    """int4 as int8, from int32 with eight each, lowest bits first, along the last axis.

    *turned*: along the second-last axis.
    """
    matrix = words.swapaxes(-1, -2) if turned else words
    nibbles = (matrix[..., None] >> np.arange(0, 32, 4, dtype=np.int32)) & 0xF
    whole = ((nibbles ^ 8) - 8).astype(np.int8)
    whole = whole.reshape(*matrix.shape[:-1], 8 * matrix.shape[-1])
    return whole.swapaxes(-1, -2) if turned else whole


def scaled_groups(a: Array, b: Array, words: Array, multiply: IntProduct = exact_int) -> Array:
    """float16 sums of `(m, k) @ (k, n)` int4: groups of k scaled by *words* `(groups, n)`.

    Each group is rounded to float16, and so is every sum of groups, in ascending order.
    """
    groups = len(words)
    size = a.shape[-1] // groups
    words = words.astype(np.int64)
    factors = scale_of_words(words)
    total = np.zeros((a.shape[0], b.shape[1]), np.float16)
    with np.errstate(all="ignore"):
        for group in range(groups):
            ks = slice(group * size, (group + 1) * size)
            sums = shifted(multiply(a[:, ks], b[ks]), words[group]).astype(F32)
            half = (sums * factors[group]).astype(np.float16)
            total = half if group == 0 else total + half
    return total


def digit_sums(x: Array, weight: Array, words: Array, multiply: IntProduct = exact_int) -> Array:
    """`f32(lo) + f32(hi) * 16` of int8 *x* `(m, k)` times int4 *weight* `(k, n)`, both in int8."""
    digits = np.floor_divide(x, 16), (x & 15) - 8
    hi, lo = (
        scaled_groups(each.astype(np.int8), weight, words, multiply).astype(F32) for each in digits
    )
    with np.errstate(all="ignore"):
        return np.asarray(lo + hi * F32(16))
