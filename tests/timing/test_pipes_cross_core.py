"""Flags between cores, timed by hand: a flag is seen 20 cycles after its pipe was done.

An Mmad of n tiles holds the cube for 2 + n cycles and is done 5 later; a vector micro-op of n
repeats takes 2 + n, and is done 3 later.
"""

from __future__ import annotations

import re

import pytest
from tiny import log, tiny_spec

from npusim import chip, isa
from npusim.check.hazards import DeadlockError
from npusim.chip import Binding, Block
from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8
from npusim.data.tensor import GlobalTensor
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Program
from npusim.timing.equivalence import equivalent_cores
from npusim.trace import Trace

TENSORS = [GlobalTensor("x", 4096)]


def mmad(tiles: int) -> isa.Mmad:
    a, b = isa.Local("l0a", 0, FLOAT16, 256), isa.Local("l0b", 0, FLOAT16, 256)
    return isa.Mmad(isa.Local("l0c", 0, FLOAT32, 256), a, b, 16, 16, 16 * tiles)


def vector(repeats: int) -> isa.BinaryScalar:
    x = isa.Local("ub", 0, FLOAT32, 64 * repeats)
    return isa.BinaryScalar("add", x, x, 1.0)


def cube_set(mode: isa.CrossMode = "group", event: int = 0) -> isa.CrossCoreSetFlag:
    return isa.CrossCoreSetFlag(mode, "cube", event)


def cube_wait(mode: isa.CrossMode = "group", event: int = 0) -> isa.CrossCoreWaitFlag:
    return isa.CrossCoreWaitFlag(mode, "cube", event)


def vector_set(mode: isa.CrossMode = "group", event: int = 0) -> isa.CrossCoreSetFlag:
    return isa.CrossCoreSetFlag(mode, "vector", event)


def vector_wait(mode: isa.CrossMode = "group", event: int = 0) -> isa.CrossCoreWaitFlag:
    return isa.CrossCoreWaitFlag(mode, "vector", event)


def on(core: int, kind: str, group: int, *ops: isa.MicroOp) -> Block:
    return Block(core, kind, Program("kernel", ops), {"x": Binding("x")}, group)


def play(spec: DeviceSpec, *blocks: Block) -> Trace:
    return chip.time(blocks, TENSORS, spec)


# ---- within a group ----


def test_both_vector_cores_go_on_once_the_cube_core_is_done(tiny: DeviceSpec) -> None:
    wait = (vector_wait(), vector(1))
    trace = play(
        tiny,
        on(0, "aic", 0, mmad(64), cube_set(), mmad(64)),
        on(1, "aiv", 0, *wait),
        on(2, "aiv", 0, vector(100), *wait),
    )
    # The flag does not hold the cube; it is seen at 66 + 5 + 20.
    assert log(trace, 0) == [("cube", 0, 66, 71), ("cube", 66, 132, 137)]
    assert log(trace, 1) == [("vector", 91, 94, 97)]
    # This one works till 102, when the flag has long been up; its pipe is not drained yet.
    assert log(trace, 2) == [("vector", 0, 102, 105), ("vector", 102, 103, 106)]


def test_the_cube_core_goes_on_once_both_vector_cores_are_done(tiny: DeviceSpec) -> None:
    trace = play(
        tiny,
        on(0, "aic", 0, cube_wait(), mmad(1), cube_wait(), mmad(1)),
        on(1, "aiv", 0, vector(10), vector_set(), vector(1), vector_set()),
        on(2, "aiv", 0, vector(50), vector_set(), vector(20), vector_set()),
    )
    # Core 1 sets at 15 and 16, core 2 at 55 and 75: the second set of core 1 does not stand in for
    # the first one of core 2.
    assert log(trace, 0) == [("cube", 75, 78, 83), ("cube", 95, 98, 103)]


def test_groups_and_events_do_not_hear_of_each_other(tiny: DeviceSpec) -> None:
    trace = play(
        tiny,
        on(0, "aic", 0, cube_set(event=1), mmad(8), cube_set()),
        on(1, "aic", 1, cube_set(event=1), mmad(18), cube_set()),
        on(2, "aiv", 0, vector_wait(), vector(1)),
        on(3, "aiv", 1, vector_wait(), vector(1)),
    )
    assert log(trace, 2) == [("vector", 15 + 20, 38, 41)]
    assert log(trace, 3) == [("vector", 25 + 20, 48, 51)]


def test_flags_between_cores_are_counted(tiny: DeviceSpec) -> None:
    trace = play(
        tiny,
        on(0, "aic", 0, cube_set(), mmad(8), cube_set()),
        on(1, "aiv", 0, vector_wait(), vector(1), vector_wait(), vector(1)),
    )
    assert log(trace, 1) == [("vector", 20, 23, 26), ("vector", 35, 38, 41)]


def test_setting_and_waiting_take_what_the_device_says() -> None:
    spec = tiny_spec(sync__set_flag_cycles=2, sync__wait_flag_cycles=3, sync__cross_core_cycles=0)
    trace = play(
        spec,
        on(0, "aic", 0, mmad(8), cube_set(), mmad(8)),
        on(1, "aiv", 0, vector_wait(), vector(1)),
    )
    # Done at 15 and set at 17; the cube is held till 12. The wait ends at 20.
    assert log(trace, 0) == [("cube", 0, 10, 15), ("cube", 12, 22, 27)]
    assert log(trace, 1) == [("vector", 20, 23, 26)]


def test_the_vector_cores_of_a_group_wait_for_their_last(tiny: DeviceSpec) -> None:
    meet = (vector_set("pair"), vector_wait("pair"))
    trace = play(
        tiny,
        on(0, "aic", 0, mmad(500)),
        on(1, "aiv", 0, vector(10), *meet, vector(1)),
        on(2, "aiv", 0, vector(40), *meet, vector(1)),
        on(3, "aiv", 1, vector(5), *meet, vector(1)),
        on(4, "aiv", 1, vector(6), *meet, vector(1)),
    )
    # Done at 45 and at 11, and seen 20 cycles later, by the cores of the same group alone.
    assert log(trace, 1)[1:] == log(trace, 2)[1:] == [("vector", 65, 68, 71)]
    assert log(trace, 3)[1:] == log(trace, 4)[1:] == [("vector", 31, 34, 37)]


# ---- among all cores of a kind ----


def test_cores_of_a_kind_wait_for_their_last(tiny: DeviceSpec) -> None:
    def twice(first: int, second: int) -> tuple[isa.MicroOp, ...]:
        meet = (vector_set("all"), vector_wait("all"))
        return (vector(first), *meet, vector(second), *meet, vector(1))

    trace = play(
        tiny,
        on(0, "aic", 0, mmad(500)),
        on(1, "aiv", 0, *twice(10, 30)),
        on(2, "aiv", 1, *twice(40, 5)),
    )
    # Core 2 is done at 45, both go on at 65; then core 1 at 65 + 32 + 3, both at 120. The cube
    # core, of another kind, sets nothing and is not awaited.
    assert log(trace, 1)[1:] == [("vector", 65, 97, 100), ("vector", 120, 123, 126)]
    assert log(trace, 2)[1:] == [("vector", 65, 72, 75), ("vector", 120, 123, 126)]


# ---- what cannot be ----


def test_a_core_that_waits_for_another_one_for_ever_is_named(tiny: DeviceSpec) -> None:
    text = (
        "kernel: every awaited flag must be set, but these wait for ever: "
        "cube at #1: cross_core_wait_flag group 0; set the flag on its source pipe before"
    )
    with pytest.raises(DeadlockError, match=f"^{re.escape(text)}$"):
        play(
            tiny,
            on(0, "aic", 0, mmad(1), cube_wait()),
            on(1, "aiv", 0, vector(1), vector_set()),
            on(2, "aiv", 0, vector(1)),
        )


def test_cores_that_cannot_meet_are_reported(tiny_2002: DeviceSpec) -> None:
    text = (
        "pipes: cores of tiny must have flags between them for cross_core_set_flag all 0, but "
        "sync.cross_core_cycles is left out; use a chip of arch 2201 or state it"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        play(tiny_2002, on(0, "ai_core", 0, vector_set("all")))


def test_cores_that_meet_are_timed_one_by_one(tiny: DeviceSpec) -> None:
    load = isa.Load(isa.Local("ub", 0, UINT8, 32), isa.Global("x", 0, 32))
    for flags, lanes in (((), 1), ((vector_set("all"),), 2), ((vector_wait("all"),), 2)):
        program = Program("kernel", (load, *flags))
        blocks = tuple(Block(core, "aiv", program, {"x": Binding("x")}) for core in range(2))
        assert len(equivalent_cores(blocks, tiny)) == lanes
