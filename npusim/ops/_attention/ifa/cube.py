"""What the cube cores of kernel IFA do: what those of kernel FIA do, with digits in int8."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from npusim.kernel.views import GmView
from npusim.ops._attention.fia.cube import CubeCore
from npusim.ops._attention.fia.places import Chunk, PlacedRun
from npusim.ops._attention.fia.rows import Run
from npusim.ops._attention.fia.schedule import Tile

__all__ = ["QUERY_READY", "DigitCube"]

QUERY_READY = 6
"""Flag: the vector cores have stored the digits of a row of tiles."""


class DigitCube(CubeCore):
    """Writes the programs of cube cores."""

    def _call_scores(self, tile: Tile, index: int) -> None:
        memory = self._memory
        rows = memory.copies * tile.piece.row_tile.rows
        scores = memory.slot("scores", index, rows, tile.keys)
        digits = memory.slot("digits", tile.turn, rows, self._width)
        shifts = {"digits": digits.offset_bytes, "scores": scores.offset_bytes}
        key_shifts, chunks = self._relative("key", tile)
        form = (PlacedRun(Run(0, 0, 1, 0, rows), 0),), tile.is_first, tile.is_last
        self._builder.call_part(
            ("scores", form, chunks, scores.shifted_to(0)),
            shifts | key_shifts,
            partial(self._scores, form, chunks, scores.shifted_to(0)),
        )

    def _scores(
        self,
        form: tuple[tuple[PlacedRun, ...], bool, bool],
        chunks: tuple[Chunk, ...],
        scores: GmView,
    ) -> None:
        """(rows, width) of digits @ (keys, width).T -> (rows, keys)."""
        _, is_first, _ = form
        if is_first:
            self._builder.cross_core_wait_flag("group", "mte2", QUERY_READY)
        super()._scores(form, chunks, scores)

    def _clipped(
        self, runs: tuple[PlacedRun, ...], first: int, count: int
    ) -> Iterator[tuple[int, GmView]]:
        """Rows [first, first + count) of the digits, which follow each other."""
        every = GmView.of("digits", self._element, runs[0].run.rows, self._width)
        yield 0, every[first : first + count, :]
