"""The template normal of npu_add_rms_norm_dynamic_quant: several rows a step.

Everything is single, and z comes where x1 and x2 were: the next rows are loaded when the last
factor has been applied, and only stores go on meanwhile.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, BinaryOp, BinaryScalar, Local
from npusim.kernel.chain import step, to_quantised
from npusim.kernel.queues import Queue, Slot
from npusim.kernel.rows import Writer, fill
from npusim.kernel.views import GmView, store
from npusim.ops._rms_norm.adding import times_root
from npusim.ops._rms_norm.steps import narrow, widen
from npusim.ops.npu_add_rms_norm_dynamic_quant.contract import Problem
from npusim.ops.npu_add_rms_norm_dynamic_quant.steps import (
    Output,
    QuantKernel,
    outputs_of,
    vector_of,
)
from npusim.ops.npu_add_rms_norm_dynamic_quant.tiling import Plan

__all__ = ["Normal"]


class Normal(QuantKernel):
    """Rows begin at whole blocks of what comes out."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        claim, queue, element = self.builder.claim, self.builder.queue, p.x.element
        count = plan.row_step * self.pitch
        self.outputs = outputs_of(p, all_without_mask=True)
        self.x = queue("ub", FLOAT32.nbytes(count), "mte2", "vector")
        """x1 and x2, then z in fp32."""
        self.x_out = queue("ub", element.nbytes(count), "vector", "mte3")
        self.values, self.work = (claim("ub", FLOAT32.nbytes(count)) for _ in range(2))
        smooth = [output.smooth for output in self.outputs if output.smooth]
        self.vectors = {
            name: claim("ub", element.nbytes(self.pitch))
            for name in ("gamma", *(["beta"] if p.beta else []), *smooth)
        }
        scale_bytes = FLOAT32.nbytes(align_up(plan.row_step, 8))
        self.y: dict[int, Queue] = {}
        self.scales: dict[int, Queue] = {}
        self.dropped: tuple[Slot, Slot] | None = None
        for output in self.outputs:
            if output.is_stored:
                self.y[output.number] = queue("ub", p.target.nbytes(count), "vector", "mte3")
                self.scales[output.number] = queue("ub", scale_bytes, "scalar", "mte3")
            else:
                self.dropped = claim("ub", p.target.nbytes(count)), claim("ub", scale_bytes)
        self.writer = Writer(self.builder, spec)

    def begin(self) -> None:
        """As :class:`RowsKernel` says."""
        for name, slot in self.vectors.items():
            fill(self.builder, self.spec, slot, vector_of(self.p, name))
        self.builder.sync("mte2", "vector")

    def group(self, *views: GmView) -> None:
        """As :class:`RowsKernel` says, of what `views_of` names."""
        named, builder = self.named(views), self.builder
        rows = named["x1"].rows
        count = rows * self.pitch
        slot = self._load(named["x1"], named["x2"])
        values, work = (each.of(FLOAT32, count) for each in (self.values, self.work))
        addends = self._addends(slot, count)
        self.add(values, addends, work)
        out, pitch_bytes = self.x_out.alloc(), addends[0].dtype.nbytes(self.pitch)
        narrow(builder, self.spec, out.of(addends[0].dtype, count), values)
        self.writer.store(self.x_out, out, named["x"], pitch_bytes)
        self._scale(values, work, rows)
        z = slot.of(FLOAT32, count)
        found = [
            (output, *self._quantise(output, z, values, work, rows)) for output in self.outputs
        ]
        self.x.free(slot)
        for output, quantised, scales in found:
            if output.is_stored:
                number, name = output.number, "output" if output.number == 1 else "y2"
                y_bytes = self.p.target.nbytes(self.pitch)
                self.writer.store(self.y[number], quantised, named[name], y_bytes)
                store(builder, self.scales[number], scales, named[f"scale{number}"])

    def _load(self, x1: GmView, x2: GmView) -> Slot:
        """Both, one behind the other, x2 first."""
        slot, pitch_bytes = self.x.alloc(), x1.dtype.nbytes(self.pitch)
        half = slot.nbytes // 2
        second = Slot("ub", slot.offset_bytes + half, half, -1)
        fill(self.builder, self.spec, second, x2, pitch_bytes)
        fill(self.builder, self.spec, slot, x1, pitch_bytes)
        self.x.enque(slot)
        return self.x.deque()

    def _addends(self, slot: Slot, count: int) -> tuple[Local, Local]:
        element = self.p.x.element
        return slot.of(element, count), slot.of(element, count, slot.nbytes // 2)

    def _row(self, plane: Local, row: int) -> Local:
        return plane.at(row * self.pitch, self.p.columns)

    def _scale(self, values: Local, work: Local, rows: int) -> None:
        """Each row of *values* times 1 / root, gamma, and beta added."""
        step(self.builder, Binary("mul", work, values, values))
        for row in range(rows):
            self.find_root(self._row(work, row))
            here = self._row(values, row)
            times_root(self.builder, here, here)
        operations: tuple[tuple[str, BinaryOp], ...] = (("gamma", "mul"), ("beta", "add"))
        for name, op in operations:
            if name in self.vectors:
                vector = self._widened(name, work)
                for row in range(rows):
                    here = self._row(values, row)
                    step(self.builder, Binary(op, here, here, vector))

    def _widened(self, name: str, work: Local) -> Local:
        """A vector in fp32, at the start of *work*."""
        vector = work.at(0, self.p.columns)
        narrow_vector = self.vectors[name].of(self.p.x.element, self.p.columns)
        widen(self.builder, vector, narrow_vector)
        return vector

    def _quantise(
        self, output: Output, z: Local, values: Local, work: Local, rows: int
    ) -> tuple[Slot, Slot]:
        """*values* as *output*, and the scales of its rows."""
        builder = self.builder
        smooth = self._widened(output.smooth, work) if output.smooth else None
        for row in range(rows):
            self.smoothed(self._row(z, row), self._row(values, row), smooth)
        self.magnitudes(work, z)
        if output.is_stored:
            scales = self.scales[output.number].alloc()
        else:
            assert self.dropped is not None
            scales = self.dropped[1]
        for row in range(rows):
            self.take_absmax(self._row(work, row), "absmax")
            self.divide("absmax", scales, row)
            here = self._row(z, row)
            step(builder, BinaryScalar("mul", here, here, "factor"))
        out = self.y[output.number].alloc() if output.is_stored else self._dropped_y()
        to_quantised(builder, self.spec, out.of(self.p.target, z.count), z)
        return out, scales

    def _dropped_y(self) -> Slot:
        assert self.dropped is not None
        return self.dropped[0]
