"""The program that each core runs for npu_format_cast.

In the buffer a piece lies once as rows of blocks and once column by column; one Copy turns a column
of blocks, eight rows a repeat:

.. code-block:: text

    rows      block (r, c) at r * pitch + c        block stride pitch, repeat stride 8 * pitch
    columns   block (r, c) at c * height + r       one after the other
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from npusim.data.dtypes import FLOAT16, INT32, INT64, UINT8, DType
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Copy, Duplicate, Local, ScalarAlu, ScalarLoop, ScalarStore
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Rows, Writer, load
from npusim.ops.npu_format_cast.contract import Problem
from npusim.ops.npu_format_cast.tiling import DEPTH, Piece, Plan, pieces_of_cores, pitch_blocks

__all__ = ["build"]

BLOCK_LANES = 16
"""Blocks are copied as bits, 16 at a time, whatever they hold."""
UNITS: dict[int, DType] = {1: UINT8, 2: FLOAT16, 4: INT32, 8: INT64}
"""Bytes -> what the scalar pipe stores so many with."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores whose pieces are alike share their program."""
    programs: dict[tuple[Piece, ...], Program] = {}
    blocks: list[Block] = []
    nd, nz = ("x", "output") if p.to_fractals else ("output", "x")
    for core, whole in enumerate(pieces_of_cores(p, plan)):
        first = whole[0]
        key = tuple(
            replace(
                piece,
                nd_bytes=piece.nd_bytes - first.nd_bytes,
                nz_bytes=piece.nz_bytes - first.nz_bytes,
            )
            for piece in whole
        )
        if key not in programs:
            programs[key] = _Writing(spec, p, plan).program(key)
        bindings = {nd: Binding(nd, first.nd_bytes), nz: Binding(nz, first.nz_bytes)}
        blocks.append(Block(core, spec.vector_cores[core], programs[key], bindings))
    return tuple(blocks)


class _Writing:
    """The kernel of one core, while it is written."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p = spec, p
        self.builder = Builder("npu_format_cast", spec.cores[spec.vector_kinds[0]], spec.sync)
        nd_bytes = plan.row_step * pitch_blocks(plan.block_step) * BLOCK_BYTES
        nz_bytes = plan.row_step * plan.block_step * BLOCK_BYTES
        x, y = (nd_bytes, nz_bytes) if p.to_fractals else (nz_bytes, nd_bytes)
        self.x = self.builder.queue("ub", x, "mte2", "vector", DEPTH)
        self.y = self.builder.queue("ub", y, "vector", "mte3", DEPTH)
        self.writer = Writer(self.builder, spec)

    def program(self, pieces: tuple[Piece, ...]) -> Program:
        nd, nz = ("x", "output") if self.p.to_fractals else ("output", "x")
        turn = self._to_fractals if self.p.to_fractals else self._from_fractals
        for piece in pieces:
            self.builder.call(
                (piece.rows, piece.blocks, piece.width_bytes),
                {nd: piece.nd_bytes, nz: piece.nz_bytes},
                lambda piece=piece: turn(piece),  # type: ignore[misc]
            )
        return self.builder.build()

    def _to_fractals(self, piece: Piece) -> None:
        height, pitch = _height(piece), pitch_blocks(piece.blocks)
        slot = self.x.alloc()
        rows = Rows("x", 0, piece.rows, piece.width_bytes, self.p.row_bytes)
        load(self.builder, self.spec, slot, rows, pitch * BLOCK_BYTES)
        self.x.enque(slot)
        slot, out = self.x.deque(), self.y.alloc()
        self._clear_edges(slot, piece)
        for column in range(piece.blocks):
            self.builder.emit(
                Copy(_column(out, column, height), _column_of_rows(slot, column, height, pitch))
            )
        self.x.free(slot)
        self._store(out, self._fractals("output", piece), height * BLOCK_BYTES)

    def _from_fractals(self, piece: Piece) -> None:
        height, pitch = _height(piece), pitch_blocks(piece.blocks)
        slot = self.x.alloc()
        columns = self._fractals("x", piece)
        load(self.builder, self.spec, slot, columns, height * BLOCK_BYTES)
        self.x.enque(slot)
        slot, out = self.x.deque(), self.y.alloc()
        for column in range(piece.blocks):
            # Columns interleave; a barrier keeps apart what is told apart by ranges only.
            turned = _column_of_rows(out, column, height, pitch)
            step(self.builder, Copy(turned, _column(slot, column, height)))
        self.x.free(slot)
        rows = Rows("output", 0, piece.rows, piece.width_bytes, self.p.row_bytes)
        self._store(out, rows, pitch * BLOCK_BYTES)

    def _fractals(self, name: str, piece: Piece) -> Rows:
        """The columns of fractals of *piece*, each in one run."""
        stride = self.p.down * FRACTAL_ROWS * BLOCK_BYTES
        return Rows(name, 0, piece.blocks, _height(piece) * BLOCK_BYTES, stride)

    def _store(self, out: Slot, rows: Rows, pitch_bytes: int) -> None:
        self.y.enque(out)
        out = self.y.deque()
        self.writer.store(out, rows, pitch_bytes)
        self.y.free(out)

    def _clear_edges(self, slot: Slot, piece: Piece) -> None:
        """Zeros below the last row and, where the load left other bytes, behind the rows."""
        pitch = pitch_blocks(piece.blocks)
        missing = (_height(piece) - piece.rows) * pitch
        if missing:
            below = slot.of(FLOAT16, missing * BLOCK_LANES, piece.rows * pitch * BLOCK_BYTES)
            step(self.builder, Duplicate(below, 0.0))
        ragged = align_up(piece.width_bytes, BLOCK_BYTES) - piece.width_bytes
        if ragged and self.spec.transfer.load_granule_bytes > 1:
            self.builder.sync("vector", "scalar")
            unit = gcd(ragged, 8)
            for start in range(piece.width_bytes, align_up(piece.width_bytes, BLOCK_BYTES), unit):
                first = slot.of(UNITS[unit], 1, start)
                store = ScalarStore(first, "zero", pitch * BLOCK_BYTES)
                self.builder.emit(ScalarLoop(piece.rows, (ScalarAlu("and", "zero", 0, 0), store)))
            self.builder.sync("scalar", "vector")


def _height(piece: Piece) -> int:
    """Rows of *piece* up to whole fractals."""
    return align_up(piece.rows, FRACTAL_ROWS)


def _column(slot: Slot, column: int, height: int) -> Local:
    """A column of *height* blocks that follow one another."""
    return slot.of(FLOAT16, height * BLOCK_LANES, column * height * BLOCK_BYTES)


def _column_of_rows(slot: Slot, column: int, height: int, pitch: int) -> Local:
    """A column of *height* blocks *pitch* apart."""
    whole = slot.of(FLOAT16, height * BLOCK_LANES, column * BLOCK_BYTES)
    return replace(whole, block_stride=pitch, repeat_stride=8 * pitch)
