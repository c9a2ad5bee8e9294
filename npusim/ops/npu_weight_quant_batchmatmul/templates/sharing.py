"""Kernels whose cube cores share k: each multiplies its part of k, and the sums are added up.

Vector cores dequantise the weight into a ring a cube core; sums of several cores, or such that a
vector core must finish, are added in float32 in global memory, first k first. See `ring`, `strip`
and `sums` beside this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from npusim.data.dtypes import FLOAT32, DType
from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe, Global, Local
from npusim.kernel.builder import Builder
from npusim.kernel.cube import GmMatrix
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.rows import pieces
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.dequant import Chain
from npusim.ops.npu_weight_quant_batchmatmul.templates.plan import Plan
from npusim.ops.npu_weight_quant_batchmatmul.templates.ring import Part, Ring, RingWriter
from npusim.ops.npu_weight_quant_batchmatmul.templates.strip import Cell, StripTile, StripWriter
from npusim.ops.npu_weight_quant_batchmatmul.templates.sums import (
    ZEROED,
    Finish,
    Zeros,
    meet_cube_cores,
)

__all__ = ["Recipe", "SharingPlan", "build"]


@dataclass(frozen=True, slots=True)
class SharingPlan(Plan):
    """How k and n are split over cube cores, and the sizes of what each works on."""

    cores_k: int
    cores_n: int
    core_k: int
    core_n: int
    """A core's share of k and n."""
    strip_k: int
    """k after which the sums of a core are handed over."""
    ring_slots: int
    piece_n: int
    piece_k: int
    """Of the weight, in a slot of the ring."""
    vector_n: int
    vector_k: int
    """Of a piece, dequantised at a time."""
    tile: StripTile
    is_added: bool
    """Whether sums are added in global memory, and finished by vector cores."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The numerics of a template."""

    chain: Chain
    rounding: Literal["rint", "round"]
    """How vector cores round the output: ties to even, or away from zero."""

    @property
    def is_scaled_after(self) -> bool:
        return self.chain.scale is None


class _Strip(NamedTuple):
    """Rows of x, and the weight that they meet."""

    row: int
    rows: int
    part: Part


def build(spec: DeviceSpec, p: Problem, plan: SharingPlan, recipe: Recipe) -> tuple[Block, ...]:
    """Three blocks a group: a cube core and its two vector cores."""
    dtype = recipe.chain.out
    layout: Literal["ND", "FRACTAL_NZ"] = "FRACTAL_NZ" if p.traits.is_nz else "ND"
    ring = Ring(plan.ring_slots, plan.piece_n, plan.piece_k, dtype, layout)
    cube = _CubeSide(spec, p, plan, ring)
    vector = _VectorSide(spec, p, plan, recipe, ring)
    names = [*(operand.name for operand in p.inputs), "output"]
    plain = {name: Binding(name) for name in (*names, *("sums",) * plan.is_added)}
    blocks = []
    for group in range(plan.block_dim):
        strips = tuple(_strips(p, plan, group))
        bindings = plain | (ring.bindings(group) if strips else {})
        first = 3 * group
        blocks.append(Block(first, "aic", cube.program(strips), bindings, group))
        for half in (0, 1):
            program = vector.program(strips, 2 * group + half)
            blocks.append(Block(first + 1 + half, "aiv", program, bindings, group))
    return tuple(blocks)


def _strips(p: Problem, plan: SharingPlan, group: int) -> Iterator[_Strip]:
    """The work of a group; those with less k come first, so that they add first."""
    index_k, index_n = divmod(group, plan.cores_n)
    if index_k >= plan.cores_k:
        return
    start_k, start_n = index_k * plan.core_k, index_n * plan.core_n
    own_k, own_n = min(plan.core_k, p.traits.k - start_k), min(plan.core_n, p.traits.n - start_n)
    for row, rows in pieces(p.traits.m, plan.tile.rows):
        for n, columns in pieces(own_n, plan.piece_n):
            for k, depth in pieces(own_k, plan.strip_k):
                yield _Strip(row, rows, Part(start_n + n, columns, start_k + k, depth))


class _CubeSide:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: SharingPlan, ring: Ring) -> None:
        self._p, self._plan, self._ring = p, plan, ring
        self._x = GmMatrix("x", p.x.element, p.traits.m, p.traits.k, False)
        self._builder = Builder(plan.template, spec.cores["aic"], spec.sync)
        most = min(plan.core_k, p.traits.k)
        self._writer = StripWriter(self._builder, plan.tile, self._x, ring, most)

    def program(self, strips: tuple[_Strip, ...]) -> Program:
        """Multiply *strips* one after the other."""
        builder, plan = self._builder, self._plan
        if plan.is_added:
            builder.call("zeroed", {}, self._await)
        held, start_k = (0, 0), 0
        if plan.tile.is_resident and strips:
            start_k, last = strips[0].part.k, strips[-1].part
            held = strips[0].rows, last.k + last.depth - start_k
            shifts = {"x": self._x.shift_k(start_k)}
            builder.call(("fetch", held), shifts, lambda: self._writer.fetch(*held))
        index = 0
        for strip in strips:
            self._strip(strip, held, start_k, index % self._ring.slots)
            index += ceil_div(strip.part.depth, self._ring.depth)
        if plan.is_added:
            builder.call("meet", {}, lambda: meet_cube_cores(builder))
        return builder.build()

    def _await(self) -> None:
        self._builder.cross_core_wait_flag("group", "fixpipe", ZEROED)

    def _strip(self, strip: _Strip, held: tuple[int, int], start_k: int, slot: int) -> None:
        """Call the writing of *strip*, whose first piece lies in *slot*."""
        f, part = self._p.traits, strip.part
        size = self._out.nbytes(1)
        shifts = {self._target: size * (strip.row * f.n + part.n)}
        start = part.k - start_k
        if not self._plan.tile.is_resident:
            shifts["x"] = self._x.shift(strip.row) + self._x.shift_k(part.k)
            start = 0
        key = held, strip.rows, part.columns, start, part.depth, slot
        self._builder.call(key, shifts, lambda: self._writer.strip(*key, self._hand_over))

    @property
    def _out(self) -> DType:
        return FLOAT32 if self._plan.is_added else self._p.output.element

    @property
    def _target(self) -> str:
        return "sums" if self._plan.is_added else "output"

    def _hand_over(self, cell: Cell, total: Local, height: int) -> None:
        """Add a tile to the sums, or store it as it shall be."""
        out, n, added = self._out, self._p.traits.n, self._plan.is_added
        first = out.nbytes(cell.row * n + cell.column)
        place = Global(self._target, first, out.nbytes(cell.n), cell.m, out.nbytes(n))
        mode: Literal["none", "cast"] = "none" if added else "cast"
        self._builder.emit(Fixpipe(place, total, cell.m, cell.n, height, out, mode, atomic=added))


class _VectorSide:
    """The kernel of a vector core: zeros, the weight, the output, each with the whole UB."""

    def __init__(
        self, spec: DeviceSpec, p: Problem, plan: SharingPlan, recipe: Recipe, ring: Ring
    ) -> None:
        self._builder = builder = Builder(plan.template, spec.cores["aiv"], spec.sync)
        cut, cores = (plan.vector_n, plan.vector_k), 2 * plan.block_dim
        self._writer, self._depth = RingWriter(builder, p, recipe.chain, ring, cut), ring.depth
        self._zeros: Zeros | None = None
        if plan.is_added:
            builder.reset_buffers()
            self._zeros = Zeros(builder, p, cores)
            builder.reset_buffers()
            self._finish = Finish(builder, p, cores, recipe.is_scaled_after, recipe.rounding)

    def program(self, strips: tuple[_Strip, ...], core: int) -> Program:
        """The program of vector core number *core*."""
        if self._zeros is None:
            self._dequantise(strips, core % 2)
            return self._builder.build()
        self._zeros.write(core)
        self._builder.call("turn", {}, self._builder.end_stage)
        self._dequantise(strips, core % 2)
        self._builder.call("turn", {}, self._builder.end_stage)
        self._finish.write(core)
        return self._builder.build()

    def _dequantise(self, strips: tuple[_Strip, ...], half: int) -> None:
        index = 0
        if strips:
            self._writer.begin()
        for strip in strips:
            n, columns, start, own = strip.part
            for k, depth in pieces(own, self._depth):
                self._writer.load(Part(n, columns, start + k, depth), index, half)
                index += 1
