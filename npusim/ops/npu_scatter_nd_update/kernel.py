"""The program that each core runs for npu_scatter_nd_update.

First the index tuples become numbers of rows, a tile of tuples on one core and the next on the next
one, and go to a workspace with their positions, sorted where float32 holds them. When all cores are
there, each looks in every tile for the rows of its range, in ascending order, and replaces them:
the scalar unit reads the position, and the update passes the unified buffer, several together.

ops-nn@e5c3fa9 index/scatter_nd_update/op_kernel/arch22. Assumed: that as many updates pass together
as the buffer has room for, and that long ones pass in pieces. The sort itself takes no time, see
:mod:`npusim.ops.npu_scatter_nd_update`.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import INT32, UINT8, Array
from npusim.data.integers import align_down, align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, ScalarLoad, ScalarLoop
from npusim.kernel.builder import Builder
from npusim.kernel.cross_core import sync_all
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, bindings, load
from npusim.ops.npu_scatter_nd_update.contract import Problem
from npusim.ops.npu_scatter_nd_update.tiling import Plan
from npusim.ops.npu_scatter_nd_update.tuples import Tuples

__all__ = ["build"]

READY = 0
"""The flag of all cores: every tile is in the workspace."""
ROW, POSITION = "row", "position"
"""Registers."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core, each with a program of its own: indices differ."""
    places = np.array([p.place_of(update) for update in range(p.count)], np.int64)
    blocks: list[Block] = []
    for core in range(plan.block_dim):
        kernel = ScatterNdUpdate(spec, p, plan, places)
        blocks.append(Block(core, spec.vector_cores[core], kernel.program(core), kernel.bindings))
    return tuple(blocks)


class ScatterNdUpdate:
    """The kernel of one core, while it is written."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan, places: Array) -> None:
        self.p, self.plan, self.places = p, plan, places
        self.core = spec.cores[spec.vector_kinds[0]]
        self.builder = Builder("npu_scatter_nd_update", self.core, spec.sync)
        x, indices, updates = p.inputs
        self.x = GmView.of(x.name, UINT8, p.rows, p.row_bytes)
        self.updates = GmView.of(updates.name, UINT8, p.count, p.row_bytes)
        self.indices = GmView.vector(indices.name, p.index_type, p.count * len(p.strides))
        self.rows = GmView.vector("rows", INT32, p.count)
        self.positions = GmView.vector("positions", INT32, p.count)
        self.bindings = bindings(self.x, self.updates, self.indices, self.rows, self.positions)

    def program(self, core: int) -> Program:
        """The tiles of *core*, then the rows of its range."""
        builder, plan = self.builder, self.plan
        tiles = list(pieces(self.p.count, plan.tile_tuples))
        own = tiles[core :: plan.block_dim]
        if own:
            tuples = Tuples(builder, self.p, own[0][1], is_sorted=plan.template == "sorted")
            for first, count in own:
                tuples.write(self.indices, self.rows, self.positions, first, count)
        builder.end_stage()
        builder.reset_buffers()
        sync_all(builder, "mte3", "mte2", READY)
        list_bytes = align_up(INT32.nbytes(tiles[0][1]), BLOCK_BYTES)
        self.listed = builder.queue("ub", 2 * list_bytes, "mte2", "scalar")
        pitch_bytes = align_up(self.p.row_bytes, BLOCK_BYTES)
        room_bytes = align_down(builder.room_bytes("ub"), BLOCK_BYTES)
        self.together = max(1, min(room_bytes // pitch_bytes, len(plan.rows_of_core[core])))
        self.piece_bytes = min(pitch_bytes, room_bytes)
        self.passing = builder.queue("ub", self.together * self.piece_bytes, "mte2", "mte3")
        for first, count in tiles:
            self._replace(first, count, list_bytes, plan.rows_of_core[core])
        return builder.build()

    def _replace(self, first: int, count: int, list_bytes: int, own: range) -> None:
        """Rows *own*, as far as the tile of *count* tuples from number *first* on names them."""
        builder, here = self.builder, slice(first, first + count)
        slot = load(builder, self.listed, self.rows[:, here], self.positions[:, here])
        places = self.places[here]
        if self.plan.template == "sorted":
            order = np.argsort(places, kind="stable")
            # Both ends of its range by halving, a number a step.
            looks = 2 * count.bit_length()
        else:
            order, looks = np.arange(count), count
        builder.emit(ScalarLoop(looks, (ScalarLoad(ROW, slot.of(INT32, 1)),)))
        chosen = (places[order] >= own.start) & (places[order] < own.stop)
        found = order[chosen].tolist()
        for start, some in pieces(len(found), self.together):
            self._copy(slot, list_bytes, first, found[start : start + some])
        self.listed.free(slot)

    def _copy(self, listed: Slot, list_bytes: int, first: int, found: list[int]) -> None:
        """The updates *found*, counted from number *first* on, to their rows."""
        builder, row_bytes = self.builder, self.p.row_bytes
        for start, width in pieces(row_bytes, self.piece_bytes):
            slot = self.passing.alloc()
            buffers = [slot.of(UINT8, width, i * self.piece_bytes) for i in range(len(found))]
            columns = slice(start, start + width)
            for place, (number, local) in enumerate(zip(found, buffers, strict=True)):
                # The list is sorted: where they are in it does not change its time.
                at_bytes = INT32.nbytes(place)
                builder.emit(
                    ScalarLoad(ROW, listed.of(INT32, 1, at_bytes)),
                    ScalarLoad(POSITION, listed.of(INT32, 1, list_bytes + at_bytes)),
                )
                update = self.updates.row(first + number)[:, columns]
                builder.data_copy(local, update.operand)
                builder.sync("mte2", "scalar")
            self.passing.enque(slot)
            slot = self.passing.deque()
            for number, local in zip(found, buffers, strict=True):
                row = self.x.row(int(self.places[first + number]))[:, columns]
                builder.data_copy(row.operand, local)
            self.passing.free(slot)
