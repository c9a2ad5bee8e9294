"""npu_dynamic_quant_asymmetric: floats to int8 or int4, with scale and offset for each row.

.. code-block:: text

    v = f32(x) * f32(smooth_scales)            without smooth_scales: v = f32(x)
    scale = max((max v - min v) / 255, 1e-12)  over the last dimension; int4: 15
    offset = 127 - max v / scale               int4: 7
    y = fit(round(v * (1 / scale) + offset))

All in fp32, rounded after each operation; *round* is to nearest, ties to even, *fit* saturates and
turns NaN into 0. A row is restored as about (y - offset) * scale. With a group_index each group of
rows has its own smooth scales, as in npu_dynamic_quant.

* A row of a constant c gets scale 1e-12, offset about -c * 1e12 and zeros, a row of zeros 127.
* A row with a NaN or an infinity becomes zeros with a NaN as offset and scale 1e-12 or infinity;
  if minus infinity is the only one, the other elements and the offset become 127.
* In a row too long for the buffer, a NaN anywhere but in the last part of 10240 columns is lost:
  the scalar unit compares the results of the parts (assumed, from the npu_dynamic_quant kernel).

Sources: ops-nn@e5c3fa9 quant/dynamic_quant and quant/dynamic_quant_v2, op_kernel and op_host. The
accepted calls and the choice of the kernel are those of npu_dynamic_quant, except for the kernels
that process several rows in an instruction, which give no offsets. Atlas inference has an
undocumented kernel that omits the offsets of rows beyond 4096: refused.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from npusim.data.dtypes import FLOAT32, INT4, INT8, Array
from npusim.devices.schema import DeviceSpec
from npusim.isa import Local
from npusim.kernel import FLOATS_PER_BLOCK, Block, GmView, Step, VectorCore
from npusim.kernel.reduction import Reduction
from npusim.kernel.rows import parts_of, whole_blocks
from npusim.ops import _dynamic_quant as dynamic
from npusim.ops import _vocabulary as ops
from npusim.ops._dynamic_quant import (
    Plan,
    Problem,
    check,
    extreme_of,
    smoothed,
    template_of,
    tile,
    torch_function,
)
from npusim.ops._dynamic_quant.buffers import (
    SmoothScales,
    pieces_of_cores,
)
from npusim.ops._dynamic_quant.choice import IN_PARTS, NAMED, SEVERAL_ROWS
from npusim.ops._row_groups import Groups, GroupSearch
from npusim.ops._row_quant import LARGEST, clamped, packed
from npusim.ops._vocabulary import A2_A3

SUPPORT = tuple(row for row in dynamic.SUPPORT if row.on == A2_A3)
SPAN = {INT8: 255, INT4: 15}
"""The difference between the largest and the smallest value of a quantised row."""
LEAST_SCALE = 1e-12


# ---- kernel: op_kernel ----


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Convert rows to fp32, apply the smooth scales and find the largest and smallest element.

    The scalar unit computes scale and offset from these. If a template processes a row in parts,
    the scalar unit keeps the extremes like that of npu_dynamic_quant (assumed).
    """
    rows = AsymmetricRows(VectorCore("npu_dynamic_quant_asymmetric", spec), p, plan)
    found, (x, y, scale, *groups) = pieces_of_cores(p, plan)
    core, begin = rows.core, rows.begin
    offset = found.views(GmView.vector("offset", FLOAT32, p.rows))
    if plan.template in IN_PARTS:
        step = Step(rows.long_row, (x, y, scale, offset, *groups), found.core)
        return core.launch(step, begin=begin)
    # Template db loads the next piece ahead.
    loading, working = found.ahead
    if plan.template != "db":
        loading = working
    return core.launch(
        Step(rows.fetch, (x,), found.core, loading, keeps_slots=True),
        Step(rows.piece, (y, scale, offset, *groups), found.core, working, keeps_slots=True),
        begin=begin,
    )


class AsymmetricRows:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p, self.plan = core, p, plan
        rows, columns = plan.row_step, plan.column_step
        self.x_pitch, self.y_pitch = (
            whole_blocks(columns, p.x.element),
            whole_blocks(columns, p.target),
        )
        self.x_in = core.vecin(p.x.element, rows * self.x_pitch, plan.depth)
        self.y_out = core.vecout(p.target, rows * self.y_pitch)
        self.scale_out = core.tiles(FLOAT32, rows, "scalar", "mte3")
        self.offset_out = core.tiles(FLOAT32, rows, "scalar", "mte3")
        self.search = GroupSearch(core, p.groups) if p.groups else None
        self.smooth = SmoothScales.claimed(core, p, columns) if p.smooth_scales else None
        self.values = core.tile(FLOAT32, columns)
        self.extreme = core.tile(FLOAT32, FLOATS_PER_BLOCK)
        self.reduction = Reduction(core, columns)
        core.claim_tails()

    def begin(self) -> None:
        """Load the group_index; without one, the smooth scales of whole rows."""
        if self.search is not None:
            self.search.begin()
        elif self.plan.template not in IN_PARTS:
            self._take_smooth(slice(self.p.columns), 0)

    # ---- stages ----

    def fetch(self, x: GmView) -> None:
        """Start loading *x*."""
        self.core.copy_in(self.x_in, x, self.x_pitch if x.rows > 1 else None)

    def piece(
        self,
        output: GmView,
        scale: GmView,
        offset: GmView,
        before: int = 0,
        groups: Groups | None = None,
    ) -> None:
        """*output* `(rows, columns)`, *scale* and *offset* `(rows,)` of the oldest rows fetched.

        The rows belong to *groups*, the row before them to *before*.
        """
        core, columns = self.core, output.columns
        loaded, values = self.x_in.deque(), self.values[:columns]
        if groups is not None:
            # Every piece starts with the smooth scales of the last group of the piece before.
            self._take_smooth(slice(columns), before)
        out, scales, offsets = (
            queue.alloc() for queue in (self.y_out, self.scale_out, self.offset_out)
        )
        for row in range(output.rows):
            if groups is not None:
                self._advance(before, groups[row])
                if groups[row] != before:
                    self._take_smooth(slice(columns), groups[row])
                before = groups[row]
            self._widen(values, loaded[row * self.x_pitch : row * self.x_pitch + columns])
            self._find_extremes(values)
            self._divide(scales[row : row + 1], offsets[row : row + 1])
            self._quantise(out[row * self.y_pitch : row * self.y_pitch + columns], values)
        self.x_in.free(loaded)
        core.store(self.y_out, out, output, self.y_pitch)
        core.store_rows(self.scale_out, scales, scale)
        core.store_rows(self.offset_out, offsets, offset)

    def long_row(
        self,
        x: GmView,
        output: GmView,
        scale: GmView,
        offset: GmView,
        before: int = 0,
        groups: Groups = (0,),
    ) -> None:
        """Compute *output*, *scale* and *offset* of *x*, one row, in parts that are loaded twice.

        moe_large quantises the last part while it is still in the buffer.
        """
        core, parts = self.core, list(parts_of(x.columns, self.plan.column_step))
        (group,) = groups
        self._advance(before, group)
        for part in parts:
            values = self._part(x, part, group)
            self._find_extremes(values, is_first=part is parts[0])
        scales, offsets = self.scale_out.alloc(), self.offset_out.alloc()
        self._divide(scales[:1], offsets[:1])
        core.store_rows(self.scale_out, scales, scale)
        core.store_rows(self.offset_out, offsets, offset)
        if self.plan.template == "moe_large":
            self._store_part(values, output[:, parts.pop()])
        for part in parts:
            self._store_part(self._part(x, part, group), output[:, part])

    # ---- steps ----

    def _advance(self, before: int, group: int) -> None:
        if self.search is not None:
            self.search.advance(before, group)

    def _take_smooth(self, columns: slice, group: int) -> None:
        if self.smooth is not None:
            self.smooth.take(columns, group)

    def _widen(self, values: Local, x: Local) -> None:
        """Convert *x* `(width,)` to fp32 and apply the smooth scales."""
        self.core.widen(values, x)
        if self.smooth is not None:
            self.core.mul(values, values, self.smooth.tile[: values.count])

    def _find_extremes(self, values: Local, *, is_first: bool = True) -> None:
        """Read the extremes of *values*, and of the parts before, into registers."""
        core = self.core
        ops_and_registers: tuple[tuple[Literal["max", "min"], str], ...] = (
            ("max", "most"),
            ("min", "least"),
        )
        for op, register in ops_and_registers:
            self.reduction.find(op, self.extreme, values)
            if is_first:
                core.alu("add", register, "found", 0)
                continue
            pair = ("found", register) if op == "max" else (register, "found")
            core.alu("f32_lt", "keeps", *pair)
            core.alu("select", register, "keeps", register, "found")

    def _divide(self, scale: Local, offset: Local) -> None:
        """Compute *scale* and *offset* `(1,)` of a row, and registers `back` and `offset`."""
        core, target = self.core, self.p.target
        core.alu("f32_sub", "scale", "most", "least")
        core.alu("f32_div", "scale", "scale", float(SPAN[target]))
        # This does not hold for NaN.
        core.alu("f32_lt", "is_larger", LEAST_SCALE, "scale")
        core.alu("select", "scale", "is_larger", "scale", LEAST_SCALE)
        core.alu("f32_div", "offset", "most", "scale")
        core.alu("f32_sub", "offset", float(LARGEST[target]), "offset")
        core.alu("f32_div", "back", 1.0, "scale")
        core.set_value(scale, "scale")
        core.set_value(offset, "offset")

    def _quantise(self, y: Local, values: Local) -> None:
        """Multiply *values* in place by `back`, add `offset`, and round to *y*."""
        self.core.mul(values, values, "back")
        self.core.add(values, values, "offset")
        self.core.quantize(y, values)

    def _part(self, x: GmView, part: slice, group: int) -> Local:
        """Columns *part* of a row in fp32, with the smooth scales applied."""
        self.fetch(x[:, part])
        self._take_smooth(part, group)
        loaded, values = self.x_in.deque(), self.values[: part.stop - part.start]
        self._widen(values, loaded[: values.count])
        self.x_in.free(loaded)
        return values

    def _store_part(self, values: Local, output: GmView) -> None:
        out = self.y_out.alloc()
        self._quantise(out[: values.count], values)
        self.core.store(self.y_out, out, output)


# ---- oracle ----

F32 = np.float32


def oracle(given: ops.Given) -> tuple[Array, Array, Array]:
    """Quantise each row of x `(..., columns)`; returns it with scales and offsets `(...)`, float32.

    The first has the shape of x, int8, or with 'quint4x2' one int32 for eight columns. template
    names the kernel; without it the size of the chip's unified buffer decides.
    """
    target = INT4 if given.dst_type == "quint4x2" else INT8
    in_parts = template_of(given, is_symmetric=False) in IN_PARTS
    with np.errstate(all="ignore"):
        values = smoothed(given)
        most, least = (extreme_of(values, f, in_parts) for f in (np.maximum, np.minimum))
        scale = (most - least) / F32(SPAN[target])
        # A NaN compares as not larger.
        scale = np.where(scale > F32(LEAST_SCALE), scale, F32(LEAST_SCALE))
        offset = F32(LARGEST[target]) - most / scale
        whole = clamped(values * (F32(1) / scale)[..., None] + offset[..., None], target)
    return packed(whole) if target is INT4 else whole, scale, offset


# ---- declaration ----

TORCH = torch_function("npu_dynamic_quant_asymmetric", 3, lambda _: "aclnnDynamicQuantV2")

OPERATOR = ops.Operator(
    kernel_type="DynamicQuantV2",
    document=__doc__,
    support=SUPPORT,
    elsewhere="use npu_dynamic_quant",
    contract=check,
    tile=tile,
    build=build,
    oracle=oracle,
    templates=tuple(name for name in NAMED if name not in SEVERAL_ROWS),
    value_dependent_inputs=("group_index",),
    torch=(TORCH,),
)
