"""The templates of npu_add_rms_norm: what the vendor's kernels do with the rows of a core."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from npusim.kernel import (
    BFLOAT16,
    FLOAT32,
    FLOATS_PER_BLOCK,
    INT32,
    GmView,
    Local,
)
from npusim.kernel.rows import whole_blocks
from npusim.ops import _rms_norm as norm
from npusim.ops._rms_norm.core import (
    NormCore,
    Residual,
    RootsOfRows,
    Rounding,
    block_of,
    upper_half,
)

EXACT, AS_STORED = Rounding(is_exact=True), Rounding(is_exact=False)


def single_n(core: NormCore, p: norm.Problem, _: norm.Plan) -> norm.Kernel:
    """The one row of a core: gamma comes where x2 was, x leaves while squares are added up.

    ops-nn@e5c3fa9 norm/add_rms_norm/op_kernel/add_rms_norm_single_n.h.
    """
    dtype, count, padded = p.x.element, p.columns, whole_blocks(p.columns, p.x.element)
    x1_in, x2_in = core.vecin(dtype, padded), core.vecin(dtype, padded)
    y_out = core.vecout(dtype, padded)
    # Squares of fp32, and then y; the sum is where it leaves by.
    wide_out = core.vecout(FLOAT32, padded) if dtype is FLOAT32 else None
    squares = wide_out.only if wide_out else core.tile(FLOAT32, padded)
    values = y_out.only if wide_out else core.tile(FLOAT32, padded)
    values, work, lanes = values[:count], squares[:count], core.lanes()
    root_out = core.vecout(FLOAT32, FLOATS_PER_BLOCK)
    ones = core.blocks()

    def row(x1: GmView, x2: GmView, output: GmView, rstd: GmView, x: GmView) -> None:
        addends = core.load(x1_in, x1)[:count], core.load(x2_in, x2)[:count]
        total = y_out.alloc()[:count]
        if wide_out is not None:
            wide_out.alloc()
            core.add(total, *addends)
        else:
            core.add_and_round(total, values, addends, work, AS_STORED)
        x1_in.free(addends[0])
        x2_in.free(addends[1])
        gamma = core.load(x2_in, norm.vector_of(p.gamma))[:count]
        core.store_rows(y_out, total, x)
        root = root_out.alloc()[:1]
        core.root_of_row(root, values, work, ones, lanes)
        core.store_rows(root_out, root, rstd)
        core.read_root(root)
        if wide_out is not None:
            core.mul(work, values, "root")
            core.mul(work, work, gamma)
            core.store_rows(wide_out, work, output)
        else:
            out = core.times_root_and_gamma(y_out, values, gamma, work)
            core.store_rows(y_out, out, output)
        x2_in.free(gamma)

    return norm.Kernel(row)


def normal(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """A row at a time, all buffers single; x2 is loaded where squares come, so the next row waits.

    The queue of y carries x first, and then y: each waits for the other to be stored.

    ops-nn@e5c3fa9 norm/add_rms_norm/op_kernel/add_rms_norm.h.
    """
    dtype, padded = p.x.element, whole_blocks(p.columns, p.x.element)
    x_in, y_out = core.vecin(dtype, padded), core.vecout(dtype, padded)
    gamma, squares = core.tile(dtype, padded), core.tile(FLOAT32, padded)
    values = x_in.only if dtype is FLOAT32 else core.tile(FLOAT32, padded)
    lanes, total, ones = core.lanes(), core.blocks(), core.blocks()
    # 310P does not store them.
    roots = RootsOfRows(core, plan.row_step, is_stored=not core.is_310p)
    core.claim_tails()
    second = upper_half(squares, dtype)
    residual = Residual(core, x_in, second, y_out, values, squares, EXACT, frees=False)
    free = partial(x_in.free, x_in.only)

    def begin() -> None:
        core.fetch(gamma, norm.vector_of(p.gamma))

    def group(x1: GmView, x2: GmView, output: GmView, rstd: GmView, x: GmView) -> None:
        kept = roots.alloc()
        for index in range(x1.rows):
            row = slice(index, index + 1), slice(None)
            summed, work = residual(x1[row], x2[row], x[row])
            core.root_of_row(total[:1], summed, work, ones, lanes)
            core.read_root(total[:1])
            out = core.times_root_and_gamma(y_out, summed, gamma, work, free)
            core.store(y_out, out, output[row])
            core.set_value(kept[index : index + 1], "root")
        roots.store(kept, rstd)

    return norm.Kernel(group, begin)


class Several:
    """Buffers of several rows; x1 and x2 take a tile of x each, x and y one of y."""

    def __init__(self, core: NormCore, p: norm.Problem, plan: norm.Plan) -> None:
        self.core, self.p, dtype = core, p, p.x.element
        rows, self.pitch = plan.row_step, whole_blocks(p.columns, dtype)
        self.x_in = core.vecin(dtype, rows * self.pitch, depth=2)
        self.y_out = core.vecout(dtype, rows * self.pitch, depth=2)
        self.gamma = core.tile(dtype, self.pitch)
        self.squares = core.tile(FLOAT32, rows * self.pitch)
        self.values = None if dtype is FLOAT32 else core.tile(FLOAT32, rows * self.pitch)
        core.claim_tails()

    def fetch_gamma(self) -> None:
        self.core.fetch(self.gamma, norm.vector_of(self.p.gamma))

    def add(self, x1: GmView, x2: GmView, x: GmView) -> tuple[Local, Local]:
        """The sum of rows in fp32, on its way to *x* as well, and room for its squares.

        That of fp32 is in a tile of x, which the caller frees.
        """
        core, count = self.core, x1.rows * self.pitch
        first, second = (core.load(self.x_in, each, self.pitch)[:count] for each in (x1, x2))
        total, squares = self.y_out.alloc()[:count], self.squares[:count]
        values = self.values[:count] if self.values else first
        core.add_and_round(total, values, (first, second), squares, AS_STORED)
        self.x_in.free(second)
        if self.values:
            self.x_in.free(first)
        core.store(self.y_out, total, x, self.pitch)
        return values, squares


def merge_n(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """Several short rows an instruction. The vector unit waits until x is stored.

    ops-nn@e5c3fa9 norm/add_rms_norm/op_kernel/add_rms_norm_merge_n.h.
    """
    several, dtype = Several(core, p, plan), p.x.element
    roots_out = core.vecout(FLOAT32, plan.row_step)
    # 64 running sums a row; then ones, and 1 / root of each row eight times.
    lanes = core.lanes(plan.row_step)
    wide_gamma = core.tile(FLOAT32, several.pitch) if dtype is BFLOAT16 else None

    def group(x1: GmView, x2: GmView, output: GmView, rstd: GmView, x: GmView) -> None:
        rows = x1.rows
        values, squares = several.add(x1, x2, x)
        core.sync("mte3", "vector")
        core.square(squares, values)
        roots = roots_out.alloc()[:rows]
        core.rows_into(roots, lanes, squares, x1.columns)
        core.root_by_vector(roots, lanes[:rows])
        blocks = lanes[: rows * FLOATS_PER_BLOCK]
        core.brcb(blocks, roots)
        core.store_rows(roots_out, roots, rstd)
        y = several.y_out.alloc()[: values.count]
        if dtype is FLOAT32:
            core.multiply_by_block(y, values, blocks, rows)
        else:
            core.multiply_by_block(values, values, blocks, rows)
            core.cast(y, values)
        scale(y, values, rows)
        if dtype is FLOAT32:
            several.x_in.free(values)
        core.store(several.y_out, y, output, several.pitch)

    def scale(y: Local, values: Local, rows: int) -> None:
        """Rows of *y* times gamma; bf16 by way of *values*."""
        if wide_gamma is None:
            core.multiply_by_row(y, several.gamma, rows)
            return
        core.cast(values, y)
        # Once for all rows of a step.
        core.cast(wide_gamma, several.gamma)
        core.multiply_by_row(values, wide_gamma, rows)
        core.cast(y, values)

    return norm.Kernel(group, several.fetch_gamma)


def multi_n(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """Several rows of fp16, added up one after the other; the scalar unit waits for nothing.

    ops-nn@e5c3fa9 norm/add_rms_norm/op_kernel/add_rms_norm_multi_n.h.
    """
    several = Several(core, p, plan)
    lanes = core.lanes()
    # A block for each row, of which the first element counts.
    totals_room = core.claim("ub", FLOAT32.nbytes(plan.row_step * FLOATS_PER_BLOCK))
    totals = totals_room.of(FLOAT32, plan.row_step * FLOATS_PER_BLOCK)
    roots_out = None
    if not core.is_310p:
        # 310P does not store them.
        with core.on_top_of(totals_room):
            roots_out = core.vecout(FLOAT32, totals.count)
    # Eight times the offset of the first element of each block.
    firsts = core.tile(INT32, totals.count)

    def begin() -> None:
        several.fetch_gamma()
        with core.independent():
            # Seven of eight elements are never looked at; that they are set first is assumed.
            core.duplicate(totals, 0.0)
            for row in range(plan.row_step):
                core.duplicate(block_of(firsts, row), FLOAT32.nbytes(row * FLOATS_PER_BLOCK))

    def group(x1: GmView, x2: GmView, output: GmView, rstd: GmView, x: GmView) -> None:
        rows = [slice(row * x.columns, (row + 1) * x.columns) for row in range(x.rows)]
        values, squares = several.add(x1, x2, x)
        core.square(squares, values)
        count = x.rows * FLOATS_PER_BLOCK
        roots = (roots_out.alloc() if roots_out else totals)[:count]
        for row, here in enumerate(rows):
            core.lanes_into(block_of(roots, row)[:1], lanes, squares[here])
        blocks = squares[:count]
        core.root_by_vector(roots, blocks)
        core.gather(blocks, roots, firsts[:count])
        if roots_out is not None:
            # Four bytes a burst: the first element of each block.
            first_of_rows = replace(rstd, rows=rstd.columns, columns=1, pitch=1)
            core.store_rows(roots_out, roots, first_of_rows)
        y = several.y_out.alloc()[: values.count]
        for row, here in enumerate(rows):
            core.multiply_by_block(values[here], values[here], block_of(blocks, row), 1)
        core.cast(y, values)
        for here in rows:
            core.mul(y[here], y[here], several.gamma[: x.columns])
        core.store(several.y_out, y, output, several.pitch)

    return norm.Kernel(group, begin)


def split_d(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """Rows in pieces, all buffers single; x1 and x2 share one.

    First the sums of up to 64 rows, a piece of all of them after the other, which are stored; then
    1 / root of all; then the sums are loaded again, a piece of gamma for all rows.

    ops-nn@e5c3fa9 norm/add_rms_norm/op_kernel/add_rms_norm_split_d.h.
    """
    dtype, padded = p.x.element, whole_blocks(plan.column_step, p.x.element)
    x_in, y_out = core.vecin(dtype, 2 * padded), core.vecout(dtype, padded)
    gamma_in = core.vecin(dtype, padded)
    # Of fp32 the sum is where x1 was, and the squares are where x2 was.
    is_wide = dtype is FLOAT32
    first, second = x_in.only[:padded], x_in.only[padded:]
    values, squares = (each if is_wide else core.tile(FLOAT32, padded) for each in (first, second))
    lanes, blocks = core.lanes(), core.blocks(plan.row_step)
    sums = core.tile(FLOAT32, plan.row_step)
    # 310P does not store them.
    roots_out = RootsOfRows(core, plan.row_step, "vector", is_stored=not core.is_310p)
    core.claim_tails()
    residual = Residual(core, x_in, second, y_out, values, squares, EXACT, frees=not is_wide)
    free = partial(x_in.free, x_in.only) if is_wide else None
    parts = plan.parts(p.columns)
    # Whether a copy of whole blocks would reach from x into a row that another core stores.
    # Assumed of 310P, where the vendor's kernel reads beyond the row.
    adds_again = dtype.nbytes(p.columns) % core.spec.transfer.load_granule_bytes != 0

    def group(x1: GmView, x2: GmView, output: GmView, rstd: GmView, x: GmView) -> None:
        kept = roots_out.alloc()
        roots = kept[: x.rows]
        residual.roots_of_parts(roots, (lanes, blocks, sums), parts, x1, x2, x)
        # What was stored is loaded again.
        core.sync("mte3", "mte2")
        for part in parts:
            gamma = core.load(gamma_in, norm.vector_of(p.gamma)[:, part])
            for row in range(x.rows):
                here = slice(row, row + 1), part
                core.read_root(roots[row : row + 1])
                if adds_again:
                    residual(x1[here], x2[here], x[here])
                else:
                    load_sum(x[here])
                n = x[here].columns
                out = core.times_root_and_gamma(y_out, values[:n], gamma, squares[:n], free)
                core.store(y_out, out, output[here])
            gamma_in.free(gamma)
        roots_out.store(kept, rstd)

    def load_sum(x: GmView) -> None:
        """What was stored, in fp32 to `values`."""
        loaded = core.load(x_in, x)
        if not is_wide:
            core.cast(values[: x.columns], loaded[: x.columns])
            x_in.free(loaded)

    return norm.Kernel(group)


TEMPLATES: norm.Templates = {
    "single_n": single_n,
    "merge_n": merge_n,
    "multi_n": multi_n,
    "normal": normal,
    "split_d": split_d,
}
