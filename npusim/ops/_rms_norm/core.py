"""What the kernels of the family are written with: a vector core with more verbs, and rows.

A row of fp32 is added up in one of two orders. Both end in WholeReduceSum over 64 lanes, a tree of
neighbours. Buffers lie in the order in which the vendor's kernels claim them, as large as the
tiling has them: where a row and its squares are decides which repeats meet in a bank.

ops-nn@e5c3fa9 norm/rms_norm/op_kernel/rms_norm_base.h and reduce_common.h, and of what adds a
residual norm/add_rms_norm/op_kernel.
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
    """Block number *row* of fp32 *tile*."""
    return tile[row * FLOATS_PER_BLOCK : (row + 1) * FLOATS_PER_BLOCK]


def upper_half(room: Local, dtype: DType) -> Local:
    """Elements of *dtype*, as many as *room* has, at its end: 16 bits in the upper half of fp32."""
    whole = room.as_dtype(dtype)
    return whole[whole.count - room.count :]


def whole_and_rest(count: int) -> tuple[slice, ...]:
    """The whole repeats of *count* fp32 elements, and the others: two instructions, or one."""
    whole = count // FLOATS_PER_REPEAT * FLOATS_PER_REPEAT
    return tuple(part for part in (slice(0, whole), slice(whole, count)) if part.start < part.stop)


def every_row(plane: Local, rows: int, start: int, columns: int) -> Local:
    """*columns* of all *rows* of *plane*, from column *start* on: a repeat for each row.

    They are filled up to whole blocks.
    """
    per_block = BLOCK_BYTES * 8 // plane.dtype.bits
    blocks, stride = ceil_div(columns, per_block), plane.count // rows // per_block
    first = plane.offset_bytes + plane.dtype.nbytes(start)
    count = rows * blocks * per_block
    return Local(plane.buffer, first, plane.dtype, count, 1, stride, blocks)


def columns_of(plane: Local, rows: int) -> Iterator[Local]:
    """A repeat of columns of all *rows* of *plane* after the other, as `every_row` cuts them."""
    lanes, pitch = plane.repeat_elements, plane.count // rows
    for start in range(0, pitch, lanes):
        yield every_row(plane, rows, start, min(lanes, pitch - start))


def times_blocks(dst: Local, plane: Local, blocks: Local, rows: int) -> Iterator[Binary]:
    """Each of *rows* of *plane* times a number, which fills its block of *blocks*, to *dst*."""
    for here, to in zip(columns_of(plane, rows), columns_of(dst, rows), strict=True):
        # Stride 0: one block for each of the eight; repeat stride 1: that of the next row.
        first = blocks.offset_bytes
        block = replace(here, offset_bytes=first, block_stride=0, repeat_stride=1)
        yield Binary("mul", to, here, block)


def times_row(plane: Local, row: Local, rows: int) -> Iterator[Binary]:
    """Each of *rows* of *plane* times *row* `(pitch,)`, in its type and in the place of *plane*."""
    for here in columns_of(plane, rows):
        first = row.offset_bytes + here.offset_bytes - plane.offset_bytes
        yield Binary("mul", here, here, replace(here, offset_bytes=first, repeat_stride=0))


class Rounding(NamedTuple):
    """How the sum of two tensors of 16 bits goes on in fp32."""

    is_exact: bool
    """Whether as it was before it was rounded, not as it is stored."""
    in_half: bool = True
    """Whether fp16 is added as such, so that it is rounded in any case."""


class NormCore(VectorCore):
    """A vector core that is programmed for rows of `1 / mean` columns."""

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
        """64 running sums of *values* `(n,)` to *lanes*.

        One Add, whose repeats depend on each other; what is left of the row is added to the first
        lanes.
        """
        self.duplicate(lanes, 0.0)
        whole = values.count // FLOATS_PER_REPEAT * FLOATS_PER_REPEAT
        if whole:
            self.fold("add", lanes, values[:whole])
        if left := values.count - whole:
            self.add(lanes[:left], values[whole:], lanes[:left])

    def lanes_into(self, total: Local, lanes: Local, values: Local) -> None:
        """The sum of *values* `(n,)` to *total* `(1,)`, by way of 64 running sums in *lanes*."""
        self.lanes_of_row(lanes, values)
        self.whole_reduce("sum", total, lanes)

    def rows_into(self, totals: Local, lanes: Local, plane: Local, columns: int) -> None:
        """The sums of the first *columns* of each row of *plane* to *totals* `(rows,)`.

        *plane* is `(rows, pitch)`, *lanes* has room for `(rows, 64)`. An Add takes 64 columns of
        all rows, so that none of its repeats waits for another; what fills the last block of a row
        up must be 0.
        """
        rows = totals.count
        lanes = lanes[: rows * FLOATS_PER_REPEAT]
        self.duplicate(lanes, 0.0)
        for start in range(0, columns, FLOATS_PER_REPEAT):
            width = min(FLOATS_PER_REPEAT, columns - start)
            sums = every_row(lanes, rows, 0, width)
            self.add(sums, every_row(plane, rows, start, width), sums)
        if columns % FLOATS_PER_REPEAT == 0:
            # The one behind what is left of the columns, if anything is.
            self.barrier("vector")
        self.whole_reduce("sum", totals, lanes)

    def halve(self, values: Local) -> Local:
        """Add *values* `(n,)` up in 64 lanes at most, which are returned; *values* is overwritten.

        What lies behind the largest power of two goes onto the first elements, then the upper half
        onto the lower one until 64 are left: an Add each, and a barrier behind it.
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
        """The sum of *values* `(n,)` to *total* `(1,)`, as `halve` adds up."""
        self.whole_reduce("sum", total, self.halve(values))

    def read_sum(self, register: Register, values: Local) -> None:
        """The sum of *values* `(n,)`, as `halve` adds up, in their place and into *register*."""
        self.emit(WholeReduce("sum", values[:1], self.halve(values)))
        self.sync("vector", "scalar")
        self.get_value(register, values[:1])

    def sums_of_blocks(self, sums: Local, blocks: Local) -> None:
        """The sum of each of *blocks* to *sums*: of whole repeats, then of what is left."""
        for part in whole_and_rest(blocks.count):
            to = slice(part.start // FLOATS_PER_BLOCK, part.stop // FLOATS_PER_BLOCK)
            self.block_reduce("sum", sums[to], blocks[part])

    # ---- 1 / root ----

    def root_of(self, total: Register) -> None:
        """`1 / sqrt(total x mean + epsilon)` to register `root`, by the scalar unit.

        Assumed: that the scalar unit rounds the product before the sum.
        """
        self.alu("f32_mul", "root", total, self.mean)
        self.alu("f32_add", "root", "root", self.epsilon)
        self.alu("f32_sqrt", "root", "root")
        self.alu("f32_div", "root", 1.0, "root")

    def root_by_vector(self, roots: Local, ones: Local, *, one_by_one: bool = False) -> None:
        """`1 / sqrt(roots + epsilon)` in the place of *roots*; *ones* has room for as many.

        *one_by_one* writes a barrier between Sqrt and Duplicate, too (add_rms_norm_quant.h:231).
        """
        self.add(roots, roots, self.epsilon)
        with nullcontext() if one_by_one else self.independent():
            self.sqrt(roots, roots)
            self.duplicate(ones, 1.0)
        self.div(roots, ones, roots)

    def read_root(self, where: Local) -> None:
        """*where* `(1,)` to register `root`, between the vector pipe's work before and after."""
        self.sync("vector", "scalar")
        self.get_value("root", where)
        self.sync("scalar", "vector")

    def root_of_row(
        self, values: Local, squares: Local, lanes: Local, *, one_by_one: bool = False
    ) -> Local:
        """1 / root of *values* `(n,)`, `(1,)`, which comes where their *squares* begin.

        For *one_by_one* see `root_by_vector`.
        """
        total = squares[:1]
        self.square(squares, values)
        self.lanes_into(total, lanes, squares)
        # One behind the sum, one behind the call (ops-nn, add_rms_norm.h:176).
        self.barrier("vector")
        self.root_by_vector(total, lanes[:1], one_by_one=one_by_one)
        return total

    # ---- products ----

    def square(self, squares: Local, values: Local) -> None:
        """The squares of *values*, each times 1 / n."""
        self.mul(squares, values, values)
        self.mul(squares, squares, self.mean)

    def times_gamma_rounded(self, y: Local, values: Local, gamma: Local, work: Local) -> None:
        """fp32 *values* rounded to bf16 and times *gamma*, to *y*, all by way of fp32.

        *values* and *work* are overwritten.
        """
        self.cast(y, values)
        self.cast(values, y)
        self.cast(work, gamma)
        self.mul(values, values, work)
        self.cast(y, values)

    # ---- two tensors added ----

    def load_pair(self, x_in: TileQueue, second: Local, x1: GmView, x2: GmView) -> None:
        """Load *x1* to the tile of *x_in* and *x2* to *second*: one flag is for both."""
        tile = x_in.alloc()
        self.fill(tile, x1)
        self.fill(second, x2)
        x_in.enque(tile)
        x_in.deque()

    def add_in_float32(self, values: Local, addends: tuple[Local, Local], work: Local) -> None:
        """The sum of *addends*, of 16 bits, to fp32 *values* by way of *work*."""
        with self.independent():
            self.cast(values, addends[0])
            self.cast(work, addends[1])
        self.add(values, values, work)


@dataclass(frozen=True)
class Residual:
    """A row of x1 and one of x2, or a piece of each, added."""

    core: NormCore
    x_in: TileQueue
    """The queue of one tile, for x1."""
    second: Local
    """Where x2 is loaded."""
    y_out: TileQueue
    """Where the sum leaves by, and later y."""
    values: Local
    """The sum in fp32; that of fp32 is where x1 was."""
    work: Local
    """Room for squares in fp32."""
    rounding: Rounding
    in_pieces: bool
    """Whether rows come in pieces, whose x2 is widened over x1 and x2, where both are."""

    def __call__(self, x1: GmView, x2: GmView, x: GmView) -> tuple[Local, Local]:
        """The sum of *x1* and *x2* in fp32, on its way to *x*; and room for its squares.

        The tile of x1 is free; whoever reads a sum of fp32 takes it again (`take_again`).
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
        """The sum of *addends* to *out*, in their type, and to fp32 *values*."""
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
        """Keep the tile of x1 from being loaded into while its sum of fp32 is read."""
        if self.x_in.dtype is FLOAT32:
            self.x_in.alloc()

    def give_back(self) -> None:
        """The sum of fp32 has been read, if it is one."""
        if self.x_in.dtype is FLOAT32:
            self.x_in.free(self.x_in.only)

    def roots_of_parts(
        self,
        roots: Local,
        room: tuple[Local, Local],
        parts: tuple[slice, ...],
        *views: GmView,
    ) -> None:
        """1 / root of some rows of x1 and x2, whose sum goes to x, to *roots* `(rows,)`.

        A piece of all rows comes after the other. *room* is for a block a row, and for 64 running
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
    """1 / root of up to *rows* rows, side by side as pipe *source* finds them, stored together.

    On 310P, which stores whole blocks, they are added to what is in global memory, so that rows of
    another core in the same block get zeros. The vendor's kernel clears that memory first; here it
    is clear when it is allocated, and the few bytes of that take no time. Unless they are stored
    (*is_stored*) they only stay until the next rows.
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
