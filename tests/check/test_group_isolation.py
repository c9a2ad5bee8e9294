"""Groups of cores by themselves: the same is found as of all cores together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npusim.check import group_isolation
from npusim.check.cross_core_races import check_apart
from npusim.check.group_isolation import check_order
from npusim.check.hazards import (
    CrossCoreOrder,
    DeadlockError,
    HazardError,
    Orders,
    RaceError,
    Recorder,
)
from npusim.data.dtypes import UINT8
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag, CrossMode, Global, Load, Local, Store
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
        check_apart(blocks, CrossCoreOrder(blocks, Recorder(Orders())))
    except HazardError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def checked(monkeypatch: pytest.MonkeyPatch, blocks: tuple[Block, ...]) -> list[int]:
    """How many blocks are held against each other, each time that some are."""
    found = []

    def order(some: tuple[Block, ...], recorder: Recorder) -> CrossCoreOrder:
        found.append(len(some))
        return CrossCoreOrder(some, recorder)

    monkeypatch.setattr(group_isolation, "CrossCoreOrder", order)
    check_order(blocks, Orders())
    return found


def test_groups_that_are_alike_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader, _ = programs()
    shared = [(writer, reader, reader)] * 5
    assert checked(monkeypatch, launch(5, 64, *shared)) == [3]


def test_a_group_that_stores_elsewhere_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader, _ = programs()
    further = Program("writer", (replace(STORE, dst=Global("x", 32, 32)), *writer.parts))
    shared = [(writer, reader, reader)] * 4
    assert checked(monkeypatch, launch(5, 64, *shared, (further, reader, reader))) == [3, 3]


def test_groups_that_share_bytes_are_checked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = launch(2, 32)
    with pytest.raises(RaceError) as caught:
        checked(monkeypatch, blocks)
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


def test_flags_of_all_cores_are_checked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    meets = [CrossCoreSetFlag("all", "mte3", 1), CrossCoreWaitFlag("all", "mte2", 1)]
    writer, reader, _ = programs()
    meeting = tuple(Program(p.name, (*p.parts, *meets)) for p in (writer, reader, reader))
    blocks = launch(2, 64, *[meeting] * 2)
    assert checked(monkeypatch, blocks) == [6]
