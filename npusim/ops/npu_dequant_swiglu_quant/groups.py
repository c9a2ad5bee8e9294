"""npu_dequant_swiglu_quant with a group_index: several rows of a group an instruction.

ops-nn@e5c3fa9 quant/dequant_swiglu_quant/op_kernel/dequant_swiglu_quant.h. Assumed: in which order
buffers lie; and the group_index, which the scalar unit reads out of global memory there, comes into
the buffer first.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, INT8, INT32, INT64
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryScalar,
    Broadcast,
    Copy,
    Gather,
    Local,
    ScalarAlu,
    ScalarLoad,
    ScalarStore,
    Unary,
    WholeReduce,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_float32, to_quantised
from npusim.kernel.program import Program
from npusim.kernel.queues import Queue, Slot
from npusim.kernel.rows import load, pieces
from npusim.kernel.views import GmView, repeat
from npusim.ops.npu_dequant_swiglu_quant.contract import Problem
from npusim.ops.npu_dequant_swiglu_quant.tiling import Plan, Segment
from npusim.ops.npu_dynamic_quant.row_steps import (
    FLOAT_LANES,
    FLOATS_PER_BLOCK,
    burst,
    float_bits,
    fold,
    repeat_block,
)

__all__ = ["InGroups"]

ENTRIES = 64
"""Of the group_index in the buffer at a time (assumed)."""


class InGroups:
    """The kernel of one core; all buffers are single."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p = spec, p
        self.rows = self.rows_here = plan.row_step
        """At most, and of the piece that is being written."""
        self.builder = Builder("npu_dequant_swiglu_quant", spec.cores["aiv"], spec.sync)
        queue, claim, width = self.builder.queue, self.builder.claim, 2 * p.columns
        rows, count = plan.row_step, plan.row_step * width
        self.x = queue("ub", p.x.element.nbytes(count), "mte2", "vector")
        self.act = queue("ub", rows * BLOCK_BYTES, "mte2", "vector")
        self.y = queue("ub", rows * p.columns, "vector", "mte3")
        self.scale = queue("ub", FLOAT32.nbytes(rows), "vector", "mte3")
        self.weights = claim("ub", FLOAT32.nbytes(width)) if p.weight_scale else None
        self.biases = claim("ub", FLOAT32.nbytes(width)) if p.bias else None
        self.scales = claim("ub", FLOAT32.nbytes(p.columns)) if p.quant_scale else None
        self.offsets = claim("ub", FLOAT32.nbytes(p.columns)) if p.quant_offset else None
        self.second = claim("ub", FLOAT32.nbytes(count))
        """A plane of fp32, (rows, 2 x columns) or twice (rows, columns)."""
        self.in_place = plan.in_place
        self.first = None if plan.in_place else claim("ub", FLOAT32.nbytes(count))
        """Another one, or that of int32 that become fp32 where they were loaded."""
        self.places = claim("ub", INT32.nbytes(rows * p.columns)) if p.gate.mode == 1 else None
        """Where every other element lies, in bytes."""
        self.absmax = claim("ub", align_up(FLOAT32.nbytes(rows), BLOCK_BYTES))
        self.blocks = claim("ub", align_up(rows, FLOATS_PER_BLOCK) * BLOCK_BYTES)
        self.index = queue("ub", INT64.nbytes(ENTRIES), "mte2", "scalar")
        self.entries: tuple[int, Slot] | None = None
        """Which entries of the group_index are in the buffer: the first of them, and where."""

    def program(self, segments: tuple[Segment, ...]) -> Program:
        """*segments*, whose rows are counted from where the names of global memory begin."""
        builder, p = self.builder, self.p
        if self.places is not None:
            self._write_places()
        rows = max((first + count for _, first, count in segments), default=0)
        x = GmView.of("x", p.x.element, rows, 2 * p.columns)
        y = GmView.of("output", INT8, rows, p.columns)
        scale = GmView.vector("scale", FLOAT32, rows)
        act = GmView.vector("activation_scale", FLOAT32, rows)
        for group, first, count in segments:
            self._read_count(group)
            self._take_group(group)
            for row, some in pieces(count, self.rows):
                here = slice(first + row, first + row + some)
                repeat(builder, self._piece, x[here, :], y[here, :], scale[:, here], act[:, here])
        if self.entries is not None:
            self.index.free(self.entries[1])
            self.entries = None
        return builder.build()

    def _read_count(self, group: int) -> None:
        """How many rows *group* has, into a register: here it is known beforehand."""
        p = self.p
        assert p.group_index is not None
        entry = group * (p.group_index.spec.size // p.groups)
        first = entry // ENTRIES * ENTRIES
        if self.entries is None or self.entries[0] != first:
            if self.entries is not None:
                self.index.free(self.entries[1])
            whole = GmView.vector("group_index", INT64, p.group_index.spec.size)
            slot = load(self.builder, self.spec, self.index, whole[:, first : first + ENTRIES])
            self.entries = first, slot
        where = self.entries[1].of(INT64, 1, INT64.nbytes(entry - first))
        self.builder.emit(ScalarLoad("count", where))

    def _write_places(self) -> None:
        """Where elements 0, 2, 4, ... lie: eight one by one, then twice as many a step."""
        assert self.places is not None
        builder, count, known = self.builder, self.rows * self.p.columns, FLOATS_PER_BLOCK
        stride = 2 * FLOAT32.nbytes(1)
        for number in range(known):
            where = self.places.of(INT32, 1, INT32.nbytes(number))
            builder.emit(ScalarAlu("add", "place", number * stride, 0), ScalarStore(where, "place"))
        builder.sync("scalar", "vector")
        while known < count:
            more = min(known, count - known)
            before = self.places.of(INT32, more)
            after = self.places.of(INT32, more, INT32.nbytes(known))
            step(builder, BinaryScalar("add", after, before, known * stride))
            known += more

    # ---- what a group has ----

    def _take_group(self, group: int) -> None:
        """Load scales, bias and offsets of *group*, as fp32."""
        builder, p = self.builder, self.p
        builder.sync("vector", "mte2")
        given = (
            (self.weights, p.weight_scale, 2 * p.columns),
            (self.biases, p.bias, 2 * p.columns),
            (self.scales, p.quant_scale, p.columns),
            (self.offsets, p.quant_offset, p.columns),
        )
        loaded: list[tuple[Slot, Local]] = []
        for slot, operand, columns in given:
            if slot is None or operand is None:
                continue
            count = operand.spec.size // p.groups
            assert count in (1, columns)
            view = GmView.of(operand.name, operand.element, p.groups, count).row(group)
            # 16 bits in the upper half, so that widening never overtakes what it still reads.
            start = slot.nbytes // 2 if operand.element.bits == 16 else 0
            here = slot.of(operand.element, count, start)
            builder.data_copy(here, view.operand)
            loaded.append((slot, here))
        builder.sync("mte2", "vector")
        for slot, here in loaded:
            if here.dtype.bits == 16:
                to_float32(builder, slot.of(FLOAT32, here.count), here)
        if self._has_numbers:
            self._read_numbers()

    @property
    def _has_numbers(self) -> bool:
        """Whether a group has one scale and one offset."""
        scale = self.p.quant_scale
        return not self.p.is_dynamic and scale is not None and len(scale.shape) == 1

    def _read_numbers(self) -> None:
        """The inverse of the group's scale, of 0 the number 1, and its offset, into registers."""
        assert self.scales is not None
        assert self.offsets is not None
        self.builder.sync("mte2", "scalar")
        self.builder.sync("vector", "scalar")
        self.builder.emit(
            ScalarLoad("quant_scale", self.scales.of(FLOAT32, 1)),
            ScalarLoad("quant_offset", self.offsets.of(FLOAT32, 1)),
            ScalarAlu("f32_div", "inverse", float_bits(1), "quant_scale"),
            # Of both zeros: bits but for the sign.
            ScalarAlu("shl", "is_zero", "quant_scale", 33),
            ScalarAlu("eq", "is_zero", "is_zero", 0),
            ScalarAlu("select", "inverse", "is_zero", float_bits(1), "inverse"),
        )

    # ---- some rows ----

    def _piece(self, x: GmView, y: GmView, scale: GmView, act: GmView) -> None:
        """*y* and *scale* `(rows,)` of *x* `(rows, 2 x columns)` and *act* `(rows,)`."""
        builder = self.builder
        self._dequantise(x, act)
        z = self._gated(x.rows)
        if self.p.is_dynamic:
            self._scale_rows(z, scale)
        else:
            self._scale_static(z)
        if self.in_place:
            self.x.free(self.plane)
        out = self.y.alloc()
        to_quantised(builder, self.spec, out.of(INT8, z.count), z)
        self._store(self.y, out, y)

    def _store(self, queue: Queue, slot: Slot, view: GmView) -> None:
        """All rows of *view* as one burst."""
        queue.enque(slot)
        slot = queue.deque()
        self.builder.data_copy(burst(view), slot.of(view.dtype, view.rows * view.columns))
        queue.free(slot)

    def _to_rows(self, plane: Local, vector: Slot) -> None:
        """*vector* `(columns,)` to each row of *plane* `(rows, columns)`.

        The kernel fills all rows with one Copy; a Copy a row without a barrier takes as long.
        """
        width = plane.count // self.rows_here
        row = vector.of(plane.dtype, width)
        for first in range(0, plane.count, width):
            self.builder.emit(Copy(plane.at(first, width), row))
        self.builder.barrier("vector")

    def _to_columns(self, plane: Local, blocks: Local) -> None:
        """A number of each row, which *blocks* holds eight times, to all of the row in *plane*."""
        width = plane.count // self.rows_here
        for row in range(self.rows_here):
            block = blocks.at(row * FLOATS_PER_BLOCK, FLOATS_PER_BLOCK)
            repeat_block(self.builder, plane.at(row * width, width), block)
        self.builder.barrier("vector")

    def _dequantise(self, x: GmView, act: GmView) -> None:
        """*x* `(rows, 2 x columns)` in fp32 to the first plane, by way of the second."""
        builder, p, count = self.builder, self.p, x.rows * x.columns
        self.rows_here = x.rows
        slot = self.x.alloc()
        builder.data_copy(slot.of(x.dtype, count), burst(x))
        self.x.enque(slot)
        has_act = p.activation_scale is not None
        if has_act:
            acts = self.act.alloc()
            builder.data_copy(acts.of(FLOAT32, x.rows), act.operand)
            self.act.enque(acts)
        slot = self.x.deque()
        self.plane = self.first or slot
        values, other = self.plane.of(FLOAT32, count), self.second.of(FLOAT32, count)
        numbers = slot.of(x.dtype, count)
        is_whole = p.bias is not None and p.bias.element is INT32
        if self.biases is not None and is_whole:
            self._to_rows(other.as_dtype(INT32), self.biases)
            step(builder, Binary("add", numbers, numbers, other.as_dtype(INT32)))
        to_float32(builder, values, numbers)
        if not self.in_place:
            self.x.free(slot)
        if self.weights is not None:
            self._to_rows(other, self.weights)
            step(builder, Binary("mul", values, values, other))
        if has_act:
            acts = self.act.deque()
            self._spread(other, acts.of(FLOAT32, x.rows))
            self.act.free(acts)
            step(builder, Binary("mul", values, values, other))
        if self.biases is not None and not is_whole:
            self._to_rows(other, self.biases)
            step(builder, Binary("add", values, values, other))

    def _spread(self, plane: Local, numbers: Local) -> None:
        """*numbers* `(rows,)`, each to all of its row in *plane*."""
        # (rows,) -> (rows, 8) -> (rows, columns)
        blocks = self.blocks.of(FLOAT32, numbers.count * FLOATS_PER_BLOCK)
        step(self.builder, Broadcast(blocks, numbers))
        self._to_columns(plane, blocks)

    def _gated(self, rows: int) -> Local:
        """swiglu of the first plane `(rows, 2 x columns)`, `(rows, columns)` in the second."""
        builder, p, count = self.builder, self.p, rows * self.p.columns
        half_bytes = FLOAT32.nbytes(count)
        halves = [self.second.of(FLOAT32, count, start) for start in (0, half_bytes)]
        if self.places is not None:
            active, other = halves
            self._gather(active, other)
        else:
            self._split(halves)
            active, other = halves if p.activate_left else halves[::-1]
        work, alpha = self.plane.of(FLOAT32, count), -1.0
        if p.gate.mode:
            self._clamp(active, other)
            alpha = -p.gate.alpha
        step(builder, BinaryScalar("mul", work, active, alpha))
        step(builder, Unary("exp", work, work))
        step(builder, BinaryScalar("add", work, work, 1.0))
        step(builder, Binary("div", active, active, work))
        step(builder, Binary("mul", active, active, other))
        return active

    def _split(self, halves: list[Local]) -> None:
        """Both halves of each row of the first plane, one behind the other in the second."""
        columns = self.p.columns
        for half, plane in enumerate(halves):
            for row in range(self.rows_here):
                start = FLOAT32.nbytes((2 * row + half) * columns)
                source = self.plane.of(FLOAT32, columns, start)
                # One Copy of all rows takes as long.
                self.builder.emit(Copy(plane.at(row * columns, columns), source))
            self.builder.barrier("vector")

    def _gather(self, even: Local, odd: Local) -> None:
        """Every other element of the first plane."""
        assert self.places is not None
        source = self.plane.of(FLOAT32, 2 * even.count)
        places = self.places.of(INT32, even.count)
        step(self.builder, Gather(even, source, places))
        step(self.builder, BinaryScalar("add", places, places, FLOAT32.nbytes(1)))
        step(self.builder, Gather(odd, source, places))
        step(self.builder, BinaryScalar("add", places, places, -FLOAT32.nbytes(1)))

    def _clamp(self, active: Local, other: Local) -> None:
        """Both at most the limit, *other* at least minus it and more by the bias of the gate."""
        builder, limit = self.builder, self.p.gate.limit
        step(builder, BinaryScalar("min", other, other, limit))
        step(builder, BinaryScalar("max", other, other, -limit))
        step(builder, BinaryScalar("add", other, other, self.p.gate.bias))
        step(builder, BinaryScalar("min", active, active, limit))

    def _scale_rows(self, z: Local, scale: GmView) -> None:
        """Divide each row of *z* by its scale, M / 127, which goes to *scale* `(rows,)`."""
        builder, columns, rows = self.builder, self.p.columns, self.rows_here
        work = self.plane.of(FLOAT32, z.count)
        if self.scales is not None:
            self._to_rows(work, self.scales)
            step(builder, Binary("mul", z, z, work))
        step(builder, Unary("abs", work, z))
        for row in range(rows):
            fold(builder, work.at(row * columns, columns))
        # (rows, 64): the first repeat of each row.
        pitch = FLOAT32.nbytes(columns) // BLOCK_BYTES
        firsts = Local("ub", work.offset_bytes, FLOAT32, rows * FLOAT_LANES, 1, pitch)
        absmax = self.absmax.of(FLOAT32, rows)
        step(builder, WholeReduce("max", absmax, firsts))
        out = self.scale.alloc()
        scales = out.of(FLOAT32, rows)
        step(builder, BinaryScalar("mul", scales, absmax, 1 / 127))
        self._spread(work, scales)
        step(builder, Binary("div", z, z, work))
        self._store(self.scale, out, scale)

    def _scale_static(self, z: Local) -> None:
        """*z* over its scales, plus its offsets."""
        builder, work = self.builder, self.plane.of(FLOAT32, z.count)
        if self._has_numbers:
            step(builder, BinaryScalar("mul", z, z, "inverse"))
            step(builder, BinaryScalar("add", z, z, "quant_offset"))
            return
        assert self.scales is not None
        assert self.offsets is not None
        self._to_rows(work, self.scales)
        step(builder, Binary("div", z, z, work))
        self._to_rows(work, self.offsets)
        step(builder, Binary("add", z, z, work))
