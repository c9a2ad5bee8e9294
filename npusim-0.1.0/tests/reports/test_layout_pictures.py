"""The picture of a layout: its cells as data, and what is drawn."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from npusim.data.dtypes import FLOAT32, INT8
from npusim.data.layout import Placement
from npusim.data.layout.html import SHADES
from npusim.reports.layout import PADDING, Cell, layout, rows

NZ = Placement(17, 33, INT8, "FRACTAL_NZ")


def test_cells_are_those_of_whole_fractals() -> None:
    cells = rows(NZ)
    assert len(cells) == NZ.count == 2048
    assert cells[0] == Cell(0, 0, 0, 0, False)
    assert cells[32] == Cell(0, 32, 1024, 2, False)
    assert cells[33] == Cell(0, 33, 1025, 2, True)
    assert sum(not cell.is_padding for cell in cells) == 17 * 33


def test_an_element_says_where_it_lies_and_has_the_colour_of_its_fractal() -> None:
    ax = layout(NZ)
    at = {tuple(text.get_position()): text.get_text() for text in ax.texts}
    assert at[32, 16] == str(NZ.where(16, 32).element)
    (squares,) = ax.collections
    colors = [to_hex(color) for color in squares.get_facecolor()]
    assert colors[0] == SHADES[0]
    assert colors[32] == SHADES[2]
    assert colors[33] == PADDING
    assert len(colors) == 2048
    assert ax.get_title(loc="left") == "17 x 33 int8 as FRACTAL_NZ: 2048 bytes, 73 % of it padding"


def test_numbers_too_small_to_read_are_left_out() -> None:
    ax = layout(Placement(64, 64, FLOAT32))
    assert not ax.texts
    assert ax.get_title(loc="left") == "64 x 64 float32 as ND: 16384 bytes"


def test_axes_can_be_given() -> None:
    ax = Figure().subplots()
    assert layout(Placement(2, 2, INT8), ax=ax) is ax
    assert ax.get_xlabel() == "column; each cell says how many elements lie before it"


def test_a_picture_has_an_end() -> None:
    message = "layout: a picture must have at most 16384 cells, not 16512; take a smaller matrix"
    with pytest.raises(ValueError, match=f"^{message}$"):
        rows(Placement(128, 129, INT8))
