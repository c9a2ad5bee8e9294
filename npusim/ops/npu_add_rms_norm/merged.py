"""The templates of npu_add_rms_norm with several rows per instruction: merge_n and multi_n."""

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
    """Buffers for several rows; x1 and x2 use one tile of x each, x and y one of y."""

    def __init__(
        self,
        core: NormCore,
        p: norm.Problem,
        plan: norm.Plan,
        roots_count: int,
        *,
        by_rows: bool = False,
    ) -> None:
        """*roots_count* is the number of elements for 1 / root.

        *by_rows* copies one burst per row, where a single one could have all rows, and reserves as
        much room for gamma as for x.
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
        """Load rows of both; the second are issued before the first have arrived."""
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
"""Rows for which merge_n broadcasts 1 / root, and multiplies, at a time."""
REPEAT_BLOCKS = 8
"""Blocks in a full repeat."""


class Short(Several):
    """The steps of merge_n, and its buffers."""

    def __init__(self, core: NormCore, p: norm.Problem, plan: norm.Plan) -> None:
        roots_count = align_up(plan.row_step, FLOATS_PER_BLOCK)
        super().__init__(core, p, plan, roots_count, by_rows=True)
        self.dtype, self.roots_out = p.x.element, self.store_roots()
        self.lanes = core.lanes(plan.row_step)
        """64 running sums per row; later ones, and eight copies of 1 / root of each row."""

    def group(self, x1: GmView, x2: GmView, output: GmView, rstd: GmView, x: GmView) -> None:
        """Process the rows of a step."""
        core, rows, total = self.core, x1.rows, self.add(x1, x2, x)
        squares, values = self.squares[: total.count], total
        kept = self.roots_out.alloc()
        core.duplicate(kept, 0.0)
        if self.values is not None:
            values = self.values[: total.count]
            core.cast(values, total)
        core.square(squares, values)
        core.rows_into(kept[:rows], self.lanes, squares, x1.columns)
        core.root_by_vector(kept[:rows], self.lanes[:rows])
        self.spread(kept, rows)
        y = self.y_out.alloc()[: total.count]
        self.scale(y, values, rows)
        self.y_out.enque(y)
        core.store_rows(self.roots_out, kept, rstd)
        self.y_out.deque()
        core.put_rows(y, output, self.pitch)
        self.y_out.free(y)

    def add(self, x1: GmView, x2: GmView, x: GmView) -> Local:
        """The sum of rows in their type, after it is stored to *x*; its tile of y is free."""
        core, addends = self.core, self.load(x1, x2)
        total = self.sum_of(addends, x1.rows * self.pitch)
        core.barrier("vector")
        self.free(addends)
        self.y_out.enque(total)
        self.y_out.deque()
        core.sync("vector", "mte3")
        core.put_rows(total, x, self.pitch)
        core.sync("mte3", "vector")
        self.y_out.free(total)
        return total

    def spread(self, roots: Local, rows: int) -> None:
        """Broadcast each of *rows* of *roots* to a block of `lanes`; the last eight are in full."""
        core, whole = self.core, rows // TOGETHER * TOGETHER
        for first in range(0, whole, TOGETHER):
            core.emit(self._spread(roots, first, first + TOGETHER))
        core.barrier("vector")
        if whole < rows:
            core.step(self._spread(roots, whole, align_up(rows, FLOATS_PER_BLOCK)))

    def _spread(self, roots: Local, first: int, stop: int) -> Broadcast:
        blocks = self.lanes[first * FLOATS_PER_BLOCK : stop * FLOATS_PER_BLOCK]
        return Broadcast(blocks, roots[first:stop])

    def scale(self, y: Local, values: Local, rows: int) -> None:
        """Multiply rows of *values* by 1 / root and gamma, to *y*; bf16 through *values* again."""
        core, dtype = self.core, self.dtype
        to = y if dtype is FLOAT32 else values
        for here, first, count in self.parts(rows):
            self.write(times_blocks(to[here], values[here], block_of(self.lanes, first), count))
        if dtype is not FLOAT32:
            core.emit(Cast(y, values, core.rounding(dtype)))
        core.barrier("vector")
        plane, gamma = y, self.gamma
        if dtype is BFLOAT16:
            plane, gamma = values, self.squares
            with core.independent():
                core.cast(values, y)
                core.cast(gamma[: self.pitch], self.gamma[: self.pitch])
        for here, _, count in self.parts(rows):
            self.write(times_row(plane[here], gamma, count))
        if dtype is BFLOAT16:
            core.emit(Cast(y, values, "rint"))
        core.barrier("vector")

    def parts(self, rows: int) -> Iterator[tuple[slice, int, int]]:
        """The elements of rows that are multiplied together; the first row, and their number."""
        for first, count in pieces(rows, TOGETHER):
            yield slice(first * self.pitch, (first + count) * self.pitch), first, count

    def write(self, products: Iterator[Binary]) -> None:
        """Full repeats and a barrier, then the remaining columns and another one."""
        core, found = self.core, list(products)
        whole = [each for each in found if each.dst.repeat_blocks == REPEAT_BLOCKS]
        core.emit(*whole)
        core.barrier("vector")
        core.emit(*found[len(whole) :])
        core.barrier("vector")


def merge_n(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """Several short rows per instruction. The vector unit waits until x is stored.

    ops-nn@e5c3fa9 norm/add_rms_norm/op_kernel/add_rms_norm_merge_n.h.
    """
    short = Short(core, p, plan)
    return norm.Kernel(short.group, short.fetch_gamma)


class Aligned(Several):
    """The steps of multi_n, and its buffers."""

    def __init__(self, core: NormCore, p: norm.Problem, plan: norm.Plan) -> None:
        count = plan.row_step * FLOATS_PER_BLOCK
        super().__init__(core, p, plan, count)
        self.sums = self.roots.of(FLOAT32, count)
        """One block per row, of which the first element counts."""
        # 310P does not store them.
        self.roots_out = None if core.is_310p else self.store_roots()
        self.lanes = core.lanes()
        self.firsts = core.tile(INT32, count)
        """Eight times the offset of the first element of each block."""

    def begin(self) -> None:
        """Load gamma, and write the offsets of the blocks."""
        core = self.core
        self.fetch_gamma()
        core.emit(Duplicate(self.sums, 0.0))
        for row in range(self.sums.count // FLOATS_PER_BLOCK):
            offset_bytes = FLOAT32.nbytes(row * FLOATS_PER_BLOCK)
            core.emit(Duplicate(block_of(self.firsts, row), offset_bytes))

    def group(self, x1: GmView, x2: GmView, output: GmView, rstd: GmView, x: GmView) -> None:
        """Process the rows of a step."""
        core, addends, count = self.core, self.load(x1, x2), x.rows * self.pitch
        total = self.sum_of(addends, count)
        self.free(addends)
        core.store(self.y_out, total, x, self.pitch)
        core.barrier("vector")
        assert self.values is not None
        values, squares = self.values[:count], self.squares[:count]
        core.cast(values, total)
        core.square(squares, values)
        rows = [slice(row * x.columns, (row + 1) * x.columns) for row in range(x.rows)]
        roots = self.roots_out.alloc() if self.roots_out else self.sums
        roots = roots[: x.rows * FLOATS_PER_BLOCK]
        for row, here in enumerate(rows):
            core.lanes_into(block_of(roots, row)[:1], self.lanes, squares[here])
        self.find_roots(roots)
        if self.roots_out is not None:
            # Four bytes per burst: the first element of each block.
            first_of_rows = replace(rstd, rows=rstd.columns, columns=1, pitch=1)
            core.store_rows(self.roots_out, roots, first_of_rows)
        blocks = squares[: roots.count]
        core.gather(blocks, roots, self.firsts[: roots.count])
        core.store(self.y_out, self.scaled(values, blocks, rows), output, self.pitch)

    def find_roots(self, sums: Local) -> None:
        """`1 / sqrt(sums + epsilon)` in place."""
        core, ones = self.core, self.lanes[:FLOATS_PER_BLOCK]
        core.add(sums, sums, core.epsilon)
        with core.independent():
            core.sqrt(sums, sums)
            core.duplicate(ones, 1.0)
        with core.independent():
            for part in whole_and_rest(sums.count):
                here = sums[part]
                core.div(here, ones.again(here.count), here)

    def scaled(self, values: Local, blocks: Local, rows: list[slice]) -> Local:
        """Each of *rows* of *values* times its block of 1 / root, rounded, and times gamma."""
        core, gamma = self.core, self.gamma[: self.p.columns]
        with core.independent():
            for row, here in enumerate(rows):
                for part in whole_and_rest(gamma.count):
                    some = values[here][part]
                    core.mul(some, some, block_of(blocks, row).again(some.count))
        y = self.y_out.alloc()[: values.count]
        core.cast(y, values)
        with core.independent():
            for here in rows:
                core.mul(y[here], gamma, y[here])
        return y


def multi_n(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """Several rows of fp16, summed one after another; the scalar unit waits for nothing.

    The vendor's kernel gathers 1 / root of each row in place, while the store of the same bytes may
    still read them; here they replace the squares. Its blocks of 1 / root are undefined in seven of
    eight elements; here they are initially 0.

    ops-nn@e5c3fa9 norm/add_rms_norm/op_kernel/add_rms_norm_multi_n.h.
    """
    aligned = Aligned(core, p, plan)
    return norm.Kernel(aligned.group, aligned.begin)
