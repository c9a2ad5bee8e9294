"""The templates of npu_add_rms_norm: how the vendor's kernels process the rows of a core."""

from __future__ import annotations

from npusim.kernel import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    Binary,
    BinaryScalar,
    Cast,
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
    upper_half,
)
from npusim.ops.npu_add_rms_norm.merged import merge_n, multi_n

EXACT = Rounding(is_exact=True)


class SingleRow:
    """The only row of a core; single_n sets and waits for its flags explicitly.

    x and gamma later use the buffers of x1 and x2, and x that of y; squares begin with 1 / root.
    """

    FIRST, SECOND = 0, 1
    """Events: of loads into the buffers of x1 and x2, and of stores from those of x and squares."""

    def __init__(self, core: NormCore, p: norm.Problem, room: int) -> None:
        self.core, self.p, self.dtype, count = core, p, p.x.element, p.columns
        self.first, self.second = (core.tile(self.dtype, room)[:count] for _ in range(2))
        is_wide = self.dtype is FLOAT32
        self.values = self.first if is_wide else core.tile(FLOAT32, room)[:count]
        self.squares, self.lanes = core.tile(FLOAT32, room)[:count], core.lanes()

    def load(self, tile: Local, view: GmView, event: int) -> None:
        """Start to load *view* into *tile*."""
        self.core.fill(tile, view)
        self.core.set_flag("mte2", "vector", event)

    def store(self, tile: Local, view: GmView) -> None:
        """Start to store *tile* to *view* when the vector pipe has finished."""
        self.core.sync("vector", "mte3")
        self.core.data_copy(view.operand, tile)

    def add(self, x1: GmView, x2: GmView) -> None:
        """Write the sum of *x1* and *x2* over x1; fp16 is added in fp16."""
        core, first, second = self.core, self.first, self.second
        self.load(first, x1, self.FIRST)
        self.load(second, x2, self.SECOND)
        core.wait_flag("mte2", "vector", self.FIRST)
        if self.dtype is not BFLOAT16:
            core.wait_flag("mte2", "vector", self.SECOND)
            core.add(first, first, second)
            return
        core.emit(Cast(self.values, first, "none"))
        core.wait_flag("mte2", "vector", self.SECOND)
        core.cast(self.squares, second)
        core.add(self.values, self.values, self.squares)
        core.cast(first, self.values)

    def store_and_read_root(self, root: Local, rstd: GmView) -> None:
        """Store *root* to *rstd* and read it into register `root`; for bf16 the read is first."""
        core = self.core
        if self.dtype is not BFLOAT16:
            self.store(root, rstd)
            core.read_root(root)
            return
        core.read_root(root)
        self.store(root, rstd)
        core.set_flag("mte3", "vector", self.SECOND)

    def scale(self) -> None:
        """Multiply the sum by register `root`, round, and multiply by gamma, over the stored x."""
        core, x, gamma, values = self.core, self.first, self.second, self.values
        if self.dtype is FLOAT32:
            core.wait_flag("mte3", "vector", self.FIRST)
        core.mul(values, values, "root")
        if self.dtype is not FLOAT32:
            core.wait_flag("mte3", "vector", self.FIRST)
            core.cast(x, values)
        if self.dtype is not BFLOAT16:
            core.wait_flag("mte2", "vector", self.SECOND)
            core.emit(Binary("mul", x, x, gamma))
            return
        core.cast(values, x)
        core.wait_flag("mte2", "vector", self.SECOND)
        core.wait_flag("mte3", "vector", self.SECOND)
        core.cast(self.squares, gamma)
        core.mul(values, values, self.squares)
        core.emit(Cast(x, values, "rint"))


def single_n(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """The only row of a core: gamma is loaded while squares are summed, and x stored meanwhile.

    Each flag has a separate event; in the vendor's kernel two loads share one, which works if flags
    count how often they are set.

    ops-nn@e5c3fa9 norm/add_rms_norm/op_kernel/add_rms_norm_single_n.h.
    """
    here = SingleRow(core, p, plan.room)

    def row(x1: GmView, x2: GmView, output: GmView, rstd: GmView, x: GmView) -> None:
        here.add(x1, x2)
        core.sync("vector", "mte2")
        here.load(here.second, norm.vector_of(p.gamma), here.SECOND)
        here.store(here.first, x)
        core.set_flag("mte3", "vector", here.FIRST)
        if here.dtype is not FLOAT32:
            core.cast(here.values, here.first)
        root = core.root_of_row(here.values, here.squares, here.lanes)
        here.store_and_read_root(root, rstd)
        here.scale()
        here.store(here.first, output)

    return norm.Kernel(row)


def normal(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """One row at a time, all buffers single; x2 is loaded into the squares, so the next row waits.

    The queue of y carries x first, and then y: each waits until the other is stored. The scalar
    unit, which writes 1 / root, sets the flag for their store; in the vendor's kernel the vector
    pipe does, and only program order makes the last one arrive in time.

    ops-nn@e5c3fa9 norm/add_rms_norm/op_kernel/add_rms_norm.h.
    """
    dtype, room = p.x.element, plan.room
    x_in, gamma, y_out = core.vecin(dtype, room), core.tile(dtype, room), core.vecout(dtype, room)
    # 310P does not store them.
    roots = RootsOfRows(core, plan.row_step, is_stored=not core.is_310p)
    values = x_in.only if dtype is FLOAT32 else core.tile(FLOAT32, room)
    squares, lanes = core.tile(FLOAT32, room), core.lanes()
    core.claim_tails()
    second = upper_half(squares, dtype)
    residual = Residual(core, x_in, second, y_out, values, squares, EXACT, in_pieces=False)

    def begin() -> None:
        core.fetch(gamma, norm.vector_of(p.gamma))

    def group(x1: GmView, x2: GmView, output: GmView, rstd: GmView, x: GmView) -> None:
        kept = roots.alloc()
        for index in range(x1.rows):
            row = slice(index, index + 1), slice(None)
            values, work = residual(x1[row], x2[row], x[row])
            residual.take_again()
            core.read_root(core.root_of_row(values, work, lanes))
            core.set_value(kept[index : index + 1], "root")
            core.barrier("vector")
            core.store(y_out, scaled(values, work), output[row])
        roots.store(kept, rstd)

    def scaled(values: Local, work: Local) -> Local:
        """*values* times register `root` and gamma; mte2 may load the next row after it."""
        if dtype is FLOAT32:
            y = y_out.alloc()[: values.count]
            core.emit(BinaryScalar("mul", y, values, "root"))
            residual.give_back()
            core.barrier("vector")
            core.mul(y, gamma[: values.count], y)
            return y
        core.mul(values, values, "root")
        y = y_out.alloc()[: values.count]
        if dtype is FLOAT16:
            core.emit(Cast(y, values, core.rounding(FLOAT16)))
            core.sync("vector", "mte2")
            core.barrier("vector")
            core.mul(y, gamma[: values.count], y)
        else:
            core.times_gamma_rounded(y, values, gamma[: values.count], work)
            core.sync("vector", "mte2")
        return y

    return norm.Kernel(group, begin)


class Pieces:
    """The steps of split_d, and its buffers."""

    def __init__(self, core: NormCore, p: norm.Problem, plan: norm.Plan) -> None:
        self.core, self.p, self.dtype = core, p, p.x.element
        dtype, padded = self.dtype, whole_blocks(plan.column_step, p.x.element)
        self.x_in, self.gamma_in = core.vecin(dtype, 2 * padded), core.vecin(dtype, padded)
        self.y_out = core.vecout(dtype, padded)
        # 310P does not store them.
        self.roots_out = RootsOfRows(core, plan.row_step, "vector", is_stored=not core.is_310p)
        # An fp32 sum replaces x1.
        first, second = self.x_in.only[:padded], self.x_in.only[padded:]
        self.values = first if dtype is FLOAT32 else core.tile(FLOAT32, padded)
        self.work = core.tile(FLOAT32, padded)
        self.room = core.blocks(plan.row_step), core.lanes()
        core.claim_tails()
        self.residual = Residual(
            core, self.x_in, second, self.y_out, self.values, self.work, EXACT, in_pieces=True
        )
        self.parts = plan.parts(p.columns)
        self.adds_again = dtype.nbytes(p.columns) % core.spec.transfer.load_granule_bytes != 0
        """Whether a copy of whole blocks would extend from x into a row that another core stores.

        Assumed for 310P, where the vendor's kernel reads past the row."""

    def group(self, x1: GmView, x2: GmView, output: GmView, rstd: GmView, x: GmView) -> None:
        """Process rows whose 1 / root is stored together."""
        core, kept = self.core, self.roots_out.alloc()
        roots = kept[: x.rows]
        self.residual.roots_of_parts(roots, self.room, self.parts, x1, x2, x)
        if not self.adds_again and x.rows * len(self.parts) < 3:
            self.core.sync("mte3", "mte2")
        for part in self.parts:
            gamma = core.load(self.gamma_in, norm.vector_of(self.p.gamma)[:, part])
            for row in range(x.rows):
                here = slice(row, row + 1), part
                if self.adds_again:
                    self.residual(x1[here], x2[here], x[here])
                    self.residual.take_again()
                else:
                    self.load_sum(x[here])
                core.read_root(roots[row : row + 1])
                core.store(self.y_out, self.scaled(gamma, x[here].columns), output[here])
            self.gamma_in.free(gamma)
        self.roots_out.store(kept, rstd)

    def load_sum(self, x: GmView) -> None:
        """Load the stored sum, as fp32 in `values`."""
        loaded = self.core.load(self.x_in, x)
        if self.dtype is not FLOAT32:
            self.core.cast(self.values[: x.columns], loaded[: x.columns])
            self.x_in.free(loaded)

    def scaled(self, gamma: Local, count: int) -> Local:
        """`values` times register `root`, rounded, and times *gamma*."""
        core, values, gamma = self.core, self.values[:count], gamma[:count]
        if self.dtype is FLOAT32:
            y = self.y_out.alloc()[:count]
            core.emit(BinaryScalar("mul", y, values, "root"))
            self.residual.give_back()
            core.barrier("vector")
            core.mul(y, gamma, y)
            return y
        core.barrier("vector")
        core.mul(values, values, "root")
        y = self.y_out.alloc()[:count]
        if self.dtype is FLOAT16:
            core.cast(y, values)
            core.mul(y, gamma, y)
        else:
            core.times_gamma_rounded(y, values, gamma, self.work[:count])
        return y


def split_d(core: NormCore, p: norm.Problem, plan: norm.Plan) -> norm.Kernel:
    """Rows in pieces, all buffers single; x1 and x2 share one.

    First the sums of up to 64 rows, each piece for all of them, which are stored; then 1 / root of
    all; then the sums are loaded again, one piece of gamma for all rows. Flags of the queues
    guarantee that three or more have been stored. Nothing in the vendor's kernel guarantees it for
    one or two, for which this one waits.

    ops-nn@e5c3fa9 norm/add_rms_norm/op_kernel/add_rms_norm_split_d.h.
    """
    return norm.Kernel(Pieces(core, p, plan).group)


TEMPLATES: norm.Templates = {
    "single_n": single_n,
    "merge_n": merge_n,
    "multi_n": multi_n,
    "normal": normal,
    "split_d": split_d,
}
