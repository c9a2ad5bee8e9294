"""The templates normal and single_n of npu_add_rms_norm: a row at a time.

ops-nn@e5c3fa9 norm/add_rms_norm/op_kernel/add_rms_norm.h and add_rms_norm_single_n.h.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Binary, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Queue, Slot
from npusim.kernel.rows import Writer, fill, load
from npusim.kernel.views import GmView, store
from npusim.ops._rms_norm.adding import add, add_squares, times_gamma, times_root
from npusim.ops._rms_norm.rows import whole_blocks
from npusim.ops._rms_norm.steps import RootsOfRows, narrow, read_root, root_by_vector
from npusim.ops._rms_norm.sums import LANES
from npusim.ops.npu_add_rms_norm.contract import Problem
from npusim.ops.npu_add_rms_norm.tiling import Plan

__all__ = ["Normal", "SingleN", "gamma_of"]


def gamma_of(p: Problem) -> GmView:
    """gamma in global memory, `(columns,)`."""
    return GmView.vector("gamma", p.gamma.element, p.columns)


class Normal:
    """All buffers single. x2 is loaded where the squares come later, so the next row waits.

    The queue of y carries x first, and then y: each waits for the other to be stored.
    """

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = Builder("npu_add_rms_norm", spec.cores[spec.vector_kinds[0]], spec.sync)
        claim, queue, element = self.builder.claim, self.builder.queue, p.x.element
        self.padded = whole_blocks(p.columns, element)
        nbytes, wide_bytes = (kind.nbytes(self.padded) for kind in (element, FLOAT32))
        self.is_wide = element is FLOAT32
        self.x = queue("ub", nbytes, "mte2", "vector")
        self.y = queue("ub", nbytes, "vector", "mte3")
        self.gamma = claim("ub", nbytes)
        self.squares = claim("ub", wide_bytes)
        self.values = None if self.is_wide else claim("ub", wide_bytes)
        self.lanes, self.total = claim("ub", FLOAT32.nbytes(LANES)), claim("ub", BLOCK_BYTES)
        self.ones = claim("ub", BLOCK_BYTES)
        # 310P does not store them.
        is_stored = spec.arch != "2002"
        self.roots = RootsOfRows(self.builder, spec, plan.row_step, is_stored=is_stored)
        self.writer = Writer(self.builder, spec)

    def begin(self) -> None:
        """As :class:`RowsKernel` says."""
        fill(self.builder, self.spec, self.gamma, gamma_of(self.p))
        self.builder.sync("mte2", "vector")

    def group(self, *views: GmView) -> None:
        """As :class:`RowsKernel` says, of x1, x2, output, rstd and x."""
        x1, x2, output, rstd, x = views
        kept = self.roots.alloc()
        for row in range(x1.rows):
            here = slice(row, row + 1), slice(None)
            self._row(x1[here], x2[here], output[here], x[here])
            self.roots.keep("root", kept, row)
        self.roots.store(kept, rstd)

    def _row(self, x1: GmView, x2: GmView, output: GmView, x: GmView) -> None:
        builder, spec, count = self.builder, self.spec, x1.columns
        slot = self.x.alloc()
        upper = self.squares.nbytes - x2.dtype.nbytes(self.padded)
        second = Slot("ub", self.squares.offset_bytes + upper, self.squares.nbytes - upper, -1)
        fill(builder, spec, slot, x1)
        fill(builder, spec, second, x2)
        self.x.enque(slot)
        slot = self.x.deque()
        addends = slot.of(x1.dtype, count), second.of(x2.dtype, count)
        values = (self.values or slot).of(FLOAT32, count)
        squares, out = self.squares.of(FLOAT32, count), self.y.alloc()
        add(builder, spec, out.of(x.dtype, count), values, addends, squares, is_rounded=False)
        self.writer.store(self.y, out, x)
        self._find_root(values, squares)
        out = self._scale(slot, values, squares)
        self.writer.store(self.y, out, output)

    def _find_root(self, values: Local, squares: Local) -> None:
        """1 / root of *values* into register `root`."""
        builder, p = self.builder, self.p
        total, ones = self.total.of(FLOAT32, 1), self.ones.of(FLOAT32, 1)
        add_squares(builder, total, self.lanes.of(FLOAT32, LANES), squares, values, p.mean)
        root_by_vector(builder, total, ones, p.epsilon)
        read_root(builder, "root", total)

    def _scale(self, slot: Slot, values: Local, squares: Local) -> Slot:
        """*values* times register `root` and gamma, in a slot of y; frees *slot*."""
        builder, element = self.builder, self.p.x.element
        gamma = self.gamma.of(element, values.count)
        if element is FLOAT32:
            out = self.y.alloc()
            scaled = out.of(FLOAT32, values.count)
            times_root(builder, scaled, values)
            self.x.free(slot)
            times_gamma(builder, self.spec, scaled, scaled, gamma, squares)
            return out
        times_root(builder, values, values)
        out = self.y.alloc()
        y = out.of(element, values.count)
        if element is FLOAT16:
            narrow(builder, self.spec, y, values)
            self.x.free(slot)
            step(builder, Binary("mul", y, y, gamma))
        else:
            times_gamma(builder, self.spec, y, values, gamma, squares)
            self.x.free(slot)
        return out


class SingleN:
    """The one row of a core: gamma is loaded where x2 was, x stored while squares are added up."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = Builder("npu_add_rms_norm", spec.cores[spec.vector_kinds[0]], spec.sync)
        claim, queue, element = self.builder.claim, self.builder.queue, p.x.element
        padded = whole_blocks(p.columns, element)
        nbytes, wide_bytes = (kind.nbytes(padded) for kind in (element, FLOAT32))
        self.x1 = queue("ub", nbytes, "mte2", "vector")
        self.x2 = queue("ub", nbytes, "mte2", "vector")
        self.y = queue("ub", nbytes, "vector", "mte3")
        is_wide = element is FLOAT32
        self.wide_y = queue("ub", wide_bytes, "vector", "mte3") if is_wide else None
        """Squares of fp32, and then y."""
        self.squares = None if is_wide else claim("ub", wide_bytes)
        self.values = None if is_wide else claim("ub", wide_bytes)
        self.lanes = claim("ub", FLOAT32.nbytes(LANES))
        self.roots = queue("ub", BLOCK_BYTES, "vector", "mte3")
        self.ones = claim("ub", BLOCK_BYTES)

    def begin(self) -> None:
        """As :class:`RowsKernel` says; nothing comes before the row."""

    def group(self, *views: GmView) -> None:
        """As :class:`RowsKernel` says, of x1, x2, output, rstd and x."""
        x1, x2, output, rstd, x = views
        builder, p, count = self.builder, self.p, x1.columns
        first, second = load(builder, self.spec, self.x1, x1), load(builder, self.spec, self.x2, x2)
        out, work = self.y.alloc(), self.squares or self._wide_y.alloc()
        squares, values = work.of(FLOAT32, count), self._add(first, second, out, work, count)
        self.x1.free(first)
        self.x2.free(second)
        gamma = load(builder, self.spec, self.x2, gamma_of(p))
        store(builder, self.y, out, x)
        kept = self.roots.alloc()
        root, ones = kept.of(FLOAT32, 1), self.ones.of(FLOAT32, 1)
        add_squares(builder, root, self.lanes.of(FLOAT32, LANES), squares, values, p.mean)
        root_by_vector(builder, root, ones, p.epsilon)
        store(builder, self.roots, kept, rstd)
        read_root(builder, "root", root)
        weights = gamma.of(p.gamma.element, count)
        if self.values is None:
            times_root(builder, squares, values)
            times_gamma(builder, self.spec, squares, squares, weights, squares)
            store(builder, self._wide_y, work, output)
        else:
            times_root(builder, values, values)
            out = self.y.alloc()
            times_gamma(builder, self.spec, out.of(x.dtype, count), values, weights, squares)
            store(builder, self.y, out, output)
        self.x2.free(gamma)

    @property
    def _wide_y(self) -> Queue:
        assert self.wide_y is not None
        return self.wide_y

    def _add(self, first: Slot, second: Slot, out: Slot, work: Slot, count: int) -> Local:
        """The sum of both to *out*; in fp32 it is given back."""
        element = self.p.x.element
        addends = first.of(element, count), second.of(element, count)
        total = out.of(element, count)
        if self.values is None:
            step(self.builder, Binary("add", total, *addends))
            return total
        values, squares = (slot.of(FLOAT32, count) for slot in (self.values, work))
        add(self.builder, self.spec, total, values, addends, squares, is_rounded=True)
        return values
