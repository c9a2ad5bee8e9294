"""The program that each core runs for embedding.

Indices are loaded by the thousand, the scalar unit reads one after the other, and each row is a
copy of its own: from the table in global memory, or from the copy of it in the unified buffer.
Rows of whole blocks are stored in one burst for as many as half of the buffer holds. A row that is
no whole blocks is its whole blocks and, once more, the block that ends where it ends.

gather_v2.py of CANN 8.1.RC1. Assumed: that this last block is loaded by itself, and that the scalar
unit puts rows shorter than a block next to each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.data.dtypes import INT32, UINT8
from npusim.data.integers import align_down
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import BLOCK_BYTES, Copy, ScalarLoad, ScalarLoop, ScalarStore
from npusim.kernel.builder import Builder
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, fill, load, pieces
from npusim.kernel.views import GmView, bindings
from npusim.ops.embedding.contract import Problem
from npusim.ops.embedding.tiling import Plan

__all__ = ["build"]

INDEX, BYTE = "index", "byte"
"""Registers."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core, each with a program of its own: indices differ."""
    blocks: list[Block] = []
    for core, runs in enumerate(plan.runs_of_core):
        kernel = Embedding(spec, p, plan)
        bound = bindings(kernel.table, kernel.indices, kernel.output)
        blocks.append(Block(core, spec.vector_cores[core], kernel.program(runs), bound))
    return tuple(blocks)


class Embedding:
    """The kernel of one core, while it is written."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.plan = spec, p, plan
        table, indices = p.inputs
        self.table = GmView.of(table.name, UINT8, p.tables * p.rows, p.row_bytes)
        self.indices = GmView.vector(indices.name, p.index_type, p.index_count)
        self.output = GmView.of("output", UINT8, p.count, p.row_bytes)
        self.builder = builder = Builder(p.name, spec.cores[spec.vector_kinds[0]], spec.sync)
        most = max(len(run) for runs in plan.runs_of_core for run in runs)
        nbytes = p.index_type.nbytes(min(plan.indices_per_load, most))
        self.listed = builder.queue("ub", nbytes, "mte2", "scalar")
        self.held: Slot | None = None
        """The table."""
        if plan.keeps_table:
            self.held = builder.claim("ub", p.table_bytes)
        self.brought = builder.queue("ub", BLOCK_BYTES, "mte2", "scalar")
        """A row shorter than a block, on its way to its place."""
        nbytes = min(plan.rows_per_store, most) * p.row_bytes
        if plan.rows_per_store == 1:
            nbytes = plan.piece_bytes
        if plan.template in ("short", "short_table"):
            self.rows = builder.queue("ub", nbytes, "scalar", "mte3")
        elif plan.template == "whole_table":
            self.rows = builder.queue("ub", nbytes, "vector", "mte3")
        else:
            self.rows = builder.queue("ub", nbytes, "mte2", "mte3", plan.depth)
        self.writer = Writer(builder, spec, "scalar")

    def program(self, runs: tuple[range, ...]) -> Program:
        """The rows whose numbers *runs* have."""
        if self.held is not None:
            table = GmView.vector(self.table.name, UINT8, self.p.table_bytes)
            fill(self.builder, self.spec, self.held, table)
            reader: Pipe = "vector" if self.plan.template == "whole_table" else "scalar"
            self.builder.sync("mte2", reader)
        for run in (part for whole in runs for part in self._by_table(whole)):
            for first, count in pieces(len(run), self.plan.indices_per_load):
                numbers = run[first : first + count]
                place = numbers.start % self.p.index_count
                indices = self.indices[:, place : place + count]
                listed = load(self.builder, self.spec, self.listed, indices)
                for start, some in pieces(count, self.plan.rows_per_store):
                    self._store_rows(listed, start, numbers[start : start + some])
                self.listed.free(listed)
        return self.builder.build()

    def _by_table(self, run: range) -> Iterator[range]:
        """The parts of *run* that are of one table each."""
        start, each = run.start, self.p.index_count
        while start < run.stop:
            stop = min(run.stop, (start // each + 1) * each)
            yield range(start, stop)
            start = stop

    def _store_rows(self, listed: Slot, start: int, numbers: range) -> None:
        """Rows *numbers* of the result, whose indices are in *listed* from number *start* on."""
        if self.plan.template in ("ragged", "pieces"):
            self._read_index(listed, start)
            self._copy_row(numbers.start)
            return
        slot = self.rows.alloc()
        for place, number in enumerate(numbers):
            self._read_index(listed, start + place)
            self._take_row(slot, place, self.p.row_of(number))
        together = self.output[_slice(numbers), :]
        burst = GmView("output", UINT8, 1, together.nbytes, 0, together.offset_bytes)
        if self.plan.template in ("short", "short_table"):
            self.writer.store(self.rows, slot, burst)
            return
        self.rows.enque(slot)
        slot = self.rows.deque()
        self.builder.data_copy(burst.operand, slot.of(UINT8, burst.columns))
        self.rows.free(slot)

    def _read_index(self, listed: Slot, place: int) -> None:
        dtype = self.p.index_type
        self.builder.emit(ScalarLoad(INDEX, listed.of(dtype, 1, dtype.nbytes(place))))

    def _take_row(self, slot: Slot, place: int, row: int) -> None:
        """*row* of the table becomes row number *place* of *slot*."""
        builder, nbytes = self.builder, self.p.row_bytes
        template, view = self.plan.template, self.table.row(row)
        if template == "whole":
            builder.data_copy(slot.of(UINT8, nbytes, place * nbytes), view.operand)
        elif template == "whole_table":
            assert self.held is not None
            words = nbytes // INT32.nbytes(1)
            dst = slot.of(INT32, words, place * nbytes)
            builder.emit(Copy(dst, self.held.of(INT32, words, row * nbytes)))
        elif template == "short_table":
            assert self.held is not None
            self._copy_bytes(slot, place * nbytes, self.held, row * nbytes)
        else:
            brought = load(builder, self.spec, self.brought, view)
            self._copy_bytes(slot, place * nbytes, brought, 0)
            self.brought.free(brought)

    def _copy_bytes(self, dst: Slot, to_bytes: int, src: Slot, from_bytes: int) -> None:
        """A row shorter than a block, by the scalar unit."""
        copy = (
            ScalarLoad(BYTE, src.of(UINT8, 1, from_bytes), 1),
            ScalarStore(dst.of(UINT8, 1, to_bytes), BYTE, 1),
        )
        self.builder.emit(ScalarLoop(self.p.row_bytes, copy))

    def _copy_row(self, number: int) -> None:
        """Row *number* of the result, by itself."""
        row = self.p.row_of(number)
        src, dst = self.table.row(row), self.output.row(number)
        for parts in self._copies():
            slot = self.rows.alloc()
            places = []
            at_bytes = 0
            for start, width in parts:
                local = slot.of(UINT8, width, at_bytes)
                self.builder.data_copy(local, src[:, start : start + width].operand)
                places.append((local, dst[:, start : start + width]))
                at_bytes += width
            self.rows.enque(slot)
            slot = self.rows.deque()
            for local, view in places:
                self.builder.data_copy(view.operand, local)
            self.rows.free(slot)

    def _copies(self) -> list[list[tuple[int, int]]]:
        """The parts of a row, `(start, bytes)`, those together that pass the buffer together."""
        row_bytes, most = self.p.row_bytes, self.plan.piece_bytes
        parts = list(pieces(align_down(row_bytes, BLOCK_BYTES), most))
        if row_bytes % BLOCK_BYTES:
            parts.append((row_bytes - BLOCK_BYTES, BLOCK_BYTES))
        return [parts] if self.plan.template == "ragged" else [[part] for part in parts]


def _slice(numbers: range) -> slice:
    return slice(numbers.start, numbers.stop)
