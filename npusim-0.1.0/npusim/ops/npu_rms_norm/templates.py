"""The templates of npu_rms_norm: what the vendor's kernels do with the rows of a core."""

from __future__ import annotations

from math import prod

from npusim.data.tensor import Operand
from npusim.kernel import FLOAT32, FLOATS_PER_BLOCK, FLOATS_PER_REPEAT, GmView, Local
from npusim.kernel.rows import whole_blocks
from npusim.ops import _rms_norm as norm
from npusim.ops._rms_norm.core import NormCore, RootsOfRows, block_of
from npusim.ops._row_quant import repeat_block

SMALL_ROWS, SMALL_INNER_ROWS = 512, 8


def _is_small(core: NormCore, p: norm.Problem) -> bool:
    """Whether merge_n applies 1 / root and gamma by strides (rms_norm_tiling.cpp).

    All of 16 bits, `(rows <= 512, n)` or `(m <= 512, k <= 8, n)`, gamma of one dimension.
    """
    *outer, _ = p.x.shape
    is_few = len(outer) in (1, 2) and outer[0] <= SMALL_ROWS and prod(outer[1:]) <= SMALL_INNER_ROWS
    is_half = p.x.element is p.gamma.element is not FLOAT32
    return core.is_310p or (is_few and is_half and len(p.gamma.shape) == 1)


def merge_n(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """Rows begin at whole blocks of x in the buffer, and what fills them up is 0.

    With few rows 1 / root of each is applied by strides, and so is gamma; else both are copied into
    planes as large as the rows. The scalar unit waits for nothing within a step, so the next rows
    are on their way while these are scaled; all buffers are single.

    ops-nn@e5c3fa9 norm/rms_norm/op_kernel/rms_norm_merge_n.h; asc-devkit, DK
    impl/adv_api/detail/pad/broadcast, for BroadCast.
    """
    dtype, rows, pitch = p.x.element, plan.row_step, whole_blocks(p.columns, p.x.element)
    is_small = _is_small(core, p)
    x_in, y_out = core.vecin(dtype, rows * pitch), core.vecout(dtype, rows * pitch)
    roots_out = core.vecout(FLOAT32, rows)
    # 64 running sums a row; then ones, and 1 / root of each row eight times.
    lanes = core.lanes(rows)
    work = core.tile(FLOAT32, rows * pitch)
    is_wide = dtype is FLOAT32
    all_values = x_in.only if is_wide else core.tile(FLOAT32, rows * pitch)
    gamma = core.tile(FLOAT32, pitch if is_small else rows * pitch)
    core.claim_tails()

    def begin() -> None:
        """gamma in fp32, once or for each row."""
        _fetch_in_float32(core, gamma, p.gamma, work, pitch)
        if not is_small:
            _repeat_row(core, gamma, pitch)

    def group(x: GmView, output: GmView, rstd: GmView) -> None:
        count = x.rows * pitch
        loaded = core.load(x_in, x, pitch)
        values, squares = all_values[:count], work[:count]
        if not is_wide:
            core.cast(values, loaded[:count])
            x_in.free(loaded)
        core.mul(squares, values, values)
        kept = roots_out.alloc()
        roots = kept[: x.rows]
        core.rows_into(roots, lanes, squares, x.columns)
        core.mul(roots, roots, p.mean)
        core.root_by_vector(roots, lanes[: x.rows])
        out = y_out.alloc()[:count]
        scaled = out if is_wide else values
        if is_small:
            core.multiply_by_block(scaled, values, _spread_roots(core, roots, lanes), x.rows)
            core.multiply_by_row(scaled, gamma, x.rows)
        else:
            _repeat_roots(core, squares, roots, lanes)
            core.mul(scaled, values, squares)
            core.mul(scaled, scaled, gamma[:count])
        if is_wide:
            x_in.free(loaded)
        else:
            core.cast(out, scaled)
        core.store_rows(roots_out, kept, rstd)
        core.store(y_out, out, output, pitch)

    return norm.Kernel(group, begin)


def _fetch_in_float32(
    core: NormCore, wide: Local, vector: Operand, work: Local, columns: int
) -> None:
    """Load *vector* for good to fp32 *wide*, whose first *columns* it fills, by way of *work*."""
    loaded = wide if vector.element is FLOAT32 else work.as_dtype(vector.element)
    core.fetch(loaded, norm.vector_of(vector))
    if loaded is not wide:
        core.cast(wide[:columns], loaded[:columns])


def _repeat_row(core: NormCore, plane: Local, pitch: int) -> None:
    """The first row of *plane* `(rows, pitch)` to all others."""
    with core.independent():
        for start in range(pitch, plane.count, pitch):
            core.copy(plane[start : start + pitch], plane[:pitch])


def _spread_roots(core: NormCore, roots: Local, lanes: Local) -> Local:
    """Each of *roots* to a block of *lanes*: a repeat of Brcb, where one for eight would do."""
    blocks = lanes[: roots.count * FLOATS_PER_REPEAT]
    core.brcb(blocks, roots.as_dtype(FLOAT32, roots.count * FLOATS_PER_BLOCK))
    return blocks


def _repeat_roots(core: NormCore, plane: Local, roots: Local, lanes: Local) -> None:
    """Each of *roots* to its row of *plane*; that of one row goes by way of the scalar unit."""
    if roots.count == 1:
        core.read_root(roots)
        core.duplicate(plane, "root")
        return
    pitch = plane.count // roots.count
    core.brcb(lanes[: roots.count * FLOATS_PER_BLOCK], roots)
    with core.independent():
        for row in range(roots.count):
            here = plane[row * pitch : (row + 1) * pitch]
            repeat_block(core, here, block_of(lanes, row))


class OneRow:
    """Buffers of a row, or of a piece of one, all of them single; and what becomes of it."""

    def __init__(self, core: NormCore, p: norm.Problem, plan: norm.Plan) -> None:
        self.core, dtype = core, p.x.element
        self.columns = whole_blocks(plan.column_step, dtype)
        self.in_x = plan.template == "single_row"
        """Whether squares come where the row itself was."""
        self.x_in = core.vecin(FLOAT32 if self.in_x else dtype, self.columns)
        self.y_out = core.vecout(dtype, self.columns)
        self.is_wide, room = dtype is FLOAT32, self.x_in.only
        self.values = room if self.is_wide else core.tile(FLOAT32, self.columns)
        """x in fp32."""
        self.squares = room if self.in_x else core.tile(FLOAT32, self.columns)
        core.claim_tails()

    def sum_squares(self, total: Local, x: GmView) -> None:
        """Load the row *x*; the sum of its squares to *total* `(1,)`, and the row to `values`.

        The tile is freed as soon as it can be, but not one of fp32, which `scale` still reads.
        """
        values, squares = self.load(x), self.squares[: x.columns]
        self.core.mul(squares, values, values)
        self.core.halve_into(total, squares)
        if self.in_x:
            self.x_in.free(self.x_in.only)

    def load(self, x: GmView) -> Local:
        """The row *x* in fp32; its tile is freed unless more of it is needed."""
        loaded, values = self.core.load(self.x_in, x), self.values[: x.columns]
        if not self.is_wide:
            self.core.cast(values, loaded.as_dtype(x.dtype, x.columns))
            if not self.in_x:
                self.x_in.free(loaded)
        return values

    def scale(self, gamma: Local, output: GmView) -> None:
        """The row times register `root` and *gamma*, to *output*."""
        core, count = self.core, output.columns
        values, gamma = self.values[:count], gamma[:count]
        if self.is_wide:
            out = self.y_out.alloc()[:count]
            core.mul(out, values, "root")
            self.x_in.free(values)
            core.mul(out, out, gamma)
        else:
            core.mul(values, values, "root")
            if gamma.dtype is not FLOAT32:
                # Once more for every row.
                core.cast(self.squares[:count], gamma)
                gamma = self.squares[:count]
            core.mul(values, values, gamma)
            out = self.y_out.alloc()[:count]
            core.cast(out, values)
        core.store(self.y_out, out, output)


def normal(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """A row at a time; the next one is loaded once the sum of this one is known.

    So it is on its way while this one is scaled and stored. gamma stays in the buffer; single_row
    has the squares of a row where the row itself was.

    ops-nn@e5c3fa9 norm/rms_norm/op_kernel/rms_norm.h and rms_norm_single_row.h.
    """
    row = OneRow(core, p, plan)
    gamma = core.tile(p.gamma.element, row.columns)
    total = core.blocks()[:1]
    roots = RootsOfRows(core, plan.row_step)

    def begin() -> None:
        core.fetch(gamma, norm.vector_of(p.gamma))

    def group(x: GmView, output: GmView, rstd: GmView) -> None:
        kept = roots.alloc()
        for index in range(x.rows):
            here = slice(index, index + 1), slice(None)
            row.sum_squares(total, x[here])
            core.root_by_scalar(total)
            core.set_value(kept[index : index + 1], "root")
            row.scale(gamma, output[here])
        roots.store(kept, rstd)

    return norm.Kernel(group, begin)


def split_d(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """Rows in pieces, loaded twice.

    First the sums of up to 64 rows, which the scalar unit adds up piece by piece; then 1 / root of
    all of them at once; then their products, a piece of gamma for all rows, the last piece first.

    ops-nn@e5c3fa9 norm/rms_norm/op_kernel/rms_norm_split_d.h.
    """
    row = OneRow(core, p, plan)
    gamma_in = core.vecin(p.gamma.element, row.columns)
    parts = plan.parts(p.columns)
    # A block for the sum of each piece.
    partials = core.blocks(len(parts))
    sums, ones = core.tile(FLOAT32, plan.row_step), core.tile(FLOAT32, plan.row_step)
    roots_out = RootsOfRows(core, plan.row_step, "vector")

    def group(x: GmView, output: GmView, rstd: GmView) -> None:
        for index in range(x.rows):
            add_up(x[index : index + 1, :])
            core.set_value(sums[index : index + 1], "sum")
        core.sync("scalar", "vector")
        kept = roots_out.alloc()
        roots = kept[: x.rows]
        core.mul(roots, sums[: x.rows], p.mean)
        core.root_by_vector(roots, ones[: x.rows])
        for part in (parts[-1], *parts[:-1]):
            gamma = core.load(gamma_in, norm.vector_of(p.gamma)[:, part])
            for index in range(x.rows):
                here = slice(index, index + 1), part
                core.read_root(roots[index : index + 1])
                row.load(x[here])
                row.scale(gamma, output[here])
            gamma_in.free(gamma)
        roots_out.store(kept, rstd)

    def add_up(x: GmView) -> None:
        """The sum of squares of a row into register `sum`.

        The scalar unit waits for the vector pipe before the last piece, and behind it.
        """
        last = len(parts) - 1
        for index, part in enumerate(parts):
            if index == last:
                _add_to_sum(core, partials, range(last))
            row.sum_squares(block_of(partials, index)[:1], x[:, part])
            if row.is_wide:
                row.x_in.free(row.values)
        _add_to_sum(core, partials, range(last, last + 1))

    return norm.Kernel(group)


def _add_to_sum(core: NormCore, partials: Local, indices: range) -> None:
    """Add blocks *indices* of *partials* to register `sum`, which begins with the first of all."""
    if not indices:
        return
    core.sync("vector", "scalar")
    if indices[0] == 0:
        core.alu("add", "sum", 0)
    for index in indices:
        core.get_value("part", block_of(partials, index)[:1])
        core.alu("f32_add", "sum", "sum", "part")


TEMPLATES: norm.Templates = {
    "merge_n": merge_n,
    "normal": normal,
    "single_row": normal,
    "split_d": split_d,
}
