"""The templates normal and single_row of npu_rms_norm: a row at a time.

The scalar unit finds 1 / root, so the next row is loaded once the sum of this one is known; it is
on its way while this one is scaled and stored.

ops-nn@e5c3fa9 norm/rms_norm/op_kernel/rms_norm.h and rms_norm_single_row.h.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Binary, BinaryScalar, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, fill, load
from npusim.kernel.views import GmView
from npusim.ops._rms_norm.rows import whole_blocks
from npusim.ops._rms_norm.steps import RootsOfRows, narrow, root_by_scalar, widen
from npusim.ops._rms_norm.sums import halve_into
from npusim.ops.npu_rms_norm.contract import Problem
from npusim.ops.npu_rms_norm.tiling import Plan

__all__ = ["Normal", "OneRow", "gamma_of"]


def gamma_of(p: Problem) -> GmView:
    """gamma in global memory, `(columns,)`."""
    return GmView.vector("gamma", p.gamma.element, p.columns)


class OneRow:
    """Buffers of a row, or of a piece of one, all of them single; and what becomes of it."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = Builder("npu_rms_norm", spec.cores[spec.vector_kinds[0]], spec.sync)
        claim, queue, element = self.builder.claim, self.builder.queue, p.x.element
        padded = whole_blocks(plan.column_step, element)
        self.squares_in_x = plan.template == "single_row"
        self.x = queue(
            "ub", (FLOAT32 if self.squares_in_x else element).nbytes(padded), "mte2", "vector"
        )
        self.y = queue("ub", element.nbytes(padded), "vector", "mte3")
        self.is_wide = element is FLOAT32
        self.values = None if self.is_wide else claim("ub", FLOAT32.nbytes(padded))
        """x in fp32, where it is not that already."""
        self.squares = None if self.squares_in_x else claim("ub", FLOAT32.nbytes(padded))
        self.gamma_bytes = p.gamma.element.nbytes(padded)
        self.writer = Writer(self.builder, spec)

    def sum_squares(self, total: Local, slot: Slot, count: int) -> None:
        """The sum of squares of the row in *slot* to *total* `(1,)`, the row in fp32 to `values`.

        *slot* is freed as soon as it can be, but not an x of fp32, which `scale` still reads.
        """
        builder, squares = self.builder, (self.squares or slot).of(FLOAT32, count)
        values = self.wide(slot, count)
        step(builder, Binary("mul", squares, values, values))
        halve_into(builder, total, squares)
        if self.squares_in_x:
            self.x.free(slot)

    def wide(self, slot: Slot, count: int) -> Local:
        """The row in *slot* in fp32; the slot is freed unless more of it is needed."""
        if self.values is None:
            return slot.of(FLOAT32, count)
        values = self.values.of(FLOAT32, count)
        widen(self.builder, values, slot.of(self.p.x.element, count))
        if not self.squares_in_x:
            self.x.free(slot)
        return values

    def scale(self, slot: Slot, gamma: Local, output: GmView) -> None:
        """The row of *slot* times register `root` and *gamma* `(width,)` to *output* `(1, width)`.

        Of 16 bits it is in `values` already.
        """
        builder, count = self.builder, output.columns
        if self.values is None:
            out, x = self.y.alloc(), slot.of(FLOAT32, count)
            scaled = out.of(FLOAT32, count)
            step(builder, BinaryScalar("mul", scaled, x, "root"))
            self.x.free(slot)
            step(builder, Binary("mul", scaled, scaled, gamma))
        else:
            scaled = self.values.of(FLOAT32, count)
            step(builder, BinaryScalar("mul", scaled, scaled, "root"))
            if gamma.dtype is not FLOAT32:
                assert self.squares is not None
                # Once more for every row.
                wide = self.squares.of(FLOAT32, count)
                widen(builder, wide, gamma)
                gamma = wide
            step(builder, Binary("mul", scaled, scaled, gamma))
            out = self.y.alloc()
            narrow(builder, self.spec, out.of(output.dtype, count), scaled)
        self.writer.store(self.y, out, output)


class Normal(OneRow):
    """gamma stays in the buffer; 1 / root of 64 rows is stored together.

    single_row has the squares of a row where the row itself was.
    """

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        self.gamma = self.builder.claim("ub", self.gamma_bytes)
        self.total = self.builder.claim("ub", BLOCK_BYTES)
        self.roots = RootsOfRows(self.builder, spec, plan.row_step)

    def begin(self) -> None:
        """As :class:`RowsKernel` says."""
        fill(self.builder, self.spec, self.gamma, gamma_of(self.p))
        self.builder.sync("mte2", "vector")

    def group(self, *views: GmView) -> None:
        """As :class:`RowsKernel` says, of x, output and rstd."""
        x, output, rstd = views
        kept = self.roots.alloc()
        for row in range(x.rows):
            here = slice(row, row + 1)
            slot = load(self.builder, self.spec, self.x, x[here, :])
            total = self.total.of(FLOAT32, 1)
            self.sum_squares(total, slot, x.columns)
            root_by_scalar(self.builder, "root", total, self.p.mean, self.p.epsilon)
            self.roots.keep("root", kept, row)
            self.scale(slot, self.gamma.of(self.p.gamma.element, x.columns), output[here, :])
        self.roots.store(kept, rstd)
