"""Where another line becomes the fastest, and the picture that marks it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from sweeping import OP, made

from npusim.sweeps import Outcome, Row, Sweep
from npusim.sweeps.cells import Cell
from npusim.sweeps.crossovers import Crossover, axis_of, crossovers, label_of, leaders, lines
from npusim.sweeps.page import page
from npusim.sweeps.picture import PICTURE, draw, write

A2, P3 = "ascend910b2", "ascend310p3"


def test_a_line_that_becomes_faster_crosses() -> None:
    sweep = made({(A2, None): {1: 5, 2: 6, 4: 7}, (P3, None): {1: 3, 2: 6, 4: 12}})
    (found,) = crossovers(sweep)
    # Equal at 2: the first one leads until another is truly faster.
    assert found == Crossover({}, "device", "m", 2, 4, P3, A2, 7)
    assert str(found) == "between m = 2 and 4 ascend910b2 becomes faster than ascend310p3"


def test_lines_that_only_touch_do_not_cross() -> None:
    assert crossovers(made({(A2, None): {1: 5, 2: 6}, (P3, None): {1: 5, 2: 7}})) == ()
    assert crossovers(made({(A2, None): {1: 5, 2: 7}, (P3, None): {1: 5, 2: 6}})) == ()


def test_a_line_that_begins_or_ends_crosses_none() -> None:
    assert crossovers(made({(A2, "a"): {1: 5, 2: 6}, (A2, "b"): {1: None, 2: 4}})) == ()
    assert crossovers(made({(A2, "a"): {1: 5, 2: None}, (A2, "b"): {1: 7, 2: 8}})) == ()


def test_templates_compete_on_a_chip_and_chips_in_a_template() -> None:
    sweep = made(
        {
            (A2, None): {1: 1, 2: 4},
            (A2, "a"): {1: 1, 2: 5},
            (A2, "b"): {1: 2, 2: 4},
            (P3, "a"): {1: 3, 2: 3},
        }
    )
    assert crossovers(sweep) == (
        Crossover({"template": "a"}, "device", "m", 1, 2, A2, P3, 3),
        Crossover({"device": A2}, "template", "m", 1, 2, "a", "b", 4),
    )
    assert str(crossovers(sweep)[1]) == (
        "between m = 1 and 2 b becomes faster than a (ascend910b2)"
    )
    assert [line.label for line in lines(sweep)] == [
        *("ascend910b2, the vendor's choice", "ascend910b2, a", "ascend910b2, b"),
        "ascend310p3, a",
    ]


def test_what_lines_have_in_common_is_named_as_on_the_picture() -> None:
    among = {"device": A2, "gm.read_bytes_per_s": "x2", "n": 512}
    assert str(Crossover(among, "template", "m", 1, 2, "a", "b", 4)) == (
        "between m = 1 and 2 b becomes faster than a "
        "(ascend910b2, gm.read_bytes_per_s = x2, n = 512)"
    )


times = st.dictionaries(st.integers(1, 6), st.integers(1, 9) | st.none(), min_size=2)


@given(times, times)
def test_a_crossover_is_where_the_order_changes(one: dict[int, int], two: dict[int, int]) -> None:
    sweep = made({(A2, None): one, (P3, None): two})
    for each in crossovers(sweep):
        fast, slow = (one, two) if each.faster == A2 else (two, one)
        assert fast[each.at] == each.time_us < slow[each.at]
        assert any(
            (slow[value] or 99) < (fast[value] or 0) for value in set(one) & set(two)
            if value < each.at
        )  # fmt: skip


def test_without_numbers_there_is_no_axis() -> None:
    sweep = made({(A2, None): {"x": 1, "y": 2}})
    assert axis_of(sweep) is None
    assert crossovers(sweep) == ()


# ---- which is the fastest where ----


def test_a_line_leads_only_where_it_is_the_fastest() -> None:
    slow = {1: 5, 2: 6, 4: 7, 8: 9, 16: 12}
    sweep = made({(A2, None): slow, (P3, None): {1: 6, 2: 5, 4: 8, 8: 10, 16: 4}})
    (found,) = leaders(sweep)
    assert found.fastest == {A2: (1, 4, 8), P3: (2, 16)}
    assert str(found) == "ascend310p3 is the fastest at m = 2, 16; ascend910b2 at all others tried"
    assert found.stretches(A2) == "1, 4 to 8"
    (always,) = leaders(made({(A2, None): {1: 1, 2: 1}, (P3, None): {1: 2, 2: 2}}))
    assert str(always) == "ascend910b2 is the fastest at every m tried"
    assert leaders(made({(A2, None): {1: 1, 2: 1}})) == ()


@pytest.mark.parametrize(
    ("shapes", "label"),
    [
        (("1x8", "2x8"), "rows of x"),
        (("8x1", "8x2"), "columns of x"),
        (("1", "2"), "x"),
        (("1x8", "3x8"), "x"),
    ],
)
def test_a_variable_is_called_by_the_extent_that_it_is(shapes: tuple[str, ...], label: str) -> None:
    rows = tuple(
        Row(
            Cell(A2, None, {}, {"x": value}, {"x": f"spec:{shape}:float16"}, False, None, None),
            Outcome(time_us=1.0),
        )
        for value, shape in enumerate(shapes, 1)
    )
    sweep = Sweep(OP, (), ("x",), rows)
    assert label_of(sweep, "x") == label
    assert draw(sweep).get_xlabel() == label


# ---- pictures ----


def test_lines_rings_and_scales_are_drawn() -> None:
    slow = {1: 2.0, 4: 20.0, 64: 100.0}
    fast = {1: 3.0, 4: 10.0, 64: 50.0}
    ax = draw(made({(A2, "a"): slow, (A2, "b"): fast}))
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_title("left") == f"{OP}: {A2}"
    drawn = {line.get_label(): list(line.get_ydata()) for line in ax.get_lines()}
    assert drawn["a"] == [2, 20, 100]
    assert drawn["b"] == [3, 10, 50]
    assert [text.get_text() for text in ax.texts] == ["m = 4"]
    (ring,) = ax.collections
    assert ring.get_offsets().tolist() == [[4, 10]]
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [*("a", "b", "crossover")]


def test_short_ranges_have_plain_axes_from_zero() -> None:
    ax = draw(made({(A2, None): {1: 2.0, 2: 3.0, 3: 4.0}}))
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "linear")
    assert ax.get_ylim()[0] == 0
    assert ax.get_legend() is None


def test_without_an_axis_there_is_a_bar_a_cell() -> None:
    ax = draw(made({(A2, None): {"x": 1.0, "y": None}, (P3, None): {"x": 2.0, "y": 3.0}}))
    assert [bar.get_width() for bar in ax.patches] == [1, 2, 3]
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        *("ascend910b2, m = x", "ascend310p3, m = x", "ascend310p3, m = y")
    ]


def test_nothing_to_draw_is_said() -> None:
    with pytest.raises(ValueError) as caught:
        draw(made({(A2, None): {1: None, 2: None}}))
    assert str(caught.value) == (
        "sweep: a cell at least must have a time to be drawn, but all 2 were refused; see their "
        "messages"
    )


def test_a_picture_is_the_same_bytes_again_and_has_no_box_around(tmp_path: Path) -> None:
    sweep = made({(A2, "a"): {1: 2.0, 2: 5.0}, (A2, "b"): {1: 3.0, 2: 4.0}})
    pictures = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        assert write(sweep, tmp_path / name) == PICTURE
        pictures.append((tmp_path / name / PICTURE).read_bytes())
    assert pictures[0] == pictures[1]
    pixels = imread(tmp_path / "one" / PICTURE)
    assert pixels.shape[:2] == (500, 1000)
    edges = (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1])
    assert all((edge[..., :3] == 1).all() for edge in edges)


@pytest.mark.parametrize("count", [1, 2, 12])
def test_bars_are_of_one_height_however_many_there_are(tmp_path: Path, count: int) -> None:
    write(made({(A2, None): {f"w{place}": 2.0 for place in range(count)}}), tmp_path)
    pixels = imread(tmp_path / PICTURE)
    assert pixels.shape[:2] == (100 + 24 * count, 1000)
    assert (pixels[0, :, :3] == 1).all()


# ---- the page ----


def test_a_page_begins_with_which_is_the_fastest_where() -> None:
    text = page(made({(A2, None): {1: 5.0, 2: 6.0, 4: 7.0}, (P3, None): {1: 6.0, 2: 7.0, 4: 3.0}}))
    assert re.findall(r"<div><b>(.*?)</b>(.*?)</div>", text) == [
        ("2 of 3", f"{A2}: the fastest at m = 1 to 2"),
        ("1 of 3", f"{P3}: the fastest at m = 4"),
        ("3.00 us", f"shortest: device {P3}, m 4"),
        ("6", "of 6 cells timed, 0 refused"),
    ]
    assert f"<p>{P3} is the fastest at m = 4; {A2} at all others tried.</p>" in text
    assert text.count("<tr>") == 1 + 6
    assert text.index("<svg") < text.index("<nav>") < text.index("<table>")


def test_a_page_of_bars_has_the_extremes() -> None:
    text = page(made({(A2, None): {"x": 1.0, "y": None}, (P3, None): {"x": 2.0, "y": 3.0}}))
    assert re.findall(r"<div><b>(.*?)</b>", text) == ["1.00 us", "3.00 us", "3"]
    assert "of 4 cells timed, 1 refused" in text
