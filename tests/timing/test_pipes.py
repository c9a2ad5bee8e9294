"""Programs of a few micro-ops on one core, timed by hand to the cycle.

The tiny chip: a load or store moves 32 bytes a cycle past the L2 and is there 10 (a store 4)
cycles later; a vector micro-op takes 2 cycles of head, 1 a repeat of 256 bytes, 3 of tail. Handing
out and flags are free unless a test says otherwise. A row is (pipe, start, pipe free, result).
"""

from __future__ import annotations

import re

import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from tiny import builder, log, play, tiny_spec

from npusim import chip, isa
from npusim.check.hazards import DeadlockError
from npusim.chip import Binding, Block
from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, UINT8
from npusim.data.tensor import GlobalTensor
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.kernel.program import Body, Call, Program


def load(nbytes: int = 256, at: int = 0, name: str = "x", start: int = 0) -> isa.Load:
    return isa.Load(isa.Local("ub", at, UINT8, nbytes), isa.Global(name, start, nbytes))


def store(nbytes: int = 256, at: int = 0, name: str = "y", start: int = 0) -> isa.Store:
    return isa.Store(isa.Global(name, start, nbytes), isa.Local("ub", at, UINT8, nbytes))


def vector(repeats: int = 1, at: int = 0) -> isa.BinaryScalar:
    x = isa.Local("ub", at, FLOAT32, 64 * repeats)
    return isa.BinaryScalar("add", x, x, 1.0)


def sync(src: Pipe, dst: Pipe, event: int = 0) -> tuple[isa.MicroOp, isa.MicroOp]:
    return isa.SetFlag(src, dst, event), isa.WaitFlag(src, dst, event)


# ---- one pipe ----


WORD = isa.Local("ub", 4096, FLOAT32, 1)
BYTES = isa.Local("ub", 0, UINT8, 1), isa.Local("ub", 32, UINT8, 1)
ELEMENT = isa.Global("x", 0, 4)
COPIED = (load(), *sync("mte2", "vector"), vector(), *sync("vector", "mte3"), store())
PROGRAMS: dict[str, tuple[tuple[isa.MicroOp, ...], list[tuple[str, int, int, int]]]] = {
    # 256 bytes at 32 a cycle: 8, there after 10 more. Head 2 and one repeat, tail 3. Store: 8 + 4.
    "load, compute, store": (
        COPIED,
        [("mte2", 0, 8, 18), ("vector", 18, 21, 24), ("mte3", 24, 32, 36)],
    ),
    "side by side": ((load(), store(256, 1024)), [("mte2", 0, 8, 18), ("mte3", 0, 8, 12)]),
    # 2 + 4, result 3 later; the pipe is not drained at 6 and at 10, so nobody pays the head again.
    "no head behind each other": (
        (vector(4), vector(4, 1024), vector(1, 2048)),
        [("vector", 0, 6, 9), ("vector", 6, 10, 13), ("vector", 10, 11, 14)],
    ),
    # The barrier holds the pipe till 9, when the first result is there; then 2 + 4 and 3.
    "drained by a barrier": (
        (vector(4), isa.Barrier("vector"), vector(4)),
        [("vector", 0, 6, 9), ("vector", 9, 15, 18)],
    ),
    "idle in between": (
        (vector(), load(), *sync("mte2", "vector"), vector()),
        [("vector", 0, 3, 6), ("mte2", 0, 8, 18), ("vector", 18, 21, 24)],
    ),
    # The second vector micro-op starts at 6, the store waits for the tail of the first till 9.
    "a flag holds no pipe": (
        (vector(4), *sync("vector", "mte3"), vector(1, 1024), store(1024)),
        [("vector", 0, 6, 9), ("vector", 6, 7, 10), ("mte3", 9, 41, 45)],
    ),
    # First result at 6; the second micro-op runs 3 to 23 and is there at 26. Each wait takes one
    # set, in order: the first store at 6 (8 cycles), the second not at 14 but at 26 (160 cycles).
    "two waits, two sets": (
        (
            *(vector(), isa.SetFlag("vector", "mte3", 0)),
            *(vector(20, 256), isa.SetFlag("vector", "mte3", 0)),
            *(isa.WaitFlag("vector", "mte3", 0), store()),
            *(isa.WaitFlag("vector", "mte3", 0), store(5120, 256, start=1024)),
        ),
        [("vector", 0, 3, 6), ("vector", 3, 23, 26), ("mte3", 6, 14, 18), ("mte3", 26, 186, 190)],
    ),
    # The load is there at 18; nothing is handed out before.
    "a full barrier": (
        (load(), vector(4, 1024), isa.Barrier(), vector(1, 1024), store(256, 2048)),
        [("mte2", 0, 8, 18), ("vector", 0, 6, 9), ("vector", 18, 21, 24), ("mte3", 18, 26, 30)],
    ),
    # Load 4, add 1, store 3: the second vector micro-op is handed out at 8.
    "scalar micro-ops hold up": (
        (
            *(vector(), isa.ScalarLoad("r", WORD), isa.ScalarAlu("add", "r", "r", 1)),
            *(isa.ScalarStore(WORD, "r"), vector(1, 256)),
        ),
        [
            *[("vector", 0, 3, 6), ("scalar", 0, 4, 4), ("scalar", 4, 5, 5)],
            *[("scalar", 5, 8, 8), ("vector", 8, 11, 14)],
        ],
    ),
    "an element of global memory": (
        (
            isa.ScalarLoadGlobal("r", ELEMENT, INT32),
            isa.ScalarLoadGlobal("s", ELEMENT, INT32, is_cached=True),
            vector(),
        ),
        [("scalar", 0, 30, 30), ("scalar", 30, 34, 34), ("vector", 34, 37, 40)],
    ),
    # Three rounds of 4 + 3.
    "a loop": (
        (
            isa.ScalarLoop(
                3, (isa.ScalarLoad("r", BYTES[0], 1), isa.ScalarStore(BYTES[1], "r", 1))
            ),
            vector(),
        ),
        [("scalar", 0, 21, 21), ("vector", 21, 24, 27)],
    ),
    # The scalar unit stands at its wait till 18, so even the free vector pipe gets nothing before.
    "the scalar unit waits": (
        (
            *(load(), *sync("mte2", "scalar"), isa.ScalarStore(WORD, "r")),
            *(*sync("scalar", "mte3"), store(), vector(1, 8192)),
        ),
        [("mte2", 0, 8, 18), ("scalar", 18, 21, 21), ("mte3", 21, 29, 33), ("vector", 21, 24, 27)],
    ),
}
"""What it shows -> a program, and when its copies and computations run."""


@pytest.mark.parametrize(("program", "rows"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_takes(
    tiny: DeviceSpec, program: tuple[isa.MicroOp, ...], rows: list[tuple[str, int, int, int]]
) -> None:
    assert log(play(tiny, program)) == rows


ROWS = isa.Load(isa.Local("ub", 0, UINT8, 32), isa.Global("x", 0, 32, 8, 64), 32)
WIDE = {"gm__read_bytes_per_s": 64e9}
"""A link so wide that whole lines come in no slower than the rows are taken."""


@pytest.mark.parametrize(
    ("numbers", "program", "rows"),
    [
        # 0 to 3, there at 6; barrier till 11; 11 to 14, there at 17; set rises at 19, wait till 20.
        (
            {"sync__set_flag_cycles": 2, "sync__wait_flag_cycles": 1, "sync__barrier_cycles": 5},
            (vector(), isa.Barrier("vector"), vector(), *sync("vector", "mte3"), store()),
            [("vector", 0, 3, 6), ("vector", 11, 14, 17), ("mte3", 20, 28, 32)],
        ),
        # Handed out at 3, 6, 9, (set 12, wait 15,) 18; the load runs 3 to 11 and is there at 21.
        (
            {"scalar__dispatch_cycles": 3},
            (load(), vector(1, 1024), vector(1, 2048), *sync("mte2", "mte3"), store()),
            [
                ("mte2", 3, 11, 21),
                ("vector", 6, 9, 12),
                ("vector", 9, 10, 13),
                ("mte3", 21, 29, 33),
            ],
        ),
        # One cycle of bytes, with their line: the pipe is held 5, the bytes are there at 1 + 10.
        (
            {"transfer__issue_cycles": 5, "gm__read_bytes_per_s": 128e9},
            (load(32), load(32, 32, start=512)),
            [("mte2", 0, 5, 11), ("mte2", 5, 10, 16)],
        ),
        # No result is there before its pipe is free.
        ({"transfer__issue_cycles": 20}, (load(32),), [("mte2", 0, 20, 20)]),
        # 8 x 32 bytes would take 8 cycles; 8 bursts take 24.
        (WIDE | {"transfer__burst_cycles": 3}, (ROWS,), [("mte2", 0, 24, 24)]),
        # 160 bytes from byte 16 on lie in two lines of 128: 256 bytes; from byte 32 on: 5 sectors.
        (WIDE, (load(160, start=16),), [("mte2", 0, 8, 18)]),
        (WIDE, (load(160, start=32),), [("mte2", 0, 5, 15)]),
        # 6 + 8 cycles on the pipe, there 10 later.
        (
            {"cores__aiv__paths__gm_to_ub__startup_cycles": 6},
            (load(), load(256, 256, start=512)),
            [("mte2", 0, 14, 24), ("mte2", 14, 28, 38)],
        ),
    ],
    ids=str,
)
def test_the_chip_says_how_long(
    numbers: dict[str, float],
    program: tuple[isa.MicroOp, ...],
    rows: list[tuple[str, int, int, int]],
) -> None:
    assert log(play(tiny_spec(**numbers), program)) == rows


def test_a_barrier_is_handed_out_in_a_cycle_of_the_scalar_unit() -> None:
    program = (vector(1, 1024), isa.Barrier("vector"), vector(1, 2048))
    # Handed out at 3, 4 and 7; the barrier waits for the result, which is there at 7.
    assert log(play(tiny_spec(scalar__dispatch_cycles=3), program)) == [
        ("vector", 3, 6, 9),
        ("vector", 9, 12, 15),
    ]
    # The barrier's own cycle is not more than what others take.
    assert log(play(tiny_spec(scalar__alu_cycles=5), program))[0] == ("vector", 0, 3, 6)


# ---- scalar ----


# ---- queues ----


def pipelined(spec: DeviceSpec, depth: int) -> Program:
    write = builder(spec)
    queue = write.queue("ub", 1024, "mte2", "vector", depth)
    for tile in range(3):
        slot = queue.alloc()
        write.data_copy(slot.of(UINT8, 1024), isa.Global("x", 1024 * tile, 1024))
        queue.enque(slot)
        slot = queue.deque()
        write.emit(vector(4, slot.offset_bytes))
        queue.free(slot)
    return write.build()


# 1024 bytes: 32 cycles, there 10 later. A load waits for the tile before, or for that before it.
@pytest.mark.parametrize(("depth", "starts"), [(1, (0, 51, 102)), (2, (0, 32, 64))])
def test_loads_wait_for_a_slot(tiny: DeviceSpec, depth: int, starts: tuple[int, ...]) -> None:
    rows = log(play(tiny, pipelined(tiny, depth)))
    assert rows[::2] == [("mte2", at, at + 32, at + 42) for at in starts]
    assert rows[1::2] == [("vector", at + 42, at + 48, at + 51) for at in starts]


# ---- the cube path ----


def test_a_product_from_global_memory_and_back(tiny: DeviceSpec) -> None:
    l1, l0c = isa.Local("l1", 0, FLOAT16, 512), isa.Local("l0c", 0, FLOAT32, 256)
    l0a, l0b = isa.Local("l0a", 0, FLOAT16, 512), isa.Local("l0b", 0, FLOAT16, 512)
    program = (
        *(isa.LoadNd2Nz(l1, isa.Global("x", 0, 64, 16, 64), 16), *sync("mte2", "mte1")),
        *(isa.LoadData(l0a, l1, 16, 0, 0, 16, 32), isa.LoadData(l0b, l1, 16, 0, 0, 16, 32)),
        *(*sync("mte1", "cube"), isa.Mmad(l0c, l0a, l0b, 16, 16, 32)),
        *(isa.Mmad(l0c, l0a, l0b, 16, 16, 32, "accumulate"), *sync("cube", "fixpipe")),
        isa.Fixpipe(isa.Global("y", 0, 32, 16, 32), l0c, 16, 16, 16, FLOAT16, "cast"),
    )
    # 1024 bytes at 32 a cycle and 10; 3 + 1024 / 256, 4 + 1024 / 128; twice 2 + 2 tiles, there 5
    # later; 512 bytes at 32 and 4.
    assert log(play(tiny, program, kind="aic")) == [
        ("mte2", 0, 32, 42),
        ("mte1", 42, 49, 49),
        ("mte1", 49, 61, 61),
        ("cube", 61, 65, 70),
        ("cube", 65, 69, 74),
        ("fixpipe", 74, 90, 94),
    ]


def test_with_the_unit_flag_the_fixpipe_and_the_cube_follow_each_other() -> None:
    spec = tiny_spec(l2__write_bytes_per_s=8e9)
    l0c = isa.Local("l0c", 0, FLOAT32, 256)
    l0a, l0b = isa.Local("l0a", 0, FLOAT16, 4096), isa.Local("l0b", 0, FLOAT16, 4096)
    first = isa.Mmad(l0c, l0a, l0b, 16, 16, 256, unit_flag=True)
    second = isa.Mmad(l0c, l0a, l0b, 16, 16, 256, "accumulate", unit_flag=True)
    out = isa.Fixpipe(
        isa.Global("y", 0, 32, 16, 32), l0c, 16, 16, 16, FLOAT16, "cast", unit_flag=True
    )
    filled, read = sync("cube", "fixpipe"), sync("fixpipe", "cube")
    full, empty = sync("cube", "fixpipe", 1), sync("fixpipe", "cube", 1)
    drain = (filled[1], read[0], out, full[1], empty[0])
    program = (
        *(filled[0], first, full[0], *drain),
        *(read[1], first, empty[1], filled[0], second, full[0], *drain),
        *(read[1], empty[1]),
    )
    # An Mmad takes 2 + 16 tiles, its result is there 5 later; 512 bytes out take 64 and 4. The
    # first one out starts with the first Mmad, and the second Mmad behind that; the third one waits
    # for all that was there to be out, and the second one out starts with it.
    assert log(play(spec, program, kind="aic")) == [
        ("cube", 0, 18, 23),
        ("fixpipe", 0, 64, 68),
        ("cube", 18, 36, 41),
        ("cube", 68, 86, 91),
        ("fixpipe", 68, 132, 136),
    ]


@pytest.mark.parametrize(
    ("queue", "is_early", "starts"),
    [
        # Six instructions precede the copy, of two loads to L0 that begin at 0 and 5.
        (6, False, 0),
        (5, False, 0),
        (4, False, 0),
        (3, False, 5),
        (2, False, 5),
        (2, True, 0),
        (0, False, 0),
    ],
)
def test_a_copy_waits_for_room_in_the_queue_of_mte1(
    queue: int, is_early: bool, starts: int
) -> None:
    spec = tiny_spec(scalar__mte1_queue=queue)
    l1, l0a = isa.Local("l1", 0, FLOAT16, 256), isa.Local("l0a", 0, FLOAT16, 256)
    part = isa.LoadData(l0a, l1, 16, 0, 0, 16, 16)
    rows = isa.LoadNd2Nz(isa.Local("l1", 512, UINT8, 32), isa.Global("x", 0, 256), 16)
    bound = {"x": Binding("x", is_early=is_early)}
    # 512 bytes at 256 a cycle behind 3 of start-up: 5.
    assert log(play(spec, (part, part, rows), kind="aic", bindings=(bound,))) == [
        ("mte1", 0, 5, 5),
        ("mte1", 5, 10, 10),
        ("mte2", starts, starts + 8, starts + 18),
    ]


def test_rows_that_become_fractals_hold_the_pipe_one_by_one() -> None:
    # The link is so wide that whole lines come in no slower than the rows are taken.
    spec = tiny_spec(transfer__burst_cycles=3, gm__read_bytes_per_s=64e9)
    rows = isa.LoadNd2Nz(isa.Local("l1", 0, UINT8, 32), isa.Global("x", 0, 32, 8, 64), 16)
    assert log(play(spec, (rows,), kind="aic")) == [("mte2", 0, 24, 24)]


# ---- calls ----


def called(spec: DeviceSpec, calls: int = 3) -> Program:
    """The tiles of `pipelined` as calls, each shifted on by its tile."""
    write = builder(spec)
    queue = write.queue("ub", 1024, "mte2", "vector", 2)

    def tile() -> None:
        slot = queue.alloc()
        write.data_copy(slot.of(UINT8, 1024), isa.Global("x", 0, 1024))
        queue.enque(slot)
        slot = queue.deque()
        write.emit(vector(4, slot.offset_bytes))
        queue.free(slot)

    for number in range(calls):
        write.call("tile", {"x": 1024 * number}, tile)
    return write.build()


def test_calls_take_the_time_of_what_they_stand_for(tiny: DeviceSpec) -> None:
    program = called(tiny)
    trace = play(tiny, program)
    assert log(trace) == log(play(tiny, pipelined(tiny, 2)))
    flat = play(tiny, Program("kernel", program.ops))
    assert trace.to_text() == flat.to_text()
    assert trace.counters() == flat.counters()
    assert trace.micro_ops == flat.micro_ops == len(program.ops)


def test_a_call_moves_what_is_copied_with_its_place_in_a_line(tiny: DeviceSpec) -> None:
    body = Body((load(160), store(160)))
    program = Program("kernel", (Call(body), Call(body, {"x": 16}), Call(body, {"y": 8})))
    # 160 bytes are 5 sectors of 32, or two lines of 128 where they begin off a sector; from memory
    # both lines come in. Those of x that were read before come from the L2: twice as fast, there 2
    # later.
    assert [row for row in log(play(tiny, program)) if row[0] == "mte2"] == [
        ("mte2", 0, 8, 18),
        ("mte2", 8, 12, 14),
        ("mte2", 12, 15, 17),
    ]
    assert play(tiny, program).to_text() == play(tiny, Program("kernel", program.ops)).to_text()


@st.composite
def bodies(draw: st.DrawFn) -> tuple[isa.MicroOp, ...]:
    """Copies, vector and scalar micro-ops, flags that are awaited at once, and barriers."""
    kinds: list[tuple[isa.MicroOp, ...]] = [
        (load(160),),
        (load(64, start=200),),
        (store(96),),
        (vector(3),),
        (vector(1, 1024),),
        sync("mte2", "vector"),
        sync("vector", "mte3"),
        sync("mte2", "scalar"),
        sync("scalar", "mte2", 1),
        (isa.ScalarAlu("add", "r", "r", 1),),
        (isa.Barrier("vector"),),
        (isa.Barrier(),),
    ]
    return tuple(op for ops in draw(st.lists(st.sampled_from(kinds), max_size=12)) for op in ops)


@given(
    known=st.lists(bodies(), min_size=1, max_size=3),
    calls=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 700)), max_size=6),
    dispatch=st.integers(0, 3),
)
@draws(60)
def test_calls_and_what_they_stand_for_take_the_same_time(
    known: list[tuple[isa.MicroOp, ...]], calls: list[tuple[int, int]], dispatch: int
) -> None:
    spec = tiny_spec(scalar__dispatch_cycles=dispatch)
    shared = [Body(ops) for ops in known]
    parts = [Call(shared[which % len(shared)], {"x": at, "y": 3 * at}) for which, at in calls]
    program = Program("kernel", tuple(parts))
    flat = Program("kernel", program.ops)
    one, other = (play(spec, each, flat) for each in (program, flat))
    assert one.to_text() == other.to_text()
    assert one.counters() == other.counters()


# ---- what a copy costs beside its bytes ----


def test_the_binding_counts_when_a_burst_is_off_its_sector(tiny: DeviceSpec) -> None:
    at_16 = ({"x": Binding("x", 16)},)
    assert log(play(tiny, (load(160),), bindings=at_16)) == [("mte2", 0, 8, 18)]


# ---- a core with a clock of its own ----


def test_a_slower_core_takes_longer_and_moves_less_a_cycle() -> None:
    spec = tiny_spec("2002", cores__vector_core__clock_hz=500_000_000)
    program = (load(), *sync("mte2", "vector"), vector(), *sync("vector", "mte3"), store())
    # Two cycles of the chip for each of the core's: 256 bytes at 16 a cycle, 4 + 2 and 6, and 16.
    # Latencies belong to the chip: 10 and 4.
    assert log(play(spec, program, kind="vector_core")) == [
        ("mte2", 0, 16, 26),
        ("vector", 26, 32, 38),
        ("mte3", 38, 54, 58),
    ]
    assert log(play(spec, program, kind="ai_core"))[-1] == ("mte3", 24, 32, 36)


@pytest.mark.parametrize(
    ("chip_mhz", "core_mhz", "cycles", "expected"),
    [
        (1100, 1000, 10, 11),
        (550, 1000, 100, 55),
        (550, 1000, 101, 56),
        (1060, 1000, 1, 1),
        (400, 1000, 1, 1),
    ],
)
def test_clocks_round_to_cycles(chip_mhz: int, core_mhz: int, cycles: int, expected: int) -> None:
    spec = tiny_spec(
        "2002",
        cores__ai_core__clock_hz=chip_mhz * 10**6,
        cores__vector_core__clock_hz=core_mhz * 10**6,
        scalar__alu_cycles=cycles,
    )
    (row,) = log(play(spec, (isa.ScalarAlu("add", "r", 1, 1),), kind="vector_core"))
    assert row == ("scalar", 0, expected, expected)


# ---- whole runs ----


def test_the_same_input_gives_the_same_times(tiny: DeviceSpec) -> None:
    program = pipelined(tiny, 2)
    own = tuple({name: Binding(name, 4096 * core) for name in "xy"} for core in range(3))
    first, second = (
        play(
            tiny, program, program, (load(), vector()), sizes={"x": 16384, "y": 16384}, bindings=own
        )
        for _ in range(2)
    )
    # Three cores share the link, so that it takes longer than for one.
    assert first.to_text() == second.to_text()
    assert first.cycles == second.cycles > play(tiny, program).cycles == 115


def test_a_pipe_that_waits_for_ever_is_named(tiny: DeviceSpec) -> None:
    program = (load(), isa.WaitFlag("vector", "mte2", 0), load(), isa.Duplicate(vector().dst, 0.0))
    message = (
        "kernel: every awaited flag must be set, but these wait for ever: "
        "mte2 at #1: wait_flag vector->mte2 0; set the flag on its source pipe before"
    )
    with pytest.raises(DeadlockError, match=f"^{re.escape(message)}$"):
        play(tiny, program)


def test_a_stuck_scalar_unit_is_named_with_its_pipe(tiny: DeviceSpec) -> None:
    program = (
        *(isa.WaitFlag("vector", "mte2", 0), load()),
        *(isa.WaitFlag("mte2", "scalar", 1), isa.SetFlag("vector", "mte2", 0)),
    )
    message = (
        "kernel: every awaited flag must be set, but these wait for ever: "
        "mte2 at #0: wait_flag vector->mte2 0; scalar at #2: wait_flag mte2->scalar 1; "
        "set the flag on its source pipe before"
    )
    with pytest.raises(DeadlockError, match=f"^{re.escape(message)}$"):
        play(tiny, program)


def test_cores_of_both_kinds_run_together() -> None:
    spec = tiny_spec("2002", cores__vector_core__clock_hz=500_000_000)
    program = Program("kernel", (vector(4),))
    blocks = tuple(
        Block(core, kind, program, {}) for core, kind in enumerate(("ai_core", "vector_core"))
    )
    trace = chip.time(blocks, [GlobalTensor("x", 32)], spec)
    assert (trace.kind(0), trace.kind(1)) == ("ai_core", "vector_core")
    assert (log(trace, 0), log(trace, 1)) == ([("vector", 0, 6, 9)], [("vector", 0, 12, 18)])
