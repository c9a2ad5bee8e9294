"""int4 times int4 on a cube core, each group of k scaled and added up in float16 in a workspace."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, INT32
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.isa import Fixpipe
from npusim.kernel.builder import Builder
from npusim.kernel.cube import BaseTile, CubeWriter, GmFeed, GmMatrix, GmTile, Tables
from npusim.kernel.views import GmView, repeat

__all__ = ["FILLED", "READ", "ScaledGroups", "part_of_k"]

FILLED, READ = 0, 1
"""Flags between a cube core and its vector cores: a block is in the workspace; it was read."""


class ScaledGroups:
    """Blocks of `(rows, k) @ (k, columns)`: `C = f16(C + f16(f32(sum of a group) x scale))`.

    The first group of k is stored, the others are added where it lies, ascending.
    """

    def __init__(
        self,
        builder: Builder,
        tile: BaseTile,
        a: GmMatrix,
        b: GmMatrix,
        k: int,
        *,
        signals: bool = True,
    ) -> None:
        """*k* is that of a group; *signals* says whether each block sets the flag FILLED."""
        self._builder, self._k, self._signals = builder, k, signals
        self.a, self.b = a, b
        self._feeds = GmFeed(builder, a), GmFeed(builder, b)
        self._writer = CubeWriter(builder, tile, *self._feeds, k)
        self._tables = Tables(builder, tile.n, scale=True)

    def block(
        self,
        a: GmTile,
        b: GmTile,
        scale: GmView,
        sums: GmView,
        waits: bool,
        matrices: tuple[GmMatrix, GmMatrix] | None = None,
    ) -> None:
        """Write *sums* `(rows, columns)` of *a* and *b*, tiles with all of k.

        They are tiles of *matrices*, or of those that were known from the start. *scale* is
        `(groups, columns)`. With *waits* the workspace has been filled before: what was there must
        have been read.
        """
        of_a, of_b = matrices or (self.a, self.b)
        for feed, matrix in zip(self._feeds, (of_a, of_b), strict=True):
            feed.gm_matrix = matrix
        for group in range(scale.rows):
            k = group * self._k
            repeat(
                self._builder,
                self._group,
                part_of_k(a, of_a, k, self._k),
                part_of_k(b, of_b, k, self._k),
                scale.row(group),
                sums,
                waits and group == 0,
                group > 0,
                self._signals and group == scale.rows - 1,
                (of_a, of_b),
            )

    def _group(
        self,
        a: GmTile,
        b: GmTile,
        scale: GmView,
        sums: GmView,
        waits: bool,
        adds: bool,
        is_last: bool,
        _: tuple[GmMatrix, GmMatrix],
    ) -> None:
        """*sums* `(rows, columns)`: scaled ones of one group, stored, or added to what is there."""
        slot = self._writer.product(a.extent, b.extent, a.k)
        words = self._tables.take_scale(scale)
        if waits:
            self._builder.cross_core_wait_flag("group", "fixpipe", READ)
        rows_padded = align_up(sums.rows, FRACTAL_ROWS)
        total = slot.of(INT32, rows_padded * align_up(sums.columns, FRACTAL_ROWS))
        size = sums.rows, sums.columns, rows_padded
        # L0C (columns / 16, rows_padded, 16) int32 -> (rows, columns) fp16
        op = Fixpipe(sums.operand, total, *size, FLOAT16, "deqf16", words, atomic=adds)
        self._writer.drain(slot, op)
        if is_last:
            self._builder.cross_core_set_flag("group", "fixpipe", FILLED)


def part_of_k(tile: GmTile, matrix: GmMatrix, k: int, count: int) -> GmTile:
    """*count* positions of k of *tile*, from *k* on."""
    return GmTile(tile.name, tile.offset_bytes + matrix.shift_k(k), tile.extent, count)
