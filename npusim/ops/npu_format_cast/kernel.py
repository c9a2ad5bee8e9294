"""The program that each core runs for npu_format_cast.

The buffer holds a piece as rows of blocks and as columns of blocks; one Copy moves a column of
blocks from one form to the other, eight rows a repeat:

.. code-block:: text

    rows      block (r, c) at r * pitch + c             block stride pitch, repeat stride 8 * pitch
    columns   block (r, c) at c * rows_padded + r       one after the other
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
from npusim.kernel.program import Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, load
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops.npu_format_cast.contract import Problem
from npusim.ops.npu_format_cast.tiling import DEPTH, Piece, Plan, pieces_of_cores

__all__ = ["build"]

BLOCK_LANES = 16
"""Blocks are copied as bits, 16 at a time, whatever they hold."""
UNITS: dict[int, DType] = {1: UINT8, 2: FLOAT16, 4: INT32, 8: INT64}
"""Bytes -> what the scalar pipe stores so many with."""


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores whose pieces are alike share their program."""
    programs: dict[tuple[tuple[GmView, GmView], ...], Program] = {}
    blocks: list[Block] = []
    for core, pieces in enumerate(pieces_of_cores(p, plan)):
        views = [_views(p, piece) for piece in pieces]
        x, output = views[0]
        # Offsets count from the first piece, so that cores with equal pieces share a program.
        key = tuple((_from(a, x), _from(b, output)) for a, b in views)
        if key not in programs:
            programs[key] = FormatCast(spec, p, plan).program(key)
        blocks.append(Block(core, spec.vector_cores[core], programs[key], bindings(x, output)))
    return tuple(blocks)


def _views(p: Problem, piece: Piece) -> tuple[GmView, GmView]:
    """*piece* in the input and in the output, as bytes.

    In ND it is `(rows, width_bytes)`, in FRACTAL_NZ a row a column of fractals,
    `(blocks, rows_padded x 32)`.
    """
    nd, nz = ("x", "output") if p.to_fractals else ("output", "x")
    column_bytes = p.fractals_m * FRACTAL_ROWS * BLOCK_BYTES
    fractal_bytes = align_up(piece.rows, FRACTAL_ROWS) * BLOCK_BYTES
    in_nd = GmView(nd, UINT8, piece.rows, piece.width_bytes, p.row_bytes, piece.nd_bytes)
    in_nz = GmView(nz, UINT8, piece.blocks, fractal_bytes, column_bytes, piece.nz_bytes)
    return (in_nd, in_nz) if p.to_fractals else (in_nz, in_nd)


def _from(view: GmView, first: GmView) -> GmView:
    """*view* of a tensor that begins where *first* does."""
    return view.shifted_to(view.offset_bytes - first.offset_bytes)


class FormatCast:
    """The kernel of one core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p = spec, p
        self.builder = Builder("npu_format_cast", spec.cores[spec.vector_kinds[0]], spec.sync)
        piece_bytes = plan.row_step * plan.block_step * BLOCK_BYTES
        self.x = self.builder.queue("ub", piece_bytes, "mte2", "vector", DEPTH)
        self.y = self.builder.queue("ub", piece_bytes, "vector", "mte3", DEPTH)
        self.writer = Writer(self.builder, spec)

    def program(self, pieces: tuple[tuple[GmView, GmView], ...]) -> Program:
        """Convert *pieces*, each an input and an output, one after the other."""
        stage = self._to_fractals if self.p.to_fractals else self._from_fractals
        for x, output in pieces:
            repeat(self.builder, stage, x, output)
        return self.builder.build()

    def _to_fractals(self, x: GmView, output: GmView) -> None:
        """*x* `(rows, width_bytes)` to *output* `(blocks, rows_padded x 32)`."""
        rows_padded, pitch = align_up(x.rows, FRACTAL_ROWS), output.rows
        slot = load(self.builder, self.spec, self.x, x, pitch * BLOCK_BYTES)
        out = self.y.alloc()
        self._clear_edges(slot, x.rows, x.row_bytes, pitch)
        # (rows_padded, pitch) blocks -> (blocks, rows_padded) blocks, a column a Copy
        for column in range(output.rows):
            rows = _column_of_rows(slot, column, rows_padded, pitch)
            self.builder.emit(Copy(_column(out, column, rows_padded), rows))
        self.x.free(slot)
        self.writer.store(self.y, out, output, output.row_bytes)

    def _from_fractals(self, x: GmView, output: GmView) -> None:
        """*x* `(blocks, rows_padded x 32)` to *output* `(rows, width_bytes)`."""
        rows_padded, pitch = align_up(output.rows, FRACTAL_ROWS), x.rows
        slot = load(self.builder, self.spec, self.x, x, x.row_bytes)
        out = self.y.alloc()
        # (blocks, rows_padded) blocks -> (rows_padded, pitch) blocks, a column a Copy
        for column in range(x.rows):
            # Columns interleave; their byte ranges overlap, so a barrier orders the copies.
            rows = _column_of_rows(out, column, rows_padded, pitch)
            step(self.builder, Copy(rows, _column(slot, column, rows_padded)))
        self.x.free(slot)
        self.writer.store(self.y, out, output, pitch * BLOCK_BYTES)

    def _clear_edges(self, slot: Slot, rows: int, width_bytes: int, pitch: int) -> None:
        """Zeros below the last row and, where the load left other bytes, behind the rows."""
        # Rows that fill the last fractal are zero.
        missing = (align_up(rows, FRACTAL_ROWS) - rows) * pitch
        if missing:
            below = slot.of(FLOAT16, missing * BLOCK_LANES, rows * pitch * BLOCK_BYTES)
            step(self.builder, Duplicate(below, 0.0))
        end_bytes = align_up(width_bytes, BLOCK_BYTES)
        # A load in whole granules leaves bytes of the next row behind the ragged edge.
        if end_bytes > width_bytes and self.spec.transfer.load_granule_bytes > 1:
            self.builder.sync("vector", "scalar")
            # Stores of the widest type that divides the gap, each repeated for all rows.
            unit = gcd(end_bytes - width_bytes, 8)
            for start in range(width_bytes, end_bytes, unit):
                first = slot.of(UNITS[unit], 1, start)
                store = ScalarStore(first, "zero", pitch * BLOCK_BYTES)
                self.builder.emit(ScalarLoop(rows, (ScalarAlu("and", "zero", 0, 0), store)))
            self.builder.sync("scalar", "vector")


def _column(slot: Slot, column: int, rows: int) -> Local:
    """A column of *rows* blocks that follow one another."""
    return slot.of(FLOAT16, rows * BLOCK_LANES, column * rows * BLOCK_BYTES)


def _column_of_rows(slot: Slot, column: int, rows: int, pitch: int) -> Local:
    """A column of *rows* blocks *pitch* apart."""
    whole = slot.of(FLOAT16, rows * BLOCK_LANES, column * BLOCK_BYTES)
    return replace(whole, block_stride=pitch, repeat_stride=8 * pitch)
