"""The program that each core runs for npu_rotary_mul_backward.

A core has lines of cosines and sines, and processes all vectors that they rotate.

ops-transformer@3a280bc posembedding/rotary_position_embedding_grad/op_kernel/rotate_half_grad.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import FLOATS_PER_REPEAT, Local
from npusim.kernel import Block, GmView, GmViews, Step, VectorCore, pieces
from npusim.kernel.sequences import count_up
from npusim.ops._rotary import half_of_rows
from npusim.ops.npu_rotary_mul_backward.check import Plan, Problem, line_of


class Turned:
    """The buffers of a core and its stages."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.core, self.p = VectorCore("npu_rotary_mul_backward", spec), p
        core, self.dtype, self.line = self.core, p.output.element, line_of(p)
        self.half, count = self.line // 2, plan.line_step * self.line
        inputs = ("grad", "r1", "r2", *(("self",) if p.needs_angles else ()))
        outputs = ("output", *(("r1_grad", "r2_grad") if p.needs_angles else ()))
        self.queues = {name: core.vecin(self.dtype, count) for name in inputs}
        self.queues |= {name: core.vecout(self.dtype, count) for name in outputs}
        self.negated, self.product, self.turned = (core.tile(FLOAT32, count) for _ in range(3))
        self.sums = [core.tile(FLOAT32, count) for _ in outputs[1:]]
        self.wide: dict[str, Local] = {}
        """float32 buffers for what is loaded in another type, and for the gradient of self."""
        if self.dtype is not FLOAT32:
            self.wide = {name: core.tile(FLOAT32, count) for name in ("grad", "r1", "r2", "output")}
        if p.is_interleaved:
            self.places = core.tile(INT32, self.line)
            self.signs = core.tile(FLOAT32, FLOATS_PER_REPEAT)

    def begin(self) -> None:
        """Write the byte offset of each element's neighbour in a vector; and alternate 1 and -1."""
        if not self.p.is_interleaved:
            return
        core, places = self.core, self.places
        core.duplicate(self.signs, 1.0)
        count_up(core, places[: places.count], 0, FLOAT32.nbytes(1))
        core.sync("vector", "scalar")
        core.alu("add", "minus_one", -1.0)
        for lane in range(1, self.signs.count, 2):
            core.set_value(self.signs[lane : lane + 1], "minus_one")
        for number in range(places.count):
            core.alu("add", "place", FLOAT32.nbytes(number ^ 1))
            core.set_value(places[number : number + 1], "place")
        core.sync("scalar", "vector")

    def take(self, cos: GmView, sin: GmView) -> None:
        """Load lines of cosines and sines, as float32, and start their sums."""
        for name, view in (("r1", cos), ("r2", sin)):
            tile = self._load(name, view)
            if name in self.wide:
                count = view.rows * self.line
                self.core.cast(self.wide[name][:count], tile[:count])
        for each in self.sums:
            self.core.duplicate(each[: cos.rows * self.line], 0.0)

    def head(self, grad: GmView, x: GmView, output: GmView) -> None:
        """Process a vector of each line, `(lines, width)`."""
        core, count = self.core, grad.rows * self.line
        loaded = self._load("grad", grad)
        values = self._load("self", x) if self.p.needs_angles else None
        g, cos, sin = (self._float32(name, count) for name in ("grad", "r1", "r2"))
        if "grad" in self.wide:
            core.cast(g, loaded[:count])
            self.queues["grad"].free(loaded)
        out = self.queues["output"].alloc()[:count]
        found = self.wide["output"][:count] if self.wide else out
        product, negated, turned = (
            tile[:count] for tile in (self.product, self.negated, self.turned)
        )
        with core.independent():
            core.mul(found, cos, g)
            core.mul(product, sin, g)
        core.mul(negated, product, -1.0)
        self._turn(turned, product, negated)
        core.add(found, turned, found)
        if self.wide:
            core.cast(out, found)
        self._store("output", out, output)
        if values is not None:
            self._add(values, g, count)
            self.queues["self"].free(values)
        if not self.wide:
            self.queues["grad"].free(loaded)

    def _add(self, loaded: Local, g: Local, count: int) -> None:
        """Add these vectors' terms to the gradients of cosines and sines."""
        core, (of_cos, of_sin) = self.core, (each[:count] for each in self.sums)
        product, negated, turned = (
            tile[:count] for tile in (self.product, self.negated, self.turned)
        )
        values = loaded[:count]
        if self.wide:
            values = turned
            core.cast(values, loaded[:count])
        products = self.wide["output"][:count] if self.wide else product
        core.mul(products, values, g)
        core.add(of_cos, products, of_cos)
        core.mul(negated, values, -1.0)
        target = product if self.wide else turned
        self._turn(target, negated, values)
        core.mul(products, target, g)
        core.add(of_sin, products, of_sin)

    def give(self, of_cos: GmView, of_sin: GmView) -> None:
        """Store the sums of the lines once all vectors are added, and free the lines."""
        count = of_cos.rows * self.line
        names = ("r1_grad", "r2_grad") if self.p.needs_angles else ()
        for name, sums, view in zip(names, self.sums, (of_cos, of_sin), strict=False):
            out = self.queues[name].alloc()[:count]
            self.core.convert(out, sums[:count])
            self._store(name, out, view)
        for name in ("r1", "r2"):
            for tile in self.queues[name].in_use:
                self.queues[name].free(tile)

    def _turn(self, dst: Local, first: Local, second: Local) -> None:
        """Write the right halves of *first*, then the left ones of *second*, which is -*first*.

        Or the neighbours of *first*, every second one negated.
        """
        core = self.core
        if self.p.is_interleaved:
            with core.independent():
                for start in range(0, dst.count, self.line):
                    here = slice(start, start + self.line)
                    core.gather(dst[here], first[here], self.places)
            whole = dst.count // FLOATS_PER_REPEAT * FLOATS_PER_REPEAT
            with core.independent():
                if whole:
                    again = replace(self.signs, count=whole, repeat_stride=0)
                    core.mul(dst[:whole], dst[:whole], again)
                if whole < dst.count:
                    core.mul(dst[whole:], dst[whole:], self.signs[: dst.count - whole])
            return
        with core.independent():
            for side, src in ((0, first), (1, second)):
                halves = half_of_rows(dst, self.line, side), half_of_rows(src, self.line, 1 - side)
                for to, of in zip(*halves, strict=True):
                    core.copy(to, of)

    def _float32(self, name: str, count: int) -> Local:
        """What the queue *name* has loaded, as float32."""
        return (self.wide[name] if self.wide else self.queues[name].only)[:count]

    def _load(self, name: str, view: GmView) -> Local:
        queue = self.queues[name]
        tile = queue.alloc()
        for part, dst, pitch_bytes in self._parts(view, tile):
            self.core.data_copy(dst, part.operand, pitch_bytes)
        queue.enque(tile)
        return queue.deque()

    def _store(self, name: str, tile: Local, view: GmView) -> None:
        queue = self.queues[name]
        queue.enque(tile)
        tile = queue.deque()
        for part, src, pitch_bytes in self._parts(view, tile):
            self.core.data_copy(part.operand, src, pitch_bytes)
        queue.free(tile)

    def _parts(self, view: GmView, tile: Local) -> Iterator[tuple[GmView, Local, int]]:
        """The part of *view* that each copy moves, its location in *tile*, and its pitch there."""
        is_whole = self.p.is_interleaved or view.columns == self.line
        width = view.columns if is_whole else view.columns // 2
        for side, column in enumerate(range(0, view.columns, width)):
            part = view[:, column : column + width]
            local = tile.at(side * self.half, (view.rows - 1) * self.line + width)
            yield part, local, view.dtype.nbytes(self.line) if view.rows > 1 else 0


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """For each piece of lines of a group: load them, process the vectors, and store the sums."""
    kernel, axes, dtype = Turned(spec, p, plan), p.axes, p.output.element
    found = [
        (core, core * plan.lines_of_core + first, count)
        for core in range(plan.block_dim)
        for first, count in pieces(
            min(plan.lines_of_core, axes.lines - core * plan.lines_of_core), plan.line_step
        )
    ]
    cores, first, count = np.array(found, np.int64).T
    piece, group = (part.ravel() for part in np.mgrid[: cores.size, : axes.groups])
    turn = np.arange(piece.size)
    lines, vectors = axes.groups * axes.lines, p.output.size // p.width

    def of_lines(name: str) -> GmViews:
        view = GmView.of(name, dtype, lines, p.width)
        return GmViews.of(view, group * axes.lines + first[piece], 0, count[piece], p.width)

    sizes = turn.size, axes.outer.count, axes.inner.count
    each, outer, inner = (part.ravel() for part in np.mgrid[tuple(map(slice, sizes))])
    vector = group[each] * axes.group_step + first[piece[each]] * axes.line_step
    vector += outer * axes.outer.step + inner * axes.inner.step

    def of_vectors(name: str) -> GmViews:
        view = GmViews.of(GmView.of(name, dtype, vectors, p.width), vector, 0, 1, p.width)
        return replace(view, rows=count[piece[each]], pitch=axes.line_step * p.width)

    steps = (
        Step(kernel.take, (of_lines("r1"), of_lines("r2")), cores[piece], turn, keeps_slots=True),
        Step(
            kernel.head,
            tuple(map(of_vectors, ("grad", "self", "output"))),
            cores[piece[each]],
            turn[each],
        ),
        Step(
            kernel.give,
            (of_lines("r1_grad"), of_lines("r2_grad")),
            cores[piece],
            turn,
            keeps_slots=True,
        ),
    )
    return kernel.core.launch(*steps, begin=kernel.begin)
