"""npu_dequant_swiglu_quant without a group_index: a row of int32, or several of 16 bits, at a time.

ops-nn@e5c3fa9 quant/dequant_swiglu_quant/op_kernel, dynamic_base, dynamic_performance and
static_base. Assumed: the order of the buffers, how the row scales are stored when they do not all
fit, and that activation scales are loaded into the buffer where `performance` reads them from
global memory.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, INT8, INT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.isa import Local
from npusim.kernel import FLOATS_PER_BLOCK, Block, GmView, GmViews, Step, VectorCore, pieces
from npusim.kernel.rectangles import RowPieces
from npusim.kernel.reduction import Reduction
from npusim.ops._row_quant import round_by_int16
from npusim.ops._swish import exp_plus_1
from npusim.ops.npu_dequant_swiglu_quant.check import Problem
from npusim.ops.npu_dequant_swiglu_quant.tiling import Plan, segments_of

__all__ = ["build"]

RESIDENT_ROWS = 512
"""The most rows whose scales are in the buffer together (assumed)."""
PITCH_UNIT = 32
"""Rows of y are aligned to blocks, all other rows to as many elements."""


def build(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """A tile of the launch is the rows whose scales are in the buffer together."""
    kernel = ByRow(core, p, plan)
    rows_of_core = [rows for ((_, _, rows),) in segments_of(p, plan)]
    kept = RowPieces.of(rows_of_core, kernel.kept_rows)
    x = GmView.of("x", p.x.element, p.rows, 2 * p.columns)
    y = GmView.of("output", INT8, p.rows, p.columns)
    scale, act = (GmView.vector(name, FLOAT32, p.rows) for name in ("scale", "activation_scale"))
    acts = kept.views(act) if p.activation_scale is not None else None
    # Each core has one row of the workspace.
    waiting = None
    if plan.workspaces:
        workspace = GmView.of("swiglu", FLOAT32, plan.block_dim, p.columns)
        waiting = GmViews.row(workspace, kept.core)
    views = kept.views(x), kept.views(y), kept.views(scale), acts, waiting
    has_vectors = plan.column_step == p.columns
    begin = (lambda: kernel.vectors.load(0, p.columns)) if has_vectors else None
    return core.launch(Step(kernel.kept, views, kept.core), begin=begin)


class ByRow:
    """The buffers of a core, and its stages, for all templates without groups."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p, self.plan = core, p, plan
        depth = 2 if plan.template == "performance" else 1
        self.pitch = align_up(plan.column_step, PITCH_UNIT)
        count = plan.row_step * self.pitch
        self.a_in, self.b_in = (core.vecin(p.x.element, count, depth) for _ in range(2))
        self.y_out = core.vecout(INT8, count, depth)
        self.vectors = Vectors(core, p, plan.column_step)
        self.work, self.other = (core.tile(FLOAT32, count) for _ in range(2))
        self.is_long = plan.template == "dynamic_long"
        if self.is_long:
            self.parts_out = core.vecout(FLOAT32, count)
            with core.on_top_of(self.other):
                self.parts_in = core.vecin(FLOAT32, count)
        else:
            self.values = core.tile(FLOAT32, count)
        self.absmax = core.tile(FLOAT32, FLOATS_PER_BLOCK)
        self.reduction = Reduction(core, plan.column_step)
        core.claim_tails()
        # As many rows as there is room for, rounded to a multiple of the rows of a piece.
        most = min(RESIDENT_ROWS, ceil_div(p.rows, plan.block_dim))
        fitting = align_down(core.room_bytes("ub") // FLOAT32.nbytes(2) - 16, 16)
        self.kept_rows = max(plan.row_step, min(most, fitting) // plan.row_step * plan.row_step)
        self.scale_out = self.act_in = None
        if p.is_dynamic:
            self.scale_out = core.tiles(FLOAT32, self.kept_rows, "scalar", "mte3")
        if p.activation_scale is not None:
            self.act_in = core.tiles(FLOAT32, self.kept_rows, "mte2", "scalar")

    def kept(
        self, x: GmView, y: GmView, scale: GmView, act: GmView | None, waiting: GmView | None
    ) -> None:
        """Compute *y* and *scale* of rows whose scales are in the buffer together.

        Parts of a row are stored in global memory (*waiting*) if the template does so.
        """
        acts = scales = None
        if self.act_in is not None and act is not None:
            acts = self.core.load(self.act_in, act)
        if self.scale_out is not None:
            scales = self.scale_out.alloc()
        if scales is not None and waiting is not None:
            for row in range(x.rows):
                here = slice(row, row + 1)
                self._long_row(x[here, :], y[here, :], acts, scales, row, waiting)
        else:
            self._pieces(x, y, acts, scales)
        if self.act_in is not None and acts is not None:
            self.act_in.free(acts)
        if self.scale_out is not None and scales is not None:
            self.core.store_rows(self.scale_out, scales, scale)

    def _pieces(self, x: GmView, y: GmView, acts: Local | None, scales: Local | None) -> None:
        """Compute *y* from *x*, by whole rows or, for a static row, by parts."""
        places = [
            (slice(row, row + rows), slice(column, column + columns))
            for row, rows in pieces(x.rows, self.plan.row_step)
            for column, columns in pieces(y.columns, self.plan.column_step)
        ]
        is_ahead = self.plan.template == "performance"
        for number, (rows, columns) in enumerate(places):
            here = y[rows, columns]
            if number == 0 or not is_ahead:
                self._fetch(x, rows, columns)
            values = self._gated(self.values, here, columns, acts, rows.start)
            if is_ahead and number + 1 < len(places):
                self._fetch(x, *places[number + 1])
            if scales is not None:
                self._scale_rows(values, here, scales, rows.start)
                self._store_dynamic(values, here)
            else:
                self._store_static(values, here)

    def _fetch(self, x: GmView, rows: slice, columns: slice) -> None:
        """Start loading the inputs of columns of y: the activated half, and the other one."""
        halves = x[:, : self.p.columns], x[:, self.p.columns :]
        for queue, half in zip((self.a_in, self.b_in), self._sides(), strict=True):
            view = halves[half][rows, columns]
            self.core.copy_in(queue, view, self.pitch if view.rows > 1 else None)

    def _sides(self) -> tuple[int, int]:
        """The index of the activated half, and of the other one."""
        return (0, 1) if self.p.activate_left else (1, 0)

    def _gated(
        self, where: Local, y: GmView, columns: slice, acts: Local | None, row: int
    ) -> Local:
        """The piece of *y* in fp32 before quantisation: SwiGLU, times the smooth scales."""
        core = self.core
        # The padding of the rows is processed too.
        count = y.columns if y.rows == 1 else y.rows * self.pitch
        values, other, work = where[:count], self.other[:count], self.work[:count]
        if self.plan.column_step < self.p.columns:
            core.sync("vector", "mte2")
            self.vectors.load(columns.start, columns.stop - columns.start)
        if acts is not None:
            if self.plan.template in ("dynamic", "dynamic_long"):
                # Waits for all pending loads, including x (dynamic_base.hpp,
                # getActivateScaleValue).
                core.sync("mte2", "scalar")
            core.get_value("act", acts[row : row + 1])
        active, passive = self._sides()
        loaded = self.a_in.deque()
        self.vectors.dequantise(values, loaded[:count], active, has_act=acts is not None)
        self.a_in.free(loaded)
        exp_plus_1(core, work, values)
        core.div(values, values, work)
        loaded = self.b_in.deque()
        self.vectors.dequantise(other, loaded[:count], passive, has_act=acts is not None)
        self.b_in.free(loaded)
        core.mul(values, values, other)
        if self.p.is_dynamic:
            self.vectors.smooth(values, y, self.pitch)
        return values

    def _find_scale(self, scales: Local, row: int) -> None:
        """From M in register `found`: M / 127, stored for *row*, and its inverse in `back`."""
        self.core.alu("f32_div", "scale", "found", 127.0)
        self.core.set_value(scales[row : row + 1], "scale")
        self.core.alu("f32_div", "back", 1.0, "scale")

    def _scale_rows(self, values: Local, y: GmView, scales: Local, first: int) -> None:
        """Scale the largest magnitude of each row to 127."""
        core, work = self.core, self.work[: values.count]
        core.abs(work, values)
        for row in range(y.rows):
            here = slice(row * self.pitch, row * self.pitch + y.columns)
            self.reduction.find_largest(self.absmax, work[here])
            self._find_scale(scales, first + row)
            core.mul(values[here], values[here], "back")

    def _store_dynamic(self, values: Local, y: GmView) -> None:
        halves = round_by_int16(self.core, values)
        out = self.y_out.alloc()
        self.core.cast(out[: values.count], halves, "trunc")
        self.core.store(self.y_out, out, y, self.pitch if y.rows > 1 else None)

    def _store_static(self, values: Local, y: GmView) -> None:
        self.vectors.quantise(values)
        halves = round_by_int16(self.core, values)
        out = self.y_out.alloc()
        self.core.cast(out[: values.count], halves)
        self.core.store(self.y_out, out, y)

    # ---- rows in parts ----

    def _long_row(
        self,
        x: GmView,
        y: GmView,
        acts: Local | None,
        scales: Local,
        row: int,
        waiting: GmView,
    ) -> None:
        """Compute *y* from *x*, both one row; its values are in *waiting* until M is known."""
        core = self.core
        parts = [
            slice(start, start + width)
            for start, width in pieces(self.p.columns, self.plan.column_step)
        ]
        for part in parts:
            self._fetch(x, slice(1), part)
            out = self.parts_out.alloc()
            values = self._gated(out, y[:, part], part, acts, row)
            work = self.work[: values.count]
            core.abs(work, values)
            core.store(self.parts_out, out, waiting[:, part])
            self.reduction.find_largest(self.absmax, work)
            # For the first part, M is the maximum of that part alone.
            core.alu("f32_max", "largest", "found" if part is parts[0] else "largest", "found")
        core.alu("add", "found", "largest", 0)
        self._find_scale(scales, row)
        core.sync("mte3", "mte2")
        # Parts are loaded to where the halves without activation were.
        core.sync("vector", "mte2")
        for part in parts:
            loaded = core.load(self.parts_in, waiting[:, part])
            values = loaded[: part.stop - part.start]
            core.mul(values, values, "back")
            self._store_dynamic(values, y[:, part])
            self.parts_in.free(loaded)
        # The next row overwrites this one.
        core.sync("mte2", "mte3")


class Vectors:
    """Scales, bias and offsets, in the buffer, of the columns being processed."""

    def __init__(self, core: VectorCore, p: Problem, columns: int) -> None:
        self.core, self.p = core, p
        pitch = align_up(columns, 16)
        self.weights = self.biases = self.narrow = None
        if p.weight_scale is not None:
            self.weights = _halves(core.tile(FLOAT32, 2 * pitch))
        if p.bias is not None:
            wide = INT32 if p.bias.element is INT32 else FLOAT32
            self.biases = _halves(core.tile(wide, 2 * pitch))
            if p.bias.element.bits == 16:
                self.narrow = _halves(core.tile(p.bias.element, 2 * pitch))
        self.scales = core.tile(FLOAT32, pitch) if p.quant_scale else None
        self.offsets = core.tile(FLOAT32, pitch) if p.quant_offset else None
        self.is_one = p.quant_scale is not None and p.quant_scale.spec.size == 1

    def load(self, column: int, count: int) -> None:
        """Load those of *count* columns from *column* on; widen a bias of 16 bits."""
        core, p = self.core, self.p
        given = ((self.weights, p.weight_scale), (self.narrow or self.biases, p.bias))
        for halves, operand in given:
            if halves is not None and operand is not None:
                whole = GmView.vector(operand.name, operand.element, 2 * p.columns)
                for tile, first in zip(halves, (column, p.columns + column), strict=True):
                    core.data_copy(tile[:count], whole[:, first : first + count].operand)
        for tile_of_all, operand in ((self.scales, p.quant_scale), (self.offsets, p.quant_offset)):
            if tile_of_all is not None and operand is not None:
                view = GmView.vector(operand.name, FLOAT32, operand.spec.size)
                view = view if self.is_one else view[:, column : column + count]
                core.data_copy(tile_of_all[: view.columns], view.operand)
        core.sync("mte2", "vector")
        if self.narrow is not None and self.biases is not None:
            for wide, narrow in zip(self.biases, self.narrow, strict=True):
                core.widen(wide[:count], narrow[:count])
        if self.is_one:
            self._read_numbers()

    def _read_numbers(self) -> None:
        """Read a scale and an offset that are single values into registers."""
        core = self.core
        if self.scales is not None:
            core.sync("mte2", "scalar")
            core.get_value("quant_scale", self.scales[:1])
        if self.offsets is not None:
            core.alu("f32_div", "inverse", 1.0, "quant_scale")
            core.get_value("quant_offset", self.offsets[:1])

    def dequantise(self, dst: Local, x: Local, half: int, *, has_act: bool) -> None:
        """Convert half of each row to fp32, multiply by its scales and `act`, and add its bias."""
        core, count = self.core, dst.count
        point = None if self.biases is None else self.biases[half][:count]
        if point is not None and point.dtype is INT32:
            core.add(x, x, point)
        core.widen(dst, x)
        if self.weights is not None:
            core.mul(dst, dst, self.weights[half][:count])
        if has_act:
            core.mul(dst, dst, "act")
        if point is not None and point.dtype is FLOAT32:
            core.add(dst, dst, point)

    def smooth(self, values: Local, y: GmView, pitch: int) -> None:
        """Multiply each row of *values*, *pitch* elements apart, by the smooth scales."""
        if self.scales is None:
            return
        if self.is_one:
            self.core.mul(values, values, "quant_scale")
            return
        with self.core.independent():
            for row in range(y.rows):
                here = values[row * pitch : row * pitch + y.columns]
                self.core.mul(here, here, self.scales[: y.columns])

    def quantise(self, values: Local) -> None:
        """Compute `values / scale + offset`; a single scale is inverted first."""
        if self.scales is None or self.offsets is None:
            return
        if self.is_one:
            self.core.mul(values, values, "inverse")
            self.core.add(values, values, "quant_offset")
            return
        self.core.div(values, values, self.scales[: values.count])
        self.core.add(values, values, self.offsets[: values.count])


def _halves(tile: Local) -> tuple[Local, Local]:
    """Views of *tile* for the two halves of the columns, one after the other."""
    return tile[: tile.count // 2], tile[tile.count // 2 :]
