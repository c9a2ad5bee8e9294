"""The program that each core runs for npu_rotary_mul where neighbours turn.

A core has lines of cosines and sines, as where halves turn. In the buffer a piece of x is
`(batches, lines, heads, width)`, and the cosines of a line are repeated for each head and batch;
sines then use their buffer. Neighbours change places by one Gather for the heads of a line.

ops-transformer@c29bc10 posembedding/rotary_position_embedding/op_kernel,
rotate_interleaved_split_s.h. Assumed: that a product with (-1, 1) takes as long as one with -1 that
a mask leaves out of every other lane, and that lines are loaded once more for each part of their
vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npusim.data.dtypes import FLOAT32, INT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    Binary,
    BinaryScalar,
    Cast,
    Copy,
    Duplicate,
    Gather,
    Local,
    ScalarAlu,
    ScalarStore,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Queue, Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops.npu_rotary_mul.contract import Problem
from npusim.ops.npu_rotary_mul.tiling import InterleavedPlan, row_pitch

__all__ = ["build"]

LANES = 64
"""Of float32 in a repeat (asc-devkit, docs/zh/guide)."""
BY_SCALAR = 8
"""Places that the scalar unit writes; the others follow by additions (the kernel)."""
MINUS_ONE_BITS = 0xBF800000
"""-1 in float32."""


def build(spec: DeviceSpec, p: Problem, plan: InterleavedPlan) -> tuple[Block, ...]:
    """One block a core; cores with as many lines share their program."""
    programs: dict[int, Program] = {}
    blocks: list[Block] = []
    x, cos, sin = (
        GmView.of(operand.name, operand.element, operand.spec.size // p.width, p.width)
        for operand in p.inputs
    )
    output = replace(x, name="output")
    first = 0
    for core, lines in enumerate(plan.lines_of_core):
        if lines not in programs:
            programs[lines] = Interleaved(spec, p, plan).program(lines, x, cos, sin)
        vectors, own = first * p.line_step, slice(first, None)
        views = x[vectors:, :], output[vectors:, :], cos[own, :], sin[own, :]
        blocks.append(Block(core, spec.vector_cores[core], programs[lines], bindings(*views)))
        first += lines
    return tuple(blocks)


class Interleaved:
    """The kernel of one core, while it is written."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: InterleavedPlan) -> None:
        self.p, self.plan, self.dtype = p, plan, p.x.element
        core = spec.cores[spec.vector_kinds[0]]
        self.builder = builder = Builder("npu_rotary_mul", core, spec.sync)
        self.pitch = row_pitch(self.dtype, p.width)
        heads = min(plan.head_step, p.inner.count)
        count = min(plan.batch_step, p.outer.count) * plan.line_step * heads * self.pitch
        nbytes = self.dtype.nbytes(count)
        self.x = builder.queue("ub", nbytes, "mte2", "vector")
        self.angles = builder.queue("ub", nbytes, "mte2", "vector")
        self.y = builder.queue("ub", nbytes, "vector", "mte3")
        self.swapped = builder.claim("ub", FLOAT32.nbytes(count))
        self.wide_x: Slot | None = None
        self.wide_angles: Slot | None = None
        """Where what comes in becomes float32, if it is not."""
        if self.dtype is not FLOAT32:
            self.wide_x = builder.claim("ub", FLOAT32.nbytes(count))
            self.wide_angles = builder.claim("ub", FLOAT32.nbytes(count))
        self.places = builder.claim("ub", INT32.nbytes(heads * self.pitch))
        self.signs = builder.claim("ub", FLOAT32.nbytes(LANES))

    def program(self, lines: int, x: GmView, cos: GmView, sin: GmView) -> Program:
        """*lines* lines, from where the block's tensors begin."""
        p, plan = self.p, self.plan
        self._write_places()
        self._write_signs()
        for first, count in pieces(lines, plan.line_step):
            for batch, batches in pieces(p.outer.count, plan.batch_step):
                for head, heads in pieces(p.inner.count, plan.head_step):
                    start = batch * p.outer.step + first * p.line_step + head
                    here, rows = x[start:, :], slice(first, first + count)
                    views = here, replace(here, name="output"), cos[rows, :], sin[rows, :]
                    repeat(self.builder, self._turn, batches, heads, *views)
        return self.builder.build()

    def _write_places(self) -> None:
        """Where the neighbour of each number of a line is, in bytes."""
        builder, known = self.builder, BY_SCALAR
        count = self.places.nbytes // INT32.nbytes(1)
        for number in range(known):
            where = self.places.of(INT32, 1, INT32.nbytes(number))
            builder.emit(ScalarAlu("add", "place", FLOAT32.nbytes(number ^ 1), 0))
            builder.emit(ScalarStore(where, "place"))
        builder.sync("scalar", "vector")
        while known < count:
            more = min(known, count - known)
            after = self.places.of(INT32, more, INT32.nbytes(known))
            step(
                builder,
                BinaryScalar("add", after, self.places.of(INT32, more), FLOAT32.nbytes(known)),
            )
            known += more

    def _write_signs(self) -> None:
        """-1 and 1 in turn."""
        builder = self.builder
        signs = self.signs.of(FLOAT32, LANES)
        step(builder, Duplicate(signs, 1.0))
        builder.sync("vector", "scalar")
        builder.emit(ScalarAlu("add", "minus_one", MINUS_ONE_BITS, 0))
        for lane in range(0, LANES, 2):
            builder.emit(ScalarStore(signs.at(lane, 1), "minus_one"))
        builder.sync("scalar", "vector")

    def _turn(
        self, batches: int, heads: int, x: GmView, output: GmView, cos: GmView, sin: GmView
    ) -> None:
        """*heads* vectors of each line of *batches* batches, from the first of *x* on."""
        builder, rows, line = self.builder, cos.rows * heads, heads * self.pitch
        count = batches * rows * self.pitch
        slot = self.x.alloc()
        for part, local in self._batches(x, slot, batches, rows):
            builder.data_copy(local, part.operand, self._pitch_bytes(rows))
        self.x.enque(slot)
        values, x_slot = self._float32(self.x, self.wide_x, self.x.deque(), count)
        angles, held = self._angles(cos, batches, heads, self.wide_angles)
        out = self.y.alloc()
        # a = x * cos; then b = neighbours of x * sin, of which the first, third, ... are negated
        a = out.of(FLOAT32, count) if self.wide_angles is None else angles
        step(builder, Binary("mul", a, values, angles))
        self._free(self.angles, held)
        b = self.swapped.of(FLOAT32, count)
        for start in range(0, count, line):
            places = self.places.of(INT32, line)
            builder.emit(Gather(b.at(start, line), values.at(start, line), places))
        builder.barrier("vector")
        self._free(self.x, x_slot)
        # x is no longer needed: its room takes the sines.
        angles, held = self._angles(sin, batches, heads, self.wide_x)
        step(builder, Binary("mul", b, b, angles))
        self._free(self.angles, held)
        self._negate(b)
        step(builder, Binary("add", a, a, b))
        if self.dtype is not FLOAT32:
            step(builder, Cast(out.of(self.dtype, count), a, "rint"))
        self.y.enque(out)
        out = self.y.deque()
        for part, local in self._batches(output, out, batches, rows):
            builder.data_copy(part.operand, local, self._pitch_bytes(rows))
        self.y.free(out)

    def _negate(self, b: Local) -> None:
        """The first, third, ... of *b*."""
        signs, whole = self.signs.of(FLOAT32, LANES), b.count // LANES * LANES
        if whole:
            # The same signs for every repeat.
            part, each = b.at(0, whole), replace(signs, count=whole, repeat_stride=0)
            self.builder.emit(Binary("mul", part, part, each))
        if whole < b.count:
            part = b.at(whole, b.count - whole)
            self.builder.emit(Binary("mul", part, part, signs.at(0, part.count)))
        self.builder.barrier("vector")

    def _batches(
        self, view: GmView, slot: Slot, batches: int, rows: int
    ) -> Iterator[tuple[GmView, Local]]:
        """*rows* vectors of each batch from the first of *view* on, and their place in *slot*."""
        width, step_bytes = self.p.width, self.dtype.nbytes(rows * self.pitch)
        for batch in range(batches):
            first = batch * self.p.outer.step
            local = slot.of(self.dtype, (rows - 1) * self.pitch + width, batch * step_bytes)
            yield view[first : first + rows, :], local

    def _pitch_bytes(self, rows: int) -> int:
        return self.dtype.nbytes(self.pitch) if rows > 1 else 0

    def _angles(
        self, lines: GmView, batches: int, heads: int, wide: Slot | None
    ) -> tuple[Local, Slot | None]:
        """*lines* `(lines, width)` for each head and batch, see :meth:`_float32`."""
        builder, dtype, pitch = self.builder, self.dtype, self.pitch
        line, rows = heads * pitch, lines.rows
        slot = self.angles.alloc()
        first = slot.of(dtype, (rows - 1) * line + self.p.width)
        builder.data_copy(first, lines.operand, dtype.nbytes(line) if rows > 1 else 0)
        self.angles.enque(slot)
        slot = self.angles.deque()
        plane = slot.of(dtype, batches * rows * line)
        for start in range(0, rows * line, line):
            for head in range(1, heads):
                after = plane.at(start + head * pitch, pitch)
                builder.emit(Copy(after, plane.at(start, pitch)))
        builder.barrier("vector")
        for batch in range(1, batches):
            builder.emit(Copy(plane.at(batch * rows * line, rows * line), plane.at(0, rows * line)))
        builder.barrier("vector")
        return self._float32(self.angles, wide, slot, plane.count)

    def _float32(
        self, queue: Queue, wide: Slot | None, slot: Slot, count: int
    ) -> tuple[Local, Slot | None]:
        """The numbers in *slot* as float32, in *wide*; without it they are, and the slot is held.

        Returns them and the slot that must be freed after them.
        """
        if wide is None:
            return slot.of(FLOAT32, count), slot
        values = wide.of(FLOAT32, count)
        step(self.builder, Cast(values, slot.of(self.dtype, count)))
        queue.free(slot)
        return values, None

    def _free(self, queue: Queue, slot: Slot | None) -> None:
        if slot is not None:
            queue.free(slot)
