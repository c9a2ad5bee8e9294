"""The template single_row of npu_add_rms_norm_dynamic_quant: a row at a time.

gamma, beta and the second smooth scales are loaded for each row where x1 and x2 were; what is there
last serves as room until the row is done. The second output comes first.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, BinaryOp, BinaryScalar, Local
from npusim.kernel.chain import step, to_quantised
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, fill, load
from npusim.kernel.views import GmView, store
from npusim.ops._rms_norm.adding import times_root
from npusim.ops._rms_norm.steps import narrow, widen
from npusim.ops.npu_add_rms_norm_dynamic_quant.contract import Problem
from npusim.ops.npu_add_rms_norm_dynamic_quant.steps import (
    QuantKernel,
    outputs_of,
    vector_of,
)
from npusim.ops.npu_add_rms_norm_dynamic_quant.tiling import Plan

__all__ = ["SingleRow"]


class SingleRow(QuantKernel):
    """x and y leave through one queue, the scales of 128 rows together."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        super().__init__(spec, p, plan)
        claim, queue = self.builder.claim, self.builder.queue
        wide_bytes, narrow_bytes = FLOAT32.nbytes(self.pitch), p.x.element.nbytes(self.pitch)
        self.outputs = outputs_of(p, all_without_mask=False)[::-1]
        self.x = queue("ub", wide_bytes, "mte2", "vector")
        self.out = queue("ub", narrow_bytes, "vector", "mte3")
        self.values, self.work = claim("ub", wide_bytes), claim("ub", wide_bytes)
        self.smooth = claim("ub", narrow_bytes) if p.smooth[0] else None
        scale_bytes = FLOAT32.nbytes(plan.row_step)
        self.scales = {
            output.number: queue("ub", scale_bytes, "scalar", "mte3") for output in self.outputs
        }
        self.writer = Writer(self.builder, spec)

    def begin(self) -> None:
        """As :class:`RowsKernel` says."""
        if self.smooth is not None:
            fill(self.builder, self.spec, self.smooth, vector_of(self.p, "smooth_scale1"))
            self.builder.sync("mte2", "vector")

    def group(self, *views: GmView) -> None:
        """As :class:`RowsKernel` says, of what `views_of` names."""
        named = self.named(views)
        scales = {number: queue.alloc() for number, queue in self.scales.items()}
        for row in range(named["x1"].rows):
            here = {name: view[row : row + 1, :] for name, view in named.items() if view.pitch}
            self._row(here, scales, row)
        for number, slot in scales.items():
            store(self.builder, self.scales[number], slot, named[f"scale{number}"])

    def _row(self, views: dict[str, GmView], scales: dict[int, Slot], row: int) -> None:
        builder, count = self.builder, self.p.columns
        values, work = (each.of(FLOAT32, count) for each in (self.values, self.work))
        self._sum(views, values, work)
        step(builder, Binary("mul", work, values, values))
        # Loaded while the squares are added up.
        slot = self._fetch("gamma")
        self.find_root(work)
        times_root(builder, values, values)
        self._apply("mul", slot, values, work)
        if self.p.beta is not None:
            self.x.free(slot)
            slot = self._fetch("beta")
            self._apply("add", slot, values, work)
        for output in self.outputs:
            smooth = self.smooth
            if output.number == 2 and output.smooth:
                self.x.free(slot)
                smooth = slot = self._fetch(output.smooth)
            elif not output.smooth:
                smooth = None
            name = "output" if output.number == 1 else "y2"
            self._quantise(views[name], smooth, slot, scales[output.number], row)
        self.x.free(slot)

    def _sum(self, views: dict[str, GmView], values: Local, work: Local) -> None:
        """x1 and x2 added to *values* and, rounded, to x."""
        element, count, slot = self.p.x.element, self.p.columns, self.x.alloc()
        half = slot.nbytes // 2
        fill(self.builder, self.spec, slot, views["x1"])
        fill(self.builder, self.spec, Slot("ub", slot.offset_bytes + half, half, -1), views["x2"])
        self.x.enque(slot)
        slot = self.x.deque()
        self.add(values, (slot.of(element, count), slot.of(element, count, half)), work)
        self.x.free(slot)
        out = self.out.alloc()
        narrow(self.builder, self.spec, out.of(element, count), values)
        self.writer.store(self.out, out, views["x"])

    def _fetch(self, name: str) -> Slot:
        return load(self.builder, self.spec, self.x, vector_of(self.p, name))

    def _apply(self, op: BinaryOp, slot: Slot, values: Local, work: Local) -> None:
        """*values* times, or plus, the vector in *slot*."""
        widen(self.builder, work, slot.of(self.p.x.element, values.count))
        step(self.builder, Binary(op, values, values, work))

    def _quantise(
        self, output: GmView, smooth: Slot | None, room: Slot, scales: Slot, row: int
    ) -> None:
        """`values` times *smooth*, quantised to *output* by way of *room*."""
        builder, count = self.builder, output.columns
        z, spare = (each.of(FLOAT32, count) for each in (self.work, room))
        values = self.values.of(FLOAT32, count)
        if smooth is not None:
            widen(builder, z, smooth.of(self.p.x.element, count))
        self.smoothed(z, values, z if smooth is not None else None)
        self.magnitudes(spare, z)
        self.take_absmax(spare, "absmax")
        self.divide("absmax", scales, row)
        step(builder, BinaryScalar("mul", z, z, "factor"))
        out = self.out.alloc()
        to_quantised(builder, self.spec, out.of(output.dtype, count), z)
        self.writer.store(self.out, out, output)
