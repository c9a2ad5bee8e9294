"""Equivalent cores: the times of simulating each, from one of them, and only where they may be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from draws import draws
from engine_times import assert_equal_traces
from hypothesis import example, given
from hypothesis import strategies as st
from tiny import tiny_spec

from npusim import chip
from npusim.chip import L2_STATES, Binding, Block, L2State
from npusim.data.dtypes import FLOAT32, UINT8
from npusim.data.tensor import GlobalTensor
from npusim.devices.schema import DeviceSpec
from npusim.isa import Barrier, BinaryScalar, Global, Load, Local, MicroOp, SetFlag, Store, WaitFlag
from npusim.kernel.program import Body, Call, Program
from npusim.timing.compiled import is_built
from npusim.timing.equivalence import equivalent_cores
from npusim.timing.pipes import Lane

SCALE = {"scale": Binding("scale")}
ROW = 1024
"""Bytes between the rows of two cores, when they are whole lines apart."""


def kernel(rows: int = 1, nbytes: int = 512, common: int = 0, stride: int = 0) -> Program:
    """Load *rows* of x (and *common* bytes of the scale), compute, and store the rows to y."""
    ops: list[MicroOp] = []
    if common:
        ops.append(Load(Local("ub", 8192, UINT8, common), Global("scale", 0, common)))
    place = Global("x", 0, nbytes, rows, stride or nbytes)
    ops += [
        Load(Local("ub", 0, UINT8, nbytes), place, 512),
        *(SetFlag("mte2", "vector", 0), WaitFlag("mte2", "vector", 0)),
        BinaryScalar("add", *[Local("ub", 0, FLOAT32, 64 * rows)] * 2, 1.0),
        *(SetFlag("vector", "mte3", 0), WaitFlag("vector", "mte3", 0)),
        Store(Global("y", 0, nbytes, rows, stride or nbytes), Local("ub", 0, UINT8, nbytes), 512),
    ]
    return Program("kernel", tuple(ops))


def blocks_of(program: Program, cores: int, apart: int = ROW) -> tuple[Block, ...]:
    """The same on each core, *apart* bytes from the core before; the scale is common."""
    return tuple(
        Block(
            core,
            "aiv",
            program,
            {
                "x": Binding("x", core * apart),
                "y": Binding("y", core * apart),
                "scale": Binding("scale"),
            },
        )
        for core in range(cores)
    )


def tensors_of(cores: int, apart: int = ROW) -> list[GlobalTensor]:
    size = max(cores * apart, 4096) + 4096
    return [GlobalTensor("x", size), GlobalTensor("y", size), GlobalTensor("scale", 2048)]


def lanes(blocks: tuple[Block, ...], spec: DeviceSpec) -> list[tuple[int, ...]]:
    """The cores of each group."""
    groups = equivalent_cores(blocks, spec)
    return [tuple(block.core for block in group) for group in groups]


def assert_equal_times(
    blocks: tuple[Block, ...], tensors: list[GlobalTensor], spec: DeviceSpec, l2: L2State = "cold"
) -> None:
    one, all_ = (
        chip.time(blocks, tensors, spec, l2=l2, every_core=each, engine="simpy")
        for each in (False, True)
    )
    assert one.to_text() == all_.to_text()
    if is_built():
        for every_core, trace in ((False, one), (True, all_)):
            found = chip.time(
                *(blocks, tensors, spec), l2=l2, every_core=every_core, engine="compiled"
            )
            assert_equal_traces(trace, found)
    assert one.counters() == all_.counters()
    by_core = [
        {core: (lane.gm_bytes, lane.l2_bytes) for lane in trace.lanes for core in lane.cores}
        for trace in (one, all_)
    ]
    assert by_core[0] == by_core[1]


# ---- where folding happens ----


def test_cores_with_lines_of_their_own_are_one_lane(tiny: DeviceSpec) -> None:
    assert lanes(blocks_of(kernel(), 8), tiny) == [tuple(range(8))]
    assert_equal_times(blocks_of(kernel(), 8), tensors_of(8), tiny)


def test_a_common_vector_keeps_them_together(tiny: DeviceSpec) -> None:
    blocks = blocks_of(kernel(common=256), 8)
    assert lanes(blocks, tiny) == [tuple(range(8))]
    assert_equal_times(blocks, tensors_of(8), tiny)
    assert_equal_times(blocks, tensors_of(8), tiny, "warm")


def test_rows_that_share_a_line_keep_them_apart(tiny: DeviceSpec) -> None:
    # 576 bytes are four and a half lines: cores 0 and 1 meet in line 4, though both begin at the
    # same place within a line as the core after next.
    blocks = blocks_of(kernel(nbytes=576), 4, apart=576)
    assert lanes(blocks, tiny) == [(0,), (1,), (2,), (3,)]
    assert_equal_times(blocks, tensors_of(4), tiny)


def test_rows_that_begin_elsewhere_in_a_line_are_other_lanes(tiny: DeviceSpec) -> None:
    # Every second core begins in the middle of a line, and no two meet in one.
    blocks = blocks_of(kernel(nbytes=448), 4, apart=1024 + 64)
    assert lanes(blocks, tiny) == [(0, 2), (1, 3)]
    assert_equal_times(blocks, tensors_of(4, 1088), tiny)


def test_only_the_cores_that_meet_keep_apart(tiny: DeviceSpec) -> None:
    program, short = kernel(), kernel(nbytes=256)
    blocks = blocks_of(program, 4)
    stray = Block(4, "aiv", short, {"x": Binding("x", 0), "y": Binding("y", 3 * ROW)})
    # The stray one reads what core 0 reads and writes what core 3 writes: all are taken apart.
    assert lanes((*blocks, stray), tiny) == [(0,), (1,), (2,), (3,), (4,)]
    assert_equal_times((*blocks, stray), tensors_of(5), tiny)


def test_two_programs_are_two_lanes(tiny: DeviceSpec) -> None:
    blocks = blocks_of(kernel(), 3) + blocks_of(kernel(nbytes=256), 6)[3:]
    assert lanes(blocks, tiny) == [(0, 1, 2), (3, 4, 5)]
    assert_equal_times(blocks, tensors_of(6), tiny)


def test_two_kinds_of_core_are_two_lanes(tiny_2002: DeviceSpec) -> None:
    program = kernel()
    kinds = ("ai_core", "ai_core", "vector_core", "vector_core")
    blocks = tuple(
        Block(block.core, kind, program, block.bindings)
        for block, kind in zip(blocks_of(program, 4), kinds, strict=True)
    )
    assert lanes(blocks, tiny_2002) == [(0, 1), (2, 3)]
    assert_equal_times(blocks, tensors_of(4), tiny_2002)


def test_an_l2_too_small_for_the_tensors_treats_all_cores_alike(tiny: DeviceSpec) -> None:
    blocks = blocks_of(kernel(), 4)
    large = [GlobalTensor("x", 16384), GlobalTensor("y", 16384), GlobalTensor("scale", 2048)]
    assert lanes(blocks, tiny) == [(0, 1, 2, 3)]
    for l2 in L2_STATES:
        assert_equal_times(blocks, large, tiny, l2)


def test_a_single_core_is_left_alone(tiny: DeviceSpec) -> None:
    assert lanes(blocks_of(kernel(), 1), tiny) == [(0,)]


# ---- cores that do the same for a while ----


@pytest.fixture
def parted(monkeypatch: pytest.MonkeyPatch) -> list[list[list[int]]]:
    """Each time that a lane parts: the numbers of the equivalent cores that go on together."""
    found: list[list[list[int]]] = []
    part = Lane.part

    def spied(lane: Lane, groups: Sequence[Sequence[int]]) -> None:
        found.append([[lane.members[index].number for index in group] for group in groups])
        part(lane, groups)

    monkeypatch.setattr(Lane, "part", spied)
    return found


def two_loads() -> Program:
    """Load 512 B of the scale and then of x, one after the other, and store them to y."""
    ops: list[MicroOp] = [
        Load(Local("ub", 0, UINT8, 512), Global("scale", 0, 512)),
        Load(Local("ub", 512, UINT8, 512), Global("x", 0, 512)),
        *(SetFlag("mte2", "mte3", 0), WaitFlag("mte2", "mte3", 0)),
        Store(Global("y", 0, 512), Local("ub", 0, UINT8, 512)),
    ]
    return Program("two loads", tuple(ops))


def bound(program: Program, *x: Binding) -> tuple[Block, ...]:
    return tuple(
        Block(core, "aiv", program, {"x": own, "y": Binding("y", core * ROW)} | SCALE)
        for core, own in enumerate(x)
    )


def test_cores_part_at_a_hit(tiny: DeviceSpec, parted: list[list[list[int]]]) -> None:
    # What cores 0 and 1 load second is there since their first load; cores 2 and 3 have rows of
    # their own, and core 4 reads what core 3 writes.
    blocks = bound(two_loads(), *[Binding("scale")] * 2, *(Binding("x", ROW * i) for i in (2, 3)))
    blocks += bound(two_loads(), *[Binding("y", 3 * ROW)] * 5)[4:]
    assert lanes(blocks, tiny) == [(0, 1), (2,), (3,), (4,)]
    chip.time(blocks, tensors_of(5), tiny, engine="simpy")
    assert parted == [[[0], [1, 2, 3]]]
    assert_equal_times(blocks, tensors_of(5), tiny)


def test_parted_cores_ask_for_themselves(parted: list[list[list[int]]]) -> None:
    # Core 2 stores from the middle of a sector on, while all are about to load the same line, past
    # the L2, where three of them are answered in turn.
    ops = (
        Store(Global("y", 0, 128), Local("ub", 0, UINT8, 128)),
        BinaryScalar("add", *[Local("ub", 2048, FLOAT32, 64)] * 2, 1.0),
        *(SetFlag("vector", "mte2", 0), WaitFlag("vector", "mte2", 0)),
        Load(Local("ub", 512, UINT8, 512), Global("scale", 0, 512)),
    )
    spec = tiny_spec(l2__same_line_ns=7.0)
    program, past = Program("kernel", ops), {"scale": Binding("scale", is_cached=False)}
    blocks = tuple(
        Block(core, "aiv", program, {"y": Binding("y", place)} | past)
        for core, place in enumerate((0, ROW, 2 * ROW + 16))
    )
    assert lanes(blocks, spec) == [(0, 1), (2,)]
    chip.time(blocks, tensors_of(3), spec, engine="simpy")
    assert parted == [[[0], [1]]]
    assert_equal_times(blocks, tensors_of(3), spec)


def test_a_line_keeps_cores_together(tiny: DeviceSpec, parted: list[list[list[int]]]) -> None:
    # Cores 0 and 1 share what their lines cost, cores 2 and 3 pay for theirs alone.
    places = (0, 0, 2 * ROW, 3 * ROW)
    blocks = bound(two_loads(), *(Binding("x", place) for place in places))
    trace = chip.time(blocks, tensors_of(4), tiny, engine="simpy")
    assert not parted
    read = {core: lane.gm_bytes for lane in trace.lanes for core in lane.cores}
    assert read == {0: 128 + 256, 1: 128 + 256, 2: 128 + 512, 3: 128 + 512}
    assert_equal_times(blocks, tensors_of(4), tiny)


def test_cores_part_with_more_work(tiny: DeviceSpec, parted: list[list[list[int]]]) -> None:
    body = Body((*two_loads().ops, Barrier()))
    several = [
        Program("kernel", tuple(Call(body, {"x": 512 * turn}) for turn in range(turns)))
        for turns in (3, 3, 1, 2)
    ]
    blocks = tuple(
        Block(core, "aiv", program, {"x": Binding("x"), "y": Binding("y", core * ROW)} | SCALE)
        for core, program in enumerate(several)
    )
    chip.time(blocks, tensors_of(4), tiny, engine="simpy")
    assert parted == [[[0, 1, 3], [2]], [[0, 1], [3]]]
    assert_equal_times(blocks, tensors_of(4), tiny)


# ---- one representative against every core, on whatever comes ----


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Loads, vector micro-ops and stores, with flags where they depend on each other or not."""
    ops: list[MicroOp] = []
    for _ in range(draw(st.integers(1, 4))):
        name = draw(st.sampled_from(["x", "x", "scale"]))
        nbytes = draw(st.sampled_from([32, 100, 128, 256, 416]))
        start = draw(st.sampled_from([0, 0, 16, 128, 200]))
        bursts = draw(st.sampled_from([1, 1, 2, 3]))
        stride = draw(st.sampled_from([nbytes, nbytes + 128, nbytes + 300]))
        ops.append(
            Load(Local("ub", 0, UINT8, 32), Global(name, start, nbytes, bursts, stride), 416)
        )
        if draw(st.booleans()):
            ops += [SetFlag("mte2", "vector", 0), WaitFlag("mte2", "vector", 0)]
        repeats = draw(st.integers(1, 8))
        ops.append(BinaryScalar("mul", *[Local("ub", 2048, FLOAT32, 64 * repeats)] * 2, 2.0))
        if draw(st.booleans()):
            ops += [SetFlag("vector", "mte3", 0), WaitFlag("vector", "mte3", 0)]
            ops.append(Store(Global("y", start, nbytes), Local("ub", 2048, UINT8, nbytes)))
        if draw(st.booleans()):
            ops += [SetFlag("mte3", "mte2", 0), WaitFlag("mte3", "mte2", 0)]
    return Program("random", tuple(ops))


@given(
    several=st.lists(st.tuples(programs(), st.integers(1, 5)), min_size=1, max_size=3),
    apart=st.sampled_from([0, 128, 500, 512, 1024, 1088, 2048]),
    capacity=st.sampled_from([1024, 4096, 65536]),
    read=st.sampled_from([32e9, 50e9, 100e9]),
    same_line_ns=st.sampled_from([0.0, 2.0, 7.0]),
    run_bytes=st.sampled_from([0, 50]),
    apart_us=st.sampled_from([0.0, 0.05]),
    is_cached=st.booleans(),
    l2=st.sampled_from(["cold", "warm", "repeat", ("x",), ("scale",)]),
)
@draws(120)
def test_times_of_representatives_and_of_every_core_are_equal(
    several: list[tuple[Program, int]],
    apart: int,
    capacity: int,
    read: float,
    same_line_ns: float,
    run_bytes: int,
    apart_us: float,
    is_cached: bool,
    l2: L2State,
) -> None:
    spec = tiny_spec(
        l2__capacity_bytes=capacity,
        l2__same_line_ns=same_line_ns,
        l2__aliased_bytes=256,
        l2__aliased_speed=0.7,
        gm__read_bytes_per_s=read,
        gm__run_bytes=run_bytes,
        gm__apart_us=apart_us,
    )
    blocks: list[Block] = []
    for program, cores in several:
        for _ in range(cores):
            core = len(blocks)
            places = {name: Binding(name, core * apart) for name in ("x", "y")}
            scale = Binding("scale", is_cached=is_cached)
            blocks.append(Block(core, "aiv", program, places | {"scale": scale}))
    size = len(blocks) * apart + 4096
    tensors = [GlobalTensor(name, size) for name in ("x", "y", "scale")]
    assert_equal_times(tuple(blocks), tensors, spec, l2)


@given(
    bodies=st.lists(programs(), min_size=1, max_size=3),
    cores=st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 64, 512, 1536])), max_size=5),
        min_size=2,
        max_size=6,
    ),
    first=st.integers(0, 3),
    apart=st.sampled_from([0, 500, 1024]),
    capacity=st.sampled_from([1024, 65536]),
    is_cached=st.booleans(),
    fills=st.sampled_from(["between", "beside"]),
    bus=st.sampled_from(["shared", "separate"]),
    apart_us=st.sampled_from([0.0, 0.05]),
    is_over=st.booleans(),
)
@draws(120)
def test_cores_that_go_on_differently_have_their_own_times(
    bodies: list[Program],
    cores: list[list[tuple[int, int]]],
    first: int,
    apart: int,
    capacity: int,
    is_cached: bool,
    fills: str,
    bus: str,
    apart_us: float,
    is_over: bool,
) -> None:
    # All begin with as many calls of the first body, elsewhere each, and then do what comes.
    l2 = {"l2__capacity_bytes": capacity, "l2__fills": fills, "l2__aliased_bytes": 256}
    spec = tiny_spec(**l2, l2__same_line_ns=2.0, gm__bus=bus, gm__apart_us=apart_us)
    ends = [Barrier()] if is_over else []
    shared = [Body((*program.ops, *ends)) for program in bodies]
    blocks = []
    for core, calls in enumerate(cores):
        begun = [(0, 256 * core)] * first + calls
        parts = [Call(shared[which % len(shared)], {"x": shift}) for which, shift in begun]
        places = {name: Binding(name, core * apart) for name in ("x", "y")}
        scale = Binding("scale", is_cached=is_cached)
        program = Program("random", tuple(parts))
        blocks.append(Block(core, "aiv", program, places | {"scale": scale}))
    tensors = [GlobalTensor(name, 16384) for name in ("x", "y", "scale")]
    assert_equal_times(tuple(blocks), tensors, spec)


@given(st.integers(2, 16), st.sampled_from([0, 64, 640]), st.sampled_from([0, 128, 256]))
@example(16, 256, 0)
@draws(40)
def test_private_rows_fold_into_one_lane(cores: int, common: int, gap: int) -> None:
    spec = tiny_spec(gm__read_bytes_per_s=77e9, l2__capacity_bytes=4096)
    blocks = blocks_of(kernel(2, 128, common, 128 + gap), cores)
    assert lanes(blocks, spec) == [tuple(range(cores))]
    assert_equal_times(blocks, tensors_of(cores), spec)


@pytest.mark.parametrize("cores", [3, 5, 7])
def test_one_lane_times_like_many(cores: int, tiny: DeviceSpec) -> None:
    # cores x 512 bytes at 32 a cycle, there 10 later; 2 + 1 and 3 of adding; out again, + 4.
    blocks = blocks_of(kernel(1, 512), cores)
    trace = chip.time(blocks, tensors_of(cores), tiny)
    took = cores * 16
    assert len(trace.lanes) == 1
    assert trace.cycles == (took + 10) + (2 + 1 + 3) + (took + 4)
