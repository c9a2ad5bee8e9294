"""Groups of cores by themselves: the same is found as of all cores together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from npusim.check import group_isolation
from npusim.check.byte_ranges import Search
from npusim.check.cross_core_races import check_apart, shared_tensors
from npusim.check.group_isolation import check_order
from npusim.check.hazards import (
    CrossCoreOrder,
    DeadlockError,
    Exchange,
    HazardError,
    Orders,
    RaceError,
    Recorder,
)
from npusim.data.dtypes import UINT8
from npusim.isa import (
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    CrossMode,
    Global,
    Load,
    Local,
    MicroOp,
    SetFlag,
    Store,
    WaitFlag,
)
from npusim.kernel.program import Binding, Block, Program

STORE = Store(Global("x", 0, 64), Local("ub", 0, UINT8, 64))
LOAD = Load(Local("ub", 0, UINT8, 64), Global("x", 0, 64))


def programs(mode: CrossMode = "group", *, waits: bool = True) -> tuple[Program, Program, Program]:
    """A cube core that stores and says so, and two vector cores that load what it has stored."""
    writer = Program("writer", (STORE, CrossCoreSetFlag(mode, "mte3", 0)))
    wait = (CrossCoreWaitFlag(mode, "mte2", 0),) if waits else ()
    reader = Program("reader", (*wait, LOAD))
    return writer, reader, reader


def launch(
    count: int, apart_bytes: int = 64, *each: tuple[Program, Program, Program]
) -> tuple[Block, ...]:
    """So many groups, whose tensors begin so many bytes apart; the last ones run *each*."""
    kinds = [programs()] * (count - len(each)) + list(each)
    return tuple(
        Block(3 * group + i, kind, program, {"x": Binding("ws", group * apart_bytes)}, group)
        for group, three in enumerate(kinds)
        for i, (kind, program) in enumerate(zip(("aic", "aiv", "aiv"), three, strict=True))
    )


def whole(blocks: tuple[Block, ...]) -> str:
    """What is said of all blocks together; nothing if nothing is wrong."""
    try:
        tensors = shared_tensors(blocks, Search(blocks))
        check_apart(blocks, tensors, CrossCoreOrder(blocks, Recorder(Orders())))
    except HazardError as error:
        return f"{type(error).__name__}: {error}"
    return ""


@dataclass
class Seen:
    """How a launch was checked."""

    walks: int = 0
    """Groups that were walked."""
    together: list[int] = field(default_factory=list)
    """How many blocks were held against each other, each time that some were."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found, walk = Seen(), Exchange.walk

    def order(some: tuple[Block, ...], recorder: Recorder) -> CrossCoreOrder:
        found.together.append(len(some))
        return CrossCoreOrder(some, recorder)

    def counted(*arguments: Any) -> Any:
        found.walks += 1
        return walk(*arguments)

    monkeypatch.setattr(group_isolation, "CrossCoreOrder", order)
    monkeypatch.setattr(Exchange, "walk", counted)
    return found


def test_groups_that_are_alike_are_walked_once(seen: Seen) -> None:
    writer, reader, _ = programs()
    check_order(launch(5, 64, *[(writer, reader, reader)] * 5), Orders())
    assert seen == Seen(walks=1)


def test_a_group_that_stores_elsewhere_is_walked_too(seen: Seen) -> None:
    writer, reader, _ = programs()
    further = Program("writer", (replace(STORE, dst=Global("x", 32, 32)), *writer.parts))
    shared = [(writer, reader, reader)] * 4
    check_order(launch(5, 64, *shared, (further, reader, reader)), Orders())
    assert seen == Seen(walks=2)


def test_groups_that_share_bytes_are_checked_together(seen: Seen) -> None:
    blocks = launch(2, 32)
    with pytest.raises(RaceError) as caught:
        check_order(blocks, Orders())
    assert seen == Seen(together=[6])
    assert f"RaceError: {caught.value}" == whole(blocks)


def test_groups_that_write_the_same_bytes_race_though_nobody_reads_them() -> None:
    writer, reader, _ = programs()
    waits = Program("reader", reader.parts[:1])
    blocks = launch(2, 32, *[(writer, waits, waits)] * 2)
    with pytest.raises(RaceError) as caught:
        check_order(blocks, Orders())
    assert f"RaceError: {caught.value}" == whole(blocks)


def test_a_race_within_a_group_is_reported_for_all() -> None:
    blocks = launch(3, 64, programs(waits=False))
    with pytest.raises(RaceError) as caught:
        check_order(blocks, Orders())
    assert f"RaceError: {caught.value}" == whole(blocks) != ""


def test_all_that_wait_for_ever_are_named_together() -> None:
    _, reader, _ = programs()
    silent = Program("writer", (STORE,))
    blocks = launch(3, 64, (silent, reader, reader), (silent, reader, reader))
    with pytest.raises(DeadlockError) as caught:
        check_order(blocks, Orders())
    assert f"DeadlockError: {caught.value}" == whole(blocks)
    assert "core 4" in str(caught.value)
    assert "core 8" in str(caught.value)


@pytest.mark.parametrize(("met", "together"), [(("aiv",), []), (("aic", "aiv"), [6])])
def test_flags_of_all_cores_of_one_kind_part_phases(
    seen: Seen, met: tuple[str, ...], together: list[int]
) -> None:
    meets = [CrossCoreSetFlag("all", "mte3", 1), CrossCoreWaitFlag("all", "mte2", 1)]
    three = programs()
    ends = [meets if kind in met else [] for kind in ("aic", "aiv", "aiv")]
    meeting = tuple(replace(p, parts=(*p.parts, *m)) for p, m in zip(three, ends, strict=True))
    check_order(launch(2, 64, *[meeting] * 2), Orders())
    assert seen.together == together


# ---- what a walk must not let pass ----


def rounds(count: int, slots: int) -> tuple[Program, Program, Program]:
    """A cube core stores to slots in turn, both vector cores load from there; they meet before and
    behind what one of them stores and the other one of each group loads.
    """
    ready, taken = (CrossCoreSetFlag("group", "mte3", 0), CrossCoreWaitFlag("group", "mte2", 0))
    again, free = (CrossCoreSetFlag("group", "mte2", 1), CrossCoreWaitFlag("group", "mte3", 1))
    meet = CrossCoreSetFlag("all", "mte3", 2), CrossCoreWaitFlag("all", "mte2", 2)
    load = replace(LOAD, dst=Local("ub", 64, UINT8, 64))
    writer, reader = list[MicroOp](), list[MicroOp]()
    for index in range(count):
        place = Global("x", 64 * (index % slots), 64)
        writer += [*[free] * (index >= slots), replace(STORE, dst=place), ready]
        reader += [taken, replace(load, src=place), again]
    writer += [free] * min(count, slots)
    own, other = Global("own", 0, 64), Global("other", 0, 64)
    after = SetFlag("mte2", "mte3", 0), WaitFlag("mte2", "mte3", 0)
    reader += [replace(STORE, dst=own), *meet, replace(load, src=other), *after, *meet]
    reader += [*after, replace(STORE, dst=own)]
    readers = (Program("reader", tuple(reader)) for _ in range(2))
    return Program("writer", tuple(writer)), *readers


def in_rounds(count: int, slots: int, groups: int = 3) -> tuple[Block, ...]:
    blocks = launch(groups, 64 * slots, *[rounds(count, slots)] * groups)
    places = [64 * block.core for block in blocks]
    return tuple(
        replace(
            block,
            bindings=block.bindings
            | {"own": Binding("between", place), "other": Binding("between", other)},
        )
        for block, place, other in zip(blocks, places, [*places[4:], *places[:4]], strict=True)
    )


def outcome(blocks: tuple[Block, ...]) -> str:
    try:
        check_order(blocks, Orders())
    except HazardError as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize(("count", "slots"), [(1, 1), (5, 2), (40, 3), (20, 16)])
def test_rounds_that_are_in_order_are_walked(seen: Seen, count: int, slots: int) -> None:
    assert outcome(in_rounds(count, slots)) == ""
    assert seen == Seen(walks=1)


def test_a_setter_that_gets_too_far_ahead_is_found() -> None:
    blocks = in_rounds(20, 17)
    assert outcome(blocks) == whole(blocks)
    assert "a core counts up to 16 sets of a flag that it has not awaited" in outcome(blocks)


@pytest.mark.parametrize("core", [0, 1, 2])
def test_whatever_is_left_out_the_same_is_said_as_of_all(core: int) -> None:
    blocks = in_rounds(5, 2, groups=2)
    parts = blocks[core].program.parts
    said = set()
    for left_out in range(len(parts)):
        program = Program("less", (*parts[:left_out], *parts[left_out + 1 :]))
        less = tuple(replace(x, program=program) if x.core == core else x for x in blocks)
        orders = Orders()
        try:
            for block in less:
                orders.of(block.program)
        except HazardError:
            continue  # The core itself has no order.
        assert outcome(less) == whole(less)
        said.add(outcome(less).partition(":")[0])
    assert said == {"", "RaceError", "DeadlockError"}


def test_a_group_whose_tensors_lie_otherwise_is_checked_too() -> None:
    writer, reader, _ = programs()
    late = replace(STORE, dst=Global("x", 64, 64))
    writer = Program("writer", (*writer.parts, late))
    blocks = launch(2, 128, *[(writer, reader, reader)] * 2)
    check_order(blocks, Orders())
    # The vector cores of the second group load what is stored behind the flag.
    further = {"x": Binding("ws", 128 + 64)}
    blocks = (*blocks[:4], *(replace(block, bindings=further) for block in blocks[4:]))
    with pytest.raises(RaceError) as caught:
        check_order(blocks, Orders())
    assert f"RaceError: {caught.value}" == whole(blocks)
