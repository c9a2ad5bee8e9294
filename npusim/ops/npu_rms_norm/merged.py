"""The template merge_n of npu_rms_norm: several short rows an instruction.

The scalar unit waits for nothing within a step, so the next rows are on their way while these are
scaled; all buffers are single.

ops-nn@e5c3fa9 norm/rms_norm/op_kernel/rms_norm_merge_n.h; DK impl/adv_api/detail/pad/broadcast,
asc-devkit, for BroadCast.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, Copy, Duplicate, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.rows import Writer, fill, load
from npusim.kernel.views import GmView, store
from npusim.ops._rms_norm.rows import whole_blocks
from npusim.ops._rms_norm.steps import (
    multiply_by_block,
    multiply_by_row,
    narrow,
    read_root,
    root_by_vector,
    spread,
    widen,
)
from npusim.ops._rms_norm.sums import FLOATS_PER_BLOCK, LANES, rows_into
from npusim.ops.npu_dynamic_quant.row_steps import repeat_block
from npusim.ops.npu_rms_norm.contract import Problem
from npusim.ops.npu_rms_norm.one_row import gamma_of
from npusim.ops.npu_rms_norm.tiling import Plan

__all__ = ["Merged"]


class Merged:
    """Rows that begin at whole blocks of x in the buffer, and what fills them up is 0.

    With few rows a number of each is applied by strides, and so is gamma; else both are copied into
    planes as large as the rows.
    """

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = Builder("npu_rms_norm", spec.cores[spec.vector_kinds[0]], spec.sync)
        claim, queue, element = self.builder.claim, self.builder.queue, p.x.element
        rows, self.pitch = plan.row_step, whole_blocks(p.columns, element)
        nbytes, wide_bytes = (rows * kind.nbytes(self.pitch) for kind in (element, FLOAT32))
        self.x = queue("ub", nbytes, "mte2", "vector")
        self.y = queue("ub", nbytes, "vector", "mte3")
        self.roots = queue("ub", FLOAT32.nbytes(rows), "vector", "mte3")
        self.lanes = claim("ub", FLOAT32.nbytes(rows * LANES))
        """64 running sums a row; then ones, and 1 / root of each row eight times."""
        self.squares = claim("ub", wide_bytes)
        self.is_wide = element is FLOAT32
        self.values = None if self.is_wide else claim("ub", wide_bytes)
        copies = 1 if p.is_small else rows
        self.gamma = claim("ub", copies * FLOAT32.nbytes(self.pitch))
        self.writer = Writer(self.builder, spec)

    def begin(self) -> None:
        """As :class:`RowsKernel` says: gamma in fp32, once or for each row."""
        builder, p = self.builder, self.p
        slot = self.gamma if p.gamma.element is FLOAT32 else self.squares
        fill(builder, self.spec, slot, gamma_of(p))
        builder.sync("mte2", "vector")
        gamma = self.gamma.of(FLOAT32, self.pitch)
        if p.gamma.element is not FLOAT32:
            widen(builder, gamma, slot.of(p.gamma.element, self.pitch))
        if not p.is_small:
            for row in range(1, self.plan.row_step):
                nbytes = row * FLOAT32.nbytes(self.pitch)
                builder.emit(Copy(self.gamma.of(FLOAT32, self.pitch, nbytes), gamma))
            builder.barrier("vector")

    def group(self, *views: GmView) -> None:
        """As :class:`RowsKernel` says, of x, output and rstd."""
        x, output, rstd = views
        builder, count = self.builder, x.rows * self.pitch
        slot = load(builder, self.spec, self.x, x, x.dtype.nbytes(self.pitch))
        values, squares = slot.of(x.dtype, count), self.squares.of(FLOAT32, count)
        if self.values is not None:
            wide = self.values.of(FLOAT32, count)
            widen(builder, wide, values)
            self.x.free(slot)
            values = wide
        step(builder, Binary("mul", squares, values, values))
        kept = self.roots.alloc()
        roots = kept.of(FLOAT32, x.rows)
        rows_into(builder, roots, self.lanes.of(FLOAT32, x.rows * LANES), squares, x.columns)
        ones = self.lanes.of(FLOAT32, x.rows)
        root_by_vector(builder, roots, ones, self.p.epsilon, self.p.mean)
        out = self.y.alloc()
        scaled = out.of(FLOAT32, count) if self.values is None else values
        if self.p.is_small:
            self._by_strides(scaled, values, roots)
        else:
            self._by_planes(scaled, values, roots)
        if self.values is None:
            self.x.free(slot)
        else:
            narrow(builder, self.spec, out.of(output.dtype, count), scaled)
        store(builder, self.roots, kept, rstd)
        self.writer.store(self.y, out, output, output.dtype.nbytes(self.pitch))

    def _by_strides(self, scaled: Local, values: Local, roots: Local) -> None:
        """*values* `(rows, pitch)` times the number of each row, and gamma, to *scaled*."""
        rows = roots.count
        # A repeat of Brcb for each row, where one for eight would do.
        many = Local(roots.buffer, roots.offset_bytes, FLOAT32, rows * FLOATS_PER_BLOCK)
        blocks = self.lanes.of(FLOAT32, rows * LANES)
        spread(self.builder, blocks, many)
        multiply_by_block(self.builder, values, blocks, rows, scaled)
        multiply_by_row(self.builder, scaled, self.gamma.of(FLOAT32, self.pitch), rows)

    def _by_planes(self, scaled: Local, values: Local, roots: Local) -> None:
        """As `_by_strides`, with planes of the numbers and of gamma."""
        factors = self.squares.of(FLOAT32, values.count)
        self._repeat_roots(factors, roots)
        step(self.builder, Binary("mul", scaled, values, factors))
        gamma = self.gamma.of(FLOAT32, values.count)
        step(self.builder, Binary("mul", scaled, scaled, gamma))

    def _repeat_roots(self, plane: Local, roots: Local) -> None:
        """Each of *roots* to its row of *plane* `(rows, pitch)`."""
        builder, rows = self.builder, roots.count
        if rows == 1:
            # BroadCast of one number goes by way of the scalar unit.
            read_root(builder, "root", roots)
            step(builder, Duplicate(plane, "root"))
            return
        blocks = self.lanes.of(FLOAT32, rows * FLOATS_PER_BLOCK)
        spread(builder, blocks, roots)
        for row in range(rows):
            block = blocks.at(row * FLOATS_PER_BLOCK, FLOATS_PER_BLOCK)
            repeat_block(builder, plane.at(row * self.pitch, self.pitch), block)
        builder.barrier("vector")
