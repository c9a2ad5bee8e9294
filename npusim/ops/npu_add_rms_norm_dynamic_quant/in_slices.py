"""The template slice_d of npu_add_rms_norm_dynamic_quant: a row in slices, three times.

First x1 and x2 are added, and the fp32 sum goes to a workspace; then the slices of it are scaled,
and z goes back to where they were; then they are quantised.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryScalar,
    Local,
    ScalarAlu,
    ScalarLoad,
)
from npusim.kernel.chain import step, to_quantised
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, fill, load, pieces
from npusim.kernel.views import GmView, store
from npusim.ops._rms_norm.adding import times_root
from npusim.ops._rms_norm.steps import float_bits, narrow, widen
from npusim.ops._rms_norm.sums import halve_into
from npusim.ops.npu_add_rms_norm_dynamic_quant.contract import Problem
from npusim.ops.npu_add_rms_norm_dynamic_quant.steps import (
    Output,
    QuantKernel,
    outputs_of,
    vector_of,
)
from npusim.ops.npu_add_rms_norm_dynamic_quant.tiling import Plan

__all__ = ["InSlices"]


class InSlices(QuantKernel):
    """All buffers single."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        claim, queue = self.builder.claim, self.builder.queue
        wide_bytes, narrow_bytes = FLOAT32.nbytes(self.pitch), p.x.element.nbytes(self.pitch)
        self.outputs = outputs_of(p, all_without_mask=False)
        self.x = queue("ub", wide_bytes, "mte2", "vector")
        self.vector = queue("ub", narrow_bytes, "mte2", "vector")
        self.wide_out = queue("ub", wide_bytes, "vector", "mte3")
        """A slice on its way to the workspace."""
        self.out = queue("ub", narrow_bytes, "vector", "mte3")
        self.values, self.work = claim("ub", wide_bytes), claim("ub", wide_bytes)
        self.scales = {
            output.number: queue("ub", BLOCK_BYTES, "scalar", "mte3") for output in self.outputs
        }
        columns = pieces(p.columns, plan.column_step)
        self.slices = [slice(start, start + width) for start, width in columns]
        self.writer = Writer(self.builder, spec)

    def begin(self) -> None:
        """As :class:`RowsKernel` says; nothing stays in the buffer."""

    def group(self, *views: GmView) -> None:
        """As :class:`RowsKernel` says, of what `views_of` names, for one row."""
        named, builder = self.named(views), self.builder
        # (copies, columns): the rows of this core in the workspace.
        kept = GmView.of("workspace", FLOAT32, len(self.outputs), self.p.columns)
        self._sum(named, kept)
        builder.sync("mte3", "mte2")
        for part in self.slices:
            self._scale(kept, part)
        builder.sync("mte3", "mte2")
        for index, output in enumerate(self.outputs):
            number = output.number
            scales = self.scales[number].alloc()
            self.divide(f"absmax{number}", scales, 0)
            store(builder, self.scales[number], scales, named[f"scale{number}"])
            name = "output" if number == 1 else "y2"
            for part in self.slices:
                self._quantise(kept[index : index + 1, part], named[name][:, part])

    def _sum(self, named: dict[str, GmView], kept: GmView) -> None:
        """x1 and x2 added, slice by slice; 1 / root into register `root`."""
        builder, element = self.builder, self.p.x.element
        builder.emit(ScalarAlu("add", "sum", 0))
        for part in self.slices:
            x1, x2, x = (named[name][:, part] for name in ("x1", "x2", "x"))
            count, slot = x1.columns, self.x.alloc()
            half = slot.nbytes // 2
            fill(builder, self.spec, slot, x1)
            fill(builder, self.spec, Slot("ub", slot.offset_bytes + half, half, -1), x2)
            self.x.enque(slot)
            slot, wide, out = self.x.deque(), self.wide_out.alloc(), self.out.alloc()
            total, work = wide.of(FLOAT32, count), self.work.of(FLOAT32, count)
            self.add(total, (slot.of(element, count), slot.of(element, count, half)), work)
            self.x.free(slot)
            narrow(builder, self.spec, out.of(element, count), total)
            self.writer.store(self.out, out, x)
            step(builder, Binary("mul", work, total, total))
            self.writer.store(self.wide_out, wide, kept[:1, part])
            halve_into(builder, self.total.of(FLOAT32, 1), work)
            builder.sync("vector", "scalar")
            load_part = ScalarLoad("part", self.total.of(FLOAT32, 1))
            builder.emit(load_part, ScalarAlu("f32_add", "sum", "sum", "part"))
        self._root_of_sum()

    def _root_of_sum(self) -> None:
        """1 / root of the row whose squares register `sum` adds up."""
        self.builder.emit(
            ScalarAlu("f32_mul", "root", "sum", float_bits(self.p.mean)),
            ScalarAlu("f32_add", "root", "root", float_bits(self.p.epsilon)),
            ScalarAlu("f32_sqrt", "root", "root"),
            ScalarAlu("f32_div", "root", float_bits(1), "root"),
        )
        self.builder.sync("scalar", "vector")

    def _scale(self, kept: GmView, part: slice) -> None:
        """A slice of the sum times 1 / root and gamma, plus beta, as z of each output."""
        builder, view = self.builder, kept[:1, part]
        slot, values = load(builder, self.spec, self.x, view), self.values.of(FLOAT32, view.columns)
        times_root(builder, values, slot.of(FLOAT32, view.columns))
        self.x.free(slot)
        step(builder, Binary("mul", values, values, self._vector("gamma", part)))
        if self.p.beta is not None:
            step(builder, Binary("add", values, values, self._vector("beta", part)))
        for index, output in enumerate(self.outputs):
            smooth = self._vector(output.smooth, part) if output.smooth else None
            wide = self.wide_out.alloc()
            z, work = wide.of(FLOAT32, values.count), self.work.of(FLOAT32, values.count)
            self.smoothed(z, values, smooth)
            self.magnitudes(work, z)
            self.writer.store(self.wide_out, wide, kept[index : index + 1, part])
            self._keep_largest(output, work, is_first=part is self.slices[0])

    def _keep_largest(self, output: Output, magnitudes: Local, *, is_first: bool) -> None:
        """M of the row so far into the register of *output*. Assumed: a NaN stays."""
        register = f"absmax{output.number}"
        if is_first:
            self.take_absmax(magnitudes, register)
            return
        self.take_absmax(magnitudes, "part")
        self.builder.emit(ScalarAlu("f32_max", register, register, "part"))

    def _vector(self, name: str, part: slice) -> Local:
        """A slice of a vector in fp32, in `work`."""
        view = vector_of(self.p, name)[:, part]
        slot, work = load(self.builder, self.spec, self.vector, view), self.work
        wide = work.of(FLOAT32, view.columns)
        widen(self.builder, wide, slot.of(view.dtype, view.columns))
        self.vector.free(slot)
        return wide

    def _quantise(self, kept: GmView, output: GmView) -> None:
        """z of a slice times register `factor`, rounded, to *output*."""
        builder, count = self.builder, kept.columns
        slot = load(builder, self.spec, self.x, kept)
        z = slot.of(FLOAT32, count)
        step(builder, BinaryScalar("mul", z, z, "factor"))
        out = self.out.alloc()
        to_quantised(builder, self.spec, out.of(self.p.target, count), z)
        self.x.free(slot)
        self.writer.store(self.out, out, output)
