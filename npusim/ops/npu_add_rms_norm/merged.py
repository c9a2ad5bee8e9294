"""The templates of npu_add_rms_norm that take several rows an instruction: merge_n and multi_n."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npusim.data.integers import align_up
from npusim.kernel import (
    BFLOAT16,
    FLOAT32,
    FLOATS_PER_BLOCK,
    INT32,
    Binary,
    Broadcast,
    Cast,
    Duplicate,
    GmView,
    Local,
    TileQueue,
    pieces,
)
from npusim.kernel.rows import whole_blocks
from npusim.ops import _rms_norm as norm
from npusim.ops._rms_norm.core import (
    NormCore,
    block_of,
    times_blocks,
    times_row,
    whole_and_rest,
)


class Several:
    """Buffers of several rows; x1 and x2 take a tile of x each, x and y one of y."""

    def __init__(
        self,
        core: NormCore,
        p: norm.Problem,
        plan: norm.Plan,
        roots_count: int,
        *,
        by_rows: bool = False,
    ) -> None:
        """*roots_count* numbers are kept for 1 / root.

        *by_rows* copies a burst for each row, where one could be of all rows too, and has as much
        room for gamma as for x.
        """
        self.core, self.p, self.by_rows, dtype = core, p, by_rows, p.x.element
        self.pitch = whole_blocks(p.columns, dtype)
        size = plan.row_step * self.pitch
        self.x_in = core.vecin(dtype, size, depth=2)
        self.gamma = core.tile(dtype, size if by_rows else self.pitch)
        self.y_out = core.vecout(dtype, size, depth=2)
        self.roots = core.claim("ub", FLOAT32.nbytes(roots_count))
        self.values = None if dtype is FLOAT32 else core.tile(FLOAT32, size)
        self.squares = core.tile(FLOAT32, size)
        core.claim_tails()

    def store_roots(self) -> TileQueue:
        """The queue of 1 / root."""
        count = self.roots.nbytes // FLOAT32.nbytes(1)
        with self.core.on_top_of(self.roots):
            return self.core.vecout(FLOAT32, count)

    def fetch_gamma(self) -> None:
        self.core.fetch(self.gamma, norm.vector_of(self.p.gamma))

    def load(self, x1: GmView, x2: GmView) -> tuple[Local, Local]:
        """Rows of both, of which the second are on their way when the first have come."""
        for view in (x1, x2):
            tile = self.x_in.alloc()
            if self.by_rows:
                self.core.data_copy(tile, view.operand, view.dtype.nbytes(self.pitch))
            else:
                self.core.fill(tile, view, self.pitch)
            self.x_in.enque(tile)
        return self.x_in.deque(), self.x_in.deque()

    def sum_of(self, addends: tuple[Local, Local], count: int) -> Local:
        """*count* elements of both added, in their type, in a tile of y; a barrier must follow."""
        core, total = self.core, self.y_out.alloc()[:count]
        first, second = (each[:count] for each in addends)
        if self.p.x.element is not BFLOAT16:
            core.emit(Binary("add", total, first, second))
            return total
        assert self.values is not None
        values = self.values[:count]
        core.add_in_float32(values, (first, second), self.squares[:count])
        core.emit(Cast(total, values, "rint"))
        return total

    def free(self, addends: tuple[Local, Local]) -> None:
        for each in addends:
            self.x_in.free(each)


TOGETHER = 240
"""Rows that merge_n spreads 1 / root over, and multiplies, at a time."""


def merge_n(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """Several short rows an instruction. The vector unit waits until x is stored.

    ops-nn@e5c3fa9 norm/add_rms_norm/op_kernel/add_rms_norm_merge_n.h.
    """
    dtype, roots_count = p.x.element, align_up(plan.row_step, FLOATS_PER_BLOCK)
    several = Several(core, p, plan, roots_count, by_rows=True)
    pitch, y_out, roots_out = several.pitch, several.y_out, several.store_roots()
    # 64 running sums a row; then ones, and 1 / root of each row eight times.
    lanes = core.lanes(plan.row_step)

    def add(x1: GmView, x2: GmView, x: GmView) -> Local:
        """The sum of rows in their type, stored to *x*; its tile of y is free."""
        addends = several.load(x1, x2)
        total = several.sum_of(addends, x1.rows * pitch)
        core.barrier("vector")
        several.free(addends)
        y_out.enque(total)
        y_out.deque()
        core.sync("vector", "mte3")
        store(total, x)
        core.sync("mte3", "vector")
        y_out.free(total)
        return total

    def store(tile: Local, view: GmView) -> None:
        extent = view.extent_bytes(dtype.nbytes(pitch)) // dtype.nbytes(1)
        core.data_copy(view.operand, tile[:extent], dtype.nbytes(pitch) if view.rows > 1 else 0)

    def group(x1: GmView, x2: GmView, output: GmView, rstd: GmView, x: GmView) -> None:
        rows, total = x1.rows, add(x1, x2, x)
        squares, values = several.squares[: total.count], total
        kept = roots_out.alloc()
        core.duplicate(kept, 0.0)
        if several.values is not None:
            values = several.values[: total.count]
            core.cast(values, total)
        core.square(squares, values)
        core.rows_into(kept[:rows], lanes, squares, x1.columns)
        core.root_by_vector(kept[:rows], lanes[:rows])
        spread(kept, rows)
        y = y_out.alloc()[: total.count]
        scale(y, values, rows)
        y_out.enque(y)
        core.store_rows(roots_out, kept, rstd)
        y_out.deque()
        store(y, output)
        y_out.free(y)

    def spread(roots: Local, rows: int) -> None:
        """Each of *rows* of *roots* to a block of `lanes`, of eights of them in the end."""
        whole, padded = rows // TOGETHER * TOGETHER, align_up(rows, FLOATS_PER_BLOCK)
        for first in range(0, whole, TOGETHER):
            core.emit(spread_of(roots, first, first + TOGETHER))
        core.barrier("vector")
        if whole < rows:
            core.step(spread_of(roots, whole, padded))

    def spread_of(roots: Local, first: int, stop: int) -> Broadcast:
        blocks = lanes[first * FLOATS_PER_BLOCK : stop * FLOATS_PER_BLOCK]
        return Broadcast(blocks, roots[first:stop])

    def scale(y: Local, values: Local, rows: int) -> None:
        """Rows of *values* times 1 / root and gamma, to *y*; bf16 by way of *values* once more."""
        multiply(y if dtype is FLOAT32 else values, values, rows)
        if dtype is not FLOAT32:
            core.emit(Cast(y, values, core.rounding(dtype)))
        core.barrier("vector")
        if dtype is BFLOAT16:
            gamma = several.squares[:pitch]
            with core.independent():
                core.cast(values, y)
                core.cast(gamma, several.gamma[:pitch])
            multiply_by_row(values, gamma, rows)
            core.emit(Cast(y, values, "rint"))
        else:
            multiply_by_row(y, several.gamma, rows)
        core.barrier("vector")

    def multiply(dst: Local, values: Local, rows: int) -> None:
        """Rows of *values* times 1 / root, to *dst*."""
        for first, count in pieces(rows, TOGETHER):
            here = slice(first * pitch, (first + count) * pitch)
            write(times_blocks(dst[here], values[here], block_of(lanes, first), count))

    def multiply_by_row(plane: Local, row: Local, rows: int) -> None:
        """Rows of *plane* times *row*."""
        for first, count in pieces(rows, TOGETHER):
            write(times_row(plane[first * pitch : (first + count) * pitch], row, count))

    def write(products: Iterator[Binary]) -> None:
        """Whole repeats and a barrier, then what is left of the columns and another one."""
        all_products = list(products)
        whole = [each for each in all_products if each.dst.repeat_blocks == 8]
        core.emit(*whole)
        core.barrier("vector")
        core.emit(*all_products[len(whole) :])
        core.barrier("vector")

    return norm.Kernel(group, several.fetch_gamma)


def multi_n(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """Several rows of fp16, added up one after the other; the scalar unit waits for nothing.

    The vendor's kernel gathers 1 / root of each row in its place, while the store of the same bytes
    may still read them; here they come where the squares were. Its blocks of 1 / root hold anything
    in seven elements of eight; here they are 0 at first.

    ops-nn@e5c3fa9 norm/add_rms_norm/op_kernel/add_rms_norm_multi_n.h.
    """
    # A block for each row, of which the first element counts.
    several = Several(core, p, plan, plan.row_step * FLOATS_PER_BLOCK)
    totals = several.roots.of(FLOAT32, plan.row_step * FLOATS_PER_BLOCK)
    # 310P does not store them.
    roots_out = None if core.is_310p else several.store_roots()
    lanes = core.lanes()
    # Eight times the offset of the first element of each block.
    firsts = core.tile(INT32, totals.count)

    def begin() -> None:
        several.fetch_gamma()
        core.emit(Duplicate(totals, 0.0))
        for row in range(plan.row_step):
            offset_bytes = FLOAT32.nbytes(row * FLOATS_PER_BLOCK)
            core.emit(Duplicate(block_of(firsts, row), offset_bytes))

    def group(x1: GmView, x2: GmView, output: GmView, rstd: GmView, x: GmView) -> None:
        addends, count = several.load(x1, x2), x.rows * several.pitch
        total = several.sum_of(addends, count)
        several.free(addends)
        core.store(several.y_out, total, x, several.pitch)
        core.barrier("vector")
        assert several.values is not None
        values, squares = several.values[:count], several.squares[:count]
        roots = (roots_out.alloc() if roots_out else totals)[: x.rows * FLOATS_PER_BLOCK]
        core.cast(values, total)
        core.square(squares, values)
        rows = [slice(row * x.columns, (row + 1) * x.columns) for row in range(x.rows)]
        for row, here in enumerate(rows):
            core.lanes_into(block_of(roots, row)[:1], lanes, squares[here])
        find_roots(roots)
        blocks = squares[: roots.count]
        if roots_out is not None:
            # Four bytes a burst: the first element of each block.
            first_of_rows = replace(rstd, rows=rstd.columns, columns=1, pitch=1)
            core.store_rows(roots_out, roots, first_of_rows)
        core.gather(blocks, roots, firsts[: roots.count])
        core.store(several.y_out, scaled(values, blocks, rows), output, several.pitch)

    def find_roots(sums: Local) -> None:
        """`1 / sqrt(sums + epsilon)` in their place."""
        ones = lanes[:FLOATS_PER_BLOCK]
        core.add(sums, sums, core.epsilon)
        with core.independent():
            core.sqrt(sums, sums)
            core.duplicate(ones, 1.0)
        with core.independent():
            for part in whole_and_rest(sums.count):
                here = sums[part]
                core.div(here, ones.again(here.count), here)

    def scaled(values: Local, blocks: Local, rows: list[slice]) -> Local:
        """Each of *rows* of *values* times its block of 1 / root, rounded, and times gamma."""
        with core.independent():
            for row, here in enumerate(rows):
                for part in whole_and_rest(here.stop - here.start):
                    some = values[here][part]
                    core.mul(some, some, block_of(blocks, row).again(some.count))
        y = several.y_out.alloc()[: values.count]
        core.cast(y, values)
        with core.independent():
            for here in rows:
                core.mul(y[here], several.gamma[: p.columns], y[here])
        return y

    return norm.Kernel(group, begin)
