"""The program that each core runs for npu_group_quant.

A core works on one row at a time, up to 8192 columns of it: widen to float32, multiply by the
scales of the row's group, add the offset, round and narrow. It finds the groups in group_index,
which all cores check first.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import (
    Binary,
    BinaryScalar,
    Cast,
    Local,
    Reduce,
    ScalarAlu,
    ScalarLoad,
    ScalarLoop,
    Trap,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_float32, to_quantised
from npusim.kernel.columns import ColumnVector
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import BODY_ROWS, Writer, load, pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.kernel.views import load as load_typed
from npusim.ops.npu_group_quant.contract import Problem
from npusim.ops.npu_group_quant.tiling import Plan

__all__ = ["build"]

INDEX_CHUNK = 256
"""Entries of group_index in the buffer at a time: 1 KiB of int32 (ops-nn, group_quant_base.h)."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores whose rows belong to the same groups share their program."""
    # group_index holds where groups end: row r belongs to the first group that ends after r.
    ends = np.maximum.accumulate(np.clip(p.ends, 0, p.rows))
    group_of = np.searchsorted(ends, np.arange(p.rows), side="right")
    kernel = GroupQuant(spec, p, plan)
    programs: dict[tuple[int, ...], Program] = {}
    blocks: list[Block] = []
    first = 0
    x, output = _matrices(p)
    whole = [GmView.vector(x.name, x.element, x.spec.size) for x in p.inputs[1:]]
    for core, rows in enumerate(plan.rows_of_core):
        groups = tuple(group_of[first : first + rows].tolist())
        if groups not in programs:
            programs[groups] = kernel.program(groups)
        bound = bindings(x[first:, :], output[first:, :], *whole)
        blocks.append(Block(core, spec.vector_cores[core], programs[groups], bound))
        first += rows
    return tuple(blocks)


def _matrices(p: Problem) -> tuple[GmView, GmView]:
    """x and the output `(rows, columns)`."""
    x = GmView.of("x", p.x.element, p.rows, p.columns)
    return x, GmView.of("output", p.target, p.rows, p.columns)


class GroupQuant:
    """The kernel of one core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = builder = Builder("npu_group_quant", spec.cores["aiv"], spec.sync)
        width, scale = plan.column_step, p.scale.element
        float32_bytes = FLOAT32.nbytes(width)
        queue, claim = builder.queue, builder.claim
        self.x = queue("ub", p.x.element.nbytes(width), "mte2", "vector")
        self.y = queue("ub", p.target.nbytes(width), "vector", "mte3")
        scales = queue("ub", scale.nbytes(width), "mte2", "vector")
        self.work = None if p.x.element is FLOAT32 else claim("ub", float32_bytes)
        widened = None if scale is FLOAT32 else claim("ub", float32_bytes)
        self.scale = ColumnVector(builder, scales, widened, spec=spec)
        self.index = GroupIndex(builder, p)
        self.writer = Writer(builder, spec)
        self.offset: ColumnVector | None = None
        if p.offset is not None:
            element = p.offset.element
            reader: Pipe = "scalar" if element is FLOAT32 else "vector"
            self.offset = ColumnVector.claim(builder, element, 1, reader=reader, spec=spec)

    def program(self, groups: tuple[int, ...]) -> Program:
        """Rows that belong to *groups*, one after the other."""
        p = self.p
        self.index.check()
        fault = p.fault()
        if fault is not None:
            # The checks above have trapped; what would follow is never run.
            self.builder.emit(Trap(1, fault))
            return self.builder.build()
        if self.offset is not None:
            assert p.offset is not None
            self.offset.take_number(GmView.vector("offset", p.offset.element, 1), "offset")
        x, output = _matrices(p)
        scales = GmView.of("scale", p.scale.element, p.scale.spec.size // p.columns, p.columns)
        first = 0
        for group, same in groupby(groups):
            here = slice(first, first + len(tuple(same)))
            entry = self.index.advance(group)
            write = self._wide_rows if p.columns > self.plan.column_step else self._rows
            write(x[here, :], output[here, :], scales.row(group), entry)
            first = here.stop
        self.scale.drop()
        return self.builder.build()

    def _rows(self, x: GmView, output: GmView, scales: GmView, entry: Local) -> None:
        """*x* to *output*, both `(rows, columns)`, by *scales* `(columns,)`, loaded once.

        *entry* is the end of their group in the buffer.
        """
        self.scale.drop()
        factors = self.scale.take(scales)
        last = x.rows - 1
        for row, rows in pieces(last, BODY_ROWS):
            here = slice(row, row + rows)
            repeat(self.builder, self._rows_before, x[here, :], output[here, :], factors, entry)
        repeat(self.builder, self._piece, x[last:, :], output[last:, :], factors)

    def _rows_before(self, x: GmView, output: GmView, factors: Local, entry: Local) -> None:
        """*x* to *output*, both `(rows, columns)`, other rows of the group following."""
        for row in range(x.rows):
            here = slice(row, row + 1), slice(None)
            repeat(self.builder, self._piece, x[here], output[here], factors)
            self.index.look_at(entry)

    def _wide_rows(self, x: GmView, output: GmView, scales: GmView, entry: Local) -> None:
        """The same, for rows that the buffers do not hold, with *scales* loaded anew for each."""
        self.scale.drop()
        last = x.rows - 1
        for row in range(last):
            here = slice(row, row + 1), slice(None)
            repeat(self.builder, self._wide_row_before, x[here], output[here], scales, entry)
        self._wide_row(x[last:, :], output[last:, :], scales)

    def _wide_row_before(self, x: GmView, output: GmView, scales: GmView, entry: Local) -> None:
        """*x* to *output*, both `(1, columns)`, other rows of the group following."""
        self._wide_row(x, output, scales)
        self.index.look_at(entry)
        self.scale.drop()

    def _wide_row(self, x: GmView, output: GmView, scales: GmView) -> None:
        """*x* to *output*, both `(1, columns)`."""
        for column, width in pieces(x.columns, self.plan.column_step):
            here = slice(None), slice(column, column + width)
            self.scale.drop()
            self._piece(x[here], output[here], self.scale.take(scales[here]))

    def _piece(self, x: GmView, output: GmView, scales: Local) -> None:
        """*x* to *output*, both `(1, width)`, by the *scales* `(width,)` of the group."""
        slot = load(self.builder, self.spec, self.x, x)
        out = self.y.alloc()
        source = slot.of(x.dtype, x.columns)
        values = source if self.work is None else self.work.of(FLOAT32, x.columns)
        if self.work is not None:
            # (1, width) fp16 or bf16 -> fp32; fp32 is worked on where it was loaded
            to_float32(self.builder, values, source)
        step(self.builder, Binary("mul", values, values, scales))
        if self.p.offset is not None:
            step(self.builder, BinaryScalar("add", values, values, "offset"))
        # (1, width) fp32 -> int8 or packed int4
        to_quantised(self.builder, self.spec, out.of(output.dtype, x.columns), values)
        self.x.free(slot)
        self.writer.store(self.y, out, output)


class GroupIndex:
    """How a core reads group_index: first the checks, then its groups, entry by entry."""

    def __init__(self, builder: Builder, p: Problem) -> None:
        self.builder, self.p = builder, p
        self.element = p.group_index.element
        self.count = p.group_index.shape[0]
        self.entries = GmView.vector("group_index", self.element, self.count)
        self.fault = p.fault() or "group_index must be in order"
        nbytes = self.element.nbytes(INDEX_CHUNK)
        self.here = builder.queue("ub", nbytes, "mte2", "scalar")
        self.chunk: tuple[int, Slot] | None = None
        self.group = 0
        if self.element is INT32:
            self.before = builder.queue("ub", nbytes, "mte2", "vector")
            self.after = builder.queue("ub", nbytes, "mte2", "vector")

    def check(self) -> None:
        """Trap unless the entries ascend from 0 or more to the number of rows.

        Programs begin with it.
        """
        self.chunk, self.group = None, 0
        # Chunks overlap by one entry, so that every pair of neighbours is compared once.
        for start in range(0, self.count - 1, INDEX_CHUNK - 1):
            count = min(INDEX_CHUNK, self.count - start)
            if self.element is INT32:
                self._check_by_vector(start, count - 1)
            else:
                self._check_by_scalar(start, count)
        self._read("end", 0)
        self._trap_if(ScalarAlu("lt", "bad", "end", 0))
        self._read("end", self.count - 1)
        self.builder.emit(ScalarAlu("eq", "good", "end", self.p.rows))
        self._trap_if(ScalarAlu("eq", "bad", "good", 0))

    def advance(self, group: int) -> Local:
        """Look for the group of the next row, from the last one's on: entry after entry.

        Returns where its own entry is in the buffer.
        """
        entry = self.group
        while entry <= group:
            start = entry // INDEX_CHUNK * INDEX_CHUNK
            stop = min(group + 1, start + INDEX_CHUNK)
            slot = self._fetch(start, min(INDEX_CHUNK, self.count - start))
            self.look_at(slot.of(self.element, 1, self.element.nbytes(entry - start)), stop - entry)
            entry = stop
        self.group = group
        return slot.of(self.element, 1, self.element.nbytes(group - start))

    def look_at(self, first: Local, count: int = 1) -> None:
        """Hold *count* entries, from *first* on, against the number of a row."""
        # On the chip the row's number stands in a register; here it is known beforehand.
        body = (
            ScalarLoad("end", first, self.element.nbytes(1)),
            ScalarAlu("lt", "inside", 0, "end"),
        )
        self.builder.emit(ScalarLoop(count, body))

    def _trap_if(self, test: ScalarAlu) -> None:
        self.builder.emit(test, Trap("bad", self.fault))

    def _read(self, register: str, entry: int) -> None:
        start = entry // INDEX_CHUNK * INDEX_CHUNK
        slot = self._fetch(start, min(INDEX_CHUNK, self.count - start))
        offset_bytes = self.element.nbytes(entry - start)
        self.builder.emit(ScalarLoad(register, slot.of(self.element, 1, offset_bytes)))

    def _fetch(self, start: int, count: int) -> Slot:
        """Entries from *start* on, for the scalar unit."""
        if self.chunk is not None:
            if self.chunk[0] == start:
                return self.chunk[1]
            self.here.free(self.chunk[1])
        slot = load_typed(self.builder, self.here, self.entries[:, start : start + count])
        self.chunk = start, slot
        return slot

    def _check_by_vector(self, start: int, count: int) -> None:
        """int32: the least difference of neighbours, as a float, must not be negative."""
        before, after = self.before.alloc(), self.after.alloc()
        # (count,) int32 each
        a, b = before.of(INT32, count), after.of(INT32, count)
        # Entries [start, start + count) and the ones behind each of them.
        self.builder.data_copy(a, self.entries[:, start : start + count].operand)
        self.builder.data_copy(b, self.entries[:, start + 1 : start + 1 + count].operand)
        self.before.enque(before)
        self.after.enque(after)
        before, after = self.before.deque(), self.after.deque()
        # (count,) int32 differences, then float32 in the place of the first entries
        differences = a.as_dtype(FLOAT32, count)
        step(self.builder, Binary("sub", b, b, a))
        step(self.builder, Cast(differences, b, "none"))
        step(self.builder, Reduce("min", differences.at(0, 1), differences))
        self.builder.sync("vector", "scalar")
        self.builder.emit(ScalarLoad("least", differences.at(0, 1)))
        # The sign of a float is its highest bit.
        self._trap_if(ScalarAlu("shr", "bad", "least", 31))
        self.builder.sync("scalar", "vector")
        self.before.free(before)
        self.after.free(after)

    def _check_by_scalar(self, start: int, count: int) -> None:
        """int64: each entry against the one before."""
        slot = self._fetch(start, count)
        step_bytes = self.element.nbytes(1)
        body = (
            ScalarLoad("before", slot.of(self.element, 1), step_bytes),
            ScalarLoad("end", slot.of(self.element, 1, step_bytes), step_bytes),
            ScalarAlu("lt", "bad", "end", "before"),
            Trap("bad", self.fault),
        )
        self.builder.emit(ScalarLoop(count - 1, body))
