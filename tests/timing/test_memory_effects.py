"""What silicon does besides bandwidth and latency, each effect by hand on the tiny chip.

A core's port takes 32 bytes a cycle from the memory and 64 out of the L2; all cores together get 32
and 128; a load is there after 10 cycles, or 2 out of the L2, a store after 4. Lines have 128 bytes.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from engine_times import needs_compiled
from tiny import log, play, tiny_spec

from npusim import TensorSpec, devices, run
from npusim.chip import Binding, L2State
from npusim.data.dtypes import UINT8
from npusim.devices.schema import DeviceSpec
from npusim.isa import Barrier, Global, Load, LoadNd2Nz, Local, ScalarAlu, Store
from npusim.kernel.program import Program

SMALL = {"x": 3072, "y": 2048}
"""Tensors that fit into the L2 together."""
BIG = {"x": 16384, "y": 16384}


def load(nbytes: int, start: int = 0, name: str = "x") -> Load:
    return Load(Local("ub", 0, UINT8, nbytes), Global(name, start, nbytes))


def rows(bursts: int, nbytes: int, stride: int) -> Load:
    place = Global("x", 0, nbytes, bursts, stride)
    return Load(Local("ub", 0, UINT8, nbytes), place, nbytes)


def store(nbytes: int, start: int = 0) -> Store:
    return Store(Global("y", start, nbytes), Local("ub", 8192, UINT8, nbytes))


def fractals(bursts: int, nbytes: int, stride: int) -> LoadNd2Nz:
    return LoadNd2Nz(Local("l1", 0, UINT8, nbytes), Global("x", 0, nbytes, bursts, stride), 16)


# ---- lines that come in ----


def test_a_line_that_misses_is_fetched_whole() -> None:
    spec = tiny_spec(gm__read_bytes_per_s=64e9)
    # 32 bytes of each of four lines: 512 bytes at 64 take 8 cycles; at the port 4 would do.
    assert log(play(spec, (rows(4, 32, 128),))) == [("mte2", 0, 8, 18)]
    assert log(play(spec, (rows(1, 128, 128),))) == [("mte2", 0, 4, 14)]


def test_each_run_of_lines_costs_as_if_it_were_longer() -> None:
    spec = tiny_spec(gm__run_bytes=32)
    # 512 + 32 bytes at 32; in four runs 512 + 4 x 32.
    assert log(play(spec, (load(512),))) == [("mte2", 0, 17, 27)]
    assert log(play(spec, (rows(4, 128, 256),))) == [("mte2", 0, 20, 30)]


def test_runs_are_identified_by_what_is_missing() -> None:
    spec = tiny_spec(gm__run_bytes=32)
    # Line 1 is there: lines 0, 2 and 3 come in, in two runs, 384 + 64 bytes at 32. The port takes
    # 384 at 32 and 128 out of the L2 at 64, 14 cycles, in which the link moves as much.
    trace = play(spec, (load(128, 128), Barrier("mte2"), load(512)))
    assert log(trace) == [("mte2", 0, 5, 15), ("mte2", 15, 15 + 14, 39)]
    assert (trace.lanes[0].gm_bytes, trace.lanes[0].l2_bytes) == (512, 640)


@pytest.mark.parametrize("cores", [(256, 512), (512, 256)])
def test_the_cost_of_a_line_is_shared(cores: tuple[int, int], tiny: DeviceSpec) -> None:
    # Both bear half of the first two lines: loads of 16 and 24 bytes a cycle on a link of 32, four
    # fifths of full speed. 256 bytes take 10 cycles; the others 8 more at full speed.
    trace = play(tiny, *((load(nbytes),) for nbytes in cores))
    found = {nbytes: log(trace, core) for core, nbytes in enumerate(cores)}
    assert found == {256: [("mte2", 0, 10, 20)], 512: [("mte2", 0, 18, 28)]}


def test_who_asks_a_few_cycles_later_gets_it_with_those_before(tiny: DeviceSpec) -> None:
    trace = play(tiny, (load(256),), (load(32, 1024), load(256)))
    # The line of core 1 shares the link with the 256 bytes: 32 and 128 bytes a cycle, a fifth, so
    # that it takes 5 cycles. Core 0 has 7 cycles left then; core 1 needs the 8 of its port for what
    # is on its way, of whose 10 cycles 5 are over.
    assert log(trace, 0) == [("mte2", 0, 12, 22)]
    assert log(trace, 1) == [("mte2", 0, 5, 15), ("mte2", 5, 13, 18)]


# ---- cores apart ----


@pytest.mark.parametrize("every_core", [False, True])
@pytest.mark.parametrize(("apart_us", "took"), [(0.0, 16), (0.002, 14), (0.01, 12)])
def test_the_memory_makes_up_for_its_rest(apart_us: float, took: int, every_core: bool) -> None:
    spec = tiny_spec(gm__apart_us=apart_us)
    # In the 4 cycles in which both cores load 256 bytes out of the L2 the memory could have read
    # 128, or 64 if it makes up for 2 cycles only. With 64 bytes a cycle at the ports and 32 of its
    # own these last for 4 cycles or 2; what is left of 512 bytes then takes 8 or 12.
    program = Program("kernel", (load(256, name="y"), load(256)))
    own = tuple({"x": Binding("x", 512 * core), "y": Binding("y")} for core in range(2))
    trace = play(
        spec, program, program, sizes=SMALL, l2=("y",), bindings=own, every_core=every_core
    )
    assert log(trace, 0) == [("mte2", 0, 4, 6), ("mte2", 4, 4 + took, 14 + took)]


@pytest.mark.parametrize(("apart_us", "took"), [(0.0, 16), (0.004, 12)])
def test_so_does_the_l2_with_what_is_stored(apart_us: float, took: int) -> None:
    spec = tiny_spec(gm__apart_us=apart_us)
    # Two cores store 256 bytes each at 32 bytes a cycle, for which the L2 has 32. In the 10 cycles
    # before it could have taken 320; it makes up for 4 of them.
    program = (*(ScalarAlu("add", "r", 1) for _ in range(10)), store(256))
    trace = play(spec, program, program)
    assert log(trace, 0)[-1] == ("mte3", 10, 10 + took, 14 + took)


@pytest.mark.parametrize("every_core", [False, True])
@pytest.mark.parametrize(("apart_bytes", "took"), [(0, 16), (1024, 12)])
def test_no_rest_while_cores_load_the_same(apart_bytes: int, took: int, every_core: bool) -> None:
    spec = tiny_spec(gm__apart_us=0.004)
    # As above, but for 10 cycles two cores load out of the L2, which leaves the link for stores at
    # rest. It makes up for 4 of them if each loads lines of its own; those that load the same lines
    # wait for one answer, and are not apart.
    wait = (ScalarAlu("add", "r", 1) for _ in range(10))
    program = Program("kernel", (load(640), *wait, store(256)))
    own = tuple({"x": Binding("x", apart_bytes * core), "y": Binding("y")} for core in range(2))
    trace = play(
        spec, program, program, sizes=SMALL, l2=("x",), bindings=own, every_core=every_core
    )
    copies = [span for span in log(trace, 0) if span[0] != "scalar"]
    assert copies == [("mte2", 0, 10, 12), ("mte3", 10, 10 + took, 14 + took)]


def test_at_launch_there_is_nothing_to_make_up_for() -> None:
    spec = tiny_spec(gm__apart_us=0.01)
    trace = play(spec, (load(256),), (load(256, 1024),))
    assert log(trace, 0) == log(trace, 1) == [("mte2", 0, 16, 26)]


# ---- past the L2 ----


def test_what_goes_past_the_l2_leaves_nothing_there_and_brings_no_lines(tiny: DeviceSpec) -> None:
    past = ({"x": Binding("x", is_cached=False)},)
    assert log(play(tiny, (load(256), load(256)), bindings=past)) == [
        ("mte2", 0, 8, 18),
        ("mte2", 8, 16, 26),
    ]
    assert log(play(tiny, (load(32),), bindings=past)) == [("mte2", 0, 1, 11)]
    assert log(play(tiny, (load(256),), sizes=SMALL, l2="warm", bindings=past)) == [
        ("mte2", 0, 8, 18)
    ]


@pytest.mark.parametrize("every_core", [False, True])
def test_what_goes_past_the_l2_comes_once_for_each_core(every_core: bool, tiny: DeviceSpec) -> None:
    past = ({"x": Binding("x", is_cached=False)},) * 2
    program = Program("kernel", (load(256),))
    trace = play(tiny, program, program, bindings=past, every_core=every_core)
    assert len(trace.lanes) == (2 if every_core else 1)
    assert log(trace, 0) == log(trace, 1) == [("mte2", 0, 16, 26)]
    assert (trace.gm_bytes, trace.l2_bytes) == (512, 0)


# ---- what was stored ----


@pytest.mark.parametrize(
    ("bus", "write_bytes_per_s", "took"),
    [("shared", 32e9, 136), ("shared", 16e9, 144), ("separate", 16e9, 128)],
)
def test_evicted_lines_are_written_back(bus: str, write_bytes_per_s: float, took: int) -> None:
    spec = tiny_spec(gm__bus=bus, gm__write_bytes_per_s=write_bytes_per_s)
    # The second load brings the volume to 8192 + 256, so that the 256 bytes stored have to go. A
    # bus for both is taken up by them for 8 cycles, or 16 where it writes at half the speed.
    trace = play(spec, (store(256), load(4096), load(4096, 4096)), sizes=BIG)
    assert log(trace) == [
        ("mte3", 0, 8, 12),
        ("mte2", 0, 128, 138),
        ("mte2", 128, 128 + took, 138 + took),
    ]
    # The store brought in two lines, which are counted when they leave.
    assert (trace.gm_read_bytes, trace.gm_written_bytes, trace.gm_bytes) == (8192, 256, 8448)
    assert (trace.l2_bytes, trace.l2_hit_bytes, trace.l2_written_bytes) == (8448, 256, 256)


def test_what_fits_is_not_written_back(tiny: DeviceSpec) -> None:
    program = (store(256), load(4096), load(4096 - 256, 4096), load(128))
    assert log(play(tiny, program, sizes=BIG))[1:] == [
        ("mte2", 0, 128, 138),
        ("mte2", 128, 248, 258),
        ("mte2", 248, 250, 252),
    ]


def test_what_an_earlier_run_stored_is_there_for_the_next(tiny: DeviceSpec) -> None:
    program = (store(256), load(2048), load(1024, 2048))
    cold, again = (log(play(tiny, program, sizes=SMALL, l2=l2)) for l2 in ("cold", "repeat"))
    # All fits: the next run finds everything.
    assert [row[2] - row[1] for row in again] == [8, 32, 16]
    assert [row[2] - row[1] for row in cold] == [8, 64, 32]


# ---- states ----


def test_again_is_what_the_runs_before_left(tiny: DeviceSpec) -> None:
    assert log(play(tiny, (load(256),), sizes=SMALL, l2="repeat")) == [("mte2", 0, 4, 6)]
    # 32 KiB in turn do not fit: each line is gone when its turn comes.
    loop = tuple(load(4096, start) for start in range(0, 32768, 4096))
    sizes = {"x": 32768}
    cold, again = (log(play(tiny, loop, sizes=sizes, l2=l2)) for l2 in ("cold", "repeat"))
    assert cold == again


def test_only_the_tensors_named_are_warm(tiny: DeviceSpec) -> None:
    program = (load(256), load(256, name="y"))
    assert log(play(tiny, program, sizes=SMALL, l2=("x",))) == [
        ("mte2", 0, 4, 6),
        ("mte2", 4, 12, 22),
    ]
    assert log(play(tiny, program, sizes=SMALL, l2=())) == log(play(tiny, program, sizes=SMALL))


@needs_compiled
def test_requests_for_some_of_the_lines_of_others_find_each_line_as_it_was() -> None:
    # 12 and 16 lines, from the same one on or not, and every other line: more than stays.
    whole, part, behind = load(2048), load(1536), load(2048, 512)
    ways = whole, part, behind, rows(16, 128, 256), rows(12, 128, 256), store(2048), store(1536)
    spec, rng = tiny_spec(l2__capacity_bytes=4096, l2__ways=4), random.Random(3)
    for _ in range(80):
        # Whether both engines find the same times is what `play` looks at.
        play(spec, *(tuple(rng.choices(ways, k=12)) for _ in range(2)), sizes=BIG)


@pytest.mark.parametrize(("share", "took"), [(1.0, 32), (0.75, 40), (0.25, 56), (0.0, 64)])
def test_a_tensor_may_be_in_the_l2_in_part(share: float, took: int) -> None:
    # Of 2048 bytes the share comes at 64 and the rest at 32.
    trace = play(tiny_spec(l2__ways=1), (load(2048),), sizes=SMALL, l2={"x": share})
    (found,) = log(trace)
    assert found[1:3] == (0, pytest.approx(took, abs=1))


# ---- the same lines ----


def test_requests_past_the_l2_for_one_line_are_answered_in_turn() -> None:
    spec = tiny_spec(l2__same_line_ns=8.0, gm__read_bytes_per_s=64e9)
    past = ({"x": Binding("x", is_cached=False)},) * 2
    # A line of 128 bytes every 8 cycles: 8 a cycle each for two ports of 32.
    trace = play(spec, (load(256),), (load(256),), bindings=past)
    assert log(trace, 0) == log(trace, 1) == [("mte2", 0, 32, 42)]
    # Different lines do not wait for each other.
    trace = play(spec, (load(256),), (load(256, 1024),), bindings=past)
    assert log(trace, 0) == log(trace, 1) == [("mte2", 0, 8, 18)]
    # Rows of 32 bytes are requests of their own: 2 bytes a cycle each.
    trace = play(spec, (rows(4, 32, 128),), (rows(4, 32, 128),), bindings=past)
    assert log(trace, 0) == log(trace, 1) == [("mte2", 0, 64, 74)]
    # Through the L2 they are merged.
    trace = play(spec, (load(256),), (load(256),))
    assert log(trace, 0) == log(trace, 1) == [("mte2", 0, 8, 18)]


def test_lines_that_come_in_take_their_time_from_stores() -> None:
    spec = tiny_spec(l2__fills="between")
    # Lines fill the L2 at 32 bytes a cycle, and cores store as fast: both at once take twice as
    # long, but not what goes past the L2.
    trace = play(spec, (load(256),), (store(256),))
    assert log(trace, 0) == [("mte2", 0, 16, 26)]
    assert log(trace, 1) == [("mte3", 0, 16, 20)]
    own = {"x": Binding("x", is_cached=False), "y": Binding("y")}
    trace = play(spec, (load(256),), (store(256),), bindings=(own, own))
    assert log(trace, 0) == [("mte2", 0, 8, 18)]
    assert log(trace, 1) == [("mte3", 0, 8, 12)]


@pytest.mark.parametrize(("stride", "took"), [(256, 8), (512, 16)])
def test_bursts_far_apart_come_more_slowly(stride: int, took: int) -> None:
    spec = tiny_spec(l2__aliased_bytes=512, l2__aliased_speed=0.5)
    # 512 bytes at 64 take 8 cycles, or 16 at half of it.
    program = (rows(4, 128, stride),)
    both = play(spec, program, program, sizes=SMALL, l2="warm")
    assert log(both, 0) == log(both, 1) == [("mte2", 0, took, took + 2)]
    # For a core alone, and for what the memory gives, nothing changes.
    assert log(play(spec, program, sizes=SMALL, l2="warm")) == [("mte2", 0, 8, 10)]
    assert log(play(spec, program, program, sizes=SMALL)) == [("mte2", 0, 16, 26)]


# ---- rows that become fractals ----


def test_rows_that_become_fractals_wait_for_each_other() -> None:
    spec = tiny_spec(gm__row_ns=5.0, l2__row_ns=2.0)
    # 8 rows in 4 lines, which each wait for once: 20 cycles from the memory, for bytes that would
    # be through in 16, there after 10. Out of the L2 16, there after 2.
    program = (fractals(8, 32, 64), fractals(8, 32, 64))
    assert log(play(spec, program, kind="aic")) == [("mte2", 0, 20, 30), ("mte2", 20, 36, 38)]


@pytest.mark.parametrize(
    ("row_bytes", "stride", "took"), [(32, 128, 72), (64, 128, 72), (96, 128, 40), (64, 64, 20)]
)
def test_rows_alone_in_their_lines_come_more_slowly(row_bytes: int, stride: int, took: int) -> None:
    spec = tiny_spec(gm__row_ns=5.0, gm__part_row_ns=9.0)
    # 8 rows in lines of 128 bytes: half of a line or less, more than half, two of a line.
    program = (fractals(8, row_bytes, stride),)
    assert log(play(spec, program, sizes=SMALL, kind="aic")) == [("mte2", 0, took, took + 10)]


def test_rows_past_the_l2_have_no_lines() -> None:
    spec = tiny_spec(gm__row_ns=5.0, gm__part_row_ns=9.0)
    past = ({"x": Binding("x", is_cached=False)},)
    trace = play(spec, (fractals(8, 64, 128),), sizes=SMALL, kind="aic", bindings=past)
    assert log(trace) == [("mte2", 0, 40, 50)]


@pytest.mark.parametrize(("l2", "took", "latency"), [("cold", 32, 10), ("warm", 16, 2)])
def test_long_bytes_hide_row_times(l2: L2State, took: int, latency: int) -> None:
    # 8 rows of 128 bytes take 4 cycles each at the port from the memory, 2 out of the L2.
    spec = tiny_spec(gm__row_ns=4.0, l2__row_ns=2.0)
    trace = play(spec, (fractals(8, 128, 128),), sizes=SMALL, l2=l2, kind="aic")
    assert log(trace) == [("mte2", 0, took, took + latency)]


def test_rows_and_bytes_of_both_memories_are_one_load() -> None:
    spec = tiny_spec(gm__row_ns=6.0, l2__row_ns=1.0)
    # Of 8 rows of 128 bytes 4 are there. The rows take 4 x 6 + 4 x 1 cycles, their bytes 4 x 4 at
    # the port from the memory and 4 x 2 out of the L2: 28 and 24.
    program = (Load(Local("l1", 0, UINT8, 512), Global("x", 0, 512)), fractals(8, 128, 128))
    trace = play(spec, program, sizes=SMALL, kind="aic")
    assert log(trace) == [("mte2", 0, 16, 26), ("mte2", 16, 44, 54)]


def test_a_row_across_lines_is_two_pieces() -> None:
    spec = tiny_spec(l2__row_ns=3.0)
    # From byte 0 on rows of 128 lie in a line each; from byte 64 on in two. The pieces take 24 or
    # 48 cycles, 1024 bytes 16.
    for start, took in ((0, 24), (64, 48)):
        own = ({"x": Binding("x", start)},)
        program = (fractals(8, 128, 128),)
        trace = play(spec, program, sizes=SMALL, l2="warm", kind="aic", bindings=own)
        assert log(trace) == [("mte2", 0, took, took + 2)]


@needs_compiled
@pytest.mark.parametrize("faster", [1.01, 1.02])
def test_a_product_of_odd_rows_is_no_slower_where_memory_is_a_little_faster(faster: float) -> None:
    # Its rows share lines that do not stay, which cores in step read once and others did not.
    spec = devices.load("ascend910b2")
    rate = spec.gm.read_bytes_per_s
    rates = {"read_bytes_per_s": rate * faster, "write_bytes_per_s": rate * faster}
    quicker = spec.model_copy(update={"gm": spec.gm.model_copy(update=rates)})
    x, weight = TensorSpec((2047, 1023), "bfloat16"), TensorSpec((8, 1023, 2047), "bfloat16")
    group_list = np.array([256, 512, 768, 1023, 1279, 1535, 1791, 2047])
    options = {"group_list": group_list, "group_type": 0, "split_item": 3, "values": False}
    slow, quick = (
        run("npu_grouped_matmul", x, weight, device=device, engine="compiled", **options).cycles
        for device in (spec, quicker)
    )
    assert quick < 1.01 * slow
