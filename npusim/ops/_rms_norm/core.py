"""The core for which the kernels of the family are written: a vector core with more verbs.

A row of fp32 is summed in one of two orders. Both end in WholeReduceSum over 64 lanes, a tree of
neighbours. Buffers are in the order in which the vendor's kernels claim them, with the sizes of the
tiling: the offsets of a row and of its squares decide which repeats conflict in a bank.

ops-nn@e5c3fa9 norm/rms_norm/op_kernel/rms_norm_base.h and reduce_common.h, and for the residual
sum norm/add_rms_norm/op_kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.kernel import (
    BLOCK_BYTES,
    FLOAT16,
    FLOAT32,
    FLOATS_PER_BLOCK,
    FLOATS_PER_REPEAT,
    Binary,
    BinaryScalar,
    DType,
    GmView,
    Local,
    Register,
    TileQueue,
    VectorCore,
    WholeReduce,
)


def block_of(tile: Local, row: int) -> Local:
    """Block *row* of fp32 *tile*."""
    return tile[row * FLOATS_PER_BLOCK : (row + 1) * FLOATS_PER_BLOCK]


def upper_half(room: Local, dtype: DType) -> Local:
    """Elements of *dtype*, as many as in *room*, at its end: 16 bits in the upper half of fp32."""
    whole = room.as_dtype(dtype)
    return whole[whole.count - room.count :]


def whole_and_rest(count: int) -> tuple[slice, ...]:
    """The full repeats of *count* fp32 elements, and the rest: two instructions, or one."""
    whole = count // FLOATS_PER_REPEAT * FLOATS_PER_REPEAT
    return tuple(part for part in (slice(0, whole), slice(whole, count)) if part.start < part.stop)


def every_row(plane: Local, rows: int, start: int, columns: int) -> Local:
    """*columns* of all *rows* of *plane*, from column *start* on: one repeat per row.

    They are padded to whole blocks.
    """
    per_block = BLOCK_BYTES * 8 // plane.dtype.bits
    blocks, stride = ceil_div(columns, per_block), plane.count // rows // per_block
    first = plane.offset_bytes + plane.dtype.nbytes(start)
    count = rows * blocks * per_block
    return Local(plane.buffer, first, plane.dtype, count, 1, stride, blocks)


def columns_of(plane: Local, rows: int) -> Iterator[Local]:
    """One repeat of columns of all *rows* of *plane* after another, cut by `every_row`."""
    lanes, pitch = plane.repeat_elements, plane.count // rows
    for start in range(0, pitch, lanes):
        yield every_row(plane, rows, start, min(lanes, pitch - start))


def times_blocks(dst: Local, plane: Local, blocks: Local, rows: int) -> Iterator[Binary]:
    """Each of *rows* of *plane* times the value in its block of *blocks*, to *dst*."""
    for here, to in zip(columns_of(plane, rows), columns_of(dst, rows), strict=True):
        # Stride 0: one block for all eight; repeat stride 1: the block of the next row.
        first = blocks.offset_bytes
        block = replace(here, offset_bytes=first, block_stride=0, repeat_stride=1)
        yield Binary("mul", to, here, block)


def times_row(plane: Local, row: Local, rows: int) -> Iterator[Binary]:
    """Multiply each of *rows* of *plane* by *row* `(pitch,)`, in its type and in place."""
    for here in columns_of(plane, rows):
        first = row.offset_bytes + here.offset_bytes - plane.offset_bytes
        yield Binary("mul", here, here, replace(here, offset_bytes=first, repeat_stride=0))


class Rounding(NamedTuple):
    """How the sum of two 16-bit tensors is used in fp32."""

    is_exact: bool
    """Whether unrounded, rather than as stored."""
    in_half: bool = True
    """Whether fp16 is added in fp16, so that it is rounded in any case."""


class NormCore(VectorCore):
    """A vector core programmed for rows of `1 / mean` columns."""

    def __init__(self, op: str, spec: DeviceSpec, mean: float, epsilon: float) -> None:
        super().__init__(op, spec)
        self.mean, self.epsilon = mean, epsilon

    def blocks(self, count: int = 1) -> Local:
        """A tile of *count* blocks of fp32."""
        return self.tile(FLOAT32, count * FLOATS_PER_BLOCK)

    def lanes(self, rows: int = 1) -> Local:
        """A tile for 64 running sums of each of *rows*."""
        return self.tile(FLOAT32, rows * FLOATS_PER_REPEAT)

    # ---- sums ----

    def lanes_of_row(self, lanes: Local, values: Local) -> None:
        """Write 64 running sums of *values* `(n,)` to *lanes*.

        One Add, whose repeats depend on each other; the rest of the row is added to the first
        lanes.
        """
        self.duplicate(lanes, 0.0)
        whole = values.count // FLOATS_PER_REPEAT * FLOATS_PER_REPEAT
        if whole:
            self.fold("add", lanes, values[:whole])
        if left := values.count - whole:
            self.add(lanes[:left], values[whole:], lanes[:left])

    def lanes_into(self, total: Local, lanes: Local, values: Local) -> None:
        """Write the sum of *values* `(n,)` to *total* `(1,)`, by 64 running sums in *lanes*."""
        self.lanes_of_row(lanes, values)
        self.whole_reduce("sum", total, lanes)

    def rows_into(self, totals: Local, lanes: Local, plane: Local, columns: int) -> None:
        """Write the sums of the first *columns* of each row of *plane* to *totals* `(rows,)`.

        *plane* is `(rows, pitch)`, *lanes* has room for `(rows, 64)`. An Add covers 64 columns of
        all rows, so that none of its repeats waits for another; the padding of the last block of a
        row must be 0.
        """
        rows = totals.count
        lanes = lanes[: rows * FLOATS_PER_REPEAT]
        self.duplicate(lanes, 0.0)
        for start in range(0, columns, FLOATS_PER_REPEAT):
            width = min(FLOATS_PER_REPEAT, columns - start)
            sums = every_row(lanes, rows, 0, width)
            self.add(sums, every_row(plane, rows, start, width), sums)
        if columns % FLOATS_PER_REPEAT == 0:
            # The barrier behind the remaining columns, if there are any.
            self.barrier("vector")
        self.whole_reduce("sum", totals, lanes)

    def halve(self, values: Local) -> Local:
        """Sum *values* `(n,)` into at most 64 lanes, which are returned; *values* is overwritten.

        Elements beyond the largest power of two are added to the first ones, then the upper half to
        the lower one until 64 are left: one Add each, followed by a barrier.
        """
        if values.count > FLOATS_PER_REPEAT:
            half = 1 << (values.count.bit_length() - 1)
            if left := values.count - half:
                self.add(values[:left], values[:left], values[half:])
            while half > FLOATS_PER_REPEAT:
                half //= 2
                self.add(values[:half], values[:half], values[half : 2 * half])
        return values[: min(values.count, FLOATS_PER_REPEAT)]

    def halve_into(self, total: Local, values: Local) -> None:
        """Write the sum of *values* `(n,)` to *total* `(1,)`, in the order of `halve`."""
        self.whole_reduce("sum", total, self.halve(values))

    def read_sum(self, register: Register, values: Local) -> None:
        """Sum *values* `(n,)` in place, in the order of `halve`, and into *register*."""
        self.emit(WholeReduce("sum", values[:1], self.halve(values)))
        self.sync("vector", "scalar")
        self.get_value(register, values[:1])

    def sums_of_blocks(self, sums: Local, blocks: Local) -> None:
        """Write the sum of each of *blocks* to *sums*: of full repeats, then of the rest."""
        for part in whole_and_rest(blocks.count):
            to = slice(part.start // FLOATS_PER_BLOCK, part.stop // FLOATS_PER_BLOCK)
            self.block_reduce("sum", sums[to], blocks[part])

    # ---- 1 / root ----

    def root_of(self, total: Register) -> None:
        """`1 / sqrt(total x mean + epsilon)` to register `root`, by the scalar unit.

        That the scalar unit rounds the product before the sum is assumed.
        """
        self.alu("f32_mul", "root", total, self.mean)
        self.alu("f32_add", "root", "root", self.epsilon)
        self.alu("f32_sqrt", "root", "root")
        self.alu("f32_div", "root", 1.0, "root")

    def root_by_vector(self, roots: Local, ones: Local, *, one_by_one: bool = False) -> None:
        """`1 / sqrt(roots + epsilon)` in place of *roots*; *ones* has room for as many.

        *one_by_one* also writes a barrier between Sqrt and Duplicate (add_rms_norm_quant.h:231).
        """
        self.add(roots, roots, self.epsilon)
        with nullcontext() if one_by_one else self.independent():
            self.sqrt(roots, roots)
            self.duplicate(ones, 1.0)
        self.div(roots, ones, roots)

    def read_root(self, where: Local) -> None:
        """Read *where* `(1,)` into register `root`, synchronised with the vector pipe."""
        self.sync("vector", "scalar")
        self.get_value("root", where)
        self.sync("scalar", "vector")

    def root_of_row(
        self, values: Local, squares: Local, lanes: Local, *, one_by_one: bool = False
    ) -> Local:
        """1 / root of *values* `(n,)`, `(1,)`, written to the start of their *squares*.

        For *one_by_one* see `root_by_vector`.
        """
        total = squares[:1]
        self.square(squares, values)
        self.lanes_into(total, lanes, squares)
        # One behind the sum, and one behind the call (ops-nn, add_rms_norm.h:176).
        self.barrier("vector")
        self.root_by_vector(total, lanes[:1], one_by_one=one_by_one)
        return total

    # ---- products ----

    def square(self, squares: Local, values: Local) -> None:
        """The squares of *values*, each times 1 / n."""
        self.mul(squares, values, values)
        self.mul(squares, squares, self.mean)

    def times_gamma_rounded(self, y: Local, values: Local, gamma: Local, work: Local) -> None:
        """Round fp32 *values* to bf16 and multiply them by *gamma*, to *y*, all through fp32.

        *values* and *work* are overwritten.
        """
        self.cast(y, values)
        self.cast(values, y)
        self.cast(work, gamma)
        self.mul(values, values, work)
        self.cast(y, values)

    # ---- sum of two tensors ----

    def load_pair(self, x_in: TileQueue, second: Local, x1: GmView, x2: GmView) -> None:
        """Load *x1* to the tile of *x_in* and *x2* to *second*, with one flag for both."""
        tile = x_in.alloc()
        self.fill(tile, x1)
        self.fill(second, x2)
        x_in.enque(tile)
        x_in.deque()

    def add_in_float32(self, values: Local, addends: tuple[Local, Local], work: Local) -> None:
        """Write the sum of *addends*, of 16 bits, to fp32 *values*, using *work*."""
        with self.independent():
            self.cast(values, addends[0])
            self.cast(work, addends[1])
        self.add(values, values, work)


@dataclass(frozen=True)
class Residual:
    """The sum of a row of x1 and one of x2, or of a piece of each."""

    core: NormCore
    x_in: TileQueue
    """The queue of one tile, for x1."""
    second: Local
    """Buffer into which x2 is loaded."""
    y_out: TileQueue
    """Queue from which the sum is stored, and later y."""
    values: Local
    """The sum in fp32; an fp32 sum replaces x1."""
    work: Local
    """Scratch for squares in fp32."""
    rounding: Rounding
    in_pieces: bool
    """Whether rows come in pieces, whose x2 is widened in place over x1 and x2."""

    def __call__(self, x1: GmView, x2: GmView, x: GmView) -> tuple[Local, Local]:
        """The sum of *x1* and *x2* in fp32, which is stored to *x*; and scratch for its squares.

        The tile of x1 is free; a reader of an fp32 sum must take it again (`take_again`).
        """
        core, n = self.core, x.columns
        out = None if self.in_pieces else self.y_out.alloc()
        core.load_pair(self.x_in, self.second, x1, x2)
        out = (out or self.y_out.alloc())[:n]
        self.add(out, self.values[:n], (self.x_in.only.as_dtype(x.dtype)[:n], self.second[:n]))
        self.x_in.free(self.x_in.only)
        core.store(self.y_out, out, x)
        return self.values[:n], self.work[:n]

    def add(self, out: Local, values: Local, addends: tuple[Local, Local]) -> None:
        """Write the sum of *addends* to *out*, in their type, and to fp32 *values*."""
        core = self.core
        if out.dtype is FLOAT32:
            core.add(values, *addends)
            core.emit(BinaryScalar("add", out, values, 0.0))
            return
        if out.dtype is FLOAT16 and self.rounding.in_half:
            core.add(out, *addends)
            core.cast(values, out)
            return
        if self.in_pieces:
            wide = self.x_in.only.as_dtype(FLOAT32)[: values.count]
            core.cast(values, addends[0])
            core.cast(wide, addends[1])
            core.add(values, values, wide)
        else:
            core.add_in_float32(values, addends, self.work[: values.count])
        core.cast(out, values)
        if not self.rounding.is_exact:
            core.cast(values, out)

    def take_again(self) -> None:
        """Prevent loads into the tile of x1 while its fp32 sum is read."""
        if self.x_in.dtype is FLOAT32:
            self.x_in.alloc()

    def give_back(self) -> None:
        """Release the fp32 sum, if it is one."""
        if self.x_in.dtype is FLOAT32:
            self.x_in.free(self.x_in.only)

    def roots_of_parts(
        self,
        roots: Local,
        room: tuple[Local, Local],
        parts: tuple[slice, ...],
        *views: GmView,
    ) -> None:
        """Write 1 / root of some rows of x1 and x2, whose sum goes to x, to *roots* `(rows,)`.

        Each piece is processed for all rows. *room* is for one block per row, and for 64 running
        sums.
        """
        core, (blocks, lanes) = self.core, room
        blocks = blocks[: roots.count * FLOATS_PER_BLOCK]
        core.duplicate(roots, 0.0)
        for part in parts:
            for row in range(roots.count):
                values, squares = self(*(view[row : row + 1, part] for view in views))
                self.take_again()
                core.barrier("vector")
                core.emit(Binary("mul", squares, values, values))
                self.give_back()
                core.barrier("vector")
                core.mul(squares, squares, core.mean)
                core.lanes_of_row(lanes, squares)
                core.block_reduce("sum", block_of(blocks, row), lanes)
            core.sums_of_blocks(blocks[: roots.count], blocks)
            core.add(roots, roots, blocks[: roots.count])
        core.root_by_vector(roots, lanes[: roots.count])


class RootsOfRows:
    """1 / root of up to *rows* rows, collected as pipe *source* finds them, and stored together.

    On 310P, which stores whole blocks, they are added to global memory, so that rows of another
    core in the same block get zeros. The vendor's kernel clears that memory first; here it is zero
    when allocated, which ignores the time of a few bytes. Unless they are stored (*is_stored*) they
    only stay until the next rows.
    """

    def __init__(
        self, core: VectorCore, rows: int, source: Pipe = "scalar", *, is_stored: bool = True
    ) -> None:
        self.core, self.source = core, source
        count = align_up(rows, FLOATS_PER_BLOCK)
        self.room: TileQueue | Local = (
            core.tiles(FLOAT32, count, source, "mte3") if is_stored else core.tile(FLOAT32, count)
        )

    def alloc(self) -> Local:
        """Room for the next rows."""
        if isinstance(self.room, Local):
            return self.room
        return self.room.alloc()

    def store(self, roots: Local, rstd: GmView) -> None:
        """Store *roots* to *rstd* `(rows,)`."""
        core = self.core
        if isinstance(self.room, Local):
            return
        if not core.is_310p:
            core.store_rows(self.room, roots, rstd)
            return
        whole = align_up(rstd.columns, FLOATS_PER_BLOCK)
        for row in range(rstd.columns, whole) if self.source == "scalar" else ():
            core.alu("add", "zero", 0)
            core.set_value(roots[row : row + 1], "zero")
        self.room.enque(roots)
        roots = self.room.deque()
        core.store_add(replace(rstd, columns=whole), roots[:whole])
        self.room.free(roots)
