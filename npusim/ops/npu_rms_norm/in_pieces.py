"""The template split_d of npu_rms_norm: rows in pieces, loaded twice.

First the sums of up to 64 rows, which the scalar unit adds up piece by piece; then 1 / root of all
of them at once; then their products, a piece of gamma for all rows, the last piece first.

ops-nn@e5c3fa9 norm/rms_norm/op_kernel/rms_norm_split_d.h.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, BinaryScalar, Local, ScalarAlu, ScalarLoad, ScalarStore
from npusim.kernel.chain import step
from npusim.kernel.rows import load, pieces
from npusim.kernel.views import GmView
from npusim.ops._rms_norm.steps import RootsOfRows, read_root, root_by_vector
from npusim.ops.npu_rms_norm.contract import Problem
from npusim.ops.npu_rms_norm.one_row import OneRow, gamma_of
from npusim.ops.npu_rms_norm.tiling import Plan

__all__ = ["InPieces"]


class InPieces(OneRow):
    """Buffers for a piece of a row."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        claim, queue = self.builder.claim, self.builder.queue
        self.gamma = queue("ub", self.gamma_bytes, "mte2", "vector")
        columns = pieces(p.columns, plan.column_step)
        self.parts = [slice(start, start + width) for start, width in columns]
        self.partials = claim("ub", len(self.parts) * BLOCK_BYTES)
        """A block for the sum of each piece."""
        self.sums, self.ones = (claim("ub", FLOAT32.nbytes(plan.row_step)) for _ in range(2))
        self.roots = RootsOfRows(self.builder, spec, plan.row_step, "vector")

    def begin(self) -> None:
        """As :class:`RowsKernel` says; nothing stays in the buffer."""

    def group(self, *views: GmView) -> None:
        """As :class:`RowsKernel` says, of x, output and rstd."""
        x, output, rstd = views
        for row in range(x.rows):
            self._add_up(x[row : row + 1, :])
            store = ScalarStore(self.sums.of(FLOAT32, 1, FLOAT32.nbytes(row)), "sum")
            self.builder.emit(store)
        self.builder.sync("scalar", "vector")
        kept = self.roots.alloc()
        roots, sums, ones = (slot.of(FLOAT32, x.rows) for slot in (kept, self.sums, self.ones))
        step(self.builder, BinaryScalar("mul", roots, sums, self.p.mean))
        root_by_vector(self.builder, roots, ones, self.p.epsilon)
        for part in (self.parts[-1], *self.parts[:-1]):
            view = gamma_of(self.p)[:, part]
            slot = load(self.builder, self.spec, self.gamma, view)
            gamma = slot.of(view.dtype, view.columns)
            for row in range(x.rows):
                here = slice(row, row + 1), part
                self._multiply(x[here], gamma, roots.at(row, 1), output[here])
            self.gamma.free(slot)
        self.roots.store(kept, rstd)

    def _add_up(self, x: GmView) -> None:
        """The sum of squares of the row *x* into register `sum`.

        The scalar unit waits for the vector pipe before the last piece, and behind it.
        """
        for index, part in enumerate(self.parts):
            if part is self.parts[-1]:
                self._take(range(index), is_first=True)
            view = x[:, part]
            slot = load(self.builder, self.spec, self.x, view)
            self.sum_squares(self._partial(index), slot, view.columns)
            if self.is_wide:
                self.x.free(slot)
        last = len(self.parts) - 1
        self._take(range(last, last + 1), is_first=last == 0)

    def _partial(self, index: int) -> Local:
        return self.partials.of(FLOAT32, 1, index * BLOCK_BYTES)

    def _take(self, indices: range, *, is_first: bool) -> None:
        """Add the sums of these pieces to register `sum`, from 0 on if they are the *first*."""
        if not indices:
            return
        self.builder.sync("vector", "scalar")
        if is_first:
            self.builder.emit(ScalarAlu("add", "sum", 0))
        for index in indices:
            part = ScalarLoad("part", self._partial(index))
            self.builder.emit(part, ScalarAlu("f32_add", "sum", "sum", "part"))

    def _multiply(self, x: GmView, gamma: Local, root: Local, output: GmView) -> None:
        """The piece *x* of a row times its *root* and *gamma*."""
        read_root(self.builder, "root", root)
        slot = load(self.builder, self.spec, self.x, x)
        if not self.is_wide:
            self.wide(slot, x.columns)
        self.scale(slot, gamma, output)
