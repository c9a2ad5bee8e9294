"""The kernels of cube cores that share k, and of their vector cores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.builder import Builder
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube import GmMatrix, GmTile
from npusim.kernel.launch import mixed_launch
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, repeat
from npusim.ops._dequantised_weight import Precision
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.plan import Plan
from npusim.ops.npu_weight_quant_batchmatmul.templates.shared_k.ring import (
    Ring,
    RingWriter,
    WeightBlock,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.shared_k.strip import (
    StripTiles,
    StripWriter,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.shared_k.sums import (
    ALL_CORES,
    DONE,
    ZEROED,
    Epilogue,
    Zeros,
)

__all__ = ["Numerics", "SharedKPlan", "build"]


@dataclass(frozen=True, slots=True)
class SharedKPlan(Plan):
    """How k and n are split over cube cores, and the sizes of what each works on."""

    cores_k: int
    cores_n: int
    core_k: int
    core_n: int
    """A core's share of k and n."""
    strip_k: int
    """k after which a core stores its sums."""
    ring_slots: int
    block_n: int
    block_k: int
    """Of the weight, in a slot of the ring."""
    vector_n: int
    vector_k: int
    """Of a block, dequantised at a time."""
    tiles: StripTiles
    is_added: bool
    """Whether sums are added in global memory, and finished by vector cores."""


@dataclass(frozen=True, slots=True)
class Numerics:
    """The numerics of a template."""

    precision: Precision
    rounding: Literal["rint", "round"]
    """How vector cores round the output: ties to even, or away from zero."""


class _Strip(NamedTuple):
    """Rows of x, and the part of the weight that they are multiplied by."""

    row: int
    rows: int
    weight: WeightBlock


def build(spec: DeviceSpec, p: Problem, plan: SharedKPlan, numerics: Numerics) -> tuple[Block, ...]:
    """Three blocks a group: a cube core and its two vector cores."""
    ring = Ring(
        slots=plan.ring_slots,
        columns=plan.block_n,
        depth=plan.block_k,
        dtype=numerics.precision.out,
        layout="FRACTAL_NZ" if p.traits.is_nz else "ND",
    )
    cube = _CubeKernel(spec, p, plan, ring)
    vector = _VectorKernel(spec, p, plan, numerics, ring)
    names = [*(operand.name for operand in p.inputs), "output", *["sums"] * plan.is_added]
    plain = {name: Binding(name) for name in names}
    strips = [tuple(_strips(p, plan, group)) for group in range(plan.block_dim)]
    return mixed_launch(
        plan.block_dim,
        lambda group: plain | (ring.bindings(group) if strips[group] else {}),
        lambda group: cube.program(strips[group]),
        lambda group, half: vector.program(strips[group], group, half),
    )


def _strips(p: Problem, plan: SharedKPlan, group: int) -> Iterator[_Strip]:
    """The work of a group; those with less k come first, so that they add first."""
    index_k, index_n = divmod(group, plan.cores_n)
    if index_k >= plan.cores_k:
        return
    start_k, start_n = index_k * plan.core_k, index_n * plan.core_n
    own_k, own_n = min(plan.core_k, p.traits.k - start_k), min(plan.core_n, p.traits.n - start_n)
    # Rows outermost: cube and vector cores go through the ring in this same order.
    for row, rows in pieces(p.traits.m, plan.tiles.rows):
        for n, columns in pieces(own_n, plan.block_n):
            for k, depth in pieces(own_k, plan.strip_k):
                yield _Strip(row, rows, WeightBlock(start_n + n, columns, start_k + k, depth))


class _CubeKernel:
    """What a cube core does: its strips, one after the other."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: SharedKPlan, ring: Ring) -> None:
        self._plan, self._ring, f = plan, ring, p.traits
        self._x = GmMatrix("x", p.x.element, f.m, f.k, k_is_first=False)
        if plan.is_added:
            self._out = GmView.of("sums", FLOAT32, f.m, f.n)
        else:
            self._out = GmView.of("output", p.output.element, f.m, f.n)
        self._builder = Builder(plan.template, spec.cores["aic"], spec.sync)
        max_k = min(plan.core_k, f.k)
        self._writer = StripWriter(self._builder, plan.tiles, self._x, ring, max_k)

    def program(self, strips: tuple[_Strip, ...]) -> Program:
        """Multiply *strips*; those of one core are of the same k where x stays in L1."""
        builder, plan = self._builder, self._plan
        if plan.is_added:
            # The fixpipe adds to global memory: zeros must be there first.
            repeat(builder, builder.cross_core_wait_flag, "group", "fixpipe", ZEROED)
        resident: GmTile | None = None
        if plan.tiles.is_resident and strips:
            # (rows, k of this core) of x stays in L1.
            first, last = strips[0], strips[-1].weight
            depth = last.k + last.depth - first.weight.k
            resident = self._x.tile(0, first.rows, first.weight.k, depth)
            repeat(builder, self._writer.fetch, resident)
        index = 0
        for strip in strips:
            self._call(strip, resident, strips[0].weight.k, index % self._ring.slots)
            # Slots of the ring are used in turn, across strips.
            index += ceil_div(strip.weight.depth, self._ring.depth)
        if plan.is_added:
            repeat(builder, sync_all, builder, "fixpipe", "fixpipe", ALL_CORES, DONE)
        return builder.build()

    def _call(self, strip: _Strip, resident: GmTile | None, core_k: int, slot: int) -> None:
        """Compute *strip*, whose first block is in *slot*; the core's k begins at *core_k*."""
        block = strip.weight
        x, first_k = resident, block.k - core_k
        # x is loaded with each block: only the k of the strip.
        if x is None:
            x, first_k = self._x.tile(strip.row, strip.rows, block.k, block.depth), 0
        # (rows, depth) @ (depth, columns) -> (rows, columns)
        n, m = slice(block.n, block.n + block.columns), slice(strip.row, strip.row + strip.rows)
        writer, out = self._writer, self._out[m, n]
        repeat(self._builder, writer.write, x, out, first_k, block.depth, slot)


class _VectorKernel:
    """What a vector core does: zeros, the weight, the output, each with the whole UB."""

    def __init__(
        self, spec: DeviceSpec, p: Problem, plan: SharedKPlan, numerics: Numerics, ring: Ring
    ) -> None:
        self._builder = builder = VectorCore(plan.template, spec)
        precision, cores = numerics.precision, 2 * plan.block_dim
        self._writer = RingWriter(builder, p, precision, ring, plan.vector_n, plan.vector_k)
        self._depth = ring.depth
        self._zeros: Zeros | None = None
        if plan.is_added:
            builder.reset_buffers()
            self._zeros = Zeros(builder, p, cores)
            builder.reset_buffers()
            is_scaled = precision.scale is None
            self._epilogue = Epilogue(builder, p, cores, is_scaled, numerics.rounding)

    def program(self, strips: tuple[_Strip, ...], group: int, half: int) -> Program:
        """The program of vector core *half*, 0 or 1, of *group*."""
        builder, core = self._builder, 2 * group + half
        if self._zeros is None:
            self._dequantise(strips, half)
            return builder.build()
        # Three stages, each with all of the unified buffer: zeros, the weight, the output.
        self._zeros.write(core)
        repeat(builder, builder.end_stage)
        self._dequantise(strips, half)
        repeat(builder, builder.end_stage)
        self._epilogue.write(core)
        return builder.build()

    def _dequantise(self, strips: tuple[_Strip, ...], half: int) -> None:
        index = 0
        if strips:
            self._writer.load_registers()
        for strip in strips:
            block = strip.weight
            # (k, n) of a strip in blocks of the ring, numbered as the cube core reads them
            for k, depth in pieces(block.depth, self._depth):
                part = block._replace(k=block.k + k, depth=depth)
                self._writer.write(part, index, half)
                index += 1
