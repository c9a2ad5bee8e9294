"""The template a8w4_unpacked: int8 by int4 of few columns for many rows, as int8 by int8.

Vector cores write the weight as int8 and its scales as floats, wait for each other, and all goes on
as in the template dequantise, with one vector core beside each cube core; scales of a bfloat16
output are rounded down to that type (ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel,
grouped_matmul_antiquant_a8w4_pre.h). Assumed: that the numbers that the digits of other templates
need, the bias, are not added to products that need none, that all vector cores share the weight
evenly, and how much of it each takes at a time.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, INT8, UINT64
from npusim.data.layout import c0
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.isa import Cast, GatherMask
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.cross_core import sync_all
from npusim.kernel.launch import mixed_launch, share
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, load, repeat, store
from npusim.ops.npu_grouped_matmul.operands import ONCE, bound
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.support import types_of
from npusim.ops.npu_grouped_matmul.templates import dequantise
from npusim.ops.npu_grouped_matmul.templates.dequantise import SumsCube
from npusim.ops.npu_grouped_matmul.templates.epilogue import Epilogue
from npusim.ops.npu_grouped_matmul.templates.plan import parts_of_cores, reason
from npusim.ops.npu_grouped_matmul.templates.ring import MixedPlan, bound_ring

__all__ = ["build", "tile"]

UNPACKED, ALL_VECTORS = 2, 3
"""Flags: the weight is in global memory; all vector cores wait for each other."""
BYTES, SCALES = "unpacked", "scales"
"""Workspaces."""
PACKED, WORDS = "packed", "words"
"""The weight and the scale as the caller gave them; *weight* and *scale* are the workspaces."""
CHUNK = 16384
"""Numbers that are unpacked at a time."""
WORDS_AT_ONCE = 2048


def tile(spec: DeviceSpec, p: Problem) -> MixedPlan:
    """As the template dequantise splits int8 by int8, with one vector core a cube core."""
    q = _as_int8(p)
    k, n = p.weight_shape(0)
    plan = replace(
        dequantise.tile(spec, q), template="a8w4_unpacked", reason=reason(p), vector_cores=1
    )
    of_scales = q.scale[0].element.nbytes(p.experts * n)
    workspaces = {BYTES: INT8.nbytes(p.experts * k * n), SCALES: of_scales}
    return replace(plan, workspaces=plan.workspaces | workspaces)


def _as_int8(p: Problem) -> Problem:
    """The call that the unpacked weight makes of *p*."""
    (weight,), (k, n) = p.weight, p.weight_shape(0)
    kind = "bfloat16" if p.output.element is BFLOAT16 else "float32"
    spec = TensorSpec((p.experts, k, n), "int8", weight.spec.layout)
    return replace(
        p,
        types=types_of(INT8, INT8, p.output.dtype, None),
        weight=(Operand("weight", spec),),
        scale=(Operand("scale", TensorSpec((p.experts, n), kind)),),
        bias=(),
    )


def build(spec: DeviceSpec, p: Problem, plan: MixedPlan) -> tuple[Block, ...]:
    """A cube core and a vector core a group."""
    q = _as_int8(p)
    cube, vector = SumsCube(spec, q, plan), Epilogue(spec, q, plan)
    vector.builder.reset_buffers()
    unpacker = Unpacker(vector.builder, p, q)
    shares = parts_of_cores(q, plan.tile.m, plan.single_n, plan.block_dim)
    names = bound(p) | {
        PACKED: Binding("weight"),
        WORDS: Binding("scale"),
        "weight": Binding(BYTES),
        ONCE: Binding(BYTES, is_cached=False),
        "scale": Binding(SCALES),
        BYTES: Binding(BYTES),
        SCALES: Binding(SCALES),
    }

    def of_cube(core: int) -> Program:
        cube.builder.cross_core_wait_flag("group", "mte2", UNPACKED)
        return cube.program(core, shares[core])

    def of_vector(core: int, half: int) -> Program:
        unpacker.write(core, plan.block_dim)
        vector.builder.end_stage()
        sync_all(vector.builder, "mte3", "mte2", ALL_VECTORS, UNPACKED)
        return vector.program(shares[core], half)

    return mixed_launch(
        len(shares),
        lambda core: names | bound_ring(plan, core),
        of_cube,
        of_vector,
        plan.vector_cores,
    )


class Unpacker:
    """What a vector core writes of the weight and of its scales, before all else."""

    def __init__(self, builder: Builder, p: Problem, q: Problem) -> None:
        self.builder, self.is_nz = builder, p.is_nz
        k, n = p.weight_shape(0)
        self.rows, self.columns = p.experts * k, n
        self.scale = q.scale[0].element
        self.packed = builder.queue("ub", INT4.nbytes(CHUNK), "mte2", "vector", 2)
        self.half = builder.claim("ub", FLOAT16.nbytes(CHUNK))
        self.out = builder.queue("ub", INT8.nbytes(CHUNK), "vector", "mte3", 2)
        self.words = builder.queue("ub", UINT64.nbytes(WORDS_AT_ONCE), "mte2", "vector")
        self.wide = builder.claim("ub", FLOAT32.nbytes(WORDS_AT_ONCE))
        self.scales = builder.queue("ub", FLOAT32.nbytes(WORDS_AT_ONCE), "vector", "mte3")
        # ND is one row. FRACTAL_NZ has rows of 64 numbers, which become two of 32, far apart.
        self.width = c0(INT4) if self.is_nz else self.rows * self.columns
        self.per_expert = k

    def write(self, core: int, cores: int) -> None:
        """The share of *core* of all *cores*."""
        if self.is_nz:
            self._write_fractals(core, cores)
        else:
            self._write_rows(core, cores)
        experts = self.rows // self.per_expert
        words = GmView.vector(WORDS, UINT64, experts * self.columns)
        scales = GmView.vector(SCALES, self.scale, experts * self.columns)
        for start, count in list(pieces(words.columns, WORDS_AT_ONCE))[core::cores]:
            here = slice(start, start + count)
            repeat(self.builder, self._scales, words[:, here], scales[:, here])

    def _write_rows(self, core: int, cores: int) -> None:
        packed = GmView.vector(PACKED, INT4, self.width)
        unpacked = GmView.vector(BYTES, INT8, self.width)
        for start, count in list(pieces(self.width, CHUNK))[core::cores]:
            here = slice(start, start + count)
            repeat(self.builder, self._unpack, packed[:, here], unpacked[:, here])

    def _write_fractals(self, core: int, cores: int) -> None:
        """Columns of fractals `(k, 64)`, each of which becomes two of `(k, 32)`."""
        k, narrow = self.per_expert, c0(INT8)
        blocks = self.rows * self.columns // self.width // k
        packed = GmView.of(PACKED, INT4, blocks * k, self.width)
        unpacked = GmView.of(BYTES, INT8, 2 * blocks * k, narrow)
        at_once = CHUNK // self.width
        for block in share(blocks, cores, core):
            for row, rows in pieces(k, at_once):
                first = block * k + row
                left = 2 * block * k + row
                repeat(
                    self.builder,
                    self._unpack,
                    packed[first : first + rows, :],
                    unpacked[left : left + rows, :],
                    unpacked[left + k : left + k + rows, :],
                )

    def _unpack(self, packed: GmView, *unpacked: GmView) -> None:
        """*packed* int4 `(rows, columns)` to *unpacked* int8, side by side."""
        builder, count = self.builder, packed.rows * packed.columns
        slot = self.packed.alloc()
        # Rows of packed numbers follow each other without gaps, in memory as in the buffer.
        flat = GmView.vector(packed.name, INT4, count).shifted_to(packed.offset_bytes)
        builder.data_copy(slot.of(INT4, count), flat.operand)
        self.packed.enque(slot)
        slot = self.packed.deque()
        half = self.half.of(FLOAT16, count)
        step(builder, Cast(half, slot.of(INT4, count), "none"))
        self.packed.free(slot)
        out = self.out.alloc()
        step(builder, Cast(out.of(INT8, count), half, "none"))
        self.out.enque(out)
        out = self.out.deque()
        pitch = INT8.nbytes(packed.columns)
        for number, view in enumerate(unpacked):
            start = number * view.row_bytes
            if view.rows == 1:
                builder.data_copy(view.operand, out.of(INT8, view.columns, start))
                continue
            extent = (view.rows - 1) * pitch + view.row_bytes
            builder.data_copy(view.operand, out.of(INT8, extent, start), pitch)
        self.out.free(out)

    def _scales(self, words: GmView, scales: GmView) -> None:
        """The lower halves of *words* `(n,)` as floats."""
        builder, count = self.builder, words.columns
        slot = load(builder, self.words, words)
        out = self.scales.alloc()
        result = out.of(self.scale, count)
        wide = result if self.scale is FLOAT32 else self.wide.of(FLOAT32, count)
        step(builder, GatherMask("even", wide, slot.of(FLOAT32, 2 * count)))
        self.words.free(slot)
        if self.scale is not FLOAT32:
            step(builder, Cast(result, wide, "floor"))
        store(builder, self.scales, out, scales)
