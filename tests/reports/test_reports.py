"""Pictures: the rows behind them as data, then what is drawn, by artist."""

import re
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.cbook import is_math_text
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.text import Text
from played import Played, lane, trace

import npusim
from npusim import TensorSpec
from npusim.data.dtypes import FLOAT32, INT8
from npusim.isa import Barrier, Binary, Cast, Global, Load, Local, SetFlag, Store, WaitFlag
from npusim.reports import compare, gallery, labels, pipes, style, subject, timeline
from npusim.reports.bars import Bar
from npusim.run import Run
from npusim.trace import LaneTrace, Trace

X = Local("ub", 0, FLOAT32, 8)
Y = Local("ub", 64, INT8, 8)
LOAD = Load(X, Global("input", 0, 32))
MUL = Binary("mul", X, X, X)
CAST = Cast(Y, X, "rint")
STORE = Store(Global("output", 0, 32), Y)

CHAIN = (
    (LOAD, 0, 100, 300),
    (SetFlag("mte2", "vector", 0), 100, 101, 301),
    (MUL, 301, 400, 420),
    (Barrier("vector"), 400, 421, 421),
    (CAST, 421, 500, 550),
    (STORE, 551, 800, 1000),
)


def short(bars: list[Bar]) -> list[tuple[object, ...]]:
    return [
        (bar.cores, bar.pipe, ",".join(bar.names), bar.start_us, bar.free_us, bar.end_us)
        for bar in bars
    ]


@pytest.fixture(scope="module")
def small() -> Run:
    x = np.linspace(-2, 2, 72, dtype=np.float32).reshape(2, 3, 12)
    scales = np.full(12, 3, np.float32)
    return npusim.run("npu_quantize", x, scales, None, "qint8", -1, False, device="ascend310p3")


@pytest.fixture(scope="module")
def large() -> Run:
    x, scale = TensorSpec((8192, 8192), "float16"), TensorSpec((1,), "float16")
    return npusim.run("npu_quantize", x, scale, None, "qint8", -1, False, device="ascend310p3")


# ---- bars as data ----


def test_bars_are_micro_ops_by_pipe_without_flags_and_barriers() -> None:
    assert short(timeline.rows(trace(lane((0,), *CHAIN)))) == [
        ((0,), "mte2", "load", 0, 100, 300),
        ((0,), "vector", "mul", 301, 400, 420),
        ((0,), "vector", "cast.rint", 421, 500, 550),
        ((0,), "mte3", "store", 551, 800, 1000),
    ]


def test_cycles_become_microseconds() -> None:
    played = Trace((lane((0,), *CHAIN),), 2_000_000_000)

    assert short(timeline.rows(played))[0] == ((0,), "mte2", "load", 0, 0.05, 0.15)


def test_cores_that_ran_alike_share_their_bars() -> None:
    played = trace(lane((0, 1), *CHAIN), lane((3,), *CHAIN), lane((2,), (LOAD, 0, 9, 10)))

    assert {bar.cores for bar in timeline.rows(played)} == {(0, 1, 3)}


@pytest.mark.parametrize(
    "other",
    [
        lane((1,), (LOAD, 0, 100, 301)),
        lane((1,), (STORE, 0, 100, 300)),
        lane((1,), (LOAD, 0, 100, 300), kind="aic"),
    ],
)
def test_cores_that_differ_in_anything_do_not(other: LaneTrace) -> None:
    played = trace(lane((0,), (LOAD, 0, 100, 300)), other)

    assert [bar.cores for bar in timeline.rows(played, [0, 1])] == [(0,), (1,)]


def test_the_slowest_core_of_each_kind_is_shown() -> None:
    played = trace(
        lane((0,), (LOAD, 0, 10, 20), kind="ai_core"),
        lane((1,), (LOAD, 0, 10, 90), kind="ai_core"),
        lane((2,), (LOAD, 0, 10, 30), kind="ai_core"),
        lane((8,), (LOAD, 0, 10, 40), kind="vector_core"),
        lane((9,), (LOAD, 0, 10, 50), kind="vector_core"),
    )

    assert [bar.cores for bar in timeline.rows(played)] == [(1,), (9,)]
    assert [bar.cores for bar in timeline.rows(played, [9, 2])] == [(2,), (9,)]


def test_bars_between_the_same_two_pixels_are_one() -> None:
    played = trace(
        lane((0,), (MUL, 0, 4, 5), (MUL, 6, 8, 9), (MUL, 10, 12, 20), (STORE, 20, 10_000, 10_000))
    )
    bar = timeline.rows(played)[0]

    assert short([bar]) == [((0,), "vector", "mul", 0, 12, 20)]
    assert (bar.micro_ops, bar.held_us, bar.share) == (3, 8, pytest.approx(8 / 12))
    # From close up they are apart again.
    assert len(timeline.rows(played, start_us=0, end_us=100)) == 4


def test_a_long_run_keeps_its_shape() -> None:
    dense = [(MUL, 10 * i, 10 * i + 9, 10 * i + 9) for i in range(10_000)]
    sparse = [(MUL, 10 * i, 10 * i + 3, 10 * i + 3) for i in range(10_000, 20_000)]
    found = timeline.rows(trace(lane((0,), *dense, *sparse)))

    assert len(found) == 100
    assert {round(bar.width_us, -2) for bar in found[:49]} == {2000}
    assert [round(bar.share, 1) for bar in found[:49]] == 49 * [0.9]
    assert [round(bar.share, 1) for bar in found[51:]] == 49 * [0.3]
    assert sum(bar.micro_ops for bar in found) == 20_000


def test_a_merged_bar_knows_the_mnemonics_of_all() -> None:
    played = trace(
        lane((0,), (MUL, 0, 1, 1), (CAST, 1, 2, 9), (MUL, 2, 3, 3), (STORE, 3, 4000, 4000))
    )

    assert short(timeline.rows(played))[0] == ((0,), "vector", "mul,cast.rint", 0, 3, 9)


def test_wide_bars_stay_apart_though_they_touch() -> None:
    played = trace(lane((0,), (LOAD, 0, 100, 300), (LOAD, 100, 200, 400), (LOAD, 200, 201, 401)))

    assert [bar.start_us for bar in timeline.rows(played)] == [0, 100, 200]


def test_an_empty_stretch_is_refused() -> None:
    message = "reports: start_us must be less than end_us = 5, not 5; the cores take 1000 us"
    with pytest.raises(ValueError, match=f"^{message}$"):
        timeline.rows(trace(lane((0,), *CHAIN)), start_us=5, end_us=5)


def test_a_core_that_did_not_work_is_refused() -> None:
    message = "trace: core must be one of 0, not 7; see Trace.cores"
    with pytest.raises(ValueError, match=f"^{message}$"):
        timeline.rows(trace(lane((0,), *CHAIN)), [7])


# ---- labels as data ----


def bars(*times: tuple[str, float, float, float]) -> list[Bar]:
    return [
        Bar((0,), "aiv", "vector", (name,), start, free, end, free - start)
        for name, start, free, end in times
    ]


def labelled(found: list[Bar], lane_pixels: float = 100) -> list[tuple[str, bool]]:
    """At one pixel a microsecond, a thousand of which are shown."""
    scale = labels.Scale(1.0, lane_pixels, 100 / 72, 1000.0)
    return [(label.text, label.is_upright) for label in labels.labels(found, scale)]


def test_a_bar_is_named_along_it_or_into_the_gap_behind() -> None:
    found = bars(("load", 0, 20, 300), ("load", 400, 402, 402))
    scale = labels.Scale(1.0, 100, 100 / 72, 1000.0)

    assert [(round(x.x_us, 2), x.text, x.is_upright) for x in labels.labels(found, scale)] == [
        (4.17, "load", False),
        (404.17, "load", False),
    ]


def test_bars_of_one_mnemonic_are_counted() -> None:
    found = bars(*(("load", 20 * i, 20 * i + 20, 200) for i in range(7)))

    assert labelled(found) == [("load ×7", False)]


def test_mixed_bars_are_named_upright() -> None:
    found = bars(("mul", 0, 9, 18), ("cast.rint", 19, 30, 38), ("cast.none", 39, 50, 58))
    names = ["mul", "cast.rint", "cast.none"]

    assert labelled(found) == [(name, True) for name in names]
    assert labelled(found, lane_pixels=40) == [("mul", True), ("cast", True), ("cast", True)]


def test_narrow_bars_are_named_beside_their_cluster() -> None:
    found = bars(("mul", 0, 2, 3), ("cast.rint", 4, 6, 7), ("cast.none", 8, 10, 11))

    assert labelled(found) == [("mul, cast", False)]


def test_without_room_there_is_no_name() -> None:
    found = bars(*((("mul", "add")[i % 2], 8.0 * i, 8 * i + 3, 8 * i + 7) for i in range(125)))

    assert labelled(found) == []
    assert labelled(bars(*(("load", 8 * i, 8 * i + 7, 8 * i + 7) for i in range(125)))) == []


# ---- the timeline ----


def boxes(ax: Axes, color: str) -> list[tuple[float, ...]]:
    """Left, right, top and bottom of all bars of one colour."""
    found = []
    for patch in ax.patches:
        if to_hex(patch.get_facecolor()).upper() == color.upper():
            (left, top), (right, bottom) = patch.get_corners().min(0), patch.get_corners().max(0)
            found.append(tuple(round(float(x), 3) for x in (left, right, top, bottom)))
    for collection in ax.collections:
        faces = collection.get_facecolor()
        if len(faces) and to_hex(faces[0]).upper() == color.upper():
            for path in collection.get_paths():
                (left, low), (right, high) = path.vertices.min(0), path.vertices.max(0)
                found.append(tuple(round(float(x), 3) for x in (left, right, low, high)))
    return found


def test_bars_are_solid_while_the_pipe_is_held_and_light_until_the_result(ax: Axes) -> None:
    drawn = timeline.timeline(trace(lane((0,), *CHAIN)), ax=ax)

    assert drawn is ax
    assert boxes(ax, style.COLORS["mte2"]) == [(0, 100, 0.7, 1.5)]
    assert boxes(ax, style.tint(style.COLORS["mte2"])) == [(100, 300, 0.7, 1.5)]
    assert boxes(ax, style.COLORS["vector"]) == [(301, 400, 1.7, 2.5), (421, 500, 1.7, 2.5)]
    assert boxes(ax, style.COLORS["mte3"]) == [(551, 800, 2.7, 3.5)]


def test_the_timeline_says_what_it_shows(ax: Axes) -> None:
    timeline.timeline(trace(lane((0, 1), *CHAIN)), ax=ax)

    assert ax.get_title(loc="left") == "mte3 busy 45 % of 1000.0 us"
    assert ax.get_xlabel() == "time since the cores started (us)"
    assert ax.get_xlim() == (0, pytest.approx(1012))
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["mte2", "vector", "mte3"]
    assert [text.get_text() for text in ax.texts] == [
        "load",
        "mul",
        "cast.rint",
        "store",
        "cores 0-1 (aiv)",
    ]
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "holds its pipe",
        "result on its way",
    ]


def test_a_run_lends_its_names_to_the_title(small: Run, ax: Axes) -> None:
    assert small.trace is not None
    pipe, share = subject.busiest(small.trace)
    timeline.timeline(small, ax=ax)

    assert ax.get_title(loc="left") == (
        f"npu_quantize on ascend310p3: {pipe} busy {style.percent(share)} "
        f"of {style.time_named(subject.elapsed_us(small.trace))}"
    )


def test_a_small_run_names_its_micro_ops(small: Run, ax: Axes) -> None:
    timeline.timeline(small, ax=ax)
    chain = ["mul", "cast.rint", "cast.none", "cast.round"]

    assert [text.get_text() for text in ax.texts] == [
        "load ×7",
        *(6 * chain),
        "store ×6",
        "core 0 (ai_core)",
    ]


def test_arrows_to_the_last_moment_are_whole_and_below_the_labels() -> None:
    """As in a kernel that ends with a wait for what its last store leaves free."""
    done = ("mte3", "vector", 0)
    played = trace(
        lane((0,), (MUL, 0, 20, 30), (STORE, 30, 60, 100), (SetFlag(*done), 60, 61, 100),
             (WaitFlag(*done), 20, 100, 100))
    )  # fmt: skip
    figure = Figure((10, 3), dpi=100, layout="constrained")
    ax = figure.subplots()
    timeline.timeline(played, ax=ax)
    figure.draw_without_rendering()

    (arrow,) = (patch for patch in ax.patches if isinstance(patch, FancyArrowPatch))
    assert arrow.get_path().vertices[:, 0].max() > 99  # type: ignore[index]
    box = arrow.get_window_extent()
    assert ax.bbox.x0 < box.x0 < box.x1 < ax.bbox.x1
    labels = [text for text in ax.texts if text.get_text() in ("mul", "store")]
    assert len(labels) == 2
    for label in labels:
        assert label.get_zorder() > arrow.get_zorder()
        assert label.get_path_effects()


def test_a_title_begins_with_the_name_that_was_given(small: Run, ax: Axes) -> None:
    timeline.timeline(small, name="two buffers", ax=ax)
    assert ax.get_title(loc="left").startswith("two buffers: vector busy ")


def test_of_several_kernels_the_title_names_the_one() -> None:
    played = Played(trace(lane((0,), *CHAIN)), template="msd")
    names = {picture.name: figure.axes[0].get_title(loc="left")
             for picture, figure in gallery.figures(played)}  # fmt: skip
    assert len(names) > 6
    assert {title.partition(":")[0] for title in names.values()} == {
        "npu_made (msd) on ascend910b2"
    }


def texts(figure: Figure) -> dict[str, tuple[float, float, float, float]]:
    """What can be read -> its left, lower, right and upper edge in pixels; the legend is one."""
    figure.draw_without_rendering()
    (ax,) = figure.axes
    shown = [text for text in ax.findobj(Text) if text.get_visible() and text.get_text().strip()]
    legend = ax.get_legend()
    own = legend.findobj(Text) if legend else []
    outside = [
        tick.label1
        for axis in (ax.xaxis, ax.yaxis)
        for tick in axis.get_major_ticks()
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    ]
    found = {
        text.get_text(): text.get_window_extent().extents.tolist()
        for text in shown
        if text not in own and text not in outside and text.get_clip_box() is None
    }
    if legend:
        found["the legend"] = legend.get_window_extent().extents.tolist()
    return found


def test_nothing_of_a_report_is_cut_or_written_over_the_legend() -> None:
    run = npusim.run(
        *("npu_weight_quant_batchmatmul", TensorSpec((16, 512), "float16")),
        *(TensorSpec((512, 1024), "int8"), TensorSpec((1024,), "float16")),
        template="custom",
        device="ascend910b2",
    )
    for picture, figure in gallery.figures(run):
        found = texts(figure)
        width, height = figure.bbox.size
        for text, (left, lower, right, upper) in found.items():
            inside = left > -1 and lower > -1 and right < width + 1 and upper < height + 1
            assert inside, (picture.name, text)
        if not picture.name.startswith("roofline"):
            over = found.pop("the legend", (0.0, 0.0, 0.0, 0.0))
            for text, (left, lower, right, upper) in found.items():
                apart = right < over[0] or over[2] < left or upper < over[1] or over[3] < lower
                assert apart, (picture.name, text)


def test_a_long_title_is_broken_and_not_cut() -> None:
    figure = Figure((10, 3), dpi=100, layout="constrained")
    ax = figure.subplots()
    words = "mte2 of aic waits " * 10
    style.title(ax, f"who: {words}")
    figure.draw_without_rendering()

    lines = ax.get_title(loc="left").split("\n")
    assert (lines[0], " ".join(lines[1:])) == ("who:", words.strip())
    (drawn,) = (text for text in ax.get_children()
                if isinstance(text, Text) and text.get_text().startswith("who:"))  # fmt: skip
    assert drawn.get_window_extent().x1 < figure.bbox.x1


def test_a_stretch_is_shown_alone(ax: Axes) -> None:
    timeline.timeline(trace(lane((0,), *CHAIN)), start_us=350, end_us=450, ax=ax)

    assert ax.get_xlim() == (350, 450)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["vector"]


def test_a_long_run_draws_few_bars(large: Run, ax: Axes) -> None:
    timeline.timeline(large, ax=ax)

    assert large.trace is not None
    assert large.trace.micro_ops > 30_000
    assert len(ax.patches) < 4000
    assert ax.texts[-1].get_text().endswith(" (vector_core)")


def test_bars_of_several_micro_ops_are_as_high_as_they_hold_their_pipe(ax: Axes) -> None:
    times = ((MUL, 10 * i, 10 * i + 5, 10 * i + 5) for i in range(10_000))
    timeline.timeline(trace(lane((0,), *times)), ax=ax)
    found = boxes(ax, style.COLORS["vector"])

    assert {box[3] for box in found} == {1.5}
    assert all(box[2] == pytest.approx(1.1, abs=0.01) for box in found[:-1])
    # They leave no seams.
    assert [box[1] for box in found[:-1]] == [box[0] for box in found[1:]]
    legend = ax.get_legend()
    assert legend is not None
    assert legend.get_texts()[-1].get_text() == "height: share of the time that it is held"


def test_neighbours_of_one_micro_op_each_are_parted_by_a_line(ax: Axes) -> None:
    timeline.timeline(trace(lane((0,), (LOAD, 0, 100, 300), (LOAD, 100, 200, 400))), ax=ax)
    lines = ax.collections[-1].get_segments()  # type: ignore[attr-defined]

    assert [line[0][0] for line in lines] == [100]


def test_the_shortest_micro_op_is_still_seen(ax: Axes) -> None:
    timeline.timeline(trace(lane((0,), (MUL, 0, 1, 1), (STORE, 1, 100_000, 100_000))), ax=ax)

    assert boxes(ax, style.COLORS["vector"]) == [(0, 100, 0.7, 1.5)]


# ---- how busy pipes were ----


def test_rows_compare_the_slowest_core_with_the_mean() -> None:
    played = trace(
        lane((0, 1), (LOAD, 0, 50, 100), (MUL, 100, 110, 140)),
        lane((2,), (LOAD, 0, 50, 160), (STORE, 160, 170, 200)),
    )

    assert pipes.rows(played) == [
        pipes.Row("aiv", 2, 3, "mte2", 0.8, pytest.approx(0.6)),
        pipes.Row("aiv", 2, 3, "vector", 0.0, pytest.approx(0.4 / 3)),
        pipes.Row("aiv", 2, 3, "mte3", 0.2, pytest.approx(0.2 / 3)),
    ]


def test_each_kind_of_core_has_rows_of_its_own() -> None:
    played = trace(
        lane((0, 1), (LOAD, 0, 50, 100), kind="ai_core"),
        lane((8,), (LOAD, 0, 50, 200), kind="vector_core"),
    )

    assert pipes.rows(played) == [
        pipes.Row("ai_core", 0, 2, "mte2", 0.5, 0.5),
        pipes.Row("vector_core", 8, 1, "mte2", 1.0, 1.0),
    ]


def test_bars_are_as_long_as_pipes_were_busy(ax: Axes) -> None:
    played = trace(
        lane((0,), (LOAD, 0, 50, 100)), lane((1,), (LOAD, 0, 50, 60), (MUL, 60, 61, 200))
    )
    drawn = pipes.pipes(played, ax=ax)

    assert drawn is ax
    assert [(bar.get_width(), to_hex(bar.get_facecolor()).upper()) for bar in ax.patches] == [
        (30, style.COLORS["mte2"]),
        (70, style.COLORS["vector"]),
    ]
    (means,) = ax.lines
    assert list(means.get_xdata()) == [40, 35]
    assert [text.get_text() for text in ax.texts] == [
        "core 1, the slowest of 2 (aiv)",
        "30 %",
        "70 %",
    ]
    assert ax.get_title(loc="left") == "vector is the busiest pipe, 70 % of 200.0 us"
    assert ax.get_xlabel() == "busy, % of the time of the cores"
    assert ax.get_xlim() == (0, 100)
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["slowest core", "mean of cores"]


def test_one_core_needs_no_mean(small: Run, ax: Axes) -> None:
    assert small.trace is not None
    shares = [style.percent(row.busy) for row in pipes.rows(small.trace)]
    pipes.pipes(small, ax=ax)

    assert not ax.lines
    assert ax.get_legend() is None
    assert [text.get_text() for text in ax.texts] == ["core 0 (ai_core)", *shares]
    assert ax.get_title(loc="left").startswith("npu_quantize on ascend310p3: vector is the busiest")


@pytest.mark.parametrize("end", [20, 92, 96, 100])
def test_a_share_stands_beside_its_bar_and_its_mark_and_within_the_picture(end: int) -> None:
    played = trace(
        lane((0,), (LOAD, 0, 10, end), (MUL, end, 99, 100)), lane((1,), (LOAD, 0, 10, end - 1))
    )
    figure = Figure((10, 3), dpi=100, layout="constrained")
    ax = figure.subplots()
    pipes.pipes(played, ax=ax)
    figure.draw_without_rendering()

    label = ax.texts[1]
    assert label.get_text() == f"{end} %"
    box = label.get_window_extent()
    (bar, *_), (marks,) = ax.patches, ax.lines
    middle = ax.transData.transform((marks.get_xdata()[0], 0))[0]  # type: ignore[index]
    half = marks.get_markersize() / 2 * figure.dpi / 72
    assert box.x0 > max(middle + half, bar.get_window_extent().x1)
    assert box.x1 < figure.bbox.x1


# ---- both ----


@pytest.mark.parametrize("draw", [timeline.timeline, pipes.pipes])
def test_pictures_fit_their_figure(draw: object, small: Run, large: Run, tmp_path: Path) -> None:
    """Every text lies inside the picture and clear of the others."""
    assert callable(draw)
    for run in (small, large):
        ax = draw(run)
        ax.figure.savefig(tmp_path / "picture.png")
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
        width, height = ax.figure.get_size_inches() * ax.figure.dpi
        # Ticks beyond the limits exist, but are not drawn.
        unseen = [
            tick.label1 for tick in ax.xaxis.get_major_ticks() if tick.get_loc() > ax.get_xlim()[1]
        ]
        seen = (text for text in ax.findobj(Text) if text.get_visible() and text not in unseen)
        texts = [text for text in dict.fromkeys(seen) if text.get_text()]
        assert len(texts) > 10
        for text in texts:
            box = text.get_window_extent()
            assert box.x0 >= 0, text
            assert box.y0 >= 0, text
            assert box.x1 <= width, text
            assert box.y1 <= height, text
        boxed = [text.get_window_extent() for text in texts]
        for index, one in enumerate(boxed):
            for other in boxed[:index]:
                assert not one.overlaps(other), (texts[index], other)


DOLLARS = r"$\frac$ of $a_b\x1b[2J"
SHOWN = r"\$\frac\$ of \$a_b\x1b[2J"
"""For matplotlib, which takes what stands between bare dollars for a formula."""


def test_names_are_no_formulas(small: Run) -> None:
    spec = small.device.model_copy(update={"name": DOLLARS})
    run = replace(small, op=DOLLARS, device=spec)
    drawn = 0
    axes = [figure.axes[0] for _, figure in gallery.figures(run)]
    axes += [compare.across([run, run]), compare.scaling([run, run], [1, 2], unit=DOLLARS)]
    for ax in axes:
        figure = ax.get_figure()
        assert isinstance(figure, Figure)
        figure.savefig(BytesIO(), format="svg")
        texts = [text.get_text() for text in ax.findobj(Text)]
        assert not any(is_math_text(text) for text in texts if "frac" in text)
        drawn += any(SHOWN in text for text in texts)
    assert drawn == len(axes)


@pytest.mark.parametrize("draw", [timeline.timeline, pipes.pipes])
def test_a_run_without_times_cannot_be_drawn(draw: object) -> None:
    assert callable(draw)
    x, scale = TensorSpec((8, 8), "float32"), TensorSpec((1,), "float32")
    message = (
        "reports: a run must have been timed and have had work to do, but it has no trace; "
        "run it with timing=True on tensors that are not empty"
    )
    run = npusim.run("npu_quantize", x, scale, None, "qint8", device="ascend310p3", timing=False)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        draw(run)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        draw(Trace((), 1_000_000))


def test_ties_for_the_busiest_pipe_go_by_name() -> None:
    played = trace(lane((0,), (STORE, 0, 50, 50), (LOAD, 50, 100, 100)))

    assert subject.busiest(played) == ("mte2", 0.5)


@pytest.mark.parametrize(
    ("cores", "text"),
    [
        ((3,), "core 3 (aiv)"),
        ((0, 1), "cores 0-1 (aiv)"),
        ((0, 2, 3, 9), "cores 0, 2-3, 9 (aiv)"),
        (tuple(range(0, 20, 2)), "cores 0, 2, 4, 6 and 6 more (aiv)"),
    ],
)
def test_cores_are_named_by_their_runs(cores: tuple[int, ...], text: str) -> None:
    assert style.cores_named(cores, "aiv") == text


def test_every_pipe_has_a_colour_of_its_own() -> None:
    assert set(style.COLORS) == set(npusim.devices.schema.Pipe.__args__)  # type: ignore[attr-defined]
    assert len(set(style.COLORS.values())) == len(style.COLORS)
