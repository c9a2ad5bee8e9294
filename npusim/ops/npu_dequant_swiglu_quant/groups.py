"""npu_dequant_swiglu_quant with a group_index: each instruction processes several rows of a group.

ops-nn@e5c3fa9 quant/dequant_swiglu_quant/op_kernel/dequant_swiglu_quant.h. Assumed: the order of
the buffers; and that the group_index, which the kernel's scalar unit reads from global memory, is
first loaded into the buffer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from npusim.data.dtypes import FLOAT32, INT8, INT32, INT64
from npusim.data.integers import align_up
from npusim.isa import Local
from npusim.kernel import FLOATS_PER_BLOCK, Block, GmView, Step, VectorCore
from npusim.kernel.broadcast import repeat_row, spread_numbers
from npusim.kernel.rectangles import RowPieces
from npusim.ops._row_quant import fold_rows
from npusim.ops._swish import exp_plus_1
from npusim.ops.npu_dequant_swiglu_quant.check import Problem
from npusim.ops.npu_dequant_swiglu_quant.tiling import Plan, segments_of

__all__ = ["build"]

ENTRIES = 64
"""Entries of the group_index in the buffer at a time (assumed)."""
NONE = -1


def build(core: VectorCore, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """For each group with rows on a core, load its data, then process its rows in pieces."""
    kernel = InGroups(core, p, plan)
    begin = kernel.write_places if kernel.places is not None else None
    segments = [
        (number, *segment) for number, mine in enumerate(segments_of(p, plan)) for segment in mine
    ]
    cores, group, start, count = np.array(segments, np.int64).reshape(-1, 4).T
    parts = RowPieces.of(count.tolist(), plan.row_step)
    # Consecutive groups of a core need not be adjacent in x.
    segment = parts.core
    begins = np.cumsum(count) - count
    parts = replace(parts, first=parts.first - begins[segment] + start[segment])
    x = GmView.of("x", p.x.element, p.rows, 2 * p.columns)
    y = GmView.of("output", INT8, p.rows, p.columns)
    scale, act = (GmView.vector(name, FLOAT32, p.rows) for name in ("scale", "activation_scale"))
    acts = parts.views(act) if p.activation_scale is not None else None
    views = parts.views(x), parts.views(y), parts.views(scale), acts
    # The first entry of the group_index chunk that is in the buffer.
    chunk = kernel.entry_of(group) // ENTRIES * ENTRIES
    loaded = np.where(np.diff(cores, prepend=-1) != 0, NONE, np.roll(chunk, 1))
    ends = np.unique(cores)
    return core.launch(
        Step(kernel.take_group, (group, loaded), cores, 2 * np.arange(group.size), True),
        Step(kernel.piece, views, cores[segment], 2 * segment + 1, keeps_slots=True),
        Step(kernel.free_index, (), ends, 0 * ends + 2 * group.size, keeps_slots=True),
        begin=begin,
        block_dim=plan.block_dim,
    )


class InGroups:
    """The buffers of a core, all single, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p, self.in_place = core, p, plan.in_place
        columns, width, rows = p.columns, 2 * p.columns, plan.row_step
        size = rows * width
        self.x_in, self.act_in = core.vecin(p.x.element, size), core.vecin(FLOAT32, 8 * rows)
        self.y_out, self.scale_out = core.vecout(INT8, rows * columns), core.vecout(FLOAT32, rows)
        self.weights = core.tile(FLOAT32, width) if p.weight_scale else None
        self.biases = core.tile(FLOAT32, width) if p.bias else None
        self.scales = core.tile(FLOAT32, columns) if p.quant_scale else None
        self.offsets = core.tile(FLOAT32, columns) if p.quant_offset else None
        self.second = core.tile(FLOAT32, size)
        """A plane of fp32, (rows, 2 x columns) or twice (rows, columns)."""
        self.first = None if plan.in_place else core.tile(FLOAT32, size)
        """Another plane, or the int32 buffer that is converted to fp32 in place."""
        self.places = core.tile(INT32, rows * columns) if p.gate.mode == 1 else None
        """Byte offsets of alternate elements."""
        self.absmax = core.tile(FLOAT32, rows)
        self.blocks = core.tile(FLOAT32, align_up(rows, FLOATS_PER_BLOCK) * FLOATS_PER_BLOCK)
        self.index_in = core.tiles(INT64, ENTRIES, "mte2", "scalar")
        scale = p.quant_scale
        self.has_numbers = not p.is_dynamic and scale is not None and len(scale.shape) == 1
        """Whether a group has a single scale and offset."""

    def write_places(self) -> None:
        """Write the offsets of elements 0, 2, 4, ...: eight one by one, then doubling each step."""
        assert self.places is not None
        core, known, stride = self.core, FLOATS_PER_BLOCK, 2 * FLOAT32.nbytes(1)
        for number in range(known):
            core.alu("add", "place", number * stride, 0)
            core.set_value(self.places[number : number + 1], "place")
        core.sync("scalar", "vector")
        while known < self.places.count:
            more = min(known, self.places.count - known)
            core.add(self.places[known : known + more], self.places[:more], known * stride)
            known += more

    # ---- data of a group ----

    def entry_of(self, group: Any) -> Any:
        """The first entry of the group_index that belongs to *group*."""
        assert self.p.group_index is not None
        return group * (self.p.group_index.spec.size // self.p.groups)

    def take_group(self, group: int, loaded: int) -> None:
        """Read the row count of *group*; load its scales, bias and offsets, as fp32.

        The buffer holds the group_index from entry *loaded* on.
        """
        self._read_count(group, loaded)
        core, p = self.core, self.p
        core.sync("vector", "mte2")
        given = (
            (self.weights, p.weight_scale),
            (self.biases, p.bias),
            (self.scales, p.quant_scale),
            (self.offsets, p.quant_offset),
        )
        fetched: list[tuple[Local, Local]] = []
        for tile, operand in given:
            if tile is None or operand is None:
                continue
            count, dtype = operand.spec.size // p.groups, operand.element
            view = GmView.of(operand.name, dtype, p.groups, count).row(group)
            # Load 16 bits into the upper half, so that widening never overwrites what it has yet to
            # read.
            start = tile.count if dtype.bits == 16 else 0
            here = tile.as_dtype(dtype)[start : start + count]
            core.data_copy(here, view.operand)
            fetched.append((tile, here))
        core.sync("mte2", "vector")
        for tile, here in fetched:
            if here.dtype.bits == 16:
                core.widen(tile[: here.count], here)
        if self.has_numbers:
            self._read_numbers()

    def _read_count(self, group: int, loaded: int) -> None:
        """Read the row count of *group* into a register; the simulation already knows it."""
        core, p, entry = self.core, self.p, self.entry_of(group)
        assert p.group_index is not None
        first = entry // ENTRIES * ENTRIES
        if loaded != first:
            if loaded != NONE:
                self.free_index()
            whole = GmView.vector("group_index", INT64, p.group_index.spec.size)
            core.load(self.index_in, whole[:, first : first + ENTRIES])
        core.get_value("count", self.index_in.only[entry - first : entry - first + 1])

    def free_index(self) -> None:
        """Signal that the group_index entries in the buffer have been read."""
        self.index_in.free(self.index_in.only)

    def _read_numbers(self) -> None:
        """Read the inverse of the group's scale (1 if it is 0) and its offset into registers."""
        assert self.scales is not None
        assert self.offsets is not None
        core = self.core
        core.sync("mte2", "scalar")
        core.sync("vector", "scalar")
        core.get_value("quant_scale", self.scales[:1])
        core.get_value("quant_offset", self.offsets[:1])
        core.alu("f32_div", "inverse", 1.0, "quant_scale")
        # Detect both zeros: all bits except the sign.
        core.alu("shl", "is_zero", "quant_scale", 33)
        core.alu("eq", "is_zero", "is_zero", 0)
        core.alu("select", "inverse", "is_zero", 1.0, "inverse")

    # ---- pieces of rows ----

    def piece(self, x: GmView, y: GmView, scale: GmView, act: GmView | None) -> None:
        """Compute *y* and *scale* `(rows,)` from *x* `(rows, 2 x columns)` and *act* `(rows,)`."""
        core = self.core
        plane = self._dequantise(x, act)
        z = self._gated(plane, x.rows)
        if self.p.is_dynamic:
            self._scale_rows(z, plane[: z.count], scale)
        else:
            self._scale_static(z, plane[: z.count])
        if self.in_place:
            self.x_in.free(plane)
        out = self.y_out.alloc()
        core.quantize(out[: z.count], z)
        core.store_rows(self.y_out, out, y.flat)

    def _dequantise(self, x: GmView, act: GmView | None) -> Local:
        """Convert *x* `(rows, 2 x columns)` to fp32 in the first plane, using the second."""
        core, count, point = self.core, x.rows * x.columns, self.p.bias
        loaded = self.x_in.alloc()
        core.data_copy(loaded[:count], x.flat.operand)
        self.x_in.enque(loaded)
        if act is not None:
            acts = self.act_in.alloc()
            core.data_copy(acts[: x.rows], act.operand)
            self.act_in.enque(acts)
        elements = self.x_in.deque()[:count]
        values = (elements.as_dtype(FLOAT32) if self.first is None else self.first)[:count]
        other = self.second[:count]
        is_whole = point is not None and point.element is INT32
        if self.biases is not None and is_whole:
            whole = other.as_dtype(INT32)
            repeat_row(core, whole, self.biases.as_dtype(INT32))
            core.add(elements, elements, whole)
        core.widen(values, elements)
        if not self.in_place:
            self.x_in.free(loaded)
        if self.weights is not None:
            repeat_row(core, other, self.weights)
            core.mul(values, values, other)
        if act is not None:
            acts = self.act_in.deque()
            spread_numbers(core, other, acts[: x.rows], self.blocks)
            self.act_in.free(acts)
            core.mul(values, values, other)
        if self.biases is not None and not is_whole:
            repeat_row(core, other, self.biases)
            core.add(values, values, other)
        return values

    def _gated(self, plane: Local, rows: int) -> Local:
        """SwiGLU of *plane* `(rows, 2 x columns)`, `(rows, columns)` in the second plane."""
        core, gate, count = self.core, self.p.gate, rows * self.p.columns
        left, right = self.second[:count], self.second[count : 2 * count]
        if self.places is not None:
            self._gather(plane, left, right)
        else:
            self._split(plane, rows, (left, right))
        is_left = self.p.activate_left or self.places is not None
        active, other = (left, right) if is_left else (right, left)
        if gate.mode:
            # Clamp both to the limit from above, the other one also from below, and add the bias to
            # it.
            core.min(other, other, gate.limit)
            core.max(other, other, -gate.limit)
            core.add(other, other, gate.bias)
            core.min(active, active, gate.limit)
        work = plane[:count]
        exp_plus_1(core, work, active, -gate.alpha if gate.mode else -1.0)
        core.div(active, active, work)
        core.mul(active, active, other)
        return active

    def _split(self, plane: Local, rows: int, halves: tuple[Local, Local]) -> None:
        """Split each row of *plane* into *halves*; a single Copy of all rows takes as long."""
        columns = self.p.columns
        for half, dst in enumerate(halves):
            with self.core.independent():
                for row in range(rows):
                    start = (2 * row + half) * columns
                    here = dst[row * columns : (row + 1) * columns]
                    self.core.copy(here, plane[start : start + columns])

    def _gather(self, plane: Local, even: Local, odd: Local) -> None:
        """Gather the even and the odd elements of *plane*."""
        assert self.places is not None
        core, places = self.core, self.places[: even.count]
        core.gather(even, plane, places)
        core.add(places, places, FLOAT32.nbytes(1))
        core.gather(odd, plane, places)
        core.add(places, places, -FLOAT32.nbytes(1))

    def _scale_rows(self, z: Local, work: Local, scale: GmView) -> None:
        """Divide each row of *z* by its scale, M / 127, which is stored to *scale* `(rows,)`."""
        core, rows = self.core, scale.columns
        if self.scales is not None:
            repeat_row(core, work, self.scales)
            core.mul(z, z, work)
        core.abs(work, z)
        absmax = self.absmax[:rows]
        core.whole_reduce("max", absmax, fold_rows(core, work, rows))
        out = self.scale_out.alloc()
        core.mul(out[:rows], absmax, 1 / 127)
        spread_numbers(core, work, out[:rows], self.blocks)
        core.div(z, z, work)
        core.store_rows(self.scale_out, out, scale)

    def _scale_static(self, z: Local, work: Local) -> None:
        """Divide *z* by its scales and add its offsets."""
        core = self.core
        if self.has_numbers:
            core.mul(z, z, "inverse")
            core.add(z, z, "quant_offset")
            return
        assert self.scales is not None
        assert self.offsets is not None
        repeat_row(core, work, self.scales)
        core.div(z, z, work)
        repeat_row(core, work, self.offsets)
        core.add(z, z, work)
