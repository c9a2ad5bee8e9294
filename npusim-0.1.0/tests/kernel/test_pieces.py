"""Pieces of a product as columns: in which order cores make them, and how vector cores share."""

from __future__ import annotations

import numpy as np

from npusim.kernel import Piece, Pieces

# Core 0 has two pieces, core 1 one of a single row.
DEALT = Pieces.dealt([[Piece(0, 0, 0, 5, 70), Piece(0, 5, 0, 4, 70)], [Piece(1, 8, 16, 1, 32)]])


def test_pieces_are_counted_on_each_core() -> None:
    assert DEALT.core.tolist() == [0, 0, 1]
    assert DEALT.index.tolist() == [0, 1, 0]


def test_vector_cores_get_the_upper_and_the_lower_rows() -> None:
    halves = DEALT.halved((DEALT.rows + 1) // 2)
    assert halves.core.tolist() == [0, 0, 1, 1, 2, 3]
    assert halves.rows.tolist() == [3, 2, 2, 2, 1, 0]
    assert halves.row.tolist() == [0, 5, 3, 7, 8, 9]
    assert halves.inside.tolist() == [0, 0, 3, 2, 0, 1]
    assert DEALT.repeated(2).rows.tolist() == [5, 4, 5, 4, 1, 1]


def test_pieces_are_cut_into_rows_that_fit() -> None:
    # 70 columns take two units of 64: two rows at a time.
    tiles, of = DEALT.cut(256, 64)
    assert of.tolist() == [0, 0, 0, 1, 1, 2]
    assert tiles.rows.tolist() == [2, 2, 1, 2, 2, 1]
    assert tiles.row.tolist() == [0, 2, 4, 5, 7, 8]
    # Of rows that do not fit some columns of one.
    tiles, of = DEALT.select(np.array([2])).cut(20, 1)
    assert (tiles.column.tolist(), tiles.columns.tolist()) == ([16, 36], [20, 12])
