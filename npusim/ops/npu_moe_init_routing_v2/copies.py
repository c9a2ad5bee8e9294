"""How the rows of npu_moe_init_routing_v2 get to their places: as they are, or as int8.

ops-transformer@c29bc10 moe/moe_init_routing_v3/op_kernel, moe_v3_gather_dynamic_quant.h. Assumed:
that a long row passes the buffer in pieces, and that the buffers of a quantised row are single but
for the next one, which is on its way.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, INT32, UINT8, Array, RoundMode
from npusim.data.integers import align_down, align_up
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    Cast,
    Copy,
    Duplicate,
    Local,
    ScalarAlu,
    ScalarLoad,
    ScalarStore,
    Unary,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.reduction import Reduction
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, load, repeat, store
from npusim.ops._moe.scores import bits_of
from npusim.ops.npu_moe_init_routing_v2.contract import NOWHERE, Problem

__all__ = ["ROW", "Padding", "QuantisedRows", "Rows"]

ROW, SCALE = "row", "scale"
"""Registers."""
ZEROS_BYTES = 8192
"""Of the buffer that places are filled from: assumed."""
LARGEST = 127.0
"""What the largest number of a row becomes."""


class Padding:
    """Fills the places that no row comes to with zeros."""

    def __init__(self, builder: Builder, p: Problem, places: Array) -> None:
        """*places* are those that rows come to."""
        self.builder = builder
        self.row_bytes = (INT8 if p.quantises else p.element).nbytes(p.width)
        self.is_empty = np.ones(p.rows_out, bool)
        self.is_empty[places[places != NOWHERE]] = False
        self.output = GmView.vector("output", UINT8, p.rows_out * self.row_bytes)
        self.zeros = builder.claim("ub", ZEROS_BYTES)

    def write(self, own: range) -> None:
        """Fill those of the places *own*, one run after the other."""
        builder = self.builder
        empty = own.start + np.flatnonzero(self.is_empty[own.start : own.stop])
        if not empty.size:
            return
        step(builder, Duplicate(self.zeros.of(INT32, ZEROS_BYTES // INT32.nbytes(1)), 0))
        builder.sync("vector", "mte3")
        for run in np.split(empty, np.flatnonzero(np.diff(empty) > 1) + 1):
            first = int(run[0]) * self.row_bytes
            for start, count in pieces(len(run) * self.row_bytes, ZEROS_BYTES):
                there = self.output[:, first + start : first + start + count]
                repeat(builder, self._fill, there)

    def _fill(self, there: GmView) -> None:
        self.builder.data_copy(there.operand, self.zeros.of(UINT8, there.columns))


class Rows:
    """Copies rows as they are."""

    def __init__(self, builder: Builder, p: Problem) -> None:
        self.builder, self.p = builder, p
        row_bytes = p.element.nbytes(p.width)
        self.x = GmView.of("x", UINT8, p.tokens, row_bytes)
        self.output = GmView.of("output", UINT8, p.rows_out, row_bytes)
        if p.scale is not None:
            self.scale = GmView.vector("scale", FLOAT32, p.tokens)
            self.scales = GmView.vector("expanded_scale", FLOAT32, p.rows_out)
            self.factor = builder.queue("ub", BLOCK_BYTES, "mte2", "mte3")
        half = align_down(builder.room_bytes("ub") // 2, BLOCK_BYTES)
        self.piece_bytes = min(align_up(row_bytes, BLOCK_BYTES), half)
        self.passing = builder.queue("ub", self.piece_bytes, "mte2", "mte3", 2)

    def copy(self, place: Local, choice: int, row: int, _: int) -> None:
        """The row of *choice* to *row*; the scalar unit finds *choice* at *place*, or beside it."""
        token = choice // self.p.k
        views = [self.x.row(token), self.output.row(row)]
        if self.p.scale is not None:
            views += [self.scale[:, token : token + 1], self.scales[:, row : row + 1]]
        repeat(self.builder, self._copy, place, *views)

    def _copy(self, place: Local, x: GmView, output: GmView, *scales: GmView) -> None:
        builder = self.builder
        builder.emit(ScalarLoad(ROW, place))
        if scales:
            scale, there = scales
            slot = load(builder, self.factor, scale)
            builder.data_copy(there.operand, slot.of(FLOAT32, 1))
            self.factor.free(slot)
        for start, width in pieces(x.columns, self.piece_bytes):
            slot = self.passing.alloc()
            local = slot.of(UINT8, width)
            builder.data_copy(local, x[:, start : start + width].operand)
            self.passing.enque(slot)
            slot = self.passing.deque()
            builder.data_copy(output[:, start : start + width].operand, local)
            self.passing.free(slot)


class QuantisedRows:
    """Quantises rows, each by its largest number."""

    def __init__(self, builder: Builder, p: Problem) -> None:
        self.builder, self.p = builder, p
        self.x = GmView.of("x", p.element, p.tokens, p.width)
        self.output = GmView.of("output", INT8, p.rows_out, p.width)
        self.scales = GmView.vector("expanded_scale", FLOAT32, p.rows_out)
        self.factors: GmView | None = None
        if p.scale is not None:
            self.factors = GmView.of("scale", FLOAT32, *p.scale.shape)
        self.loaded = builder.queue("ub", p.element.nbytes(p.width), "mte2", "vector", 2)
        self.quantised = builder.queue("ub", INT8.nbytes(p.width), "vector", "mte3")
        self.found = builder.queue("ub", BLOCK_BYTES, "scalar", "mte3")
        if self.factors is not None:
            self.smooth = builder.queue("ub", FLOAT32.nbytes(p.width), "mte2", "vector")
        self.values, self.work = (builder.claim("ub", FLOAT32.nbytes(p.width)) for _ in range(2))
        self.largest = builder.claim("ub", FLOAT32.nbytes(2))
        self.reduction = Reduction(builder, p.width)

    def copy(self, place: Local, choice: int, row: int, expert: int) -> None:
        """The same, with the factors of *expert*, counted from the first active one."""
        views = [self.x.row(choice // self.p.k), self.output.row(row)]
        views.append(self.scales[:, row : row + 1])
        if self.factors is not None:
            views.append(self.factors.row(expert % self.factors.rows))
        repeat(self.builder, self._quantise, place, *views)

    def _quantise(self, place: Local, x: GmView, y: GmView, scale: GmView, *given: GmView) -> None:
        """*x* `(1, width)` as int8 to *y*, and what its numbers are to be multiplied by."""
        builder = self.builder
        builder.emit(ScalarLoad(ROW, place))
        slot = load(builder, self.loaded, x)
        values, work = (part.of(FLOAT32, x.columns) for part in (self.values, self.work))
        own = slot.of(x.dtype, x.columns)
        step(builder, Copy(values, own) if x.dtype is FLOAT32 else Cast(values, own, "none"))
        self.loaded.free(slot)
        for view in given:
            factor = load(builder, self.smooth, view)
            step(builder, Binary("mul", values, values, factor.of(FLOAT32, view.columns)))
            self.smooth.free(factor)
        step(builder, Unary("abs", work, values))
        self.reduction.find_largest(self.largest, work)
        out = self.found.alloc()
        builder.emit(
            ScalarLoad(SCALE, self.largest.of(FLOAT32, 1)),
            ScalarAlu("f32_div", SCALE, SCALE, bits_of(LARGEST)),
            ScalarStore(out.of(FLOAT32, 1), SCALE),
        )
        store(builder, self.found, out, scale)
        step(builder, Duplicate(work, SCALE))
        step(builder, Binary("div", values, values, work))
        self._round(values, y)

    def _round(self, values: Local, y: GmView) -> None:
        """*values* as int8 by way of float16, cut and then rounded, halves away from zero."""
        first, second = self._modes()
        half = Local(values.buffer, values.offset_bytes, FLOAT16, values.count)
        step(self.builder, Cast(half, values, first))
        out = self.quantised.alloc()
        step(self.builder, Cast(out.of(INT8, values.count), half, second))
        store(self.builder, self.quantised, out, y)

    def _modes(self) -> tuple[RoundMode, RoundMode]:
        # The kernel for single tokens rounds otherwise.
        return ("odd", "rint") if self.p.is_one_token else ("trunc", "round")
