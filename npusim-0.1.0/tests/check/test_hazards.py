"""Races and deadlocks, planted and found, each with its whole message."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from advice import advised
from hypothesis import given
from hypothesis import strategies as st
from tiny import builder

from npusim import chip, isa
from npusim.check.hazards import DeadlockError, FlagError, Orders, RaceError, areas, order
from npusim.chip import Binding, Block
from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8
from npusim.data.tensor import GlobalTensor
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.kernel.program import Body, Call, Program


def walk(*ops: isa.MicroOp) -> tuple[int, ...]:
    return tuple(order(Program("kernel", ops)))


def sync(src: Pipe, dst: Pipe, event: int = 0) -> tuple[isa.MicroOp, isa.MicroOp]:
    return isa.SetFlag(src, dst, event), isa.WaitFlag(src, dst, event)


def load(nbytes: int = 256, at: int = 0, start: int = 0) -> isa.Load:
    return isa.Load(isa.Local("ub", at, UINT8, nbytes), isa.Global("x", start, nbytes))


def store(nbytes: int = 256, at: int = 0, start: int = 0) -> isa.Store:
    return isa.Store(isa.Global("y", start, nbytes), isa.Local("ub", at, UINT8, nbytes))


def half(at: int = 1024, src: int = 0) -> isa.Cast:
    return isa.Cast(isa.Local("ub", at, FLOAT16, 64), isa.Local("ub", src, FLOAT32, 64), "none")


def fill(at: int = 0, count: int = 64) -> isa.Duplicate:
    return isa.Duplicate(isa.Local("ub", at, FLOAT32, count), 0.0)


LOAD = "mte2: load ub[0:256] uint8 <- x+0 256 B"
CAST = "vector: cast.none ub[1024:1152] float16 <- ub[0:256] float32"
STORE = "mte3: store y+0 256 B <- ub[0:256] uint8"
FILL = "vector: duplicate ub[0:256] float32 <- 0.0"


def race(first: str, second: str, where: str) -> str:
    """The whole message; *first* and *second* begin with their number and pipe."""
    a, b = first.split(":")[0].split()[1], second.split(":")[0].split()[1]
    advice = f"set a flag from {a} to {b} after the first and await it before the second"
    return unordered("flag", first, second, where, advice)


def unordered(by: str, first: str, second: str, where: str, advice: str) -> str:
    text = (
        f"kernel: micro-ops that touch the same bytes must be ordered by a {by}, "
        f"not {first} and {second} at {where}; {advice}"
    )
    return f"^{re.escape(text)}$"


# ---- races ----

FLAG = sync("mte2", "vector")
RACES = {
    "read too early": ((load(), half()), f"#0 {LOAD}", f"#1 {CAST}"),
    "written over": ((half(), load()), f"#0 {CAST}", f"#1 {LOAD}"),
    "written twice": ((load(), fill()), f"#0 {LOAD}", f"#1 {FILL}"),
    "other pipes": ((load(), *sync("mte2", "mte3"), half()), f"#0 {LOAD}", f"#3 {CAST}"),
    "set too early": ((FLAG[0], load(), FLAG[1], half()), f"#1 {LOAD}", f"#3 {CAST}"),
    "awaited too late": ((load(), FLAG[0], half(), FLAG[1]), f"#0 {LOAD}", f"#2 {CAST}"),
    # The store follows the flag of the vector pipe, which does not follow the load's.
    "broken chain": ((load(), *sync("vector", "mte3"), store()), f"#0 {LOAD}", f"#3 {STORE}"),
    "barrier of one pipe": ((load(), isa.Barrier("mte2"), half()), f"#0 {LOAD}", f"#2 {CAST}"),
}


@pytest.mark.parametrize(("ops", "first", "second"), RACES.values(), ids=RACES)
def test_races_are_found(ops: tuple[isa.MicroOp, ...], first: str, second: str) -> None:
    with pytest.raises(RaceError, match=race(first, second, "ub[0:256]")):
        walk(*ops)


@pytest.mark.parametrize(
    "ops",
    [
        (),
        (half(), store()),
        (load(), load()),
        (load(), *FLAG, half()),
        (half(), *sync("vector", "mte2"), load()),
        (load(), *FLAG, half(), *sync("vector", "mte3"), store()),
        (load(), fill(1024), isa.Barrier(), half(), store()),
        (half(), isa.Barrier(), load(), *FLAG, half()),
    ],
    ids=str,
)
def test_what_is_ordered_is_no_race(ops: tuple[isa.MicroOp, ...]) -> None:
    assert walk(*ops) == tuple(range(len(ops)))


def mmad(*, unit_flag: bool = True) -> isa.Mmad:
    l0c, l0 = isa.Local("l0c", 0, FLOAT32, 256), isa.Local("l0a", 0, FLOAT16, 256)
    return isa.Mmad(l0c, l0, replace(l0, buffer="l0b"), 16, 16, 16, unit_flag=unit_flag)


def out(*, unit_flag: bool = True) -> isa.Fixpipe:
    place = isa.Global("y", 0, 64, 16, 64)
    return isa.Fixpipe(place, mmad().dst, 16, 16, 16, FLOAT32, unit_flag=unit_flag)


def test_the_unit_flag_orders_what_runs_along_behind_a_flag() -> None:
    go, start = sync("cube", "fixpipe")
    assert walk(mmad(), go, mmad(), start, out()) == (0, 1, 2, 3, 4)
    go, start = sync("fixpipe", "cube")
    assert walk(go, out(), start, mmad()) == (0, 1, 2, 3)


def test_without_a_flag_or_with_half_a_unit_flag_there_is_a_race() -> None:
    go, start = sync("cube", "fixpipe")
    for ops in (
        (mmad(), out()),
        (go, start, mmad(), out(unit_flag=False)),
        (go, start, mmad(unit_flag=False), out()),
        # The flag comes before another Mmad.
        (go, start, mmad(), mmad(), out()),
    ):
        last = len(ops) - 1
        names = f"#{last - 1} cube: {ops[-2]}", f"#{last} fixpipe: {ops[-1]}"
        with pytest.raises(RaceError, match=race(*names, "l0c[0:1024]")):
            walk(*ops)


def test_an_mmad_right_behind_the_flag_is_not_taken_for_one_farther_behind() -> None:
    """The same orders serve all programs of a launch: one that passes must not vouch for others."""
    orders, fix = Orders(), Call(Body((out(),)))
    near, far = (Call(Body((*sync("cube", "fixpipe"), *[mmad()] * count))) for count in (1, 2))
    assert orders.of(Program("near", (near, fix))) == range(4)
    with pytest.raises(RaceError):
        orders.of(Program("far", (far, fix)))


def test_an_older_set_is_what_a_wait_takes_first() -> None:
    # mte2 runs ahead of the vector pipe, which takes the older set, and then waits for the load.
    (raise_it, await_it), (go, start) = sync("mte2", "vector"), sync("mte3", "vector")
    ops = (start, raise_it, await_it, half(512, 768), load(), raise_it, await_it, go)
    with pytest.raises(RaceError, match=race(f"#4 {LOAD}", f"#6 {CAST}", "ub[0:256]")):
        walk(*ops[:6], half(), await_it, go)
    assert sorted(walk(*ops, half())) == list(range(9))


def test_the_bytes_that_overlap_are_named() -> None:
    # The load pads 100 bytes to 128; the cast reads from 96 on.
    text = race(
        "#0 mte2: load ub[0:100] uint8 <- x+0 100 B",
        "#1 vector: cast.none ub[1024:1152] float16 <- ub[96:352] float32",
        "ub[96:128]",
    )
    with pytest.raises(RaceError, match=text):
        walk(load(100), half(src=96))
    assert walk(load(100), half(src=128)) == (0, 1)


def test_the_scalar_unit_races_like_any_other_pipe() -> None:
    word = isa.Local("ub", 64, FLOAT32, 1)
    text = race(f"#0 {LOAD}", "#1 scalar: sload r <- ub[64:68] float32", "ub[64:68]")
    with pytest.raises(RaceError, match=text):
        walk(load(), isa.ScalarLoad("r", word))
    text = race("#0 scalar: sstore ub[64:68] float32 <- r", f"#1 {STORE}", "ub[64:68]")
    with pytest.raises(RaceError, match=text):
        walk(isa.ScalarStore(word, "r"), store())
    assert walk(load(), *sync("mte2", "scalar"), isa.ScalarLoad("r", word)) == (0, 1, 2, 3)


def test_a_loop_touches_all_that_its_rounds_touch() -> None:
    byte = isa.Local("ub", 200, UINT8, 1)
    loop = isa.ScalarLoop(80, (isa.ScalarLoad("r", byte, 1),))
    text = race(f"#0 {LOAD}", "#1 scalar: loop 80 x (sload r <- ub[200:201] uint8)", "ub[200:256]")
    with pytest.raises(RaceError, match=text):
        walk(load(), loop)
    assert walk(load(200), *sync("mte2", "scalar"), loop) == (0, 1, 2, 3)


def test_a_loop_with_steps_narrower_than_its_elements_touches_the_last_whole() -> None:
    # Elements of 4 bytes at 0, 2, 4 and 6: bytes 0 to 9.
    loop = isa.ScalarLoop(4, (isa.ScalarLoad("r", isa.Local("ub", 0, FLOAT32, 1), 2),))
    with pytest.raises(RaceError, match=r" at ub\[8:10\]; "):
        walk(isa.Duplicate(isa.Local("ub", 8, FLOAT16, 1), 0.0), loop)


def test_a_store_and_a_load_of_the_same_global_bytes_race() -> None:
    back = isa.Load(isa.Local("ub", 1024, UINT8, 64), isa.Global("y", 224, 64))
    text = race(f"#0 {STORE}", "#1 mte2: load ub[1024:1088] uint8 <- y+224 64 B", "gm y [224:256]")
    with pytest.raises(RaceError, match=text):
        walk(store(), back)
    assert walk(store(), *sync("mte3", "mte2"), back) == (0, 1, 2, 3)


def test_bursts_that_lie_between_each_other_do_not_race() -> None:
    even = isa.Store(isa.Global("y", 0, 32, 4, 64), isa.Local("ub", 0, UINT8, 32), 32)
    odd = isa.Load(isa.Local("ub", 1024, UINT8, 32), isa.Global("y", 32, 32, 4, 64), 32)
    wide = isa.Load(isa.Local("ub", 1024, UINT8, 33), isa.Global("y", 32, 33, 4, 64), 64)
    assert walk(even, odd) == (0, 1)
    with pytest.raises(RaceError, match=r" at gm y \[64:65\]; "):
        walk(even, wide)


@given(
    *[
        st.builds(
            isa.Global,
            st.just("x"),
            st.integers(0, 40),
            st.integers(1, 12),
            st.integers(1, 6),
            st.integers(0, 16),
        )
    ]
    * 2
)
def test_bursts_meet_when_they_share_a_byte(a: isa.Global, b: isa.Global) -> None:
    def touched(place: isa.Global) -> set[int]:
        starts = (place.offset_bytes + place.stride_bytes * i for i in range(place.bursts))
        return {byte for start in starts for byte in range(start, start + place.burst_bytes)}

    shared = areas.common(areas.of_global(a, "x"), areas.of_global(b, "x"))
    both = touched(a) & touched(b)
    assert (shared is not None) is bool(both)
    if shared is not None:
        assert shared[0] == min(both)
        assert set(range(*shared)) <= both
        assert shared[1] not in both


def test_the_vector_pipe_needs_a_barrier_before_a_result_is_used() -> None:
    names = f"#0 vector: {fill()}", f"#1 vector: {half()}", "ub[0:256]"
    advice = "put a barrier of the vector pipe between them"
    with pytest.raises(RaceError, match=unordered("barrier", *names, advice)):
        walk(fill(), half())
    for barrier in (isa.Barrier("vector"), isa.Barrier()):
        assert walk(fill(), barrier, half()) == (0, 1, 2)


def test_a_flag_that_comes_back_drains_the_vector_pipe_too() -> None:
    there, back = sync("vector", "scalar"), sync("scalar", "vector")
    assert len(walk(fill(), *there, *back, half())) == 6
    with pytest.raises(RaceError):
        walk(fill(), *sync("scalar", "vector"), half())


# ---- what the advice says ----


ADD = isa.BinaryScalar("add", isa.Local("ub", 0, FLOAT32, 64), isa.Local("ub", 0, FLOAT32, 64), 1.0)


@pytest.mark.parametrize(
    ("ops", "last"),
    [
        # The course's kernel without its second flag: what the vector pipe did counts, not mte2.
        ((load(), *sync("mte2", "vector"), ADD, store()), "not #3 vector: "),
        # Neither writer knows of the other, so both need a flag.
        ((load(128), fill(128, 32), store()), "not #1 vector: "),
        (
            (load(128), fill(128, 32), isa.ScalarStore(isa.Local("ub", 128, FLOAT32, 1), "r")),
            "#1 vector: ",
        ),
        # A barrier for the one and a flag for the other.
        ((load(128), fill(128, 32), half()), "not #1 vector: "),
        ((fill(0, 32), load(128, 128), half()), "not #1 mte2: "),
        ((isa.ScalarStore(isa.Local("ub", 0, FLOAT32, 1), "r"), store()), "not #0 scalar: "),
    ],
    ids=str,
)
def test_programs_that_follow_advice_pass(ops: tuple[isa.MicroOp, ...], last: str) -> None:
    with pytest.raises(RaceError, match=last) as caught:
        walk(*ops)
    assert len(walk(*advised(caught.value, list(ops)))) > len(ops)


@pytest.mark.parametrize(
    ("by", "ops", "advice"),
    [
        (
            "flag",
            (load(128), fill(128, 32), store()),
            "set a flag from vector to mte3 after the first and await it before the second, and "
            "one from mte2 to mte3 after #0",
        ),
        (
            "barrier",
            (load(128), fill(128, 32), half()),
            "put a barrier of the vector pipe between them, and set a flag from mte2 to vector "
            "after #0 and await it before #2",
        ),
        (
            "flag",
            (fill(0, 32), load(128, 128), half()),
            "set a flag from mte2 to vector after the first and await it before the second, and a "
            "barrier of the vector pipe after #0",
        ),
    ],
)
def test_several_writers_are_named(by: str, ops: tuple[isa.MicroOp, ...], advice: str) -> None:
    names = f"#1 {ops[1].pipe}: {ops[1]}", f"#2 {ops[2].pipe}: {ops[2]}"
    with pytest.raises(RaceError, match=unordered(by, *names, "ub[128:256]", advice)):
        walk(*ops)


# ---- what the scalar unit orders ----


def test_what_the_scalar_unit_has_waited_for_is_over_for_all_that_it_hands_out() -> None:
    there = sync("mte2", "scalar")
    assert walk(load(), *there, half()) == (0, 1, 2, 3)
    with pytest.raises(RaceError, match=race(f"#1 {LOAD}", f"#3 {CAST}", "ub[0:256]")):
        walk(there[0], load(), there[1], half())
    # It waits for a result of the vector pipe, so the next one may use that.
    assert walk(fill(), *sync("vector", "scalar"), half()) == (0, 1, 2, 3)


def test_the_scalar_unit_reads_at_once_and_writes_later() -> None:
    word = isa.Local("ub", 64, FLOAT32, 1)
    assert walk(isa.ScalarLoad("r", word), load()) == (0, 1)
    store_it = isa.ScalarStore(word, "r")
    with pytest.raises(RaceError, match=r"not #0 scalar: sstore .* and #1 mte2: load "):
        walk(store_it, load())
    assert len(walk(store_it, *sync("scalar", "mte2"), load())) == 4
    loop = isa.ScalarLoop(
        2, (isa.ScalarLoad("r", word, 4), isa.ScalarStore(isa.Local("ub", 512, FLOAT32, 1), "r", 4))
    )
    assert walk(loop, load()) == (0, 1)
    with pytest.raises(RaceError, match=r" at ub\[512:520\]; set a flag from scalar to mte3 "):
        walk(loop, store(at=512))


# ---- gaps ----


def test_what_lies_in_the_gaps_of_a_copy_is_not_touched() -> None:
    rows = isa.Load(isa.Local("ub", 0, UINT8, 32), isa.Global("x", 0, 32, 3, 64), 64)
    between = isa.Duplicate(isa.Local("ub", 32, FLOAT32, 8), 0.0)
    assert walk(rows, between) == (0, 1)
    with pytest.raises(RaceError, match=r" at ub\[64:96\]; "):
        walk(rows, isa.Duplicate(isa.Local("ub", 32, FLOAT32, 24), 0.0))
    out = isa.Store(isa.Global("y", 0, 4, 3, 64), isa.Local("ub", 0, UINT8, 4), 64)
    assert walk(out, isa.Duplicate(isa.Local("ub", 4, FLOAT32, 15), 0.0)) == (0, 1)
    with pytest.raises(RaceError, match=r" at ub\[64:68\]; "):
        walk(out, isa.Duplicate(isa.Local("ub", 4, FLOAT32, 16), 0.0))


def test_strides_of_the_vector_pipe_are_held_against_solid_ranges_too() -> None:
    every_other = isa.Duplicate(isa.Local("ub", 0, FLOAT32, 64, 2, 16), 0.0)
    assert walk(every_other, load(32, 32)) == (0, 1)
    with pytest.raises(RaceError, match=r" at ub\[448:480\]; "):
        walk(every_other, load(64, 448))


def test_rounds_of_a_loop_touch_their_elements_alone() -> None:
    loop = isa.ScalarLoop(3, (isa.ScalarLoad("r", isa.Local("ub", 0, FLOAT32, 1), 64),))
    assert walk(load(32, 32), loop) == (0, 1)
    with pytest.raises(RaceError, match=r" at ub\[128:132\]; "):
        walk(load(32, 128), loop)


def test_columns_of_fractals_lie_apart_in_l1() -> None:
    # Two halves of the rows of one matrix of 32, each copied by itself.
    halves = [
        isa.LoadNd2Nz(isa.Local("l1", 512 * half, FLOAT16, 256), isa.Global("x", 0, 64, 16, 64), 32)
        for half in (0, 1)
    ]
    take = isa.LoadData(
        isa.Local("l0a", 0, FLOAT16, 512), isa.Local("l1", 0, FLOAT16, 1024), 32, 16, 0, 16, 32
    )
    assert walk(halves[0], take) == (0, 1)
    with pytest.raises(RaceError, match=r" at l1\[512:1024\]; "):
        walk(halves[1], take)


# ---- flags ----


def test_a_flag_that_nobody_awaits_is_refused() -> None:
    text = (
        "kernel: every flag that is set must be awaited, but nobody awaits these: mte2 at #1: "
        "set_flag mte2->vector 0; vector at #2: set_flag vector->mte3 3; await each as often as "
        "it is set, or set it less often"
    )
    with pytest.raises(FlagError, match=f"^{re.escape(text)}$"):
        walk(load(), isa.SetFlag("mte2", "vector", 0), isa.SetFlag("vector", "mte3", 3))


def test_a_flag_is_awaited_before_it_is_set_again() -> None:
    set_flag, wait_flag = sync("mte2", "vector")
    text = (
        "kernel: a flag that is set must be awaited before it is set again, but #2 mte2: "
        "set_flag mte2->vector 0 comes before a wait for #0; await it in between, or use another "
        "event"
    )
    with pytest.raises(FlagError, match=f"^{re.escape(text)}$"):
        walk(set_flag, load(), set_flag, wait_flag, wait_flag)
    # Pairs may follow each other, as those of FetchEventID do, though mte2 runs ahead.
    assert len(walk(set_flag, wait_flag, set_flag, wait_flag)) == 4
    assert len(walk(wait_flag, set_flag, wait_flag, set_flag)) == 4


# ---- several names for a tensor ----


def block(*parts: isa.MicroOp | Call, core: int = 0, **bindings: Binding) -> Block:
    return Block(core, "aiv", Program("kernel", parts), bindings)


def one_tensor(start: int = 0, base: int = 0) -> Block:
    back = isa.Load(isa.Local("ub", 1024, UINT8, 64), isa.Global("zz", start, 64))
    out = isa.Store(isa.Global("z", 0, 256), isa.Local("ub", 0, UINT8, 256))
    return block(out, back, z=Binding("z", 128), zz=Binding("z", base))


def test_two_names_for_one_tensor_race(tiny: DeviceSpec) -> None:
    text = (
        "kernel: micro-ops that touch the same bytes must be ordered by a flag, not #0 mte3: "
        "store z+0 256 B <- ub[0:256] uint8 and #1 mte2: load ub[1024:1088] uint8 <- zz+32 64 B "
        "at gm z [0:32] (z and zz name one tensor); set a flag from mte3 to mte2 after the first "
        "and await it before the second"
    )
    with pytest.raises(RaceError, match=f"^{re.escape(text)}$"):
        chip.verify((one_tensor(32, 64),), tiny)
    # Their bindings say whether their ranges overlap.
    chip.verify((one_tensor(0, 64),), tiny)
    chip.verify((one_tensor(256, 128),), tiny)
    with pytest.raises(RaceError, match=r" at gm z \[192:256\] "):
        chip.verify((one_tensor(0, 320),), tiny)


def test_names_for_one_tensor_race_from_call_to_call(tiny: DeviceSpec) -> None:
    ops = one_tensor().program.ops
    # Round 2 reads what round 1 has stored.
    calls = [Call(Body(ops), {"z": 256 * turn, "zz": 256 * turn}) for turn in range(4)]
    far = {"z": Binding("z", 4096), "zz": Binding("z", 0)}
    chip.verify((block(*calls, **far),), tiny)
    near = {"z": Binding("z", 256), "zz": Binding("z", 0)}
    with pytest.raises(RaceError, match=r"not #0 mte3: .* and #3 mte2: load .* at gm z \[0:64\] "):
        chip.verify((block(*calls, **near),), tiny)


def test_names_for_one_tensor_that_is_read_or_written_alone_are_fine(tiny: DeviceSpec) -> None:
    a, b = (
        isa.Load(isa.Local("ub", 512 * i, UINT8, 64), isa.Global(n, 0, 64))
        for i, n in enumerate("ab")
    )
    chip.verify((block(a, b, a=Binding("z"), b=Binding("z")),), tiny)
    out, again = (isa.Store(isa.Global(n, 0, 64), isa.Local("ub", 0, UINT8, 64)) for n in "ab")
    chip.verify((block(out, again, a=Binding("z"), b=Binding("z")),), tiny)


# ---- deadlocks ----


STUCK: list[tuple[tuple[isa.MicroOp, ...], str]] = [
    ((load(), FLAG[1], half()), "vector at #1: wait_flag mte2->vector 0"),
    ((*FLAG, FLAG[1]), "vector at #2: wait_flag mte2->vector 0"),
    (
        (FLAG[1], *reversed(sync("vector", "mte2")), FLAG[0]),
        "vector at #0: wait_flag mte2->vector 0; mte2 at #1: wait_flag vector->mte2 0",
    ),
    # The scalar unit has not handed out what it waits for.
    (
        (isa.WaitFlag("vector", "scalar", 3), fill(), isa.SetFlag("vector", "scalar", 3)),
        "scalar at #0: wait_flag vector->scalar 3",
    ),
    # The barrier waits for a pipe that waits for what comes after it.
    (
        (FLAG[1], isa.Barrier(), FLAG[0]),
        "vector at #0: wait_flag mte2->vector 0; scalar at #1: barrier all",
    ),
]


@pytest.mark.parametrize(("ops", "waits"), STUCK, ids=[waits for _, waits in STUCK])
def test_whoever_waits_for_ever_is_named(ops: tuple[isa.MicroOp, ...], waits: str) -> None:
    text = (
        f"kernel: every awaited flag must be set, but these wait for ever: {waits}; "
        f"set the flag on its source pipe before"
    )
    with pytest.raises(DeadlockError, match=f"^{re.escape(text)}$"):
        walk(*ops)


# ---- the order ----


def test_the_builders_programs_keep_program_order(tiny: DeviceSpec) -> None:
    write = builder(tiny)
    queue = write.queue("ub", 256, "mte2", "mte3", 2)
    for tile in range(5):
        slot = queue.alloc()
        write.data_copy(slot.of(UINT8, 256), isa.Global("x", 256 * tile, 256))
        queue.enque(slot)
        slot = queue.deque()
        write.data_copy(isa.Global("y", 256 * tile, 256), slot.of(UINT8, 256))
        queue.free(slot)
    program = write.build()
    assert order(program) == range(len(program.ops))


def test_a_wait_written_before_its_set_puts_the_producer_first(tiny: DeviceSpec) -> None:
    x = isa.Local("ub", 0, FLOAT32, 64)
    program = Program(
        "kernel",
        (
            *(isa.WaitFlag("mte2", "vector", 0), isa.BinaryScalar("add", x, x, 1.0)),
            *(isa.WaitFlag("vector", "mte3", 0), store(), load()),
            *(isa.SetFlag("mte2", "vector", 0), isa.SetFlag("vector", "mte3", 0)),
        ),
    )
    assert order(program) == (4, 5, 0, 1, 6, 2, 3)

    values, out = np.arange(64, dtype=np.float32), np.zeros(256, np.uint8)
    tensors = [GlobalTensor("x", 256, values.view(np.uint8)), GlobalTensor("y", 256, out)]
    blocks = (Block(0, "aiv", program, {"x": Binding("x"), "y": Binding("y")}),)
    chip.compute(blocks, tensors, tiny, chip.verify(blocks, tiny))
    np.testing.assert_array_equal(out.view(np.float32), values + 1)
