"""What the kernels of the family are written with: a vector core with more verbs, and rows.

A row of fp32 is added up in one of two orders. Both end in WholeReduceSum over 64 lanes, a tree of
neighbours. Assumed of all kernels: in which order their buffers
lie.

ops-nn@e5c3fa9 norm/rms_norm/op_kernel/rms_norm_base.h and reduce_common.h, and of what adds a
residual norm/add_rms_norm/op_kernel.
"""

from __future__ import annotations

from collections.abc import Callable
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
    DType,
    GmView,
    Local,
    Register,
    TileQueue,
    VectorCore,
)


def block_of(tile: Local, row: int) -> Local:
    """Block number *row* of fp32 *tile*."""
    return tile[row * FLOATS_PER_BLOCK : (row + 1) * FLOATS_PER_BLOCK]


def upper_half(room: Local, dtype: DType) -> Local:
    """Elements of *dtype*, as many as *room* has, at its end: 16 bits in the upper half of fp32."""
    whole = room.as_dtype(dtype)
    return whole[whole.count - room.count :]


def every_row(plane: Local, rows: int, start: int, columns: int) -> Local:
    """*columns* of all *rows* of *plane*, from column *start* on: a repeat for each row.

    They are filled up to whole blocks.
    """
    per_block = BLOCK_BYTES * 8 // plane.dtype.bits
    blocks, stride = ceil_div(columns, per_block), plane.count // rows // per_block
    first = plane.offset_bytes + plane.dtype.nbytes(start)
    count = rows * blocks * per_block
    return Local(plane.buffer, first, plane.dtype, count, 1, stride, blocks)


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

    def to_float32(self, dst: Local, src: Local) -> None:
        """*src* of any float in fp32; fp32 is copied by an addition of 0."""
        if src.dtype is FLOAT32:
            self.add(dst, src, 0.0)
        else:
            self.cast(dst, src)

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
        self.whole_reduce("sum", totals, lanes)

    def halve_into(self, total: Local, values: Local) -> None:
        """The sum of *values* `(n,)` to *total* `(1,)`; *values* is overwritten.

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
        self.whole_reduce("sum", total, values[: min(values.count, FLOATS_PER_REPEAT)])

    # ---- 1 / root ----

    def root_by_scalar(self, total: Local) -> None:
        """`1 / sqrt(total x mean + epsilon)` of *total* `(1,)` to register `root`."""
        self.sync("vector", "scalar")
        self.get_value("root", total)
        self.root_of("root")

    def root_of(self, total: Register) -> None:
        """The same of a register; the vector pipe waits for it.

        Assumed: that the scalar unit rounds the product before the sum.
        """
        self.alu("f32_mul", "root", total, self.mean)
        self.alu("f32_add", "root", "root", self.epsilon)
        self.alu("f32_sqrt", "root", "root")
        self.alu("f32_div", "root", 1.0, "root")
        self.sync("scalar", "vector")

    def root_by_vector(self, roots: Local, ones: Local) -> None:
        """`1 / sqrt(roots + epsilon)` in the place of *roots*; *ones* has room for as many."""
        self.add(roots, roots, self.epsilon)
        self.sqrt(roots, roots)
        self.duplicate(ones, 1.0)
        self.div(roots, ones, roots)

    def read_root(self, where: Local) -> None:
        """*where* `(1,)` to register `root`, between the vector pipe's work before and after."""
        self.sync("vector", "scalar")
        self.get_value("root", where)
        self.sync("scalar", "vector")

    def root_of_row(
        self, total: Local, values: Local, squares: Local, ones: Local, lanes: Local | None
    ) -> None:
        """1 / root of *values* to *total* `(1,)`; without *lanes* a row is added up by halves."""
        self.square(squares, values)
        if lanes is None:
            self.halve_into(total, squares)
        else:
            self.lanes_into(total, lanes, squares)
        self.root_by_vector(total, ones[:1])

    # ---- products ----

    def square(self, squares: Local, values: Local) -> None:
        """The squares of *values*, each times 1 / n."""
        self.mul(squares, values, values)
        self.mul(squares, squares, self.mean)

    def multiply_by_block(self, dst: Local, plane: Local, blocks: Local, rows: int) -> None:
        """Each row of *plane* `(rows, pitch)` times a number, which fills its block of *blocks*."""
        pitch = plane.count // rows
        for start in range(0, pitch, FLOATS_PER_REPEAT):
            here, to = (
                every_row(each, rows, start, min(FLOATS_PER_REPEAT, pitch - start))
                for each in (plane, dst)
            )
            # Stride 0: one block for each of the eight; repeat stride 1: that of the next row.
            first = blocks.offset_bytes
            self.mul(to, here, replace(here, offset_bytes=first, block_stride=0, repeat_stride=1))

    def multiply_by_row(self, plane: Local, row: Local, rows: int) -> None:
        """Each row of *plane* `(rows, pitch)` times *row* `(pitch,)`, in its type."""
        lanes, pitch = plane.repeat_elements, plane.count // rows
        for start in range(0, pitch, lanes):
            here = every_row(plane, rows, start, min(lanes, pitch - start))
            first = row[start:].offset_bytes
            self.mul(here, here, replace(here, offset_bytes=first, repeat_stride=0))

    def times_root_and_gamma(
        self,
        y_out: TileQueue,
        values: Local,
        gamma: Local,
        work: Local,
        free: Callable[[], None] | None = None,
    ) -> Local:
        """*values* times register `root`, rounded, and times *gamma*, in a tile of *y_out*.

        *values* and fp32 *work* are overwritten. *free* is called when nobody needs the tile of x
        any more, in which fp32 *values* are.
        """
        gamma = gamma[: values.count]
        if gamma.dtype is not FLOAT32:
            self.mul(values, values, "root")
        y = y_out.alloc()[: values.count]
        if y.dtype is FLOAT32:
            self.mul(y, values, "root")
        else:
            self.cast(y, values)
        is_wide = y.dtype not in (FLOAT16, FLOAT32)
        if is_wide:
            self.cast(values, y)
            self.cast(work, gamma)
            self.mul(values, values, work)
            self.cast(y, values)
        if free is not None:
            free()
        if not is_wide:
            self.mul(y, y, gamma)
        return y

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
        self.cast(values, addends[0])
        self.cast(work, addends[1])
        self.add(values, values, work)

    def add_and_round(
        self,
        out: Local,
        values: Local,
        addends: tuple[Local, Local],
        work: Local,
        rounding: Rounding,
    ) -> None:
        """The sum of *addends* to *out*, in their type, and to fp32 *values* by way of *work*."""
        if out.dtype is FLOAT32:
            self.add(values, *addends)
            self.to_float32(out, values)
        elif out.dtype is FLOAT16 and rounding.in_half:
            self.add(out, *addends)
            self.cast(values, out)
        else:
            self.add_in_float32(values, addends, work)
            self.cast(out, values)
            if not rounding.is_exact:
                self.cast(values, out)


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
    frees: bool
    """Whether nobody needs x1 and x2 any more when they have been added."""

    def __call__(self, x1: GmView, x2: GmView, x: GmView) -> tuple[Local, Local]:
        """The sum of *x1* and *x2* in fp32, on its way to *x*; and room for its squares."""
        core, n = self.core, x.columns
        core.load_pair(self.x_in, self.second, x1, x2)
        addends = self.x_in.only.as_dtype(x.dtype)[:n], self.second[:n]
        out, values, work = self.y_out.alloc()[:n], self.values[:n], self.work[:n]
        core.add_and_round(out, values, addends, work, self.rounding)
        if self.frees:
            self.x_in.free(self.x_in.only)
        core.store(self.y_out, out, x)
        return values, work

    def roots_of_parts(
        self,
        roots: Local,
        room: tuple[Local, Local, Local],
        parts: tuple[slice, ...],
        *views: GmView,
    ) -> None:
        """1 / root of some rows of x1 and x2, whose sum goes to x, to *roots* `(rows,)`.

        A piece of all rows comes after the other. *room* is for 64 running sums, for a block and
        for an element a row.
        """
        core, (lanes, blocks, sums) = self.core, room
        blocks, sums = blocks[: roots.count * FLOATS_PER_BLOCK], sums[: roots.count]
        core.duplicate(roots, 0.0)
        for part in parts:
            for row in range(roots.count):
                x1, x2, x = (view[row : row + 1, part] for view in views)
                values, squares = self(x1, x2, x)
                core.square(squares, values)
                core.lanes_of_row(lanes, squares)
                core.block_reduce("sum", block_of(blocks, row), lanes)
                if not self.frees:
                    self.x_in.free(self.x_in.only)
            core.block_reduce("sum", sums, blocks)
            core.add(roots, roots, sums)
        core.root_by_vector(roots, sums)


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
        roots = self.room.alloc()
        if self.core.is_310p and self.source == "vector":
            # What is not set of the last block is added, too.
            self.core.duplicate(roots, 0.0)
        return roots

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
