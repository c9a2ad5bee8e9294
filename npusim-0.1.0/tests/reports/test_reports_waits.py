"""Flags and what bounds a run: rows counted by hand, then what is drawn."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from played import CHAIN, LOAD, MUL, READY, STORE, Played, X, at_1_mhz, lane, trace
from tiny import play, tiny_spec

from npusim.isa import Barrier, CrossCoreSetFlag, CrossCoreWaitFlag, Global, Load, SetFlag, WaitFlag
from npusim.kernel.program import Program
from npusim.reports import bounds, costs, flags, subject, timeline
from npusim.reports.cross_core_waits import crossings

# ---- flags ----


def test_a_wait_takes_the_set_of_its_number() -> None:
    wait = WaitFlag("mte2", "vector", 0)
    ops = (READY, READY, wait, SetFlag("mte2", "vector", 1), wait, wait)

    assert flags.matches(Program("kernel", ops)).tolist() == [-1, -1, 0, -1, 1, -1]


def test_a_flag_carries_data_or_room() -> None:
    found = flags.rows(trace(lane((0,), *CHAIN)), lane((0,), *CHAIN))

    assert [
        (flag.src, flag.dst, flag.set_us, flag.asked_us, flag.passed_us, flag.held_us, flag.carries)
        for flag in found
    ] == [
        ("mte2", "vector", 30, 1, 31, 29, "data in ub"),
        ("vector", "mte2", 50, 11, 51, 39, "room in ub"),
        ("vector", "mte3", 50, 2, 51, 48, "data in ub"),
    ]


def test_nobody_stands_still_for_a_flag_that_was_up() -> None:
    late = ((LOAD, 0, 5, 6), (READY, 5, 6, 7), (WaitFlag("mte2", "vector", 0), 20, 21, 21))
    (flag,) = flags.rows(trace(lane((0,), *late)), lane((0,), *late))

    assert (flag.held_us, flag.carries) == (0, "")


def test_a_core_waits_for_the_last_of_the_other_kind() -> None:
    give, take = CrossCoreSetFlag("group", "mte3", 3), CrossCoreWaitFlag("group", "cube", 3)
    lanes = [
        lane((0,), (take, 0, 45, 45), kind="aic"),
        lane((1,), (give, 10, 11, 30)),
        lane((2,), (give, 10, 11, 25)),
        lane((4,), (give, 10, 11, 90)),  # too late to be meant
    ]
    (flag,) = crossings(trace(*lanes), lanes, lanes[:1])

    assert (flag.core, flag.src, flag.dst_core, flag.dst) == (1, "mte3", 0, "cube")
    assert (flag.set_us, flag.passed_us, flag.carries) == (30, 45, "word from aiv")


def test_a_core_waits_for_its_own_group_alone(ax: Axes) -> None:
    give, take = CrossCoreSetFlag("group", "mte3", 3), CrossCoreWaitFlag("group", "vector", 3)
    store, product = (STORE, 0, 5, 9), (MUL, 45, 50, 50)
    lanes = [
        replace(lane((0,), (take, 0, 45, 45), product, kind="aic"), groups=(0,)),
        replace(lane((1,), (give, 10, 11, 30), store), groups=(0,)),
        replace(lane((2,), (give, 10, 11, 40), store), groups=(1,)),
        replace(lane((3,), (give, 10, 11, 30), store), groups=(2,)),
        replace(lane((4,), (take, 5, 46, 46), product, kind="aic"), groups=(2,)),
    ]
    played = trace(*lanes)
    found = crossings(played, lanes, lanes)

    assert [(flag.core, flag.dst_core, flag.set_us) for flag in found] == [(1, 0, 30), (3, 4, 30)]
    # Cores 1 and 3 ran alike and are one row, from which an arrow leads to each of the other kind.
    timeline.timeline(played, cores=(0, 1, 2, 4), ax=ax)
    arrows = [artist for artist in ax.get_children() if isinstance(artist, FancyArrowPatch)]
    assert [[x for x, _ in arrow._posA_posB] for arrow in arrows] == [[30, 45], [30, 46]]
    assert len({arrow._posA_posB[0] for arrow in arrows}) == 1


def test_arrows_lead_to_the_pipe_that_waits(ax: Axes) -> None:
    timeline.timeline(trace(lane((0,), *CHAIN)), ax=ax)
    arrows = [artist for artist in ax.get_children() if isinstance(artist, FancyArrowPatch)]

    places = {text: y for y, text in zip(ax.get_yticks(), ["mte2", "vector", "mte3"], strict=True)}
    assert [arrow._posA_posB for arrow in arrows] == [
        [(30, places["mte2"]), (31, places["vector"])],
        [(50, places["vector"]), (51, places["mte2"])],
        [(50, places["vector"]), (51, places["mte3"])],
    ]


def test_arrows_can_be_left_out_and_too_many_are(ax: Axes) -> None:
    def arrows(drawn: Axes) -> int:
        return sum(isinstance(artist, FancyArrowPatch) for artist in drawn.get_children())

    assert arrows(timeline.timeline(trace(lane((0,), *CHAIN)), flags=False, ax=ax)) == 0
    many = [
        (op, *(100 * turn + time for time in times))
        for turn in range(timeline.MAX_ARROWS // 3 + 1)
        for op, *times in CHAIN
    ]
    played = trace(lane((0,), *many))  # type: ignore[arg-type]
    assert arrows(timeline.timeline(played, ax=Figure().subplots())) == 0
    close = timeline.timeline(played, start_us=0, end_us=100, ax=Figure().subplots())
    assert arrows(close) == 3


# ---- what bounds a run ----


def told(found: list[bounds.Row]) -> list[tuple[object, ...]]:
    return [(row.pipe, row.cause, row.reason, round(row.us, 6)) for row in found]


def test_the_parts_of_a_pipe_are_its_time() -> None:
    found = bounds.rows(trace(lane((0,), *CHAIN)))

    assert told(found) == [
        ("mte2", "work", "work", 19),
        ("mte2", "flag", "vector: room in ub", 40),
        ("mte2", "order", "raising flags", 1),
        ("mte2", "finished", "nothing left to do", 40),
        ("vector", "work", "work", 9),
        ("vector", "flag", "mte2: data in ub", 30),
        ("vector", "order", "raising flags", 2),
        ("vector", "issue wait", "not issued yet", 1),
        ("vector", "finished", "nothing left to do", 58),
        ("mte3", "work", "work", 19),
        ("mte3", "flag", "vector: data in ub", 49),
        ("mte3", "issue wait", "not issued yet", 2),
        ("mte3", "finished", "nothing left to do", 30),
    ]
    for pipe in ("mte2", "vector", "mte3"):
        assert sum(row.share for row in found if row.pipe == pipe) == pytest.approx(1)


def test_a_copy_says_what_held_it_up() -> None:
    # Two cores load 256 bytes: 16 cycles at half of 32, of which the instruction holds the pipe 1.
    spec = tiny_spec()
    both = play(spec, *[(Load(X, Global("x", start, 256)),) for start in (0, 4096)])

    assert told(bounds.rows(both)) == [
        ("mte2", "link", "bandwidth of GM", 0.016),
        ("mte2", "finished", "nothing left to do", 0.01),
    ]
    alone = play(spec, (Load(X, Global("x", 0, 256)),))
    assert told(bounds.rows(alone))[:1] == [("mte2", "work", "work", 0.008)]
    slow = play(tiny_spec(transfer__issue_cycles=20), (Load(X, Global("x", 0, 256)),))
    assert told(bounds.rows(slow)) == [
        ("mte2", "work", "work", 0.008),
        ("mte2", "issue", "issuing copies", 0.012),
    ]


def test_barriers_and_other_cores_are_reasons_of_their_own() -> None:
    found = bounds.rows(
        trace(
            lane(
                (0,),
                (CrossCoreWaitFlag("all", "vector", 0), 0, 20, 20),
                (MUL, 20, 30, 35),
                (Barrier("vector"), 30, 36, 36),
                (MUL, 36, 40, 40),
            )
        )
    )

    assert told(found) == [
        ("vector", "work", "work", 14),
        ("vector", "core", "another core", 20),
        ("vector", "barrier", "barrier", 6),
    ]


def test_a_pipe_works_while_held_and_is_busy_until_results_arrive() -> None:
    """Loads of 10 and 9 cycles, whose results come after 30 and 29."""
    played = trace(lane((0,), *CHAIN))
    works = sum(row.us for row in bounds.rows(played) if (row.pipe, row.cause) == ("mte2", "work"))

    assert (works, played.counters()[0]["mte2"].busy_cycles) == (19, 59)
    head, work, waits, tail = (row.us for row in costs.rows(Played(played))[1:5])
    assert (head, work, waits, tail) == (0, 19, 41, 40)


def test_pipes_that_only_order_others_have_no_row() -> None:
    assert {
        row.pipe for row in bounds.rows(trace(lane((0,), (READY, 0, 1, 1), (MUL, 1, 9, 9))))
    } == {"vector"}


def test_the_title_says_what_bounds_the_run_and_what_comes_next(ax: Axes) -> None:
    bounds.bounds(trace(lane((0,), *CHAIN)), ax=ax)

    assert ax.get_title(loc="left") == (
        "bound by the latency of memory:\n"
        "50 % of 100.0 us, on mte3; next the core's own port to memory, 29 %"
    )
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        *("path", "mte2", "vector", "mte3")
    ]
    widths = np.array([patch.get_width() for patch in ax.patches])  # type: ignore[attr-defined]
    np.testing.assert_allclose(widths[:5], [50, 29, 10, 9, 2])
    np.testing.assert_allclose(widths[5:9], [19, 40, 1, 40])


def test_of_several_kinds_the_one_is_named() -> None:
    played = trace(lane((0,), *CHAIN), lane((1,), (MUL, 0, 90, 105), kind="aic"))

    assert bounds.finding(played) == (
        "bound by the vector unit: 86 % of 105.0 us, on vector of aic; "
        "next the latency of cube and vector unit, 14 %"
    )


def test_a_finding_has_plain_words_first_and_the_vendors_after() -> None:
    played = trace(lane((0,), *CHAIN))
    run = Played(played, at_1_mhz(tiny_spec()))

    assert bounds.finding(run) == (
        "bound by the latency of memory: 45 % of 110.0 us, on mte3; next the core's own port to "
        "memory, 26 % (in msopprof's words: latency bound:pipeline caused)"
    )
    assert "msopprof" not in bounds.finding(played)


def test_the_busiest_pipe_may_be_of_any_kind() -> None:
    played = trace(lane((0,), *CHAIN), lane((1,), (MUL, 0, 90, 95), kind="aic"))

    assert subject.busiest(played) == ("vector", 0.95)
    assert subject.busiest_lane(played)[0].cores == (1,)
