"""Which element lies where: typed by hand, and every place of small matrices in all layouts."""

from __future__ import annotations

import re
from itertools import product

import ml_dtypes
import numpy as np
import pytest

from npusim import Tensor
from npusim.data.dtypes import (
    DTYPES,
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    INT32,
    DType,
    dtype_named,
    pack_int4,
)
from npusim.data.layout import NAMES, NZ, Placement
from npusim.data.layout.html import SHADES, shown_of
from npusim.data.layout.placement import OF_ALL_ROWS, ORDERS, SUMS


def small(name: str, dtype: DType) -> list[Placement]:
    """Around every edge of up to two fractals each way."""
    height, width = Placement(1, 1, dtype, name).fractal or (2, 3)
    down, across = {1, height - 1, height, height + 1, 2 * height}, {1, width, width + 1, 2 * width}
    return [Placement(r, c, dtype, name) for r, c in product(sorted(down - {0}), sorted(across))]


CASES = [(name, dtype) for name in ORDERS for dtype in DTYPES if name != "L0C" or dtype in SUMS]


@pytest.mark.sample(12)
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_places_elements_and_bytes_say_the_same(name: str, dtype: DType) -> None:
    for of in small(name, dtype):
        spots = [of.spot(element) for element in range(of.count)]
        numbers = [-1 if s.row is None else s.row * of.columns + s.column for s in spots]
        assert numbers == of.stored_elements.tolist()
        for row, column in ((0, 0), (of.rows - 1, 0), (0, of.columns - 1), (of.rows // 2, 0)):
            spot = of.where(row, column)
            assert spot == spots[int(of.elements[row, column])]
            assert (spot.row, spot.column) == (row, column)
            assert spot in of.at_byte(spot.byte)
        assert spots[-1].byte * 8 + spots[-1].bit + dtype.bits <= of.nbytes * 8


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_lies_where_the_map_says(dtype: DType) -> None:
    rows, columns = 17, 2 * 256 // dtype.bits - 2
    values = np.arange(rows * columns).reshape(rows, columns) % 8
    tensor = Tensor.of(values.astype(dtype.numpy), "FRACTAL_NZ")
    of = Placement(rows, columns, dtype, "FRACTAL_NZ")
    assert tensor.storage.shape == of.storage_shape
    assert tensor.spec.nbytes == of.nbytes
    flat = tensor.storage.reshape(-1)
    raw = pack_int4(flat) if dtype is INT4 else flat.view(np.uint8)
    for row, column in ((0, 0), (3, 5), (16, columns - 1)):
        spot = of.where(row, column)
        size = max(1, dtype.bits // 8)
        held = raw[spot.byte : spot.byte + size]
        if dtype is INT4:
            assert held[0] >> spot.bit & 0xF == values[row, column]
        else:
            assert held.view(dtype.numpy)[0] == values[row, column]


def test_a_place_by_hand() -> None:
    spot = Placement(20, 40, INT8, "FRACTAL_NZ").where(17, 33)
    # Columns of fractals first: number 3 of (0, 0), (1, 0), (0, 1), (1, 1); row 1, column 1 in it.
    assert (spot.fractal, spot.fractal_row, spot.fractal_column) == (3, 1, 1)
    assert (spot.inner_row, spot.inner_column) == (1, 1)
    assert spot.element == spot.byte == 3 * 512 + 32 + 1
    spot = Placement(40, 20, INT8, "Zn").where(33, 17)
    # Rows of fractals first; C0 = 32 rows, column by column inside.
    assert (spot.fractal, spot.fractal_row, spot.fractal_column) == (3, 1, 1)
    assert spot.element == 3 * 512 + 32 + 1


def test_two_int4_share_a_byte() -> None:
    low, high = Placement(2, 64, INT4, "FRACTAL_NZ").at_byte(33)
    assert [(s.row, s.column, s.bit) for s in (low, high)] == [(1, 2, 0), (1, 3, 4)]


def test_the_last_byte_of_an_odd_number_of_int4_holds_one() -> None:
    of = Placement(3, 3, INT4)
    assert (of.nbytes, [s.element for s in of.at_byte(4)]) == (5, [8])


def test_padding_is_counted_and_found() -> None:
    of = Placement(20, 40, INT8, "FRACTAL_NZ")
    assert (of.nbytes, of.padding_bytes) == (2048, 2048 - 800)
    assert [spot.is_padding for spot in of.at_byte(2047)] == [True]
    assert Placement(20, 40, INT8).padding_bytes == 0


def test_one_order_goes_by_several_names() -> None:
    assert {name: Placement(1, 1, FLOAT16, name).name for name in NAMES if name != "L0C"} == {
        "ND": "ND", "FRACTAL_NZ": "FRACTAL_NZ", "zN": "FRACTAL_NZ", "Nz": "FRACTAL_NZ",
        "zZ": "Zz", "Zz": "Zz", "nZ": "Zn", "Zn": "Zn", "FRACTAL_Z": "Zn",
        "NC1HWC0": "NC1HWC0", "5HD": "NC1HWC0",
    }  # fmt: skip
    assert Placement(1, 1, FLOAT32, "L0C").fractal == (16, 16)


def test_an_image_in_nc1hwc0_has_the_channels_of_a_block_next_to_each_other() -> None:
    """(c, h, w) = (20, 3, 5) as `(c1, h, w, 16)`; the matrix has a row for each pixel."""
    wanted = [
        (5 * h + w) * 20 + c if c < 20 else -1
        for c1 in range(2)
        for h in range(3)
        for w in range(5)
        for c in range(16 * c1, 16 * c1 + 16)
    ]
    of = Placement(15, 20, FLOAT16, "NC1HWC0")
    assert of.storage_shape == (2, 1, 15, 16)
    assert of.stored_elements.tolist() == wanted


def test_filters_in_fractal_z_have_the_filters_of_a_block_next_to_each_other() -> None:
    """(n, c) = (20, 40) of int8 as `(c1, n1, 16, 32)`; the matrix has a column for each filter."""
    wanted = [
        c * 20 + n if c < 40 and n < 20 else -1
        for c1 in range(2)
        for n1 in range(2)
        for n in range(16 * n1, 16 * n1 + 16)
        for c in range(32 * c1, 32 * c1 + 32)
    ]
    assert Placement(40, 20, INT8, "FRACTAL_Z").stored_elements.tolist() == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (4, 4, INT8, "NZ2"),
            "layout: a layout must be one of ND, FRACTAL_NZ (also Nz, zN), Zz (also zZ), "
            "Zn (also nZ, FRACTAL_Z), NC1HWC0 (also 5HD), L0C, not 'NZ2'; use one of these",
        ),
        (
            (0, 4, INT8),
            "layout: a matrix must have at least one row and one column, not 0 x 4; give it some",
        ),
        ((4, 4, INT8, "L0C"), "layout: L0C must hold float32 or int32, not int8; use one of them"),
    ],
)
def test_what_is_no_matrix_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        Placement(*arguments)  # type: ignore[arg-type]


def test_what_lies_beyond_is_refused() -> None:
    of = Placement(20, 40, INT8, "FRACTAL_NZ")
    message = "layout: an index must lie within 20 x 40, not be 20,0; count from 0,0 to 19,39"
    with pytest.raises(ValueError, match=f"^{message}$"):
        of.where(20, 0)
    with pytest.raises(
        ValueError, match=r"^layout: an index must lie within 20 x 40, not be -1,0; .*$"
    ):
        of.where(-1, 0)
    message = (
        "layout: an offset must lie within the 2048 bytes of the matrix, not be 2048; "
        "count from 0 to 2047"
    )
    for byte in (2048, -1):
        with pytest.raises(ValueError, match=f"^{message}$".replace("be 2048", f"be {byte}")):
            of.at_byte(byte)


# ---- notebooks ----


def cells(html: str) -> list[str]:
    return re.findall(r"<td[^>]*>([^<]*)</td>", html)


def test_a_layout_shows_its_order() -> None:
    shown = cells(NZ._repr_html_())
    assert shown[:8] == ["0", "1", "2", "3", "32", "33", "34", "35"]
    assert len(shown) == 64


def test_a_placement_shows_its_corner() -> None:
    of = Placement(20, 40, INT32, "FRACTAL_NZ")
    html = of._repr_html_()
    assert "20 x 40 int32 as FRACTAL_NZ in fractals of 16 x 8: 5120 bytes" in html
    assert cells(html)[8] == str(of.where(0, 8).element)
    assert cells(html)[16] == "…"
    assert 'title="(0, 8) at byte 1024, fractal 2"' in html
    assert 'title="padding"' in Placement(3, 3, INT8, "Zz")._repr_html_()


@pytest.mark.parametrize("layout", ["ND", "FRACTAL_NZ"])
def test_a_tensor_shows_its_numbers(layout: str) -> None:
    values = np.arange(6, dtype=np.int8).reshape(2, 3)
    html = Tensor.of(values, layout)._repr_html_()
    assert cells(html) == ["0", "1", "2", "3", "4", "5"]
    assert f"int8 (2, 3) {layout}" in html
    at = {"ND": "3", "FRACTAL_NZ": "32, fractal 0"}[layout]
    assert f'title="(1, 0) at byte {at}"' in html


def lines(html: str) -> list[list[str]]:
    """The text of all cells, the names of rows and columns among them."""
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row) for row in rows]


AT_16 = [*range(8), None, *range(12, 20), None]
"""Rows or columns around the border of a fractal of 16, and where some are left out."""


@pytest.mark.parametrize(
    ("dtype", "layout", "rows", "columns"),
    [
        ("int32", "ND", [*range(16), None], [*range(16), None]),
        ("int32", "FRACTAL_NZ", AT_16, [*range(16), None]),
        ("float16", "FRACTAL_NZ", AT_16, AT_16),
        ("int8", "FRACTAL_NZ", AT_16, [*range(8), None, *range(28, 36), None]),
        ("int4", "FRACTAL_NZ", AT_16, [*range(8), None, *range(60, 68), None]),
    ],
)
def test_a_large_tensor_is_shown_across_the_border_of_its_first_fractal(
    dtype: str, layout: str, rows: list[int | None], columns: list[int | None]
) -> None:
    element = dtype_named(dtype)
    # Any numbers that each type can hold.
    values = (np.arange(3 * 40 * 70) % 15 - 7).reshape(3, 40, 70).astype(element.numpy)
    html = Tensor.of(values, layout)._repr_html_()
    names = ["…" if column is None else str(column) for column in columns]
    expected = [["", *names]]
    for row in rows:
        told = [
            "…" if row is None or column is None else str(values[0, row, column])
            for column in columns
        ]
        expected.append(["…" if row is None else str(row), *told])
    assert lines(html) == expected


@pytest.mark.parametrize("name", [name for name in ORDERS if name not in ("ND", *OF_ALL_ROWS)])
def test_a_line_and_a_colour_mark_where_the_next_fractal_begins(name: str) -> None:
    dtype = INT32 if name == "L0C" else FLOAT16
    of = Placement(40, 40, dtype, name)
    html = of._repr_html_()
    assert of.fractal == (16, 16)
    styles = {title: style for style, title in re.findall(r'style="([^"]*)" title="([^"]*)"', html)}
    shades = set()
    for row, column in product((15, 16), (15, 16)):
        spot = of.where(row, column)
        style = styles[f"({row}, {column}) at byte {spot.byte}, fractal {spot.fractal}"]
        assert spot.fractal is not None
        assert f"background:{SHADES[spot.fractal % len(SHADES)]};" in style
        assert ("border-top:2px" in style) == (row == 16)
        assert ("border-left:2px" in style) == (column == 16)
        shades.add(SHADES[spot.fractal % len(SHADES)])
    assert len(shades) == 4


@pytest.mark.parametrize(
    ("extent", "fractal", "shown"),
    [
        (1, 16, [0]),
        (16, 16, [*range(16)]),
        (17, 16, [*range(8), *range(12, 17)]),
        (30, 32, [*range(16)]),
        (33, 32, [*range(8), *range(28, 33)]),
        (100, 4, [*range(16)]),
        (100, None, [*range(16)]),
    ],
)
def test_rows_and_columns_of_a_table(extent: int, fractal: int | None, shown: list[int]) -> None:
    assert list(shown_of(extent, fractal)) == shown


def test_a_transposed_tensor_is_shown_as_it_lies() -> None:
    html = Tensor.of(np.arange(6, dtype=np.int8).reshape(2, 3), transposed=True)._repr_html_()
    assert cells(html) == ["0", "3", "1", "4", "2", "5"]
    assert "transposed" in html


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (0, 4)])
def test_tensors_of_any_shape_can_be_shown(shape: tuple[int, ...]) -> None:
    values = np.ones(shape, ml_dtypes.int4)
    count = 1
    for size in shape[-2:]:
        count *= size
    assert cells(Tensor.of(values)._repr_html_()) == ["1"] * count
