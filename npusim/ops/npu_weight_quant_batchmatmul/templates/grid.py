"""A grid of cores over the output: each makes a rectangle of it, base tile by base tile."""

from __future__ import annotations

from npusim.ops.npu_weight_quant_batchmatmul.templates.weight import MatrixTile

__all__ = ["rectangles"]


def rectangles(
    shape: tuple[int, int], core: tuple[int, int], base: tuple[int, int]
) -> tuple[tuple[MatrixTile, ...], ...]:
    """The base tiles of each core; all sizes are `(m, n)`, cores and tiles along n come first.

    >>> [len(tiles) for tiles in rectangles((16, 200), (16, 128), (16, 64))]
    [2, 2]
    """
    return tuple(
        tuple(
            MatrixTile(row, column, min(base[0], bottom - row), min(base[1], right - column))
            for row in range(top, bottom, base[0])
            for column in range(left, right, base[1])
        )
        for top in range(0, shape[0], core[0])
        for left in range(0, shape[1], core[1])
        for bottom, right in [(min(top + core[0], shape[0]), min(left + core[1], shape[1]))]
    )
