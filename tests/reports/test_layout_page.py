"""The page of layouts: its map is npusim's, its costs are npusim's, and it answers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe import needs_axe, shown, violations
from browser import CHROMIUM, MISSING, Browser

from npusim import devices
from npusim.data.dtypes import DTYPES, INT4, INT8, DType, dtype_named
from npusim.data.layout import Placement, from_fractals
from npusim.data.layout.html import DARK_SHADES, SHADES
from npusim.data.layout.placement import ORDERS, SUMS
from npusim.devices.schema import DeviceSpec
from npusim.isa import Global, LoadNd2Nz, Local
from npusim.reports.layout_page import facts, page
from npusim.timing.cost import charge

NODE = shutil.which("node")
A2 = devices.load("Atlas A2")
START = Placement(20, 40, INT8, "FRACTAL_NZ")
PAGE = page(START, A2)
SCRIPTS = ("link", "map", "draw", "mmad", "page")
needs_node = pytest.mark.skipif(NODE is None, reason="node, which runs the page's code, is missing")


def script(name: str) -> str:
    found = re.search(rf'<script id="{name}">(.*?)</script>', PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def page_says(*steps: str, scripts: tuple[str, ...] = ("map",), spec: DeviceSpec = A2) -> list[Any]:
    """What the page's own code returns for each of *steps*."""
    assert NODE is not None
    known = facts(START, spec)
    given = {
        "scripts": [*(script(name) for name in scripts), f"const F = {json.dumps(known)};"],
        "facts": known,
        "ids": re.findall(r'id="([\w-]+)"', PAGE),
        "steps": list(steps),
    }
    ran = subprocess.run(
        [NODE, str(Path(__file__).with_name("page_dom.js"))],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    answers: list[Any] = json.loads(ran.stdout)
    return answers


def of(made: Placement) -> str:
    return f'placement(F, {made.rows}, {made.columns}, "{made.dtype}", "{made.name}")'


def some(name: str) -> list[Placement]:
    """Matrices of all types around the edges of up to three fractals each way."""
    found = []
    for dtype in SUMS if name == "L0C" else DTYPES:
        height, width = Placement(1, 1, dtype, name).fractal or (3, 5)
        down, across = (1, height, height + 1, 3 * height), (1, width - 1, width + 1, 3 * width)
        found += [Placement(r, c, dtype, name) for r, c in product(down, across)]
    return found


# ---- the map ----


@needs_node
@pytest.mark.parametrize("name", ORDERS)
def test_the_map_of_the_page_is_that_of_the_code(name: str) -> None:
    matrices = some(name)
    answers = page_says(
        *(
            f"(() => {{ const of = {of(made)}; const rows = [...Array(of.rows).keys()];"
            f" const columns = [...Array(of.columns).keys()];"
            f" return [of.nbytes, of.count, rows.map((r) => columns.map((c) => of.element(r, c))),"
            f" [...Array(of.count).keys()].map((n) => {{ const s = of.spot(n);"
            f" return s.padding ? -1 : s.row * of.columns + s.column; }})]; }})()"
            for made in matrices
        )
    )
    for made, answer in zip(matrices, answers, strict=True):
        own = made.elements[: made.rows, : made.columns].tolist()
        assert answer == [made.nbytes, made.count, own, made.stored_elements.tolist()], str(made)


@needs_node
def test_a_type_that_a_layout_cannot_hold_is_refused() -> None:
    attempt = 'try { placement(F, 4, 4, "int8", "L0C") } catch (error) { error.message }'
    assert page_says(attempt) == ["L0C holds float32, int32, not int8"]


def taken_for(written: Placement, read: Placement) -> list[int]:
    """Which elements a kernel gets: the storage of one layout, taken apart as another."""
    held = np.full(max(written.count, read.count), -2)
    held[: written.count] = written.stored_elements
    whole = held[: read.count].reshape(read.storage_shape)
    if read.order is None:
        return [int(number) for number in whole.reshape(-1)]
    matrix = from_fractals(whole, read.order, (read.rows, read.columns))
    return [int(number) for number in matrix.reshape(-1)]


@needs_node
@pytest.mark.parametrize("dtype", ["int4", "int8", "float16", "float32"])
def test_a_wrong_layout_computes_what_its_bytes_say(dtype: str) -> None:
    element = dtype_named(dtype)
    names = [name for name in ORDERS if name != "L0C" or element in SUMS]
    pairs = [
        (Placement(r, c, element, one), Placement(r, c, element, other))
        for one, other in product(names, repeat=2)
        for r, c in ((5, 7), (17, 33), (40, 70))
    ]
    answers = page_says(
        *(
            f"(() => {{ const found = misread({of(one)}, {of(other)});"
            f" return [found, sums(found, {one.columns})]; }})()"
            for one, other in pairs
        )
    )
    for (one, other), (found, sums) in zip(pairs, answers, strict=True):
        expected = taken_for(one, other)
        assert found == expected
        numbers = np.reshape(expected, (one.rows, one.columns))
        values = np.where(numbers < 0, 0, (numbers**2 + 3 * numbers) % 17 - 8).sum(axis=0)
        beyond = (numbers == -2).any(axis=0)
        assert sums == [None if b else int(v) for b, v in zip(beyond, values, strict=True)]
        assert (expected == list(range(len(expected)))) >= (one.name == other.name)


# ---- the costs ----


def asked(rows: int, columns: int, dtype: DType) -> tuple[int, int]:
    """Bytes moved and rows turned, as the machine charges them."""
    width = dtype.nbytes(columns)
    padded = -(-rows // 16) * 16
    blocks = -(-width // 32)
    op = LoadNd2Nz(
        Local("l1", 0, dtype, blocks * padded * 32 * 8 // dtype.bits),
        Global("x", 0, width, rows, width),
        padded,
    )
    charged = charge(op, 0, A2)
    return charged.nbytes, charged.rows


@needs_node
@pytest.mark.parametrize("dtype", ["int4", "int8", "float16", "float32", "int64"])
def test_a_burst_costs_on_the_page_what_it_costs_in_the_machine(dtype: str) -> None:
    element = dtype_named(dtype)
    shapes = [(r, c) for r in (1, 3, 16, 40) for c in (2, 20, 32, 34, 64, 100, 128)]
    answers = page_says(
        *(
            f"(() => {{ const width = row_bytes({of(Placement(r, c, element, 'ND'))});"
            f" const bursts = [...Array({r}).keys()].map((row) => burst(F, row * width, width));"
            f" return [bursts.reduce((n, b) => n + b.moved, 0),"
            f" bursts.reduce((n, b) => n + b.lines, 0), bursts[0].blocks]; }})()"
            for r, c in shapes
        )
    )
    for (rows, columns), (moved, lines, blocks) in zip(shapes, answers, strict=True):
        assert (moved, lines) == asked(rows, columns, element)
        assert blocks == -(-element.nbytes(columns) // 32)


@needs_node
def test_rows_that_begin_within_a_byte_are_not_copied() -> None:
    assert page_says(f"row_bytes({of(Placement(4, 5, INT4, 'ND'))})") == [None]


@needs_node
def test_a_chip_that_cannot_turn_rows_says_so() -> None:
    (answer,) = page_says(
        "[el('costs').children[0].children[0].textContent, el('next').disabled,"
        " el('step-name').textContent]",
        scripts=SCRIPTS,
        spec=devices.load("Atlas 300I Pro"),
    )
    assert answer == [
        "nd2nz must go to l1 on arch 2201, not to l1 on arch 2002; "
        "load row by row and copy block by block",
        True,
        "",
    ]
    assert facts(START, A2)["device"]["nd2nz_refusal"] is None


# ---- the page ----


def test_the_page_asks_nobody_for_anything() -> None:
    bare = re.sub(r"""'sha256-[^']*'|id="words">[^<]*<""", "", PAGE)
    assert not re.search(r"https?:|//[a-z]|\bsrc=|\bimport\b|\bfetch\b|url\(", bare)
    assert "default-src 'none'" in PAGE
    assert "/*{" not in PAGE
    assert len(PAGE) < 3_000_000


def test_no_name_can_end_the_data() -> None:
    spec = A2.model_copy(update={"name": "</script><b>"})
    data = re.search(r'id="facts">(.*?)</script>', page(START, spec), re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["device"]["name"] == "</script><b>"


def test_a_page_begins_with_what_it_can_draw() -> None:
    message = (
        "layout: the page must begin with at most 65536 rows and columns, not 4 x 65537; "
        "take a smaller matrix"
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        page(Placement(4, 65537, INT8), A2)


@needs_node
def test_the_page_answers_as_in_a_browser() -> None:
    at = START.where(17, 33)
    cell = (
        '(id, y, x) => { const { cell, margin } = el(id); el(id).hear("pointermove", '
        "{clientX: margin.left + (x + 0.5) * cell.x, clientY: margin.top + (y + 0.5) * cell.y}); }"
    )
    costs = 'el("costs").children.map((row) => row.children.map((cell) => cell.textContent))'
    answers = page_says(
        f"var point = {cell}; el('told').textContent",
        "point('left-map', 17, 33); el('told').textContent",
        # Two fractals abreast: element (17, 33) is in the fourth one.
        "point('right-map', 17, 33); el('told').textContent",
        "point('right-map', 31, 63); el('told').textContent",
        "el('left-map').hear('keydown', {key: 'ArrowDown'}); el('told').textContent",
        f"el('next').hear('click'); {costs}",
        "el('wrong-intro').textContent",
        "point('wrong-map', 1, 0); el('wrong-told').textContent",
        "el('wrong-map').hear('keydown', {key: 'ArrowRight'}); el('wrong-told').textContent",
        "el('dtype').value = 'int4'; el('columns').value = '5'; el('choice').hear('input');"
        " [el('error').textContent, el('next').disabled]",
        "el('rows').value = '0'; el('choice').hear('input'); el('error').textContent",
        "el('rows').value = '4'; el('right').value = 'L0C'; el('choice').hear('input');"
        " el('error').textContent",
        scripts=SCRIPTS,
    )
    first, left, right, padding, down, table, intro, wrong, beside, odd, none, sums = answers
    assert first == (
        "(0, 0)   ND: element 0, byte 0   |   FRACTAL_NZ: element 0, byte 0, fractal 0"
    )
    assert left == (
        f"(17, 33)   ND: element 713, byte 713   |   "
        f"FRACTAL_NZ: element {at.element}, byte {at.byte}, fractal {at.fractal}"
    )
    assert right == left
    assert padding == "FRACTAL_NZ: element 2047, byte 2047 is padding"
    assert down.startswith("(18, 33)   ")
    moved, lines = asked(20, 40, INT8)
    assert [row[:5] for row in table][1:] == [
        ["burst 2", "40", "512", "1", "2"],
        ["so far", "80", str(asked(2, 40, INT8)[0]), "2", "4"],
        ["all", "800", str(moved), str(lines), "40"],
    ]
    found = taken_for(Placement(20, 40, INT8, "ND"), START)
    count = sum(got != place for place, got in enumerate(found))
    assert intro == (
        f"A kernel takes a matrix that lies as ND for FRACTAL_NZ: {count} of 800 elements are not "
        f"the ones it wants."
    )
    assert wrong == f"(1, 0) is wanted, and ({found[40] // 40}, {found[40] % 40}) is there"
    assert beside == f"(1, 1) is wanted, and ({found[41] // 40}, {found[41] % 40}) is there"
    assert odd == ["", True]
    assert none == "rows must be a whole number from 1 to 65536"
    assert sums == "L0C holds float32, int32, not int4"


@needs_node
def test_a_window_of_a_large_matrix_has_its_bytes() -> None:
    rows, columns, at = 5120, 25600, (1234, 5678)
    begin = f"el('rows').value = {rows}; el('columns').value = {columns};"
    begin += " el('row').value = 1170; el('column').value = 5650; el('choice').hear('input');"
    steps = (
        f"{begin} [el('row').value, el('column').value, el('seen').textContent]",
        f"choose({at[0]} - 1168, {at[1]} - 5632); el('told').textContent",
        "const g = memory_grid(state.now.right); [g.left(0), g.left(16)]",
        "el('wrong-intro').textContent",
    )
    (row, column, seen), told, lines, wrong = page_says(*steps, scripts=SCRIPTS)
    assert (row, column) == (1168, 5632)
    assert seen == "rows 1168 to 1295 of 5120, columns 5632 to 5759 of 25600"
    whole = Placement(rows, columns, INT8, "FRACTAL_NZ")
    place, flat = whole.where(*at), Placement(rows, columns, INT8, "ND").where(*at)
    assert f"ND: element {flat.element}, byte {flat.byte}   |" in told
    assert told.endswith(f"FRACTAL_NZ: element {place.element}, byte {place.byte}, fractal 56717")
    # Two fractals stand next to each other: below the first one lies the third one.
    assert lines == [str(whole.where(1168 + down, 5632).byte) for down in (0, 32)]
    assert wrong == (
        "A kernel takes a matrix that lies as ND for FRACTAL_NZ: 16384 of 16384 elements here are "
        "not the ones it wants."
    )


@needs_node
def test_bursts_are_counted_from_the_first_to_the_last() -> None:
    answers = page_says(
        "el('step-name').textContent",
        "el('step').value = '19'; el('step').hear('input');"
        " [el('step-name').textContent, el('costs').children[1].children[0].textContent]",
        scripts=SCRIPTS,
    )
    assert answers == ["0, burst 1 of 20", ["19, burst 20 of 20", "burst 20"]]


@needs_node
def test_layouts_are_offered_by_their_names() -> None:
    (names,) = page_says("el('right').children.map((option) => option.value)", scripts=SCRIPTS)
    assert names == ["ND", "FRACTAL_NZ", "Zz", "Zn", "NC1HWC0", "L0C"]
    assert "the capital is for the order of\nfractals, and the small letter for the order" in PAGE


@needs_node
def test_arrows_go_to_the_neighbour_on_the_map() -> None:
    answers = page_says(
        "var press = (id, key) => { el(id).hear('keydown', {key}); return state.chosen.join(); };"
        " press('right-matrix', 'ArrowRight')",
        "press('right-map', 'ArrowRight')",
        # A line of memory below (0, 2) is row 1 of the same fractal.
        "press('right-map', 'ArrowDown')",
        "el('right').value = 'Zn'; el('choice').hear('input'); press('right-map', 'ArrowRight')",
        "press('right-map', 'ArrowDown')",
        # Nothing is above the first row, and what is right of the last column is padding.
        "choose(0, 39);"
        " ['ArrowUp', 'ArrowRight'].map((key) => press('right-matrix', key)).join(' ')",
        scripts=SCRIPTS,
    )
    assert answers == ["0,1", "0,2", "1,2", "2,2", "2,3", "0,39 0,39"]


# ---- an Mmad ----

OPERANDS = {
    "Atlas A2": ("float16", "bfloat16", "float32", "int8", "int4"),
    "Atlas 300I Pro": ("float16", "int8"),
}


def example(rows: int, columns: int) -> Any:
    numbers = np.arange(rows * columns).reshape(rows, columns)
    return (numbers**2 + 3 * numbers) % 17 - 8


@needs_node
@pytest.mark.parametrize(("device", "dtypes"), OPERANDS.items())
def test_an_mmad_has_its_operands_where_the_layouts_say(device: str, dtypes: tuple[str]) -> None:
    spec = devices.load(device)
    known = facts(START, spec)["mmad"]["dtypes"]
    assert tuple(known) == dtypes
    sizes = [(1, 1, 1), (16, 16, 32), (17, 33, 64), (20, 32, 40)]
    calls = [(name, size) for name in dtypes for size in sizes]
    answers = page_says(
        *(
            f"(() => {{ const all = operands(F, {m}, {n}, {k}, '{name}');"
            f" return [products(all), ['a', 'b', 'c'].map((one) => [...Array(all[one].rows).keys()]"
            f".map((r) => [...Array(all[one].columns).keys()].map((c) => all[one].element(r, c)))),"
            f" products(all).map((s) => terms(all, s.row, s.column, s.k, s.end))]; }})()"
            for name, (m, n, k) in calls
        ),
        scripts=("map", "mmad"),
        spec=spec,
    )
    for (name, (m, n, k)), (steps, elements, terms) in zip(calls, answers, strict=True):
        dtype = dtype_named(name)
        sums = dtype_named("int32" if name.startswith("int") else "float32")
        a, b = Placement(m, k, dtype, "Zz"), Placement(k, n, dtype, "Zn")
        c = Placement(m, n, sums, "L0C")
        for made, own in zip((a, b, c), elements, strict=True):
            assert own == made.elements[: made.rows, : made.columns].tolist()
        assert a.fractal is not None
        depth = a.fractal[1]
        expected = [
            {
                "row": row, "column": column, "k": start, "end": min(start + depth, k),
                "a": a.where(row, start).fractal, "b": b.where(start, column).fractal,
                "c": c.where(row, column).fractal,
            }
            for column in range(0, n, 16) for row in range(0, m, 16) for start in range(0, k, depth)
        ]  # fmt: skip
        assert steps == expected
        gained: dict[tuple[int, int], int] = {}
        for step, found in zip(steps, terms, strict=True):
            at = step["row"], step["column"]
            assert [term["k"] for term in found] == list(range(step["k"], step["end"]))
            gained[at] = gained.get(at, 0) + sum(term["product"] for term in found)
        whole = example(m, k) @ example(k, n)
        assert gained == {at: whole[at] for at in gained}
        # 16 x 16 x k a cycle, of float32 four k: asc-devkit, see the device files.
        assert known[name] == {"sum": sums.name, "cycles": 2 if name == "float32" else 1}


@needs_node
def test_an_mmad_is_explained_step_by_step() -> None:
    say = "[el('mmad-step-name').textContent, el('mmad-told').textContent.split('\\n')[0]]"
    texts = "el('mmad-terms').children.map((row) => row.children[1].textContent)"
    answers = page_says(
        say,
        f"el('mmad-next').hear('click'); {say}",
        texts,
        "el('mmad-told').textContent.split('\\n')[1]",
        # Element (3, 20) of C, which lies in its third fractal, at the same k.
        "(() => { const map = el('mmad-c-matrix'), { cell, margin } = map; map.hear('pointerdown',"
        " {clientX: margin.left + 20.5 * cell.x, clientY: margin.top + 3.5 * cell.y});"
        f" return {say}; }})()",
        # From its row 3 down to row 15, and over the border to row 16.
        "[...Array(13)].forEach(() => el('mmad-c-memory').hear('keydown', {key: 'ArrowDown'}));"
        " [el('mmad-step-name').textContent,"
        " el('mmad-told').textContent.split(' = ')[0].split('\\n')[1]]",
        f"el('mmad-step').value = '7'; el('mmad-step').hear('input'); {say}",
        "el('mmad-c-caption').textContent",
        "el('mmad-k').value = '65'; el('mmad-choice').hear('input'); el('mmad-error').textContent",
        scripts=SCRIPTS,
    )
    cycle = "1 cycle of ascend910b2"
    a, b = Placement(20, 40, INT8, "Zz"), Placement(40, 32, INT8, "Zn")
    first = example(20, 40)[0], example(40, 32)[:, 0]
    before, gain = int(first[0][:32] @ first[1][:32]), int(first[0][32:] @ first[1][32:])
    assert answers == [
        [
            "step 1 of 8",
            "fractal 0 of C (byte 0 of L0C) += fractal 0 of A (byte 0 of L0A) @ "
            f"fractal 0 of B (byte 0 of L0B): {cycle}",
        ],
        [
            "step 2 of 8",
            "fractal 0 of C (byte 0 of L0C) += fractal 1 of A (byte 512 of L0A) @ "
            f"fractal 2 of B (byte 1024 of L0B): {cycle}",
        ],
        [
            "32", str(first[0][32]), str(a.where(0, 32).byte),
            str(first[1][32]), str(b.where(32, 0).byte), str(first[0][32] * first[1][32]),
        ],
        f"C(0, 0) = {before} + A(0, 32 to 39) · B(32 to 39, 0) = {before} + {gain} = "
        f"{before + gain}",
        [
            "step 6 of 8",
            "fractal 2 of C (byte 2048 of L0C) += fractal 1 of A (byte 512 of L0A) @ "
            f"fractal 3 of B (byte 1536 of L0B): {cycle}",
        ],
        ["step 8 of 8", "C(16, 20)"],
        [
            "step 8 of 8",
            "fractal 3 of C (byte 3072 of L0C) += fractal 3 of A (byte 1536 of L0A) @ "
            f"fractal 3 of B (byte 1536 of L0B): {cycle}",
        ],
        "C, 20 x 32 int32, in L0C: 4096 bytes",
        "k must be a whole number from 1 to 64",
    ]  # fmt: skip


# ---- in a browser ----

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
LOOK = """((css, row, column) => {
  const map = document.querySelector(css), scale = window.devicePixelRatio;
  const [y, x] = map.grid.place(map.of.element(row, column));
  const at = (margin, cell, n) => Math.round((margin + (n + 0.5) * cell) * scale);
  const pixel = [at(map.margin.left, map.cell.x, x), at(map.margin.top, map.cell.y, y)];
  // A copy, since the browser warns of maps that are read again and again.
  const copy = new OffscreenCanvas(1, 1).getContext("2d");
  copy.drawImage(map, ...pixel, 1, 1, 0, 0, 1, 1);
  const [r, g, b] = copy.getImageData(0, 0, 1, 1).data;
  return "#" + [r, g, b].map((part) => part.toString(16).padStart(2, "0")).join("");
})"""
"""The colour in the middle of an element on a map."""
SET = """((id, value) => {
  const field = document.getElementById(id);
  if (field.type === "checkbox") field.checked = value; else field.value = value;
  field.dispatchEvent(new Event("input", {bubbles: true}));
})"""


def opened(browser: Browser, path: Path, width: int, scheme: str) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **metrics)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.call("Emulation.setEmulatedMedia", features=[feature])
    path.write_text(PAGE, encoding="utf-8")
    browser.open(path)


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (360, "dark")])
def test_elements_have_the_colour_of_their_fractal(tmp_path: Path, width: int, scheme: str) -> None:
    shades = {"light": SHADES, "dark": DARK_SHADES}[scheme]
    with Browser(tmp_path / "profile") as browser:
        opened(browser, tmp_path / "layout.html", width, scheme)
        browser.evaluate(f"{SET}('walk', false)")
        # Even rows have no darker stripe, and nothing is written here.
        for row, column in ((2, 3), (16, 1), (0, 34), (18, 33)):
            fractal = START.where(row, column).fractal
            assert fractal is not None
            for css in ("#left-matrix", "#left-map", "#right-matrix", "#right-map", "#nz-map"):
                if css == "#nz-map" and row == 0:
                    continue  # The first burst is marked.
                assert browser.evaluate(f"{LOOK}('{css}', {row}, {column})") == shades[fractal]
        assert browser.evaluate("document.scrollingElement.scrollWidth") <= width
        paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        assert browser.complaints == []


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (360, "dark")])
def test_no_two_layouts_look_alike(tmp_path: Path, width: int, scheme: str) -> None:
    with Browser(tmp_path / "profile") as browser:
        opened(browser, tmp_path / "layout.html", width, scheme)
        for dtype, names in (("float32", list(ORDERS)), ("int8", list(ORDERS)[:-1])):
            browser.evaluate(f"{SET}('rows', 32), {SET}('columns', 64), {SET}('dtype', '{dtype}')")
            for css in ("#right-matrix", "#right-map"):
                seen = [
                    browser.evaluate(
                        f"({SET}('right', '{name}'), document.querySelector('{css}').toDataURL())"
                    )
                    for name in names
                ]
                assert len(set(seen)) == len(names), (dtype, css)


@needs_chromium
def test_numbers_have_the_room_they_need(tmp_path: Path) -> None:
    cell = "(({has_text, cell}) => [has_text, cell.x])(document.querySelector('#right-map'))"
    with Browser(tmp_path / "profile") as browser:
        opened(browser, tmp_path / "layout.html", 360, "light")
        has_text, small = browser.evaluate(cell)
        assert not has_text
        browser.evaluate(f"{SET}('numbers', true)")
        has_text, large = browser.evaluate(cell)
        longest = browser.evaluate(
            "(() => { const pen = document.querySelector('#right-map').getContext('2d');"
            " return pen.measureText('19,39').width; })()"
        )
        assert has_text
        assert large > longest > small
        assert browser.evaluate("document.scrollingElement.scrollWidth") <= 360


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (360, "dark")])
def test_an_mmad_is_stepped_through_in_a_browser(tmp_path: Path, width: int, scheme: str) -> None:
    marked = {"light": "#f2a57a", "dark": "#a8541a"}[scheme]
    text = "document.querySelector('{}').textContent".format
    with Browser(tmp_path / "profile") as browser:
        opened(browser, tmp_path / "layout.html", width, scheme)
        browser.point("#mmad-next", 5, 5, click=True)
        assert browser.evaluate(text("#mmad-step-name")) == "step 2 of 8"
        # The terms of C(0, 0) at k = 32 to 39, and no others.
        for css, at, is_marked in (
            ("a", (0, 36), True), ("a", (0, 20), False), ("a", (2, 36), False),
            ("b", (36, 0), True), ("b", (36, 1), False), ("c", (0, 0), True),
        ):  # fmt: skip
            for kind in ("matrix", "memory"):
                color = browser.evaluate(f"{LOOK}('#mmad-{css}-{kind}', {at[0]}, {at[1]})")
                assert (color == marked) == is_marked, (css, at, kind)
        left, top, x, y = browser.evaluate(
            "(() => { const {margin, cell} = document.querySelector('#mmad-c-memory');"
            " return [margin.left, margin.top, cell.x, cell.y]; })()"
        )
        browser.point("#mmad-c-memory", left + 3.5 * x, top + 2.5 * y, click=True)
        assert "C(2, 3) = " in browser.evaluate(text("#mmad-told"))
        browser.point("#mmad-play", 5, 5, click=True)
        assert browser.evaluate(text("#mmad-play")) == "stop"
        assert browser.complaints == []


@needs_chromium
def test_a_browser_shows_the_page_without_a_complaint(tmp_path: Path) -> None:
    path = tmp_path / "layout.html"
    path.write_text(PAGE, encoding="utf-8")
    text = "document.querySelector('{}').textContent".format
    with Browser(tmp_path / "profile") as browser:
        browser.open(path)
        place = (
            "(() => {{ const map = document.querySelector('{}');"
            " return [map.margin.left + ({} + 0.5) * map.cell.x,"
            " map.margin.top + ({} + 0.5) * map.cell.y]; }})()"
        ).format
        browser.point("#left-map", *browser.evaluate(place("#left-map", 3, 2)))
        assert browser.evaluate(text("#told")).startswith("(2, 3)   ND: element 83")
        at = START.where(17, 33)
        browser.point("#right-map", *browser.evaluate(place("#right-map", 33, 17)))
        assert browser.evaluate(text("#told")).endswith(f"byte {at.byte}, fractal {at.fractal}")
        assert browser.evaluate(f"{LOOK}('#right-map', 17, 33)") == "#f2a57a"
        browser.point("#next", 5, 5, click=True)
        assert browser.evaluate(text("#step-name")) == "1, burst 2 of 20"
        browser.point("#play", 5, 5, click=True)
        assert browser.evaluate(text("#play")) == "stop"
        browser.point("#play", 5, 5, click=True)
        browser.evaluate(
            "(() => { const type = document.querySelector('#dtype'); type.value = 'float32';"
            " type.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )
        assert "20 x 40 float32 as FRACTAL_NZ, 5120 bytes" in browser.evaluate(
            text("#right-caption")
        )
        assert browser.requests == [path.as_uri()]
        assert browser.complaints == []


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_the_page_is_in_chinese_too(tmp_path: Path) -> None:
    path = tmp_path / "layout.html"
    path.write_text(PAGE, encoding="utf-8")
    with Browser(tmp_path / "profile") as browser:
        browser.open(path)
        browser.evaluate("spoken.then(() => words.button.click())")
        browser.evaluate("new Promise((done) => setTimeout(done, 200))")
        seen = browser.evaluate("document.body.innerText")
        assert "矩阵与内存" in seen
        assert re.search(r"ND：元素 0，字节 0 \| FRACTAL_NZ：元素 0", seen)
        assert "C 的分形 0（L0C 的字节 0） += A 的分形 0" in seen
        left = re.findall(r"[a-z]{3,} [a-z]{3,}", seen)
        assert left == []
        assert "lang=zh" in browser.evaluate("location.hash")
        assert browser.complaints == []


@needs_axe
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (360, "dark")])
def test_axe_finds_nothing(tmp_path: Path, width: int, scheme: str) -> None:
    path = tmp_path / "layout.html"
    path.write_text(PAGE, encoding="utf-8")
    with Browser(tmp_path / "profile") as browser:
        shown(browser, path, width, scheme)
        assert violations(browser) == []
        browser.evaluate(f"{SET}('rows', 64), {SET}('columns', 64), {SET}('mmad-m', 0)")
        assert violations(browser) == []
