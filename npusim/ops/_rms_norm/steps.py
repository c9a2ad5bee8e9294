"""Steps that the kernels of the family have in common: sums of rows, 1 / root, and products.

A row of fp32 is added up in one of two orders. Both end in WholeReduceSum over 64 lanes, a tree of
neighbours; ``oracle`` has the same in numpy. Assumed of all kernels: in which order their buffers
lie.

ops-nn@e5c3fa9 norm/rms_norm/op_kernel/rms_norm_base.h and reduce_common.h.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.data.dtypes import FLOAT32, DType
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import Pipe
from npusim.isa import BLOCK_BYTES, Local, Register
from npusim.kernel.core import TileQueue
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.ops._rms_norm.contract import Problem
from npusim.ops._row_quant import FLOAT_LANES, FLOATS_PER_BLOCK, lanes_of

__all__ = [
    "RootsOfRows",
    "block_of",
    "every_row",
    "halve_into",
    "lanes_into",
    "lanes_of_row",
    "multiply_by_block",
    "multiply_by_row",
    "read_root",
    "root_by_scalar",
    "root_by_vector",
    "root_of",
    "rows_into",
    "upper_half",
    "widen",
]


def widen(core: VectorCore, dst: Local, src: Local) -> None:
    """*src* of any float in fp32; fp32 is copied by an addition of 0."""
    if src.dtype is FLOAT32:
        core.add(dst, src, 0.0)
    else:
        core.cast(dst, src)


def block_of(tile: Local, row: int) -> Local:
    """Block number *row* of fp32 *tile*."""
    return tile[row * FLOATS_PER_BLOCK : (row + 1) * FLOATS_PER_BLOCK]


def upper_half(room: Local, dtype: DType) -> Local:
    """As many elements of *dtype* as fp32 *room* has, at its end: 16 bits in its upper half."""
    whole = room.as_dtype(dtype)
    return whole[whole.count - room.count :]


# ---- sums ----


def lanes_into(core: VectorCore, total: Local, lanes: Local, values: Local) -> None:
    """The sum of *values* `(n,)` to *total* `(1,)`, by way of 64 running sums in *lanes*."""
    lanes_of_row(core, lanes, values)
    core.whole_reduce("sum", total, lanes)


def lanes_of_row(core: VectorCore, lanes: Local, values: Local) -> None:
    """64 running sums of *values* `(n,)` to *lanes*.

    One Add, whose repeats depend on each other; what is left of the row is added to the first
    lanes.
    """
    core.duplicate(lanes, 0.0)
    whole = values.count // FLOAT_LANES * FLOAT_LANES
    if whole:
        core.fold("add", lanes, values[:whole])
    if left := values.count - whole:
        core.add(lanes[:left], values[whole:], lanes[:left])


def rows_into(core: VectorCore, totals: Local, lanes: Local, plane: Local, columns: int) -> None:
    """The sums of the first *columns* of each row of *plane* to *totals* `(rows,)`.

    *plane* is `(rows, pitch)`, *lanes* `(rows, 64)`. An Add takes 64 columns of all rows, so that
    none of its repeats waits for another; what fills the last block of a row up must be 0.
    """
    rows = totals.count
    core.duplicate(lanes, 0.0)
    for start in range(0, columns, FLOAT_LANES):
        width = min(FLOAT_LANES, columns - start)
        sums = every_row(lanes, rows, 0, width)
        core.add(sums, every_row(plane, rows, start, width), sums)
    core.whole_reduce("sum", totals, lanes)


def halve_into(core: VectorCore, total: Local, values: Local) -> None:
    """The sum of *values* `(n,)` to *total* `(1,)`; *values* is overwritten.

    What lies behind the largest power of two goes onto the first elements, then the upper half onto
    the lower one until 64 are left: an Add each, and a barrier behind it.
    """
    if values.count > FLOAT_LANES:
        half = 1 << (values.count.bit_length() - 1)
        if left := values.count - half:
            core.add(values[:left], values[:left], values[half:])
        while half > FLOAT_LANES:
            half //= 2
            core.add(values[:half], values[:half], values[half : 2 * half])
    core.whole_reduce("sum", total, values[: min(values.count, FLOAT_LANES)])


# ---- 1 / root ----


def root_by_scalar(core: VectorCore, total: Local, p: Problem) -> None:
    """`1 / sqrt(total x mean + epsilon)` of *total* `(1,)` to register `root`."""
    core.sync("vector", "scalar")
    core.get_value("root", total)
    root_of(core, "root", p)


def root_of(core: VectorCore, total: Register, p: Problem) -> None:
    """The same of a register; the vector pipe waits for it.

    Assumed: that the scalar unit rounds the product before the sum.
    """
    core.alu("f32_mul", "root", total, p.mean)
    core.alu("f32_add", "root", "root", p.epsilon)
    core.alu("f32_sqrt", "root", "root")
    core.alu("f32_div", "root", 1.0, "root")
    core.sync("scalar", "vector")


def root_by_vector(core: VectorCore, roots: Local, ones: Local, epsilon: float) -> None:
    """`1 / sqrt(roots + epsilon)` in the place of *roots*; *ones* has room for as many."""
    core.add(roots, roots, epsilon)
    core.sqrt(roots, roots)
    core.duplicate(ones, 1.0)
    core.div(roots, ones, roots)


def read_root(core: VectorCore, where: Local) -> None:
    """*where* `(1,)` to register `root`, between the vector pipe's work before and after."""
    core.sync("vector", "scalar")
    core.get_value("root", where)
    core.sync("scalar", "vector")


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


# ---- several rows an instruction ----


def every_row(plane: Local, rows: int, start: int, columns: int) -> Local:
    """*columns* of all *rows* of *plane*, from column *start* on: a repeat for each row.

    They are filled up to whole blocks.
    """
    per_block = BLOCK_BYTES * 8 // plane.dtype.bits
    blocks, stride = ceil_div(columns, per_block), plane.count // rows // per_block
    first = plane.offset_bytes + plane.dtype.nbytes(start)
    count = rows * blocks * per_block
    return Local(plane.buffer, first, plane.dtype, count, 1, stride, blocks)


def multiply_by_block(
    core: VectorCore, plane: Local, blocks: Local, rows: int, dst: Local | None = None
) -> None:
    """Each row of *plane* `(rows, pitch)` times the number of which *blocks* has eight a row."""
    pitch = plane.count // rows
    for start in range(0, pitch, FLOAT_LANES):
        width = min(FLOAT_LANES, pitch - start)
        here = every_row(plane, rows, start, width)
        # Block stride 0: the block of the row for each of the eight; repeat stride 1: the next row.
        factor = replace(here, offset_bytes=blocks.offset_bytes, block_stride=0, repeat_stride=1)
        core.mul(here if dst is None else every_row(dst, rows, start, width), here, factor)


def multiply_by_row(core: VectorCore, plane: Local, row: Local, rows: int) -> None:
    """Each row of *plane* `(rows, pitch)` times *row* `(pitch,)`, in its type."""
    lanes, pitch = lanes_of(plane), plane.count // rows
    for start in range(0, pitch, lanes):
        here = every_row(plane, rows, start, min(lanes, pitch - start))
        factor = replace(here, offset_bytes=row[start:].offset_bytes, repeat_stride=0)
        core.mul(here, here, factor)
