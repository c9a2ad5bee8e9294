"""Layouts: small ones typed by hand, and every shape up to three fractals each way."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, INT8, INT32, INT64, UINT8
from npusim.data.layout import FRACTAL_ROWS, NZ, ZN, ZZ, Layout, c0, from_fractals, to_fractals

ROOT = Path(__file__).parents[2]
LAYOUTS = {"Nz": NZ, "Zz": ZZ, "Zn": ZN}
WIDTHS = {64: 4, 32: 8, 16: 16, 8: 32, 4: 64}
"""Bits of an element -> elements in 32 bytes."""
TRANSLATIONS = {
    "docs/course/04_nd_and_nz.md",
    "docs/course/zh/04_nd_and_nz.md",
    "docs/sources.md",
    "npusim/cli/commands/layout.py",
    "npusim/data/layout/__init__.py",
    "npusim/data/layout/placement.py",
}
"""Where the names of others are listed."""


def test_a_capital_is_for_the_fractals_and_comes_first() -> None:
    for name, layout in LAYOUTS.items():
        assert (layout.name, layout.outer, layout.inner) == (name, *name)


def test_no_page_and_no_module_spells_a_layout_another_way() -> None:
    folders = {"npusim": "*.py", "docs": "*.md", "examples": "*.py"}
    files = [path for folder, kind in folders.items() for path in (ROOT / folder).rglob(kind)]
    others = re.compile(r"\b(zN|zZ|nZ|nN|zn|zz|nz[ZN])\b")
    found = {
        path.relative_to(ROOT).as_posix()
        for path in [*files, ROOT / "README.md"]
        if others.search(path.read_text(encoding="utf-8"))
    }
    assert found == TRANSLATIONS


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        # Axes: across, down, y, x.
        (NZ, [[[[0, 1, 2], [5, 6, 7]], [[10, 11, 12], [0, 0, 0]]],
              [[[3, 4, 0], [8, 9, 0]], [[13, 14, 0], [0, 0, 0]]]]),
        # Axes: down, across, y, x.
        (ZZ, [[[[0, 1, 2], [5, 6, 7]], [[3, 4, 0], [8, 9, 0]]],
              [[[10, 11, 12], [0, 0, 0]], [[13, 14, 0], [0, 0, 0]]]]),
        # Axes: down, across, x, y.
        (ZN, [[[[0, 5], [1, 6], [2, 7]], [[3, 8], [4, 9], [0, 0]]],
              [[[10, 0], [11, 0], [12, 0]], [[13, 0], [14, 0], [0, 0]]]]),
    ],
    ids=list(LAYOUTS),
)  # fmt: skip
def test_three_by_five_in_fractals_of_two_by_three(layout: Layout, expected: list[object]) -> None:
    matrix = np.arange(15).reshape(3, 5)

    assert to_fractals(matrix, layout, (2, 3)).tolist() == expected


@pytest.mark.parametrize(
    "dtype", [INT64, FLOAT32, INT32, FLOAT16, BFLOAT16, INT8, UINT8, INT4], ids=str
)
def test_a_row_of_a_fractal_has_32_bytes(dtype: object) -> None:
    assert c0(dtype) == WIDTHS[dtype.bits]  # type: ignore[attr-defined, arg-type]


def sizes(block: int) -> list[int]:
    """Around each edge of the first three blocks."""
    return sorted({1, 2, *(k * block + d for k in (1, 2, 3) for d in (-1, 0, 1))} - {3 * block + 1})


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
@pytest.mark.parametrize("width", WIDTHS.values())
def test_offsets_say_where_elements_lie(layout: Layout, width: int) -> None:
    fractal = (FRACTAL_ROWS, width) if layout is not ZN else (width, FRACTAL_ROWS)
    for rows, columns in itertools.product(sizes(fractal[0]), sizes(fractal[1])):
        matrix = np.arange(1, rows * columns + 1).reshape(rows, columns)
        whole = to_fractals(matrix, layout, fractal)
        assert whole.shape == layout.array_shape(rows, columns, fractal)
        where = layout.offsets((rows, columns), fractal)
        row, column = np.indices((rows, columns)).reshape(2, -1)[:, -1]
        assert where[-1, -1] == layout.offset(int(row), int(column), (rows, columns), fractal)
        assert np.unique(where).size == matrix.size
        np.testing.assert_array_equal(whole.reshape(-1)[where], matrix)
        assert np.count_nonzero(whole) == matrix.size
        np.testing.assert_array_equal(from_fractals(whole, layout, (rows, columns)), matrix)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_nothing_stays_nothing(layout: Layout, shape: tuple[int, int]) -> None:
    whole = to_fractals(np.zeros(shape), layout, (2, 3))
    assert whole.shape == layout.array_shape(*shape, (2, 3))
    assert whole.size == 0
    assert from_fractals(whole, layout, shape).shape == shape


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
def test_leading_dimensions_are_matrices_apart(layout: Layout) -> None:
    matrices = np.arange(2 * 3 * 20 * 40).reshape(2, 3, 20, 40)
    whole = to_fractals(matrices, layout, (16, 32))
    for index in np.ndindex(2, 3):
        np.testing.assert_array_equal(whole[index], to_fractals(matrices[index], layout, (16, 32)))
    np.testing.assert_array_equal(from_fractals(whole, layout, (20, 40)), matrices)


def test_a_matrix_is_left_as_it_was() -> None:
    matrix = np.arange(256).reshape(16, 16)
    to_fractals(matrix, NZ, (16, 16))[:] = -1
    np.testing.assert_array_equal(matrix.reshape(-1), np.arange(256))
