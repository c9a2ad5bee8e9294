"""The command `npusim layout`: its grid, its files, one place, and what it refuses."""

from __future__ import annotations

import csv
import json
import os
from io import StringIO
from pathlib import Path

import pytest
from commands import npusim_says, refused

from npusim.data.dtypes import INT8
from npusim.data.layout import SPELLINGS, Placement

NZ = ("20x40", "int8", "FRACTAL_NZ")
GRID = """\
layout    3 x 5 float32 as FRACTAL_NZ
fractals  1 x 1 of 16 x 8, 512 bytes each, column by column; inside row by row
storage   float32 (1, 1, 16, 8), 512 bytes, 452 of them padding

    |  0  1  2  3  4  5  6  7
----+------------------------
  0 |  0  1  2  3  4  .  .  .
  1 |  8  9 10 11 12  .  .  .
  2 | 16 17 18 19 20  .  .  .
"""


def test_a_small_matrix_is_a_grid() -> None:
    code, out, err = npusim_says("layout", "3x5", "float32", "FRACTAL_NZ")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:9] == GRID.splitlines()
    assert lines[9:] == [f"{row:3} |" + "  ." * 8 for row in range(3, 16)]


def test_fractals_stand_apart() -> None:
    _, out, _ = npusim_says("layout", "20x40", "int8", "Zn")
    rows = [line for line in out.splitlines() if line[:3].strip().isdigit()]
    assert [line.count("|") for line in rows] == [3] * 32
    assert sum("-+-" in line for line in out.splitlines()) == 1
    assert "1 x 3 of 32 x 16, 512 bytes each, row by row; inside column by column" in out


def test_nd_has_no_fractals() -> None:
    _, out, _ = npusim_says("layout", "2x3", "int4", "ND")
    assert out == (
        "layout    2 x 3 int4 as ND\n"
        "storage   int4 (2, 3), 3 bytes\n"
        "\n"
        "    | 0 1 2\n"
        "----+------\n"
        "  0 | 0 1 2\n"
        "  1 | 3 4 5\n"
    )


def test_csv_lists_memory_in_order() -> None:
    _, out, _ = npusim_says("layout", *NZ, "--format", "csv")
    rows = list(csv.DictReader(StringIO(out)))
    of = Placement(20, 40, INT8, "FRACTAL_NZ")
    assert [int(row["element"]) for row in rows] == list(range(2048))
    held = [int(row["row"]) * 40 + int(row["column"]) if row["row"] else -1 for row in rows]
    assert held == of.stored_elements.tolist()
    assert {row["fractal"] for row in rows} == {"0", "1", "2", "3"}


def test_json_has_a_number_for_each_element() -> None:
    _, out, _ = npusim_says("layout", *NZ, "--json")
    found = json.loads(out)
    of = Placement(20, 40, INT8, "FRACTAL_NZ")
    assert found["elements"] == of.elements[:20, :40].tolist()
    assert found["storage_shape"] == [2, 2, 16, 32]
    assert npusim_says("layout", *NZ, "--format", "json") == (0, out, "")


def test_markdown_is_a_table() -> None:
    _, out, _ = npusim_says("layout", "2x3", "int8", "ND", "-f", "md")
    assert out == (
        "2 x 3 int8 as ND\n\n| | 0 | 1 | 2 |\n|---|---|---|---|\n"
        "| **0** | 0 | 1 | 2 |\n| **1** | 3 | 4 | 5 |\n"
    )


# ---- one place ----


def test_an_index_is_found() -> None:
    code, out, err = npusim_says("layout", "where", *NZ, "--index", "17,33")
    assert (code, err) == (0, "")
    assert out.splitlines()[3:] == [
        "holds                   row 17, column 33",
        "place                   element 1569, byte 1569",
        "fractal                 number 3 in memory, at 1, 1 of the matrix; inside it row 1, "
        "column 1",
        "UB bank on ascend910b2  group 1, bank 0 of it, if the matrix begins with the buffer",
    ]
    assert npusim_says("layout", *NZ, "--index", "17,33").out == out


@pytest.mark.parametrize("offset", ["1569", "0x621"])
def test_an_offset_is_found(offset: str) -> None:
    _, out, _ = npusim_says("layout", "where", *NZ, "--offset", offset, "--json")
    (place,) = json.loads(out)["places"]
    assert (place["row"], place["column"], place["fractal"]) == (17, 33, 3)
    assert (place["ub_bank_group"], place["ub_bank"]) == (1, 0)


def test_padding_is_reported() -> None:
    _, out, _ = npusim_says("layout", *NZ, "--offset", "2047")
    assert "holds                   padding\n" in out


def test_a_byte_of_int4_holds_two() -> None:
    _, out, _ = npusim_says("layout", "20x64", "int4", "zN", "--offset", "33")
    assert "place                   element 66, byte 33, bits 0 to 3\n" in out
    assert "place                   element 67, byte 33, bits 4 to 7\n" in out


def test_banks_are_those_of_the_chip() -> None:
    # Bank 3 of a group is there on 310P, whose buffer has 256 KiB, and not on A2 with 192.
    where = ("layout", "where", "512x512", "int8", "ND", "--offset", str(200 * 1024 + 32))
    _, out, _ = npusim_says(*where, "-d", "Atlas 300I Pro")
    assert "group 1, bank 3 of it" in out
    _, out, _ = npusim_says(*where)
    assert "none: the place is beyond the buffer" in out
    _, out, _ = npusim_says(*where, "--json")
    assert json.loads(out)["places"][0]["ub_bank"] is None


# ---- files ----


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("map.svg", b"<?xml"),
        ("map.png", b"\x89PNG"),
        ("map.html", b"<!DOCTYPE html>"),
        ("map.htm", b"<!DOCTYPE html>"),
        ("map.csv", b"element,byte"),
        ("map.txt", b"layout "),
        ("map.md", b"2 x 3"),
        ("map.JSON", b"{"),
    ],
)
def test_a_file_is_what_its_name_ends_in(tmp_path: Path, name: str, begins: bytes) -> None:
    path = tmp_path / name
    assert npusim_says("layout", "2x3", "int8", "ND", "-o", str(path)) == (0, f"wrote {path}\n", "")
    assert path.read_bytes().startswith(begins)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_mask()


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_same_map_is_the_same_svg() -> None:
    words = ("layout", "4x5", "int8", "ND", "-f", "svg")
    first = npusim_says(*words)
    assert first.out.startswith("<?xml")
    assert npusim_says(*words) == first


def test_the_page_begins_with_the_matrix() -> None:
    _, out, _ = npusim_says("layout", "--html")
    assert '"start": {"rows": 20, "columns": 40, "dtype": "int8", "layout": "FRACTAL_NZ"}' in out
    _, out, _ = npusim_says("layout", "8x9", "int32", "L0C", "--html", "-d", "Atlas 300I Pro")
    assert '"start": {"rows": 8, "columns": 9, "dtype": "int32", "layout": "L0C"}' in out
    assert '"name": "ascend310p3"' in out


def test_a_file_is_replaced_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "map.csv"
    path.write_text("mine")
    refused(
        1,
        f"layout: {path} must be a new file, but there is one; name another, or add --force to "
        f"replace it",
        *("layout", *NZ, "-o", str(path)),
    )
    assert path.read_text() == "mine"
    assert npusim_says("layout", *NZ, "-o", str(path), "--force").code == 0
    assert path.read_text().startswith("element,byte")


# ---- refusals ----

WRONG: list[tuple[tuple[str, ...], str]] = [
    (
        ("20x40", "int8"),
        "layout: a matrix must be given as SHAPE DTYPE LAYOUT, not '20x40 int8'; "
        "write for example 20x40 int8 FRACTAL_NZ",
    ),
    (
        ("20", "int8", "ND"),
        "layout: a shape must be rows x columns, not '20'; write for example 20x40",
    ),
    (
        ("2x2", "int5", "ND"),
        "dtypes: a dtype must be one of float32, float16, bfloat16, int4, int8, uint8, int32, "
        "int64, uint64, int16, uint16, uint32, not 'int5'; use one of these",
    ),
    (
        ("2x2", "int8", "NHWC"),
        f"layout: a layout must be one of {SPELLINGS}, not 'NHWC'; use one of these",
    ),
    (("where", *NZ), "layout: where must be given --index I,J or --offset BYTE; add one"),
    ((*NZ, "--index", "17"), "layout: --index must be I,J, not '17'; write for example 17,33"),
    ((*NZ, "--offset", "-1"), "layout: --offset must be a byte, not '-1'; write for example 1569"),
    (
        (*NZ, "--offset", "1", "--index", "1,1"),
        "layout: either --index or --offset must be given, not both; drop one",
    ),
    (
        (*NZ, "--offset", "1", "-f", "csv"),
        "layout: one place must be printed as text or json; drop --format and -o",
    ),
    ((*NZ, "-f", "png"), "layout: a PNG must go to a file, not to the screen; add -o layout.png"),
    (
        (*NZ, "-f", "csv", "--html"),
        "layout: a map must be written one way, not csv, html; keep one",
    ),
    (
        (*NZ, "-o", "map.pdf"),
        "layout: a file must end in one of .txt, .htm, .text, .csv, .md, .json, .svg, .png, "
        ".html, not 'map.pdf'; rename it or add --format",
    ),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_wrong_words_are_refused(words: tuple[str, ...], message: str) -> None:
    refused(2, message, "layout", *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            (*NZ, "--index", "20,0"),
            "layout: an index must lie within 20 x 40, not be 20,0; count from 0,0 to 19,39",
        ),
        (
            ("65x64", "int8", "ND"),
            "layout: a map must have at most 4096 elements here, not 4160; take a smaller matrix, "
            "--format csv, or --index for one element",
        ),
        (
            ("1025x1024", "int8", "ND", "-f", "csv"),
            "layout: a map must have at most 1048576 elements here, not 1049600; take a smaller "
            "matrix, or --index for one element",
        ),
        (
            ("65537x4", "int8", "ND", "--html"),
            "layout: the page must begin with at most 65536 rows and columns, not 65537 x 4; "
            "take a smaller matrix",
        ),
    ],
)
def test_what_does_not_fit_is_refused(words: tuple[str, ...], message: str) -> None:
    refused(1, message, "layout", *words)


def test_help_lists_every_layout() -> None:
    _, out, _ = npusim_says("layout", "--help")
    assert f"the layouts are {SPELLINGS}. " in " ".join(out.replace("│", " ").split())
