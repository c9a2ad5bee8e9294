"""The program that each core runs for npu_group_quant."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32, DType
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryScalar,
    Cast,
    Global,
    Reduce,
    ScalarAlu,
    ScalarLoad,
    ScalarLoop,
    Trap,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step, to_float32, to_quantised
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Rows, Writer, load, pieces
from npusim.ops.npu_group_quant.contract import Problem
from npusim.ops.npu_group_quant.tiling import Plan

__all__ = ["build"]

INDEX_CHUNK = 256
"""Entries of group_index in the buffer at a time: 1 KiB of int32 (ops-nn, group_quant_base.h)."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores whose rows belong to the same groups share their program."""
    ends = np.maximum.accumulate(np.clip(p.ends, 0, p.rows))
    group_of = np.searchsorted(ends, np.arange(p.rows), side="right")
    programs: dict[tuple[int, ...], Program] = {}
    blocks: list[Block] = []
    first = 0
    for core, rows in enumerate(plan.rows_of_core):
        groups = tuple(group_of[first : first + rows].tolist())
        if groups not in programs:
            programs[groups] = _Writing(spec, p, plan).program(groups)
        bindings = {
            "x": Binding("x", p.x.element.nbytes(first * p.columns)),
            "output": Binding("output", p.target.nbytes(first * p.columns)),
            **{operand.name: Binding(operand.name) for operand in p.inputs[1:]},
        }
        blocks.append(Block(core, spec.vector_cores[core], programs[groups], bindings))
        first += rows
    return tuple(blocks)


class _Writing:
    """The kernel of one core, while it is written."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        self.builder = Builder("npu_group_quant", spec.cores["aiv"], spec.sync)
        width = plan.column_step
        queue, claim = self.builder.queue, self.builder.claim
        self.x = queue("ub", p.x.element.nbytes(width), "mte2", "vector")
        self.y = queue("ub", p.target.nbytes(width), "vector", "mte3")
        self.scale = queue("ub", p.scale.element.nbytes(width), "mte2", "vector")
        self.work = None if p.x.element is FLOAT32 else claim("ub", FLOAT32.nbytes(width))
        is_wide = p.scale.element is FLOAT32
        self.scale32 = None if is_wide else claim("ub", FLOAT32.nbytes(width))
        self.scale_slot: Slot | None = None
        self.scale_key: tuple[int, int] | None = None
        """Group and first column of the scales in the buffer."""
        self.index = _Index(self.builder, p)
        self.writer = Writer(self.builder, spec)

    def program(self, groups: tuple[int, ...]) -> Program:
        """Rows that belong to *groups*, one after the other."""
        self.index.check()
        fault = self.p.fault()
        if fault is not None:
            # The checks above have trapped; what would follow has no meaning.
            self.builder.emit(Trap(1, fault))
            return self.builder.build()
        if self.p.offset is not None:
            self._fetch_offset()
        for row, group in enumerate(groups):
            self.index.advance(group)
            for column, width in pieces(self.p.columns, self.plan.column_step):
                self._piece(row, group, column, width)
        if self.scale_slot is not None:
            self.scale.free(self.scale_slot)
        return self.builder.build()

    def _fetch_offset(self) -> None:
        assert self.p.offset is not None
        element = self.p.offset.element
        is_wide = element is FLOAT32
        reader: Pipe = "scalar" if is_wide else "vector"
        queue = self.builder.queue("ub", element.nbytes(1), "mte2", reader)
        queue.enque(self._load(queue.alloc(), "offset", element, 0, 1))
        source = queue.deque()
        if not is_wide:
            wide = self.builder.claim("ub", FLOAT32.nbytes(1))
            to_float32(self.builder, wide.of(FLOAT32, 1), source.of(element, 1))
            self.builder.sync("vector", "scalar")
            source = wide
        self.builder.emit(ScalarLoad("offset", source.of(FLOAT32, 1)))

    def _piece(self, row: int, group: int, column: int, width: int) -> None:
        p = self.p
        if self.scale_key != (group, column):
            self._fetch_scale(group, column, width)
        slot = self._load(self.x.alloc(), "x", p.x.element, row * p.columns + column, width)
        self.x.enque(slot)
        slot, out = self.x.deque(), self.y.alloc()
        x = slot.of(p.x.element, width)
        values = x if self.work is None else self.work.of(FLOAT32, width)
        if self.work is not None:
            to_float32(self.builder, values, x)
        scales = self.scale32 or self.scale_slot
        assert scales is not None
        step(self.builder, Binary("mul", values, values, scales.of(FLOAT32, width)))
        if p.offset is not None:
            step(self.builder, BinaryScalar("add", values, values, "offset"))
        to_quantised(self.builder, self.spec, out.of(p.target, width), values)
        self.x.free(slot)
        self.y.enque(out)
        out = self.y.deque()
        nbytes = p.target.nbytes(width)
        rows = Rows("output", p.target.nbytes(row * p.columns + column), 1, nbytes, nbytes)
        self.writer.store(out, rows, align_up(nbytes, BLOCK_BYTES))
        self.y.free(out)

    def _fetch_scale(self, group: int, column: int, width: int) -> None:
        p = self.p
        if self.scale_slot is not None:
            self.scale.free(self.scale_slot)
        first = group * p.columns + column
        slot = self._load(self.scale.alloc(), "scale", p.scale.element, first, width)
        self.scale.enque(slot)
        self.scale_slot = self.scale.deque()
        if self.scale32 is not None:
            to_float32(
                self.builder,
                self.scale32.of(FLOAT32, width),
                self.scale_slot.of(p.scale.element, width),
            )
        self.scale_key = group, column

    def _load(self, slot: Slot, name: str, dtype: DType, first: int, count: int) -> Slot:
        nbytes = dtype.nbytes(count)
        rows = Rows(name, dtype.nbytes(first), 1, nbytes, nbytes)
        load(self.builder, self.spec, slot, rows, align_up(nbytes, BLOCK_BYTES))
        return slot


class _Index:
    """How a core reads group_index: first the checks, then its groups, entry by entry."""

    def __init__(self, builder: Builder, p: Problem) -> None:
        self.builder, self.p = builder, p
        self.element = p.group_index.element
        self.count = p.group_index.shape[0]
        self.fault = p.fault() or "group_index must be in order"
        nbytes = self.element.nbytes(INDEX_CHUNK)
        self.here = builder.queue("ub", nbytes, "mte2", "scalar")
        self.chunk: tuple[int, Slot] | None = None
        self.group = 0
        if self.element is INT32:
            self.low = builder.queue("ub", nbytes, "mte2", "vector")
            self.high = builder.queue("ub", nbytes, "mte2", "vector")

    def check(self) -> None:
        """Trap unless the entries ascend from 0 or more to the number of rows."""
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

    def advance(self, group: int) -> None:
        """Look for the group of the next row, from the last one's on: entry after entry."""
        entry = self.group
        while entry <= group:
            start = entry // INDEX_CHUNK * INDEX_CHUNK
            stop = min(group + 1, start + INDEX_CHUNK)
            slot = self._fetch(start, min(INDEX_CHUNK, self.count - start))
            first = slot.of(self.element, 1, self.element.nbytes(entry - start))
            # On the chip the row's number stands in a register; here it is known beforehand.
            body = (
                ScalarLoad("end", first, self.element.nbytes(1)),
                ScalarAlu("lt", "inside", 0, "end"),
            )
            self.builder.emit(ScalarLoop(stop - entry, body))
            entry = stop
        self.group = group

    def _trap_if(self, test: ScalarAlu) -> None:
        self.builder.emit(test, Trap("bad", self.fault))

    def _read(self, register: str, entry: int) -> None:
        start = entry // INDEX_CHUNK * INDEX_CHUNK
        slot = self._fetch(start, min(INDEX_CHUNK, self.count - start))
        place = self.element.nbytes(entry - start)
        self.builder.emit(ScalarLoad(register, slot.of(self.element, 1, place)))

    def _fetch(self, start: int, count: int) -> Slot:
        """Entries from *start* on, for the scalar unit."""
        if self.chunk is not None:
            if self.chunk[0] == start:
                return self.chunk[1]
            self.here.free(self.chunk[1])
        slot = self.here.alloc()
        self._load(slot, start, count)
        self.here.enque(slot)
        self.chunk = start, self.here.deque()
        return self.chunk[1]

    def _load(self, slot: Slot, start: int, count: int) -> None:
        place = Global("group_index", self.element.nbytes(start), self.element.nbytes(count))
        self.builder.load(slot.of(self.element, count), place)

    def _check_by_vector(self, start: int, count: int) -> None:
        """int32: the least difference of neighbours, as a float, must not be negative."""
        low, high = self.low.alloc(), self.high.alloc()
        self._load(low, start, count)
        self._load(high, start + 1, count)
        self.low.enque(low)
        self.high.enque(high)
        a, b = (q.deque().of(INT32, count) for q in (self.low, self.high))
        wide = a.as_dtype(FLOAT32, count)
        step(self.builder, Binary("sub", b, b, a))
        step(self.builder, Cast(wide, b, "none"))
        step(self.builder, Reduce("min", wide.at(0, 1), wide))
        self.builder.sync("vector", "scalar")
        self.builder.emit(ScalarLoad("least", wide.at(0, 1)))
        # The sign of a float is its highest bit.
        self._trap_if(ScalarAlu("shr", "bad", "least", 31))
        self.builder.sync("scalar", "vector")
        self.low.free(low)
        self.high.free(high)

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
