"""The templates of npu_rms_norm: how the vendor's kernels process the rows of a core."""

from __future__ import annotations

from math import prod

from npusim.data.integers import align_up
from npusim.kernel import (
    BLOCK_BYTES,
    FLOAT32,
    FLOATS_PER_BLOCK,
    Binary,
    BinaryScalar,
    Cast,
    GmView,
    Local,
    pieces,
)
from npusim.kernel.broadcast import broadcast_numbers, broadcast_row
from npusim.kernel.rows import whole_blocks
from npusim.ops import _rms_norm as norm
from npusim.ops._rms_norm.core import (
    NormCore,
    RootsOfRows,
    block_of,
    times_blocks,
    times_row,
)

SMALL_ROWS, SMALL_INNER_ROWS = 512, 8
SPREAD_ROWS = 240
"""Rows whose 1 / root merge_n spreads at a time."""


def _has_few_rows(core: NormCore, p: norm.Problem) -> bool:
    """Whether merge_n applies 1 / root and gamma by strides (rms_norm_tiling.cpp).

    All of 16 bits, `(rows <= 512, n)` or `(m <= 512, k <= 8, n)`, gamma one-dimensional.
    """
    *outer, _ = p.x.shape
    is_few = len(outer) in (1, 2) and outer[0] <= SMALL_ROWS and prod(outer[1:]) <= SMALL_INNER_ROWS
    is_half = p.x.element is p.gamma.element is not FLOAT32
    return core.is_310p or (is_few and is_half and len(p.gamma.shape) == 1)


class Short:
    """The steps of merge_n, and its buffers."""

    def __init__(self, core: NormCore, p: norm.Problem, plan: norm.Plan) -> None:
        self.core, self.p, dtype, rows = core, p, p.x.element, plan.row_step
        self.pitch, self.is_wide = whole_blocks(p.columns, dtype), dtype is FLOAT32
        self.has_few_rows = _has_few_rows(core, p)
        size = rows * self.pitch
        self.x_in, self.gamma = core.vecin(dtype, size), core.tile(FLOAT32, size)
        self.y_out, self.roots_out = core.vecout(dtype, size), core.vecout(FLOAT32, rows)
        self.values = self.x_in.only if self.is_wide else core.tile(FLOAT32, size)
        self.work = core.tile(FLOAT32, size)
        self.lanes = core.lanes(rows)
        """64 running sums per row; later ones, and eight copies of 1 / root of each row."""
        core.claim_tails()

    def begin(self) -> None:
        """Load gamma in fp32, once or for each row."""
        core, gamma, vector = self.core, self.gamma, self.p.gamma
        loaded = gamma if vector.element is FLOAT32 else self.work.as_dtype(vector.element)
        core.fetch(loaded, norm.vector_of(vector))
        if loaded is not gamma:
            core.cast(gamma[: self.p.columns], loaded[: self.p.columns])
            # The flag of a queue into which nothing was loaded.
            core.sync("mte2", "vector")
        if not self.has_few_rows:
            broadcast_row(core, gamma, gamma[: self.pitch], self.lanes)

    def group(self, x: GmView, output: GmView, rstd: GmView) -> None:
        """Process the rows of a step."""
        core, count, lanes = self.core, x.rows * self.pitch, self.lanes
        loaded = core.load(self.x_in, x, self.pitch)
        values, squares = self.values[:count], self.work[:count]
        if not self.is_wide:
            core.emit(Cast(values, loaded[:count], "none"))
            self.x_in.free(loaded)
            core.barrier("vector")
        core.mul(squares, values, values)
        root_tile = self.roots_out.alloc()
        roots = root_tile[: x.rows]
        core.rows_into(roots, lanes, squares, x.columns)
        core.mul(roots, roots, core.mean)
        core.root_by_vector(roots, lanes[: x.rows])
        core.store_rows(self.roots_out, root_tile, rstd)
        scaled = self.by_strides if self.has_few_rows else self.by_planes
        core.store(self.y_out, scaled(values, squares, roots), output, self.pitch)
        core.barrier("vector")

    def by_strides(self, values: Local, blocks: Local, roots: Local) -> Local:
        """Rows of *values* times their *roots*, and times gamma, in a tile of y."""
        core = self.core
        for first, count in pieces(roots.count, SPREAD_ROWS):
            # One repeat of Brcb, for eight values, per row, where one per eight rows would suffice.
            numbers = count * FLOATS_PER_BLOCK
            start, to = FLOAT32.nbytes(first), first * BLOCK_BYTES
            core.brcb(
                Local("ub", blocks.offset_bytes + to, FLOAT32, numbers * FLOATS_PER_BLOCK),
                Local("ub", roots.offset_bytes + start, FLOAT32, numbers),
            )
        for product in times_blocks(values, values, blocks, roots.count):
            core.step(product)
        core.barrier("vector")
        out = self.y_out.alloc()[: values.count]
        for product in times_row(values, self.gamma, roots.count):
            core.step(product)
        core.cast(out, values)
        return out

    def by_planes(self, values: Local, plane: Local, roots: Local) -> Local:
        """The same through a *plane* with 1 / root in each column of a row."""
        core, gamma = self.core, self.gamma[: values.count]
        broadcast_numbers(core, plane, roots, self.lanes)
        core.barrier("vector")
        core.emit(Binary("mul", plane, values, plane))
        if self.is_wide:
            self.x_in.free(values)
        core.barrier("vector")
        out = self.y_out.alloc()[: values.count]
        if self.is_wide:
            core.mul(out, plane, gamma)
        else:
            core.mul(plane, plane, gamma)
            core.cast(out, plane)
        return out


def merge_n(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """Rows begin at whole blocks of x in the buffer, and their padding is 0.

    With few rows 1 / root of each is applied by strides, and so is gamma; otherwise both are copied
    to planes as large as the rows. The scalar unit waits for nothing within a step, so the next
    rows are loaded while these are scaled; all buffers are single.

    ops-nn@e5c3fa9 norm/rms_norm/op_kernel/rms_norm_merge_n.h.
    """
    short = Short(core, p, plan)
    return norm.Kernel(short.group, short.begin)


def _times_gamma(core: NormCore, values: Local, gamma: Local, room: Local) -> None:
    """Write fp32 *values* times *gamma*, which is widened again for every row, to *room*."""
    gamma = gamma[: values.count]
    if gamma.dtype is not FLOAT32:
        core.cast(room[: values.count], gamma)
        gamma = room[: values.count]
    core.mul(values, values, gamma)


def _root_of_row(core: NormCore, place: Local) -> None:
    """Convert the sum in register `root` to 1 / root there, and write it to *place* `(1,)`.

    The flag behind the sum is set and waited for once more (rms_norm.h:204-206).
    """
    core.sync("vector", "scalar")
    core.root_of("root")
    core.set_value(place, "root")
    core.sync("scalar", "vector")


def normal(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """One row at a time; the next one is loaded once this one is in fp32, or scaled if it is fp32.

    So it is loaded while this one is scaled and stored. gamma stays in the buffer.

    ops-nn@e5c3fa9 norm/rms_norm/op_kernel/rms_norm.h.
    """
    dtype, is_wide, room = p.x.element, p.x.element is FLOAT32, plan.room
    x_in, gamma = core.vecin(dtype, room), core.tile(p.gamma.element, room)
    y_out, roots = core.vecout(dtype, room), RootsOfRows(core, plan.row_step)
    wide = x_in.only if is_wide else core.tile(FLOAT32, room)
    all_squares = core.tile(FLOAT32, room)
    core.claim_tails()

    def begin() -> None:
        core.fetch(gamma, norm.vector_of(p.gamma))

    def group(x: GmView, output: GmView, rstd: GmView) -> None:
        root_tile = roots.alloc()
        for index in range(x.rows):
            here = slice(index, index + 1), slice(None)
            loaded = core.load(x_in, x[here])
            values, squares = wide[: x.columns], all_squares[: x.columns]
            if not is_wide:
                core.cast(values, loaded[: x.columns])
                x_in.free(loaded)
            core.mul(squares, values, values)
            core.read_sum("root", squares)
            _root_of_row(core, root_tile[index : index + 1])
            core.emit(BinaryScalar("mul", squares, values, "root"))
            if is_wide:
                x_in.free(loaded)
            core.barrier("vector")
            out = y_out.alloc()[: x.columns]
            if is_wide:
                core.emit(Binary("mul", out, squares, gamma[: x.columns]))
            else:
                _times_gamma(core, squares, gamma, wide)
                core.emit(Cast(out, squares, core.rounding(dtype)))
            core.store(y_out, out, output[here])
            core.barrier("vector")
        roots.store(root_tile, rstd)

    return norm.Kernel(group, begin)


def single_row(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """Like normal, with the squares of a row in the buffer of the row.

    ops-nn@e5c3fa9 norm/rms_norm/op_kernel/rms_norm_single_row.h.
    """
    dtype, room = p.x.element, whole_blocks(p.columns, p.x.element)
    x_in, gamma = core.vecin(FLOAT32, room), core.tile(FLOAT32, room)
    y_out, roots = core.vecout(dtype, room), RootsOfRows(core, plan.row_step)
    values = core.tile(FLOAT32, room)[: p.columns]
    core.claim_tails()

    def begin() -> None:
        core.fetch(gamma, norm.vector_of(p.gamma))

    def group(x: GmView, output: GmView, rstd: GmView) -> None:
        root_tile = roots.alloc()
        for index in range(x.rows):
            here = slice(index, index + 1), slice(None)
            loaded = core.load(x_in, x[here])
            squares = loaded[: x.columns]
            core.cast(values, loaded.as_dtype(dtype, x.columns))
            core.mul(squares, values, values)
            core.read_sum("root", squares)
            x_in.free(loaded)
            _root_of_row(core, root_tile[index : index + 1])
            core.mul(values, values, "root")
            core.mul(values, values, gamma[: x.columns])
            out = y_out.alloc()[: x.columns]
            core.cast(out, values)
            core.store(y_out, out, output[here])
        roots.store(root_tile, rstd)

    return norm.Kernel(group, begin)


PARTIALS = 64
"""Sums of pieces that the scalar unit adds together."""


class Pieces:
    """The steps of split_d, and its buffers."""

    def __init__(self, core: NormCore, p: norm.Problem, plan: norm.Plan) -> None:
        self.core, self.p, self.dtype, room = core, p, p.x.element, plan.column_step
        dtype, self.is_wide = self.dtype, self.dtype is FLOAT32
        self.gamma_in, self.x_in = core.vecin(p.gamma.element, room), core.vecin(dtype, room)
        self.roots_out = RootsOfRows(core, plan.row_step, "vector")
        self.y_out = core.vecout(dtype, room)
        self.values = self.x_in.only if self.is_wide else core.tile(FLOAT32, room)
        self.partials, self.squares = core.blocks(PARTIALS), core.tile(FLOAT32, room)
        self.lanes = core.lanes()
        core.claim_tails()
        self.parts = plan.parts(p.columns)

    def group(self, x: GmView, output: GmView, rstd: GmView) -> None:
        """Process rows whose 1 / root is stored together."""
        core, parts = self.core, self.parts
        root_tile = self.roots_out.alloc()
        roots = root_tile[: x.rows]
        core.duplicate(root_tile[: align_up(x.rows, FLOATS_PER_BLOCK)], 0.0)
        for index in range(x.rows):
            self.add_up(x[index : index + 1, :], roots[index : index + 1])
        core.mul(roots, roots, core.mean)
        core.root_by_vector(roots, self.lanes[: x.rows])
        for part in (parts[-1], *parts[:-1]):
            gamma = core.load(self.gamma_in, norm.vector_of(self.p.gamma)[:, part])
            for index in range(x.rows):
                here = slice(index, index + 1), part
                loaded = core.load(self.x_in, x[here])
                core.read_root(roots[index : index + 1])
                self.scale(loaded, gamma, output[here])
            self.gamma_in.free(gamma)
        self.roots_out.store(root_tile, rstd)

    def add_up(self, x: GmView, place: Local) -> None:
        """Write the sum of squares of a row to *place* `(1,)`, with the last piece separate."""
        core, last = self.core, len(self.parts) - 1
        core.alu("add", "sum", 0)
        groups = [range(start, min(start + PARTIALS, last)) for start in range(0, last, PARTIALS)]
        for indices in (*groups, range(last, last + 1)):
            totals = [block_of(self.partials, number)[:1] for number in range(len(indices))]
            for index, total in zip(indices, totals, strict=True):
                self.square(x[:, self.parts[index]], total)
            core.sync("vector", "scalar")
            for total in totals:
                core.get_value("part", total)
                core.alu("f32_add", "sum", "sum", "part")
            if indices[-1] == last:
                core.set_value(place, "sum")
            core.sync("scalar", "vector")

    def square(self, x: GmView, total: Local) -> None:
        """Write the sum of squares of a piece to *total* `(1,)`."""
        core, loaded = self.core, self.core.load(self.x_in, x)
        values, squares = self.values[: x.columns], self.squares[: x.columns]
        if self.is_wide:
            core.emit(Binary("mul", squares, values, values))
        else:
            core.emit(Cast(values, loaded[: x.columns], "none"))
        self.x_in.free(loaded)
        core.barrier("vector")
        if not self.is_wide:
            core.mul(squares, values, values)
        core.halve_into(total, squares)
        core.barrier("vector")

    def scale(self, loaded: Local, gamma: Local, output: GmView) -> None:
        """Write a piece times register `root` and *gamma* to *output*."""
        core, count = self.core, output.columns
        out, products = self.y_out.alloc()[:count], self.squares[:count]
        if self.is_wide:
            core.mul(products, loaded[:count], "root")
            core.emit(Binary("mul", out, products, gamma[:count]))
        else:
            core.cast(products, loaded[:count])
            core.mul(products, products, "root")
            _times_gamma(core, products, gamma, self.values)
            core.emit(Cast(out, products, core.rounding(self.dtype)))
        self.x_in.free(loaded)
        core.store(self.y_out, out, output)
        core.barrier("vector")


def split_d(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """Rows in pieces, loaded twice.

    First come the sums of up to 64 rows, which the scalar unit adds; then 1 / root of all of them
    at once; then their products, one piece of gamma for all rows, the last piece first.

    ops-nn@e5c3fa9 norm/rms_norm/op_kernel/rms_norm_split_d.h.
    """
    return norm.Kernel(Pieces(core, p, plan).group)


TEMPLATES: norm.Templates = {
    "merge_n": merge_n,
    "normal": normal,
    "single_row": single_row,
    "split_d": split_d,
}
