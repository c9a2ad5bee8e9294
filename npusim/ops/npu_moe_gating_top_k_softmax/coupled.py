"""The kernel of 310P for npu_moe_gating_top_k_softmax: groups of rows of float16 on one AI core.

Every AI core of the card processes all groups, since the kernel does not ask which core it is on
(ops-transformer@3a280bc moe/moe_gating_top_k_softmax, op_kernel/moe_gating_top_k_softmax_310p.h):
all write the same bytes, so only one core does it here. A group is loaded into the buffer whole:
SoftMax in float32 for all its rows, TopK row by row, with proposals. The results go through global
memory to pack rows of k, which start at whole blocks in the buffer, without gaps.

From the vendor's library: asc-devkit@82b89a1 impl/adv_api/detail,
activation/softmax/membase/v200 and sort/topk/topk_v200_impl.h. Assumed: that the maxima and sums of
rows below 64 columns are contiguous before the scalar unit repeats them; that row_idx is computed
for its whole stored length; that there is a barrier between the two fields of proposals; that no
store ends more than a block after a tensor; and that cores do not disturb each other in the global
memory that they all use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, DType
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, FLOATS_PER_BLOCK, FLOATS_PER_REPEAT, SCORE, Global, Local
from npusim.kernel import Block, GmView, Step, VectorCore, bindings, pieces
from npusim.kernel.sequences import count_up
from npusim.kernel.steps import tiles
from npusim.ops.npu_moe_gating_top_k_softmax.check import (
    COLUMN_UNIT,
    LEFT_ALONE_BYTES,
    PROPOSAL_ROOM,
    ROWS_OF_A_BLOCK,
    WORK,
    CoupledPlan,
    Problem,
    split_of,
)

# ---- kernel ----

Reduction = Literal["max", "sum"]
NARROW = 192
"""From this many columns on the subtraction goes row by row (softmax_common_utils.h)."""
PROPOSAL, RUN, LISTS = 8, 16, 4
"""Elements of a proposal, elements that RpSort16 sorts, and lists that MrgSort4 merges."""


def build(spec: DeviceSpec, p: Problem, plan: CoupledPlan) -> tuple[Block, ...]:
    """Process group after group on the first AI core."""
    core = VectorCore("gating_top_k_softmax", spec)
    gate = CoupledGate(core, p, plan)
    outputs = (("output", FLOAT16), ("expert_idx", INT32), ("row_idx", INT32))
    views = [GmView.of("x", FLOAT16, p.rows, p.experts)]
    views += [GmView.of(name, dtype, p.rows, p.k) for name, dtype in outputs]
    columns = tuple(tiles(view, plan.rows_of_group, view.columns) for view in views)
    groups = ceil_div(p.rows, plan.rows_of_group)
    first = np.arange(groups) * plan.rows_of_group
    step = Step(gate.group, (first, *columns), np.zeros(groups, np.int64))
    workspace = GmView.vector("kept", FLOAT16, plan.workspaces["kept"] // FLOAT16.nbytes(1))
    return core.launch(step, bound=lambda _: bindings(*views, workspace))


class CoupledGate:
    """The buffers of a core, and its stages."""

    def __init__(self, core: VectorCore, p: Problem, plan: CoupledPlan) -> None:
        self.core, self.p, self.chosen = core, p, plan.chosen
        group, rows = plan.rows_of_group, min(p.rows, plan.rows_of_group)
        self.x = core.tile(FLOAT16, group * p.experts)
        self.weights = core.tile(FLOAT16, group * plan.chosen)
        self.experts = core.tile(INT32, group * plan.chosen)
        self.scores = core.tile(FLOAT16, group * p.experts)
        self.totals = core.tile(FLOAT16, group * COLUMN_UNIT)
        self.largest = core.tile(FLOAT16, group * COLUMN_UNIT)
        softmax = rows * (p.experts + COLUMN_UNIT + WORK)
        top = 2 * p.experts + FLOAT16.nbytes(PROPOSAL_ROOM * p.experts) // FLOAT32.nbytes(1)
        self.work = core.tile(FLOAT32, max(softmax, top, rows * plan.chosen))
        self.places = self.work.as_dtype(INT32)[: rows * plan.chosen]
        """row_idx reuses the space of SoftMax and TopK when both are done."""

    def group(self, first: int, x: GmView, y: GmView, experts: GmView, row_idx: GmView) -> None:
        """Find the best *k* of each row of *x* `(rows, experts)`, whose first row is *first*."""
        core, rows = self.core, x.rows
        core.fetch(self.x[: rows * self.p.experts], x.flat)
        self._softmax(rows)
        self._top(rows)
        for row in range(rows):
            places = self.places.at(row * self.chosen, self.chosen)
            count_up(core, places, (first + row) * self.p.k)
        core.sync("vector", "mte3")
        chosen = (self.weights, y), (self.experts, experts), (self.places, row_idx)
        self._close_up(rows, first, chosen)

    def _close_up(self, rows: int, first: int, chosen: tuple[tuple[Local, GmView], ...]) -> None:
        """Pack rows of k: store them overlapping, load them again, and store the result."""
        core, k = self.core, self.p.k
        starts, start = [], LEFT_ALONE_BYTES
        for tile, _ in chosen:
            starts.append(start + tile.dtype.nbytes(first * self.chosen))
            start += tile.dtype.nbytes(self.p.rows * self.chosen)
        for row in range(rows):
            for (tile, _), where in zip(chosen, starts, strict=True):
                to = where + tile.dtype.nbytes(row * k)
                nbytes = tile.dtype.nbytes(self.chosen)
                core.data_copy(Global("kept", to, nbytes), tile.at(row * self.chosen, self.chosen))
            core.barrier()
        for (tile, view), where in zip(chosen, starts, strict=True):
            again = tile[: whole(view, tile.dtype)]
            core.data_copy(again, Global("kept", where, again.nbytes))
        core.sync("mte2", "vector")
        core.barrier()
        for tile, view in chosen:
            again = tile[: whole(view, tile.dtype)]
            core.data_copy(Global(view.name, view.offset_bytes, again.nbytes), again)
        core.barrier()

    # ---- SoftMax ----

    def _softmax(self, rows: int) -> None:
        """Compute `e * (1 / sum(e))` with `e = exp(x - max(x))` in float32, for each row."""
        for start, count in pieces(rows, split_of(rows, self.p.experts)):
            self._softmax_of(start, count)

    def _softmax_of(self, first: int, rows: int) -> None:
        core, columns = self.core, self.p.experts
        count, reduced = rows * columns, rows * COLUMN_UNIT
        values, total = self.work[:count], self.work.at(count, reduced)
        room = self.work.at(count + reduced, rows * WORK)
        core.cast(values, self.x.at(first * columns, count))
        self._reduce("max", total, values, room, rows)
        core.cast(self.largest.at(first * COLUMN_UNIT, reduced), total)
        self._with_rows("sub", values, total, rows)
        core.exp(values, values)
        self._reduce("sum", total, values, room, rows)
        core.cast(self.totals.at(first * COLUMN_UNIT, reduced), total)
        # Divisions are replaced by multiplication with the inverse.
        core.duplicate(room[:reduced], 1.0)
        core.div(room[:reduced], room[:reduced], total)
        self._with_rows("mul", values, room, rows)
        core.cast(self.scores.at(first * columns, count), values)

    def _with_rows(self, op: Literal["sub", "mul"], values: Local, each: Local, rows: int) -> None:
        """`values = values op each`, `(rows, columns)` by the two equal blocks of each row."""
        core, columns = self.core, self.p.experts
        with core.independent():
            if columns < NARROW:
                for block in range(columns // FLOATS_PER_BLOCK):
                    self._with_blocks(op, values, each, rows, block)
                return
            whole_ones = columns - columns % FLOATS_PER_REPEAT
            for row in range(rows):
                first = each.at(row * COLUMN_UNIT, FLOATS_PER_BLOCK)
                for start, count in ((0, whole_ones), (whole_ones, columns - whole_ones)):
                    if count:
                        here = values.at(row * columns + start, count)
                        core.apply(op, here, here, first.again(count))

    def _with_blocks(
        self, op: Literal["sub", "mul"], values: Local, each: Local, rows: int, block: int
    ) -> None:
        """The same for block index *block* of each row, in whole repeats and a remainder."""
        blocks, whole_ones = self.p.experts // FLOATS_PER_BLOCK, rows - rows % ROWS_OF_A_BLOCK
        for first, count in ((0, whole_ones), (whole_ones, rows - whole_ones)):
            if count:
                here = blocks_of_rows(values, first, count, block, blocks)
                self.core.apply(op, here, here, blocks_of_rows(each, first, count, 0, 2))

    def _reduce(self, op: Reduction, result: Local, values: Local, room: Local, rows: int) -> None:
        """Reduce each row of *values* by maximum or sum to two blocks of *result*."""
        core, columns = self.core, self.p.experts
        if columns < FLOATS_PER_REPEAT:
            repeats = columns // FLOATS_PER_BLOCK
            short = replace(values, repeat_blocks=repeats, repeat_stride=repeats)
            core.whole_reduce(op, room[:rows], short)
            self._repeat(result, room, rows)
            return
        self._fold(op, values, room, rows)
        if rows == 1:
            core.whole_reduce(op, room[:1], room[:FLOATS_PER_REPEAT])
            self._repeat(result, room, rows)
            return
        # (rows, 64) -> (rows, 8) -> (rows,)
        partial = room[: rows * FLOATS_PER_BLOCK]
        core.block_reduce(op, partial, room[: rows * FLOATS_PER_REPEAT])
        core.block_reduce(op, result[:rows], partial)
        self._spread(result, room, rows)

    def _fold(self, op: Reduction, values: Local, room: Local, rows: int) -> None:
        """Combine columns n, n + 64, ... of each row of *values* into *room* `(rows, 64)`."""
        core, columns = self.core, self.p.experts
        whole_ones, rest = divmod(columns, FLOATS_PER_REPEAT)
        folded, parts = room[: rows * FLOATS_PER_REPEAT], list(self._parts(values, rows))
        together: Literal["add", "max"] = "add" if op == "sum" else "max"
        if whole_ones == 1:
            core.add(folded, parts[0], 0.0)
        else:
            core.apply(together, folded, parts[0], parts[1])
            if rows > whole_ones:
                for part in parts[2:whole_ones]:
                    core.apply(together, folded, folded, part)
            elif whole_ones > 2:
                with core.independent():
                    for row in range(rows):
                        start = row * columns + 2 * FLOATS_PER_REPEAT
                        more = values.at(start, (whole_ones - 2) * FLOATS_PER_REPEAT)
                        into = folded.at(row * FLOATS_PER_REPEAT, FLOATS_PER_REPEAT)
                        core.fold(together, into, more)
        if rest:
            first = replace(
                folded, count=rows * rest, repeat_stride=8, repeat_blocks=rest // FLOATS_PER_BLOCK
            )
            core.apply(together, first, first, parts[-1])

    def _parts(self, values: Local, rows: int) -> Iterator[Local]:
        """The repeats of all rows, the last one with the remaining columns."""
        for start, count in pieces(self.p.experts, FLOATS_PER_REPEAT):
            yield replace(
                values,
                offset_bytes=values.offset_bytes + FLOAT32.nbytes(start),
                count=rows * count,
                repeat_stride=self.p.experts // FLOATS_PER_BLOCK,
                repeat_blocks=count // FLOATS_PER_BLOCK,
            )

    def _repeat(self, result: Local, each: Local, rows: int) -> None:
        """Broadcast each of the first *rows* elements to two blocks, by the scalar unit."""
        core = self.core
        core.sync("vector", "scalar")
        for first, count in pieces(rows, ROWS_OF_A_BLOCK):
            for row in range(count):
                core.get_value(f"row{row}", each.at(first + row, 1))
            core.sync("scalar", "vector")
            with core.independent():
                for row in range(count):
                    blocks = result.at((first + row) * COLUMN_UNIT, COLUMN_UNIT)
                    core.duplicate(blocks, f"row{row}")

    def _spread(self, result: Local, room: Local, rows: int) -> None:
        """The same, by copying a block of rows repeatedly into matrices and transposing them."""
        core, square = self.core, ROWS_OF_A_BLOCK * COLUMN_UNIT
        groups = ceil_div(rows, ROWS_OF_A_BLOCK)
        with core.independent():
            for group in range(groups):
                block = result.at(group * ROWS_OF_A_BLOCK, ROWS_OF_A_BLOCK)
                core.mul(room.at(group * square, square), block.again(square), 1.0)
        core.transpose(room[: groups * square], room[: groups * square])
        core.add(result, room[: result.count], 0.0)

    # ---- TopK ----

    def _top(self, rows: int) -> None:
        """Find the best of each row, as proposals with their column indices."""
        core, columns = self.core, self.p.experts
        counted = self.work.as_dtype(INT32)[:columns]
        count_up(core, counted)
        halves = self.work[columns:].as_dtype(FLOAT16)
        size = PROPOSAL_ROOM * columns // 2
        lists = halves[:size], halves.at(size, size)
        index = halves[2 * size :].as_dtype(FLOAT32)[:columns]
        core.cast(index, counted, "none")
        numbers = index.as_dtype(FLOAT16)[:columns]
        core.cast(numbers, index)
        for row in range(rows):
            values = self.scores.at(row * columns, columns)
            here, other = self._sorted(values, numbers, *lists)
            taken = other[:columns]
            core.proposal_extract(SCORE, taken, here)
            chosen = slice(row * self.chosen, (row + 1) * self.chosen)
            core.add(self.weights[chosen], taken[: self.chosen], 0.0)
            core.proposal_extract(0, taken, here)
            wide = other[columns:].as_dtype(FLOAT32)[:columns]
            core.cast(wide, taken)
            core.cast(wide.as_dtype(INT32), wide, "round")
            core.add(self.experts[chosen], wide.as_dtype(INT32)[: self.chosen], 0)

    def _sorted(
        self, values: Local, numbers: Local, here: Local, other: Local
    ) -> tuple[Local, Local]:
        """Merge *values* with their *numbers* into one list; returns its buffer and the other."""
        core, columns = self.core, values.count
        core.proposal_concat(SCORE, here, values)
        core.proposal_concat(0, here, numbers)
        core.rp_sort16(other, here)
        core.copy(here, other)
        count = RUN
        while count * LISTS <= columns:
            merged = columns // (count * LISTS) * count * LISTS * PROPOSAL
            core.mrg_sort4(other[:merged], here[:merged], (count,) * LISTS)
            core.copy(here, other)
            here, other, count = other, here, count * LISTS
        done, *others = lengths(columns, count)
        for more in others:
            both = (done + more) * PROPOSAL
            core.mrg_sort4(other[:both], here[:both], (done, more))
            here, other, done = other, here, done + more
        return here, other


def blocks_of_rows(plane: Local, first: int, rows: int, block: int, blocks: int) -> Local:
    """Block index *block* of *rows* rows of *blocks* blocks each, from row *first* on."""
    return replace(
        plane,
        offset_bytes=plane.offset_bytes + (first * blocks + block) * BLOCK_BYTES,
        count=rows * FLOATS_PER_BLOCK,
        block_stride=blocks,
        repeat_stride=blocks * ROWS_OF_A_BLOCK,
    )


def lengths(columns: int, longest: int) -> list[int]:
    """Lengths of the lists of a row after merges of four, the longest first."""
    found, count = list[int](), longest
    while count >= RUN:
        found += [count] * (columns // count)
        columns, count = columns % count, count // LISTS
    return found


def whole(view: GmView, dtype: DType) -> int:
    """Elements of *view*, padded to whole blocks."""
    return align_up(view.rows * view.columns, BLOCK_BYTES // dtype.nbytes(1))
