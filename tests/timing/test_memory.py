"""Cores that share links and the L2, timed by hand to the cycle.

The tiny chip: each core's port takes 32 bytes a cycle from the memory and 64 out of the L2; the
links that all cores share move 32 and 128; a load is there after 10 cycles, or 2 out of the L2.
Stores go to the L2, 32 bytes a cycle for all cores, and are there after 4; what has to leave it
shares the 32 of the loads on its way to the memory. The L2 holds 8192 bytes in lines of 128.
"""

from __future__ import annotations

import math
from itertools import count

import numpy as np
import pytest
import simpy
from tiny import L2_BYTES, log, play, tiny_spec

from npusim.chip import Binding, L2State
from npusim.data.dtypes import UINT8
from npusim.data.tensor import GlobalTensor
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    Barrier,
    Global,
    Load,
    Local,
    MicroOp,
    ScalarAlu,
    SetFlag,
    Store,
    WaitFlag,
)
from npusim.timing.memory import (
    L2,
    PORT_UNITS,
    Copy,
    Lines,
    Link,
    Use,
    touched_lines,
    unaligned_lines,
)
from npusim.timing.memory.at_launch import at_launch
from npusim.timing.memory.l2 import SHARE_UNITS, WHOLE, Found, resident_share
from npusim.trace import COUNT_UNITS

SMALL = {"x": 2048, "y": 2048}
"""Tensors that fit into the L2 together."""
BIG = {"x": 16384, "y": 16384}


def load(nbytes: int, start: int = 0, name: str = "x") -> Load:
    return Load(Local("ub", 0, UINT8, nbytes), Global(name, start, nbytes))


def store(nbytes: int, start: int = 0, name: str = "y") -> Store:
    return Store(Global(name, start, nbytes), Local("ub", 8192, UINT8, nbytes))


LATER = (Barrier("mte2"),)
"""What comes after it finds all that came before it in the L2."""
ROUND_TRIPS = count(0, 10)
"""Cycles in which nothing is on its way any more."""


def copy(nbytes: int, port: int, copies: int = 1) -> Copy:
    return Copy(nbytes, port * PORT_UNITS, copies * port * PORT_UNITS)


# ---- links ----


def test_two_cores_that_exceed_the_link_get_half_each(tiny: DeviceSpec) -> None:
    trace = play(tiny, (load(256),), (load(256, 4096),))
    # 256 bytes at 16 a cycle.
    assert log(trace, 0) == log(trace, 1) == [("mte2", 0, 16, 26)]


def test_two_cores_within_the_link_do_not_feel_each_other() -> None:
    spec = tiny_spec(gm__read_bytes_per_s=64e9)
    trace = play(spec, (load(256),), (load(256, 4096),))
    assert log(trace, 0) == log(trace, 1) == [("mte2", 0, 8, 18)]


def test_a_copy_speeds_up_when_the_other_ends(tiny: DeviceSpec) -> None:
    trace = play(tiny, (load(256),), (load(512, 4096),))
    # Till 16 each moves 256 bytes; the other 256 go at full speed in 8.
    assert log(trace, 0) == [("mte2", 0, 16, 26)]
    assert log(trace, 1) == [("mte2", 0, 24, 34)]


def test_a_copy_slows_down_when_another_begins(tiny: DeviceSpec) -> None:
    first = (store(128), SetFlag("mte3", "mte2", 0), WaitFlag("mte3", "mte2", 0), load(256))
    trace = play(tiny, first, (load(512, 4096),))
    # The store takes 4 + 4, so core 0 loads from 8 on. Core 1 has moved 256 by then, and needs 16
    # for the rest, as core 0 does for its own.
    assert log(trace, 0) == [("mte3", 0, 4, 8), ("mte2", 8, 24, 34)]
    assert log(trace, 1) == [("mte2", 0, 24, 34)]


def test_unequal_ports_share_in_proportion() -> None:
    env = simpy.Environment()
    link, ends = Link(env, 30.0), []
    for name, port in (("wide", 40), ("narrow", 20)):
        done = lambda _, name=name: ends.append((name, int(env.now)))  # noqa: E731
        link.join(copy(200, port), done)
    link.plan()
    env.run()
    # 30 for 60: half speed. 200 bytes at 20 a cycle; then the narrow one has 100 left at 20.
    assert ends == [("wide", 10), ("narrow", 15)]


def test_reads_and_writes_have_links_of_their_own(tiny: DeviceSpec) -> None:
    trace = play(tiny, (load(256),), (store(256),))
    assert log(trace, 0) == [("mte2", 0, 8, 18)]
    assert log(trace, 1) == [("mte3", 0, 8, 12)]


def test_a_link_was_too_narrow_only_while_a_copy_used_it(tiny: DeviceSpec) -> None:
    trace = play(tiny, (load(256), load(128, 1024)), (load(256, 4096),))
    # Two ports of 32 on a link of 32 for 16 cycles; then one of them alone.
    assert log(trace, 0)[1] == ("mte2", 16, 20, 30)
    assert trace.lanes[0].copies.gm_narrow.tolist() == [16, 0]


def test_the_l2_has_its_own_links() -> None:
    spec = tiny_spec(l2__read_bytes_per_s=64e9)
    trace = play(spec, (load(256),), (load(256, 1024),), sizes=SMALL, l2="warm")
    # Two ports of 64 on a link of 64: 32 each, as if it were global memory; 2 cycles of latency.
    assert log(trace, 0) == log(trace, 1) == [("mte2", 0, 8, 10)]


def test_a_link_finishes_equal_copies_together_whatever_the_order() -> None:
    env = simpy.Environment()
    link, ends = Link(env, 48.0), []
    sizes = [320, 64, 320, 64, 640]
    for index, size in enumerate(sizes):
        done = lambda _, index=index: ends.append((int(env.now), index))  # noqa: E731
        link.join(copy(size, 32), done)
    link.plan()
    env.run()
    times = {sizes[index]: time for time, index in ends}
    assert ends == sorted((times[size], index) for index, size in enumerate(sizes))


def test_several_copies_in_one_are_as_many_copies_apart() -> None:
    def ends(groups: list[tuple[int, int]]) -> list[int]:
        env = simpy.Environment()
        link, times = Link(env, 50.0), []
        for nbytes, copies in groups:
            link.join(copy(nbytes, 30, copies), lambda _: times.append(int(env.now)))
        link.plan()
        env.run()
        return times

    together, apart = ends([(900, 3), (500, 1)]), ends([(900, 1)] * 3 + [(500, 1)])
    assert together == sorted(set(apart))
    # All four at 50 / 4 a cycle: 500 bytes take 40; the other three then have 400 at 50 / 3: 24.
    assert sorted(set(apart)) == [40, 64]


# ---- the L2 ----


def test_a_second_touch_hits(tiny: DeviceSpec) -> None:
    trace = play(tiny, (load(256), *LATER, load(256)))
    # 8 cycles past the L2, there after 10; then 256 at 64: 4, there after 2.
    assert log(trace) == [("mte2", 0, 8, 18), ("mte2", 18, 22, 24)]


def test_who_touches_what_is_on_its_way_waits_for_it(tiny: DeviceSpec) -> None:
    trace = play(tiny, (load(256), load(256)))
    # The first byte comes 10 cycles after the first request, 2 after the second. At the pace of
    # what comes in, 32 a cycle, it takes 8 again, and is there 2 cycles after that.
    assert log(trace) == [("mte2", 0, 8, 18), ("mte2", 8, 16, 18)]
    (lane,) = trace.lanes
    assert (lane.gm_bytes, lane.l2_bytes, lane.l2_hit_bytes) == (256, 512, 0)


@pytest.mark.parametrize(("late", "ends"), [(0, 18), (1, 18), (5, 18), (9, 19), (10, 16)])
def test_a_core_that_comes_later_is_not_served_before(
    late: int, ends: int, tiny: DeviceSpec
) -> None:
    waits = [ScalarAlu("add", "r", 1)] * late
    trace = play(tiny, (load(256),), (*waits, load(256)))
    assert log(trace, 0) == [("mte2", 0, 8, 18)]
    # Its first byte comes with that of the other core, or after the 2 cycles of the L2; from the
    # tenth cycle on all is there, and comes out at 64 a cycle.
    assert log(trace, 1)[-1][-1] == ends
    assert sum(lane.gm_bytes for lane in trace.lanes) == 256


def test_a_warm_l2_serves_the_first_touch(tiny: DeviceSpec) -> None:
    trace = play(tiny, (load(256), store(256)), sizes=SMALL, l2="warm")
    # Stores take the same way, warm or not.
    assert log(trace) == [("mte2", 0, 4, 6), ("mte3", 0, 8, 12)]


def test_what_was_stored_can_be_loaded_from_the_l2(tiny: DeviceSpec) -> None:
    flag = (SetFlag("mte3", "mte2", 0), WaitFlag("mte3", "mte2", 0))
    trace = play(tiny, (store(256), *flag, load(256, 0, "y")))
    assert log(trace) == [("mte3", 0, 8, 12), ("mte2", 12, 16, 18)]


def test_a_copy_that_is_partly_there_takes_the_rest_from_memory_first(tiny: DeviceSpec) -> None:
    trace = play(tiny, (load(256), *LATER, load(512)))
    # Two of four lines: 256 bytes at 32 (8 cycles), then 256 at 64 (4), there after 10.
    assert log(trace) == [("mte2", 0, 8, 18), ("mte2", 18, 30, 40)]
    (lane,) = trace.lanes
    assert (lane.gm_bytes, lane.l2_bytes, lane.l2_hit_bytes) == (512, 768, 256)


def test_lines_count_not_bytes(tiny: DeviceSpec) -> None:
    # 32 bytes bring in their line of 128, which takes 4 cycles, so all of it is there afterwards.
    trace = play(tiny, (load(32), *LATER, load(128)))
    assert log(trace) == [("mte2", 0, 4, 14), ("mte2", 14, 16, 18)]
    (lane,) = trace.lanes
    assert (lane.gm_bytes, lane.l2_bytes, lane.l2_hit_bytes) == (128, 160, 128)


def test_requests_of_one_cycle_do_not_see_each_other(tiny: DeviceSpec) -> None:
    trace = play(tiny, (load(256),), (load(256),))
    # Both miss, though the lines are the same, which come in once: 8 cycles at 32.
    assert log(trace, 0) == log(trace, 1) == [("mte2", 0, 8, 18)]
    assert [lane.gm_bytes for lane in trace.lanes] == [128, 128]
    assert [lane.l2_bytes for lane in trace.lanes] == [256, 256]
    assert [lane.l2_hit_bytes for lane in trace.lanes] == [0, 0]


def test_requests_of_one_cycle_both_hit_what_was_there_before(tiny: DeviceSpec) -> None:
    trace = play(tiny, (load(256),), (load(256),), sizes=SMALL, l2="warm")
    assert log(trace, 0) == log(trace, 1) == [("mte2", 0, 4, 6)]
    trace = play(tiny, (load(256), *LATER, load(256)), (load(256), *LATER, load(256)))
    assert log(trace, 0) == log(trace, 1)
    assert log(trace) == [("mte2", 0, 8, 18), ("mte2", 18, 22, 24)]


def test_a_line_stays_while_its_set_has_room(tiny: DeviceSpec) -> None:
    def third(spec: DeviceSpec) -> tuple[str, int, int, int]:
        program = (load(4096), load(4096, name="y"), load(4096))
        return log(play(spec, program, sizes=BIG))[2]

    # Half of the L2 came in since: with many ways all is there, 4096 bytes at 64.
    assert third(tiny) == ("mte2", 256, 320, 322)
    # With one way, exp(-1/2) is left, 2484 bytes: 39 cycles, and 51 for the other 1612 at 32.
    assert third(tiny_spec(l2__ways=1)) == ("mte2", 256, 256 + 51 + 39, 356)


def test_a_touch_renews_a_line() -> None:
    program = (load(4096), load(4096, name="y"), load(4096), load(4096))
    rows = log(play(tiny_spec(l2__ways=1), program, sizes=BIG))
    # Of 4096 bytes the third finds 2484 and brings in 1612; the fourth finds them all.
    assert [free - start for _, start, free, _ in rows] == [128, 128, 51 + 39, 64]


def test_hits_bring_nothing_in(tiny: DeviceSpec) -> None:
    program = (load(4096), *(load(4096, name="y") for _ in range(5)), load(4096))
    rows = log(play(tiny, program, sizes=BIG))
    assert [free - start for _, start, free, _ in rows] == [128, 128, 64, 64, 64, 64, 64]


def test_a_warm_l2_holds_as_large_a_part_of_each_tensor_as_fits() -> None:
    # x and y need 16896 bytes each with the allocator's slack: 8192 of 33792 bytes, a quarter.
    program = (load(1024), load(1024, 0, "y"))
    rows = log(play(tiny_spec(l2__ways=1), program, sizes=BIG, l2="warm"))
    # 248 of 1024 bytes are there: 776 take 25 cycles at 32, and 248 take 4 at 64.
    assert rows[0] == ("mte2", 0, 25 + 4, 39)
    # These 776 bytes took their part of y too, an eleventh: 224 are left.
    assert rows[1] == ("mte2", 29, 29 + 25 + 4, 68)


def reads(l2: L2, *lines: Lines, copies: int = 1, different: int = 1) -> list[Found]:
    """What the L2 finds when all *lines* of x are read in one cycle, in lines and in bytes."""
    now = next(ROUND_TRIPS)
    found = l2.touch([Use(True, "x", each, copies, different) for each in lines], now)
    units = WHOLE, WHOLE, SHARE_UNITS, COUNT_UNITS
    return [Found(*(x / unit for x, unit in zip(each, units, strict=False))) for each in found]  # type: ignore[arg-type]


def twice(nbytes: int) -> tuple[int, int]:
    """What lines cost the link, and what is read: the same where runs of lines cost nothing."""
    return nbytes, nbytes


def test_shares_of_a_line_add_up_to_it(tiny: DeviceSpec) -> None:
    l2 = L2(tiny, [GlobalTensor("x", 1 << 20)], {})
    # Seven cores ask for three lines; 128 / 7 is no whole number.
    found = l2.touch([Use(True, "x", slice(0, 3), copies=5), *[Use(True, "x", slice(0, 3))] * 2], 0)
    shares = [each.read / COUNT_UNITS for each in found]
    assert shares == pytest.approx([3 * 128 / 7] * 3)
    assert round(5 * shares[0] + shares[1] + shares[2], 6) == 3 * 128


def test_a_line_that_does_not_stay_is_fetched_for_each_reader(tiny: DeviceSpec) -> None:
    l2 = L2(tiny, [GlobalTensor("x", 1 << 20)], {})
    use = Use(True, "x", slice(0, 3), copies=2, unkept=np.array([1, 0, 2]))
    # Of the three lines of 128 bytes, of the last of which two bursts end, the second one stays. A
    # round trip takes 10 cycles: until then others wait for that one.
    found = [l2.touch([use, use], now)[0] for now in (100, 109, 110)]
    assert [each.misses // WHOLE for each in found] == [3, 3, 2]
    assert [each.read // COUNT_UNITS for each in found] == [
        *(128 + 128 // 4 + 2 * 128, 3 * 128, 3 * 128)
    ]


def test_the_l2_answers_by_volume() -> None:
    spec = tiny_spec(l2__ways=1)
    l2 = L2(spec, [GlobalTensor("x", 1 << 20)], {})
    # In the first cycle two ask for the same 64 lines, as many as the L2 has, which come in once.
    assert reads(l2, slice(0, 64), slice(0, 64)) == [(0, 64, *twice(32 * 128), 0)] * 2
    # They do not drive each other out. As many others leave exp(-1) of each.
    assert reads(l2, slice(0, 10)) == [(10, 0, 0, 0, 0)]
    assert reads(l2, slice(64, 128)) == [(0, 64, *twice(64 * 128), 0)]
    share = resident_share(L2_BYTES, spec) / WHOLE
    assert share == pytest.approx(math.exp(-1), abs=1e-5)
    (found,) = reads(l2, slice(20, 30))
    assert found == pytest.approx((10 * share, *[10 * (1 - share)], *twice(1280 * (1 - share)), 0))


@pytest.mark.parametrize("ways", [1, 2, 16])
def test_what_is_left_is_what_a_poisson_variable_says(ways: int) -> None:
    spec = tiny_spec(l2__ways=ways)
    for parts in range(1, 20):
        age = parts * L2_BYTES // 8
        mean = ways * age / L2_BYTES
        left = math.exp(-mean) * sum(mean**k / math.factorial(k) for k in range(ways))
        assert resident_share(age, spec) / WHOLE == pytest.approx(left, abs=1e-5)


def test_requests_of_equivalent_cores_bring_in_as_much_as_separate_ones() -> None:
    def age(copies: int, requests: int) -> list[Found]:
        l2 = L2(tiny_spec(l2__ways=1), [GlobalTensor("x", 1 << 20)], {})
        lines = [slice(100 * request, 100 * request + 20) for request in range(requests)]
        reads(l2, *lines, copies=copies, different=copies)
        return reads(l2, slice(0, 20))

    assert age(copies=3, requests=1) == age(copies=1, requests=3)


def test_lines_read_in_part_from_an_odd_place_do_not_stay(tiny: DeviceSpec) -> None:
    # From byte 48 on, no multiple of a sector of 32: the ends of each row are whole lines, and the
    # row after it fetches the line that both share again. 200 bytes touch 2 lines, 80 the next.
    place = Global("x", 48, 200, 2, 280)
    lines = touched_lines(place, 0, 128)
    unkept = unaligned_lines(place, 0, tiny, lines)
    assert (lines, unkept.tolist() if unkept is not None else None) == (
        slice(0, 5),
        [True, True, True, False, True],
    )
    assert unaligned_lines(Global("x", 64, 200, 2, 288), 0, tiny, slice(0, 5)) is None
    trace = play(tiny, (load(300, 16), load(300, 16)), sizes=BIG)
    # Three lines each time; of the second, the one in the middle is there.
    assert [row[2] - row[1] for row in log(trace)] == [12, 8 + 2]


def test_a_line_that_does_not_stay_comes_for_each_row_that_ends_in_it(tiny: DeviceSpec) -> None:
    # Rows of 100 bytes from bytes 4 and 112 on: both end in line 0, the second also in line 1.
    rows = Load(Local("ub", 0, UINT8, 100), Global("x", 4, 100, 2, 108), 128)
    trace = play(tiny, (rows,), sizes=BIG)
    assert log(trace) == [("mte2", 0, 12, 22)]
    assert trace.lanes[0].gm_bytes == 3 * 128


# ---- what lies in the L2 at launch ----


def test_the_kernel_itself_ages_what_earlier_runs_left() -> None:
    spec = tiny_spec(l2__ways=16)
    tensors = [GlobalTensor("x", 3584), GlobalTensor("w", 1 << 20)]

    def age(state: L2State) -> int | None:
        return at_launch(spec, state, tensors, {"x"}).get("x")

    # 4096 bytes with the allocator's slack; w goes past the L2.
    assert age("cold") is None
    assert age(("x",)) == 0
    assert age("repeat") == 2048
    # Where all that a kernel touches surely fits, its own turn takes nothing.
    assert at_launch(spec, "repeat", [GlobalTensor("x", 100)], {"x"}) == {"x": 0}


# ---- which lines a copy touches ----


@pytest.mark.parametrize(
    ("place", "base", "expected"),
    [
        (Global("x", 0, 128), 0, [0]),
        (Global("x", 0, 129), 0, [0, 1]),
        (Global("x", 127, 2), 0, [0, 1]),
        (Global("x", 0, 128), 64, [0, 1]),
        (Global("x", 0, 32, 4, 128), 0, [0, 1, 2, 3]),
        (Global("x", 0, 32, 3, 256), 0, [0, 2, 4]),
        (Global("x", 100, 32, 3, 256), 0, [0, 1, 2, 3, 4, 5]),
        (Global("x", 0, 32, 3, 200), 0, [0, 1, 3]),
        (Global("x", 0, 32, 3, 32), 0, [0]),
    ],
    ids=str,
)
def test_lines_that_a_copy_touches(place: Global, base: int, expected: list[int]) -> None:
    lines = touched_lines(place, base, 128)
    found = list(range(lines.start, lines.stop)) if isinstance(lines, slice) else lines.tolist()
    assert found == expected


def test_two_names_of_one_tensor_share_its_lines(tiny: DeviceSpec) -> None:
    program: tuple[MicroOp, ...] = (load(256), *LATER, load(256, 0, "repeat"))
    both = ({"x": Binding("x", 512), "repeat": Binding("x", 512)},)
    rows = log(play(tiny, program, bindings=both))
    assert rows == [("mte2", 0, 8, 18), ("mte2", 18, 22, 24)]
