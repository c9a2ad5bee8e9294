"""What a vector core of npu_grouped_matmul_swiglu_quant does with rows of int32 sums.

Some rows are loaded and cast to fp32 together; then each is scaled, halved, and rounded to int8 by
itself, with the scalar unit between its largest number and its scale (ops-transformer@c29bc10
gmm/grouped_matmul_swiglu_quant/op_kernel/grouped_matmul_swiglu_quant.h). The scales of the columns
are loaded when the group changes. That all pipes wait for each other at the end of each row is
assumed: the kernel has many such barriers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, INT32
from npusim.data.integers import align_up
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryScalar,
    Cast,
    Copy,
    Local,
    ScalarAlu,
    ScalarLoadGlobal,
    ScalarStore,
    Unary,
)
from npusim.kernel.chain import step
from npusim.kernel.launch import share
from npusim.kernel.queues import Slot
from npusim.kernel.reduction import Reduction
from npusim.kernel.rows import pieces
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, load, repeat, store
from npusim.ops._int4_matmul import DigitSums
from npusim.ops.npu_dynamic_quant.row_steps import float_bits
from npusim.ops.npu_grouped_matmul_swiglu_quant.contract import Problem
from npusim.ops.npu_grouped_matmul_swiglu_quant.tiling import Chunk, Plan

__all__ = ["RowKernel"]

LARGEST = 127
"""What the largest number of a row becomes."""
ONE = 1


class Run(NamedTuple):
    """Rows of a load that have one weight."""

    expert: int
    first: int
    rows: int


class RowKernel:
    """Buffers of a vector core, and what it does with the rows of a chunk."""

    def __init__(self, builder: VectorCore, p: Problem, plan: Plan) -> None:
        self.builder, self.p, self.plan = builder, p, plan
        queue, claim = builder.queue, builder.claim
        rows, n, half = plan.loaded_rows, p.n, p.n // 2
        scale = FLOAT32 if p.is_int4 else p.weight_scale.element
        self.digits = DigitSums(builder, rows, n) if p.is_int4 else None
        sums_bytes = 0 if p.is_int4 else INT32.nbytes(rows * n)
        self.sums = queue("ub", sums_bytes, "mte2", "vector")
        self.weights = claim("ub", FLOAT32.nbytes(n))
        self.narrow = None if scale is FLOAT32 else claim("ub", scale.nbytes(n))
        self.work = claim("ub", FLOAT32.nbytes(half))
        self.absolute = claim("ub", FLOAT32.nbytes(half))
        self.reduction = Reduction(builder, half)
        self.most = claim("ub", BLOCK_BYTES)
        self.half = claim("ub", FLOAT16.nbytes(half))
        self.pitch = align_up(half, BLOCK_BYTES)
        self.results = queue("ub", rows * self.pitch, "vector", "mte3")
        self.scales = queue("ub", align_up(FLOAT32.nbytes(rows), BLOCK_BYTES), "scalar", "mte3")
        self.expert: int | None = None
        """Whose scales are in the buffer."""

    def write(self, chunk: Chunk, core: int) -> None:
        """The rows of *chunk* that core number *core* of all vector cores has."""
        p, plan = self.p, self.plan
        self.expert = None
        own = share(chunk.rows, 2 * plan.block_dim, core)
        top = chunk.number % plan.buffers * plan.chunk_rows
        element, each = (FLOAT16, 2) if p.is_int4 else (INT32, 1)
        sums = GmView.of("sums", element, each * plan.buffers * plan.chunk_rows, p.n)
        y = GmView.of("output", INT8, p.m, p.n // 2)
        scale, token = (GmView.vector(x, FLOAT32, p.m) for x in ("output_scale", "x_scale"))
        factors = p.weight_scale if p.bias is None else p.bias
        numbers = GmView.of(factors.name, factors.element, p.experts, p.n)
        for first, rows in pieces(len(own), plan.loaded_rows):
            here = own.start + first
            row = slice(chunk.first + here, chunk.first + here + rows)
            runs = tuple(_runs(chunk, here, rows))
            is_kept = runs[0].expert == self.expert
            self.expert = runs[-1].expert
            repeat(
                self.builder,
                self._load,
                sums[each * (top + here) : each * (top + here + rows), :],
                y[row, :],
                scale[:, row],
                token[:, row],
                tuple(run.rows for run in runs),
                is_kept,
                *(numbers.row(run.expert) for run in runs),
            )

    def _load(
        self,
        sums: GmView,
        y: GmView,
        scale: GmView,
        token: GmView,
        runs: tuple[int, ...],
        is_kept: bool,
        *numbers: GmView,
    ) -> None:
        """*y* `(rows, n / 2)` and *scale* `(rows,)` of *sums* `(rows, n)`, of digits two rows each.

        *runs* are rows of one group each, whose numbers of columns are *numbers* `(n,)`: scales,
        or what is added to sums of digits. Those of the first may be in the buffer already.
        """
        builder, count = self.builder, y.rows * sums.columns
        slot = None
        if self.digits is not None:
            values = self.digits.take(sums).whole()
        else:
            slot = load(builder, self.sums, sums)
            # (rows, n) int32 -> fp32, in place
            values = slot.of(FLOAT32, count)
            step(builder, Cast(values, slot.of(INT32, count), "none"))
        result, scales = self.results.alloc(), self.scales.alloc()
        row = 0
        for index, (rows, of_columns) in enumerate(zip(runs, numbers, strict=True)):
            if index or not is_kept:
                self._take_numbers(of_columns)
            for _ in range(rows):
                here = values.at(row * sums.columns, sums.columns)
                self._row(here, token[:, row : row + 1], row, result, scales)
                row += 1
        if slot is not None:
            self.sums.free(slot)
        store(builder, self.results, result, y, pitch=self.pitch)
        store(builder, self.scales, scales, scale)

    def _take_numbers(self, numbers: GmView) -> None:
        """Load the scales of the columns of a group, as fp32."""
        builder, where = self.builder, self.narrow or self.weights
        builder.sync("vector", "mte2")
        builder.data_copy(where.of(numbers.dtype, numbers.columns), numbers.operand)
        builder.sync("mte2", "vector")
        if self.narrow is not None:
            wide = self.weights.of(FLOAT32, numbers.columns)
            step(builder, Cast(wide, where.of(numbers.dtype, numbers.columns), "none"))

    def _row(self, values: Local, token: GmView, row: int, result: Slot, scales: Slot) -> None:
        """Make row number *row* of what is in the buffer, of its sums *values* `(n,)`."""
        builder, half = self.builder, values.count // 2
        builder.emit(ScalarLoadGlobal("token", token.operand, FLOAT32, row > 0))
        weights = self.weights.of(FLOAT32, values.count)
        if self.p.is_int4:
            step(builder, Binary("add", values, values, weights))
        step(builder, BinaryScalar("mul", values, values, "token"))
        if not self.p.is_int4:
            step(builder, Binary("mul", values, values, weights))
        gated = self._gated(values.at(0, half), values.at(half, half))
        self._find_scale(gated, row, scales)
        step(builder, BinaryScalar("mul", gated, gated, "back"))
        # fp32 -> fp16 -> int8, each to nearest even
        rounded = self.half.of(FLOAT16, half)
        step(builder, Cast(rounded, gated, "rint"))
        step(builder, Cast(result.of(INT8, half, row * self.pitch), rounded, "rint"))
        builder.barrier()

    def _gated(self, a: Local, b: Local) -> Local:
        """`b * (a / (exp(a * -1) + 1))`, copied to a buffer of its own."""
        builder, work = self.builder, self.work.of(FLOAT32, a.count)
        step(builder, BinaryScalar("mul", work, a, -1.0))
        step(builder, Unary("exp", work, work))
        step(builder, BinaryScalar("add", work, work, 1.0))
        step(builder, Binary("div", work, a, work))
        step(builder, Binary("mul", a, b, work))
        step(builder, Copy(work, a))
        return work

    def _find_scale(self, gated: Local, row: int, scales: Slot) -> None:
        """The largest magnitude / 127 to *scales*, and its inverse to the register `back`."""
        builder, absolute = self.builder, self.absolute.of(FLOAT32, gated.count)
        step(builder, Unary("abs", absolute, gated))
        self.reduction.find_largest(self.most, absolute)
        builder.emit(
            ScalarAlu("f32_div", "scale", "found", float_bits(LARGEST)),
            ScalarStore(scales.of(FLOAT32, 1, FLOAT32.nbytes(row)), "scale"),
            ScalarAlu("f32_div", "back", float_bits(ONE), "scale"),
        )
        builder.sync("scalar", "vector")


def _runs(chunk: Chunk, first: int, rows: int) -> Iterator[Run]:
    """The groups of *rows* rows from number *first* of *chunk* on."""
    for group in chunk.groups:
        start = group.first - chunk.first
        top, end = max(start, first), min(start + group.rows, first + rows)
        if top < end:
            yield Run(group.expert, top, end - top)
