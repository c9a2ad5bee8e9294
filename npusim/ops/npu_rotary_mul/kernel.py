"""The program that each core runs for npu_rotary_mul.

A core has lines of cosines and sines and turns all vectors of x that belong to them: a piece of
lines is loaded and widened once, then the vectors of one head after the other. In the buffer the
two halves of a vector begin at blocks of their own.

ops-transformer@c29bc10 posembedding/rotary_position_embedding/op_kernel, rotate_half_base.h,
rotate_half_bf16.h and rotate_half.h. Assumed: that float32 vectors exchange their halves in the
buffer of the result, that halves which are no whole blocks are copied one by one, and that a line
which serves all others is repeated by copies within the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, BinaryScalar, Cast, Copy, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.halves import exchange, half_of_rows
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Queue, Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops.npu_rotary_mul import interleaved
from npusim.ops.npu_rotary_mul.contract import Problem
from npusim.ops.npu_rotary_mul.tiling import InterleavedPlan, Plan, half_pitch

__all__ = ["build"]


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with as many lines share their program."""
    if isinstance(plan, InterleavedPlan):
        return interleaved.build(spec, p, plan)
    kernel = RotaryMul(spec, p, plan)
    programs: dict[int, Program] = {}
    blocks: list[Block] = []
    x, cos, sin, output = _views(p)
    first = 0
    for core, lines in enumerate(plan.lines_of_core):
        if lines not in programs:
            programs[lines] = kernel.program(lines)
        own = slice(0 if p.is_single else first, None), slice(None)
        vectors = slice(first * p.line_step, None), slice(None)
        bound = bindings(x[vectors], output[vectors], cos[own], sin[own])
        blocks.append(Block(core, spec.vector_cores[core], programs[lines], bound))
        first += lines
    return tuple(blocks)


def _views(p: Problem) -> tuple[GmView, GmView, GmView, GmView]:
    """x, r1, r2 and the result, each as `(vectors, width)`."""
    x, cos, sin = (
        GmView.of(operand.name, operand.element, operand.spec.size // p.width, p.width)
        for operand in p.inputs
    )
    return x, cos, sin, replace(x, name="output")


class RotaryMul:
    """The kernel of one core, while it is written."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.plan = p, plan
        self.builder = builder = Builder(
            "npu_rotary_mul", spec.cores[spec.vector_kinds[0]], spec.sync
        )
        self.half = half_pitch(p.x.element, p.width)
        count = plan.line_step * 2 * self.half
        nbytes = p.x.element.nbytes(count)
        self.x = builder.queue("ub", nbytes, "mte2", "vector", 2)
        self.cos = builder.queue("ub", nbytes, "mte2", "vector", 2)
        self.sin = builder.queue("ub", nbytes, "mte2", "vector", 2)
        self.y = builder.queue("ub", nbytes, "vector", "mte3", 2)
        self.widened: dict[Queue, Slot] = {}
        """Where what a queue brings becomes float32, if it is not."""
        self.turned: Slot | None = None
        """Where its halves change places then; float32 uses the buffer of the result."""
        if p.x.element is not FLOAT32:
            for queue in (self.x, self.cos, self.sin):
                self.widened[queue] = builder.claim("ub", FLOAT32.nbytes(count))
            self.turned = builder.claim("ub", FLOAT32.nbytes(count))

    def program(self, lines: int) -> Program:
        """*lines* lines of each group, from where the block's tensors begin."""
        p, (x, cos, sin, output) = self.p, _views(self.p)
        for group in range(p.groups):
            for first, count in pieces(lines, self.plan.line_step):
                line = group * p.lines + first
                here = slice(0, 1) if p.is_single else slice(line, line + count)
                held = [self._load(self.cos, cos[here, :]), self._load(self.sin, sin[here, :])]
                cosines, sines = (
                    self._for_every_line(queue, slot, cos[here, :].rows, count)
                    for queue, slot in zip((self.cos, self.sin), held, strict=True)
                )
                for left in half_of_rows(sines, 2 * self.half, 0):
                    self.builder.emit(BinaryScalar("mul", left, left, -1.0))
                self.builder.barrier("vector")
                for vector in self._heads(group, first):
                    heads = [self._of_every_line(view, vector, count) for view in (x, output)]
                    repeat(self.builder, self._head, *heads, cosines, sines)
                if not self.widened:
                    self.cos.free(held[0])
                    self.sin.free(held[1])
        return self.builder.build()

    def _heads(self, group: int, first: int) -> Iterator[int]:
        """Which vector belongs to line *first* of *group*, head by head."""
        p = self.p
        start = group * p.group_step + first * p.line_step
        for outer in range(p.outer.count):
            for inner in range(p.inner.count):
                yield start + outer * p.outer.step + inner * p.inner.step

    def _of_every_line(self, view: GmView, vector: int, count: int) -> GmView:
        """The vectors of one head, `(count, width)`, that of the first line being *vector*."""
        first = view[vector : vector + 1, :]
        return replace(first, rows=count, pitch=self.p.line_step * self.p.width)

    # ---- cosines and sines ----

    def _for_every_line(self, queue: Queue, slot: Slot, rows: int, count: int) -> Local:
        """The *rows* lines in *slot*, as float32 for *count* vectors: `(count, 2, half)`."""
        line = 2 * self.half
        values = self._widen(queue, slot, rows * line)
        plane = replace(values, count=count * line)
        # One line for all: what is there is copied behind itself until it is enough.
        done = values.count
        while done < plane.count:
            more = min(done, plane.count - done)
            step(self.builder, Copy(plane.at(done, more), plane.at(0, more)))
            done += more
        return plane

    # ---- vectors ----

    def _head(self, x: GmView, output: GmView, cos: Local, sin: Local) -> None:
        """*x* `(count, width)` to *output*; *cos* and *sin* are `(count, 2, half)` in float32."""
        builder = self.builder
        slot = self._load(self.x, x)
        values = self._widen(self.x, slot, cos.count)
        out = self.y.alloc()
        # (count, 2, half): the halves of x, changed
        turned = (out if self.turned is None else self.turned).of(FLOAT32, cos.count)
        exchange(builder, turned, values, 2 * self.half)
        step(builder, Binary("mul", values, values, cos))
        step(builder, Binary("mul", turned, turned, sin))
        # y = turned * sin + x * cos, each rounded to float32
        result = values if self.turned else turned
        step(builder, Binary("add", result, turned, values))
        if self.turned is None:
            self.x.free(slot)
        else:
            step(builder, Cast(out.of(x.dtype, result.count), result, "rint"))
        self._store(out, output)

    # ---- copies ----

    def _load(self, queue: Queue, view: GmView) -> Slot:
        """Load *view* `(count, width)` into a slot of *queue*, as `(count, 2, half)`."""
        slot = queue.alloc()
        for part, dst, pitch_bytes in self._parts(view, slot):
            self.builder.data_copy(dst, part.operand, pitch_bytes)
        queue.enque(slot)
        return queue.deque()

    def _store(self, slot: Slot, view: GmView) -> None:
        """Store what is in *slot*, `(count, 2, half)`, to *view* `(count, width)`; free *slot*."""
        self.y.enque(slot)
        slot = self.y.deque()
        for part, src, pitch_bytes in self._parts(view, slot):
            self.builder.data_copy(part.operand, src, pitch_bytes)
        self.y.free(slot)

    def _parts(self, view: GmView, slot: Slot) -> Iterator[tuple[GmView, Local, int]]:
        """What one copy moves each: a part of *view*, where it is in *slot*, and its pitch there.

        Vectors whose halves are whole blocks move in one.
        """
        width = view.columns if view.columns == 2 * self.half else view.columns // 2
        pitch = 2 * self.half
        for side, column in enumerate(range(0, view.columns, width)):
            part = view[:, column : column + width]
            start_bytes = view.dtype.nbytes(side * self.half)
            local = slot.of(view.dtype, (view.rows - 1) * pitch + width, start_bytes)
            yield part, local, view.dtype.nbytes(pitch) if view.rows > 1 else 0

    def _widen(self, queue: Queue, slot: Slot, count: int) -> Local:
        """What *queue* has brought, `count` numbers in *slot*, as float32.

        Frees *slot* unless it is where they are.
        """
        if queue not in self.widened:
            return slot.of(FLOAT32, count)
        values = self.widened[queue].of(FLOAT32, count)
        step(self.builder, Cast(values, slot.of(self.p.x.element, count)))
        queue.free(slot)
        return values
