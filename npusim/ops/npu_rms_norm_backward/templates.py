"""The templates of npu_rms_norm_backward: how the vendor's kernels process the rows of a core.

ops-nn@e5c3fa9 norm/rms_norm_grad/op_kernel, rms_norm_grad_split_n_high_precision.h (merge_n and
normal) and rms_norm_grad_split_d_high_precision.h.
"""

from __future__ import annotations

from npusim.data.integers import align_up
from npusim.kernel import (
    FLOAT32,
    FLOATS_PER_BLOCK,
    DType,
    GmView,
    Local,
    pieces,
    sync_all,
)
from npusim.kernel.broadcast import broadcast_numbers, broadcast_row
from npusim.kernel.rows import whole_blocks
from npusim.ops import _rms_norm as norm
from npusim.ops._rms_norm.core import NormCore

LEAST_COLUMNS_A_CORE = 64
"""Buffers have at least this many elements for each core, as the deterministic mode needs."""
READY = 0
"""The flag by which all cores wait until core 0 has cleared dgamma."""
ROOT, SUM, MEAN = "root", "sum", "mean"
"""Registers."""


class Rows:
    """The buffers of a core, and what all templates do with rows or pieces of them."""

    def __init__(self, core: NormCore, p: norm.Problem, plan: norm.Plan, rows: int) -> None:
        self.core, self.p, self.dtype = core, p, p.x.element
        self.pitch = whole_blocks(min(p.columns, plan.column_step), self.dtype)
        room = max(rows * self.pitch, plan.block_dim * LEAST_COLUMNS_A_CORE)
        self.roots_at, roots = room, align_up(rows, FLOATS_PER_BLOCK)
        self.x_in = core.vecin(FLOAT32, room + roots, 2)
        """x, followed by rstd: the vendor's kernel has separate queues, and events for both."""
        self.dy_in = core.vecin(FLOAT32, room, 2)
        self.dx_out = core.vecout(FLOAT32, room, 2)
        self.gamma, self.dgamma = (core.tile(FLOAT32, self.pitch) for _ in range(2))

    def dgamma_of(self, start: int, count: int) -> GmView:
        """Columns of dgamma in global memory."""
        return GmView.vector("dgamma", FLOAT32, self.p.columns)[:, start : start + count]

    def clear(self) -> None:
        """Let core 0 zero dgamma."""
        core = self.core
        core.duplicate(self.dgamma, 0.0)
        core.sync("vector", "mte3")
        for start, count in pieces(self.p.columns, self.pitch):
            core.put_rows(self.dgamma[:count], self.dgamma_of(start, count))
        core.sync("mte3", "vector")

    def meet(self) -> None:
        """Wait until dgamma is clear."""
        self.core.end_stage()
        sync_all(self.core, "mte3", "mte2", READY)

    def take_gamma(self, start: int, count: int) -> Local:
        """Load columns of gamma as fp32, after the previous ones have been read."""
        core, element = self.core, self.p.gamma.element
        found, view = self.gamma[: self.pitch], norm.vector_of(self.p.gamma)
        loaded = self._upper(found, element)
        core.fetch(loaded[:count], view[:, start : start + count])
        if element is not FLOAT32:
            core.cast(found[:count], loaded[:count])
        return found

    @staticmethod
    def _upper(tile: Local, element: DType) -> Local:
        """The place in *tile* to load *element*, for conversion to fp32: its upper half."""
        if element is FLOAT32:
            return tile
        return tile.as_dtype(element, 2 * tile.count)[tile.count :]

    def load(self, x: GmView, dy: GmView, rstd: GmView | None = None) -> None:
        """Start loading *x* and *dy* into tiles of their queues, and *rstd* with the first."""
        for queue, view in ((self.x_in, x), (self.dy_in, dy)):
            tile = queue.alloc()
            if rstd is not None and queue is self.x_in:
                self.core.fill(tile[self.roots_at :][: rstd.columns], rstd)
            self.core.fill(self._upper(tile[: view.rows * self.pitch], self.dtype), view)
            queue.enque(tile)

    def wide(self, tile: Local, rows: int) -> Local:
        """What was loaded to *tile*, as fp32, in rows a pitch apart."""
        values = tile[: rows * self.pitch]
        if self.dtype is not FLOAT32:
            self.core.cast(values, self._upper(values, self.dtype))
        return values

    def give(self, found: Local, dx: GmView) -> None:
        """Store fp32 *found*, a tile of dx, in the type of x."""
        if self.dtype is FLOAT32:
            self.core.store_rows(self.dx_out, found, dx)
            return
        narrow = found.as_dtype(self.dtype, found.count)
        self.core.cast(narrow, found)
        self.core.store_rows(self.dx_out, narrow, dx)

    # ---- merge_n and normal ----

    def start(self) -> None:
        """Load gamma, and zero the local dgamma."""
        self.take_gamma(0, self.p.columns)
        self.core.duplicate(self.dgamma, 0.0)

    def finish(self) -> None:
        """Add the sum of all rows of the core to dgamma."""
        self.core.sync("vector", "mte3")
        self.core.store_add(self.dgamma_of(0, self.p.columns), self.dgamma[: self.p.columns])


class Merged(Rows):
    """merge_n: several rows at a time."""

    def __init__(self, core: NormCore, p: norm.Problem, plan: norm.Plan) -> None:
        super().__init__(core, p, plan, plan.row_step)
        self.lanes = core.lanes(plan.row_step)
        self.means = core.tile(FLOAT32, align_up(plan.row_step, FLOATS_PER_BLOCK))
        core.claim_tails()

    def group(self, dy: GmView, x: GmView, rstd: GmView, dx: GmView) -> None:
        """Process the rows of a step."""
        core, rows, pitch = self.core, x.rows, self.pitch
        self.load(x, dy, rstd)
        loaded = self.x_in.deque()
        roots, means = loaded[self.roots_at :][:rows], self.means[:rows]
        out = self.dx_out.alloc()[: rows * pitch]
        broadcast_numbers(core, out, roots, self.lanes)
        core.barrier("vector")
        values = self.wide(loaded, rows)
        core.mul(values, values, out)
        grads = self.wide(self.dy_in.deque(), rows)
        core.mul(out, grads, values)
        for row in range(rows):
            core.add(self.dgamma, out[row * pitch : (row + 1) * pitch], self.dgamma)
        broadcast_row(core, out, self.gamma, self.lanes)
        core.barrier("vector")
        core.mul(grads, grads, out)
        core.mul(out, grads, values)
        core.rows_into(means, self.lanes, out, self.p.columns)
        core.mul(means, means, self.p.mean)
        broadcast_numbers(core, out, means, self.lanes)
        core.barrier("vector")
        core.mul(out, values, out)
        core.sub(out, grads, out)
        broadcast_numbers(core, grads, roots, self.lanes)
        core.barrier("vector")
        core.mul(out, out, grads)
        self.x_in.free(values)
        self.dy_in.free(grads)
        self.give(out, dx)


class Single(Rows):
    """normal: a row at a time."""

    def __init__(self, core: NormCore, p: norm.Problem, plan: norm.Plan) -> None:
        super().__init__(core, p, plan, 1)
        core.claim_tails()

    def group(self, dy: GmView, x: GmView, rstd: GmView, dx: GmView) -> None:
        """Process one row."""
        core = self.core
        self.load(x, dy, rstd)
        loaded = self.x_in.deque()
        core.sync("vector", "scalar")
        core.get_value(ROOT, loaded[self.roots_at :][:1])
        values = self.wide(loaded, 1)
        core.sync("scalar", "vector")
        core.mul(values, values, ROOT)
        grads = self.wide(self.dy_in.deque(), 1)
        out = self.dx_out.alloc()[: self.pitch]
        core.mul(out, grads, values)
        with core.independent():
            core.add(self.dgamma, self.dgamma, out)
            core.mul(grads, grads, self.gamma)
        core.mul(out, grads, values)
        core.read_sum(SUM, out[: x.columns])
        core.alu("f32_mul", MEAN, SUM, self.p.mean)
        core.sync("scalar", "vector")
        core.mul(out, values, MEAN)
        core.sub(out, grads, out)
        core.mul(out, out, ROOT)
        self.x_in.free(values)
        self.dy_in.free(grads)
        self.give(out, dx)


class Split(Rows):
    """split_d: some rows, piece by piece, once for their means and again for dx."""

    def __init__(self, core: NormCore, p: norm.Problem, plan: norm.Plan) -> None:
        super().__init__(core, p, plan, 1)
        self.parts = plan.parts(p.columns)
        self.means, self.sums = (core.tile(FLOAT32, plan.row_step) for _ in range(2))
        self.rstd_in = core.vecin(FLOAT32, plan.row_step)
        core.claim_tails()

    def group(self, dy: GmView, x: GmView, rstd: GmView, dx: GmView) -> None:
        """Process the rows of a step."""
        core = self.core
        loaded = core.load(self.rstd_in, rstd)
        means = self.means[: x.rows]
        core.duplicate(means, 0.0)
        for part in self.parts:
            self.sum(part, dy, x, loaded)
            core.add(means, means, self.sums[: x.rows])
        core.mul(means, means, self.p.mean)
        for part in self.parts:
            self.scale(part, dy, x, loaded, dx)
        self.rstd_in.free(loaded)

    def row_of(self, part: slice, row: int, *views: GmView) -> tuple[GmView, ...]:
        """A piece of a row of *views*."""
        return tuple(view[row : row + 1, part] for view in views)

    def read(self, register: str, numbers: Local, row: int) -> None:
        """Read the value of a row into *register*."""
        self.core.get_value(register, numbers[row : row + 1])

    def sum(self, part: slice, dy: GmView, x: GmView, roots: Local) -> None:
        """Add a piece of all rows to dgamma, and its part of their means to `sums`."""
        core, count = self.core, part.stop - part.start
        gamma = self.take_gamma(part.start, count)[:count]
        dgamma = self.dgamma[:count]
        core.duplicate(dgamma, 0.0)
        for row in range(x.rows):
            here, grad = self.row_of(part, row, x, dy)
            self.load(here, grad)
            core.sync("vector", "scalar")
            self.read(ROOT, roots, row)
            core.sync("scalar", "vector")
            values = self.wide(self.x_in.deque(), 1)[:count]
            core.mul(values, values, ROOT)
            grads = self.wide(self.dy_in.deque(), 1)[:count]
            core.mul(values, grads, values)
            core.add(dgamma, dgamma, values)
            core.mul(values, values, gamma)
            core.read_sum(SUM, values)
            core.set_value(self.sums[row : row + 1], SUM)
            core.sync("scalar", "vector")
            self.x_in.free(values)
            self.dy_in.free(grads)
        core.sync("vector", "mte3")
        core.store_add(self.dgamma_of(part.start, count), dgamma)
        core.sync("mte3", "vector")
        core.sync("vector", "mte2")

    def scale(self, part: slice, dy: GmView, x: GmView, roots: Local, dx: GmView) -> None:
        """Compute dx for a piece of all rows."""
        core, count = self.core, part.stop - part.start
        gamma = self.take_gamma(part.start, count)[:count]
        for row in range(x.rows):
            here, grad, there = self.row_of(part, row, x, dy, dx)
            self.load(here, grad)
            core.sync("vector", "scalar")
            self.read(ROOT, roots, row)
            self.read(MEAN, self.means, row)
            core.sync("scalar", "vector")
            values = self.wide(self.x_in.deque(), 1)[:count]
            core.mul(values, values, ROOT)
            core.mul(values, values, MEAN)
            grads = self.wide(self.dy_in.deque(), 1)[:count]
            core.mul(grads, grads, gamma)
            out = self.dx_out.alloc()[:count]
            core.sub(out, grads, values)
            core.mul(out, out, ROOT)
            self.x_in.free(values)
            self.dy_in.free(grads)
            self.give(out, there)
        core.sync("vector", "mte2")


TEMPLATES: dict[str, type[Merged] | type[Single] | type[Split]] = {
    "merge_n": Merged,
    "normal": Single,
    "split_d": Split,
}
