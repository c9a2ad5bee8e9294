"""Rows of tables gathered by index, shared by embedding and index_select (GatherV2).

Indices are loaded by the thousand, the scalar unit reads one after the other, and each row is a
separate copy: from the table in global memory, or from its copy in the unified buffer. Rows of
whole blocks are stored in one burst for as many as half of the buffer holds. Other rows are copied
as their whole blocks plus the block that ends where the row ends.

gather_v2.py of CANN 8.1.RC1, and for the tiling gather_v2.cc of the 2022 library. Assumed: this
last block is loaded separately, and the scalar unit packs rows shorter than a block next to each
other, also those of several tables.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

import numpy as np

from npusim.data.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT8,
    INT32,
    INT64,
    UINT8,
    DType,
)
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import BLOCK_BYTES, Copy, Local, ScalarLoad, ScalarLoop, ScalarStore
from npusim.kernel import Block, GmView, Program, VectorCore, bindings, pieces, share
from npusim.kernel.table import spread
from npusim.ops import _vocabulary as ops

TYPES = (FLOAT32, FLOAT16, BFLOAT16, INT8, UINT8, INT32, INT64)
TYPES_310P = tuple(dtype for dtype in TYPES if dtype is not BFLOAT16)
"""Types of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(ops.Problem):
    """A checked call: the table is `(rows, row_bytes)` bytes, the result `(count, row_bytes)`.

    There may be several tables, one after the other, from each of which the same rows are taken.
    """

    name: str = "embedding"
    """Name of the operator."""
    rows: int
    row_bytes: int
    count: int
    """Rows of the result: the indices, for each table."""
    tables: int = 1
    index_type: DType
    indices: tuple[int, ...] | None
    """None without values."""

    @property
    def index_count(self) -> int:
        """Number of indices."""
        return self.count // max(1, self.tables)

    @property
    def table_bytes(self) -> int:
        """Bytes of all rows of all tables."""
        return self.tables * self.rows * self.row_bytes

    def row_of(self, number: int) -> int:
        """The row of the tables that becomes row *number* of the result."""
        table, place = divmod(number, self.index_count)
        row = place % self.rows if self.indices is None else self.indices[place]
        return table * self.rows + row


# ---- tiling ----

Template = Literal["short", "short_table", "whole", "whole_table", "ragged", "pieces"]

RESERVED_BYTES = 2048
"""Bytes of the unified buffer that are not used (gather_v2.cc)."""
TABLE_BYTES = 100 * 1024
"""The longest table that a core holds in its buffer (the same file)."""

REASONS: dict[Template, str] = {
    "short": "rows shorter than a block of 32 bytes",
    "short_table": "rows shorter than a block, of a table that the buffer holds",
    "whole": "rows of whole blocks",
    "whole_table": "rows of whole blocks, of a table that the buffer holds",
    "ragged": "rows that are no whole blocks",
    "pieces": "rows longer than half of the buffer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Each core has its own indices."""

    template: Template
    runs_of_core: tuple[tuple[range, ...], ...]
    """The positions of the indices of each core."""
    indices_per_load: int
    rows_per_store: int
    piece_bytes: int
    """Most bytes of a row that are copied at a time, in whole blocks."""
    depth: int
    """Depth of the output buffer."""

    @property
    def keeps_table(self) -> bool:
        """Whether each core loads the whole table first."""
        return self.template in ("short_table", "whole_table")


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Half of the buffer holds indices, half rows; remaining indices go to the first cores.

    gather_v2.cc, modes 1 to 6. Modes 7 and 13, which hold the table in L1, act like 3 and 1 here
    (vector cores of A2 and A3 have no L1; assumed for the AI cores of 310P). Assumed: rows shorter
    than a block are distributed so that each core has a block of the result, and rows that are
    stored one by one alternate between two buffers if these fit.
    """
    template = _template(spec, p)
    room = spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - RESERVED_BYTES
    if template in ("short_table", "whole_table"):
        room -= TABLE_BYTES
    half_bytes = align_down(room // 2, BLOCK_BYTES)
    vector_cores = len(spec.vector_cores)
    runs: tuple[tuple[range, ...], ...]
    if p.row_bytes < BLOCK_BYTES:
        # Two cores must not store to one block.
        cores = max(1, min(vector_cores, p.count // ceil_div(BLOCK_BYTES, p.row_bytes)))
        runs = tuple((share(p.count, cores, core),) for core in range(cores))
    else:
        cores = min(vector_cores, p.count)
        runs = tuple(_runs(p.count, cores, core) for core in range(cores))
    is_one_by_one = template in ("ragged", "pieces")
    piece_bytes = min(half_bytes, align_up(p.row_bytes, BLOCK_BYTES))
    return Plan(
        block_dim=cores,
        template=template,
        reason=REASONS[template],
        runs_of_core=runs,
        indices_per_load=half_bytes // p.index_type.nbytes(1),
        rows_per_store=1 if is_one_by_one else half_bytes // p.row_bytes,
        piece_bytes=piece_bytes,
        depth=2 if template == "ragged" and 2 * piece_bytes <= half_bytes else 1,
    )


def _runs(count: int, cores: int, core: int) -> tuple[range, ...]:
    """Equally many indices for each core, and one of the remaining ones for the first cores."""
    each, left = divmod(count, cores)
    last = cores * each + core
    return range(core * each, (core + 1) * each), range(last, last + (core < left))


def _template(spec: DeviceSpec, p: Problem) -> Template:
    is_small = p.table_bytes <= TABLE_BYTES
    half = (spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - RESERVED_BYTES) // 2
    if p.row_bytes < BLOCK_BYTES:
        return "short_table" if is_small else "short"
    if p.row_bytes > align_down(half, BLOCK_BYTES):
        return "pieces"
    if p.row_bytes % BLOCK_BYTES:
        return "ragged"
    return "whole_table" if is_small else "whole"


def copies_of_row(p: Problem, plan: Plan) -> list[list[tuple[int, int]]]:
    """The parts of a row, `(start, bytes)`, grouped by those that share the buffer."""
    if plan.template not in ("ragged", "pieces"):
        return [[(0, p.row_bytes)]]
    parts = list(pieces(align_down(p.row_bytes, BLOCK_BYTES), plan.piece_bytes))
    if p.row_bytes % BLOCK_BYTES:
        parts.append((p.row_bytes - BLOCK_BYTES, BLOCK_BYTES))
    return [parts] if plan.template == "ragged" else [[part] for part in parts]


def time_key(spec: DeviceSpec, p: Problem, plan: Plan) -> Hashable:
    """What the time depends on, apart from sizes: for each copy of a row, whether it begins at a
    sector, and which lines of the L2 it touches; the lines are numbered as they are met.

    The L2 treats all lines alike (:mod:`npusim.timing.memory.l2`), so it only matters which copies
    touch the same ones. A table that the cores hold is read at its indices without the L2; such
    calls share a time only if their indices are the same.
    """
    if p.indices is None or plan.keeps_table:
        return p.indices
    rows = np.arange(p.tables)[:, None] * p.rows + np.array(p.indices, np.int64)
    # A load reads a little past a row that the chip cannot load otherwise.
    granule = spec.transfer.load_granule_bytes
    parts = [
        (start, align_up(nbytes, granule))
        for group in copies_of_row(p, plan)
        for start, nbytes in group
    ]
    offset, nbytes = np.array(parts, np.int64).T
    starts = (rows.reshape(-1, 1) * p.row_bytes + offset).ravel()
    ends = starts + np.tile(nbytes, rows.size)
    first, end = starts // spec.l2.line_bytes, -(-ends // spec.l2.line_bytes)
    _, lines = spread(end - first, first)
    _, met, line = np.unique(lines, return_index=True, return_inverse=True)
    numbered = np.argsort(np.argsort(met))[line]
    is_at_sector = starts % spec.transfer.sector_bytes == 0
    found = is_at_sector.astype(np.int64), end - first, numbered
    return sha256(np.concatenate(found).tobytes()).digest()


# ---- kernel ----

INDEX, BYTE = "index", "byte"
"""Registers."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block per core, each with its own program, since indices differ."""
    blocks: list[Block] = []
    for core, runs in enumerate(plan.runs_of_core):
        kernel = Gather(VectorCore(p.name, spec), p, plan)
        bound = bindings(kernel.table, kernel.indices, kernel.output)
        blocks.append(Block(core, spec.vector_cores[core], kernel.program(runs), bound))
    return tuple(blocks)


class Gather:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: Plan) -> None:
        self.core, self.p, self.plan = core, p, plan
        table, indices = p.inputs
        self.table = GmView.of(table.name, UINT8, p.tables * p.rows, p.row_bytes)
        self.indices = GmView.vector(indices.name, p.index_type, p.index_count)
        self.output = GmView.of("output", UINT8, p.count, p.row_bytes)
        most = max(len(run) for runs in plan.runs_of_core for run in runs)
        listed = min(plan.indices_per_load, most)
        self.listed = core.tiles(p.index_type, listed, "mte2", "scalar")
        self.held = core.tile(UINT8, p.table_bytes) if plan.keeps_table else None
        """The table."""
        self.brought = core.tiles(UINT8, BLOCK_BYTES, "mte2", "scalar")
        """A row shorter than a block, before it is moved to its place."""
        nbytes = min(plan.rows_per_store, most) * p.row_bytes
        if plan.rows_per_store == 1:
            nbytes = plan.piece_bytes
        source: Pipe = "mte2"
        if plan.template in ("short", "short_table"):
            source = "scalar"
        elif plan.template == "whole_table":
            source = "vector"
        depth = plan.depth if source == "mte2" else 1
        self.rows = core.tiles(UINT8, nbytes, source, "mte3", depth)
        core.claim_tails("scalar")

    def program(self, runs: tuple[range, ...]) -> Program:
        """Gather the rows at the positions *runs*."""
        if self.held is not None:
            table = GmView.vector(self.table.name, UINT8, self.p.table_bytes)
            self.core.fill(self.held, table)
            reader: Pipe = "vector" if self.plan.template == "whole_table" else "scalar"
            self.core.sync("mte2", reader)
        if self.p.row_bytes < BLOCK_BYTES and self.p.tables > 1:
            for run in runs:
                self._store_short_rows(run)
            return self.core.build()
        for run in (part for whole in runs for part in self._by_table(whole)):
            for first, count in pieces(len(run), self.plan.indices_per_load):
                numbers = run[first : first + count]
                place = numbers.start % self.p.index_count
                indices = self.indices[:, place : place + count]
                listed = self.core.load(self.listed, indices)
                for start, some in pieces(count, self.plan.rows_per_store):
                    self._store_rows(listed, start, numbers[start : start + some])
                self.listed.free(listed)
        return self.core.build()

    def _by_table(self, run: range) -> Iterator[range]:
        """The parts of *run* that belong to one table each."""
        start, each = run.start, self.p.index_count
        while start < run.stop:
            stop = min(run.stop, (start // each + 1) * each)
            yield range(start, stop)
            start = stop

    def _store_short_rows(self, run: range) -> None:
        """Rows *run* of the result, shorter than a block: those of several tables together, since a
        store has at least one block."""
        for first, count in pieces(len(run), self.plan.rows_per_store):
            numbers, place = run[first : first + count], 0
            tile = self.rows.alloc()
            for part in self._by_table(numbers):
                for start, some in pieces(len(part), self.plan.indices_per_load):
                    at = part.start % self.p.index_count + start
                    listed = self.core.load(self.listed, self.indices[:, at : at + some])
                    for index, number in enumerate(part[start : start + some]):
                        self._read_index(listed, index)
                        self._take_row(tile, place, self.p.row_of(number))
                        place += 1
                    self.listed.free(listed)
            self.core.store(self.rows, tile, self._burst(numbers))

    def _burst(self, numbers: range) -> GmView:
        """Rows *numbers* of the result, which are contiguous."""
        together = self.output[numbers.start : numbers.stop, :]
        return GmView("output", UINT8, 1, together.nbytes, 0, together.offset_bytes)

    def _store_rows(self, listed: Local, start: int, numbers: range) -> None:
        """Store rows *numbers* of the result, with indices in *listed* from position *start* on."""
        if self.plan.template in ("ragged", "pieces"):
            self._read_index(listed, start)
            self._copy_row(numbers.start)
            return
        tile = self.rows.alloc()
        for place, number in enumerate(numbers):
            self._read_index(listed, start + place)
            self._take_row(tile, place, self.p.row_of(number))
        burst = self._burst(numbers)
        if self.plan.template in ("short", "short_table"):
            self.core.store(self.rows, tile, burst)
            return
        self.rows.enque(tile)
        tile = self.rows.deque()
        self.core.data_copy(burst.operand, tile[: burst.columns])
        self.rows.free(tile)

    def _read_index(self, listed: Local, place: int) -> None:
        self.core.get_value(INDEX, listed[place : place + 1])

    def _take_row(self, tile: Local, place: int, row: int) -> None:
        """Copy *row* of the table to row *place* of *tile*."""
        core, nbytes, template = self.core, self.p.row_bytes, self.plan.template
        dst = tile[place * nbytes : (place + 1) * nbytes]
        if self.held is None:
            view = self.table.row(row)
            if template == "whole":
                core.data_copy(dst, view.operand)
                return
            brought = core.load(self.brought, view)
            self._copy_bytes(dst, brought)
            self.brought.free(brought)
            return
        src = self.held[row * nbytes : (row + 1) * nbytes]
        if template == "whole_table":
            core.emit(Copy(dst.as_dtype(INT32), src.as_dtype(INT32)))
        else:
            self._copy_bytes(dst, src)

    def _copy_bytes(self, dst: Local, src: Local) -> None:
        """Copy a row shorter than a block by the scalar unit."""
        copy = ScalarLoad(BYTE, src[:1], 1), ScalarStore(dst[:1], BYTE, 1)
        self.core.emit(ScalarLoop(self.p.row_bytes, copy))

    def _copy_row(self, number: int) -> None:
        """Copy row *number* of the result separately."""
        src, dst = self.table.row(self.p.row_of(number)), self.output.row(number)
        for parts in copies_of_row(self.p, self.plan):
            tile, places, at = self.rows.alloc(), [], 0
            for start, width in parts:
                here, across = tile[at : at + width], slice(start, start + width)
                self.core.data_copy(here, src[:, across].operand)
                places.append((here, dst[:, across]))
                at += width
            self.rows.enque(tile)
            tile = self.rows.deque()
            for here, view in places:
                self.core.data_copy(view.operand, here)
            self.rows.free(tile)
