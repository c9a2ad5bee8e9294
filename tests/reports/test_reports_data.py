"""Traffic, rooflines, bandwidth, occupancy, costs and pictures of several runs."""

from importlib import import_module
from inspect import signature
from pkgutil import iter_modules

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from played import Played, at_1_mhz, lane, trace
from tiny import tiny_spec

from npusim import TensorSpec, isa, reports, run
from npusim.data.dtypes import FLOAT16, FLOAT32, INT8
from npusim.reports import bandwidth, compare, costs, gallery, occupancy, roofline, traffic

X = isa.Local("ub", 0, FLOAT32, 64)
Y = isa.Local("ub", 256, FLOAT32, 64)
LOAD = isa.Load(X, isa.Global("x", 0, 256))
MUL = isa.Binary("mul", Y, X, X)
STORE = isa.Store(isa.Global("y", 0, 256), Y)
A, B = isa.Local("l0a", 0, FLOAT16, 256), isa.Local("l0b", 0, FLOAT16, 256)
C = isa.Local("l0c", 0, FLOAT32, 256)
TO_A = isa.LoadData(A, isa.Local("l1", 0, FLOAT16, 256), 16, 0, 0, 16, 16)
MMAD = isa.Mmad(C, A, B, 16, 16, 16)
OUT = isa.Fixpipe(isa.Global("y", 0, 32, 16, 32), C, 16, 16, 16, FLOAT16, "cast")

CHAIN = ((LOAD, 0, 100, 110), (MUL, 110, 120, 130), (STORE, 130, 180, 200))


# ---- traffic ----


@pytest.mark.parametrize(
    ("op", "way", "nbytes"),
    [
        (LOAD, "gm_to_ub", 256),
        (STORE, "ub_to_gm", 256),
        (TO_A, "l1_to_l0a", 512),
        (OUT, "l0c_to_gm", 512),
        (isa.CopyL0c(Y, C), "l0c_to_ub", 256),
        (MUL, None, 256),
        (MMAD, None, 1024),
        (isa.SetFlag("mte2", "vector", 0), None, 0),
    ],
)
def test_each_copy_has_a_path(op: isa.MicroOp, way: str | None, nbytes: int) -> None:
    assert (traffic.path(op), traffic.moved(op)) == (way, nbytes)


def test_work_counts_all_cores() -> None:
    axpy = isa.Axpy(Y, X, 2.0)
    found = traffic.work(trace(lane((0, 1), *CHAIN, (axpy, 180, 190, 200), (MMAD, 180, 190, 200))))

    assert found.path_bytes == {"gm_to_ub": 512, "ub_to_gm": 512}
    assert found.cube_ops == 2 * 2 * 16**3
    assert found.vector_ops == 2 * (64 + 2 * 64)
    assert found.vector_bits == 32


def test_a_copy_moves_its_bytes_evenly() -> None:
    played = trace(lane((0, 1), (LOAD, 50, 100, 200)))

    # Two cores, 256 bytes each in 50 us, a quarter of the run.
    expected = [0, 512 / 50e-6, 0, 0]
    np.testing.assert_allclose(traffic.series(played, played.lanes, "gm_to_ub", 4), expected)
    assert traffic.series(played, played.lanes, "ub_to_gm", 4).tolist() == [0, 0, 0, 0]


# ---- rooflines ----


def test_a_roof_is_the_lower_of_peak_and_bytes() -> None:
    played = Played(trace(lane((0,), *CHAIN, gm_bytes=512)), at_1_mhz(tiny_spec()))
    rows = {(row.title, row.name): row for row in roofline.rows(played)}
    row = rows["Memory Transfer(Vector)", "gm_to_ub"]

    # 64 lanes of 32 bits on two cores; 64 operations for 256 bytes, in 200 us.
    assert (row.unit, row.peak_ops_per_s, row.intensity) == ("vector", 128e6, 0.25)
    assert row.bytes_per_s == 2 * 32e6
    assert row.allowed_ops_per_s == 16e6
    assert row.ops_per_s == pytest.approx(64 / 200e-6)
    assert row.share == pytest.approx(0.02)
    assert row.is_memory
    assert [title for title in roofline.TITLES if title in {key[0] for key in rows}] == [
        "GM/L2",
        "Memory Unit(Vector)",
        "Pipeline(Vector)",
        "Memory Transfer(Vector)",
    ]


def test_the_cube_has_titles_of_its_own() -> None:
    times = ((TO_A, 0, 10, 10), (MMAD, 10, 20, 20), (OUT, 20, 30, 40))
    played = Played(trace(lane((0,), *times, kind="aic", l2_bytes=512, l2_written_bytes=512)))
    found = [(row.title, row.name) for row in roofline.rows(played)]

    assert found == [
        ("GM/L2", "L2 write"),
        ("Memory Unit(Cube)", "L0A write"),
        ("Memory Unit(Cube)", "L0C read"),
        ("Memory Unit(Cube)", "L1 read"),
        ("Pipeline(Cube)", "mte1"),
        ("Pipeline(Cube)", "fixpipe"),
        ("Memory Transfer(Cube)", "l1_to_l0a"),
        ("Memory Transfer(Cube)", "l0c_to_gm"),
    ]


@pytest.mark.parametrize(
    ("times", "gm_bytes", "words"),
    [
        (((LOAD, 0, 1, 2), (MUL, 2, 3, 4)), 0, "latency bound:pipeline caused"),
        (((LOAD, 0, 99, 100), (MUL, 99, 100, 100)), 0, "latency bound:memory caused"),
        (((LOAD, 0, 1, 1), (MUL, 1, 100, 100)), 0, "latency bound:compute caused"),
        (((LOAD, 0, 1, 1), (MUL, 1, 100, 100)), 2_900_000, "memory bound"),
    ],
)
def test_what_bounds_a_run_is_told_in_the_vendors_words(
    times: tuple[tuple[isa.MicroOp, int, int, int], ...], gm_bytes: int, words: str
) -> None:
    if words.endswith("pipeline caused"):
        times = (*times, (isa.SetFlag("mte2", "vector", 0), 99, 100, 100))
    # 32 bytes a nanosecond are 3.2 million in 100 us.
    played = Played(trace(lane((0,), *times, gm_bytes=gm_bytes)), tiny_spec())

    assert roofline.verdict(played) == words


def test_a_trace_alone_is_bound_by_nothing_known() -> None:
    assert roofline.verdict(trace(lane((0,), *CHAIN))) == ""


def test_a_roofline_shows_roofs_and_points(ax: Axes) -> None:
    played = Played(trace(lane((0,), *CHAIN, gm_bytes=512)), at_1_mhz(tiny_spec()))
    roofline.roofline(played, title="Memory Transfer(Vector)", ax=ax)

    roof, point, *_ = ax.lines
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    np.testing.assert_allclose(np.asarray(roof.get_xdata(), float)[1], 128e6 / 64e6)
    np.testing.assert_allclose(np.asarray(roof.get_ydata(), float)[1:], 128e6 / 1e12)
    assert (point.get_xdata(), point.get_ydata()) == ([0.25], [pytest.approx(0.32e6 / 1e12)])
    assert ax.get_title(loc="left") == (
        "npu_made on tiny: Memory Transfer(Vector): 4 % of what ub_to_gm allows, 0.00032 GOPS"
    )


def test_a_title_that_does_not_apply_is_refused() -> None:
    played = Played(trace(lane((0,), (MUL, 0, 5, 9))))
    message = (
        r"reports: a roofline must have one of the titles Memory Unit\(Vector\), not GM/L2; "
        "choose one of them"
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        roofline.roofline(played)


# ---- bandwidth ----


def test_paths_of_global_memory_come_first() -> None:
    played = Played(
        trace(lane((0,), (TO_A, 0, 10, 10), *CHAIN, gm_bytes=512)), at_1_mhz(tiny_spec())
    )
    found = bandwidth.rows(played)

    assert [(row.path, row.pipe, row.nbytes) for row in found] == [
        ("gm_to_ub", "mte2", 256),
        ("ub_to_gm", "mte3", 256),
        ("l1_to_l0a", "mte1", 512),
    ]
    # At 1 MHz the ports of two cores are narrower than the memory.
    assert (found[0].limit, found[0].limit_bytes_per_s) == ("ports", 64e6)
    assert found[0].mean_bytes_per_s == pytest.approx(256 / 200e-6)
    assert found[0].bytes_per_s.shape == (bandwidth.BINS,)
    np.testing.assert_allclose(found[0].bytes_per_s.max(), 256 / 100e-6)


def test_bandwidth_has_a_lane_a_path(ax: Axes) -> None:
    played = Played(trace(lane((0,), *CHAIN, gm_bytes=512)), at_1_mhz(tiny_spec()))
    bandwidth.bandwidth(played, ax=ax)

    assert [label.get_text() for label in ax.get_yticklabels()] == ["gm_to_ub", "ub_to_gm"]
    assert ax.get_title(loc="left") == (
        "npu_made on tiny: gm_to_ub carries 0.00128 GB/s on average, 2 % of what ports can"
    )


def test_no_part_of_a_run_moves_more_than_its_limit() -> None:
    # Its 48 cores are simulated in step, and all load at once what cores apart load in turn.
    ran = run("softmax", TensorSpec((4096, 4096), "float16"), dim=-1, device="ascend910b2")
    assert ran.trace is not None
    part_s = traffic.duration_s(ran.trace) / bandwidth.BINS
    for row in bandwidth.rows(ran):
        assert row.limit_bytes_per_s is not None
        assert row.bytes_per_s.min() >= -1e-6 * row.limit_bytes_per_s
        assert row.bytes_per_s.max() <= 1.000001 * row.limit_bytes_per_s
        assert row.bytes_per_s.sum() * part_s == pytest.approx(row.nbytes)


# ---- occupancy ----


def changes(row: occupancy.Row) -> list[tuple[float, int]]:
    return list(zip(row.times_us.tolist(), row.live_bytes.tolist(), strict=True))


def test_bytes_live_from_their_write_to_their_last_read() -> None:
    (row,) = occupancy.rows(trace(lane((0,), *CHAIN, claimed={"ub": 1024})))

    # x from the load to the end of mul, y from mul to the end of the store.
    assert changes(row) == [(0, 256), (110, 512), (130, 256), (200, 0)]
    assert (row.buffer, row.claimed_bytes, row.size_bytes, row.peak_bytes) == (
        "ub",
        1024,
        None,
        512,
    )


def test_what_is_written_anew_begins_another_life() -> None:
    half = isa.Load(isa.Local("ub", 0, FLOAT32, 32), isa.Global("x", 0, 128))
    (row,) = occupancy.rows(trace(lane((0,), *CHAIN, (half, 150, 160, 170))))

    # Nobody reads it, so it lives while it is written.
    assert changes(row) == [(0, 256), (110, 512), (130, 256), (150, 384), (170, 256), (200, 0)]


def test_what_is_accumulated_counts_once() -> None:
    more = isa.Mmad(C, A, B, 16, 16, 16, "accumulate")
    times = ((MMAD, 0, 10, 20), (more, 10, 30, 40), (OUT, 40, 50, 60))
    (row,) = (
        row for row in occupancy.rows(trace(lane((0,), *times, kind="aic"))) if row.buffer == "l0c"
    )

    assert changes(row) == [(0, 1024), (10, 1024), (60, 0)]


def test_many_changes_become_least_and_most() -> None:
    edges = np.arange(5001, dtype=np.float64)
    live = np.tile(np.array([0, 7], np.int64), 2500)
    shown, least, most = occupancy.seen(edges, live)

    assert len(shown) == len(least) + 1 == occupancy.STEPS + 1
    assert (shown[0], shown[-1]) == (0, 5000)
    assert (set(least.tolist()), set(most.tolist())) == ({0}, {7})
    few = occupancy.seen(edges[:5], live[:4])
    assert [part.tolist() for part in few] == [[0, 1, 2, 3, 4], [0, 7, 0, 7], [0, 7, 0, 7]]


def test_the_fullest_buffer_is_the_title(ax: Axes) -> None:
    played = Played(trace(lane((0,), *CHAIN)), at_1_mhz(tiny_spec()))
    occupancy.occupancy(played, ax=ax)

    assert (
        ax.get_title(loc="left") == "npu_made on tiny: ub is the fullest buffer, 3 % of its 16 KiB"
    )


# ---- costs ----


def test_the_parts_of_the_time_add_up() -> None:
    played = Played(trace(lane((0,), *CHAIN)))
    completion = played.device.launch.completion_us
    found = costs.rows(played)

    assert [(row.part, row.us) for row in found] == [
        ("launch", 10 - completion),
        ("head", 0),
        ("work", 100),  # of mte2, which is held longest
        ("waits", 0),
        ("tail", 100),
        ("completion", completion),
    ]
    assert sum(row.share for row in found) == pytest.approx(1)


def test_costs_are_drawn_beside_each_other(ax: Axes) -> None:
    short = Played(trace(lane((0,), (MUL, 20, 30, 40))))
    costs.costs([Played(trace(lane((0,), *CHAIN))), short], ax=ax)

    assert ax.get_title(loc="left") == "npu_made on ascend910b2: mte2 active 48 % of 210.0 us"
    assert len(ax.get_yticks()) == 2
    widths = [patch.get_width() for patch in ax.patches][6:10]  # type: ignore[attr-defined]
    assert widths == pytest.approx([10 - 0.25, 20, 10, 0])


def test_costs_begin_with_the_kernels_launched_before(ax: Axes) -> None:
    x1, x2 = TensorSpec((16, 512), "int8"), TensorSpec((512, 256), "int8")
    scale = TensorSpec((256,), "float32")
    call = run("npu_quant_matmul", x1, x2, scale, output_dtype="float16", device="Atlas A2")
    (launch,), first = call.earlier, costs.rows(call)[0]
    costs.costs(call, ax=ax)

    assert (first.part, first.us) == ("launches before", launch.time_us)
    words = f"launches before take {100 * first.share:.0f} % of {call.time_us:.1f} us"
    assert ax.get_title(loc="left").endswith(f" on ascend910b2: {words}")


def test_a_pipe_that_starves_is_stalled_and_not_active(ax: Axes) -> None:
    """Two products with 35 us between them, in which the cube stands still."""
    times = ((TO_A, 0, 5, 8), (MMAD, 10, 20, 25), (TO_A, 30, 45, 50), (MMAD, 55, 75, 80))
    played = Played(trace(lane((0,), *times, kind="aic"), lane((1,), (MUL, 60, 70, 90))))
    found = costs.rows(played)

    assert [(row.part, row.us) for row in found][1:5] == [
        ("head", 10), ("work", 30), ("waits", 35), ("tail", 15)
    ]  # fmt: skip
    costs.costs(played, ax=ax)
    assert ax.get_title(loc="left") == (
        "npu_made on ascend910b2: cube of aic stalled 35 % of 100.0 us"
    )
    said = [text.get_text() for text in ax.texts]
    assert "cube of aic active 30.0 us" in said
    assert "cube of aic stalled 35.0 us" in said


# ---- runs that are compared ----


def test_pictures_of_runs_that_are_compared_have_the_same_axes() -> None:
    slow = tuple((op, 3 * start, 3 * free, 3 * end) for op, start, free, end in CHAIN)
    chip = at_1_mhz(tiny_spec())
    short = Played(trace(lane((0,), *CHAIN, gm_bytes=512)), chip)
    long = Played(trace(lane((0,), *slow, gm_bytes=128)), chip)
    drawn = [
        {picture.name: figure.axes[0] for picture, figure in gallery.figures(run, [other])}
        for run, other in ((short, long), (long, short))
    ]

    alone = {picture.name: figure.axes[0] for picture, figure in gallery.figures(short)}
    assert list(drawn[0]) == list(drawn[1]) == list(alone)
    for name in drawn[0]:
        one, other = drawn[0][name], drawn[1][name]
        assert one.get_xlim() == other.get_xlim(), name
        if name.startswith("roofline"):
            assert one.get_ylim() == other.get_ylim(), name
    for name, margin in (("timeline", 1.012), ("bandwidth", 1), ("occupancy", 1)):
        assert alone[name].get_xlim() == (0, pytest.approx(200 * margin))
        assert drawn[0][name].get_xlim() == (0, pytest.approx(600 * margin))
    assert (alone["costs"].get_xlim(), drawn[0]["costs"].get_xlim()) == ((0, 210), (0, 610))
    lengths = [max(patch.get_width() for patch in axes["costs"].patches) for axes in drawn]  # type: ignore[attr-defined]
    assert lengths == [100, 300]
    low, high = drawn[0]["roofline_gm_l2"].get_ylim()
    assert low < alone["roofline_gm_l2"].get_ylim()[0]
    assert high == alone["roofline_gm_l2"].get_ylim()[1]


def test_lanes_of_runs_that_are_compared_have_one_scale() -> None:
    half = isa.Local("ub", 0, FLOAT32, 32)
    less = (isa.Load(half, isa.Global("x", 0, 128)), 0, 100, 110)
    chip = at_1_mhz(tiny_spec())
    full = Played(trace(lane((0,), *CHAIN[:1], gm_bytes=256)), chip)
    part = Played(trace(lane((0,), less, gm_bytes=128)), chip)
    for draw, base in (
        (bandwidth.bandwidth, 1.0),
        (occupancy.occupancy, 1 + occupancy.HEADER_HEIGHT),
    ):
        heights = []
        for each in (full, part):
            ax = draw(each, among=(full, part), ax=Figure().subplots())
            lane_of = ax.patches[0].get_path().vertices[:, 1]
            heights.append(base - lane_of.min())
        assert heights[0] == pytest.approx(2 * heights[1]), draw


# ---- several runs ----


def timed(time_us: float | None, device: str = "ascend910b2") -> Played:
    from npusim import devices

    return Played(trace(lane((0,), *CHAIN)), devices.load(device), time_us=time_us)


def test_chips_are_ranked(ax: Axes) -> None:
    runs = [timed(50, "ascend310p3"), timed(20)]
    compare.across(runs, ax=ax)

    assert [(row.name, row.launch_us, row.cores_us) for row in compare.device_rows(runs)] == [
        ("ascend910b2", 10, 10),
        ("ascend310p3", 10, 40),
    ]
    assert ax.get_title(loc="left") == (
        "npu_made: ascend910b2 takes 20.0 us, ascend310p3 2.5 times as long"
    )
    assert [patch.get_width() for patch in ax.patches] == [10, 10, 10, 40]  # type: ignore[attr-defined]


def test_sizes_are_sorted_and_drawn(ax: Axes) -> None:
    compare.scaling([timed(40), timed(20)], [4096, 1024], ax=ax)

    ideal, launches, times = ax.lines
    assert np.asarray(times.get_xdata()).tolist() == [1024, 4096]
    assert np.asarray(times.get_ydata()).tolist() == [20, 40]
    assert np.asarray(ideal.get_ydata()).tolist() == [10, 40]
    assert np.asarray(launches.get_ydata()).tolist() == [10, 10]
    assert ax.get_title(loc="left") == (
        "npu_made on ascend910b2: 4 times the elements take 2 times the time"
    )


def test_several_runs_must_be_some_and_timed() -> None:
    with pytest.raises(
        ValueError, match=r"^reports: one run at least must be given, not none; run the operator$"
    ):
        compare.across([])
    message = "reports: every run must have been timed, but one was not; run it with timing=True"
    with pytest.raises(ValueError, match=f"^{message}$"):
        compare.across([timed(None)])
    message = "reports: sizes must be as many as runs, 1, not 2; give one each"
    with pytest.raises(ValueError, match=f"^{message}$"):
        compare.scaling([timed(1.0)], [1, 2])


def test_the_gallery_has_each_picture_that_applies() -> None:
    played = Played(trace(lane((0,), *CHAIN, gm_bytes=512)), at_1_mhz(tiny_spec()))

    assert [picture.name for picture, _ in gallery.figures(played)] == [
        *("costs", "bounds", "pipes", "timeline", "bandwidth", "occupancy"),
        *("roofline_gm_l2", "roofline_memory_unit_vector", "roofline_pipeline_vector"),
        "roofline_memory_transfer_vector",
    ]
    quiet = Played(trace(lane((0,), (isa.Binary("add", Y.as_dtype(INT8), X, X), 0, 5, 9))))
    drawn = {picture.name: figure for picture, figure in gallery.figures(quiet)}
    assert "bandwidth" not in drawn
    for figure in drawn.values():
        assert figure.axes[0].get_title(loc="left")


OF_SOMETHING_ELSE = ("compare", "layout")
"""Modules whose pictures show several runs, or a matrix."""


def test_every_picture_of_a_run_is_in_the_gallery() -> None:
    """A module that draws on *ax* declares its picture, and the gallery has it."""
    modules = {
        found.name: import_module(f"npusim.reports.{found.name}")
        for found in iter_modules(reports.__path__)
        if found.name not in OF_SOMETHING_ELSE
    }
    drawing = {
        name: module
        for name, module in modules.items()
        if "ax" in signature(vars(module).get(name, len)).parameters
    }
    assert len(drawing) == 7
    declared = [
        vars(module).get("PICTURES", vars(module).get("PICTURE")) for module in drawing.values()
    ]
    flat = [picture for own in declared for picture in (own if isinstance(own, tuple) else (own,))]
    assert set(flat) == set(gallery.PICTURES)


def test_a_size_far_above_is_told_but_not_drawn(ax: Axes) -> None:
    played = Played(trace(lane((0,), *CHAIN)), at_1_mhz(tiny_spec()))
    occupancy.occupancy(played, ax=ax)

    # 512 bytes of 16 KiB fill the lane.
    highest = min(patch.get_path().vertices[:, 1].min() for patch in ax.patches)
    assert highest == pytest.approx(occupancy.HEADER_HEIGHT + 1 - occupancy.ROOM)
    assert [text.get_text() for text in ax.texts][1:] == ["peak 512 B\nof 16 KiB"]


FAR = ("gm", "l2")


def test_a_limit_far_above_is_told_but_not_drawn(ax: Axes) -> None:
    fast = tiny_spec(**{f"cores__aiv__paths__ub_to_{far}__bytes_per_cycle": 32 for far in FAR})
    played = Played(trace(lane((0,), *CHAIN, gm_bytes=512)), at_1_mhz(fast))
    bandwidth.bandwidth(played, ax=ax)

    assert all(not line.get_linestyle()[0][1] for line in ax.collections)
    assert "\nports 0.064 GB/s" in ax.texts[0].get_text()


def test_a_long_program_is_cut(ax: Axes, monkeypatch: pytest.MonkeyPatch) -> None:
    played = trace(lane((0,), *CHAIN))
    told = "time since the cores started (us); light: at times; dashed: claimed; line: size"
    assert occupancy.occupancy(played, ax=ax).get_xlabel() == told
    monkeypatch.setattr(occupancy, "MAX_OPS", 2)
    cut = trace(lane((0,), *CHAIN))
    drawn = occupancy.occupancy(cut, ax=Figure().subplots())
    assert drawn.get_xlabel() == f"{told}; of 2 micro-ops a core"
