"""The program that each core runs for npu_rotary_mul, for rotation of halves and of neighbours.

A core has lines of cosines and sines and rotates all vectors of x that belong to them.

ops-transformer@c29bc10 posembedding/rotary_position_embedding/op_kernel, rotate_half_base.h,
rotate_half_bf16.h, rotate_half.h and rotate_interleaved_split_s.h. Assumed for halves: that float32
vectors exchange them in the buffer of the result, that halves which are not whole blocks are copied
one by one, and that a single line for all others is repeated by copies within the buffer; for
neighbours: that a product with (-1, 1) takes as long as one with -1 whose mask skips every other
lane, and that lines are loaded again for each part of their vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import FLOATS_PER_REPEAT, Local
from npusim.kernel import Block, GmView, GmViews, Step, TileQueue, VectorCore, pieces
from npusim.kernel.rows import whole_blocks
from npusim.kernel.sequences import BY_SCALAR, count_on
from npusim.kernel.steps import Integers
from npusim.ops._rotary import exchange, negate_left
from npusim.ops.npu_rotary_mul.check import CoupledPlan, InterleavedPlan, Plan, Problem
from npusim.ops.npu_rotary_mul.coupled import CoupledHalves

PLACE, MINUS_ONE = "place", "minus_one"
"""Registers."""


def build(spec: DeviceSpec, p: Problem, plan: Plan | CoupledPlan) -> tuple[Block, ...]:
    """Runs of lines for each core; runs of equal length share their program."""
    core = VectorCore("npu_rotary_mul", spec)
    x, cos, sin = (
        GmView.of(operand.name, operand.element, operand.spec.size // p.width, p.width)
        for operand in p.inputs
    )
    views = x, replace(x, name="output"), cos, sin
    if isinstance(plan, InterleavedPlan):
        return _build_interleaved(core, p, plan, views)
    if isinstance(plan, CoupledPlan):
        found = [*pieces(p.axes.lines, plan.line_step)]
        tasks = np.array([(task % plan.block_dim, *each) for task, each in enumerate(found)]).T
        return _build_halves(CoupledHalves(core, p, plan), p, tasks, views)
    return _build_halves(Halves(core, p, plan), p, _pieces(plan), views)


def _pieces(plan: Plan) -> Integers:
    """The core, the first line and the number of lines of each piece, `(3, pieces)`."""
    starts = np.cumsum([0, *plan.lines_of_core]).tolist()
    found = [
        (core, starts[core] + first, count)
        for core, lines in enumerate(plan.lines_of_core)
        for first, count in pieces(lines, plan.line_step)
    ]
    return np.array(found, np.int64).T


# ---- halves ----


def _build_halves(
    halves: Halves | CoupledHalves, p: Problem, found: Integers, views: tuple[GmView, ...]
) -> tuple[Block, ...]:
    """For each piece of lines of each group: load them, then rotate head after head.

    *found* has the core, the first line and the lines of each piece.
    """
    axes = p.axes
    cores, first, count = found
    group, piece = (part.ravel() for part in np.mgrid[: axes.groups, : cores.size])
    line = 0 * group if axes.is_single else group * axes.lines + first[piece]
    rows = 1 if axes.is_single else count[piece]
    lines = [GmViews.of(view, line, 0, rows, p.width) for view in views[2:]]
    turn = np.arange(group.size)
    take = Step(halves.take, (count[piece], *lines), cores[piece], turn, keeps_slots=True)
    drop = Step(halves.drop, (), cores[piece], turn, keeps_slots=True)

    sizes = turn.size, axes.outer.count, axes.inner.count
    each, outer, inner = (part.ravel() for part in np.mgrid[tuple(map(slice, sizes))])
    vector = group[each] * axes.group_step + first[piece[each]] * axes.line_step
    vector += outer * axes.outer.step + inner * axes.inner.step
    # The vectors of a head are those of consecutive lines.
    heads = [
        replace(
            GmViews.of(view, vector, 0, 1, p.width),
            rows=count[piece[each]],
            pitch=axes.line_step * p.width,
        )
        for view in views[:2]
    ]
    head = Step(halves.head, tuple(heads), cores[piece[each]], turn[each])
    return halves.core.launch(take, head, drop)


class Halves:
    """The buffers of a core and its stages; each half of a vector starts at a block."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, dtype = core, p.x.element
        self.half = whole_blocks(p.width // 2, dtype)
        self.line = 2 * self.half
        count = plan.line_step * self.line
        self.x, self.cos, self.sin = (core.vecin(dtype, count, 2) for _ in range(3))
        self.y = core.vecout(dtype, count, 2)
        self.wide: dict[TileQueue, Local] = {}
        """The float32 buffers for what a queue loads, if it is not float32."""
        self.turned: Local | None = None
        """The buffer in which the halves are exchanged then; float32 uses the result's."""
        if dtype is not FLOAT32:
            for queue in (self.x, self.cos, self.sin):
                self.wide[queue] = core.tile(FLOAT32, count)
            self.turned = core.tile(FLOAT32, count)

    # ---- cosines and sines ----

    def take(self, count: int, cos: GmView, sin: GmView) -> None:
        """Load *cos* and *sin*, for each of *count* lines or one for all, as float32."""
        loaded = [self._load(self.cos, cos), self._load(self.sin, sin)]
        for queue, tile in zip((self.cos, self.sin), loaded, strict=True):
            done = self._widen(queue, tile, cos.rows * self.line).count
            plane = self._held(queue, count * self.line)
            # A single line for all: what is there is copied to its end until it is enough.
            while done < plane.count:
                more = min(done, plane.count - done)
                self.core.copy(plane.at(done, more), plane.at(0, more))
                done += more
        negate_left(self.core, self._held(self.sin, count * self.line), self.line)

    def drop(self) -> None:
        """Signal that all heads of the lines are rotated."""
        for queue in (self.cos, self.sin):
            for tile in queue.in_use:
                queue.free(tile)

    def _held(self, queue: TileQueue, count: int) -> Local:
        """The resident tile of *queue*, as float32."""
        return (self.wide[queue] if queue in self.wide else queue.in_use[0])[:count]

    # ---- vectors ----

    def head(self, x: GmView, output: GmView) -> None:
        """Rotate *x* `(count, width)` to *output*, by the cosines and sines `(count, 2, half)`."""
        core, count = self.core, x.rows * self.line
        cos, sin = self._held(self.cos, count), self._held(self.sin, count)
        tile = self._load(self.x, x)
        values = self._widen(self.x, tile, count)
        out = self.y.alloc()
        # (count, 2, half): the halves of x, exchanged
        turned = (out if self.turned is None else self.turned)[:count]
        exchange(core, turned, values, self.line)
        core.mul(values, values, cos)
        core.mul(turned, turned, sin)
        # y = turned * sin + x * cos, each rounded to float32
        if self.turned is None:
            core.add(turned, turned, values)
            self.x.free(tile)
        else:
            core.add(values, turned, values)
            core.cast(out[:count], values)
        self.y.enque(out)
        out = self.y.deque()
        for part, src, pitch_bytes in self._parts(output, out):
            core.data_copy(part.operand, src, pitch_bytes)
        self.y.free(out)

    def _load(self, queue: TileQueue, view: GmView) -> Local:
        """Load *view* `(count, width)` into a tile of *queue*, as `(count, 2, half)`."""
        tile = queue.alloc()
        for part, dst, pitch_bytes in self._parts(view, tile):
            self.core.data_copy(dst, part.operand, pitch_bytes)
        queue.enque(tile)
        return queue.deque()

    def _parts(self, view: GmView, tile: Local) -> Iterator[tuple[GmView, Local, int]]:
        """The part of *view* that each copy moves, its location in *tile*, and its pitch there.

        Vectors whose halves are whole blocks move in one copy.
        """
        width = view.columns if view.columns == self.line else view.columns // 2
        for side, column in enumerate(range(0, view.columns, width)):
            part = view[:, column : column + width]
            local = tile.at(side * self.half, (view.rows - 1) * self.line + width)
            yield part, local, view.dtype.nbytes(self.line) if view.rows > 1 else 0

    def _widen(self, queue: TileQueue, tile: Local, count: int) -> Local:
        """The first *count* elements of *tile* of *queue* as float32.

        Frees *tile* unless they are in it.
        """
        if queue not in self.wide:
            return tile[:count]
        values = self.wide[queue][:count]
        self.core.cast(values, tile[:count])
        queue.free(tile)
        return values


# ---- neighbours ----


def _build_interleaved(
    core: VectorCore, p: Problem, plan: InterleavedPlan, views: tuple[GmView, ...]
) -> tuple[Block, ...]:
    """For each piece of lines, process parts of its batches and heads."""
    neighbours, axes = Neighbours(core, p, plan), p.axes
    cores, first, count = _pieces(plan)
    batches = np.array([*pieces(axes.outer.count, plan.batch_step)])
    heads = np.array([*pieces(axes.inner.count, plan.head_step)])
    sizes = cores.size, len(batches), len(heads)
    piece, b, h = (part.ravel() for part in np.mgrid[tuple(map(slice, sizes))])
    start = first[piece] * axes.line_step + batches[b, 0] * axes.outer.step + heads[h, 0]
    rows = (batches[b, 1] - 1) * axes.outer.step + count[piece] * heads[h, 1]
    vectors = [GmViews.of(view, start, 0, rows, p.width) for view in views[:2]]
    lines = [GmViews.of(view, first[piece], 0, count[piece], p.width) for view in views[2:]]
    arguments = batches[b, 1], heads[h, 1], *vectors, *lines
    return core.launch(Step(neighbours.turn, arguments, cores[piece]), begin=neighbours.begin)


class Neighbours:
    """The buffers of a core and its stages.

    A piece of x is `(batches, lines, heads, width)`, and the cosines of a line are repeated for
    each head and batch; sines reuse their buffer. One Gather exchanges a line's neighbours.
    """

    def __init__(self, core: VectorCore, p: Problem, plan: InterleavedPlan) -> None:
        self.core, self.p, self.dtype = core, p, p.x.element
        self.pitch = whole_blocks(p.width, self.dtype)
        heads = min(plan.head_step, p.axes.inner.count)
        batches = min(plan.batch_step, p.axes.outer.count)
        count = batches * plan.line_step * heads * self.pitch
        self.x, self.angles = core.vecin(self.dtype, count), core.vecin(self.dtype, count)
        self.y = core.vecout(self.dtype, count)
        self.swapped = core.tile(FLOAT32, count)
        self.wide_x: Local | None = None
        self.wide_angles: Local | None = None
        """The float32 buffer for what is loaded, if it is not float32."""
        if self.dtype is not FLOAT32:
            self.wide_x, self.wide_angles = core.tile(FLOAT32, count), core.tile(FLOAT32, count)
        self.places = core.tile(INT32, heads * self.pitch)
        self.signs = core.tile(FLOAT32, FLOATS_PER_REPEAT)

    def begin(self) -> None:
        """Write the byte offset of each element's neighbour in a line; and alternate -1 and 1."""
        core, places = self.core, self.places
        for number in range(BY_SCALAR):
            core.alu("add", PLACE, FLOAT32.nbytes(number ^ 1))
            core.set_value(places[number : number + 1], PLACE)
        core.sync("scalar", "vector")
        count_on(core, places, BY_SCALAR, FLOAT32.nbytes(1))
        core.duplicate(self.signs, 1.0)
        core.sync("vector", "scalar")
        core.alu("add", MINUS_ONE, -1.0)
        for lane in range(0, self.signs.count, 2):
            core.set_value(self.signs[lane : lane + 1], MINUS_ONE)
        core.sync("scalar", "vector")

    def turn(
        self, batches: int, heads: int, x: GmView, output: GmView, cos: GmView, sin: GmView
    ) -> None:
        """Rotate *heads* vectors of each line of *batches* batches, from the first of *x* on."""
        core, rows, line = self.core, cos.rows * heads, heads * self.pitch
        count = batches * rows * self.pitch
        tile = self.x.alloc()
        for part, local in self._batches(x, tile, batches, rows):
            core.data_copy(local, part.operand, self._pitch_bytes(rows))
        self.x.enque(tile)
        values, x_tile = self._float32(self.x, self.wide_x, self.x.deque(), count)
        angles, held = self._angles(cos, batches, heads, self.wide_angles)
        out = self.y.alloc()
        # a = x * cos; then b = neighbours of x * sin, of which the first, third, ... are negated
        a, b = out[:count] if self.wide_angles is None else angles, self.swapped[:count]
        core.mul(a, values, angles)
        self._free(self.angles, held)
        with core.independent():
            for start in range(0, count, line):
                core.gather(b.at(start, line), values.at(start, line), self.places[:line])
        self._free(self.x, x_tile)
        # x is no longer needed: its space is reused for the sines.
        angles, held = self._angles(sin, batches, heads, self.wide_x)
        core.mul(b, b, angles)
        self._free(self.angles, held)
        self._negate(b)
        core.add(a, a, b)
        if self.dtype is not FLOAT32:
            core.cast(out[:count], a)
        self.y.enque(out)
        out = self.y.deque()
        for part, local in self._batches(output, out, batches, rows):
            core.data_copy(part.operand, local, self._pitch_bytes(rows))
        self.y.free(out)

    def _negate(self, b: Local) -> None:
        """Negate the first, third, ... element of *b*."""
        core, whole = self.core, b.count // FLOATS_PER_REPEAT * FLOATS_PER_REPEAT
        with core.independent():
            if whole:
                # The same signs for every repeat.
                again = replace(self.signs, count=whole, repeat_stride=0)
                core.mul(b[:whole], b[:whole], again)
            if whole < b.count:
                core.mul(b[whole:], b[whole:], self.signs[: b.count - whole])

    def _batches(
        self, view: GmView, tile: Local, batches: int, rows: int
    ) -> Iterator[tuple[GmView, Local]]:
        """*rows* vectors of each batch from the first of *view* on, and their place in *tile*."""
        count = (rows - 1) * self.pitch + self.p.width
        for batch in range(batches):
            first = batch * self.p.axes.outer.step
            yield view[first : first + rows, :], tile.at(batch * rows * self.pitch, count)

    def _pitch_bytes(self, rows: int, vectors: int = 1) -> int:
        """The pitch of *rows* of *vectors* each in the buffer, in bytes."""
        return self.dtype.nbytes(vectors * self.pitch) if rows > 1 else 0

    def _angles(
        self, lines: GmView, batches: int, heads: int, wide: Local | None
    ) -> tuple[Local, Local | None]:
        """*lines* `(lines, width)` for each head and batch, see :meth:`_float32`."""
        core, line, rows = self.core, heads * self.pitch, lines.rows
        tile = self.angles.alloc()
        first = tile[: (rows - 1) * line + self.p.width]
        core.data_copy(first, lines.operand, self._pitch_bytes(rows, heads))
        self.angles.enque(tile)
        tile = self.angles.deque()
        with core.independent():
            for start in range(0, rows * line, line):
                for head in range(1, heads):
                    after = tile.at(start + head * self.pitch, self.pitch)
                    core.copy(after, tile.at(start, self.pitch))
        with core.independent():
            for batch in range(1, batches):
                core.copy(tile.at(batch * rows * line, rows * line), tile[: rows * line])
        return self._float32(self.angles, wide, tile, batches * rows * line)

    def _float32(
        self, queue: TileQueue, wide: Local | None, tile: Local, count: int
    ) -> tuple[Local, Local | None]:
        """*count* elements of *tile* as float32, in *wide*; if that is None they are already.

        Returns them and the tile that must be freed after them.
        """
        if wide is None:
            return tile[:count], tile
        self.core.cast(wide[:count], tile[:count])
        queue.free(tile)
        return wide[:count], None

    def _free(self, queue: TileQueue, tile: Local | None) -> None:
        if tile is not None:
            queue.free(tile)
